"""Reads images and videos that clients of `mxtrain serve` send, as `predict` does. Imports no MXNet."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Dict, Iterator, Mapping, Optional, Sequence, Union

import numpy as np

from mxtrain.data.checking.problems import IMAGE_TOO_LARGE
from mxtrain.data.loading.opening import ImageTooLarge
from mxtrain.errors import LoaderError
from mxtrain.files.json_form import NUMBER, require_form
from mxtrain.serving.errors import RequestError
from mxtrain.serving.readers import BodyLimits, ReadBody, UsualAnswer
from mxtrain.types.kinds import Images
from mxtrain.vision import exported_images
from mxtrain.vision.images.tiff import MAX_BANDS
from mxtrain.vision.images.volume_slice import VolumeSlice
from mxtrain.vision.images.window import as_window
from mxtrain.vision.kinds import Videos
from mxtrain.vision.video.exported_videos import clip_of
from mxtrain.vision.video.video_file import VideoLimits

if TYPE_CHECKING:
    from mxtrain.data.exported_folder import ExportedFolder
    from mxtrain.types.annotations import JsonForm

MAX_SIDE = 1 << 14
"""Largest height and width of images that enter a network."""
MAX_FRAMES = 100
"""Largest number of frames of the largest size in a video, which may have more frames of a smaller one."""
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


class VideoBodyReader(UsualAnswer):
    """Reads the video in the body of a request.

    Args:
        signature: content of signature.json.
        spec: `TensorSpec` of the network's input.

    Raises:
        ValueError: the signature is damaged.
    """

    kind = "video"
    media_types = (
        "video/mp4",
        "video/quicktime",
        "video/x-msvideo",
        "video/x-matroska",
        "video/webm",
        "video/x-ms-wmv",
        "video/mpeg",
    )
    example = ""
    columns = ()

    def __init__(self, signature: Dict[str, Any], spec: Any) -> None:
        require_form(signature, {**FORM, "facts": {"frame_step?": int, "*": object}})
        (channels, *size), decoding = signature["signature"]["shape"], signature["signature"]["decoding"]
        sides = [*size, *decoding["shape"][1:]]
        if len(sides) != 4 or not all(0 < side <= MAX_SIDE for side in (channels, *sides)):
            raise ValueError(f"the shape of videos is {[channels, *size]}, decoded to {decoding['shape']}")
        step = signature["facts"]["frame_step"]
        if channels % 3 or decoding["shape"][0] != channels or not 0 < decoding["central_crop"] <= 1:
            raise ValueError(f"the decoding of videos is {decoding}, for {channels} channels")
        if step is not None and step < 1:
            raise ValueError(f"the distance of frames is {step}")
        self._signature, self._spec = signature, spec

    def read(self, body: bytes, media_type: str, limits: BodyLimits) -> ReadBody:
        """Decodes the central frames of the video in a request."""
        pixels = VideoLimits(limits.max_pixels, MAX_FRAMES * limits.max_pixels)
        try:
            clip_1CHW = clip_of(body, "the body", self._signature, pixels)
        except LoaderError as error:
            status = 413 if error.kind == IMAGE_TOO_LARGE else 400
            raise RequestError(status, error.fact[:300]) from error
        except ImportError as error:
            raise RequestError(400, f"{error}.") from error
        return ReadBody({self._spec.name: clip_1CHW.astype(self._spec.dtype)})


def make_video_reader(folder: ExportedFolder, inputs: Sequence[Any]) -> Optional[VideoBodyReader]:
    """Returns the reader for a network whose only input is a video of a file; None for other networks.

    Raises:
        ValueError: the signature is damaged.
    """
    # Folders of earlier versions do not say the distance of frames, and take arrays alone.
    says_frames = "frame_step" in folder.signature.get("facts", {})
    return VideoBodyReader(folder.signature, inputs[0]) if says_frames and len(inputs) == 1 else None


def make_image_reader(folder: ExportedFolder, inputs: Sequence[Any]) -> Optional[ImageBodyReader]:
    """Returns the reader for a network whose only input is an image of a file; None for other networks.

    Raises:
        ValueError: the signature is damaged.
    """
    signature = folder.signature
    values = signature["signature"]
    is_array = "shape" in values and "decoding" not in values
    return None if is_array or len(inputs) != 1 else ImageBodyReader(signature, inputs[0])


READERS = {Images.name: make_image_reader, Videos.name: make_video_reader}
"""Name of a kind of samples -> function that builds its reader; `mxtrain.serving.readers` looks it up."""
