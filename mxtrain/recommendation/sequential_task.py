"""Sequential recommendation task: predicts the next item of a user from the items so far.

Legend: B batch, C candidates, I all items.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from mxtrain.errors import ConfigError
from mxtrain.loss.custom import CustomLoss
from mxtrain.recommendation.base import InteractionDataset
from mxtrain.recommendation.kinds import NextItem, UserHistories
from mxtrain.recommendation.losses import RankingLoss
from mxtrain.recommendation.ranking import RankingMetric
from mxtrain.recommendation.sequence_models import SequenceModel
from mxtrain.recommendation.signature import RecommendationSignature
from mxtrain.recommendation.task import Recommendation, recommendation_table
from mxtrain.task.fit import check_fit
from mxtrain.task.own_loss import validate_loss_output
from mxtrain.task.spec import Report
from mxtrain.task.task_export import TaskExport
from mxtrain.types import Artifact
from mxtrain.types.kinds import Takes

if TYPE_CHECKING:
    from mxnet import gluon
    from mxnet.ndarray import NDArray

    from mxtrain.config.parts import RunParts
    from mxtrain.data.signature import Signature
    from mxtrain.data.spec import Samples
    from mxtrain.engine.predictions import Decode
    from mxtrain.metric.spec import Metric
    from mxtrain.parallel.base import Strategy
    from mxtrain.recommendation.sequences import SequenceSamples
    from mxtrain.types import Batch, Shape
    from mxtrain.types.annotations import LossBlock


class SequentialRecommendation(Recommendation):
    """Recommendation of the next item.

    Outputs are the scores of all items (B, I); targets are candidates (B, C), the first of which is the next item.
    Predictions are the scores, (B, I), minus infinity for items that are not recommended.
    """

    name: ClassVar[str] = "sequential_recommendation"
    takes: ClassVar[Takes] = Takes(UserHistories, NextItem)

    exclude_seen: bool = False
    """If true, items of the history are not recommended and not ranked, except the next item itself; false = ranks are
    among all items, as in RecBole."""
    baselines: bool = True
    """If true, `eval` also measures two baselines on the same split: popularity, and the most frequent next items of
    the last item."""

    def check(self, description: RunParts) -> None:
        check_fit(self, description)
        dataset, loss = description.dataset, description.loss
        loss.require_unsmoothed("task=sequential_recommendation compares with items that may be next, too")
        if isinstance(dataset, InteractionDataset):
            if dataset.feedback == "explicit":
                raise ConfigError(
                    "dataset.feedback=explicit: task=sequential_recommendation predicts no ratings. Type "
                    "task=recommendation, or dataset.feedback=implicit."
                )
            if dataset.feature_setting:
                raise ConfigError(
                    f"dataset.{dataset.feature_setting}: networks of sequences read no features. Leave it out, or type "
                    "task=recommendation model=deepfm."
                )
            if dataset.missing_order:
                raise ConfigError(
                    "dataset: task=sequential_recommendation needs the order of the interactions. Type "
                    f"{dataset.missing_order}."
                )

    def num_classes(self, signature: Signature) -> int:
        return len(RecommendationSignature.cast(signature).catalog.items)

    def output_shapes(self, description: RunParts, signature: Signature) -> List[Shape]:
        return [(self.num_classes(signature),)]

    def build_network(self, description: RunParts, signature: Signature) -> gluon.Block:
        model, num_items = description.model, self.num_classes(signature)
        max_history = signature.shape[0][0]  # type: ignore[index]  # one of several
        if isinstance(model, SequenceModel):
            return model.build_sequence(num_items, max_history)
        return model.build_filled(num_items, field_sizes=[num_items], num_numbers=0)

    def build_loss(self, description: RunParts, signature: Signature, training: bool) -> LossBlock:
        num_items, loss = self.num_classes(signature), description.loss
        block = loss.build(num_items, training)
        if isinstance(loss, RankingLoss) and not isinstance(loss, CustomLoss):
            from mxtrain.recommendation.candidate_scores import CandidateLoss

            return CandidateLoss(block)
        return validate_loss_output(block, description, [(num_items,)], (1,))

    def num_choices(self, metric: Metric, signature: Signature) -> int:
        return self.num_classes(signature)

    def metric_signatures(self, description: RunParts, signature: Signature) -> Mapping[str, str]:
        """Says which items the next one is ranked among."""
        among = "all_unseen_items" if self.exclude_seen else "all_items"
        signatures = dict(description.metric_signatures)
        for name, metric in description.metric.items():
            if isinstance(metric, RankingMetric):
                signatures[name] = f"k={metric.k},among={among},ties=worst"
        return signatures

    def build_decode(self, description: RunParts, signature: Signature, strategy: Optional[Strategy] = None) -> Decode:
        return self.decode

    def decode(self, outputs: Tuple[NDArray, ...], batch: Batch) -> NDArray:
        from mxtrain.engine.backend import nd

        scores = outputs[0].astype("float32")
        if not self.exclude_seen or batch.meta is None:
            return scores
        score_BI = scores.asnumpy()
        for row, seen in enumerate(batch.meta):
            score_BI[row, seen] = -np.inf
        return nd.array(score_BI, dtype="float32")

    def show(
        self, signature: Signature, source: Samples, predictions: Sequence[np.ndarray], targets: Sequence[np.ndarray]
    ) -> List[Artifact]:
        """Returns a table of users with their last items, the next item with its rank, and the recommended items."""
        samples: SequenceSamples = source  # type: ignore[assignment]  # of its own samples
        users = [samples.catalog.users[user] for user in samples.user_N.tolist()]
        histories = [samples.history_of(index) for index in range(len(samples))]
        return [recommendation_table(signature, users, histories, samples.item_N, predictions, newest=True)]

    def build_report(self, description: RunParts, signature: Signature, source: Samples) -> Report:
        from mxtrain.recommendation.sequence_report import SequenceReport

        depths = [metric.k for metric in description.metric.values() if isinstance(metric, RankingMetric)]
        depth = depths[0] if depths else 10
        return SequenceReport(source, depth, self.baselines, self.exclude_seen)  # type: ignore[arg-type]  # own samples

    def export_form(self) -> TaskExport:
        return SequenceExport(self)


class SequenceExport(TaskExport):
    """Export of the networks of `SequentialRecommendation`."""

    any_size: ClassVar[bool] = False
