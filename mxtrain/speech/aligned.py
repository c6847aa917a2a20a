"""Samples of symbols with durations and the frames of their sound: sources, and the checks that all of them have.

Frame t is centred in step t, so that a duration in seconds needs no offset: recordings are padded to ceil(samples /
step) frames, unlike in recognition. Frames are normalised per mel band, so metrics in dB stay sums on the device.

Legend: N samples, B batch, T frames, F mel bands, L symbols of a sample.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from mxtrain.data.checking.checks import Checked, SourceChecks, digest_of
from mxtrain.data.checking.problems import DataLocation, Problem
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


class AlignedUtterance(NamedTuple):
    """An utterance whose symbols have durations.

    Attributes:
        utterance: the recording, its transcript and the source location of the transcript.
        symbols: characters or phonemes.
        durations: duration of each symbol, at least 0.
        in_seconds: True if durations are in seconds, False for frames.
    """

    utterance: Utterance
    symbols: Sequence[str]
    durations: Sequence[float]
    in_seconds: bool = False

    def frames(self, features: Features) -> np.ndarray:
        """Returns the frames of each symbol, (L,) int64, see `frames_of_symbols`."""
        return frames_of_symbols(self.durations, self.in_seconds, features)


def fit_to_length(frames_L: np.ndarray, num_frames: int, tolerance: int) -> Optional[np.ndarray]:
    """Returns durations in frames that add up to `num_frames`, or None if the difference exceeds `tolerance`.

    Missing frames are added to the last symbol; surplus frames are removed from the end.
    """
    if abs(int(frames_L.sum()) - num_frames) > tolerance:
        return None
    end_L = np.minimum(np.cumsum(frames_L), num_frames)
    # The last symbol takes the difference that the tolerance allows.
    end_L[-1] = num_frames
    return np.diff(end_L, prepend=0)


class AlignedSource:
    """Utterances of one split. Reading is safe from several threads at once.

    Attributes:
        utterances: the utterances.
        frame_N: number of frames of each utterance.
        width: F.
        store: the stored arrays, if they are deleted together with this object.

    Args:
        utterances: utterances.
        symbol: numbers of the symbols of each utterance.
        duration: frames of each symbol.
        feature: frames of all utterances of the store; None if there is no sound, for synthesis.
        row_N: index into `feature` of each utterance.
        width: F.
    """

    def __init__(
        self,
        utterances: Sequence[AlignedUtterance],
        symbol: Ragged,
        duration: Ragged,
        feature: Optional[Ragged],
        row_N: np.ndarray,
        width: int,
    ) -> None:
        self.utterances, self.symbol, self.duration, self.width = list(utterances), symbol, duration, width
        self._feature, self._row_N = feature, np.asarray(row_N, np.int64)
        sums = np.concatenate([np.zeros(1, np.int64), np.cumsum(duration.value, dtype=np.int64)])
        self.frame_N = sums[duration.begin[1:]] - sums[duration.begin[:-1]]
        self.store: Optional[Shards] = None

    def __len__(self) -> int:
        return len(self.utterances)

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
        """Returns the number of frames of each symbol of an utterance, (L,)."""
        return self.duration.value[self.duration.begin[index] : self.duration.begin[index + 1]]

    def take(self, indices: Sequence[int]) -> AlignedSource:
        """Returns some of the samples; those beyond the end are left out."""
        kept = [int(index) for index in indices if index < len(self)]
        return AlignedSource(
            [self.utterances[index] for index in kept],
            ragged([self.symbols_of(index) for index in kept]),
            ragged([self.durations_of(index) for index in kept]),
            self._feature,
            self._row_N[kept],
            self.width,
        )

    def speaker(self, index: int) -> str:
        """Returns the speaker of a sample, which no format of aligned data names."""
        return ""

    def location(self, index: int) -> DataLocation:
        """Returns the source location of a sample."""
        return self.utterances[index].utterance.location

    def checks(self) -> Checks:
        """Returns the checks that `data check` runs on each sample."""
        return AlignedChecks(self)


class AlignedChecks(SourceChecks):
    """Reads each sample, and compares contents."""

    _source: AlignedSource

    def location(self, index: int) -> DataLocation:
        """See `Checks`."""
        return self._source.location(index)

    def check(self, index: int) -> Checked:
        """See `Checks`."""
        frames_TF, symbol_L = self._source.read(index), self._source.symbols_of(index)
        return Checked((), digest_of(frames_TF.tobytes()), np.unique(symbol_L).tolist())


def ragged(rows: Sequence[np.ndarray]) -> Ragged:
    """Concatenates rows of int32."""
    begin = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(row) for row in rows], out=begin[1:])
    return Ragged(np.concatenate([np.zeros(0, np.int32), *rows]).astype(np.int32), begin)


def number_symbols(
    utterances: Sequence[AlignedUtterance], symbols: Sequence[str], findings: Findings
) -> Tuple[List[AlignedUtterance], List[np.ndarray]]:
    """Converts symbols to numbers.

    Args:
        utterances: utterances.
        symbols: known symbols, in the order of their numbers.
        findings: collects utterances with unknown symbols.

    Returns:
        The utterances without unknown symbols, and the symbol numbers (L,) int32 of each.
    """
    number: Dict[str, int] = {symbol: index for index, symbol in enumerate(symbols)}
    kept, symbol_numbers = [], []
    for aligned in utterances:
        unknown = [symbol for symbol in dict.fromkeys(aligned.symbols) if symbol not in number]
        if unknown:
            location, names = aligned.utterance.location, ", ".join(map(repr, unknown[:8]))
            fact = (
                f"{location} has {names}, which {'is no symbol' if len(unknown) == 1 else 'are no symbols'} of these."
            )
            known_symbols = ", ".join(map(repr, symbols[:60])) + (", ..." if len(symbols) > 60 else "")
            findings.refuse(Problem(UNKNOWN_SYMBOL, location, fact, f"Correct it. Known are {known_symbols}."))
            continue
        kept.append(aligned)
        symbol_numbers.append(np.array([number[symbol] for symbol in aligned.symbols], np.int32))
    return kept, symbol_numbers


def fit_durations(
    utterances: Sequence[AlignedUtterance],
    frame_N: Sequence[int],
    features: Features,
    tolerance: int,
    findings: Findings,
) -> Dict[int, np.ndarray]:
    """Makes the durations of utterances add up to the lengths of their recordings.

    Args:
        utterances: utterances.
        frame_N: number of frames of each recording.
        features: settings of the frames.
        tolerance: maximum difference in frames.
        findings: collects utterances with larger differences.

    Returns:
        The frames of each symbol, (L,), by the index of the utterance; without those that do not fit.
    """
    durations: Dict[int, np.ndarray] = {}
    for index, (aligned, num_frames) in enumerate(zip(utterances, frame_N)):
        frames_L = aligned.frames(features)
        fits = fit_to_length(frames_L, num_frames, tolerance)
        if fits is not None:
            durations[index] = fits
            continue
        location, step_s = aligned.utterance.location, features.step / features.sample_rate
        length = f"{frames_L.sum():,} frames ({frames_L.sum() * step_s:.2f} s)"
        fact = (
            f"{location}: its durations add up to {length}, and '{aligned.utterance.path}' has {num_frames:,} "
            f"({num_frames * step_s:.2f} s)."
        )
        remedy = (
            f"They may differ by {tolerance} frames (dataset.tolerance_frames). Frames are steps of "
            "dataset.features.step_ms."
        )
        findings.refuse(Problem(DURATION_MISMATCH, location, fact, remedy))
    return durations


def evenly_spaced(count: int, max_count: int) -> List[int]:
    """Returns at most `max_count` indices below `count`, evenly spaced."""
    indices: List[int] = np.unique(np.linspace(0, count - 1, min(max_count, count)).astype(int)).tolist()
    return indices


def frame_statistics(source: AlignedSource, max_utterances: int) -> Tuple[np.ndarray, np.ndarray]:
    """Returns mean and standard deviation (F,) of the frames of at most `max_utterances` evenly spaced utterances."""
    total, squares, count = np.zeros(source.width), np.zeros(source.width), 0
    for index in evenly_spaced(len(source), max_utterances):
        # Sums of squares over hours of sound lose digits in float32.
        frames_TF = source.read(index).astype(np.float64)
        total += frames_TF.sum(axis=0)
        squares += np.square(frames_TF).sum(axis=0)
        count += len(frames_TF)
    mean_F = total / max(count, 1)
    # The difference may be below 0 by rounding; 1e-4 also keeps a band that never changes from a division by 0.
    return mean_F, np.sqrt(np.maximum(squares / max(count, 1) - mean_F**2, 1e-4))
