"""Word and character error rates of transcripts, counted by jiwer.

Both are of the whole split: all edits over all words (characters) that were said, and not the mean of the rates of
utterances. Words are separated by white space; spaces count as characters. Texts are compared after the dataset's
normalisation.
"""

from __future__ import annotations

import importlib.metadata
from collections import Counter
from typing import TYPE_CHECKING, Any, ClassVar, Dict, List, Literal, Sequence, Tuple

from mxtrain.metric.spec import ratio
from mxtrain.metric.texts import CollectedTexts, TextMetric
from mxtrain.speech.kinds import Transcripts
from mxtrain.task.collecting_report import CollectingReport
from mxtrain.types import Artifact, Table
from mxtrain.types.kinds import Takes

if TYPE_CHECKING:
    from mxtrain.engine.predictions import Decode
    from mxtrain.speech.source import TranscribedSource


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


MAX_SHOWN = 20
UNITS: Dict[str, ErrorRate] = {"words": WER(), "characters": CER()}


class _CollectedTranscripts(CollectedTexts):
    """Collects the edit counts, and reference and hypothesis of each utterance."""

    def __init__(self) -> None:
        super().__init__(list(UNITS.values()))

    def reset(self) -> None:
        super().reset()
        self.texts: Dict[int, Tuple[str, str]] = {}

    def add_pair(self, index: int, prediction: str, reference: str) -> None:
        super().add_pair(index, prediction, reference)
        self.texts[index] = reference, prediction


class SpeechReport(CollectingReport):
    """Error rates by kind of error, the words (or characters, where utterances are one word) that are most often wrong,
    and the utterances with the highest rates.

    Args:
        decode: predictions from outputs.
        source: source of the utterances.
    """

    def __init__(self, decode: Decode, source: TranscribedSource):
        self._transcripts = _CollectedTranscripts()
        super().__init__(decode, self._transcripts)
        self._source = source

    def artifacts(self, title: str) -> List[Artifact]:
        self.finish()
        return [self._rates(), self._frequent(), self._worst()]

    def _rates(self) -> Artifact:
        rows: List[List[Any]] = []
        for name, metric in UNITS.items():
            sums, count = self._transcripts.sums(metric)
            substituted, deleted, inserted, correct = sums
            num_units = substituted + deleted + correct
            rows.append([name, metric.of_sums(sums, count), substituted, deleted, inserted, num_units])
        return Table("errors", ["unit", "rate", "substituted", "deleted", "inserted", "said"], rows)

    def _frequent(self) -> Artifact:
        """Returns a table of the most frequent errors; an empty text means an insertion or a deletion."""
        import jiwer

        by_words = any(" " in reference for reference, _ in self._transcripts.texts.values())
        process = jiwer.process_words if by_words else jiwer.process_characters
        error_counts: Counter[Tuple[str, ...]] = Counter()
        for reference, hypothesis in self._transcripts.texts.values():
            if reference == hypothesis:
                continue
            result = process(reference, hypothesis)
            for chunk in result.alignments[0]:
                if chunk.type != "equal":
                    units = (
                        result.references[0][chunk.ref_start_idx : chunk.ref_end_idx],
                        result.hypotheses[0][chunk.hyp_start_idx : chunk.hyp_end_idx],
                    )
                    error_counts[tuple((" " if by_words else "").join(part) for part in units)] += 1
        # Equal counts are sorted by text, so that the order does not depend on that of the samples.
        most_frequent = sorted(error_counts.items(), key=lambda item: (-item[1], item[0]))[:MAX_SHOWN]
        return Table("frequent_errors", ["said", "found", "count"], [[*pair, count] for pair, count in most_frequent])

    def _worst(self) -> Artifact:
        metric = UNITS["characters"]
        rates = [
            (metric.of_sums(list(metric.count(hypothesis, reference)), 1), -len(reference), index)
            for index, (reference, hypothesis) in self._transcripts.texts.items()
            if reference != hypothesis
        ]
        worst = sorted(rates, key=lambda item: (-item[0], item[1], item[2]))[:MAX_SHOWN]
        rows: List[List[Any]] = [
            [str(self._source.location(index)), rate, *self._transcripts.texts[index]] for rate, _, index in worst
        ]
        return Table("mistakes", ["sample", "character_error_rate", "said", "found"], rows)
