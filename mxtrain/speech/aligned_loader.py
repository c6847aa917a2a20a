"""Loads batches of symbols with durations, against the frames of their sound.

Legend: N samples, B batch, L symbols, T frames, F mel bands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Sequence, Tuple

import numpy as np

from mxtrain.data.loading.sized import SizedLoader
from mxtrain.speech.aligned import AlignedSource
from mxtrain.speech.aligned_rows import NUM_POSITION_VALUES, frame_positions
from mxtrain.speech.loader import padded_frames

if TYPE_CHECKING:
    from mxtrain.data.loading.loader import LoaderOptions
    from mxtrain.data.loading.placing import HostArrays

DECIBELS = 10 / np.log(10)
"""Decibels per unit of the natural logarithm of power."""


class AlignedLoader(SizedLoader):
    """Loads the batches of one split.

    Inputs are symbols (B, L), int32, their numbers (B,), the symbol index of each frame (B, T), -1 = padding, and frame
    positions (B, T, 4); targets are normalized frames (B, T, F), their numbers (B,), and the decibels of a unit of each
    band (B, F). The length of a batch is that of the longest sample in the global batch. The size of a sample is its
    number of frames.

    Args:
        source: samples; frames are 0 for samples without sound.
        mean: mean of each band.
        deviation: standard deviation of each band.
        options: options of all loaders.
        settings: settings of `SizedLoader`.
    """

    def __init__(
        self,
        source: AlignedSource,
        mean: Sequence[float],
        deviation: Sequence[float],
        options: LoaderOptions,
        **settings: Any,
    ) -> None:
        super().__init__(padded_frames(source.frame_N), options, **settings)
        self.source = source
        self._mean_F, self._deviation_F = np.asarray(mean, np.float32), np.asarray(deviation, np.float32)
        self._length_N = np.diff(source.symbol.begin)

    def _meta(self, index_B: np.ndarray) -> np.ndarray:
        """Returns the number of frames of each sample, (B,)."""
        return self.source.frame_N[index_B]

    def _read_share(self, share_B: np.ndarray, index_B: np.ndarray, epoch: int) -> Tuple[HostArrays, HostArrays]:
        source, length, rows = self.source, int(self._size_N[index_B].max()), len(share_B)
        symbol_BL = np.zeros((rows, int(self._length_N[index_B].max())), np.int32)
        index_BT = np.full((rows, length), -1, np.float32)
        position_BTP = np.zeros((rows, length, NUM_POSITION_VALUES), np.float32)
        frames_BTF = np.zeros((rows, length, source.width), np.float32)
        for row, index in enumerate(share_B.tolist()):
            symbol_L, duration_L, frames = source.symbols_of(index), source.durations_of(index), source.frame_N[index]
            symbol_BL[row, : len(symbol_L)] = symbol_L
            # Indices count from the sample's own first symbol, so a slice of the batch stays right.
            index_BT[row, :frames] = np.repeat(np.arange(len(duration_L)), duration_L)
            position_BTP[row, :frames] = frame_positions(duration_L)
            if source.has_sound:
                frames_BTF[row, :frames] = (source.read(index) - self._mean_F) / self._deviation_F
        # Targets hold the decibels of a unit of each band, so metrics are sums on the device that know no signature.
        unit_BF = np.broadcast_to(self._deviation_F * np.float32(DECIBELS), (rows, source.width))
        counts = (self._length_N[share_B].astype(np.float32), source.frame_N[share_B].astype(np.float32))
        return (symbol_BL, counts[0], index_BT, position_BTP), (frames_BTF, counts[1], unit_BF)
