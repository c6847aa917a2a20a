"""Images that Python code gives to predict for, instead of files.

Legend: N images, H height, W width, C channels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List, Sequence, Tuple

import numpy as np

from mxtrain.data.checking.problems import DataLocation
from mxtrain.data.given_samples import as_array
from mxtrain.data.predict_inputs import as_list, undecodable_input
from mxtrain.errors import ConfigError

if TYPE_CHECKING:
    from PIL import Image

READABLE = "images (PIL.Image, or uint8 arrays of height x width x channels) and paths of images"
_MODES = ("1", "L", "LA", "I;16", "P", "RGB", "RGBA", "CMYK")
"""Modes of Pillow that are read; those that a PNG file holds unchanged, and CMYK of JPEG files."""


class GivenImages:
    """Images in memory, as `EncodedImages`: `read` returns an image of Pillow, which `ImageReader` takes like the
    content of a file."""

    def __init__(self, value: Any, size: Sequence[int]) -> None:
        """Checks the images.

        Args:
            value: `PIL.Image`, a uint8 array (H, W), (H, W, 1), (H, W, 3) or (H, W, 4), a batch of such arrays, or a
                list of images.
            size: (H, W) of the network's input, see `images_of`.

        Raises:
            ConfigError: there is another object, dtype, shape or mode.
        """
        is_array = isinstance(value, np.ndarray) or hasattr(value, "asnumpy")
        objects: List[Any] = list(images_of(as_array(value), size)) if is_array else as_list(value)
        self._images = [_image_of(one, number) for number, one in enumerate(objects)]

    def __len__(self) -> int:
        return len(self._images)

    def name(self, index: int) -> str:
        """Returns the number of the image."""
        return f"input {index}"

    def location(self, index: int) -> DataLocation:
        """Returns the number of the image."""
        return DataLocation(record=index)

    def read(self, index: int) -> Tuple[Image.Image, int]:
        """Returns a copy of the image, upright, and the label -1."""
        from PIL import ImageOps

        image = ImageOps.exif_transpose(self._images[index])
        return image.convert("RGB") if image.mode == "CMYK" else image, -1


def images_of(array: np.ndarray, size: Sequence[int]) -> List[np.ndarray]:
    """Returns the images of an array: those of a batch, (N, H, W) or (N, H, W, C), or the array itself.

    An array of three axes is one image (H, W, C) if its last axis has 1, 3 or 4 elements, unless its last two axes are
    the size of the network's input.

    Args:
        array: any array.
        size: (H, W) of the network's input.
    """
    is_image = array.shape[-1:] in ((1,), (3,), (4,)) and array.shape[1:] != tuple(size)
    is_batch = array.ndim == 4 or (array.ndim == 3 and not is_image)
    return list(array) if is_batch else [array]


def _image_of(one: Any, number: int) -> Image.Image:
    from PIL import Image

    if isinstance(one, np.ndarray) or hasattr(one, "asnumpy"):
        return Image.fromarray(_checked(as_array(one), number))
    if not isinstance(one, Image.Image):
        raise undecodable_input(number, one, READABLE)
    if one.mode not in _MODES:
        raise ConfigError(
            f"predict: input {number} is an image of mode {one.mode}. Convert it to one of {', '.join(_MODES)}."
        )
    return one


def _checked(array: np.ndarray, number: int) -> np.ndarray:
    """Returns an array as Pillow takes it: (H, W), (H, W, 3) or (H, W, 4)."""
    shape = array.shape[:2] if array.ndim == 3 and array.shape[2] == 1 else array.shape
    if array.dtype != np.uint8 or not (len(shape) == 2 or (len(shape) == 3 and shape[2] in (3, 4))) or 0 in shape:
        raise ConfigError(
            f"predict: input {number} is an array of {array.dtype} with shape {array.shape}. Allowed are uint8 images "
            "of shape (height, width), (height, width, 1), (height, width, 3) or (height, width, 4)."
        )
    return array.reshape(shape)
