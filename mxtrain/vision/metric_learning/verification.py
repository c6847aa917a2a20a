"""Verification: whether two images show the same identity, decided by a threshold on the distance of their embeddings.

Legend: P pairs, N samples, D embedding size.
"""

from __future__ import annotations

import math
from typing import Iterator, List, Tuple

import numpy as np

NUM_FOLDS = 10
THRESHOLDS = np.arange(0, 4, 0.01)
"""Candidates of the threshold: squared distances of unit vectors, as in insightface."""
MAX_BALANCED = 6000
"""Maximum number of pairs that are formed from samples with identities: the number of pairs of LFW."""
MAX_PAIRS = 5_000_000
"""Maximum number of pairs for the true accept rate, which otherwise uses all pairs of samples."""
FIRST_PAIR = -2
"""Label of the images of the first pair, see `pair_label`."""


def pair_label(pair: int, is_same: bool) -> int:
    """Returns the label of both images of a pair in data without identities: -2 - 2 * pair, one less for two
    identities. Labels of identities are 0 or more, and -1 is an unknown identity."""
    return FIRST_PAIR - 2 * pair - (not is_same)


def has_pairs(label_N: np.ndarray) -> bool:
    """Returns True if labels are those of given pairs."""
    return bool((label_N <= FIRST_PAIR).any())


def given_pairs(label_N: np.ndarray) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the given pairs: indices of both images, and whether they show the same identity, (P,) each, in the order
    of the pairs. Pairs of which an image is missing, e.g. beyond a limit of batches, are left out."""
    order_N = np.argsort(-label_N, kind="stable")
    order_N = order_N[label_N[order_N] <= FIRST_PAIR]
    sorted_N = label_N[order_N]
    is_first_N = np.zeros(len(sorted_N), bool)
    is_first_N[:-1] = sorted_N[:-1] == sorted_N[1:]
    first_P = np.flatnonzero(is_first_N)
    # Labels of pairs are even for one identity and odd for two, see `pair_label`.
    return order_N[first_P], order_N[first_P + 1], sorted_N[first_P] % 2 == 0


def balanced_pairs(label_N: np.ndarray, max_pairs: int = MAX_BALANCED) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Forms pairs of samples with identities; returns the same arrays as `given_pairs`.

    Pairs of one identity and of two identities alternate, so that each fold contains as many of both. The pairs depend
    on the labels only.

    Args:
        label_N: identity of each sample; negative for unknown ones.
        max_pairs: maximum number of pairs.
    """
    random = np.random.RandomState(0)
    same: List[Tuple[int, int]] = []
    members = [np.flatnonzero(label_N == label) for label in np.unique(label_N[label_N >= 0])]
    for step in range(1, max(map(len, members), default=0)):
        # Pairs of neighbouring images of all identities come first, then pairs at a distance of two, and so on.
        # Otherwise the list could consist of the pairs of one identity with many images.
        same += [pair for index_M in members for pair in zip(index_M[:-step].tolist(), index_M[step:].tolist())]
        if len(same) >= max_pairs // 2:
            break
    known = np.flatnonzero(label_N >= 0)
    if not same or len(members) < 2:
        return (np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, bool))
    chosen = random.permutation(len(same))[: max_pairs // 2]
    first, second = np.array(same, np.int64)[chosen].T
    other_first = random.choice(known, len(chosen))
    other_second = random.choice(known, len(chosen))
    while (equal := label_N[other_first] == label_N[other_second]).any():
        other_second[equal] = random.choice(known, int(equal.sum()))
    pairs = [np.stack(columns, axis=1).ravel() for columns in ((first, other_first), (second, other_second))]
    return pairs[0], pairs[1], np.tile([True, False], len(chosen))


def pairs_of(label_N: np.ndarray) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the given pairs if there are any, otherwise pairs made of samples with identities."""
    return given_pairs(label_N) if has_pairs(label_N) else balanced_pairs(label_N)


def fold_slices(count: int, num_folds: int = NUM_FOLDS) -> Iterator[slice]:
    """Yields consecutive parts of `count` pairs, the first ones larger by one where they cannot be equal."""
    sizes = np.full(num_folds, count // num_folds)
    sizes[: count % num_folds] += 1
    ends = np.cumsum(sizes)
    yield from (slice(int(end - size), int(end)) for size, end in zip(sizes, ends))


def fold_accuracy(distance_P: np.ndarray, is_same_P: np.ndarray) -> float:
    """Returns the mean accuracy over ten folds: each is measured with the threshold that is best on the other nine.

    A pair is of one identity if its distance is below the threshold. Of equally good thresholds the smallest is taken.
    NaN if there are fewer than ten pairs. Source: Huang et al., "Labeled Faces in the Wild" (2007), and
    src/eval/verification.py of insightface.

    Args:
        distance_P: squared distances of the embeddings.
        is_same_P: True for pairs of one identity.
    """
    if len(distance_P) < NUM_FOLDS:
        return math.nan
    is_right_TP = (distance_P < THRESHOLDS[:, None]) == is_same_P
    total_T, accuracies = is_right_TP.sum(axis=1), []
    for fold in fold_slices(len(distance_P)):
        in_fold_T = is_right_TP[:, fold].sum(axis=1)
        best = int((total_T - in_fold_T).argmax())
        accuracies.append(in_fold_T[best] / (fold.stop - fold.start))
    return float(np.mean(accuracies))


def true_accept_rate(similarity_P: np.ndarray, is_same_P: np.ndarray, far: float) -> float:
    """Returns the share of pairs of one identity that are accepted, at the lowest threshold that accepts at most the
    share `far` of pairs of two identities. NaN if pairs of either kind are missing."""
    same_P, other_P = similarity_P[is_same_P], similarity_P[~is_same_P]
    if not len(same_P) or not len(other_P):
        return math.nan
    # Without the small summand, a product such as 0.001 * 3000 could be 2.9999999999999996 and be rounded down to 2.
    accepted = min(math.floor(far * len(other_P) + 1e-9), len(other_P) - 1)
    # Accepted are the pairs above the most similar rejected pair of two identities. Pairs equal to it are rejected,
    # too.
    next_best = len(other_P) - 1 - accepted
    return float((same_P > np.partition(other_P, next_best)[next_best]).mean())


def all_pairs(label_N: np.ndarray, max_pairs: int = MAX_PAIRS) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns all pairs of samples with identities, as `given_pairs`. If there are more than `max_pairs`, only evenly
    spaced samples are used."""
    known = np.flatnonzero(label_N >= 0)
    # The largest number of samples with at most `max_pairs` pairs. Evenly spaced, since samples may be sorted by
    # identity.
    most = int((1 + math.sqrt(1 + 8 * max_pairs)) / 2)
    if len(known) > most:
        known = known[np.linspace(0, len(known) - 1, most).astype(np.int64)]
    first, second = np.triu_indices(len(known), 1)
    first, second = known[first], known[second]
    return first, second, label_N[first] == label_N[second]
