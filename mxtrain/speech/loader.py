"""Loads batches of samples with like numbers of frames, padded to the longest of the batch.

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
"""Numbers of frames of batches are multiples of it, so that fewer shapes occur."""


def padded_frames(longest: np.ndarray) -> np.ndarray:
    """Returns the frames of batches whose longest sample has so many."""
    return -(-longest // FRAME_STEP) * FRAME_STEP


class FrameLoader(SizedLoader):
    """Batches of one split: frames (B, T, F) and their numbers (B,), against characters (B, L), -1 behind the last, and
    the numbers of scores that the network gives for them, (B,).

    A batch is as long as its longest sample, whoever computes which part of it. The size of a sample is its frames.

    Args:
        source: samples.
        options: of all loaders; `encode` says how many scores the network gives.
        settings: of `SizedLoader`.

    Raises:
        DataError: a transcript needs more scores than the network gives.
    """

    def __init__(self, source: TranscribedSource, options: LoaderOptions, **settings: Any) -> None:
        super().__init__(padded_frames(source.frame_N), options, **settings)
        assert options.encode is not None, "the task says how many scores there are"
        self.source = source
        (self._score_N,) = options.encode(source.frame_N)
        refuse_short(source, self._score_N)
        self._label_length_N = np.diff(source.label.begin)

    def _meta(self, index_B: np.ndarray) -> np.ndarray:
        meta_B = np.empty(len(index_B), object)
        for row, index in enumerate(index_B.tolist()):
            meta_B[row] = self.source.transcript(index)
        return meta_B

    def _read_share(
        self, share_B: np.ndarray, index_B: np.ndarray, epoch: int
    ) -> Tuple[HostArrays, HostArrays]:  # fmt: skip
        source, length = self.source, int(self._size_N[index_B].max())
        frames_BTF = np.zeros((len(share_B), length, source.width), np.float32)
        label_BL = np.full((len(share_B), max(int(self._label_length_N[index_B].max()), 1)), -1, np.float32)
        for row, index in enumerate(share_B.tolist()):
            frames_BTF[row, : source.frame_N[index]] = source.read(
                index, seed=self.seed, epoch=epoch, train=self.train
            )
            label_BL[row, : self._label_length_N[index]] = source.label_of(index)
        length_B, score_B = (of_N[share_B].astype(np.float32) for of_N in (source.frame_N, self._score_N))
        return (frames_BTF, length_B), (label_BL, score_B)
