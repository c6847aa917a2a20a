"""Report of `eval` for tags: entities by type, confusion of tags, and the sentences with most errors.

Legend: W words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, List, Sequence

import numpy as np

from mxtrain.task.collecting_report import CollectingReport
from mxtrain.task.confusion import confusion_artifacts
from mxtrain.text.token_classification.metrics import Scores, WordTags
from mxtrain.text.token_classification.tags import TagCodes, count_entities, is_plain
from mxtrain.types import Artifact, Table, TextLines

if TYPE_CHECKING:
    from mxtrain.data.signature import Signature
    from mxtrain.engine.predictions import Decode
    from mxtrain.text.token_classification.tagged import TaggedSentences

MAX_SHOWN = 20


class TokenReport(CollectingReport):
    """Precision, recall and F1 of each type as seqeval computes them, and of each tag.

    Args:
        decode: predictions from outputs.
        signature: names the tags.
        source: source of the sentences.
    """

    def __init__(self, decode: Decode, signature: Signature, source: TaggedSentences):
        self._words = WordTags()
        super().__init__(decode, self._words)
        self._names, self._source = list(signature.class_names), source

    def artifacts(self, title: str) -> List[Artifact]:
        self.finish()
        rows = self._words.samples()[:, 2:].astype(np.int64)
        sentence_W, true_W, predicted_W = rows.T
        entities = [] if is_plain(self._names) else [self._entities(sentence_W, true_W, predicted_W)]
        return [
            *entities,
            *confusion_artifacts(true_W, predicted_W, self._names, title),
            self._worst(sentence_W, true_W, predicted_W),
        ]

    def _entities(self, sentence_W: np.ndarray, true_W: np.ndarray, predicted_W: np.ndarray) -> Artifact:
        codes = TagCodes(self._names)
        counts = count_entities(codes.code_K[true_W], codes.code_K[predicted_W], sentence_W)
        rows: List[Sequence] = [
            [codes.types[kind] or "-", *Scores.from_counts(*of_type), of_type[2]]
            for kind, of_type in sorted(counts.items())
        ]
        total = [sum(column) for column in zip(*counts.values())] or [0, 0, 0]
        return Table(
            "entities",
            ["type", "precision", "recall", "f1", "entities"],
            [*rows, ["all (micro)", *Scores.from_counts(*total), total[2]]],
        )

    def _worst(self, sentence_W: np.ndarray, true_W: np.ndarray, predicted_W: np.ndarray) -> Artifact:
        """Returns the sentences with most wrong words, each wrong one as word/true>predicted."""
        wrong = np.bincount(sentence_W[true_W != predicted_W], minlength=1)
        order = np.argsort(-wrong, kind="stable")[:MAX_SHOWN]
        lines = []
        for sentence in order[wrong[order] > 0].tolist():
            words = self._source.words.sentences[sentence]
            in_sentence_W = sentence_W == sentence
            tagged_words = zip(words, true_W[in_sentence_W].tolist(), predicted_W[in_sentence_W].tolist())
            lines.append(
                " ".join(
                    word if true == predicted else f"{word}/{self._names[true]}>{self._names[predicted]}"
                    for word, true, predicted in tagged_words
                )
            )
        return TextLines("mistakes", lines or ["No word has a wrong tag."])
