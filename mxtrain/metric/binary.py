"""Metrics of the classes of a table: ranking quality of the scores and calibration of the probabilities.

Scores are logits: of the second of two classes, or one for each of more classes. Ranks of float32 probabilities would
lose information, because a float32 sigmoid is exactly 1 for every logit above 17. More than two classes are measured
one against the rest, by the log odds of each class; the value is the mean over classes.

Legend: N samples, B batch, K classes, T distinct scores, D non-empty bins, E bin edges.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, Optional, Tuple, Type

import numpy as np

from mxtrain.metric.host import Collected, HostMetric, HostPredictions, ranks, weighted_ranks
from mxtrain.metric.spec import SampleMean, ratio
from mxtrain.types import Positive
from mxtrain.types.kinds import RowClass, Takes

if TYPE_CHECKING:
    from mxtrain.types.annotations import Array, OperatorModule


class ClassScores(Collected):
    """Collector of the scores of each sample. A row holds the sample, the class, its score and its target 0 or 1. With
    two classes a sample has one row, otherwise one for each class."""

    width: ClassVar[int] = 2

    def update(
        self, index_B: np.ndarray, prediction_B: HostPredictions, target_B: np.ndarray, meta_B: Optional[np.ndarray]
    ) -> None:
        score_BK, label_B = np.asarray(prediction_B, np.float64), target_B.astype(np.int64)
        if score_BK.ndim == 1:
            score_BK, target_BK = score_BK[:, None], label_B[:, None]
        else:
            target_BK = np.arange(score_BK.shape[1]) == label_B[:, None]
        count, num_classes = score_BK.shape
        columns = (
            np.repeat(index_B, num_classes),
            np.tile(np.arange(num_classes), count),
            score_BK.ravel(),
            target_BK.ravel(),
        )
        # float64 represents every float32 logit exactly.
        self._parts.append(np.stack(columns, axis=1).astype(np.float64))

    def by_class(self) -> Tuple[np.ndarray, np.ndarray]:
        """Returns scores and targets 0 or 1 of all samples, (N, 1) each; with more than two classes (N, K) each."""
        rows = self.samples()
        num_classes = int(rows[:, 1].max(initial=0)) + 1
        return rows[:, 2].reshape(-1, num_classes), rows[:, 3].reshape(-1, num_classes)


class ClassMetric(HostMetric):
    """Base class of metrics of two classes, or of the mean over more classes, each against the rest."""

    collects: ClassVar[Type[Collected]] = ClassScores
    takes: ClassVar[Takes] = Takes(RowClass)

    def compute(self, collected: Collected) -> float:
        assert isinstance(collected, ClassScores)
        return self.of_classes(*collected.by_class())

    def compute_weighted(self, collected: Collected, weight_N: np.ndarray) -> float:
        assert isinstance(collected, ClassScores)
        score_NK, target_NK = collected.by_class()
        kept_N = weight_N > 0  # a class with weight 0 alone is a class without samples
        return self.of_classes(score_NK[kept_N], target_NK[kept_N], weight_N[kept_N])

    def of_classes(self, score_NK: np.ndarray, target_NK: np.ndarray, weight_N: Optional[np.ndarray] = None) -> float:
        """Computes the metric of scores and targets in the form of `ClassScores.by_class`.

        Args:
            score_NK, target_NK: scores and targets.
            weight_N: positive weight of each sample, for metrics with `takes_weights`; None = each counts once.
        """
        weights = () if weight_N is None else (weight_N,)
        if score_NK.shape[1] == 1:
            return self.of_samples(score_NK[:, 0], target_NK[:, 0], *weights)
        odds_NK = log_odds(score_NK)
        # Ranking against the rest is undefined for a class that no or every sample has.
        kept = np.flatnonzero((target_NK.min(axis=0, initial=1) < 1) & (target_NK.max(axis=0, initial=0) > 0))
        values = [self.of_samples(odds_NK[:, k], target_NK[:, k], *weights) for k in kept]
        return float(np.mean(values)) if values else self.of_samples(odds_NK[:, 0], target_NK[:, 0], *weights)

    def of_samples(self, score_N: np.ndarray, target_N: np.ndarray, weight_N: Optional[np.ndarray] = None) -> float:
        """Computes the metric of a class against the rest from its log odds and targets 0 or 1, in float64."""
        raise NotImplementedError


class RocAuc(ClassMetric):
    """Area under the ROC curve: the probability that a positive sample scores higher than a negative one.

    Ties count half. The value is NaN if all samples are of one class. With more than two classes it is the mean over
    classes of each against the rest.
    """

    direction: ClassVar[Literal["max", "min"]] = "max"
    takes_weights: ClassVar[bool] = True

    def of_samples(self, score_N: np.ndarray, target_N: np.ndarray, weight_N: Optional[np.ndarray] = None) -> float:
        return roc_auc(score_N, target_N, weight_N)


class AveragePrecision(ClassMetric):
    """Average precision: the sum over thresholds of the precision times the increase in recall, without interpolation.

    The value is NaN without positive samples. Random scores get about the fraction of positive samples. With more than
    two classes it is the mean over classes of each against the rest.
    """

    direction: ClassVar[Literal["max", "min"]] = "max"
    takes_weights: ClassVar[bool] = True

    def of_samples(self, score_N: np.ndarray, target_N: np.ndarray, weight_N: Optional[np.ndarray] = None) -> float:
        return average_precision(score_N, target_N, weight_N)


class LogLoss(SampleMean):
    """Mean of -log p of the true class, in nats; weights of a loss do not change it."""

    direction: ClassVar[Literal["max", "min"]] = "min"
    takes: ClassVar[Takes] = Takes(RowClass)

    def sample_values(self, F: OperatorModule, logits_BK: Array, label_B: Array, num_classes: int) -> Array:
        return -F.pick(F.log_softmax(logits_BK), label_B, axis=-1)


class BrierScore(ClassMetric):
    """Mean squared difference between probability and target, from 0 to 1. With more than two classes, it is half of
    the sum over classes, which for two classes gives the same value."""

    direction: ClassVar[Literal["max", "min"]] = "min"
    takes_weights: ClassVar[bool] = True

    def of_classes(self, score_NK: np.ndarray, target_NK: np.ndarray, weight_N: Optional[np.ndarray] = None) -> float:
        if score_NK.shape[1] == 1:
            return self.of_samples(score_NK[:, 0], target_NK[:, 0], weight_N)
        difference_NK = sigmoid(log_odds(score_NK)) - target_NK
        square_N = (difference_NK**2).sum(axis=1)
        return float(np.average(square_N, weights=weight_N)) / 2 if len(score_NK) else math.nan

    def of_samples(self, score_N: np.ndarray, target_N: np.ndarray, weight_N: Optional[np.ndarray] = None) -> float:
        square_N = (sigmoid(score_N) - target_N) ** 2
        return float(np.average(square_N, weights=weight_N)) if len(target_N) else math.nan


class ExpectedCalibrationError(ClassMetric):
    """Absolute difference between mean probability and fraction of positive samples in a bin, averaged over samples.

    With more than two classes, bins hold the probabilities of the predicted classes, and the fraction is that of
    correct predictions.
    """

    direction: ClassVar[Literal["max", "min"]] = "min"
    takes_weights: ClassVar[bool] = True

    num_bins: Positive = 10
    """Number of bins between probabilities 0 and 1."""
    strategy: Literal["uniform", "quantile"] = "uniform"
    """uniform = bins of equal width; quantile = bins of equally many samples, which is better if positive samples are
    rare."""

    @property
    def signature(self) -> str:
        return f"num_bins={self.num_bins} strategy={self.strategy}"

    def of_classes(self, score_NK: np.ndarray, target_NK: np.ndarray, weight_N: Optional[np.ndarray] = None) -> float:
        return self.curve(*confidence(score_NK, target_NK), weight_N).expected_error()

    def curve(
        self, probability_N: np.ndarray, target_N: np.ndarray, weight_N: Optional[np.ndarray] = None
    ) -> CalibrationCurve:
        """Returns the calibration curve with the bins of this metric."""
        return calibration_curve(probability_N, target_N, self.num_bins, self.strategy, weight_N)


def confidence(score_NK: np.ndarray, target_NK: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    """Returns the probability of the positive class and the target of each sample, (N,) each. With more than two
    classes, these are the probability of the predicted class, and 1 if the prediction is correct, otherwise 0."""
    if score_NK.shape[1] == 1:
        return sigmoid(score_NK[:, 0]), target_NK[:, 0]
    rows, best_N = np.arange(len(score_NK)), score_NK.argmax(axis=1)
    return sigmoid(log_odds(score_NK)[rows, best_N]), target_NK[rows, best_N]


class CalibrationCurve(NamedTuple):
    """Calibration curve over the non-empty bins of predicted probability.

    Attributes:
        low_D, high_D: bounds of each bin.
        count_D: number of samples in each bin, or the sum of their weights.
        probability_D: mean predicted probability in each bin.
        share_D: fraction of positive samples in each bin.
    """

    low_D: np.ndarray
    high_D: np.ndarray
    count_D: np.ndarray
    probability_D: np.ndarray
    share_D: np.ndarray

    def expected_error(self) -> float:
        """Computes the mean of |probability - share| over the bins, weighted by their numbers of samples."""
        return ratio((self.count_D * np.abs(self.probability_D - self.share_D)).sum(), self.count_D.sum())


def log_odds(score_NK: np.ndarray) -> np.ndarray:
    """Returns the log odds of each class, log p - log(1 - p) of its softmax probability p, exact also near 0 and 1."""
    odds_NK = np.empty_like(score_NK, np.float64)
    for k in range(score_NK.shape[1]):
        others_NK = np.delete(score_NK, k, axis=1).astype(np.float64)
        # Subtracted before exp, so that exp neither overflows nor rounds all terms to 0.
        largest_N = others_NK.max(axis=1, initial=-np.inf)
        odds_NK[:, k] = score_NK[:, k] - largest_N - np.log(np.exp(others_NK - largest_N[:, None]).sum(axis=1))
    return odds_NK


def sigmoid(score_N: np.ndarray) -> np.ndarray:
    """Computes the sigmoid of scores in float64, without overflow."""
    # exp of a negative number never overflows, and sigmoid(x) = 1 - sigmoid(-x).
    small_N = np.exp(-np.abs(score_N.astype(np.float64)))
    return np.where(score_N >= 0, 1.0, small_N) / (1.0 + small_N)


def roc_auc(score_N: np.ndarray, target_N: np.ndarray, weight_N: Optional[np.ndarray] = None) -> float:
    """Computes the area under the ROC curve; see `RocAuc`.

    Source: Hanley and McNeil, "The meaning and use of the area under a ROC curve" (1982).

    Args:
        score_N: scores.
        target_N: targets, positive for positive samples.
        weight_N: weight of each sample; a pair of samples has the product of their weights. None = each counts once.
    """
    is_positive_N = target_N > 0
    if weight_N is not None:
        positive, negative = float(weight_N[is_positive_N].sum()), float(weight_N[~is_positive_N].sum())
        if not positive or not negative:
            return math.nan
        # The weight of negative samples below each positive one; those with an equal score count half.
        below_N = weighted_ranks(score_N, np.where(is_positive_N, 0.0, weight_N))
        return float((weight_N * below_N)[is_positive_N].sum() / (positive * negative))
    positive = int(is_positive_N.sum())
    negative = len(target_N) - positive
    if not positive or not negative:
        return math.nan
    # The Mann-Whitney U statistic: pairs of a positive and a lower-ranked negative sample, from the sum of ranks.
    above = ranks(score_N)[is_positive_N].sum() - positive * (positive + 1) / 2
    return float(above / (positive * negative))


def average_precision(score_N: np.ndarray, target_N: np.ndarray, weight_N: Optional[np.ndarray] = None) -> float:
    """Computes the average precision; see `AveragePrecision`. Samples with equal scores share one threshold.

    Args:
        score_N: scores.
        target_N: targets, positive for positive samples.
        weight_N: weight of each sample; None = each counts once.
    """
    order = np.argsort(-score_N, kind="stable")
    is_hit_N = target_N[order] > 0
    hit_N = np.cumsum(is_hit_N if weight_N is None else is_hit_N * weight_N[order])
    if not len(hit_N) or not hit_N[-1]:
        return math.nan
    # Of samples with equal scores, which no threshold can separate, only the last one makes a threshold.
    last_T = np.flatnonzero(np.append(np.diff(score_N[order]) != 0, True))
    hit_T = hit_N[last_T]
    total_T = last_T + 1 if weight_N is None else np.cumsum(weight_N[order])[last_T]
    return float((np.diff(hit_T, prepend=0) * hit_T / total_T).sum() / hit_N[-1])


def calibration_curve(
    probability_N: np.ndarray,
    target_N: np.ndarray,
    num_bins: int,
    strategy: str,
    weight_N: Optional[np.ndarray] = None,
) -> CalibrationCurve:
    """Computes a calibration curve. Bins include their upper bound, the first one also 0; empty bins are dropped.

    Args:
        probability_N: predicted probabilities.
        target_N: targets, 0 or 1.
        num_bins: number of bins.
        strategy: "uniform" for bins of equal width, "quantile" for bins with equal numbers of samples.
        weight_N: weight of each sample in means and counts; None = each counts once.

    Source: Naeini et al., "Obtaining well calibrated probabilities using Bayesian binning" (2015).
    """
    part_E = np.linspace(0.0, 1.0, num_bins + 1)
    bound_E = part_E if strategy == "uniform" or not len(probability_N) else np.quantile(probability_N, part_E)
    # side="left" puts a probability that equals an edge into the lower bin; the clip keeps 0 in the first bin.
    bin_N = np.clip(np.searchsorted(bound_E, probability_N, side="left") - 1, 0, num_bins - 1)
    count_D = np.bincount(bin_N, weights=weight_N, minlength=num_bins)
    filled = np.flatnonzero(count_D)
    count_D = count_D[filled]
    means = [
        np.bincount(bin_N, weights=value_N if weight_N is None else value_N * weight_N, minlength=num_bins)[filled]
        / count_D
        for value_N in (probability_N, target_N)
    ]
    return CalibrationCurve(bound_E[filled], bound_E[filled + 1], count_D, means[0], means[1])
