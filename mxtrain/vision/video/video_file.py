"""Reads frames of video files by OpenCV, and stacks those of a sample as channels. Exported folders have a copy of this
module.

Importing this module imports neither OpenCV nor Pillow.

Legend: T frames of a sample, H height, W width.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, Callable, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from mxtrain.data.checking.problems import IMAGE_TOO_LARGE, UNREADABLE_IMAGE
from mxtrain.data.loading.opening import MAX_PIXELS
from mxtrain.errors import LoaderError
from mxtrain.vision.images.pixels import ImageReader

if TYPE_CHECKING:
    from PIL import Image

FFMPEG_LOG_LEVEL = "OPENCV_FFMPEG_LOGLEVEL"
LEAST_SHARE = 0.9
"""Smallest share of the frames that the header of a file states which must be readable: headers of some formats state
an estimate. A file with fewer frames is cut off."""
REPLACE = "Replace or remove it, and run the same command again."
HEAD_BYTES = 192
"""Number of bytes at the start of a file that identify its format."""
# FFmpeg would also open text files that name other files and addresses (HLS, concat), which it then reads.
_FORMATS = re.compile(
    rb".{4}(ftyp|moov|mdat|wide|free|skip|pnot)|RIFF.{4}AVI|\x1a\x45\xdf\xa3|\x30\x26\xb2\x75\x8e\x66\xcf\x11"
    rb"|\x00\x00\x01[\xb3\xba]|\x47.{187}\x47",
    re.DOTALL,
)
_FORMAT_NAMES = "MP4, MOV, AVI, Matroska, WebM, WMV and MPEG"


class FrameSampling(NamedTuple):
    """Choice of the frames of a sample.

    Attributes:
        frames: T.
        step: distance of neighbouring frames; None: one frame of each of T equal parts.
    """

    frames: int
    step: Optional[int]

    def indices(self, count: int, place_T: Sequence[float]) -> List[int]:
        """Returns ascending indices of frames.

        Args:
            count: number of frames of the video.
            place_T: numbers from 0 to below 1: position within each part; the first is that of the clip.
        """
        if self.step is None:
            return segment_indices(count, np.asarray(place_T))
        return clip_indices(count, self.frames, self.step, place_T[0])

    def central(self, count: int) -> List[int]:
        """Returns the indices of the central frames, which validation and predictions use."""
        return self.indices(count, [0.5] * self.frames)


class VideoLimits(NamedTuple):
    """Limits of a video.

    Attributes:
        pixels: pixels of a frame.
        total: pixels of all frames.
    """

    pixels: int = MAX_PIXELS
    total: Optional[int] = None


USUAL_LIMITS = VideoLimits()


class VideoFile:
    """Frames of a video file, read by OpenCV, which decodes with FFmpeg.

    Args:
        path: the file.
        head: its first `HEAD_BYTES`.
        limits: limits, checked before a frame is decoded.
        name: name of the file in messages; default: the path in quotes.

    Raises:
        LoaderError: it cannot be read as a video, or is too large.
    """

    def __init__(self, path: str, head: bytes, limits: VideoLimits = USUAL_LIMITS, name: str = "") -> None:
        self._path, self._limits, self._name = path, limits, name or f"'{path}'"
        if not _FORMATS.match(head):
            raise self._error(f"cannot be read as a video (it begins as none of {_FORMAT_NAMES}).")
        capture = self._open()
        self._count = int(_count(capture))
        self._require_size(capture)
        capture.release()
        if self._count < 1:  # no header of a video, or a stream without an index
            self._count = self._count_by_reading()

    def __len__(self) -> int:
        return self._count

    def read(self, indices: Sequence[int]) -> List[Union[bytes, Image.Image]]:
        """Returns frames as images of Pillow.

        Args:
            indices: ascending indices, perhaps repeated. Those behind the last frame that can be read become that
                frame, if the header states a few frames too many.

        Raises:
            LoaderError: the file ends early, or a frame cannot be decoded.
        """
        from PIL import Image

        wanted = set(indices)
        capture = self._open()
        image_of = {}
        last: Any = None
        number = 0
        # Sequential: seeking in a file with few key frames may return other frames, depending on the format.
        while number <= max(wanted) and capture.grab():
            if number in wanted:
                is_read, last = capture.retrieve()
                if not is_read:
                    break
                image_of[number] = Image.fromarray(np.ascontiguousarray(last[:, :, ::-1]))
            number += 1
        capture.release()
        if number <= max(wanted):
            if not number:
                raise self._error("holds no frame that FFmpeg decodes.")
            if number < LEAST_SHARE * self._count:
                raise self._error(f"ends after {number:,} of {self._count:,} frames: it is cut off or damaged.")
            (final,) = self.read([number - 1])
            image_of.update({index: final for index in wanted if index >= number})
        return [image_of[index].copy() for index in indices]

    def _open(self) -> Any:
        import cv2

        # OpenCV and FFmpeg otherwise write each problem of a file to stderr, beside our message. The level of FFmpeg is
        # read from the environment when the first file is opened.
        cv2.setLogLevel(0)
        level = os.environ.get(FFMPEG_LOG_LEVEL)
        os.environ[FFMPEG_LOG_LEVEL] = level or "-8"
        try:
            capture = cv2.VideoCapture(self._path, cv2.CAP_FFMPEG)
        finally:
            if level is None:
                os.environ.pop(FFMPEG_LOG_LEVEL, None)
        if not capture.isOpened():
            raise self._error(
                "cannot be read as a video (FFmpeg finds no frames in it: it has no video stream, such as sound alone, "
                "or an unknown one, or its header is damaged or cut off)."
            )
        return capture

    def _require_size(self, capture: Any) -> None:
        import cv2

        width, height = (int(capture.get(key)) for key in (cv2.CAP_PROP_FRAME_WIDTH, cv2.CAP_PROP_FRAME_HEIGHT))
        self._frame_pixels = width * height
        if width * height > self._limits.pixels:
            raise self._error(
                f"has frames of {width} x {height} pixels, and at most {self._limits.pixels:,} are read.",
                IMAGE_TOO_LARGE,
            )
        self._require_count(self._count)

    def _require_count(self, count: int) -> None:
        total = self._limits.total
        if total is not None and count * self._frame_pixels > total:
            raise self._error(
                f"has {count:,} frames or more of {self._frame_pixels:,} pixels, and at most {total:,} are read.",
                IMAGE_TOO_LARGE,
            )

    def _count_by_reading(self) -> int:
        capture = self._open()
        count = 0
        while capture.grab():
            count += 1
            self._require_count(count)
        capture.release()
        if not count:
            raise self._error("holds no frame that FFmpeg decodes.")
        return count

    def _error(self, fact: str, kind: str = UNREADABLE_IMAGE) -> LoaderError:
        return LoaderError(f"{self._name} {fact}", REPLACE, kind)


def segment_indices(count: int, place_T: np.ndarray) -> List[int]:
    """Returns one frame of each of T equal parts of a video.

    Source: Wang et al., "Temporal segment networks" (2016).

    Args:
        count: number of frames of the video. If there are fewer than T, frames are repeated.
        place_T: position within each part, from 0 to below 1.
    """
    parts = len(place_T)
    return np.minimum(((np.arange(parts) + place_T) * count / parts).astype(np.int64), count - 1).tolist()


def clip_indices(count: int, frames: int, step: int, place: float) -> List[int]:
    """Returns T frames at equal distances. A video that is too short repeats its last frame.

    Args:
        count: number of frames of the video.
        frames: T.
        step: distance of neighbouring frames.
        place: position of the clip within the video, from 0 (its beginning) to below 1 (its end).
    """
    room = max(count - (frames - 1) * step, 1)
    return np.minimum(int(place * room) + step * np.arange(frames), count - 1).tolist()


def stack_frames(
    contents: Sequence[Union[bytes, Image.Image]],
    name: str,
    size: Tuple[int, int],
    choose_box: Callable[[Tuple[int, int]], Tuple[float, ...]],
) -> np.ndarray:
    """Crops and resizes frames, and returns them after each other, (3 T, H, W) uint8. All have the same crop.

    Args:
        contents: frames of a video.
        name: name of the video, for messages.
        size: (height, width) of the result.
        choose_box: function from the (width, height) of a frame to the part of it that is kept.

    Raises:
        LoaderError: frames differ in size, or have more than 8 bits.
        Exception: a frame cannot be decoded, see `ImageReader`.
    """
    images = [ImageReader(content) for content in contents]
    sizes = sorted({image.size for image in images})
    if len(sizes) > 1:
        first, second = (f"{size[0]} x {size[1]}" for size in sizes[:2])
        raise LoaderError(f"{name}: frames have different sizes, {first} and {second} pixels.")
    box = choose_box(sizes[0])
    planes = [image.resized(box, (size[1], size[0]), 3) for image in images]
    if any(plane.dtype != np.uint8 for plane in planes):
        raise LoaderError(f"{name}: frames have more than 8 bits a channel. Convert them to 8 bits.")
    return np.concatenate(planes)


def _count(capture: Any) -> float:
    import cv2

    count = float(capture.get(cv2.CAP_PROP_FRAME_COUNT))
    return count if 0 < count < 2**31 else 0.0
