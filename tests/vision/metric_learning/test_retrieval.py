"""Retrieval metrics, against scikit-learn."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.metrics import average_precision_score
from sklearn.neighbors import NearestNeighbors

from mxtrain.vision.metric_learning import metrics
from mxtrain.vision.metric_learning.metrics import Embeddings, RecallAtK, RetrievalMap


@pytest.fixture
def embedded() -> tuple[np.ndarray, np.ndarray]:
    """Embeddings of 5 identities with 8 samples each, of one with a single one, and of 2 unknown ones."""
    rng = np.random.default_rng(1)
    label_N = np.array([*np.repeat(np.arange(5), 8), 5, -1, -1])
    centre_KD = rng.normal(size=(7, 6))
    embedding_ND = centre_KD[label_N] + 1.2 * rng.normal(size=(len(label_N), 6))
    return (embedding_ND / np.linalg.norm(embedding_ND, axis=1, keepdims=True)).astype(np.float32), label_N


@pytest.mark.parametrize("k", [1, 2, 4])
@pytest.mark.parametrize("at_a_time", [7, 256])
def test_recall_equals_nearest_neighbours(
    embedded: tuple[np.ndarray, np.ndarray], k: int, at_a_time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "QUERIES_AT_A_TIME", at_a_time)
    embedding_ND, label_N = (array[:-2] for array in embedded)
    _, nearest = NearestNeighbors(n_neighbors=k + 1, metric="cosine", algorithm="brute").fit(embedding_ND).kneighbors()
    found = [(label_N[row[:k]] == label_N[query]).any() for query, row in enumerate(nearest) if label_N[query] != 5]
    value = RecallAtK(k=k).of_embeddings(*embedded)
    assert value == pytest.approx(np.mean(found)) and 0.3 < value <= 1


def test_mean_average_precision_equals_scikit_learn(embedded: tuple[np.ndarray, np.ndarray]) -> None:
    embedding_ND, label_N = (array[:-2] for array in embedded)
    similarity_NN = embedding_ND @ embedding_ND.T
    expected = [
        average_precision_score(np.delete(label_N == label_N[query], query), np.delete(similarity_NN[query], query))
        for query in range(len(label_N))
        if label_N[query] != 5
    ]
    collected = Embeddings()
    collected.update(np.arange(len(embedded[1])), *embedded, None)
    value = RetrievalMap().compute(collected)
    assert value == pytest.approx(np.mean(expected), abs=1e-9) and 0.3 < value < 1


def test_average_precision_with_ties() -> None:
    similarity_N, is_same_N = np.array([0.9, 0.5, 0.5, 0.5, 0.1]), np.array([False, True, False, True, True])
    assert metrics.average_precision(similarity_N, is_same_N) == pytest.approx(
        average_precision_score(is_same_N, similarity_N)
    )


def test_ties_count_against_a_query() -> None:
    same = np.ones((4, 2), np.float32) / np.sqrt(2, dtype=np.float32)
    label_N = np.array([0, 0, 1, 1])
    assert metrics.recall_at(same, label_N, 1) == 0 and metrics.recall_at(same, label_N, 3) == 1


def test_embeddings_that_are_no_numbers_are_never_found() -> None:
    embedding_ND = np.full((4, 2), np.nan, np.float32)
    assert metrics.recall_at(embedding_ND, np.array([0, 0, 1, 1]), 1) == 0


def test_without_queries_nothing_is_defined() -> None:
    for label_N in ([0, 1, 2], [-1, -1, -1], [-2, -2, -3]):
        embedding_ND = np.eye(3, dtype=np.float32)
        assert math.isnan(RecallAtK().of_embeddings(embedding_ND, np.array(label_N)))
        assert math.isnan(RetrievalMap().of_embeddings(embedding_ND, np.array(label_N)))
