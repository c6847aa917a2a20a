"""Loads batches of samples with similar numbers of frames, padded to the longest of the batch.

Legend: B batch, T frames, F numbers of a frame, L characters of a transcript.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Tuple

import numpy as np

from mxtrain.data.loading.sized import SizedLoader
from mxtrain.speech.source import TranscribedSource, refuse_short

if TYPE_CHECKING:
    from mxtrain.data.loading.loader import LoaderOptions
    from mxtrain.data.loading.placing import HostArrays

FRAME_STEP = 16
"""Batch lengths in frames are multiples of this, so that few shapes occur."""


def padded_frames(longest: np.ndarray) -> np.ndarray:
    """Returns the number of frames of a batch, given that of its longest sample."""
    return -(-longest // FRAME_STEP) * FRAME_STEP


class FrameLoader(SizedLoader):
    """Loads the batches of one split.

    Inputs are frames (B, T, F) and their numbers (B,); targets are characters (B, L), -1 = padding, and the numbers of
    scores of the network, (B,). The length of a batch is that of the longest sample in the global batch. The size of a
    sample is its number of frames.

    Args:
        source: samples.
        options: options of all loaders; `encode` maps numbers of frames to numbers of scores.
        settings: settings of `SizedLoader`.

    Raises:
        DataError: a transcript needs more scores than the network has.
    """

    def __init__(self, source: TranscribedSource, options: LoaderOptions, **settings: Any) -> None:
        super().__init__(padded_frames(source.frame_N), options, **settings)
        assert options.encode is not None, "the task must count scores"
        self.source = source
        (self._score_N,) = options.encode(source.frame_N)
        # MXNet's CTC gives such transcripts a loss of 0 and a gradient of uninitialised memory.
        refuse_short(source, self._score_N)
        self._label_length_N = np.diff(source.label.begin)

    def _meta(self, index_B: np.ndarray) -> np.ndarray:
        meta_B = np.empty(len(index_B), object)
        for row, index in enumerate(index_B.tolist()):
            meta_B[row] = self.source.transcript(index)
        return meta_B

    def _read_share(self, share_B: np.ndarray, index_B: np.ndarray, epoch: int) -> Tuple[HostArrays, HostArrays]:
        source, length = self.source, int(self._size_N[index_B].max())
        frames_BTF = np.zeros((len(share_B), length, source.width), np.float32)
        label_BL = np.full((len(share_B), max(int(self._label_length_N[index_B].max()), 1)), -1, np.float32)
        for row, index in enumerate(share_B.tolist()):
            frames_BTF[row, : source.frame_N[index]] = source.read(index, seed=self.seed, epoch=epoch, train=self.train)
            label_BL[row, : self._label_length_N[index]] = source.label_of(index)
        length_B, score_B = (of_N[share_B].astype(np.float32) for of_N in (source.frame_N, self._score_N))
        return (frames_BTF, length_B), (label_BL, score_B)
