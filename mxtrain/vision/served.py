"""Reads images that clients of `mxtrain serve` send, as `predict` does. Imports no MXNet."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Dict, Iterator, Mapping, Optional, Sequence, Union

import numpy as np

from mxtrain.data.loading.opening import ImageTooLarge
from mxtrain.files.json_form import NUMBER, require_form
from mxtrain.serving.errors import RequestError
from mxtrain.serving.readers import BodyLimits, ReadBody
from mxtrain.types.kinds import Images
from mxtrain.vision import exported_images
from mxtrain.vision.images.tiff import MAX_BANDS
from mxtrain.vision.images.volume_slice import VolumeSlice
from mxtrain.vision.images.window import as_window

if TYPE_CHECKING:
    from mxtrain.data.exported_folder import ExportedFolder
    from mxtrain.types.annotations import JsonForm

MAX_SIDE = 1 << 14
"""Largest height and width of images that enter a network."""
FORM: Dict[str, JsonForm] = {
    "targets?": [str],
    "class_names": [str],
    "signature": {
        "shape": [int],
        "mean": [NUMBER],
        "mask_values?": [int],
        "target_mean?": NUMBER,
        "target_std?": NUMBER,
        "decoding": {
            "shape": [int],
            "central_crop": NUMBER,
            "frame?": [int],
            "fit?": str,
            "slice_axis?": str,
            "window?": [(str, *NUMBER)],
            "*": object,
        },
        "*": object,
    },
    "facts?": {"score_threshold?": NUMBER, "*": object},
    "*": object,
}
"""Required form of the fields of signature.json that are read here."""


class ImageBodyReader:
    """Reads the image in the body of a request. Boxes, masks and key points of the response are in pixels of this
    image.

    Args:
        signature: content of signature.json.
        spec: `TensorSpec` of the network's input.

    Raises:
        ValueError: the signature is damaged.
    """

    kind = "image"
    media_types = (
        "image/jpeg",
        "image/png",
        "image/webp",
        "image/gif",
        "image/bmp",
        "image/tiff",
        "image/x-portable-anymap",
        "application/dicom",
        "application/gzip",
    )
    example = ""
    columns = ()

    def __init__(self, signature: Dict[str, Any], spec: Any) -> None:
        require_form(signature, FORM)
        decoding = signature["signature"]["decoding"]
        channels, *size = signature["signature"]["shape"]
        frame = decoding.get("frame") or size
        sides = [*size, *frame]
        if len(size) != 2 or len(frame) != 2 or not all(0 < side <= MAX_SIDE for side in (channels, *sides)):
            raise ValueError(f"the shape of images is {[channels, *size]}, in a frame of {frame}")
        if not 1 <= decoding["shape"][0] <= MAX_BANDS or not 0 < decoding["central_crop"] <= 1:
            raise ValueError(f"the decoding of images is {decoding}")
        as_window(decoding.get("window") or ["auto"])
        self._signature, self._spec = signature, spec

    def read(self, body: bytes, media_type: str, limits: BodyLimits) -> ReadBody:
        """Decodes and prepares the image in a request, or the slices of a volume, each of which is a sample."""
        with _refused():
            volume = exported_images.volume_in(body, "the body", self._signature)
        if volume is None:
            return self._read_image(body, "the body", limits)
        # The body may be packed a thousandfold, and the values of a volume are unpacked at once.
        if volume.num_values > limits.max_pixels:
            raise RequestError(
                413, f"the volume has {volume.num_values:,} pixels, and at most {limits.max_pixels:,} are read."
            )
        slices = (
            self._read_image(VolumeSlice(volume, number), f"slice {number} of the body", limits)
            for number in range(volume.num_slices)
        )
        return next(slices)._replace(others=slices)

    def _read_image(self, content: Union[bytes, VolumeSlice], name: str, limits: BodyLimits) -> ReadBody:
        with _refused(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of unusual files
            prepared = exported_images.read_image(content, name, self._signature, limits.max_pixels)
        return ReadBody({self._spec.name: prepared.image_1CHW.astype(self._spec.dtype)}, prepared)

    def describe(
        self, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray], prepared: Any
    ) -> Optional[Dict[str, Any]]:
        """Converts the outputs of the network to the content of the response; None for plain outputs."""
        if prepared is None:
            return None
        try:
            return exported_images.describe_outputs(self._signature, dict(outputs), prepared)
        except (KeyError, IndexError, ValueError, TypeError, AttributeError) as error:
            message = f"the outputs of the network do not fit its signature.json: {type(error).__name__}: {error}"
            raise RequestError(422, f"{message[:300]}.") from error


@contextmanager
def _refused() -> Iterator[None]:
    """Converts the errors of reading an image or a volume to `RequestError`."""
    try:
        yield
    except ImageTooLarge as error:
        raise RequestError(413, f"{error}.") from error
    except (ValueError, ImportError) as error:
        raise RequestError(400, f"{str(error)[:300]}.") from error


def make_image_reader(folder: ExportedFolder, inputs: Sequence[Any]) -> Optional[ImageBodyReader]:
    """Returns the reader for a network whose only input is an image of a file; None for other networks.

    Raises:
        ValueError: the signature is damaged.
    """
    signature = folder.signature
    values = signature["signature"]
    is_array = "shape" in values and "decoding" not in values
    return None if is_array or len(inputs) != 1 else ImageBodyReader(signature, inputs[0])


READERS = {Images.name: make_image_reader}
"""Name of a kind of samples -> function that builds its reader; `mxtrain.serving.readers` looks it up."""
