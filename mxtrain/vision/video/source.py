"""Source of videos: frames are chosen, cropped together and stacked as channels.

Legend: B batch, T frames, C = 3 T channels, H height, W width.
"""

from __future__ import annotations

from typing import Any, List, Optional, Protocol, Sequence, Tuple

import numpy as np

from mxtrain.data.checking.checks import Checked, Checks, SourceChecks, digest_of
from mxtrain.data.checking.problems import UNREADABLE_IMAGE, DataLocation, problem_of
from mxtrain.data.loading.randomness import uniform
from mxtrain.errors import MxtrainError
from mxtrain.vision.draws import VisionDraw
from mxtrain.vision.images.decoding import DecodedSource
from mxtrain.vision.images.files import LabelledFiles
from mxtrain.vision.images.pixels import unreadable
from mxtrain.vision.images.settings import Decoding
from mxtrain.vision.video.frames import FrameArray, open_frames
from mxtrain.vision.video.video_file import FrameSampling, stack_frames


class VideoFrames(Protocol):
    """VideoFrames of one video, such as `FrameFolder`, which documents these methods."""

    def __len__(self) -> int: ...

    def read(self, indices: Sequence[int]) -> List[Any]: ...


class VideoFiles(LabelledFiles):
    """Videos and their labels, as `EncodedImages`, whose image is the middle frame. A path is that of a file, or of a
    folder of frames.

    Args:
        paths, label_N: see `LabelledFiles`.
        owners: folder directly below that of its class in which each video lies, or the video itself; None: the videos.
    """

    def __init__(
        self, paths: Sequence[str], label_N: Optional[np.ndarray] = None, owners: Optional[Sequence[str]] = None
    ) -> None:
        super().__init__(paths, label_N)
        self.owners = self.paths if owners is None else list(owners)

    def open(self, index: int) -> VideoFrames:
        """Returns the frames of a video; raises as `open_frames`."""
        return open_frames(self.paths[index])

    def read(self, index: int) -> Tuple[Any, int]:
        """Returns the middle frame, and the label."""
        frames = self.open(index)
        (frame,) = frames.read([len(frames) // 2])
        return frame, int(self.label_N[index])


class GivenVideos(VideoFiles):
    """Videos in memory.

    Args:
        videos: uint8 (T, H, W, 3) each, in RGB.
    """

    def __init__(self, videos: Sequence[np.ndarray]) -> None:
        super().__init__([""] * len(videos))
        self._videos = videos

    def name(self, index: int) -> str:
        """Returns the number of the video."""
        return f"input {index}"

    def location(self, index: int) -> DataLocation:
        """Returns the number of the video."""
        return DataLocation(record=index)

    def open(self, index: int) -> VideoFrames:
        """Returns the frames of a video."""
        return FrameArray(self._videos[index])


class VideoSource(DecodedSource):
    """Source of videos, (3 T, H, W): frame after frame, three channels each.

    In training, frames and the crop are drawn by (seed, epoch, sample); otherwise they are central.

    Args:
        videos: the videos.
        decoding: shape (3 T, H, W), and the central crop.
        sampling: choice of the frames.
        crop_scale: see `DecodedSource`.
    """

    encoded: VideoFiles

    def __init__(
        self,
        videos: VideoFiles,
        decoding: Decoding,
        sampling: FrameSampling,
        *,
        crop_scale: Sequence[float] = (1.0, 1.0),
    ) -> None:
        super().__init__(videos, decoding, crop_scale=crop_scale)
        self._sampling = sampling

    def fetch(self, index_B: np.ndarray, *, seed: int, epoch: int, train: bool) -> Tuple[np.ndarray, np.ndarray]:
        """Returns videos (B, 3 T, H, W) and labels (B,)."""
        frames = self._sampling.frames
        place_BT = np.full((len(index_B), frames), 0.5)
        draws_4B: Optional[List[np.ndarray]] = None
        if train:
            streams = range(VisionDraw.FRAME, VisionDraw.FRAME + frames)
            place_BT = np.stack([uniform(seed, epoch, index_B, stream) for stream in streams], axis=1)
            if self.crop_scale != (1.0, 1.0):
                draws_4B = [
                    uniform(seed, epoch, index_B, stream)
                    for stream in range(VisionDraw.RESIZED_AREA, VisionDraw.RESIZED_LEFT + 1)
                ]
        image_BCHW = np.empty((len(index_B), *self.shape), np.uint8)
        for row, index in enumerate(index_B.tolist()):
            draws_4 = None if draws_4B is None else [float(draw_B[row]) for draw_B in draws_4B]
            image_BCHW[row] = self.clip(index, place_BT[row].tolist(), draws_4)
        return image_BCHW, self.encoded.read_labels()[index_B].astype(np.int32)

    def clip(self, index: int, place_T: Sequence[float], draws_4: Optional[Sequence[float]] = None) -> np.ndarray:
        """Returns the frames of a video, (3 T, H, W) uint8.

        Args:
            index: index of the video.
            place_T: see `FrameSampling.indices`.
            draws_4: see `DecodedSource.decode`. All frames have the same crop.

        Raises:
            LoaderError: it cannot be read, or a frame has another size than the first one.
        """
        _, height, width = self.shape
        name = self.encoded.name(index)
        try:
            frames = self.encoded.open(index)
            contents = frames.read(self._sampling.indices(len(frames), place_T))
            return stack_frames(contents, name, (height, width), lambda size: self._choose_box(size, draws_4))
        except MxtrainError:
            raise
        except Exception as error:  # Pillow raises OSError, SyntaxError, ValueError, struct.error and its own
            raise unreadable(name, error, "a video") from error

    def checks(self) -> Checks:
        """Returns the checks that `data check` runs on each video."""
        return VideoChecks(self)


class VideoChecks(SourceChecks):
    """Checks of videos: the frames of a sample are decoded."""

    _source: VideoSource

    def location(self, index: int) -> DataLocation:
        """Returns the source location of a video."""
        return self._source.location(index)

    def check(self, index: int) -> Checked:
        """Decodes the central frames."""
        location = self.location(index)
        label = int(self._source.encoded.label_N[index])
        try:
            clip_CHW = self._source.clip(index, [0.5] * (self._source.shape[0] // 3))
        except MxtrainError as error:
            return Checked((problem_of(error, location, UNREADABLE_IMAGE),), classes=(label,))
        return Checked((), digest_of(clip_CHW.tobytes()), (label,))
