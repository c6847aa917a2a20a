"""Exported folders in the layouts of Triton, KServe and Ray Serve."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Optional, Sequence

from mxtrain.exporting.deploy import kserve, ray, triton
from mxtrain.exporting.deploy.tensors import Tensor

Server = Literal["folder", "triton", "kserve", "ray"]
REPOSITORY = "repository"


@dataclass(frozen=True)
class Deployment:
    """A server for which a network is exported.

    Attributes:
        server: folder = none in particular.
        name: of the network, for the server.
        storage: where a cluster reads the repository from, e.g. s3://bucket/digits; of KServe alone.
    """

    server: Server = "folder"
    name: str = "model"
    storage: Optional[str] = None

    def folder_in(self, folder: Path) -> Path:
        """Creates and returns the subfolder for the network and its proof."""
        # Triton's repositories hold a folder for each model, and in it a folder for each version, named by a number.
        inside = {"triton": (self.name, "1"), "kserve": (REPOSITORY, self.name, "1")}.get(self.server, ())
        place = folder.joinpath(*inside)
        place.mkdir(parents=True, exist_ok=True)
        return place

    def write(self, folder: Path, session: Any, class_names: Sequence[str]) -> None:
        """Writes what the server needs besides the network.

        Args:
            folder: the new one.
            session: of onnxruntime, with the network.
            class_names: of its classes, or nothing.
        """
        inputs = [Tensor.from_node(node) for node in session.get_inputs()]
        outputs = [Tensor.from_node(node) for node in session.get_outputs()]
        place = self.folder_in(folder)
        if self.server in ("triton", "kserve"):
            triton.write(place.parent, self.name, inputs, outputs, class_names)
        if self.server == "kserve" and self.storage is not None:
            kserve.write(folder, self.name, self.storage, sum(one.stat().st_size for one in place.iterdir()))
        if self.server == "ray":
            ray.write(folder, self.name)


PLAIN = Deployment()
"""No server in particular."""
