"""Metrics of embeddings: verification and retrieval. A split need not contain the identities of the training split.

Legend: N samples, P pairs, Q queries, D embedding size.
"""

from __future__ import annotations

import math
from typing import ClassVar, Iterator, Literal, Optional, Sequence, Tuple, Type

import numpy as np
import pydantic

from mxtrain.metric.host import Collected, HostMetric, HostPredictions
from mxtrain.types import OpenFraction, Positive
from mxtrain.types.kinds import Takes
from mxtrain.vision.kinds import Identity
from mxtrain.vision.metric_learning.verification import (
    all_pairs,
    fold_accuracy,
    given_pairs,
    has_pairs,
    pairs_of,
    true_accept_rate,
)

PAIRS_AT_A_TIME = 65_536
"""Pairs whose embeddings are copied at once."""
QUERIES_AT_A_TIME = 256


class Embeddings(Collected):
    """Collector of embeddings and labels: a row holds the label, then the embedding."""

    width: ClassVar[int] = 0

    def __init__(self, size: int = 0) -> None:
        self._size = size
        super().__init__()

    @classmethod
    def from_metrics(cls, metrics: Sequence[HostMetric]) -> Embeddings:
        return cls(max(metric.embedding_size for metric in metrics if isinstance(metric, EmbeddingMetric)))

    def update(
        self, index_B: np.ndarray, prediction_B: HostPredictions, target_B: np.ndarray, meta_B: Optional[np.ndarray]
    ) -> None:
        columns = [index_B[:, None], np.zeros((len(index_B), 1)), target_B[:, None], np.asarray(prediction_B)]
        self._parts.append(np.concatenate(columns, axis=1).astype(np.float64))

    def rows(self) -> np.ndarray:
        # A worker without samples sends no rows, but of the width of the others.
        return np.concatenate(self._parts) if self._parts else np.zeros((0, 3 + self._size))

    def arrays(self) -> Tuple[np.ndarray, np.ndarray]:
        """Returns the embeddings (N, D), float32, and the labels (N,), in the order of the samples."""
        rows = self.samples()  # index of the sample, number of the row, label, embedding
        return rows[:, 3:].astype(np.float32), rows[:, 2].astype(np.int64)


def ranked_queries(embedding_ND: np.ndarray, label_N: np.ndarray) -> Iterator[Tuple[np.ndarray, np.ndarray]]:
    """Yields, for each sample whose identity has other samples, the similarities to all other samples with identities,
    and whether they are of its identity.

    Args:
        embedding_ND: embeddings of length 1.
        label_N: identities; samples with labels below 0 are left out.
    """
    known = label_N >= 0
    embedding_ND, label_N = embedding_ND[known], label_N[known]
    for begin in range(0, len(label_N), QUERIES_AT_A_TIME):
        similarity_QN = embedding_ND[begin : begin + QUERIES_AT_A_TIME] @ embedding_ND.T
        for row, similarity_N in enumerate(similarity_QN):
            is_other_N = np.arange(len(label_N)) != begin + row
            is_same_N = label_N == label_N[begin + row]
            if (is_same_N & is_other_N).any():
                yield similarity_N[is_other_N], is_same_N[is_other_N]


def recall_at(embedding_ND: np.ndarray, label_N: np.ndarray, k: int) -> float:
    """Returns the share of queries with a sample of their identity among the `k` nearest; NaN without queries.

    Equal similarities count against the query. Source: Oh Song et al., arXiv 1511.06452.
    """
    hits = []
    for similarity_N, is_same_N in ranked_queries(embedding_ND, label_N):
        best = similarity_N[is_same_N].max()
        # Not `>=`: comparisons with NaN are False, and NaN must count against the query.
        hits.append(int((~(similarity_N[~is_same_N] < best)).sum()) < k)
    return float(np.mean(hits)) if hits else math.nan


def mean_average_precision(embedding_ND: np.ndarray, label_N: np.ndarray) -> float:
    """Returns the mean over queries of the average precision of the ranking of all other samples; NaN without queries.

    Samples of equal similarity have one rank, as in scikit-learn's `average_precision_score`.
    """
    precisions = [average_precision(*query) for query in ranked_queries(embedding_ND, label_N)]
    return float(np.mean(precisions)) if precisions else math.nan


def average_precision(similarity_N: np.ndarray, is_same_N: np.ndarray) -> float:
    """Returns the sum over thresholds of (recall - previous recall) * precision."""
    order_N = np.argsort(-similarity_N, kind="stable")
    hit_N, sorted_N = np.cumsum(is_same_N[order_N]), similarity_N[order_N]
    (last,) = np.nonzero(np.append(sorted_N[1:] != sorted_N[:-1], True))
    hits = hit_N[last]
    return float((np.diff(hits, prepend=0) * hits / (last + 1)).sum() / hits[-1])


class EmbeddingMetric(HostMetric):
    """Base class of metrics of embeddings."""

    direction: ClassVar[Literal["max", "min"]] = "max"
    collects: ClassVar[Type[Collected]] = Embeddings
    takes: ClassVar[Takes] = Takes(Identity)

    _embedding_size: int = pydantic.PrivateAttr(default=0)

    @property
    def embedding_size(self) -> int:
        """Returns D; 0 if it is not known yet."""
        return self._embedding_size

    def for_size(self, embedding_size: int) -> EmbeddingMetric:
        """Returns the metric of embeddings of D numbers."""
        copy = self.model_copy()
        copy._embedding_size = embedding_size
        return copy

    def compute(self, collected: Collected) -> float:
        assert isinstance(collected, Embeddings)
        return self.of_embeddings(*collected.arrays())

    def of_embeddings(self, embedding_ND: np.ndarray, label_N: np.ndarray) -> float:
        """Computes the metric.

        Args:
            embedding_ND: embeddings of length 1.
            label_N: identities from 0, or labels of given pairs, see `pair_label`.
        """
        raise NotImplementedError


class VerificationAccuracy(EmbeddingMetric):
    """Accuracy of deciding whether two images show the same identity, the mean of ten folds, from 0 to 1.

    Pairs are those of the data, or otherwise up to 6,000 of the split's own images, half of them of one identity.
    """

    def of_embeddings(self, embedding_ND: np.ndarray, label_N: np.ndarray) -> float:
        first, second, is_same_P = pairs_of(label_N)
        return fold_accuracy(np.square(embedding_ND[first] - embedding_ND[second]).sum(axis=1), is_same_P)


class TrueAcceptRate(EmbeddingMetric):
    """Share of pairs of one identity that are accepted, at the threshold that accepts at most the share `far` of the
    pairs of two identities.

    Pairs are those of the data, or otherwise all pairs of the split's images (of at most 3,162 images, evenly chosen).
    """

    far: OpenFraction = 0.001
    """False accept rate: largest share of pairs of two identities that are accepted."""

    @property
    def signature(self) -> str:
        return f"far={self.far:g}"

    def of_embeddings(self, embedding_ND: np.ndarray, label_N: np.ndarray) -> float:
        first, second, is_same_P = given_pairs(label_N) if has_pairs(label_N) else all_pairs(label_N)
        similarity_P = np.empty(len(first), np.float32)
        for begin in range(0, len(first), PAIRS_AT_A_TIME):
            part = slice(begin, begin + PAIRS_AT_A_TIME)
            similarity_P[part] = (embedding_ND[first[part]] * embedding_ND[second[part]]).sum(axis=1)
        return true_accept_rate(similarity_P, is_same_P, self.far)


class RecallAtK(EmbeddingMetric):
    """Share of samples with another one of their identity among the `k` nearest of the split, from 0 to 1."""

    k: Positive = 1
    """Number of nearest samples."""

    @property
    def signature(self) -> str:
        return f"k={self.k},ties=worst"

    def of_embeddings(self, embedding_ND: np.ndarray, label_N: np.ndarray) -> float:
        return recall_at(embedding_ND, label_N, self.k)


class RetrievalMap(EmbeddingMetric):
    """Mean average precision of the samples of the same identity among all others of the split, from 0 to 1."""

    def of_embeddings(self, embedding_ND: np.ndarray, label_N: np.ndarray) -> float:
        return mean_average_precision(embedding_ND, label_N)
