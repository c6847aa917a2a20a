"""Baselines for recommendation: popularity, item neighbours and mean ratings.

Legend: N samples, P training pairs of user and item, B users at a time, I items.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, Iterator, Tuple

import numpy as np

from mxtrain.recommendation.ranking import ranks_in

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

    from mxtrain.recommendation.source import Interactions
    from mxtrain.recommendation.user_items import UserItems

MAX_ITEMS = 30_000
"""Maximum number of items for which neighbours are counted, because this needs a number per pair of items."""
_USERS_AT_ONCE = 1024
_ITEM_DAMPING, _USER_DAMPING = 25.0, 10.0

Scores = Callable[[np.ndarray], np.ndarray]
"""Function of users (B,) that returns the scores of all items (B, I)."""


def popularity(train_items: UserItems) -> Scores:
    """Returns a function that scores items by their number of users."""
    count_I = np.bincount(train_items.item_P, minlength=train_items.num_items).astype(np.float64)
    return lambda user_B: np.repeat(count_I[None], len(user_B), axis=0)


def item_neighbours(train_items: UserItems) -> Scores:
    """Returns a function that scores an item by its cosine similarities with the items of the user, summed.

    The cosine of two items is the number of users of both, divided by the root of the product of the numbers of users
    of each. The similarity of an item with itself is 0.

    Source: Sarwar et al., "Item-based Collaborative Filtering Recommendation Algorithms" (2001), section 3.1.1.
    """
    from scipy.sparse import diags

    matrix = _matrix(train_items)
    count_I = np.asarray(matrix.sum(axis=0)).ravel()
    # Items that nobody has in the training split keep similarities of 0.
    scaled = matrix @ diags(1 / np.sqrt(np.maximum(count_I, 1)))
    # In the CSR format, setting the diagonal would rebuild the whole matrix.
    cosine = (scaled.T @ scaled).tolil()
    cosine.setdiag(0)
    cosine = cosine.tocsr()
    return lambda user_B: np.asarray((matrix[user_B] @ cosine).todense())


def _matrix(train_items: UserItems) -> csr_matrix:
    from scipy.sparse import csr_matrix

    ones = np.ones(len(train_items), np.float64)
    shape = (train_items.num_users, train_items.num_items)
    return csr_matrix((ones, (train_items.user_P, train_items.item_P)), shape=shape)


def ranks_of(scores: Scores, source: Interactions, candidate_NC: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    """Returns the rank of each sample's item among its candidates, and among all items that the user has in no split,
    (N,) each; ties as in `metric.ranking`.

    Args:
        scores: function that scores all items.
        source: samples.
        candidate_NC: candidates of each sample, of which the first is its item.
    """
    blocks = [_ranks(scores, source, rows, candidate_NC) for rows in _blocks(len(source))]
    sampled, among_all = zip(*blocks)
    return np.concatenate(sampled), np.concatenate(among_all)


def _ranks(
    scores: Scores, source: Interactions, rows: np.ndarray, candidate_NC: np.ndarray
) -> Tuple[np.ndarray, np.ndarray]:
    score_BI = scores(source.user_N[rows]).astype(np.float64)
    for row, (user, item) in enumerate(zip(source.user_N[rows].tolist(), source.item_N[rows].tolist())):
        score_BI[row, source.all_items.without(user, item)] = -np.inf
    return sampled_ranks(score_BI, candidate_NC[rows]), ranks_in(score_BI, source.item_N[rows])


def sampled_ranks(score_BI: np.ndarray, candidate_BC: np.ndarray) -> np.ndarray:
    """Returns the number of candidates that are not below the first, (B,)."""
    score_BC = np.take_along_axis(score_BI, candidate_BC.astype(np.int64), axis=1)
    return ranks_in(score_BC, np.zeros(len(score_BC), np.int64))


def _blocks(count: int) -> Iterator[np.ndarray]:
    for begin in range(0, count, _USERS_AT_ONCE):
        yield np.arange(begin, min(begin + _USERS_AT_ONCE, count))


def mean_ratings(train: Interactions, source: Interactions) -> Tuple[np.ndarray, np.ndarray]:
    """Predicts ratings: the mean of the training ratings, and this mean plus the deviations of the item and of the
    user.

    Deviations are damped as if each item had 25 and each user 10 further ratings without deviation.

    Source: Koren, https://doi.org/10.1145/1401890.1401944 (2008), section 2.1, as in "Factor in the Neighbors" (2010).
    """
    train_items, rating_P = train.train_items, train.train_rating_P.astype(np.float64)
    mean = rating_P.mean()

    def damped(id_P: np.ndarray, residual_P: np.ndarray, size: int, damping: float) -> np.ndarray:
        sums, counts = np.bincount(id_P, weights=residual_P, minlength=size), np.bincount(id_P, minlength=size)
        damped_mean: np.ndarray = sums / (counts + damping)
        return damped_mean

    item_I = damped(train_items.item_P, rating_P - mean, train_items.num_items, _ITEM_DAMPING)
    residual_P = rating_P - mean - item_I[train_items.item_P]
    user_U = damped(train_items.user_P, residual_P, train_items.num_users, _USER_DAMPING)
    return np.full(len(source), mean), mean + item_I[source.item_N] + user_U[source.user_N]
