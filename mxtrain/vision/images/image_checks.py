"""Checks of `data check` for images in files: each is read once and decoded completely."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, List, Optional, Protocol, Sequence, Tuple

import numpy as np

from mxtrain.data.checking.checks import Checked, SourceChecks, digest_of
from mxtrain.data.checking.problems import (
    DAMAGED_IMAGE,
    UNREADABLE_IMAGE,
    WRONG_FORMAT,
    DataLocation,
    Problem,
    problem_of,
)
from mxtrain.data.loading.opening import open_image
from mxtrain.errors import MxtrainError
from mxtrain.vision.images.dicom import is_dicom
from mxtrain.vision.images.jpeg_warnings import CRASH, shared_warnings
from mxtrain.vision.images.pixels import ImageReader
from mxtrain.vision.images.volume_slice import VolumeSlice

if TYPE_CHECKING:
    from mxtrain.vision.images.decoding import ImageContent

_FORMATS = {
    ".jpg": ("JPEG", "MPO"),
    ".jpeg": ("JPEG", "MPO"),
    ".jfif": ("JPEG", "MPO"),
    ".jpe": ("JPEG", "MPO"),
    ".png": ("PNG",),
    ".bmp": ("BMP", "DIB"),
    ".webp": ("WEBP",),
    ".gif": ("GIF",),
    ".tif": ("TIFF",),
    ".tiff": ("TIFF",),
    ".ppm": ("PPM",),
    ".pgm": ("PPM",),
    ".pbm": ("PPM",),
    ".pnm": ("PPM",),
    ".dcm": ("DICOM",),
    ".dicom": ("DICOM",),
}
"""Extension -> Pillow's names of the allowed formats; MPO is a JPEG file with several images."""


class LabelledImages(Protocol):
    """Source of encoded images with labels, such as `DecodedSource`, which documents these methods."""

    def location(self, index: int) -> DataLocation: ...

    def read(self, index: int) -> Tuple[ImageContent, int]: ...

    def decode(self, index: int, content: ImageContent, draws_4: Optional[Sequence[float]] = None) -> np.ndarray: ...


class AnnotatedImageSource(Protocol):
    """Source of images with annotations, such as `EncodedImageSource`, which documents these methods."""

    def location(self, index: int) -> DataLocation: ...

    def read(self, index: int) -> ImageContent: ...

    def decode(self, index: int, content: ImageContent) -> ImageReader: ...

    def resize(
        self, index: int, image: ImageReader, box: Tuple[float, float, float, float], size: Tuple[int, int]
    ) -> np.ndarray: ...


class EncodedChecks(SourceChecks):
    """Base class of checks of encoded images."""

    def __init__(self, source: Any) -> None:
        super().__init__(source)
        self._jpeg = shared_warnings()

    def _problems_of(self, location: DataLocation, content: ImageContent) -> List[Problem]:
        """Returns the problems of an image that can be decoded."""
        problem = wrong_format(location, content) if location.record is None else None
        warning = self._jpeg.warning(content) if isinstance(content, bytes) else ""
        problems = [] if problem is None else [problem]
        if warning:
            fact = f"{location} is damaged, and is read with wrong pixels (libjpeg: {warning})."
            if warning == CRASH:
                fact = f"{location} may be damaged: {CRASH} when it reads the file."
            problems.append(Problem(DAMAGED_IMAGE, location, fact, "Look at it, and replace or remove it."))
        return problems


class ImageChecks(EncodedChecks):
    """Checks of encoded images."""

    _source: LabelledImages

    def location(self, index: int) -> DataLocation:
        """Returns the source location of an image."""
        return self._source.location(index)

    def check(self, index: int) -> Checked:
        """Decodes an image, and compares its format with its extension."""
        location = self.location(index)
        try:
            content, label = self._source.read(index)
        except MxtrainError as error:
            return Checked((problem_of(error, location, UNREADABLE_IMAGE),))
        try:
            self._source.decode(index, content)
        except MxtrainError as error:
            return Checked((problem_of(error, location, UNREADABLE_IMAGE),), classes=(label,))
        return Checked(self._problems_of(location, content), digest_of_image(content), (label,))


class AnnotatedImageChecks(EncodedChecks):
    """Base class of checks of images with annotations."""

    _source: AnnotatedImageSource

    def location(self, index: int) -> DataLocation:
        """Returns the source location of an image."""
        return self._source.location(index)

    def _check_image(self, index: int, problems: List[Problem]) -> Tuple[bytes, Optional[Tuple[int, int]]]:
        """Decodes an image, and adds its problems to the list. Returns its digest, empty if it is unreadable, and its
        (width, height), None if unknown."""
        location, digest, size = self.location(index), b"", None
        try:
            content = self._source.read(index)
            image = self._source.decode(index, content)
            size = image.size
            self._source.resize(index, image, (0.0, 0.0, *size), (1, 1))  # decodes all of it
            problems += self._problems_of(location, content)
            digest = digest_of_image(content)
        except MxtrainError as error:
            problems.append(problem_of(error, location, UNREADABLE_IMAGE))
        return digest, size


def digest_of_image(content: ImageContent) -> bytes:
    """Returns the digest by which duplicates are found. Slices without an object are alike in many volumes, so a slice
    is compared with those of the same number together with its volume."""
    if isinstance(content, bytes):
        return digest_of(content)
    assert isinstance(content, VolumeSlice)  # only predictions read decoded images
    return digest_of(content.volume.identity(), content.number.to_bytes(4, "little"))


def wrong_format(location: DataLocation, content: ImageContent) -> Optional[Problem]:
    """Returns the problem of an image whose format does not fit its extension; None if there is none."""
    ending = os.path.splitext(location.file)[1].lower()
    if ending not in _FORMATS or not isinstance(content, bytes):
        return None
    format_name = "DICOM" if is_dicom(content) else str(open_image(content).format)
    if format_name in _FORMATS[ending]:
        return None
    fact = f"{location} is {format_name}, and its name says {_FORMATS[ending][0]}."
    return Problem(WRONG_FORMAT, location, fact, "Rename it, or save it as what its name says.")
