"""Reads frames of videos: of files, by OpenCV, and of folders of images.

Importing this module imports neither OpenCV nor Pillow.

Legend: T frames of a sample.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, List, Sequence, Union

import numpy as np

from mxtrain.data.checking.problems import UNREADABLE_IMAGE
from mxtrain.data.loading.dataset_files import files_in, is_hidden, read_bytes
from mxtrain.data.loading.opening import EXTENSIONS as IMAGE_EXTENSIONS
from mxtrain.errors import LoaderError
from mxtrain.files.regular_files import path_for_library
from mxtrain.vision.images.files import MAX_BYTES

if TYPE_CHECKING:
    from PIL import Image

FFMPEG_LOG_LEVEL = "OPENCV_FFMPEG_LOGLEVEL"
LEAST_SHARE = 0.9
"""Smallest share of the frames that the header of a file states which must be readable: headers of some formats state
an estimate. A file with fewer frames is cut off."""
REPLACE = "Replace or remove it, and run the same command again."


def is_frame_folder(path: Union[str, Path]) -> bool:
    """Returns True if a folder directly contains images, which are then the frames of one video."""
    return os.path.isdir(path) and bool(_frame_names(path))


def _frame_names(folder: Union[str, Path]) -> List[str]:
    return [name for name in files_in(folder) if name.lower().endswith(IMAGE_EXTENSIONS) and not is_hidden(name)]


class FrameFolder:
    """Frames in a folder, in the order of their names; numbers in names count as numbers.

    Args:
        path: the folder.
    """

    def __init__(self, path: str) -> None:
        self._paths = [os.path.join(path, name) for name in sorted(_frame_names(path), key=_by_number)]

    def __len__(self) -> int:
        return len(self._paths)

    def read(self, indices: Sequence[int]) -> List[Union[bytes, Image.Image]]:
        """Returns the contents of frames.

        Args:
            indices: ascending indices, perhaps repeated.
        """
        content_of = {index: read_bytes(self._paths[index], MAX_BYTES) for index in set(indices)}
        return [content_of[index] for index in indices]


class VideoFile:
    """Frames of a video file, read by OpenCV, which decodes with FFmpeg.

    Args:
        path: the file.

    Raises:
        LoaderError: it cannot be read as a video.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        capture = self._open()
        self._count = int(_count(capture))
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
            if number < LEAST_SHARE * self._count:
                raise LoaderError(
                    f"'{self._path}' ends after {number:,} of {self._count:,} frames: it is cut off or damaged.",
                    REPLACE,
                    UNREADABLE_IMAGE,
                )
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
            capture = cv2.VideoCapture(path_for_library(self._path), cv2.CAP_FFMPEG)
        finally:
            if level is None:
                os.environ.pop(FFMPEG_LOG_LEVEL, None)
        if not capture.isOpened():
            raise LoaderError(f"'{self._path}' cannot be read as a video.", REPLACE, UNREADABLE_IMAGE)
        return capture

    def _count_by_reading(self) -> int:
        capture = self._open()
        count = 0
        while capture.grab():
            count += 1
        capture.release()
        if not count:
            raise LoaderError(f"'{self._path}' holds no frame.", REPLACE, UNREADABLE_IMAGE)
        return count


class FrameArray:
    """Frames in memory.

    Args:
        frame_THWC: uint8 (T, H, W, 3), in RGB.
    """

    def __init__(self, frame_THWC: np.ndarray) -> None:
        self._frame_THWC = frame_THWC

    def __len__(self) -> int:
        return len(self._frame_THWC)

    def read(self, indices: Sequence[int]) -> List[Union[bytes, Image.Image]]:
        """Returns frames as images of Pillow."""
        from PIL import Image

        return [Image.fromarray(np.ascontiguousarray(self._frame_THWC[index])) for index in indices]


def open_frames(path: str) -> Union[FrameFolder, VideoFile]:
    """Returns the frames of a video file or of a folder of frames.

    Raises:
        LoaderError: it cannot be read, or is an image.
    """
    if os.path.isdir(path):
        return FrameFolder(path)
    if path.lower().endswith(IMAGE_EXTENSIONS):  # FFmpeg would read a video of one frame
        raise LoaderError(
            f"'{path}' is an image, and a video is a file or the folder of its frames.",
            "Name its folder, or a video.",
            UNREADABLE_IMAGE,
        )
    return VideoFile(path)


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


def _count(capture: Any) -> float:
    import cv2

    count = float(capture.get(cv2.CAP_PROP_FRAME_COUNT))
    return count if 0 < count < 2**31 else 0.0


def _by_number(name: str) -> List[Union[int, str]]:
    """Sorts frame_10 behind frame_9."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]
