"""Sources of encoded images, such as JPEG or PNG, that are decoded when fetched.

Threads decode images, not processes, because Pillow releases the GIL.
Importing this module does not import Pillow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, Iterable, Optional, Protocol, Sequence, Tuple, Union

import numpy as np

from mxtrain.data.checking.checks import Checks
from mxtrain.data.checking.problems import DataLocation
from mxtrain.data.loading.randomness import uniform
from mxtrain.data.loading.samples import prefetch
from mxtrain.data.loading.sampling import class_labels
from mxtrain.errors import DataError, LoaderError, MxtrainError
from mxtrain.vision.draws import VisionDraw
from mxtrain.vision.images.dicom import is_dicom
from mxtrain.vision.images.fitting import central_box
from mxtrain.vision.images.image_checks import ImageChecks
from mxtrain.vision.images.pixels import ImageReader, unreadable
from mxtrain.vision.images.settings import Decoding
from mxtrain.vision.images.transforms.geometry import choose_part
from mxtrain.vision.images.volume_slice import VolumeSlice

if TYPE_CHECKING:
    from PIL import Image

    ImageContent = Union[bytes, Image.Image, VolumeSlice]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
_SAMPLES_PER_TASK = 4
_NUM_MEASURED = 64
"""Number of images whose mean and deviation are measured; more images change only the third digit."""


class EncodedImages(Protocol):
    """Encoded images by index. Methods must be safe to call from several threads."""

    def __len__(self) -> int:
        """Returns the number of images."""

    def name(self, index: int) -> str:
        """Returns the name of an image in messages."""

    def location(self, index: int) -> DataLocation:
        """Returns the source location of an image."""

    def read(self, index: int) -> Tuple[ImageContent, int]:
        """Returns the encoded image, or a decoded one, and its label."""


def known_statistics(channels: int) -> Tuple[Sequence[float], Sequence[float]]:
    """Returns the mean and standard deviation of ImageNet's photographs, the usual constants for images in files."""
    if channels == 3:
        return list(IMAGENET_MEAN), list(IMAGENET_STD)
    return [sum(IMAGENET_MEAN) / 3] * channels, [sum(IMAGENET_STD) / 3] * channels


def choose_statistics(
    mean: Union[str, Sequence[float]],
    std: Union[str, Sequence[float]],
    decoding: Decoding,
    read_first: Callable[[], ImageContent],
    images: Iterable[np.ndarray],
) -> Tuple[Sequence[float], Sequence[float]]:
    """Returns the configured mean and standard deviation. For auto, these are ImageNet's. They are measured for images
    that resemble no photograph: grey DICOM images and slices of volumes, grey images with a window, and images of other
    numbers of channels than 1 and 3.

    Args:
        mean, std: settings of the dataset.
        decoding: settings by which images are decoded.
        read_first: returns the content of a training file.
        images: some training images, (C, H, W), white is 255; decoded only if they are measured.

    Raises:
        DataError: an image cannot be read.
    """
    configured = (mean, std)
    channels = decoding.shape[0]
    chosen = known_statistics(channels)
    if channels != 3 and any(isinstance(each, str) for each in configured):
        try:
            # PNGs of 16 bits without a window keep ImageNet's numbers, so that earlier runs go on with the same bits.
            if channels != 1 or decoding.window != "auto" or _is_medical(read_first()):
                chosen = measure_statistics(images)
        except LoaderError as error:
            raise DataError(str(error)) from error
    mean, std = (auto if isinstance(each, str) else each for each, auto in zip(configured, chosen))
    return mean, std


def _is_medical(content: ImageContent) -> bool:
    return isinstance(content, VolumeSlice) or isinstance(content, bytes) and is_dicom(content)


def measure_statistics(images: Iterable[np.ndarray]) -> Tuple[Sequence[float], Sequence[float]]:
    """Computes the mean and standard deviation per channel of images (..., C, H, W), where white is 1. They are rounded
    to four digits, so that all machines agree."""
    sums_C3 = np.zeros(())
    for image in images:
        planes_C = np.moveaxis(image.astype(np.float64) / 255.0, -3, 0)
        sums_C3 = sums_C3 + np.array([(plane.size, plane.sum(), np.square(plane).sum()) for plane in planes_C])
    count_C, total_C, square_C = sums_C3.T
    mean_C = total_C / count_C
    std_C = np.maximum(np.sqrt(np.maximum(square_C / count_C - mean_C * mean_C, 0.0)), 0.001)
    return [round(mean, 4) for mean in mean_C.tolist()], [round(std, 4) for std in std_C.tolist()]


def evenly_spaced(index_N: np.ndarray) -> np.ndarray:
    """Returns at most `_NUM_MEASURED` of these samples, evenly spaced."""
    return index_N[np.linspace(0, len(index_N) - 1, min(len(index_N), _NUM_MEASURED)).astype(np.int64)]


class DecodedSource:
    """Source of encoded images that are decoded, cropped and resized to one shape."""

    samples_per_task = _SAMPLES_PER_TASK

    def __init__(self, encoded: EncodedImages, decoding: Decoding, *, crop_scale: Sequence[float] = (1.0, 1.0)) -> None:
        """Stores the settings; no image is read yet.

        Args:
            encoded: the images.
            decoding: settings by which images are decoded.
            crop_scale: smallest and largest share of the area that a random crop takes in training; (1, 1): no crop.
        """
        self.encoded = encoded
        self.decoding = decoding
        self.shape = decoding.shape
        self.crop_scale = tuple(crop_scale)

    def __len__(self) -> int:
        return len(self.encoded)

    def fetch(self, index_B: np.ndarray, *, seed: int, epoch: int, train: bool) -> Tuple[np.ndarray, np.ndarray]:
        """Decodes images (B, C, H, W), and returns them with their labels (B,); see `Source.fetch`."""
        image_BCHW = np.empty((len(index_B), *self.shape), np.uint8)
        label_B = np.empty(len(index_B), np.int32)
        draws_4B = None
        if train and self.crop_scale != (1.0, 1.0):
            streams = (
                VisionDraw.RESIZED_AREA,
                VisionDraw.RESIZED_ASPECT,
                VisionDraw.RESIZED_TOP,
                VisionDraw.RESIZED_LEFT,
            )
            draws_4B = [uniform(seed, epoch, index_B, stream) for stream in streams]
        for row, index in enumerate(index_B.tolist()):
            draws_4 = None if draws_4B is None else [float(draw_B[row]) for draw_B in draws_4B]
            content, label_B[row] = self.read(index)
            image_CHW = self.decode(index, content, draws_4)
            if image_CHW.dtype != image_BCHW.dtype:  # more than 8 bits: the whole batch becomes float32
                image_BCHW = image_BCHW.astype(np.float32, copy=False)
            image_BCHW[row] = image_CHW
        return image_BCHW, label_B

    def location(self, index: int) -> DataLocation:
        """Returns the source location of an image."""
        return self.encoded.location(index)

    def prefetch(self, index_N: np.ndarray) -> None:
        """Announces images that will be read soon."""
        prefetch(self.encoded, index_N)

    def read_labels(self) -> np.ndarray:
        """Returns the class of each image; raises as `class_labels`."""
        return class_labels(self.encoded)

    def blank(self) -> Tuple[np.ndarray, ...]:
        """Returns a black image, which replaces an unreadable one."""
        return np.zeros((1, *self.shape), np.uint8), np.full(1, -1, np.int32)

    def checks(self) -> Checks:
        """Returns the checks that `data check` runs on each sample."""
        return ImageChecks(self)

    def read(self, index: int) -> Tuple[ImageContent, int]:
        """Returns an encoded image, or a decoded one, and its label.

        Raises:
            LoaderError: It cannot be read.
        """
        try:
            return self.encoded.read(index)
        except LoaderError:
            raise
        except MxtrainError as error:
            raise LoaderError(str(error)) from error
        except Exception as error:
            raise unreadable(self.encoded.name(index), error) from error

    def decode(self, index: int, content: ImageContent, draws_4: Optional[Sequence[float]] = None) -> np.ndarray:
        """Returns the part of an encoded image that becomes the sample, (C, H, W).

        Args:
            index: index of the sample, for messages.
            content: the encoded image, see `read`.
            draws_4: random numbers from 0 to 1 that choose the part; None: the central one.

        Raises:
            LoaderError: the image cannot be decoded.
        """
        channels, height, width = self.shape
        try:
            image = ImageReader(content, self.decoding.window)
            return image.resized(self._choose_box(image.size, draws_4), (width, height), channels)
        except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError, struct.error and its own
            raise unreadable(self.encoded.name(index), error) from error

    def _choose_box(self, size: Tuple[int, int], draws_4: Optional[Sequence[float]]) -> Tuple[float, ...]:
        """Returns left, top, right and bottom of the part to keep, in pixels of an image of that (width, height)."""
        _, height, width = self.shape
        if draws_4 is None:
            return central_box(size, (height, width), self.decoding.central_crop)
        return choose_part(size[::-1], (height, width), self.crop_scale, draws_4)
