"""Sources whose samples are encoded images, JPEG or PNG or whatever Pillow reads, decoded when fetched.

Worker threads, not processes, decode: Pillow works outside Python's lock
(docs/decisions/0003-threads-decode-images.md).
Importing this module imports no Pillow.
"""

from __future__ import annotations

import io
import math
from typing import Any, Optional, Protocol, Sequence, Tuple, Union

import numpy as np

from mxtrain.dataset.randomness import Draw, uniform
from mxtrain.errors import LoaderError, MxtrainError
from mxtrain.types import Shape

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
_ORIENTATION = 0x0112
_TASK = 4
_MIN_ASPECT, _MAX_ASPECT = 3 / 4, 4 / 3


class Encoded(Protocol):
    """Encoded images by index; must be safe to call from several threads."""

    def __len__(self) -> int:
        """The number of images."""

    def name(self, index: int) -> str:
        """What to call the image in a message."""

    def read(self, index: int) -> Tuple[Union[str, bytes], int]:
        """Path or bytes of the image, and its label."""


def known_statistics(channels: int) -> Tuple[Sequence[float], Sequence[float]]:
    """Mean and standard deviation of ImageNet's photographs, the customary constants for images in files."""
    if channels == 3:
        return list(IMAGENET_MEAN), list(IMAGENET_STD)
    return [sum(IMAGENET_MEAN) / 3], [sum(IMAGENET_STD) / 3]


class DecodedSource:
    """Decodes, crops and resizes to one shape."""

    samples_per_task = _TASK

    def __init__(
        self,
        encoded: Encoded,
        shape: Shape,
        *,
        crop_scale: Sequence[float] = (1.0, 1.0),
        central_crop: float = 0.875,
    ) -> None:
        """Describe what comes out; nothing is read yet.

        Args:
            encoded: The images.
            shape: (C, H, W) of the result; C is 1 or 3.
            crop_scale: Smallest and largest share of the area that a random crop takes in training; (1, 1) = none.
            central_crop: Without a random crop, the largest central part of the result's aspect, times this, is taken.
        """
        self.encoded = encoded
        self.shape = tuple(shape)
        self.crop_scale = tuple(crop_scale)
        self.central_crop = central_crop

    def __len__(self) -> int:
        return len(self.encoded)

    def fetch(self, index_B: np.ndarray, *, seed: int, epoch: int, train: bool) -> Tuple[np.ndarray, np.ndarray]:
        """See `Source.fetch`."""
        image_BCHW = np.empty((len(index_B), *self.shape), np.uint8)
        label_B = np.empty(len(index_B), np.int32)
        draws_4B = None
        if train and self.crop_scale != (1.0, 1.0):
            kinds = (Draw.RESIZED_AREA, Draw.RESIZED_ASPECT, Draw.RESIZED_TOP, Draw.RESIZED_LEFT)
            draws_4B = [uniform(seed, epoch, index_B, kind) for kind in kinds]
        for row, index in enumerate(index_B.tolist()):
            draws_4 = None if draws_4B is None else [float(draw_B[row]) for draw_B in draws_4B]
            try:
                content, label_B[row] = self.encoded.read(index)
                image_BCHW[row] = self._decode(content, draws_4)
            except MxtrainError:
                raise
            except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError, struct.error and its own
                raise LoaderError(
                    f"{self.encoded.name(index)} cannot be read as an image ({error}). Replace or remove it, and run "
                    "the same command again."
                ) from error
        return image_BCHW, label_B

    def _decode(self, content: Union[str, bytes], draws_4: Optional[Sequence[float]]) -> np.ndarray:
        from PIL import Image, ImageFile

        # GluonCV switches this on for the whole process when it is imported: half an image would pass as a whole one.
        ImageFile.LOAD_TRUNCATED_IMAGES = False
        channels, height, width = self.shape
        mode = "L" if channels == 1 else "RGB"
        with Image.open(content if isinstance(content, str) else io.BytesIO(content)) as image:
            turn = _turn(image)
            if turn is not None:  # a box of the upright picture does not fit one that lies on its side
                image = image.transpose(turn)
            box = self._choose_box(image.size, draws_4)
            image, box = _draft(image, mode, box, (width, height))
            if image.mode != mode:
                image = image.convert(mode)
            array = np.asarray(image.resize((width, height), Image.BILINEAR, box=box))
        return array[None] if channels == 1 else array.transpose(2, 0, 1)

    def _choose_box(self, size: Tuple[int, int], draws_4: Optional[Sequence[float]]) -> Tuple[float, ...]:
        """Left, top, right and bottom of the part to keep, in pixels of an image of that (width, height)."""
        full_width, full_height = size
        _, height, width = self.shape
        if draws_4 is None:
            unit = min(full_width / width, full_height / height) * self.central_crop
            box_width, box_height, down, right = unit * width, unit * height, 0.5, 0.5
        else:
            # Source: the random crop of Szegedy et al., "Going Deeper with Convolutions" (2014); a crop that does not
            # fit is clipped instead of drawn again, so that each sample takes four numbers.
            area, aspect, down, right = draws_4
            low, high = self.crop_scale
            area = (low + (high - low) * area) * full_width * full_height
            aspect = math.exp(math.log(_MIN_ASPECT) + aspect * math.log(_MAX_ASPECT / _MIN_ASPECT)) * width / height
            box_width = min(math.sqrt(area * aspect), full_width)
            box_height = min(math.sqrt(area / aspect), full_height)
        left, top = right * (full_width - box_width), down * (full_height - box_height)
        return left, top, min(left + box_width, full_width), min(top + box_height, full_height)


def _draft(image: Any, mode: str, box: Tuple[float, ...], target: Tuple[int, int]) -> Tuple[Any, Tuple[float, ...]]:
    """Let the JPEG decoder halve the image while the box keeps at least the target's pixels: saves most of the work."""
    full_width, full_height = image.size
    shrink = min((box[2] - box[0]) / target[0], (box[3] - box[1]) / target[1])
    if shrink >= 2 and hasattr(image, "draft"):  # an image that was turned is decoded already
        image.draft(mode, (math.ceil(full_width / shrink), math.ceil(full_height / shrink)))
        x, y = image.size[0] / full_width, image.size[1] / full_height
        box = (box[0] * x, box[1] * y, min(box[2] * x, image.size[0]), min(box[3] * y, image.size[1]))
    return image, box


def _turn(image: Any) -> Optional[int]:
    """How to bring a photograph upright that was taken with the camera on its side; None where it is."""
    from PIL import Image

    orientation = image.getexif().get(_ORIENTATION, 1)
    return {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_270,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_90,
    }.get(orientation)
