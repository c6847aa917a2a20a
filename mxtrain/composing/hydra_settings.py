"""Reads and checks Hydra's own settings: the run directory, and everything else below `hydra.`"""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable, Iterator

from omegaconf import DictConfig, OmegaConf

from mxtrain.composing.hydra_errors import first_line, reasons_of
from mxtrain.errors import ConfigError, MxtrainError
from mxtrain.types import expand_path

MAX_NAME, MAX_PATH = 255, 4000
"""Bytes that a file system takes, with room for the names of what a run writes."""


def folder_of(hydra: DictConfig, key: str) -> Path:
    """Returns the folder that `hydra.<key>` names.

    Raises:
        ConfigError: it is no name that a folder can have.
    """
    raw: Any = OmegaConf.to_container(hydra)
    for name in key.split("."):
        raw = raw.get(name) if isinstance(raw, dict) else None
    assignment = f"hydra.{key}={_shortened(str(raw))}"
    example = f"Type a folder, e.g. hydra.{key}=runs/mine."
    try:
        value = OmegaConf.select(hydra, key, throw_on_missing=True)
    except Exception as error:  # resolvers are functions, and raise what Python raises
        raise ConfigError(f"{assignment}: {_shortened(first_line(error))}. {example}") from None
    if not isinstance(value, (str, int, float)) or isinstance(value, bool) or not str(value).strip():
        raise ConfigError(f"{assignment}: this is no name of a folder. {example}")
    path = Path(expand_path(str(value)))
    name = max(path.parts, key=lambda part: len(os.fsencode(part)), default="")
    if len(os.fsencode(name)) > MAX_NAME or len(os.fsencode(os.path.abspath(path))) > MAX_PATH:
        raise ConfigError(f"{assignment}: this name is too long for a file system. {example}")
    if not is_folder(path, assignment) and path.exists():
        raise ConfigError(f"{assignment}: this is a file, and no folder. {example}")
    return path


def is_folder(path: Path, assignment: str) -> bool:
    """Returns True if there is a folder, which can be listed and entered.

    Raises:
        ConfigError: this user may not look, or not list or enter it; begins with `assignment`.
    """
    try:
        exists = path.is_dir()
    except OSError as error:
        raise ConfigError(f"{assignment}: {path} cannot be read: {error.strerror}.") from None
    if exists and not os.access(path, os.R_OK | os.X_OK):
        raise ConfigError(f"{assignment}: the folder {path} cannot be read: you have no permission.")
    return exists


@contextmanager
def hydra_settings_at_fault(has_run: Callable[[], bool]) -> Iterator[None]:
    """Reports what Hydra raises before a job has run as an error in its own settings (`hydra.job_logging` etc.).

    Raises:
        ConfigError: instead of Hydra's error.
    """
    try:
        yield
    except MxtrainError:
        raise
    except Exception as error:
        # An error that the job raised is not an error of Hydra's settings.
        if has_run():
            raise
        raise ConfigError(f"{_said_by_hydra(error)} `--cfg hydra` shows Hydra's settings.") from None


def _said_by_hydra(error: BaseException) -> str:
    """Returns the wrong setting, if Hydra names it, and the error."""
    return f"{getattr(error, 'full_key', '') or 'a setting below hydra.'}: {_shortened(reasons_of(error))}."


def _shortened(text: str, length: int = 300) -> str:
    return text if len(text) <= length else text[: length - 4] + " ..."
