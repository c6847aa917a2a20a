"""Baselines for recommendation: popularity, item neighbours and mean ratings.

Legend: N samples, P known pairs of user and item, B users at a time, I items.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, Iterator, Tuple

import numpy as np

from mxtrain.recommendation.ranking import ranks_in

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

    from mxtrain.recommendation.source import Interactions
    from mxtrain.recommendation.user_items import UserItems

MOST_ITEMS = 30_000
"""Of which neighbours are counted: each pair of items that a user has is one number."""
_USERS_AT_ONCE = 1024
_ITEM_DAMPING, _USER_DAMPING = 25.0, 10.0

Scores = Callable[[np.ndarray], np.ndarray]
"""Users (B,) to the scores of all items (B, I)."""


def popularity(known: UserItems) -> Scores:
    """Returns the number of users of each item."""
    count_I = np.bincount(known.item_P, minlength=known.num_items).astype(np.float64)
    return lambda user_B: np.repeat(count_I[None], len(user_B), axis=0)


def item_neighbours(known: UserItems) -> Scores:
    """Returns the sum over the items that a user has of their cosine with each item, which is how many users have both,
    over the root of the product of how many have each. The item itself counts 0.

    Source: Sarwar et al., "Item-based Collaborative Filtering Recommendation Algorithms" (2001), section 3.1.1.
    """
    from scipy.sparse import diags

    matrix = _matrix(known)
    count_I = np.asarray(matrix.sum(axis=0)).ravel()
    scaled = matrix @ diags(1 / np.sqrt(np.maximum(count_I, 1)))
    cosine = (scaled.T @ scaled).tolil()
    cosine.setdiag(0)
    cosine = cosine.tocsr()
    return lambda user_B: np.asarray((matrix[user_B] @ cosine).todense())


def _matrix(known: UserItems) -> csr_matrix:
    from scipy.sparse import csr_matrix

    ones = np.ones(len(known), np.float64)
    return csr_matrix((ones, (known.user_P, known.item_P)), shape=(known.num_users, known.num_items))


def ranks_of(scores: Scores, source: Interactions, candidate_NC: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    """Returns the rank of each sample's item among its candidates, (N,), and among all that the user has in no split,
    (N,); ties as in `metric.ranking`.

    Args:
        scores: of all items.
        source: of the samples.
        candidate_NC: the item of each, then others.
    """
    found = [_ranks(scores, source, rows, candidate_NC) for rows in _blocks(len(source))]
    sampled, among_all = zip(*found)
    return np.concatenate(sampled), np.concatenate(among_all)


def _ranks(
    scores: Scores, source: Interactions, rows: np.ndarray, candidate_NC: np.ndarray
) -> Tuple[np.ndarray, np.ndarray]:  # fmt: skip
    score_BI = scores(source.user_N[rows]).astype(np.float64)
    for row, (user, item) in enumerate(zip(source.user_N[rows].tolist(), source.item_N[rows].tolist())):
        score_BI[row, source.seen.without(user, item)] = -np.inf
    return sampled_ranks(score_BI, candidate_NC[rows]), ranks_in(score_BI, source.item_N[rows])


def sampled_ranks(score_BI: np.ndarray, candidate_BC: np.ndarray) -> np.ndarray:
    """Returns the number of candidates that are not below the first, (B,)."""
    score_BC = np.take_along_axis(score_BI, candidate_BC.astype(np.int64), axis=1)
    return ranks_in(score_BC, np.zeros(len(score_BC), np.int64))


def _blocks(count: int) -> Iterator[np.ndarray]:
    for begin in range(0, count, _USERS_AT_ONCE):
        yield np.arange(begin, min(begin + _USERS_AT_ONCE, count))


def mean_ratings(known_by: Interactions, source: Interactions) -> Tuple[np.ndarray, np.ndarray]:
    """For each sample of `source` the mean of the training ratings, and that plus how far the item's and then the
    user's ratings are from it, damped as if 25 and 10 further ratings were as expected.

    Source: Koren, https://doi.org/10.1145/1401890.1401944 (2008), section 2.1, as in "Factor in the Neighbors" (2010).
    """
    known, rating_P = known_by.known, known_by.known_rating_P.astype(np.float64)
    mean = rating_P.mean()

    def damped(id_P: np.ndarray, left_P: np.ndarray, size: int, damping: float) -> np.ndarray:
        sums, counts = np.bincount(id_P, weights=left_P, minlength=size), np.bincount(id_P, minlength=size)
        found: np.ndarray = sums / (counts + damping)
        return found

    item_I = damped(known.item_P, rating_P - mean, known.num_items, _ITEM_DAMPING)
    left_P = rating_P - mean - item_I[known.item_P]
    user_U = damped(known.user_P, left_P, known.num_users, _USER_DAMPING)
    return np.full(len(source), mean), mean + item_I[source.item_N] + user_U[source.user_N]
