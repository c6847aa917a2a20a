"""Samples of frames with a transcript: the base of their sources, and the checks that all of them have.

The network returns a row of scores, one score for each character, for every frame or for every few frames. CTC can
align a transcript only if there are enough rows.

Legend: N samples, B batch, T frames, F numbers of a frame, L characters of a transcript.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Optional, Sequence

import numpy as np

from mxtrain.data.checking.checks import Checked, SourceChecks, digest_of
from mxtrain.data.checking.problems import DataLocation, Problem
from mxtrain.data.corpus.shards import Ragged
from mxtrain.errors import DataError
from mxtrain.speech.alphabet import Alphabet, Transcript, needed_frames

if TYPE_CHECKING:
    from mxtrain.data.checking.checks import Checks

SHORT_AUDIO = "short_audio"
"""Kind of problem: the network returns fewer rows of scores than the transcript needs."""


class TranscribedSource:
    """Base of sources. Reading must be safe from several threads at once.

    Attributes:
        frame_N: number of frames of each sample.
        width: F.
        label: characters of each transcript; empty if transcripts are unknown.
        alphabet: alphabet of the transcripts.
    """

    def __init__(
        self, frame_N: np.ndarray, width: int, label: Ragged, alphabet: Alphabet, texts: Optional[Sequence[str]] = None
    ) -> None:
        self.frame_N, self.width, self.label, self.alphabet = np.asarray(frame_N, np.int64), width, label, alphabet
        self._texts = texts

    def __len__(self) -> int:
        return len(self.frame_N)

    def read(self, index: int, *, seed: int, epoch: int, train: bool) -> np.ndarray:
        """Returns the frames (T, F) of a sample, float32, as a function of the arguments.

        Raises:
            LoaderError: the sample cannot be read.
        """
        raise NotImplementedError

    def take(self, indices: Sequence[int]) -> TranscribedSource:
        """Returns some of the samples; those beyond the end are left out."""
        raise NotImplementedError

    def location(self, index: int) -> DataLocation:
        """Returns the source location of a sample."""
        return DataLocation(record=index)

    def speaker(self, index: int) -> str:
        """Returns the speaker of a sample; empty if unknown."""
        return ""

    def content_location(self, index: int) -> DataLocation:
        """Returns the recording of a sample; without a file if the sample is a part of a recording, or of none."""
        return self.location(index)

    def label_of(self, index: int) -> np.ndarray:
        """Returns the characters of a transcript, (L,)."""
        return self.label.value[self.label.begin[index] : self.label.begin[index + 1]]

    def transcript(self, index: int) -> Transcript:
        """Returns the transcript of a sample."""
        return Transcript("" if self._texts is None else self._texts[index], self.alphabet)

    def too_short(self, score_N: np.ndarray) -> np.ndarray:
        """Returns the indices of samples whose transcripts need more rows of scores than the network returns.

        Args:
            score_N: number of rows of scores of each sample.
        """
        return np.flatnonzero(score_N < self.needed_N)

    @functools.cached_property
    def needed_N(self) -> np.ndarray:
        """Returns the minimum number of rows of scores that each transcript needs."""
        return needed_frames(self.label.value, self.label.begin)

    def checks(self) -> Checks:
        """Returns the checks that `data check` runs on each sample."""
        return FrameChecks(self)


class FrameChecks(SourceChecks):
    """Reads each sample, and compares contents."""

    _source: TranscribedSource

    def location(self, index: int) -> DataLocation:
        """See `Checks`."""
        return self._source.location(index)

    def content_location(self, index: int) -> DataLocation:
        """See `ChecksWithContents`."""
        return self._source.content_location(index)

    def check(self, index: int) -> Checked:
        """See `Checks`."""
        frames_TF = self._source.read(index, seed=0, epoch=0, train=False)
        characters = np.unique(self._source.label_of(index))
        return Checked((), digest_of(frames_TF.tobytes()), characters.tolist())


def short_problem(source: TranscribedSource, index: int, num_scores: int) -> Problem:
    """Returns the problem of a transcript that needs more rows of scores than the network returns, `num_scores`."""
    location, num_frames, needed = source.location(index), int(source.frame_N[index]), int(source.needed_N[index])
    frames = f"{num_frames} frames" + ("" if num_scores == num_frames else f", of which the network makes {num_scores}")
    fact = f"{location} has {frames}, and CTC needs {needed} for its transcript."
    remedy = "Correct the transcript, or choose a network with smaller steps in time, e.g. model.time_strides=[2,1,1]."
    return Problem(SHORT_AUDIO, location, fact, remedy)


def refuse_short(source: TranscribedSource, score_N: np.ndarray) -> None:
    """Raises a `DataError` for samples that CTC cannot align, for which MXNet returns a loss of 0 and a wrong
    gradient."""
    short = source.too_short(score_N)
    if len(short):
        index = int(short[0])
        problem = short_problem(source, index, int(score_N[index]))
        more = f" There are {len(short) - 1:,} more." if len(short) > 1 else ""
        raise DataError(f"{problem.fact}{more} {problem.remedy}")
