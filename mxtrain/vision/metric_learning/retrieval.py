"""Retrieval: each sample looks for the others of its identity by the cosine of embeddings.

Legend: N samples, Q queries, D embedding size.
"""

from __future__ import annotations

import math
from typing import Iterator, Tuple

import numpy as np

QUERIES_AT_A_TIME = 256


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
