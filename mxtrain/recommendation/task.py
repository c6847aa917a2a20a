"""Recommendation task: ranks items for a user, or predicts the user's ratings of items.

Legend: B batch, C candidates, I all items.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from mxtrain.errors import ConfigError
from mxtrain.loss.custom import CustomLoss
from mxtrain.metric.metrics import ValueMetric
from mxtrain.recommendation.base import ALL, InteractionDataset
from mxtrain.recommendation.exported_users import top_items
from mxtrain.recommendation.losses import RankingLoss
from mxtrain.recommendation.model import Recommender, build_feature_recommender
from mxtrain.recommendation.ranking import RankingMetric, SampledItemsMetric
from mxtrain.recommendation.signature import RecommendationSignature
from mxtrain.task.own_loss import validate_loss_output
from mxtrain.task.prediction_format import PredictionFormat
from mxtrain.task.spec import Report, Task
from mxtrain.types import Artifact, Table
from mxtrain.types.kinds import Preference, Takes

if TYPE_CHECKING:
    from mxnet import gluon
    from mxnet.ndarray import NDArray

    from mxtrain.config.parts import RunParts
    from mxtrain.data.signature import Signature
    from mxtrain.data.spec import Samples
    from mxtrain.engine.predictions import Decode, Predictions
    from mxtrain.metric.spec import Metric
    from mxtrain.parallel.base import Strategy
    from mxtrain.recommendation.source import Interactions
    from mxtrain.task.evaluated_sample import EvaluatedSample
    from mxtrain.types import Batch, Shape
    from mxtrain.types.annotations import Json, JsonObject, LossBlock

_MAX_SHOWN_ITEMS = 10
_SEPARATOR = ", "
_RATING_METRICS, _RANKING_METRICS = "root_mean_squared_error,mean_absolute_error", "ndcg_at_k_sampled,hr_at_k_sampled"


class Recommendation(Task):
    """Recommendation from implicit feedback or ratings.

    Implicit feedback: outputs are scores (B, C) of candidate items, targets are the candidates (B, C), the first of
    which is the user's item. Ratings: outputs are (B, 1), targets are the ratings (B,). Predictions are the scores of
    all items, (B, I), minus infinity for items that the user already has.
    """

    name: ClassVar[str] = "recommendation"
    takes: ClassVar[Takes] = Takes(Preference)

    baselines: bool = True
    """If true, `eval` also measures two baselines on the same split: popularity and item neighbours (for ratings:
    means)."""

    def check(self, description: RunParts) -> None:
        super().check(description)
        dataset, loss = description.dataset, description.loss
        is_rated = isinstance(dataset, InteractionDataset) and dataset.feedback == "explicit"
        feature_setting = dataset.feature_setting if isinstance(dataset, InteractionDataset) else ""
        if feature_setting and isinstance(description.model, Recommender):
            raise ConfigError(
                f"dataset.{feature_setting}: {type(description.model).__name__} knows users and items by their ids "
                "alone. Type model=factorization_machine, deepfm or wide_deep."
            )
        loss.require_unsmoothed("task=recommendation has no classes to smooth over")
        ranks = isinstance(loss, RankingLoss)
        if is_rated == ranks and not isinstance(loss, CustomLoss):
            loss_name = type(loss).__name__
            advice = (
                "dataset.feedback=explicit means ratings, which have no sampled items: type loss=l2"
                if is_rated
                else "dataset.feedback=implicit means items without ratings: type loss=sampled_bce"
            )
            metric_advice = f" {_fitting_metrics(is_rated)}" if _unfit_metrics(description.metric, is_rated) else ""
            raise ConfigError(f"loss: {loss_name} does not fit. {advice}{metric_advice}.")
        for name in _unfit_metrics(description.metric, is_rated):
            raise ConfigError(
                f"metric.{name}: it does not fit dataset.feedback={'explicit' if is_rated else 'implicit'}. Type "
                f"{_fitting_metrics(is_rated)}."
            )

    def num_classes(self, signature: Signature) -> int:
        return 1

    def output_names(self, signature: Signature) -> Sequence[str]:
        return ()

    def output_shapes(self, description: RunParts, signature: Signature) -> List[Shape]:
        return [(RecommendationSignature.cast(signature).num_candidates,)]

    def build_network(self, description: RunParts, signature: Signature) -> gluon.Block:
        signature = RecommendationSignature.cast(signature)
        model, fields = description.model, signature.recommender_fields
        if not isinstance(model, Recommender):
            return build_feature_recommender(model, fields)
        mean = signature.mean[0] if signature.has_ratings else 0.0
        return model.build_recommender(fields.user_sizes[0], fields.item_sizes[0], mean)

    def build_loss(self, description: RunParts, signature: Signature, training: bool) -> LossBlock:
        signature = RecommendationSignature.cast(signature)
        if signature.has_ratings:
            from mxtrain.loss.blocks import RegressionLoss

            return validate_loss_output(RegressionLoss(description.loss.block()), description, [(1,)])
        loss, shape = description.loss.build(1, training), (signature.num_candidates,)
        return validate_loss_output(loss, description, [shape], shape)

    def num_choices(self, metric: Metric, signature: Signature) -> int:
        signature = RecommendationSignature.cast(signature)
        return signature.num_candidates if isinstance(metric, SampledItemsMetric) else len(signature.catalog.items)

    def metric_signatures(self, description: RunParts, signature: Signature) -> Mapping[str, str]:
        """Adds the number of sampled items to the signatures of metrics that sample."""
        count = RecommendationSignature.cast(signature).num_candidates - 1
        signatures = dict(super().metric_signatures(description, signature))
        for name, metric in description.metric.items():
            if isinstance(metric, SampledItemsMetric):
                signatures[name] = f"k={metric.k},among={count}_sampled_unseen_items,ties=worst"
        return signatures

    def build_decode(self, description: RunParts, signature: Signature, strategy: Optional[Strategy] = None) -> Decode:
        from mxtrain.recommendation.all_items import ScoresOfAllItems

        assert strategy is not None
        return ScoresOfAllItems(description, signature, strategy)

    def decode(self, outputs: Tuple[NDArray, ...], batch: Batch) -> NDArray:
        raise AssertionError("outputs hold only candidates; `build_decode` scores all items")

    def result_predictions(self, decode: Decode, outputs: Tuple[NDArray, ...], batch: Batch) -> Predictions:
        """Returns the scores of all items, (B, I); for ratings the predicted ratings, (B,)."""
        if batch.targets[0].ndim == 1:
            return outputs[0].astype("float32").reshape((-1,))
        return decode(outputs, batch)

    def result(self, signature: Signature, source: Samples, sample: EvaluatedSample) -> Mapping[str, Json]:
        """Returns the user, the held-out item, and its rank from 1 among the items that the user has in no split; for
        ratings the user, the item, and the true and the predicted rating."""
        from mxtrain.recommendation.ranking import ranks_in

        users: Interactions = source  # type: ignore[assignment]  # of its own samples
        catalog, item = users.catalog, int(users.item_N[sample.index])
        pair = {"user": catalog.users[users.user_N[sample.index]], "item": catalog.items[item]}
        if RecommendationSignature.cast(signature).has_ratings:
            return {**pair, "true": float(sample.targets[0]), "predicted": float(sample.prediction)}
        return {**pair, "rank": int(ranks_in(sample.prediction[None], np.array([item]))[0]) + 1}

    def row(self, signature: Signature, prediction: np.ndarray, top_k: int) -> Mapping[str, Json]:
        """Returns the highest-scoring items that the user does not have, best first."""
        signature = RecommendationSignature.cast(signature)
        return {"items": top_items(signature.catalog.items, prediction, signature.item_titles, top_k)}

    def can_show(self, description: RunParts) -> bool:
        return True

    def show(
        self, signature: Signature, source: Samples, predictions: Sequence[np.ndarray], targets: Sequence[np.ndarray]
    ) -> List[Artifact]:
        """Returns a table of users with their items, the held-out item with its rank, and the recommended items."""
        samples: Interactions = source  # type: ignore[assignment]  # of its own samples
        users = [samples.catalog.users[user] for user in samples.user_N.tolist()]
        owned = [samples.train_items.items_of(user) for user in samples.user_N.tolist()]
        return [recommendation_table(signature, users, owned, samples.item_N, predictions)]

    def build_report(self, description: RunParts, signature: Signature, source: Samples) -> Report:
        from mxtrain.recommendation.report import RankReport, RatingReport

        signature = RecommendationSignature.cast(signature)
        if signature.has_ratings:
            return RatingReport(source, self.baselines)  # type: ignore[arg-type]  # of its own samples
        depths = [metric.k for metric in description.metric.values() if isinstance(metric, RankingMetric)]
        num_sampled = signature.num_candidates - 1
        return RankReport(source, depths[0] if depths else 10, num_sampled, self.baselines)  # type: ignore[arg-type]

    def prediction_format(self) -> PredictionFormat:
        return RecommendationFormat(self)


def recommendation_table(
    signature: Signature,
    users: Sequence[str],
    owned: Sequence[np.ndarray],
    item_N: np.ndarray,
    predictions: Sequence[np.ndarray],
    newest: bool = False,
) -> Table:
    """Returns a table of users with their items, the held-out item with its rank, and the recommended items.

    Args:
        signature: signature of the network.
        users: names of the users.
        owned: items of each user.
        item_N: held-out item of each user.
        predictions: scores of all items for each user.
        newest: True to show the last items of each user instead of the first ones.
    """
    names, rows = RecommendationSignature.cast(signature).catalog.items, []
    for user, items, item, score_I in zip(users, owned, item_N.tolist(), predictions):
        shown = items[-_MAX_SHOWN_ITEMS:] if newest else items[:_MAX_SHOWN_ITEMS]
        # Not `>=`: comparisons with NaN are False, and NaN must count against the item.
        rank = int((~(score_I < score_I[item])).sum())
        first = _SEPARATOR.join(one["item"] for one in top_items(names, score_I, count=_MAX_SHOWN_ITEMS))
        rows.append((user, _SEPARATOR.join(names[index] for index in shown.tolist()), f"{names[item]} ({rank})", first))
    # TensorBoard would make a separate column of ranks so narrow that it wraps numbers.
    return Table("recommendations", ("user", "has", "held out (rank)", f"first {_MAX_SHOWN_ITEMS}"), rows)


class RecommendationFormat(PredictionFormat):
    """Rows and files of the predictions of `Recommendation`."""

    task: Recommendation

    inputs: ClassVar[str] = ALL
    list_field: ClassVar[Tuple[str, str]] = ("items", "items")

    def rows(
        self, signature: Signature, source: Samples, predictions: Iterable[Tuple[int, np.ndarray]], top_k: int
    ) -> Iterator[Tuple[int, Mapping[str, Json]]]:
        users: Interactions = source  # type: ignore[assignment]  # of its own samples
        for number, prediction in predictions:
            user = users.catalog.users[users.user_N[number]]
            yield number, {"user": user, **self.task.row(signature, prediction, top_k)}

    def cells(self, row: JsonObject) -> Dict[str, Json]:
        """Returns the row with one column per item, title and score: item_1, score_1, item_2, ..."""
        cells = {name: value for name, value in row.items() if name != "items"}
        for number, item in enumerate(row["items"], start=1):
            cells.update({f"{name}_{number}": value for name, value in item.items()})
        return cells


def _unfit_metrics(metrics: Mapping[str, Metric], is_rated: bool) -> List[str]:
    return [name for name, metric in metrics.items() if isinstance(metric, RankingMetric if is_rated else ValueMetric)]


def _fitting_metrics(is_rated: bool) -> str:
    names = _RATING_METRICS if is_rated else _RANKING_METRICS
    return f"metric=[{names}] trainer.monitor=val/{names.partition(',')[0]}"
