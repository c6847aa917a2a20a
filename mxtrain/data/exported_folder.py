"""Interface of an exported folder for the modules that read samples for it. Exported folders have a copy of this
module."""

from __future__ import annotations

from typing import Any, Dict, Protocol

import numpy as np


class ExportedFolder(Protocol):
    """An opened exported folder, see `mxtrain.export.standalone.OpenedExport`.

    Attributes:
        signature: content of signature.json.
    """

    signature: Dict[str, Any]

    def run(self, inputs: Dict[str, np.ndarray], part: str = "") -> Dict[str, np.ndarray]:
        """Runs the network, or one of its parts; returns the outputs by name."""

    def read(self, name: str) -> bytes:
        """Returns the content of a file of the folder."""
