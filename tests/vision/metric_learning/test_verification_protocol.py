"""Verification of pairs: labels, folds and rates, against scikit-learn and a plain implementation of LFW's protocol."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.metrics import roc_curve
from sklearn.model_selection import KFold

from mxtrain.vision.metric_learning.metrics import Embeddings, TrueAcceptRate, VerificationAccuracy
from mxtrain.vision.metric_learning.verification import (
    all_pairs,
    balanced_pairs,
    fold_accuracy,
    given_pairs,
    has_pairs,
    pair_label,
    pairs_of,
    true_accept_rate,
)


def unit_rows(array: np.ndarray) -> np.ndarray:
    return (array / np.linalg.norm(array, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture
def noisy_pairs() -> tuple[np.ndarray, np.ndarray]:
    """Squared distances of 203 pairs, and whether they are of one identity."""
    rng = np.random.default_rng(3)
    is_same_P = rng.random(203) < 0.5
    return np.clip(np.where(is_same_P, 0.9, 1.5) + rng.normal(0, 0.3, 203), 0, 4), is_same_P


def plain_fold_accuracy(distance_P: np.ndarray, is_same_P: np.ndarray) -> float:
    """The protocol in loops: folds of scikit-learn, and a threshold chosen on nine of them."""
    accuracies = []
    for rest, fold in KFold(n_splits=10, shuffle=False).split(distance_P):
        best, best_accuracy = 0.0, -1.0
        for threshold in np.arange(0, 4, 0.01):
            accuracy = np.mean((distance_P[rest] < threshold) == is_same_P[rest])
            if accuracy > best_accuracy:
                best, best_accuracy = threshold, accuracy
        accuracies.append(np.mean((distance_P[fold] < best) == is_same_P[fold]))
    return float(np.mean(accuracies))


def test_fold_accuracy_equals_plain_protocol(noisy_pairs: tuple[np.ndarray, np.ndarray]) -> None:
    value = fold_accuracy(*noisy_pairs)
    assert value == pytest.approx(plain_fold_accuracy(*noisy_pairs), abs=1e-12)
    assert 0.7 < value < 0.95


def test_fold_accuracy_needs_ten_pairs() -> None:
    assert math.isnan(fold_accuracy(np.zeros(9), np.ones(9, bool)))
    assert fold_accuracy(np.zeros(10), np.ones(10, bool)) == 1.0


def test_threshold_is_not_chosen_on_the_measured_fold() -> None:
    """Each fold alone would be separable by a threshold of its own."""
    distance_P = np.array([0.5, 1.0] * 9 + [2.0, 3.0])
    is_same_P = np.array([True, False] * 10)
    assert fold_accuracy(distance_P, is_same_P) == pytest.approx(0.95)


@pytest.mark.parametrize("far", [0.0, 0.001, 0.05, 0.1, 0.5])
def test_true_accept_rate_equals_roc_curve(noisy_pairs: tuple[np.ndarray, np.ndarray], far: float) -> None:
    distance_P, is_same_P = noisy_pairs
    similarity_P = np.round(1 - distance_P / 2, 2)  # with ties
    false_rate, true_rate, _ = roc_curve(is_same_P, similarity_P, drop_intermediate=False)
    assert true_accept_rate(similarity_P, is_same_P, far) == pytest.approx(true_rate[false_rate <= far].max())


def test_rate_of_29_percent_of_100_accepts_29() -> None:
    """0.29 * 100 is 28.999999999999996."""
    similarity_P = np.concatenate([np.arange(100) / 100, [0.705, 0.715]])
    is_same_P = np.arange(102) >= 100
    assert true_accept_rate(similarity_P, is_same_P, 0.29) == 1.0
    assert true_accept_rate(similarity_P, is_same_P, 0.28) == 0.5


def test_true_accept_rate_without_pairs_of_either_kind() -> None:
    assert math.isnan(true_accept_rate(np.ones(3), np.ones(3, bool), 0.1))
    assert math.isnan(true_accept_rate(np.ones(3), np.zeros(3, bool), 0.1))


def test_labels_of_given_pairs() -> None:
    flags = [True, False, False, True]
    labels = [pair_label(pair, same) for pair, same in enumerate(flags)]
    assert len(set(labels)) == 4 and max(labels) == -2 and has_pairs(np.array(labels))
    first, second, is_same_P = given_pairs(np.repeat(labels, 2))
    assert first.tolist() == [0, 2, 4, 6] and second.tolist() == [1, 3, 5, 7] and is_same_P.tolist() == flags


def test_pair_with_a_missing_image_is_left_out() -> None:
    labels = np.repeat([pair_label(0, True), pair_label(1, True)], 2)[:3]
    first, second, _ = given_pairs(labels)
    assert first.tolist() == [0] and second.tolist() == [1]


def test_balanced_pairs_alternate() -> None:
    label_N = np.repeat(np.arange(7), 9)
    first, second, is_same_P = balanced_pairs(label_N)
    assert len(first) == 2 * 7 * 9 * 8 // 2
    assert is_same_P.tolist() == [True, False] * (len(first) // 2)
    assert ((label_N[first] == label_N[second]) == is_same_P).all() and (first != second).all()
    same = {tuple(sorted(pair)) for pair in zip(first[is_same_P].tolist(), second[is_same_P].tolist())}
    assert len(same) == len(first) // 2
    assert [array.tolist() for array in balanced_pairs(label_N)] == [
        array.tolist() for array in (first, second, is_same_P)
    ]
    assert len(balanced_pairs(label_N, 20)[0]) == 20


def test_unknown_identities_are_in_no_pair() -> None:
    label_N = np.array([0, 0, -1, 1, -1])
    first, second, _ = balanced_pairs(label_N)
    assert not {2, 4} & {*first.tolist(), *second.tolist()}
    assert len(all_pairs(label_N)[0]) == 3


@pytest.mark.parametrize("labels", [[], [0, 0], [0, 1], [-1, -1]])
def test_no_pairs_of_one_identity_or_of_two(labels: list[int]) -> None:
    first, second, is_same_P = pairs_of(np.array(labels, np.int64))
    assert len(first) == len(second) == len(is_same_P) == 0


def test_all_pairs_have_a_limit() -> None:
    label_N = np.repeat(np.arange(10), 10)
    assert len(all_pairs(label_N)[0]) == 100 * 99 // 2
    first, second, is_same_P = all_pairs(label_N, 190)
    assert len(first) == 190 and len(np.unique(label_N[first])) > 8
    assert ((label_N[first] == label_N[second]) == is_same_P).all()


def collect(embedding_ND: np.ndarray, label_N: np.ndarray) -> Embeddings:
    collected = Embeddings()
    order = np.random.default_rng(0).permutation(len(label_N))
    for part in np.array_split(order, 3):
        collected.update(part, embedding_ND[part], label_N[part], None)
    return collected


def test_metrics_of_given_pairs() -> None:
    rng = np.random.default_rng(5)
    is_same_P = rng.random(60) < 0.5
    first = unit_rows(rng.normal(size=(60, 8)))
    second = unit_rows(np.where(is_same_P[:, None], first + 0.4 * rng.normal(size=(60, 8)), rng.normal(size=(60, 8))))
    embedding_ND = np.stack([first, second], axis=1).reshape(120, 8)
    label_N = np.repeat([pair_label(pair, bool(same)) for pair, same in enumerate(is_same_P)], 2)
    collected = collect(embedding_ND, label_N)
    distance_P = np.square(first - second).sum(axis=1)
    assert VerificationAccuracy().compute(collected) == pytest.approx(plain_fold_accuracy(distance_P, is_same_P))
    false_rate, true_rate, _ = roc_curve(is_same_P, (first * second).sum(axis=1), drop_intermediate=False)
    expected = true_rate[false_rate <= 0.1].max()
    assert TrueAcceptRate(far=0.1).compute(collected) == pytest.approx(expected)
    assert 0 < expected < 1


def test_workers_without_samples_send_rows_of_the_same_width() -> None:
    metrics = [VerificationAccuracy().for_size(8), TrueAcceptRate().for_size(8)]
    empty, full = Embeddings.from_metrics(metrics), collect(np.zeros((4, 8)), np.zeros(4))
    assert empty.rows().shape == (0, 11) and full.rows().shape == (4, 11)
