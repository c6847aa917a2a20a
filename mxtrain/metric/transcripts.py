"""Word and character error rates of transcripts, counted by jiwer.

Both are of the whole split: all edits over all words (characters) that were said, and not the mean of the rates of
utterances. Words are what stands between white space; spaces count as characters. What is compared are texts as the
network knows them, after the dataset's normalisation.
"""

from __future__ import annotations

import importlib.metadata
from typing import ClassVar, Literal, Optional, Tuple, Type

import numpy as np

from mxtrain.dataset.speech.alphabet import Transcript
from mxtrain.metric.host import Collected, HostMetric, HostPredictions

WORDS, CHARACTERS = 0, 4
"""Where the counts of words and of characters begin in a row."""


class CollectedEdits(Collected):
    """Of each utterance: substituted, deleted, inserted and right words, then the same of characters."""

    width: ClassVar[int] = 8

    def update(
        self, index_B: np.ndarray, prediction_B: HostPredictions, target_B: np.ndarray, meta_B: Optional[np.ndarray]
    ) -> None:
        """Notes a batch: numbers of characters (B, T), -1 where there is none, and the `Transcript` of each sample."""
        assert meta_B is not None
        for index, found_T, transcript in zip(index_B, prediction_B, meta_B):
            self.add(int(index), np.array([count_edits(transcript, found_T)]))

    def counts(self) -> np.ndarray:
        """Sums over all utterances, (8,)."""
        return self.samples()[:, 2:].sum(axis=0)


def count_edits(transcript: Transcript, found_T: np.ndarray) -> Tuple[float, ...]:
    """A row of `CollectedEdits`."""
    import jiwer

    assert transcript.text is not None
    found = transcript.alphabet.decode(found_T)
    words, characters = jiwer.process_words(transcript.text, found), jiwer.process_characters(transcript.text, found)
    return tuple(
        float(count) for one in (words, characters)
        for count in (one.substitutions, one.deletions, one.insertions, one.hits)
    )  # fmt: skip


def error_rate(count_8: np.ndarray, begin: int) -> float:
    """Edits per word or character that was said; of nothing said, 0 where nothing was found, else infinite."""
    substituted, deleted, inserted, right = count_8[begin : begin + 4].tolist()
    said, edits = substituted + deleted + right, substituted + deleted + inserted
    if not said:
        return 0.0 if not edits else float("inf")
    return edits / said


class TranscriptMetric(HostMetric):
    """Base of error rates."""

    serves: ClassVar[Tuple[str, ...]] = ("speech_recognition",)
    direction: ClassVar[Literal["max", "min"]] = "min"
    collects: ClassVar[Type[Collected]] = CollectedEdits
    begins: ClassVar[int]
    unit: ClassVar[str]

    @property
    def signature(self) -> str:
        return f"jiwer{importlib.metadata.version('jiwer')},unit={self.unit},over=corpus"

    def compute(self, collected: Collected) -> float:
        assert isinstance(collected, CollectedEdits)
        return error_rate(collected.counts(), self.begins)


class WER(TranscriptMetric):
    """Word error rate: edits per word that was said; it can be above 1."""

    begins: ClassVar[int] = WORDS
    unit: ClassVar[str] = "word"


class CER(TranscriptMetric):
    """Character error rate: edits per character that was said, spaces included; it can be above 1."""

    begins: ClassVar[int] = CHARACTERS
    unit: ClassVar[str] = "character"
