"""Samples of symbols with durations and the frames of their sound: sources, and the checks that all of them have.

Legend: N samples, B batch, T frames, F mel bands, L symbols of a sample.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from mxtrain.data.checking.checks import Checked, SourceChecks, digest_of
from mxtrain.data.checking.problems import DataPlace, Problem
from mxtrain.data.corpus.shards import Ragged, Shards
from mxtrain.speech.aligned_rows import frames_of_symbols
from mxtrain.speech.features import Features
from mxtrain.speech.utterances import Utterance

if TYPE_CHECKING:
    from mxtrain.data.checking.checks import Checks
    from mxtrain.data.checking.problems import Findings

DURATION_MISMATCH = "duration_mismatch"
"""Kind of problem: the durations of an utterance do not add up to its sound."""
UNKNOWN_SYMBOL = "unknown_symbol"


class Aligned(NamedTuple):
    """An utterance whose symbols have durations.

    Attributes:
        utterance: the recording, its transcript and the source location of the transcript.
        symbols: characters or phonemes.
        durations: of each symbol, at least 0.
        in_seconds: whether these are seconds; else frames.
    """

    utterance: Utterance
    symbols: Sequence[str]
    durations: Sequence[float]
    in_seconds: bool = False

    def frames(self, features: Features) -> np.ndarray:
        """Returns the frames of each symbol, (L,) int64, see `frames_of_symbols`."""
        return frames_of_symbols(self.durations, self.in_seconds, features)


def fitted(frames_L: np.ndarray, num_frames: int, tolerance: int) -> Optional[np.ndarray]:
    """Returns durations in frames that add up to `num_frames`: missing frames are added to the last symbol, surplus
    ones are removed from the end. None if the difference is above `tolerance`."""
    if abs(int(frames_L.sum()) - num_frames) > tolerance:
        return None
    end_L = np.minimum(np.cumsum(frames_L), num_frames)
    end_L[-1] = num_frames
    return np.diff(end_L, prepend=0)


class AlignedSource:
    """Utterances of one split. Reading is safe from several threads at once.

    Attributes:
        given: the utterances.
        frame_N: frames of each.
        width: F.
        store: the stored arrays, if they are deleted together with this object.

    Args:
        given: utterances.
        symbol: numbers of the symbols of each.
        duration: frames of each symbol.
        feature: frames of all utterances of the store; None if there is no sound, but something to be spoken.
        row_N: which of these each utterance is.
        width: F.
    """

    def __init__(
        self, given: Sequence[Aligned], symbol: Ragged, duration: Ragged, feature: Optional[Ragged], row_N: np.ndarray,
        width: int,
    ) -> None:  # fmt: skip
        self.given, self.symbol, self.duration, self.width = list(given), symbol, duration, width
        self._feature, self._row_N = feature, np.asarray(row_N, np.int64)
        sums = np.concatenate([np.zeros(1, np.int64), np.cumsum(duration.value, dtype=np.int64)])
        self.frame_N = sums[duration.begin[1:]] - sums[duration.begin[:-1]]
        self.store: Optional[Shards] = None

    def __len__(self) -> int:
        return len(self.given)

    @property
    def has_sound(self) -> bool:
        """Returns True if the samples have frames."""
        return self._feature is not None

    def read(self, index: int) -> np.ndarray:
        """Returns the frames (T, F) of an utterance, float32: logarithms of power."""
        assert self._feature is not None
        row = int(self._row_N[index])
        return self._feature.value[self._feature.begin[row] : self._feature.begin[row + 1]].astype(np.float32)

    def symbols_of(self, index: int) -> np.ndarray:
        """Returns the numbers of the symbols of an utterance, (L,)."""
        return self.symbol.value[self.symbol.begin[index] : self.symbol.begin[index + 1]]

    def durations_of(self, index: int) -> np.ndarray:
        """Frames of each symbol of an utterance, (L,)."""
        return self.duration.value[self.duration.begin[index] : self.duration.begin[index + 1]]

    def take(self, indices: Sequence[int]) -> AlignedSource:
        """Returns some of the samples; those beyond the end are left out."""
        kept = [int(index) for index in indices if index < len(self)]
        return AlignedSource(
            [self.given[index] for index in kept], ragged([self.symbols_of(index) for index in kept]),
            ragged([self.durations_of(index) for index in kept]), self._feature, self._row_N[kept], self.width,
        )  # fmt: skip

    def place(self, index: int) -> DataPlace:
        """Returns the source location of a sample."""
        return self.given[index].utterance.place

    def checks(self) -> Checks:
        """Returns the checks that `data check` runs on each sample."""
        return AlignedChecks(self)


class AlignedChecks(SourceChecks):
    """Reads each sample, and compares contents."""

    _source: AlignedSource

    def place(self, index: int) -> DataPlace:
        """See `Checks`."""
        return self._source.place(index)

    def check(self, index: int) -> Checked:
        """See `Checks`."""
        frames_TF, symbol_L = self._source.read(index), self._source.symbols_of(index)
        return Checked((), digest_of(frames_TF.tobytes()), np.unique(symbol_L).tolist())


def ragged(rows: Sequence[np.ndarray]) -> Ragged:
    """Rows of int32, one after the other."""
    begin = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(row) for row in rows], out=begin[1:])
    return Ragged(np.concatenate([np.zeros(0, np.int32), *rows]).astype(np.int32), begin)


def numbered(
    given: Sequence[Aligned], symbols: Sequence[str], findings: Findings
) -> Tuple[List[Aligned], List[np.ndarray]]:
    """Those utterances whose symbols are all known, and the numbers of these; findings get the others."""
    number: Dict[str, int] = {symbol: index for index, symbol in enumerate(symbols)}
    kept, found = [], []
    for one in given:
        unknown = [symbol for symbol in dict.fromkeys(one.symbols) if symbol not in number]
        if unknown:
            place, shown = one.utterance.place, ", ".join(map(repr, unknown[:8]))
            fact = f"{place} has {shown}, which {'is no symbol' if len(unknown) == 1 else 'are no symbols'} of these."
            known = ", ".join(map(repr, symbols[:60])) + (", ..." if len(symbols) > 60 else "")
            findings.refuse(Problem(UNKNOWN_SYMBOL, place, fact, f"Correct it. Known are {known}."))
            continue
        kept.append(one)
        found.append(np.array([number[symbol] for symbol in one.symbols], np.int32))
    return kept, found


def fit_durations(
    given: Sequence[Aligned], frame_N: Sequence[int], features: Features, tolerance: int, findings: Findings
) -> Dict[int, np.ndarray]:
    """Index of an utterance whose durations match its recording -> frames of each symbol."""
    found: Dict[int, np.ndarray] = {}
    for index, (one, num_frames) in enumerate(zip(given, frame_N)):
        frames_L = one.frames(features)
        fits = fitted(frames_L, num_frames, tolerance)
        if fits is not None:
            found[index] = fits
            continue
        place, step_s = one.utterance.place, features.step / features.sample_rate
        said = f"{frames_L.sum():,} frames ({frames_L.sum() * step_s:.2f} s)"
        fact = (
            f"{place}: its durations add up to {said}, and '{one.utterance.path}' has {num_frames:,} "
            f"({num_frames * step_s:.2f} s)."
        )
        remedy = (
            f"They may differ by {tolerance} frames (dataset.tolerance_frames). Frames are steps of "
            "dataset.features.step_ms."
        )
        findings.refuse(Problem(DURATION_MISMATCH, place, fact, remedy))
    return found


def frame_statistics(source: AlignedSource, most: int) -> Tuple[np.ndarray, np.ndarray]:
    """Mean and deviation (F,) of the frames of at most so many utterances, evenly chosen."""
    chosen = np.unique(np.linspace(0, len(source) - 1, min(most, len(source))).astype(int)).tolist()
    total, squares, count = np.zeros(source.width), np.zeros(source.width), 0
    for index in chosen:
        frames_TF = source.read(index).astype(np.float64)
        total += frames_TF.sum(axis=0)
        squares += np.square(frames_TF).sum(axis=0)
        count += len(frames_TF)
    mean_F = total / max(count, 1)
    return mean_F, np.sqrt(np.maximum(squares / max(count, 1) - mean_F**2, 1e-4))
