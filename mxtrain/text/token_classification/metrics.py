"""F1 of entities as seqeval (and conlleval) computes it.

A sentence longer than `dataset.max_length` becomes several samples. Collected rows begin with the number of the
sentence, and the metric joins them, so no word is left out.

Legend: W words of all sentences, B batch, T tokens of a sample, K tags.
"""

from __future__ import annotations

import math
from typing import ClassVar, Dict, Literal, NamedTuple, Optional, Tuple, Type

import numpy as np

from mxtrain.metric.host import Collected, HostMetric, HostPredictions
from mxtrain.metric.spec import ratio
from mxtrain.text.kinds import TokenTags
from mxtrain.text.token_classification.tags import count_entities
from mxtrain.types.kinds import Takes


class WordTags(Collected):
    """Collects a row for each word: its sentence, its true and its predicted tag."""

    width: ClassVar[int] = 3

    def update(
        self, index_B: np.ndarray, prediction_B: HostPredictions, target_B: np.ndarray, meta_B: Optional[np.ndarray]
    ) -> None:
        """Adds a batch.

        Args:
            index_B: indices of the samples.
            prediction_B: predicted tags (B, T).
            target_B: true tags (B, T); -1 if no word begins at a token.
            meta_B: sentence of each sample, followed by the code of each tag.
        """
        assert meta_B is not None
        for index, predicted_T, true_T, meta in zip(index_B, prediction_B, target_B, meta_B):
            is_word_T = true_T >= 0
            true_W, predicted_W = (
                self._encode_tags(tag_T[is_word_T].astype(np.int64), meta[1:]) for tag_T in (true_T, predicted_T)
            )
            # The sentence's number comes first: a long sentence is several samples, and F1 is one of whole sentences.
            self.add(int(index), np.stack([np.full(len(true_W), meta[0]), true_W, predicted_W], axis=1))

    def _encode_tags(self, tag_W: np.ndarray, code_K: np.ndarray) -> np.ndarray:
        """Returns the representation of tags that is kept."""
        return tag_W


class CollectedTags(WordTags):
    """Collects the codes of tags, see `TagCodes`, and counts the entities that they form."""

    def reset(self) -> None:
        super().reset()
        self._counts: Optional[Dict[int, Tuple[int, int, int]]] = None

    def _encode_tags(self, tag_W: np.ndarray, code_K: np.ndarray) -> np.ndarray:
        return code_K[tag_W]

    def merge(self, rows: np.ndarray) -> None:
        super().merge(rows)
        self._counts = None

    def counts(self) -> Dict[int, Tuple[int, int, int]]:
        """Returns (true positives, predicted entities, true entities) by type number."""
        if self._counts is None:
            # Without the indices of sample and row: sentence, code of the true tag, code of the predicted tag.
            rows = self.samples()[:, 2:].astype(np.int64)
            self._counts = count_entities(rows[:, 1], rows[:, 2], rows[:, 0])
        return self._counts


class Scores(NamedTuple):
    """Precision and F1, 0 if they are not defined, as in seqeval; and recall, NaN without true entities."""

    precision: float
    recall: float
    f1: float

    @classmethod
    def from_counts(cls, hits: int, predicted: int, true: int) -> Scores:
        """Returns the scores of counts."""
        precision = hits / predicted if predicted else 0.0
        return cls(precision, ratio(hits, true), 2 * hits / (predicted + true) if hits else 0.0)


class EntityF1(HostMetric):
    """F1 of entities as in seqeval's default mode: an entity is right if its type, its first and its last word are.

    The value is NaN if the sentences contain no entity, for which seqeval returns 0.
    """

    direction: ClassVar[Literal["max", "min"]] = "max"
    takes: ClassVar[Takes] = Takes(TokenTags)
    collects: ClassVar[Type[Collected]] = CollectedTags
    of_single_samples: ClassVar[bool] = True

    average: Literal["micro", "macro", "weighted"] = "micro"
    """micro: over all entities; macro: the mean over types; weighted: the mean over types, weighted by their numbers of
    true entities."""

    @property
    def signature(self) -> str:
        return f"seqeval,mode=default,average={self.average}"

    def compute(self, collected: Collected) -> float:
        assert isinstance(collected, CollectedTags)
        counts = list(collected.counts().values())
        if not any(true for _, _, true in counts):
            return math.nan
        if self.average == "micro":
            return Scores.from_counts(*(sum(column) for column in zip(*counts))).f1
        weights = [true if self.average == "weighted" else 1 for _, _, true in counts]
        f1_of_types = [Scores.from_counts(*type_counts).f1 for type_counts in counts]
        return float(np.dot(weights, f1_of_types) / sum(weights))
