"""Metrics of one score and a yes/no target: how well scores rank, and whether probabilities are right.

Scores are those before the sigmoid, which in 32 bits would make 1 of all that are above 17.

Legend: N samples, T different scores, D bins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, Tuple

import numpy as np

from mxtrain.metric.host import OfPairs, ranks
from mxtrain.metric.metrics import Metric
from mxtrain.types import Positive

if TYPE_CHECKING:
    from mxtrain.annotations import Array, OperatorModule


class RocAuc(OfPairs):
    """Area under the ROC curve: the probability that a positive sample has a higher score than a negative one, equal
    scores counting half; 0.5 where all samples are of one kind."""

    tasks: ClassVar[Tuple[str, ...]] = ("tabular",)

    def of_samples(self, prediction_N: np.ndarray, target_N: np.ndarray) -> float:
        return roc_auc(prediction_N, target_N)


class AveragePrecision(OfPairs):
    """Area under the precision-recall curve as average precision: the sum over thresholds of precision times what it
    adds to recall, without interpolation; 0 without a positive sample.

    A random order gets about the share of positive samples.
    """

    tasks: ClassVar[Tuple[str, ...]] = ("tabular",)

    def of_samples(self, prediction_N: np.ndarray, target_N: np.ndarray) -> float:
        return average_precision(prediction_N, target_N)


class LogLoss(Metric):
    """Mean of -log p of what a sample is, in nats, without weights."""

    direction: ClassVar[Literal["max", "min"]] = "min"
    tasks: ClassVar[Tuple[str, ...]] = ("tabular",)

    def sums(self, F: OperatorModule, logits_BK: Array, label_B: Array, num_classes: int) -> Array:
        sign_B = 1 - 2 * label_B
        return F.sum(F.Activation(F.reshape(logits_BK, shape=(-1,)) * sign_B, act_type="softrelu")).reshape((1,))


class BrierScore(OfPairs):
    """Mean squared difference of the probability and the target, 0 to 1."""

    direction: ClassVar[Literal["max", "min"]] = "min"
    tasks: ClassVar[Tuple[str, ...]] = ("tabular",)

    def of_samples(self, prediction_N: np.ndarray, target_N: np.ndarray) -> float:
        return float(((sigmoid(prediction_N) - target_N) ** 2).mean()) if len(target_N) else 0.0


class ExpectedCalibrationError(OfPairs):
    """Mean over samples of the difference, in their bin, between mean probability and share of positive samples."""

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
        """The curve that it is the error of."""
        return calibration_curve(probability_N, target_N, self.num_bins, self.strategy)


class CalibrationCurve(NamedTuple):
    """Bins of probabilities that hold samples.

    Attributes:
        low_D, high_D: bounds of each.
        count_D: samples in each.
        probability_D: their mean probability.
        share_D: the share of them that is positive.
    """

    low_D: np.ndarray
    high_D: np.ndarray
    count_D: np.ndarray
    probability_D: np.ndarray
    share_D: np.ndarray

    def expected_error(self) -> float:
        """The mean over samples of the difference in their bin."""
        total = self.count_D.sum()
        return float((self.count_D * np.abs(self.probability_D - self.share_D)).sum() / total) if total else 0.0


def sigmoid(score_N: np.ndarray) -> np.ndarray:
    """Probabilities of scores, in float64 and without overflow."""
    small_N = np.exp(-np.abs(score_N.astype(np.float64)))
    return np.where(score_N >= 0, 1.0, small_N) / (1.0 + small_N)


def roc_auc(score_N: np.ndarray, target_N: np.ndarray) -> float:
    """See `RocAuc`. Source: Hanley and McNeil, "The meaning and use of the area under a ROC curve" (1982)."""
    positive = int((target_N > 0).sum())
    negative = len(target_N) - positive
    if not positive or not negative:
        return 0.5
    above = ranks(score_N)[target_N > 0].sum() - positive * (positive + 1) / 2
    return float(above / (positive * negative))


def average_precision(score_N: np.ndarray, target_N: np.ndarray) -> float:
    """See `AveragePrecision`; samples of equal scores come in together."""
    order = np.argsort(-score_N, kind="stable")
    hit_N = np.cumsum(target_N[order] > 0)
    if not len(hit_N) or not hit_N[-1]:
        return 0.0
    last_T = np.flatnonzero(np.append(np.diff(score_N[order]) != 0, True))
    hit_T = hit_N[last_T]
    return float((np.diff(hit_T, prepend=0) * hit_T / (last_T + 1)).sum() / hit_N[-1])


def calibration_curve(
    probability_N: np.ndarray, target_N: np.ndarray, num_bins: int, strategy: str
) -> CalibrationCurve:  # fmt: skip
    """Bins of probabilities; a bin has its upper bound, and the first one 0, too. Those without samples are left out.

    Source: Naeini et al., "Obtaining well calibrated probabilities using Bayesian binning" (2015), of the error.
    """
    part_E = np.linspace(0.0, 1.0, num_bins + 1)
    bound_E = part_E if strategy == "uniform" or not len(probability_N) else np.quantile(probability_N, part_E)
    bin_N = np.clip(np.searchsorted(bound_E, probability_N, side="left") - 1, 0, num_bins - 1)
    count_D = np.bincount(bin_N, minlength=num_bins)
    filled = np.flatnonzero(count_D)
    count_D = count_D[filled]
    means = [np.bincount(bin_N, weights=value_N, minlength=num_bins)[filled] / count_D
             for value_N in (probability_N, target_N)]  # fmt: skip
    return CalibrationCurve(bound_E[filled], bound_E[filled + 1], count_D, means[0], means[1])
