"""Metrics of samples with any number of classes, and the choice of a decision threshold for each class.

Scores are logits: float32 probabilities of large logits are all 1, and their ranks would be lost.

Legend: N samples, B batch, K classes, T distinct probabilities.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, List, Literal, Mapping, Optional, Sequence, Tuple, Type, Union

import numpy as np
import pydantic

from mxtrain.metric.binary import average_precision, sigmoid
from mxtrain.metric.host import Collected, HostMetric, HostPredictions
from mxtrain.types import ProperFraction
from mxtrain.types.kinds import ClassSet, Takes

if TYPE_CHECKING:
    from mxtrain.types.annotations import Json, JsonObject

USUAL_THRESHOLD = 0.5
Threshold = Union[Literal["chosen"], ProperFraction]


class ClassSetScores(Collected):
    """Collector of the scores of each sample: a row for each class, with its score and its target 0 or 1."""

    width: ClassVar[int] = 2

    def update(
        self, index_B: np.ndarray, prediction_B: HostPredictions, target_B: np.ndarray, meta_B: Optional[np.ndarray]
    ) -> None:
        score_BK = np.asarray(prediction_B, np.float64)
        count, num_classes = score_BK.shape
        columns = (
            np.repeat(index_B, num_classes),
            np.tile(np.arange(num_classes), count),
            score_BK.ravel(),
            target_B.ravel(),
        )
        self._parts.append(np.stack(columns, axis=1).astype(np.float64))

    def by_class(self) -> Tuple[np.ndarray, np.ndarray]:
        """Returns scores and targets of all samples, (N, K) each, in the order of the samples."""
        rows = self.samples()
        num_classes = int(rows[:, 1].max(initial=0)) + 1
        return rows[:, 2].reshape(-1, num_classes), rows[:, 3].reshape(-1, num_classes)


class ChosenThresholds:
    """The thresholds that the last validation of a run has chosen; checkpoints store them. See `Stateful`."""

    def __init__(self) -> None:
        self.values: List[float] = []

    def save_state(self) -> Tuple[Mapping[str, np.ndarray], Mapping[str, Json]]:
        """See `Stateful`."""
        return {}, {"values": self.values}

    def load_state(self, arrays: Mapping[str, np.ndarray], values: JsonObject, source: str) -> None:
        """See `Stateful`."""
        self.values = list(values.get("values", ()))


class ClassSetMetric(HostMetric):
    """Base class of metrics of the classes that samples have."""

    collects: ClassVar[Type[Collected]] = ClassSetScores
    takes: ClassVar[Takes] = Takes(ClassSet)

    _chosen: Optional[Sequence[float]] = pydantic.PrivateAttr(None)
    _keeper: ChosenThresholds = pydantic.PrivateAttr(default_factory=ChosenThresholds)

    def with_chosen(self, chosen: Optional[Sequence[float]], keeper: ChosenThresholds) -> ClassSetMetric:
        """Returns this metric for a network.

        Args:
            chosen: thresholds of the classes for `threshold=chosen`; None: chosen in each pass.
            keeper: receives the thresholds that a pass has chosen.
        """
        metric = self.model_copy()
        metric._chosen, metric._keeper = chosen, keeper
        return metric

    def compute(self, collected: Collected) -> float:
        return self._compute(collected, None)

    def compute_weighted(self, collected: Collected, weight_N: np.ndarray) -> float:
        return self._compute(collected, weight_N)

    def _compute(self, collected: Collected, weight_N: Optional[np.ndarray]) -> float:
        assert isinstance(collected, ClassSetScores)
        score_NK, target_NK = collected.by_class()
        if weight_N is not None:
            kept_N = weight_N > 0
            score_NK, target_NK, weight_N = score_NK[kept_N], target_NK[kept_N], weight_N[kept_N]
        if not len(score_NK):
            return math.nan
        if self._chosen is None:  # also if this metric needs no thresholds: predictions do
            self._keeper.values = choose_thresholds(score_NK, target_NK, weight_N)
        return self.of_classes(score_NK, target_NK > 0, *(() if weight_N is None else (weight_N,)))

    def of_classes(self, score_NK: np.ndarray, target_NK: np.ndarray, weight_N: Optional[np.ndarray] = None) -> float:
        """Computes the metric of scores and of the classes that samples have (bool).

        Args:
            score_NK, target_NK: scores and classes.
            weight_N: positive weight of each sample, for metrics with `takes_weights`; None = each counts once.
        """
        raise NotImplementedError


class MeanAveragePrecision(ClassSetMetric):
    """Mean over classes of the average precision (mAP), see `AveragePrecision`. Classes that no sample has do not
    count.

    The value is NaN if no sample has a class.
    """

    direction: ClassVar[Literal["max", "min"]] = "max"
    takes_weights: ClassVar[bool] = True

    def of_classes(self, score_NK: np.ndarray, target_NK: np.ndarray, weight_N: Optional[np.ndarray] = None) -> float:
        present = np.flatnonzero(target_NK.any(axis=0))
        values = [average_precision(score_NK[:, k], target_NK[:, k], weight_N) for k in present]
        return float(np.mean(values)) if values else math.nan


class DecidedMetric(ClassSetMetric):
    """Base class of metrics of decisions: a class is predicted if its probability reaches a threshold."""

    threshold: Threshold = "chosen"
    """Least probability of a predicted class; chosen = of each class the one with the highest F1 on the validation
    split, see `task.threshold`."""

    def of_classes(self, score_NK: np.ndarray, target_NK: np.ndarray, weight_N: Optional[np.ndarray] = None) -> float:
        threshold_K = self._keeper.values if self._chosen is None else self._chosen
        predicted_NK = sigmoid(score_NK) >= np.array(threshold_K if self.threshold == "chosen" else self.threshold)
        return self.of_decisions(predicted_NK, target_NK, *(() if weight_N is None else (weight_N,)))

    def of_decisions(
        self, predicted_NK: np.ndarray, target_NK: np.ndarray, weight_N: Optional[np.ndarray] = None
    ) -> float:
        """Computes the metric of predicted and true classes, (N, K) bool each; weights as in `of_classes`."""
        raise NotImplementedError


class MicroF1(DecidedMetric):
    """F1 of all decisions together, for all samples and classes. NaN if no class is true or predicted."""

    direction: ClassVar[Literal["max", "min"]] = "max"
    takes_weights: ClassVar[bool] = True

    def of_decisions(
        self, predicted_NK: np.ndarray, target_NK: np.ndarray, weight_N: Optional[np.ndarray] = None
    ) -> float:
        weight_M = None if weight_N is None else np.repeat(weight_N, predicted_NK.shape[1])
        return float(f1_of(predicted_NK.ravel(), target_NK.ravel(), weight_M))


class MacroF1(DecidedMetric):
    """Mean over classes of their F1. Classes that are neither true nor predicted for any sample do not count."""

    direction: ClassVar[Literal["max", "min"]] = "max"
    takes_weights: ClassVar[bool] = True

    def of_decisions(
        self, predicted_NK: np.ndarray, target_NK: np.ndarray, weight_N: Optional[np.ndarray] = None
    ) -> float:
        f1_K = f1_of(predicted_NK, target_NK, weight_N)
        return float(np.nanmean(f1_K)) if np.isfinite(f1_K).any() else math.nan


class SubsetAccuracy(DecidedMetric):
    """Share of the samples all of whose classes are predicted, and no others."""

    direction: ClassVar[Literal["max", "min"]] = "max"
    takes_weights: ClassVar[bool] = True

    def of_decisions(
        self, predicted_NK: np.ndarray, target_NK: np.ndarray, weight_N: Optional[np.ndarray] = None
    ) -> float:
        return float(np.average((predicted_NK == target_NK).all(axis=1), weights=weight_N))


class HammingLoss(DecidedMetric):
    """Share of wrong decisions, of all samples and classes."""

    direction: ClassVar[Literal["max", "min"]] = "min"
    takes_weights: ClassVar[bool] = True

    def of_decisions(
        self, predicted_NK: np.ndarray, target_NK: np.ndarray, weight_N: Optional[np.ndarray] = None
    ) -> float:
        return float(np.average((predicted_NK != target_NK).mean(axis=1), weights=weight_N))


def f1_of(predicted_N: np.ndarray, target_N: np.ndarray, weight_N: Optional[np.ndarray] = None) -> np.ndarray:
    """Returns the F1 of decisions, (N,) or (N, K) -> (K,): NaN for a class that is neither true nor predicted.

    Args:
        predicted_N, target_N: decisions and classes, bool.
        weight_N: weight of each sample, (N,); None = each counts once.
    """
    weight = 1.0 if weight_N is None else weight_N.reshape((-1,) + (1,) * (predicted_N.ndim - 1))
    total = (predicted_N * weight).sum(axis=0) + (target_N * weight).sum(axis=0)
    with np.errstate(invalid="ignore"):
        return 2.0 * ((predicted_N & target_N) * weight).sum(axis=0) / total


class DecisionCurve:
    """Precision, recall and F1 of a class at each threshold that makes a difference.

    Args:
        probability_N: probabilities of the class.
        target_N: True for samples that have the class.
        weight_N: weight of each sample; None = each counts once.

    Attributes:
        threshold_T: thresholds, descending: each is halfway between two neighbouring probabilities, so that another
            rounding of a probability does not change a decision.
        precision_T, recall_T, f1_T: measures of "probability >= threshold".
    """

    def __init__(self, probability_N: np.ndarray, target_N: np.ndarray, weight_N: Optional[np.ndarray] = None) -> None:
        order = np.argsort(-probability_N, kind="stable")
        sorted_N = probability_N[order]
        last_T = np.flatnonzero(np.append(np.diff(sorted_N) != 0, True))
        weight_N = np.ones(len(order)) if weight_N is None else weight_N
        hit_N = np.cumsum((target_N[order] > 0) * weight_N[order])
        hit_T, total_T = hit_N[last_T], np.cumsum(weight_N[order])[last_T]
        self.threshold_T = (sorted_N[last_T] + np.append(sorted_N[last_T[1:]], 0.0)) / 2
        num_positive = hit_N[-1] if len(hit_N) and hit_N[-1] else 1.0
        self.precision_T, self.recall_T = hit_T / total_T, hit_T / num_positive
        self.f1_T = 2.0 * hit_T / (total_T + num_positive)

    def best(self) -> int:
        """Returns the position of the highest F1; of several, that of the highest threshold."""
        return int(self.f1_T.argmax())


def choose_thresholds(
    score_NK: np.ndarray, target_NK: np.ndarray, weight_N: Optional[np.ndarray] = None
) -> List[float]:
    """Returns the threshold of each class that has the highest F1; `USUAL_THRESHOLD` for a class that no sample has, or
    whose scores are not finite.

    Args:
        score_NK, target_NK: scores and classes.
        weight_N: positive weight of each sample; None = each counts once.
    """
    chosen = []
    for k in range(score_NK.shape[1]):
        probability_N = sigmoid(score_NK[:, k])
        threshold = USUAL_THRESHOLD
        if (target_NK[:, k] > 0).any() and np.isfinite(probability_N).all():
            curve = DecisionCurve(probability_N, target_NK[:, k], weight_N)
            threshold = float(curve.threshold_T[curve.best()])
        # All samples may have the class with probability 0 in float64.
        chosen.append(min(max(threshold, np.finfo(np.float32).tiny.item()), 1.0))
    return chosen
