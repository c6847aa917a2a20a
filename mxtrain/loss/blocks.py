"""Losses of classification, regression and tabular tasks as Gluon blocks.

Labels are class indices (B,), or probabilities (B, K) if the attribute `dense` is True. A block returns the loss of
each sample, (B,). A block with `weighted = True` also returns the weight of each sample, (B,); the loss of a batch is
then sum(loss) / sum(weight) over the global batch.

Legend: B batch, K classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Sequence, Tuple

from mxtrain.engine.backend import gluon

if TYPE_CHECKING:
    from mxtrain.types.annotations import Array, LossBlock, OperatorModule


def dense_target(F: OperatorModule, label: Array, num_classes: int, dense: bool) -> Any:
    """Returns (B, K) probabilities from (B,) indices; dense labels are returned unchanged."""
    return label if dense else F.one_hot(label, num_classes)


class SoftmaxCrossEntropyLoss(gluon.HybridBlock):
    """Softmax cross entropy -sum(target * log softmax(scores)) of scores (B, K), with label smoothing.

    Smoothing by s is computed as (1 - s) * nll + s * mean(-log p), without a smoothed target (B, K) in memory.
    Source: Szegedy et al., arXiv 1512.00567, section 7.
    """

    def __init__(self, smoothing: float = 0.0):
        super().__init__()
        self._smoothing = smoothing
        self.dense = False

    def hybrid_forward(self, F: OperatorModule, logits_BK: Array, label: Array) -> Array:
        log_p_BK = F.log_softmax(logits_BK)
        if self.dense:
            loss_B = -F.sum(label * log_p_BK, axis=-1)
        else:
            # `pick` needs no one-hot target, which would be as large as the scores.
            loss_B = -F.pick(log_p_BK, label, axis=-1)
        if self._smoothing:
            loss_B = (1 - self._smoothing) * loss_B - self._smoothing * F.mean(log_p_BK, axis=-1)
        return loss_B


class LossAround(gluon.HybridBlock):
    """Base class of losses around a task's loss. If that is not a HybridBlock, they are not hybridized either."""

    def register_child(self, block: Any, name: Any = None) -> None:
        # HybridBlock rejects children that are plain blocks, such as losses of regression and of users.
        gluon.Block.register_child(self, block, name)  # type: ignore[attr-defined]

    def hybridize(self, active: bool = True, **kwargs: Any) -> None:
        is_hybrid = all(isinstance(block, gluon.HybridBlock) for block in self._children.values())
        (super() if is_hybrid else super(gluon.HybridBlock, self)).hybridize(active, **kwargs)  # type: ignore[attr-defined]


class AllArraysLoss(LossAround):
    """Wraps a user's loss that gets all outputs of the network and all targets. It need not be hybridizable."""

    def __init__(self, block: gluon.Block):
        super().__init__()
        self.weighted = False
        self.block = block

    def hybrid_forward(self, F: OperatorModule, *arrays: Array) -> Any:
        return self.block(*arrays)


class FirstGradientLoss(gluon.HybridBlock):
    """Wraps a hybridizable loss that returns further arrays, and stops the gradients of all but the first.

    Otherwise a hybridized block would pass a gradient of 0 to the other arrays, which becomes NaN in the derivative of
    a square root or a logarithm at 0.
    """

    def __init__(self, block: gluon.HybridBlock):
        super().__init__()
        self.block = block

    def hybrid_forward(self, F: OperatorModule, *arrays: Array) -> Any:
        outputs = self.block(*arrays)
        if not isinstance(outputs, (tuple, list)):
            return outputs
        return (*outputs[:1], *map(F.BlockGrad, outputs[1:]))


class RegressionLoss(LossAround):
    """Applies a Gluon loss, or a user's loss, to predictions (B, 1) and targets (B,).

    Args:
        block: the loss.
        mean, std: mean and standard deviation of the targets. The loss compares predictions with
            (target - mean) / std.
    """

    def __init__(self, block: gluon.Block, mean: float = 0.0, std: float = 1.0):
        super().__init__()
        self.weighted = False
        self.block = block
        self._mean, self._std = mean, std

    def hybrid_forward(self, F: OperatorModule, prediction_B1: Array, target_B: Array) -> Any:
        target_B1 = F.reshape(target_B, shape=(-1, 1))
        if (self._mean, self._std) != (0.0, 1.0):
            target_B1 = (target_B1 - self._mean) / self._std
        return self.block(prediction_B1, target_B1)


class BinaryCrossEntropyLoss(gluon.HybridBlock):
    """Binary cross entropy -w y log p - (1 - y) log(1 - p) of scores (B, 1) and targets y (B,) in {0, 1}.

    p is sigmoid(score), and w is `pos_weight`. -log p is computed as softplus(-score), since log(sigmoid(score)) is
    -inf for very negative scores.
    """

    weighted = False

    def __init__(self, pos_weight: float):
        super().__init__()
        self._pos_weight = pos_weight

    def hybrid_forward(self, F: OperatorModule, score_B1: Array, target_B: Array) -> Array:
        score_B = F.reshape(score_B1, shape=(-1,))
        # -log p and -log(1 - p)
        yes_B, no_B = F.Activation(-score_B, act_type="softrelu"), F.Activation(score_B, act_type="softrelu")
        return self._pos_weight * target_B * yes_B + (1 - target_B) * no_B


class TargetsLoss(LossAround):
    """Applies a loss to predictions (B, M) and standardised targets (B, T), also to one target (B,).

    Args:
        loss: the loss.
        scales: mean and standard deviation of each target.
    """

    def __init__(self, loss: gluon.Block, scales: Sequence[Tuple[float, float]]):
        super().__init__()
        self.weighted = False
        self._scales = scales
        self.loss = loss

    def hybrid_forward(self, F: OperatorModule, prediction_BM: Array, target: Array) -> Any:
        target_BT = F.reshape(target, shape=(-1, len(self._scales)))
        columns = [
            (F.slice_axis(target_BT, axis=1, begin=number, end=number + 1) - mean) / std
            for number, (mean, std) in enumerate(self._scales)
        ]
        return self.loss(prediction_BM, F.concat(*columns, dim=1))


class SampleWeightLoss(LossAround):
    """Multiplies the loss of each sample, its weight and its parts by a weight of the sample, (B,), which is a target.

    Args:
        loss: loss of (*outputs, *targets), without the weights of samples.
        num_after: number of arrays after the weight of samples, such as the outputs of a teacher.
    """

    def __init__(self, loss: LossBlock, num_after: int = 0):
        super().__init__()
        self.weighted = self.sample_weighted = True
        self.least_weight = getattr(loss, "least_weight", 0.0)  # Gluon's own losses have none
        self.parts = tuple(getattr(loss, "parts", ()))
        self.zero_weight_is_error = getattr(loss, "zero_weight_is_error", False)
        self._returns_weight = bool(getattr(loss, "weighted", False))
        self._num_after = num_after
        self.loss = loss

    def hybrid_forward(self, F: OperatorModule, *arrays: Any) -> Any:
        position = len(arrays) - 1 - self._num_after
        weight_B = F.cast(arrays[position], "float32")
        returned: Any = self.loss(*arrays[:position], *arrays[position + 1 :])
        several = self._returns_weight or self.parts
        loss_B, *others = [F.cast(array, "float32") * weight_B for array in (returned if several else [returned])]
        return (loss_B, *(others if self._returns_weight else [weight_B, *others]))


class IndexLabelLoss(LossAround):
    """Wraps a user's loss that takes scores (B, K) and class indices (B,). It need not be hybridizable."""

    def __init__(self, block: gluon.Block):
        super().__init__()
        self.dense = False
        self.weighted = False
        self.block = block

    def hybrid_forward(self, F: OperatorModule, scores: Array, label: Array) -> Any:
        return self.block(scores, label)


class DenseTargetLoss(gluon.HybridBlock):
    """Applies a Gluon loss to scores (B, K) and one-hot or smoothed targets (B, K), and perhaps weights (B, K).

    Args:
        block: the loss.
        num_classes: K.
        smoothing: share of each target that is spread evenly over all classes.
        signed: if True, targets are mapped from [0, 1] to [-1, 1], as hinge and logistic losses expect.
    """

    def __init__(self, block: gluon.Block, num_classes: int, smoothing: float, signed: bool):
        super().__init__()
        self._num_classes, self._smoothing, self._signed = num_classes, smoothing, signed
        self.dense = False
        self.block = block

    def hybrid_forward(self, F: OperatorModule, logits_BK: Array, label: Array, *weights: Array) -> Array:
        target_BK = dense_target(F, label, self._num_classes, self.dense)
        if self._smoothing:
            target_BK = (1 - self._smoothing) * target_BK + self._smoothing / self._num_classes
        if self._signed:
            target_BK = 2 * target_BK - 1
        return self.block(logits_BK, target_BK, *weights)
