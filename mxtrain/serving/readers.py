"""Bodies that are no arrays: an image here, texts and sounds in the packages of their fields."""

from __future__ import annotations

import importlib
import io
import pkgutil
import warnings
from pathlib import Path
from typing import Any, Callable, Dict, Mapping, Optional, Protocol, Sequence

import numpy as np

import mxtrain
from mxtrain.export import standalone
from mxtrain.export.standalone import UnusableFolder
from mxtrain.serving.errors import RequestError

Answer = Dict[str, Any]
FIELD_MODULE = "served"
"""Module of a field's package that reads its samples and writes texts. It holds READERS, from the name of a signature's
class, and may hold GENERATORS, from the name of a task."""


class BodyReader(Protocol):
    """Reads the body of a request as one sample."""

    @property
    def kind(self) -> str:
        """image, text or sound, for the page."""

    @property
    def media_types(self) -> Sequence[str]:
        """Media types of bodies that it reads."""

    def read(self, body: bytes, media_type: str, max_pixels: int) -> Dict[str, np.ndarray]:
        """The inputs for one sample, (1, ...) each.

        Args:
            body: of the request.
            media_type: one of `media_types`.
            max_pixels: of an image.

        Raises:
            RequestError: it cannot be read.
        """

    def describe(self, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]) -> Optional[Answer]:
        """The outputs of one sample for people; None where the reader knows no more than the task's usual ones."""


MakeReader = Callable[[Dict[str, Any], Sequence[Any]], Optional[BodyReader]]


def find_reader(signature: Dict[str, Any], inputs: Sequence[Any]) -> Optional[BodyReader]:
    """The reader for the samples of an exported folder; None if it takes arrays alone.

    Args:
        signature: of the folder, which may come from anybody: it chooses among mxtrain's own readers.
        inputs: `TensorSpec`s of the network.

    Raises:
        UnusableFolder: the signature is damaged.
    """
    try:
        if signature.get("samples") == "images" and len(inputs) == 1:
            return make_image_reader(signature, inputs[0])
        make: Optional[MakeReader] = field_tables("READERS").get(str(signature.get("signature_class")))
        return make(signature, inputs) if make is not None else None
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise UnusableFolder(f"{standalone.SIGNATURE} is damaged: {type(error).__name__}: {error}") from error


def field_tables(name: str) -> Dict[str, Any]:
    """Returns the tables of this name in the modules of all fields that are installed, joined."""
    found: Dict[str, Any] = {}
    for root in mxtrain.__path__:
        for package in pkgutil.iter_modules([root]):
            folder = str(Path(root) / package.name)
            if package.ispkg and FIELD_MODULE in {one.name for one in pkgutil.iter_modules([folder])}:
                found.update(vars(importlib.import_module(f"mxtrain.{package.name}.{FIELD_MODULE}")).get(name, {}))
    return found


def make_image_reader(signature: Dict[str, Any], spec: Any) -> Optional[BodyReader]:
    """None for networks whose images are placed in a frame, which `predict.py` does not read either."""
    decoding = signature["signature"]["decoding"]
    is_plain = "frame" not in decoding and decoding.get("fit") in (None, "stretch")
    return ImageBodyReader(signature, spec) if is_plain else None


class ImageBodyReader:
    """Reads an image file, as in training.

    Args:
        signature: of the folder.
        spec: `TensorSpec` of the network's input.
    """

    kind = "image"
    media_types = ("image/jpeg", "image/png", "image/webp", "image/gif", "image/bmp", "image/tiff",
                   "image/x-portable-anymap")  # fmt: skip

    def __init__(self, signature: Dict[str, Any], spec: Any) -> None:
        channels, height, width = signature["signature"]["shape"]
        if not all(isinstance(size, int) and 0 < size <= 1 << 14 for size in (channels, height, width)):
            raise ValueError(f"the shape of images is {channels} x {height} x {width}")
        self._signature, self._spec = signature, spec

    def read(self, body: bytes, media_type: str, max_pixels: int) -> Dict[str, np.ndarray]:
        """See `BodyReader.read`."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of Pillow, about files
                image = standalone.read_image(io.BytesIO(body), self._signature, "the image", max_pixels)
        except UnusableFolder as error:
            raise RequestError(413, f"{error}.") from error
        except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError, struct.error and its own
            said = "" if "BytesIO" in str(error) else f": {error}"
            raise RequestError(400, f"the body is no image that can be read{said[:200]}.") from error
        return {self._spec.name: image.astype(self._spec.dtype)}

    def describe(self, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]) -> Optional[Answer]:
        """See `BodyReader.describe`."""
        return None
