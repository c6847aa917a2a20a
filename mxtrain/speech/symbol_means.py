"""Baseline that predicts the mean frame of each symbol.

Legend: T frames, F mel bands, V symbols, C cepstral coefficients.
"""

from __future__ import annotations

from typing import Tuple

import numpy as np

from mxtrain.speech.aligned import AlignedSource, evenly_spaced
from mxtrain.speech.aligned_loader import DECIBELS

NUM_CEPSTRA = 13


def cepstrum_matrix(num_mels: int) -> np.ndarray:
    """Returns the orthonormal cosine transform, (F, C), of which coefficient 0, the level, is left out."""
    band_F1, order_C = np.arange(num_mels)[:, None] + 0.5, np.arange(1, min(NUM_CEPSTRA, num_mels - 1) + 1)
    # Orthonormal, so that a distance of cepstra is one of frames; order 0, the mean, is left out.
    matrix: np.ndarray = np.sqrt(2 / num_mels) * np.cos(np.pi * band_F1 * order_C / num_mels)
    return matrix


class SymbolMeans:
    """The mean frame of each symbol.

    Args:
        source: training samples.
        num_symbols: V.
        max_utterances: utterances that are read, evenly chosen.
    """

    def __init__(self, source: AlignedSource, num_symbols: int, max_utterances: int) -> None:
        total_VF, count_V = np.zeros((num_symbols, source.width)), np.zeros(num_symbols)
        for index in evenly_spaced(len(source), max_utterances):
            symbol_T = np.repeat(source.symbols_of(index), source.durations_of(index))
            # Not +=, which adds one frame only to a symbol that has several.
            np.add.at(total_VF, symbol_T, source.read(index).astype(np.float64))
            count_V += np.bincount(symbol_T, minlength=num_symbols)
        overall_F = total_VF.sum(axis=0) / max(count_V.sum(), 1)
        self._mean_VF = np.where(count_V[:, None] > 0, total_VF / np.maximum(count_V, 1)[:, None], overall_F)

    def frames(self, source: AlignedSource, index: int) -> np.ndarray:
        """Returns the predicted frames of a sample, (T, F)."""
        frames_TF: np.ndarray = self._mean_VF[np.repeat(source.symbols_of(index), source.durations_of(index))]
        return frames_TF

    def measure(self, source: AlignedSource, max_utterances: int) -> Tuple[float, float]:
        """Returns mean absolute error and mel-cepstral distortion in dB, over at most `max_utterances` utterances."""
        sums, count, matrix_FC = np.zeros(2), 0, cepstrum_matrix(source.width)
        for index in evenly_spaced(len(source), max_utterances):
            difference_TF = (self.frames(source, index) - source.read(index)) * DECIBELS
            sums += distances(difference_TF, matrix_FC)
            count += len(difference_TF)
        error, distortion = sums / max(count, 1)
        return float(error), float(distortion)


def distances(difference_TF: np.ndarray, matrix_FC: np.ndarray) -> Tuple[float, float]:
    """Returns the sums over frames of the mean absolute difference and of the mel-cepstral distortion, in the unit of
    the difference."""
    cepstra_TC = difference_TF @ matrix_FC
    distortion_T = np.sqrt(np.square(cepstra_TC).sum(axis=1) / difference_TF.shape[1])
    return float(np.abs(difference_TF).mean(axis=1).sum()), float(distortion_T.sum())
