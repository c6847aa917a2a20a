"""Loads batches of samples with like numbers of frames, padded to the longest of the batch.

Legend: B batch, T frames, F numbers of a frame, L characters of a transcript.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Tuple, Union

import numpy as np

from mxtrain.dataset.language.sources import order_by_length
from mxtrain.dataset.loading.loader import BatchLoader
from mxtrain.dataset.speech.source import CountScores, TranscribedSource, refuse_short

if TYPE_CHECKING:
    from mxnet import Context
    from mxnet.ndarray import NDArray

FRAME_STEP = 16
"""Numbers of frames of batches are multiples of it, so that fewer shapes occur."""


def padded_frames(longest: int) -> int:
    """The frames of a batch whose longest sample has so many."""
    return -(-longest // FRAME_STEP) * FRAME_STEP


class FrameLoader(BatchLoader):
    """Batches of one split: frames (B, T, F) and their numbers (B,), against characters (B, L), -1 behind the last, and
    the numbers of scores that the network gives for them, (B,).

    A batch is as long as its longest sample, whoever computes which part of it.

    Args:
        source: samples.
        encode: how many scores the network gives.
        batches_per_pool: in training, how many batches' samples are sorted by length together; 1 = none.
        in_order: without training, keep the order of the samples; else they are sorted by length.
        device: a context or its name.
        options: of `BatchLoader`.
    """

    def __init__(
        self, source: TranscribedSource, *, encode: CountScores, batches_per_pool: int = 1, in_order: bool = False,
        device: Union[str, Context] = "cpu:0", **options: Any,
    ) -> None:  # fmt: skip
        from mxtrain.dataset.loading.placing import as_device

        super().__init__(len(source), **options)
        self.source = source
        (self._score_N,) = encode(source.frame_N)
        refuse_short(source, self._score_N)
        self._label_length_N = np.diff(source.label.begin)
        self._batches_per_pool, self._in_order = batches_per_pool, in_order
        self._device = as_device(device)

    def _shuffle(self, index_N: np.ndarray, epoch: int) -> np.ndarray:
        return order_by_length(
            self.source.frame_N[index_N], self.batch_size, seed=self.seed, epoch=epoch,
            batches_per_pool=self._batches_per_pool,
        )  # fmt: skip

    def _still_order(self) -> np.ndarray:
        return super()._still_order() if self._in_order else np.argsort(self.source.frame_N, kind="stable")

    def _meta(self, index_B: np.ndarray) -> np.ndarray:
        meta_B = np.empty(len(index_B), object)
        for row, index in enumerate(index_B.tolist()):
            meta_B[row] = self.source.transcript(index)
        return meta_B

    def _read_share(
        self, share_B: np.ndarray, index_B: np.ndarray, epoch: int
    ) -> Tuple[Tuple[NDArray, ...], Tuple[NDArray, ...]]:  # fmt: skip
        from mxtrain.dataset.loading.placing import copy_to

        source, longest = self.source, int(self.source.frame_N[index_B].max())
        frames_BTF = np.zeros((len(share_B), padded_frames(longest), source.width), np.float32)
        label_BL = np.full((len(share_B), max(int(self._label_length_N[index_B].max()), 1)), -1, np.float32)
        for row, index in enumerate(share_B.tolist()):
            frames_BTF[row, : source.frame_N[index]] = source.read(
                index, seed=self.seed, epoch=epoch, train=self.train
            )
            label_BL[row, : self._label_length_N[index]] = source.label_of(index)
        length_B, score_B = (of_N[share_B].astype(np.float32) for of_N in (source.frame_N, self._score_N))
        frames, length, label, scores = (
            copy_to(array, self._device) for array in (frames_BTF, length_B, label_BL, score_B)
        )
        return (frames, length), (label, scores)
