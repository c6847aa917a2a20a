"""What `eval` shows of transcripts: rates, the most frequent errors, and the worst utterances."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

import numpy as np

from mxtrain.metric.host import HostPredictions
from mxtrain.metric.transcripts import CHARACTERS, WORDS, CollectedEdits, error_rate
from mxtrain.task.collecting_report import CollectingReport
from mxtrain.types import Artifact, Table

if TYPE_CHECKING:
    from mxtrain.dataset.signature import Signature
    from mxtrain.dataset.speech.source import TranscribedSource
    from mxtrain.engine.predictions import Decode

MAX_SHOWN = 20


class _Found(CollectedEdits):
    """The edits, and what was found for each utterance."""

    def reset(self) -> None:
        super().reset()
        self.text_of: Dict[int, Tuple[str, str]] = {}

    def update(
        self, index_B: np.ndarray, prediction_B: HostPredictions, target_B: np.ndarray, meta_B: Optional[np.ndarray]
    ) -> None:
        super().update(index_B, prediction_B, target_B, meta_B)
        assert meta_B is not None
        for index, found_T, transcript in zip(index_B, prediction_B, meta_B):
            self.text_of[int(index)] = transcript.text, transcript.alphabet.decode(found_T)


class SpeechReport(CollectingReport):
    """Error rates by kind of error, the words (or characters, where utterances are one word) that are most often wrong,
    and the utterances with the highest rates.

    Args:
        decode: predictions from outputs.
        signature: of the network.
        source: of the utterances.
    """

    def __init__(self, decode: Decode, signature: Signature, source: TranscribedSource):
        self._found = _Found()
        super().__init__(decode, self._found)
        self._source = source

    def artifacts(self, title: str) -> List[Artifact]:
        self.finish()
        return [self._rates(), self._frequent(), self._worst()]

    def _rates(self) -> Artifact:
        count_8 = self._found.counts()
        rows: List[List[Any]] = []
        for name, begin in (("words", WORDS), ("characters", CHARACTERS)):
            substituted, deleted, inserted, right = count_8[begin : begin + 4].astype(int).tolist()
            rate = error_rate(count_8, begin)
            rows.append([name, rate, substituted, deleted, inserted, substituted + deleted + right])
        return Table("errors", ["unit", "rate", "substituted", "deleted", "inserted", "said"], rows)

    def _frequent(self) -> Artifact:
        """The most frequent errors; "" stands for nothing said or nothing found."""
        import jiwer

        by_words = any(" " in said for said, _ in self._found.text_of.values())
        process = jiwer.process_words if by_words else jiwer.process_characters
        counted: Counter = Counter()
        for said, found in self._found.text_of.values():
            if said == found:
                continue
            result = process(said, found)
            said_units, found_units = result.references[0], result.hypotheses[0]
            for chunk in result.alignments[0]:
                if chunk.type != "equal":
                    pair = (said_units[chunk.ref_start_idx : chunk.ref_end_idx],
                            found_units[chunk.hyp_start_idx : chunk.hyp_end_idx])  # fmt: skip
                    counted[tuple((" " if by_words else "").join(units) for units in pair)] += 1
        # Of equal counts in the order of the text: not of who came first.
        rows = sorted(([*pair, count] for pair, count in counted.items()), key=lambda row: (-row[2], row[:2]))
        return Table("frequent_errors", ["said", "found", "count"], rows[:MAX_SHOWN])

    def _worst(self) -> Artifact:
        rows_NW = self._found.samples()
        rates = [(error_rate(row[2:], CHARACTERS), -row[2:].sum(), int(row[0])) for row in rows_NW]
        worst = sorted((rate for rate in rates if rate[0] > 0), key=lambda one: (-one[0], one[1], one[2]))[:MAX_SHOWN]
        rows = [[str(self._source.place(index)), rate, *self._found.text_of[index]] for rate, _, index in worst]
        return Table("mistakes", ["sample", "character_error_rate", "said", "found"], rows)
