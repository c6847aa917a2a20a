"""Checks of `data check` for images and masks in files: each is read once and decoded completely."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, List, Optional, Tuple, Union

import numpy as np

from mxtrain.data.checking.checks import Checked, SourceChecks, digest_of
from mxtrain.data.checking.problems import (
    BOX_OUTSIDE,
    SIZE_MISMATCH,
    UNREADABLE_IMAGE,
    WRONG_FORMAT,
    DataPlace,
    Problem,
    problem_of,
)
from mxtrain.data.loading.opening import open_image
from mxtrain.errors import MxtrainError
from mxtrain.vision.detection.box_faults import REMEDY, SIZE_REMEDY, size_fact
from mxtrain.vision.detection.boxes import Column
from mxtrain.vision.images.dicom import is_dicom

if TYPE_CHECKING:
    from mxtrain.vision.detection.boxed_images import BoxedImages
    from mxtrain.vision.images.decoding import DecodedSource
    from mxtrain.vision.segmentation.masked_images import MaskedImages

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


class ImageChecks(SourceChecks):
    """Checks of encoded images."""

    _source: DecodedSource

    def place(self, index: int) -> DataPlace:
        """Returns the source location of an image."""
        return self._source.encoded.place(index)

    def check(self, index: int) -> Checked:
        """Decodes an image, and compares its format with its extension."""
        place = self.place(index)
        try:
            content, label = self._source.read(index)
        except MxtrainError as error:
            return Checked((problem_of(error, place, UNREADABLE_IMAGE),))
        try:
            self._source.decode(index, content)
        except MxtrainError as error:
            return Checked((problem_of(error, place, UNREADABLE_IMAGE),), classes=(label,))
        assert isinstance(content, bytes)  # only predictions read decoded images
        problem = wrong_format(place, content) if place.record is None else None
        return Checked(() if problem is None else (problem,), digest_of(content), (label,))


class AnnotatedImageChecks(SourceChecks):
    """Base class of checks of images with annotations."""

    _source: Union[MaskedImages, BoxedImages]

    def place(self, index: int) -> DataPlace:
        """Returns the source location of an image."""
        return self._source.place(index)

    def _check_image(self, index: int, problems: List[Problem]) -> Tuple[bytes, Optional[Tuple[int, int]]]:
        """Decodes an image, and adds its problems to the list. Returns its digest, empty if it is unreadable, and its
        (width, height), None if unknown."""
        place, digest, size = self.place(index), b"", None
        try:
            content = self._source.read(index)
            assert isinstance(content, bytes)  # as above
            image = self._source.decode(index, content)
            size = image.size
            self._source.resize(index, image, (0.0, 0.0, *size), (1, 1))  # decodes all of it
            problem, digest = wrong_format(place, content), digest_of(content)
        except MxtrainError as error:
            problem = problem_of(error, place, UNREADABLE_IMAGE)
        problems += [] if problem is None else [problem]
        return digest, size


class BoxedChecks(AnnotatedImageChecks):
    """Checks of images and their boxes. Errors of the annotation file alone were found when it was opened."""

    _source: BoxedImages

    def check(self, index: int) -> Checked:
        """Decodes an image, and compares its size and its boxes with the annotation."""
        problems: List[Problem] = []
        source = self._source
        digest, size = self._check_image(index, problems)
        if size is None:
            return Checked(problems, digest)
        place, annotated_2 = self.place(index), source.declared_size(index)
        fact = size_fact(place, size, annotated_2)
        if fact:
            problems.append(Problem(SIZE_MISMATCH, place, fact, SIZE_REMEDY))
        row_MD = source.rows(index, size)
        for row_D in row_MD[source.is_outside(row_MD, size)]:
            problems.append(Problem(BOX_OUTSIDE, place, source.outside_fact(index, row_D, size), REMEDY))
        return Checked(problems, digest, np.unique(row_MD[:, Column.CLASS]).astype(int).tolist())


class MaskedChecks(AnnotatedImageChecks):
    """Checks of images and their masks. Duplicates are found by the images alone, since images may share a mask."""

    _source: MaskedImages

    def check(self, index: int) -> Checked:
        """Decodes an image, and checks the size and the values of its mask."""
        problems: List[Problem] = []
        digest, size = self._check_image(index, problems)
        classes = self._check_mask(index, size, problems)
        return Checked(problems, digest, classes)

    def _check_mask(self, index: int, size: Optional[Tuple[int, int]], problems: List[Problem]) -> List[int]:
        """Adds the problems of a mask to the list. Returns the classes that occur in the mask."""
        source = self._source
        if source.masks is None:
            return []
        place = DataPlace(source.masks[index])
        try:
            mask = source.open_mask(index)
        except MxtrainError as error:
            problems.append(problem_of(error, place))
            return []
        try:
            if size is not None:
                source.require_size(index, mask, size)
        except MxtrainError as error:
            problems.append(problem_of(error, place))
        try:
            source.require_known(index, mask)
        except MxtrainError as error:
            problems.append(problem_of(error, place))
        return source.classes_in(mask)


def wrong_format(place: DataPlace, content: bytes) -> Optional[Problem]:
    """Returns the problem of an image whose format does not fit its extension; None if there is none."""
    ending = os.path.splitext(place.file)[1].lower()
    if ending not in _FORMATS:
        return None
    format_name = "DICOM" if is_dicom(content) else str(open_image(content).format)
    if format_name in _FORMATS[ending]:
        return None
    fact = f"{place} is {format_name}, and its name says {_FORMATS[ending][0]}."
    return Problem(WRONG_FORMAT, place, fact, "Rename it, or save it as what its name says.")
