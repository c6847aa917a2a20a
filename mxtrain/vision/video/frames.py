"""Opens videos: files, folders of frames, and arrays of frames.

Importing this module imports neither OpenCV nor Pillow.

Legend: T frames, H height, W width.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Iterator, List, Sequence, Tuple, Union

import numpy as np

from mxtrain.data.checking.problems import UNREADABLE_FILE, UNREADABLE_IMAGE
from mxtrain.data.loading.dataset_files import is_hidden, open_regular, read_bytes, stream_reason
from mxtrain.data.loading.opening import EXTENSIONS as IMAGE_EXTENSIONS
from mxtrain.errors import LoaderError
from mxtrain.files.regular_files import path_for_library
from mxtrain.vision.images.files import MAX_BYTES
from mxtrain.vision.video.video_file import HEAD_BYTES, REPLACE, VideoFile

if TYPE_CHECKING:
    from PIL import Image


def is_frame_folder(path: Union[str, Path]) -> bool:
    """Returns True if a folder directly contains images, which are then the frames of one video."""
    return bool(_frames_in(path))


def _frames_in(folder: Union[str, Path]) -> List[os.DirEntry[str]]:
    """Returns the images directly in a folder, also links to a pipe, a device or nothing; none if it is no folder or
    cannot be read."""
    try:
        with os.scandir(folder) as entries:
            images = [one for one in entries if one.name.lower().endswith(IMAGE_EXTENSIONS) and not is_hidden(one.name)]
            return [entry for entry in images if not entry.is_dir()]
    except OSError:
        return []


def irregular_frames(folder: Union[str, Path]) -> Iterator[Tuple[str, str]]:
    """Yields the path of each frame that is no regular file, and why it is not read."""
    for entry in _frames_in(folder):
        if not entry.is_file():
            yield entry.path, stream_reason(entry.path) or f"'{entry.path}' is a link to nothing."


class FrameFolder:
    """Frames in a folder, in the order of their names; numbers in names count as numbers.

    Args:
        path: the folder.

    Raises:
        LoaderError: a frame is a pipe, a device or a link to nothing.
    """

    def __init__(self, path: str) -> None:
        for _, reason in irregular_frames(path):  # without it, the frames behind would move up
            raise LoaderError(reason, REPLACE, UNREADABLE_FILE)
        self._paths = [
            os.path.join(path, name) for name in sorted((entry.name for entry in _frames_in(path)), key=_by_number)
        ]

    def __len__(self) -> int:
        return len(self._paths)

    def read(self, indices: Sequence[int]) -> List[Union[bytes, Image.Image]]:
        """Returns the contents of frames.

        Args:
            indices: ascending indices, perhaps repeated.
        """
        content_of = {index: read_bytes(self._paths[index], MAX_BYTES) for index in set(indices)}
        return [content_of[index] for index in indices]


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
    with open_regular(path) as (file, _):
        head = file.read(HEAD_BYTES)
    return VideoFile(path_for_library(path), head, name=f"'{path}'")


def _by_number(name: str) -> List[Union[int, str]]:
    """Sorts frame_10 behind frame_9."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]
