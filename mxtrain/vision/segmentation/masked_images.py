"""Reads images with segmentation masks, which contain the class of each pixel.

Image and mask get the same crop, flip and resize, so that each pixel keeps its class. Pixels outside the image are -1
("ignored") in its mask, and count neither in the loss nor in metrics.

Legend: B batch, C channels, H height, W width, K classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Dict, List, Mapping, Optional, Sequence, Tuple, Type

import numpy as np

from mxtrain.data.checking.checks import Checked, Checks
from mxtrain.data.checking.problems import (
    MASK_SIZE,
    SIZE_MISMATCH,
    STRAY_MASK_VALUE,
    UNREADABLE_MASK,
    DataLocation,
    Problem,
    problem_of,
)
from mxtrain.data.loading.dataset_files import read_bytes
from mxtrain.data.loading.randomness import uniform
from mxtrain.errors import LoaderError, MxtrainError
from mxtrain.types import PositiveFloat, Range
from mxtrain.vision.draws import VisionDraw
from mxtrain.vision.images.affine import warp
from mxtrain.vision.images.decoding import EncodedImages
from mxtrain.vision.images.encoded_image_source import SIZE_REMEDY, EncodedImageSource, batch_of, size_fact
from mxtrain.vision.images.files import MAX_BYTES
from mxtrain.vision.images.fitting import fit_into_frame
from mxtrain.vision.images.image_checks import AnnotatedImageChecks
from mxtrain.vision.images.pixels import REPLACE, ImageReader, read_error, unreadable
from mxtrain.vision.images.settings import Decoding
from mxtrain.vision.images.transforms.base import DatasetTransform
from mxtrain.vision.images.transforms.chain import Annotations, AugmentSettings
from mxtrain.vision.images.transforms.lazy_image import GeometryStep
from mxtrain.vision.segmentation.mask_colors import MaskColors
from mxtrain.vision.segmentation.mask_file import MAX_VALUE, NoClassNumbers, read_mask, values_in

if TYPE_CHECKING:
    from PIL import Image

IGNORED = -1
"""Class of pixels that neither the loss nor metrics use."""
_STRAY = -2  # class of pixels with an unknown value, which is an error


class Zoom(DatasetTransform):
    """Resizes an image by a random factor before it is cropped."""

    scale: Range[PositiveFloat] = [0.5, 2.0]
    """Smallest and largest factor."""

    def settings(self) -> Dict[str, object]:
        return {"scale": self.scale}


class JointAugment(AugmentSettings):
    """Random augmentation of images and their masks; random numbers are a function of (seed, epoch, sample index)."""

    disabled: ClassVar[Mapping[str, object]] = {"scale": [1.0, 1.0], "flip": False}
    dataset_transforms: ClassVar[Mapping[str, Type[DatasetTransform]]] = {"zoom": Zoom}

    scale: Range[PositiveFloat] = [0.5, 2.0]
    """Smallest and largest factor by which an image is resized before it is cropped; [1, 1] = off."""
    flip: bool = True
    """Mirror left-right with probability one half."""


class MaskAnnotations(Annotations):
    """Masks (H, W): warped with nearest-neighbour interpolation, and `IGNORED` outside the image."""

    def follow(self, label: np.ndarray, step: GeometryStep) -> np.ndarray:
        """Transforms the mask of a sample; see `Annotations.follow`."""
        # OpenCV's warpAffine takes int16, and neither int32 nor int64.
        mask_1HW = label.astype(np.int16)[None]
        return warp(mask_1HW, step.matrix_23, step.size, np.array([IGNORED]), is_nearest=True)[0].astype(label.dtype)


@dataclass(frozen=True)
class MaskCoding:
    """Meaning of pixel values in mask files.

    Attributes:
        values: value of each class.
        ignored: values of ignored pixels.
        colors: colours that stand for values; None: masks have values.
    """

    values: Sequence[int]
    ignored: Sequence[int] = (255,)
    colors: Optional[MaskColors] = None

    def read(self, content: bytes) -> Image.Image:
        """Decodes a mask file to an image of pixel values. Raises as `read_mask`."""
        return read_mask(content) if self.colors is None else self.colors.read(content)

    def table(self) -> np.ndarray:
        """Returns a lookup table from values 0 to 65,535 to classes, int16."""
        class_of = np.full(MAX_VALUE + 1, _STRAY, np.int16)
        class_of[np.asarray(self.ignored, np.int64)] = IGNORED
        class_of[np.asarray(self.values, np.int64)] = np.arange(len(self.values))
        return class_of


class MaskedImages(EncodedImageSource):
    """Source of images and, if there are any, their masks.

    In training, a random part of each image is cropped. Otherwise the whole image is fitted into a frame. Besides
    images and masks, a batch has the height and width of each image, in its file and in the frame.
    """

    samples_per_task = 4

    def __init__(
        self,
        images: EncodedImages,
        masks: Optional[Sequence[str]],
        coding: MaskCoding,
        decoding: Decoding,
        mean: Sequence[float],
        augment: Optional[JointAugment] = None,
    ) -> None:
        """Stores the settings; reads no file yet.

        Args:
            images: the images.
            masks: PNG mask of each image; None = unknown, all pixels are ignored.
            coding: meaning of pixel values in masks.
            decoding: decoding, with the shape of a crop and the frame of a whole image.
            mean: padding colour per channel, from 0 to 1.
            augment: random augmentation in training.
        """
        assert decoding.frame is not None
        super().__init__(images, decoding, mean)
        self.masks, self.coding, self.frame = None if masks is None else list(masks), coding, decoding.frame
        self._class_of = coding.table()
        self._augment = augment or JointAugment(scale=[1.0, 1.0], flip=False)

    def __len__(self) -> int:
        return len(self.encoded)

    def fetch(
        self, index_B: np.ndarray, *, seed: int, epoch: int, train: bool
    ) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns images, masks (B, H, W) int16, and the height and width of each image in its file and in the frame,
        (B, 4); see `Source.fetch`."""
        streams = (VisionDraw.SCALE, VisionDraw.CROP_TOP, VisionDraw.CROP_LEFT, VisionDraw.FLIP)
        draws_B4 = np.stack([uniform(seed, epoch, index_B, stream) for stream in streams], axis=1)
        samples = [self._read(index, draws_4 if train else None) for index, draws_4 in zip(index_B.tolist(), draws_B4)]
        images_BCHW = batch_of([image for image, _, _ in samples])
        return images_BCHW, np.stack([mask for _, mask, _ in samples]), np.array([size for _, _, size in samples])

    def blank(self) -> Tuple[np.ndarray, ...]:
        """Returns a black image that replaces one that cannot be read."""
        height, width = self.frame
        image_1CHW = np.zeros((1, self.shape[0], height, width), np.uint8)
        return image_1CHW, np.full((1, height, width), IGNORED, np.int16), np.array([[height, width] * 2])

    def checks(self) -> Checks:
        """Returns the checks that `data check` runs on each sample."""
        return MaskedChecks(self)

    def size(self, index: int) -> Tuple[int, int]:
        """Returns (width, height) of an image; decodes only its header.

        Raises:
            LoaderError: the image cannot be read.
        """
        return self.open(index).size

    def mask(self, index: int, size: Tuple[int, int]) -> np.ndarray:
        """Returns the mask of an image in full size, classes (H, W) int16.

        Args:
            index: index of the image.
            size: (width, height) of the image.

        Raises:
            LoaderError: the mask cannot be read, has another size, or has unknown values.
        """
        image = self._mask_image(index, size)
        return np.full(size[::-1], IGNORED, np.int16) if image is None else self._classes(image)

    def _mask_image(self, index: int, size: Tuple[int, int]) -> Optional[Image.Image]:
        """Opens a mask and checks its size and values; None if there are no masks."""
        if self.masks is None:
            return None
        image = self.open_mask(index, size)
        self.require_size(index, image, size)
        self.require_known(index, image)
        return image

    def open_mask(self, index: int, size: Optional[Tuple[int, int]]) -> Image.Image:
        """Opens a mask as an image of pixel values, without checks.

        Args:
            index: index of the image.
            size: (width, height) of the image, for masks that are drawn; None: not known yet.

        Raises:
            LoaderError: the mask cannot be read.
        """
        assert self.masks is not None
        path = self.masks[index]
        try:
            return self.coding.read(read_bytes(path, MAX_BYTES))
        except MxtrainError as error:
            raise LoaderError(str(error), kind=UNREADABLE_MASK) from error
        except NoClassNumbers as error:
            raise LoaderError(read_error(f"'{path}'", error, "a mask"), error.remedy, UNREADABLE_MASK) from error
        except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError, struct.error and its own
            raise unreadable(f"'{path}'", error, "a mask", UNREADABLE_MASK) from error

    def declared_size(self, index: int) -> np.ndarray:
        """Returns the annotated width and height of an image, NaN if unknown."""
        return np.full(2, np.nan)

    def require_size(self, index: int, image: Image.Image, size: Tuple[int, int]) -> None:
        """Raises a `LoaderError` if a mask does not have the (width, height) of its image."""
        assert self.masks is not None
        path = self.masks[index]
        if image.size != tuple(size):
            (width, height), (expected_width, expected_height) = image.size, size
            is_rotated = image.size == size[::-1]
            hint = " EXIF rotates the image: rotate the mask in the same way." if is_rotated else ""
            raise LoaderError(
                f"'{path}' has {width} x {height} pixels, and its image {self.name(index)} {expected_width} x "
                f"{expected_height}: a mask must be as large as its image.{hint}",
                REPLACE,
                MASK_SIZE,
            )

    def require_known(self, index: int, image: Image.Image) -> None:
        """Raises a `LoaderError` if a mask has values that are neither a class nor ignored."""
        assert self.masks is not None
        # Check the whole mask, not only the crop: an error is reported when a file is first read, not in a later epoch
        # that happens to crop that corner.
        value_V = values_in(image)
        stray_V = value_V[self._class_of[value_V] == _STRAY]
        if len(stray_V):
            ignored = self.coding.ignored
            clause = f", and ignored pixels {_listed(ignored, 5)}" if ignored else ""
            raise LoaderError(
                f"'{self.masks[index]}' holds the value {_listed(stray_V, 5)}, which is no class.",
                f"Classes have {_listed(self.coding.values, 20)}{clause}. Replace the mask, or change what values "
                "mean (dataset.mask_values, dataset.ignored).",
                STRAY_MASK_VALUE,
            )

    def classes_in(self, image: Image.Image) -> List[int]:
        """Returns the classes that occur in a mask, ascending."""
        class_V = np.unique(self._class_of[values_in(image)])
        return class_V[class_V >= 0].tolist()

    def _classes(self, image: Image.Image) -> np.ndarray:
        """Converts a mask to classes, (H, W) int16."""
        return self._class_of[np.asarray(image)]

    def _read(
        self, index: int, draws_4: Optional[np.ndarray]
    ) -> Tuple[np.ndarray, np.ndarray, Tuple[int, int, int, int]]:
        """Reads a sample: image, mask, and sizes; see `fetch`.

        Args:
            index: index of the sample.
            draws_4: random numbers from 0 to 1 for scale, vertical and horizontal position, and flip; None: the whole
                image in a frame.
        """
        image = self.open(index)
        width, height = image.size
        mask = self._mask_image(index, image.size)
        # Images are fitted into the frame in training, too, so that objects have the same size as in an evaluation.
        fitted_height, fitted_width = fit_into_frame(height, width, self.frame)
        sizes = (height, width, fitted_height, fitted_width)
        if draws_4 is None:
            crop = _Crop((0.0, 0.0, width, height), (fitted_width, fitted_height), (0, 0))
            return (*self._draw(index, image, mask, crop, self.frame), sizes)
        scale, down, right, flip = draws_4.tolist()
        low, high = self._augment.scale
        factor = low + (high - low) * scale
        resized = (max(1, round(fitted_height * factor)), max(1, round(fitted_width * factor)))
        crop = choose_crop((height, width), resized, self.shape[1:], down, right)
        image_CHW, mask_HW = self._draw(index, image, mask, crop, self.shape[1:])
        if self._augment.flip and flip < 0.5:
            image_CHW, mask_HW = image_CHW[..., ::-1], mask_HW[..., ::-1]
        return image_CHW, mask_HW, sizes

    def _draw(
        self, index: int, image: ImageReader, mask: Optional[Image.Image], crop: _Crop, size: Tuple[int, ...]
    ) -> Tuple[np.ndarray, np.ndarray]:
        """Crops, resizes and pads image and mask to `size`, (C, H, W) and (H, W)."""
        from PIL import Image

        crop_CHW = self.resize(index, image, crop.box, crop.size)
        top, left = crop.offset
        window = (slice(top, top + crop.size[1]), slice(left, left + crop.size[0]))
        image_CHW = np.empty((self.shape[0], *size), crop_CHW.dtype)
        image_CHW[:] = self._fill_C[:, None, None]
        image_CHW[(slice(None), *window)] = crop_CHW
        mask_HW = np.full(size, IGNORED, np.int16)
        if mask is not None:  # crop before the lookup of classes, which then reads only a part of a large mask
            mask_HW[window] = self._classes(mask.resize(crop.size, Image.Resampling.NEAREST, box=crop.box))
        return image_CHW, mask_HW


@dataclass(frozen=True)
class _Crop:
    """A part of an image and its placement in the output.

    Attributes:
        box: left, top, right and bottom in pixels of the image.
        size: (width, height) in the output.
        offset: (top, left) in the output.
    """

    box: Tuple[float, float, float, float]
    size: Tuple[int, int]
    offset: Tuple[int, int]


def choose_crop(
    original: Sequence[int], resized: Sequence[int], size: Sequence[int], down: float, right: float
) -> _Crop:
    """Returns a random crop of a resized image. An image that is smaller than the crop is placed at random inside it.

    Args:
        original: height and width of the image.
        resized: height and width of the image after resizing.
        size: height and width of the crop.
        down: random number from 0 to 1 for the vertical position of the crop, or of a smaller image in it.
        right: random number from 0 to 1 for the horizontal position.
    """
    begins, ends, lengths, positions = [], [], [], []
    for length, resized_length, crop_length, draw in zip(original, resized, size, (down, right)):
        part_length = min(resized_length, crop_length)
        first = int(draw * (resized_length - part_length + 1))
        begins.append(first * length / resized_length)
        ends.append((first + part_length) * length / resized_length)
        lengths.append(part_length)
        positions.append(int(draw * (crop_length - part_length + 1)))
    return _Crop((begins[1], begins[0], ends[1], ends[0]), (lengths[1], lengths[0]), (positions[0], positions[1]))


def _listed(values: Sequence[int], max_values: int) -> str:
    """Returns the first `max_values` values as text."""
    return ", ".join(map(str, values[:max_values])) + (", ..." if len(values) > max_values else "")


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
        location = DataLocation(source.masks[index])
        try:
            mask = source.open_mask(index, size)
        except MxtrainError as error:
            problems.append(problem_of(error, location))
            return []
        try:
            if size is not None:
                fact = size_fact(self.location(index), size, source.declared_size(index))
                if fact:
                    problems.append(Problem(SIZE_MISMATCH, self.location(index), fact, SIZE_REMEDY))
                source.require_size(index, mask, size)
        except MxtrainError as error:
            problems.append(problem_of(error, location))
        try:
            source.require_known(index, mask)
        except MxtrainError as error:
            problems.append(problem_of(error, location))
        return source.classes_in(mask)
