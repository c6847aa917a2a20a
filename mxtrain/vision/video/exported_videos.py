"""Predicts for videos with an exported network. Exported folders have a copy of this module.

    video file -> the central frames, crop and size as in training -> the network -> classes

Legend: T frames of a sample, C = 3 T channels, H height, W width.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Dict, Iterator, List, Tuple

import numpy as np

from mxtrain.data.class_rows import row_of_outputs
from mxtrain.data.exported_folder import ExportedFolder
from mxtrain.data.loading.opening import VIDEO_EXTENSIONS
from mxtrain.errors import LoaderError
from mxtrain.files.regular_files import read_regular
from mxtrain.vision.exported_images import resized_input
from mxtrain.vision.images.fitting import central_box
from mxtrain.vision.images.pixels import read_error
from mxtrain.vision.video.video_file import (
    HEAD_BYTES,
    USUAL_LIMITS,
    FrameSampling,
    VideoFile,
    VideoLimits,
    stack_frames,
)

ENDINGS = VIDEO_EXTENSIONS
"""Extensions of the files that are read of a folder."""
MAX_INPUT_ERROR = 2.0**-4
"""Largest difference of the inputs of a file when a proof is repeated: versions of FFmpeg round differently."""


def describe_input(signature: Dict[str, Any]) -> str:
    """Returns the content of files that `predict` reads, as a sentence."""
    return f"a video ({', '.join(ENDINGS)}; needs opencv-python)"


def predict(folder: ExportedFolder, content: bytes, name: str) -> Iterator[Dict[str, Any]]:
    """Yields the row that `mxtrain predict` writes for a video.

    Args:
        folder: folder of the exported network.
        content: content of the video file.
        name: name of the file.

    Raises:
        ValueError: the content is not a video, or is not supported.
    """
    outputs = folder.run(inputs_of_file(folder, content, name))
    yield {"file": name, **row_of_outputs(folder.signature, outputs)}


def inputs_of_file(folder: ExportedFolder, content: bytes, name: str) -> Dict[str, np.ndarray]:
    """Returns the inputs of the network for a video file, (1, ...); arguments as in `predict`.

    Raises:
        ValueError: the file cannot be read.
    """
    spec = folder.signature["inputs"][0]
    try:
        return {spec["name"]: clip_of(content, name, folder.signature)}
    except LoaderError as error:
        raise ValueError(error.fact.rstrip(".")) from error


def clip_of(content: bytes, name: str, signature: Dict[str, Any], limits: VideoLimits = USUAL_LIMITS) -> np.ndarray:
    """Returns the central frames of a video as the network's input, (1, 3 T, H, W).

    Args:
        content: content of the file.
        name: name of the file, for messages.
        signature: signature of the folder.
        limits: limits of the video.

    Raises:
        LoaderError: the file cannot be read, or is too large.
    """
    values = signature["signature"]
    (channels, *decoded), share = values["decoding"]["shape"], values["decoding"]["central_crop"]
    sampling = FrameSampling(channels // 3, signature["facts"]["frame_step"])
    with _file_of(content) as path:
        try:
            video = VideoFile(path, content[:HEAD_BYTES], limits, name)
            frames = video.read(sampling.central(len(video)))
            clip_CHW = stack_frames(
                frames, name, (decoded[0], decoded[1]), lambda size: central_box(size, decoded, share)
            )
        except (LoaderError, ImportError, MemoryError):
            raise
        except Exception as error:  # of OpenCV and Pillow
            raise LoaderError(read_error(name, error, "a video")) from error
    return resized_input(clip_CHW, values["shape"][1:], signature["inputs"][0]["dtype"])[None]


@contextmanager
def _file_of(content: bytes) -> Iterator[str]:
    """Yields the path of a file with this content, which OpenCV needs; in memory if the system has such files."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("video", os.MFD_CLOEXEC)
        try:
            with os.fdopen(os.dup(descriptor), "wb") as file:
                file.write(content)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "video")
        Path(path).write_bytes(content)
        yield path


def examples(signature: Dict[str, Any]) -> List[Tuple[str, bytes]]:
    """Returns name and content of a video for the proof of an export, whose frames are larger than the input of the
    network."""
    import cv2

    height, width = (side + 6 + side % 2 for side in signature["signature"]["shape"][1:])
    draw = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "proof.avi")
        writer = cv2.VideoWriter(path, cv2.VideoWriter.fourcc(*"MJPG"), 10, (width, height))
        for _ in range(signature["signature"]["shape"][0] // 3 + 3):
            coarse = draw.integers(0, 256, (9, 7, 3), dtype=np.uint8)
            writer.write(cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC))
        writer.release()
        return [("proof.avi", read_regular(path))]
