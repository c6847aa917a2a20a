"""Metrics with MXNet's names. Each metric sums a small vector over samples and computes its value from the totals.

Sums add up across batches and workers, so a metric over a whole split is exact, not a mean of per-batch values.

Undefined values are NaN, which is shown as `-` and is never the best. Whether a value is defined depends on the
samples, not on the predictions: correlations are NaN for constant targets and 0 for constant predictions; recall and
average precision are NaN without objects. Otherwise the mean over folds would leave out a fold whose network has
collapsed. Users must declare the better direction of their own metrics; it is not guessed from the name.

Legend: B batch, K classes, M positions, T tokens.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, Literal, Sequence

from mxtrain.config.moved import moved_names
from mxtrain.errors import ConfigError
from mxtrain.metric.spec import Metric, SampleMean, ratio
from mxtrain.types import Positive
from mxtrain.types.kinds import ClassIndex, Number, PositionLabels, Preference, RowClass, Takes, Tokens

if TYPE_CHECKING:
    import numpy as np

    from mxtrain.types.annotations import Array, OperatorModule


def perplexity(entropy: float) -> float:
    """Returns the exponential of a cross entropy in nats; infinity if it is too large for a float, NaN for NaN."""
    return math.inf if entropy >= 700 else math.exp(entropy)  # Python's exp raises above 709


class Accuracy(SampleMean):
    """Fraction of samples whose highest-scoring class is the label, from 0 to 1."""

    direction: ClassVar[Literal["max", "min"]] = "max"
    takes: ClassVar[Takes] = Takes(ClassIndex, RowClass)

    def sample_values(self, F: OperatorModule, logits_BK: Array, label_B: Array, num_classes: int) -> Array:
        return F.argmax(logits_BK, axis=-1) == label_B


class PositionMetric(Metric):
    """Base class of metrics that average over the labelled positions of all samples.

    Scores are (B, M, K). Labels are (B, M); a label of -1 excludes its position. The sums are the measured value and
    the number of labelled positions.
    """

    takes: ClassVar[Takes] = Takes(PositionLabels)

    def size(self, num_classes: int) -> int:
        return 2

    def value(self, sums: np.ndarray, count: float) -> float:
        return ratio(sums[0], sums[1])


class PositionAccuracy(PositionMetric):
    """Fraction of labelled positions, such as masked tokens or words, that are predicted correctly, from 0 to 1."""

    direction: ClassVar[Literal["max", "min"]] = "max"

    def sums(self, F: OperatorModule, logits_BK: Array, label_B: Array, num_classes: int) -> Array:
        hits_BM = F.argmax(logits_BK, axis=-1) == label_B  # argmax is never -1, so excluded positions are no hits
        return F.concat(F.sum(hits_BM).reshape((1,)), F.sum(label_B >= 0).reshape((1,)), dim=0)


class TopKAccuracy(SampleMean):
    """Fraction of samples whose label is among the `top_k` highest-scoring classes, from 0 to 1."""

    direction: ClassVar[Literal["max", "min"]] = "max"
    takes: ClassVar[Takes] = Takes(ClassIndex, RowClass)

    top_k: Positive = 5
    """Number of highest-scoring classes that must contain the label."""

    @property
    def signature(self) -> str:
        return f"top_k={self.top_k}"

    def constant_by(self, num_choices: int) -> str:
        return f"top_k={self.top_k}" if self.top_k >= num_choices else ""

    def sample_values(self, F: OperatorModule, logits_BK: Array, label_B: Array, num_classes: int) -> Array:
        # Counting the scores above the label's is cheaper than sorting. Ties count in favour of the label.
        label_score_B1 = F.pick(logits_BK, label_B, axis=-1, keepdims=True)
        rank_B = F.sum(F.broadcast_greater(logits_BK, label_score_B1), axis=-1)
        return rank_B < self.top_k


class CrossEntropy(SampleMean):
    """Mean of -log p(label), in nats."""

    direction: ClassVar[Literal["max", "min"]] = "min"

    def sample_values(self, F: OperatorModule, logits_BK: Array, label_B: Array, num_classes: int) -> Array:
        return -F.pick(F.log_softmax(logits_BK), label_B, axis=-1)


class PositionPerplexity(PositionMetric):
    """Exponential of the mean cross entropy of masked tokens."""

    direction: ClassVar[Literal["max", "min"]] = "min"

    def sums(self, F: OperatorModule, logits_BK: Array, label_B: Array, num_classes: int) -> Array:
        loss_BM = -F.pick(F.log_softmax(logits_BK), F.relu(label_B), axis=-1)
        counts_BM = label_B >= 0  # `pick` needs a valid class: relu makes -1 class 0, and its loss is masked below
        return F.concat(F.sum(loss_BM * counts_BM).reshape((1,)), F.sum(counts_BM).reshape((1,)), dim=0)

    def value(self, sums: np.ndarray, count: float) -> float:
        return perplexity(super().value(sums, count))


class Perplexity(CrossEntropy):
    """Exponential of the cross entropy."""

    def value(self, sums: np.ndarray, count: float) -> float:
        return perplexity(super().value(sums, count))


class TokenMetric(Metric):
    """Base class of language-model metrics.

    The network's output is -log p of each token, (B, T), already 0 at padding. Targets are the tokens (B, T), -1 for
    padding, and the number of bytes of each text (B,). The sums are -log p, the number of tokens and the number of
    bytes.
    """

    direction: ClassVar[Literal["max", "min"]] = "min"
    takes: ClassVar[Takes] = Takes(Tokens)

    def size(self, num_classes: int) -> int:
        return 3

    def measure(self, F: OperatorModule, outputs: Sequence[Array], targets: Sequence[Array], num_classes: int) -> Array:
        label_BT, bytes_B = targets
        sums = (F.sum(outputs[0]), F.sum(label_BT >= 0), F.sum(bytes_B))
        return F.concat(*(value.reshape((1,)) for value in sums), dim=0)


class TokenPerplexity(TokenMetric):
    """Exponential of the mean of -log p per token. Comparable only between models with the same vocabulary and text."""

    def value(self, sums: np.ndarray, count: float) -> float:
        return perplexity(ratio(sums[0], sums[1]))


class BitsPerByte(TokenMetric):
    """Mean of -log2 p per byte of text. Comparable between vocabularies."""

    def value(self, sums: np.ndarray, count: float) -> float:
        return ratio(sums[0] / math.log(2), sums[2])


class ExpertBalance(Metric):
    """Evenness of the load of experts in a window of tokens, from 1 (all experts get equally many tokens) down to
    experts_per_token / experts (all tokens go to the same ones); the mean over layers and windows.

    It is (sum of loads)^2 / (E * sum of squared loads), Jain's fairness index. The network's second output is the
    number of tokens of each expert, (B, layers, E). Source: Jain et al., DEC-TR-301 (1984), equation 1.
    """

    direction: ClassVar[Literal["max", "min"]] = "max"
    takes: ClassVar[Takes] = Takes(Tokens)

    def size(self, num_classes: int) -> int:
        return 2

    def measure(self, F: OperatorModule, outputs: Sequence[Array], targets: Sequence[Array], num_classes: int) -> Array:
        load_BLE = outputs[1]
        squares_BL = F.mean(F.square(load_BLE), axis=-1)
        has_tokens_BL = squares_BL > 0
        evenness_BL = F.square(F.mean(load_BLE, axis=-1)) / (squares_BL + (1 - has_tokens_BL))
        return F.concat(F.sum(evenness_BL).reshape((1,)), F.sum(has_tokens_BL).reshape((1,)), dim=0)

    def value(self, sums: np.ndarray, count: float) -> float:
        return ratio(sums[0], sums[1])


class BrierError(Metric):
    """Base class of mean errors of the predicted probabilities against the one-hot label, over samples and classes."""

    direction: ClassVar[Literal["max", "min"]] = "min"

    def error(self, F: OperatorModule, logits_BK: Array, label_B: Array, num_classes: int) -> Array:
        return F.softmax(logits_BK) - F.one_hot(label_B, num_classes)


class MSE(BrierError):
    """Mean squared error of the probabilities (the Brier score over K)."""

    def sums(self, F: OperatorModule, logits_BK: Array, label_B: Array, num_classes: int) -> Array:
        return F.sum(F.square(self.error(F, logits_BK, label_B, num_classes))).reshape((1,)) / num_classes


class RMSE(MSE):
    """Root of the mean squared error of the probabilities."""

    def value(self, sums: np.ndarray, count: float) -> float:
        return math.sqrt(super().value(sums, count))


class MAE(BrierError):
    """Mean absolute error of the probabilities."""

    def sums(self, F: OperatorModule, logits_BK: Array, label_B: Array, num_classes: int) -> Array:
        return F.sum(F.abs(self.error(F, logits_BK, label_B, num_classes))).reshape((1,)) / num_classes


MAX_CONFUSION_CLASSES = 2000
"""Maximum number of classes of a confusion matrix: float32 represents the numbers of its four million cells exactly."""


def count_cells(F: OperatorModule, cell: Array, size: int) -> Array:
    """Counts the occurrences of each integer from 0 to `size` - 1, as (size,) float32; other values are ignored.

    A histogram needs no memory per value and cell, unlike a sum of one-hot vectors.
    """
    # Each integer lies in the middle of its bin, so that rounding cannot move it into the next one.
    counts, edges = F.histogram(cell.reshape((-1,)), bins=size, range=(-0.5, size - 0.5))
    # MXNet cannot compute one of the two outputs alone, so the edges enter with a factor of 0. The operator has no
    # gradient, so recording it under autograd would fail without BlockGrad.
    counts, edges = F.BlockGrad(counts), F.BlockGrad(edges)
    return F.cast(counts, "float32") + 0 * F.slice_axis(F.cast(edges, "float32"), axis=0, begin=0, end=size)


class ConfusionMetric(Metric):
    """Base class of metrics of the (K, K) confusion matrix; rows are labels, columns are predictions."""

    takes: ClassVar[Takes] = Takes(ClassIndex, RowClass)
    takes_weights: ClassVar[bool] = True

    def size(self, num_classes: int) -> int:
        if num_classes > MAX_CONFUSION_CLASSES:
            raise ConfigError(
                f"metric: {type(self).__name__} counts pairs of classes, of which {num_classes:,} classes have "
                f"{num_classes**2:,}; at most {MAX_CONFUSION_CLASSES:,} classes are counted. Leave it out."
            )
        return num_classes * num_classes

    def sums(self, F: OperatorModule, logits_BK: Array, label_B: Array, num_classes: int) -> Array:
        return count_cells(F, label_B * num_classes + F.argmax(logits_BK, axis=-1), num_classes * num_classes)

    def measure_weighted(
        self,
        F: OperatorModule,
        outputs: Sequence[Array],
        targets: Sequence[Array],
        weight_B: Array,
        num_classes: int,
    ) -> Array:
        # A histogram counts and cannot weight, so cells are sums of products of one-hot vectors.
        label_BK = F.broadcast_mul(F.one_hot(targets[0], num_classes), weight_B.reshape((-1, 1)))
        predicted_BK = F.one_hot(F.argmax(outputs[0], axis=-1), num_classes)
        return F.dot(label_BK, predicted_BK, transpose_a=True).reshape((-1,))

    def value(self, sums: np.ndarray, count: float) -> float:
        side = math.isqrt(len(sums))
        return self.of_confusion(sums.reshape(side, side))

    def of_confusion(self, confusion_KK: np.ndarray) -> float:
        """Computes the metric from the confusion matrix of all samples."""
        raise NotImplementedError


class F1(ConfusionMetric):
    """Harmonic mean of precision and recall; NaN without samples.

    `macro` averages over the classes that occur as a label or a prediction; `micro` pools all samples.
    """

    direction: ClassVar[Literal["max", "min"]] = "max"

    average: Literal["macro", "micro"] = "macro"
    """macro = the mean of the F1 of all classes; micro = the F1 of all samples together."""

    @property
    def signature(self) -> str:
        return f"average={self.average}"

    def of_confusion(self, confusion_KK: np.ndarray) -> float:
        import numpy as np

        hits_K = np.diag(confusion_KK)
        present_K = confusion_KK.sum(0) + confusion_KK.sum(1)
        if self.average == "micro":
            return ratio(2 * hits_K.sum(), present_K.sum())
        seen_K = present_K > 0  # for a class that never occurs the F1 would be 0 / 0
        return ratio((2 * hits_K[seen_K] / present_K[seen_K]).sum(), seen_K.sum())


class MCC(ConfusionMetric):
    """Matthews' correlation, over any number of classes (MXNet's `pcc`).

    The value is NaN if all labels are of one class, and 0 if labels of several classes get the same prediction.
    Source: Gorodkin 2004.
    """

    direction: ClassVar[Literal["max", "min"]] = "max"

    def of_confusion(self, confusion_KK: np.ndarray) -> float:
        import numpy as np

        total = confusion_KK.sum()
        label_K, predicted_K = confusion_KK.sum(1), confusion_KK.sum(0)
        covariance = np.trace(confusion_KK) * total - label_K @ predicted_K
        spread = (total**2 - label_K @ label_K) * (total**2 - predicted_K @ predicted_K)
        # The quotient would be 0 / 0 where all labels or all predictions are of one class.
        if spread > 0:
            return float(covariance / math.sqrt(spread))
        return 0.0 if (label_K > 0).sum() > 1 else math.nan


class ValueMetric(SampleMean):
    """Base class of mean errors of predictions (B, 1) against targets (B,), in the unit of the targets."""

    direction: ClassVar[Literal["max", "min"]] = "min"
    takes: ClassVar[Takes] = Takes(Number, Preference)

    def sample_values(self, F: OperatorModule, prediction_B1: Array, target_B: Array, num_classes: int) -> Array:
        return self.error(F, prediction_B1.reshape((-1,)) - target_B)

    def error(self, F: OperatorModule, difference_B: Array) -> Array:
        """Computes the error of each sample, (B,), from prediction minus target."""
        raise NotImplementedError


class MeanSquaredError(ValueMetric):
    """Mean of the squared differences."""

    def error(self, F: OperatorModule, difference_B: Array) -> Array:
        return F.square(difference_B)


class RootMeanSquaredError(MeanSquaredError):
    """Root of the mean of the squared differences."""

    def value(self, sums: np.ndarray, count: float) -> float:
        return math.sqrt(super().value(sums, count))


class MeanAbsoluteError(ValueMetric):
    """Mean of the absolute differences."""

    def error(self, F: OperatorModule, difference_B: Array) -> Array:
        return F.abs(difference_B)


if not TYPE_CHECKING:  # else mypy would accept any name
    __getattr__ = moved_names(__name__)
