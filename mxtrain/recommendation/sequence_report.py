"""Report of `eval` for sequences: metrics of the network and of baselines on the same split.

Legend: N samples, B samples at a time, I items.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, Iterator, List, Tuple, Union

import numpy as np

from mxtrain.recommendation.ranking import NDCG, HitRate, Ranks, ReciprocalRank, ranks_in
from mxtrain.task.collecting_report import CollectingReport
from mxtrain.types import Artifact, Table

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

    from mxtrain.recommendation.sequences import SequenceSamples

_SAMPLES_AT_ONCE = 1024
Scores = Callable[[np.ndarray], np.ndarray]
"""Function of the last items (B,) that returns the scores of all items (B, I)."""


class SequenceReport(CollectingReport):
    """Compares the network with popularity and with the most frequent next items, by HR@k, NDCG@k and MRR@k.

    Args:
        source: evaluated split.
        depth: k.
        with_baselines: True to add rows of baselines.
        excludes_seen: True if items of a history are not ranked.
    """

    def __init__(self, source: SequenceSamples, depth: int, with_baselines: bool, excludes_seen: bool) -> None:
        self._ranks = Ranks()
        super().__init__(None, self._ranks)
        self._source, self._depth = source, depth
        self._with_baselines, self._excludes_seen = with_baselines, excludes_seen

    def artifacts(self, title: str) -> List[Artifact]:
        """See `Report`."""
        self.finish()
        rows_NW = self._ranks.samples()
        if not len(rows_NW):
            return []
        rows = [self._row("this network", rows_NW[:, 2])]
        if self._with_baselines:
            measured = self._source.take(rows_NW[:, 0].astype(int).tolist())
            for name, scores in (
                ("popularity", popularity(measured)),
                ("most frequent next items", next_items(measured)),
            ):
                rows.append(self._row(name, ranks_of(scores, measured, self._excludes_seen)))
        k, among = self._depth, "unseen items" if self._excludes_seen else "all items"
        return [Table("recommenders", ("model", *(f"{name}@{k}, {among}" for name in ("HR", "NDCG", "MRR"))), rows)]

    def _row(self, name: str, rank_N: np.ndarray) -> Tuple[Union[str, float], ...]:
        kinds = (HitRate(k=self._depth), NDCG(k=self._depth), ReciprocalRank(k=self._depth))
        return (name, *(round(float(kind.gain(rank_N).mean()), 4) for kind in kinds))


def popularity(source: SequenceSamples) -> Scores:
    """Returns a function that scores items by their number of training interactions."""
    count_I = _popularity(source)
    return lambda last_B: np.repeat(count_I[None], len(last_B), axis=0)


def next_items(source: SequenceSamples) -> Scores:
    """Returns a function that scores items by how often they follow the last item in the training split: a Markov
    chain. Equal counts are ordered by popularity."""
    count_I = _popularity(source)
    rest_I, pairs = count_I / (count_I.sum() + 1), _transitions(source)
    return lambda last_B: np.asarray(pairs[last_B].todense()) + rest_I


def _popularity(source: SequenceSamples) -> np.ndarray:
    return np.bincount(_train_items(source), minlength=len(source.catalog.items)).astype(np.float64)


def _transitions(source: SequenceSamples) -> csr_matrix:
    from scipy.sparse import csr_matrix

    item_P, user_P = _train_items(source), np.repeat(np.arange(len(source.train_count_U)), source.train_count_U)
    follows_P = user_P[1:] == user_P[:-1]
    pair = (item_P[:-1][follows_P], item_P[1:][follows_P])
    size = len(source.catalog.items)
    return csr_matrix((np.ones(len(pair[0])), pair), shape=(size, size))


def _train_items(source: SequenceSamples) -> np.ndarray:
    """Returns the items of the training split, user after user."""
    sequences = source.sequences
    position_P = np.arange(len(sequences.item_P)) - np.repeat(sequences.begin_U[:-1], sequences.count_U)
    items: np.ndarray = sequences.item_P[position_P < np.repeat(source.train_count_U, sequences.count_U)]
    return items


def ranks_of(scores: Scores, source: SequenceSamples, excludes_seen: bool) -> np.ndarray:
    """Returns the rank of each sample's item, (N,); ties as in `ranking`.

    Args:
        scores: function of the last items.
        source: samples.
        excludes_seen: True to rank no item of the history but the next one.
    """
    return np.concatenate([_ranks(scores, source, index_B, excludes_seen) for index_B in _blocks(len(source))])


def _ranks(scores: Scores, source: SequenceSamples, index_B: np.ndarray, excludes_seen: bool) -> np.ndarray:
    histories, item_B = [source.history_of(index) for index in index_B.tolist()], source.item_N[index_B]
    score_BI = scores(np.array([history[-1] for history in histories])).astype(np.float64)
    for row, (history, item) in enumerate(zip(histories, item_B.tolist())) if excludes_seen else ():
        score_BI[row, history[history != item]] = -np.inf
    return ranks_in(score_BI, item_B)


def _blocks(count: int) -> Iterator[np.ndarray]:
    for begin in range(0, count, _SAMPLES_AT_ONCE):
        yield np.arange(begin, min(begin + _SAMPLES_AT_ONCE, count))
