"""The folder for temporary files."""

from __future__ import annotations

import tempfile

from mxtrain.errors import ConfigError


def temporary_root() -> str:
    """Returns the folder for temporary files.

    Raises:
        ConfigError: none is writable, as in a container whose root is read-only.
    """
    try:
        return tempfile.gettempdir()
    except FileNotFoundError as error:
        places = str(error.strerror or error).partition("[")[2].rstrip("]'").replace("'", "") or "/tmp, /var/tmp"
        raise ConfigError(
            f"there is no folder for temporary files: {places} cannot be written. Set TMPDIR to a writable folder."
        ) from None
