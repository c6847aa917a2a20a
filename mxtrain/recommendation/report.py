"""Report of `eval` for recommendation: metrics of the network and of baselines on the same split.

Legend: N samples, B batch, C candidates, I items.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, List, Optional, Tuple, Union

import numpy as np

from mxtrain.metric.host import Collected, HostPredictions
from mxtrain.recommendation import baselines
from mxtrain.recommendation.ranking import NDCG, HitRate, ranks_in
from mxtrain.task.collecting_report import CollectingReport
from mxtrain.task.report import Report
from mxtrain.types import Artifact, Table

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray

    from mxtrain.recommendation.source import Interactions
    from mxtrain.types import Batch

Row = Tuple[Union[str, float], ...]


class CandidateRanks(Collected):
    """Collects the rank of each sample's item among its candidates and among all items, and the candidates."""

    width: ClassVar[int]

    def __init__(self, num_sampled: int) -> None:
        self.width = 3 + num_sampled  # type: ignore[misc]  # follows from the dataset
        super().__init__()

    def update(
        self, index_B: np.ndarray, prediction_B: HostPredictions, target_B: np.ndarray, meta_B: Optional[np.ndarray]
    ) -> None:
        score_BI = np.asarray(prediction_B)
        ranks = (baselines.sampled_ranks(score_BI, target_B), ranks_in(score_BI, target_B[:, 0]))
        columns = np.stack([index_B, np.zeros(len(index_B)), *ranks], axis=1)
        self._parts.append(np.concatenate([columns, target_B], axis=1).astype(np.float64))


class RankReport(CollectingReport):
    """Compares the network with popularity and item neighbours by HR@k and NDCG@k, among candidates and all items.

    Args:
        source: evaluated split.
        depth: k.
        num_sampled: number of candidates besides the held-out item.
        with_baselines: True to add rows of baselines.
    """

    def __init__(self, source: Interactions, depth: int, num_sampled: int, with_baselines: bool) -> None:
        self._ranks = CandidateRanks(num_sampled)
        super().__init__(None, self._ranks)
        self._source, self._depth, self._num_sampled = source, depth, num_sampled
        self._with_baselines = with_baselines

    def artifacts(self, title: str) -> List[Artifact]:
        """See `Report`."""
        self.finish()
        rows_NW = self._ranks.samples()
        if not len(rows_NW):
            return []
        measured = self._source.take(rows_NW[:, 0].astype(int).tolist())
        rows = [self._row("this network", rows_NW[:, 2], rows_NW[:, 3])]
        if self._with_baselines:
            rows += self._baseline_rows(measured, rows_NW[:, 4:].astype(np.int64))
        k, count = self._depth, self._num_sampled
        header = (
            "model",
            f"HR@{k}, {count} sampled",
            f"NDCG@{k}, {count} sampled",
            f"HR@{k}, all items",
            f"NDCG@{k}, all items",
        )
        return [Table("recommenders", header, rows)]

    def _baseline_rows(self, measured: Interactions, candidate_NC: np.ndarray) -> List[Row]:
        train_items = self._source.train_items
        rows = [self._row("popularity", *baselines.ranks_of(baselines.popularity(train_items), measured, candidate_NC))]
        # Neighbours need a number for each pair of items.
        if train_items.num_items > baselines.MAX_ITEMS:
            return [*rows, (f"no item neighbours, for more than {baselines.MAX_ITEMS:,} items", "", "", "", "")]
        scores = baselines.item_neighbours(train_items)
        return [*rows, self._row("item neighbours (cosine)", *baselines.ranks_of(scores, measured, candidate_NC))]

    def _row(self, name: str, sampled_N: np.ndarray, among_all_N: np.ndarray) -> Row:
        kinds = (HitRate(k=self._depth), NDCG(k=self._depth))
        ranks = (sampled_N, among_all_N)
        return (name, *(round(float(kind.gain(rank_N).mean()), 4) for rank_N in ranks for kind in kinds))


class RatingReport(Report):
    """Compares the errors of the network with those of mean ratings.

    Args:
        source: evaluated split.
        with_baselines: True to add rows of baselines.
    """

    def __init__(self, source: Interactions, with_baselines: bool) -> None:
        self._source, self._with_baselines = source, with_baselines
        self._found: List[Tuple[np.ndarray, NDArray]] = []

    def update(self, batch: Batch, outputs: Tuple[NDArray, ...]) -> None:
        """See `Report`."""
        assert batch.index_B is not None
        self._found.append((batch.index_B, outputs[0].astype("float32").reshape((-1,))))

    def artifacts(self, title: str) -> List[Artifact]:
        """See `Report`."""
        index_N = np.concatenate([index_B for index_B, _ in self._found])
        measured = self._source.take(index_N.tolist())
        predictions = {"this network": np.concatenate([prediction.asnumpy() for _, prediction in self._found])}
        if self._with_baselines:
            means = baselines.mean_ratings(self._source, measured)
            predictions.update(zip(("mean of all ratings", "means of item and user"), means))
        rows = [_rating_row(name, prediction, measured.rating_N) for name, prediction in predictions.items()]
        return [Table("raters", ("model", "RMSE", "MAE"), rows)]


def _rating_row(name: str, prediction_N: np.ndarray, rating_N: np.ndarray) -> Row:
    error_N = prediction_N.astype(np.float64) - rating_N
    return name, round(float(np.sqrt(np.mean(error_N**2))), 4), round(float(np.abs(error_N).mean()), 4)
