"""Word and character error rates of transcripts, counted by jiwer.

Both are of the whole split: all edits over all words (characters) that were said, and not the mean of the rates of
utterances. Words are separated by white space; spaces count as characters. Texts are compared after the dataset's
normalisation.
"""

from __future__ import annotations

import importlib.metadata
from typing import ClassVar, List, Literal, Sequence

from mxtrain.metric.spec import ratio
from mxtrain.metric.texts import TextMetric
from mxtrain.speech.kinds import Transcripts
from mxtrain.types.kinds import Takes


class ErrorRate(TextMetric):
    """Base of error rates; they can be above 1."""

    takes: ClassVar[Takes] = Takes(Transcripts)
    direction: ClassVar[Literal["max", "min"]] = "min"
    unit: ClassVar[Literal["word", "character"]]

    @property
    def signature(self) -> str:
        return f"jiwer{importlib.metadata.version('jiwer')},unit={self.unit},over=corpus"

    @property
    def num_counts(self) -> int:
        return 4

    def count(self, prediction: str, reference: str) -> Sequence[int]:
        """Returns the numbers of substitutions, deletions, insertions and hits."""
        import jiwer

        process = jiwer.process_words if self.unit == "word" else jiwer.process_characters
        alignment = process(reference, prediction)
        # Counts travel between workers, texts cannot; sums of whole numbers are exact in any order.
        return [alignment.substitutions, alignment.deletions, alignment.insertions, alignment.hits]

    def of_sums(self, sums: List[int], num_samples: int) -> float:
        """Returns edits per unit of the reference; NaN if all references are empty."""
        substituted, deleted, inserted, correct = sums
        num_units, edits = substituted + deleted + correct, substituted + deleted + inserted
        return ratio(edits, num_units)


class WER(ErrorRate):
    """Word error rate: edits for each word that was said."""

    unit: ClassVar[Literal["word", "character"]] = "word"


class CER(ErrorRate):
    """Character error rate: edits for each character that was said, spaces included."""

    unit: ClassVar[Literal["word", "character"]] = "character"
