"""Metrics of binary classification: ranking quality of the scores and calibration of the probabilities.

Scores are logits. Ranks of float32 probabilities would lose information, because a float32 sigmoid is exactly 1 for
every logit above 17.

Legend: N samples, T distinct scores, D non-empty bins, E bin edges.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, Tuple

import numpy as np

from mxtrain.metric.host import PairMetric, ranks
from mxtrain.metric.metrics import Metric, ratio
from mxtrain.types import Positive

if TYPE_CHECKING:
    from mxtrain.annotations import Array, OperatorModule


class RocAuc(PairMetric):
    """Area under the ROC curve: the probability that a positive sample scores higher than a negative one.

    Ties count half. The value is NaN if all samples are of one class.
    """

    direction: ClassVar[Literal["max", "min"]] = "max"
    tasks: ClassVar[Tuple[str, ...]] = ("tabular",)

    def of_samples(self, prediction_N: np.ndarray, target_N: np.ndarray) -> float:
        return roc_auc(prediction_N, target_N)


class AveragePrecision(PairMetric):
    """Average precision: the sum over thresholds of the precision times the increase in recall, without interpolation.

    The value is NaN without positive samples. Random scores get about the fraction of positive samples.
    """

    direction: ClassVar[Literal["max", "min"]] = "max"
    tasks: ClassVar[Tuple[str, ...]] = ("tabular",)

    def of_samples(self, prediction_N: np.ndarray, target_N: np.ndarray) -> float:
        return average_precision(prediction_N, target_N)


class LogLoss(Metric):
    """Mean of -log p of the true class, in nats; ignores sample weights."""

    direction: ClassVar[Literal["max", "min"]] = "min"
    tasks: ClassVar[Tuple[str, ...]] = ("tabular",)

    def sums(self, F: OperatorModule, logits_BK: Array, label_B: Array, num_classes: int) -> Array:
        # -log sigmoid(x) = softplus(-x), which cannot overflow; `softrelu` is MXNet's name of softplus.
        sign_B = 1 - 2 * label_B
        return F.sum(F.Activation(F.reshape(logits_BK, shape=(-1,)) * sign_B, act_type="softrelu")).reshape((1,))


class BrierScore(PairMetric):
    """Mean squared difference between probability and target, from 0 to 1."""

    direction: ClassVar[Literal["max", "min"]] = "min"
    tasks: ClassVar[Tuple[str, ...]] = ("tabular",)

    def of_samples(self, prediction_N: np.ndarray, target_N: np.ndarray) -> float:
        return float(((sigmoid(prediction_N) - target_N) ** 2).mean()) if len(target_N) else math.nan


class ExpectedCalibrationError(PairMetric):
    """Difference between mean probability and fraction of positive samples per bin, averaged over samples."""

    direction: ClassVar[Literal["max", "min"]] = "min"
    tasks: ClassVar[Tuple[str, ...]] = ("tabular",)

    num_bins: Positive = 10
    """Bins of probabilities."""
    strategy: Literal["uniform", "quantile"] = "uniform"
    """uniform = bins of one width; quantile = of as many samples each, which is better where positive samples are
    rare."""

    @property
    def signature(self) -> str:
        return f"num_bins={self.num_bins} strategy={self.strategy}"

    def of_samples(self, prediction_N: np.ndarray, target_N: np.ndarray) -> float:
        return self.curve(sigmoid(prediction_N), target_N).expected_error()

    def curve(self, probability_N: np.ndarray, target_N: np.ndarray) -> CalibrationCurve:
        """Returns the calibration curve with the bins of this metric."""
        return calibration_curve(probability_N, target_N, self.num_bins, self.strategy)


class CalibrationCurve(NamedTuple):
    """Calibration curve over the non-empty bins of predicted probability.

    Attributes:
        low_D, high_D: bounds of each bin.
        count_D: number of samples in each bin.
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


def sigmoid(score_N: np.ndarray) -> np.ndarray:
    """Computes the sigmoid of scores in float64, without overflow."""
    small_N = np.exp(-np.abs(score_N.astype(np.float64)))
    return np.where(score_N >= 0, 1.0, small_N) / (1.0 + small_N)


def roc_auc(score_N: np.ndarray, target_N: np.ndarray) -> float:
    """Computes the area under the ROC curve; see `RocAuc`.

    Source: Hanley and McNeil, "The meaning and use of the area under a ROC curve" (1982).
    """
    positive = int((target_N > 0).sum())
    negative = len(target_N) - positive
    if not positive or not negative:
        return math.nan
    # The Mann-Whitney U statistic: pairs of a positive and a lower-ranked negative sample, from the sum of ranks.
    above = ranks(score_N)[target_N > 0].sum() - positive * (positive + 1) / 2
    return float(above / (positive * negative))


def average_precision(score_N: np.ndarray, target_N: np.ndarray) -> float:
    """Computes the average precision; see `AveragePrecision`. Samples with equal scores share one threshold."""
    order = np.argsort(-score_N, kind="stable")
    hit_N = np.cumsum(target_N[order] > 0)
    if not len(hit_N) or not hit_N[-1]:
        return math.nan
    # The last sample of each run of equal scores: a threshold cannot separate the samples of a run.
    last_T = np.flatnonzero(np.append(np.diff(score_N[order]) != 0, True))
    hit_T = hit_N[last_T]
    return float((np.diff(hit_T, prepend=0) * hit_T / (last_T + 1)).sum() / hit_N[-1])


def calibration_curve(
    probability_N: np.ndarray, target_N: np.ndarray, num_bins: int, strategy: str
) -> CalibrationCurve:  # fmt: skip
    """Computes a calibration curve. Bins include their upper bound, the first one also 0; empty bins are dropped.

    Args:
        probability_N: predicted probabilities.
        target_N: targets, 0 or 1.
        num_bins: number of bins.
        strategy: "uniform" for bins of equal width, "quantile" for bins with equal numbers of samples.

    Source: Naeini et al., "Obtaining well calibrated probabilities using Bayesian binning" (2015).
    """
    part_E = np.linspace(0.0, 1.0, num_bins + 1)
    bound_E = part_E if strategy == "uniform" or not len(probability_N) else np.quantile(probability_N, part_E)
    # side="left" puts a probability that equals an edge into the lower bin; the clip keeps 0 in the first bin.
    bin_N = np.clip(np.searchsorted(bound_E, probability_N, side="left") - 1, 0, num_bins - 1)
    count_D = np.bincount(bin_N, minlength=num_bins)
    filled = np.flatnonzero(count_D)
    count_D = count_D[filled]
    means = [np.bincount(bin_N, weights=value_N, minlength=num_bins)[filled] / count_D
             for value_N in (probability_N, target_N)]  # fmt: skip
    return CalibrationCurve(bound_E[filled], bound_E[filled + 1], count_D, means[0], means[1])
