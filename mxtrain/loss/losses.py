"""Losses over class scores, by MXNet's names."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Tuple

from mxtrain.errors import ConfigError
from mxtrain.types import OpenFraction, PositiveFloat, Spec

if TYPE_CHECKING:
    from mxnet import gluon


class Loss(Spec):
    """A loss of class scores against class indices or class probabilities."""

    label_smoothing: OpenFraction = 0.0
    """Share of the target spread evenly over all classes while training. Source: arXiv 1512.00567, section 7."""

    gluon_name: ClassVar[str] = ""
    """The class in mxnet.gluon.loss that does the arithmetic on dense targets."""
    signed_target: ClassVar[bool] = False
    """If true, targets are -1 and 1 instead of 0 and 1."""
    tasks: ClassVar[Tuple[str, ...]] = ("classification",)
    """Names of the tasks whose outputs and targets it takes; empty: any."""
    passes: ClassVar[int] = 1
    """Number of passes over each sample drawn with the current weights, before new samples are drawn."""

    def require_unsmoothed(self, reason: str = "") -> None:
        """Raises: ConfigError: labels are to be smoothed where there is nothing to smooth; says so by the reason."""
        if self.label_smoothing:
            said = reason or f"{type(self).__name__} smooths nothing"
            raise ConfigError(f"loss.label_smoothing={self.label_smoothing}: {said}. Type loss.label_smoothing=0.")

    def build(self, num_classes: int, training: bool) -> gluon.Block:
        """A HybridBlock (scores (B, K), labels) -> loss (B,).

        Args:
            num_classes: K.
            training: whether labels may be (B, K) probabilities and are smoothed; else they are (B,) indices.
        """
        from mxtrain.loss.blocks import DenseTargetLoss

        smoothing = self.label_smoothing if training else 0.0
        return DenseTargetLoss(self.block(), num_classes, smoothing, self.signed_target)

    def block(self) -> gluon.Block:
        """The gluon block of (scores (B, K), targets (B, K)) -> (B,)."""
        from mxtrain.engine.backend import gluon

        return getattr(gluon.loss, self.gluon_name)(**self.model_dump(exclude={"label_smoothing"}))


class LossOfUser(Loss):
    """Fields allowed beside a loss that is brought in by `_target_`."""

    tasks: ClassVar[Tuple[str, ...]] = ()

    dense_labels: bool = False
    """If true, labels are class probabilities, (B, K), instead of class indices, (B,), as in Gluon."""


class SoftmaxCrossEntropy(Loss):
    """Softmax cross entropy, the default for classification."""

    def build(self, num_classes: int, training: bool) -> gluon.Block:
        from mxtrain.loss.blocks import SoftmaxCrossEntropyLoss

        return SoftmaxCrossEntropyLoss(self.label_smoothing if training else 0.0)


class SigmoidBCE(Loss):
    """Binary cross entropy of each class by itself."""

    gluon_name: ClassVar[str] = "SigmoidBCELoss"


class BinaryCrossEntropy(Loss):
    """Binary cross entropy of one score and a yes/no target: -w y log p - (1 - y) log(1 - p), with p = sigmoid(score);
    the mean over samples."""

    tasks: ClassVar[Tuple[str, ...]] = ("tabular",)

    pos_weight: PositiveFloat = 1.0
    """Weight of a positive sample (w above), relative to 1 for a negative one. Values above 1 make predicted
    probabilities too high. As `pos_weight` of PyTorch's BCEWithLogitsLoss."""

    def build(self, num_classes: int, training: bool) -> gluon.Block:
        from mxtrain.loss.blocks import BinaryCrossEntropyLoss

        return BinaryCrossEntropyLoss(self.pos_weight)


class KLDiv(Loss):
    """Kullback-Leibler divergence between the target distribution and the softmax."""

    gluon_name: ClassVar[str] = "KLDivLoss"

    def block(self) -> gluon.Block:
        from mxtrain.engine.backend import gluon

        return gluon.loss.KLDivLoss(from_logits=False)


class L1(Loss):
    """Mean absolute difference to the target: the one-hot class, or a value."""

    tasks: ClassVar[Tuple[str, ...]] = ("classification", "regression", "recommendation")
    gluon_name: ClassVar[str] = "L1Loss"


class L2(Loss):
    """Half the mean squared difference to the target: the one-hot class, or a value."""

    tasks: ClassVar[Tuple[str, ...]] = ("classification", "regression", "recommendation")
    gluon_name: ClassVar[str] = "L2Loss"


class Huber(Loss):
    """Squared below `rho`, absolute above."""

    rho: PositiveFloat = 1.0
    """Difference from which on the loss is linear."""
    tasks: ClassVar[Tuple[str, ...]] = ("classification", "regression", "recommendation")
    gluon_name: ClassVar[str] = "HuberLoss"


class Hinge(Loss):
    """max(0, margin - score * sign)."""

    margin: PositiveFloat = 1.0
    """Score beyond which a sample costs nothing."""
    gluon_name: ClassVar[str] = "HingeLoss"
    signed_target: ClassVar[bool] = True


class SquaredHinge(Loss):
    """max(0, margin - score * sign)^2."""

    margin: PositiveFloat = 1.0
    """Score beyond which a sample costs nothing."""
    gluon_name: ClassVar[str] = "SquaredHingeLoss"
    signed_target: ClassVar[bool] = True


class Logistic(Loss):
    """log(1 + exp(-score * sign))."""

    gluon_name: ClassVar[str] = "LogisticLoss"
    signed_target: ClassVar[bool] = True

    def block(self) -> gluon.Block:
        from mxtrain.engine.backend import gluon

        return gluon.loss.LogisticLoss(label_format="signed")
