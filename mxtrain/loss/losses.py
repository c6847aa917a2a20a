"""Losses over class scores, by MXNet's names."""

from __future__ import annotations

from typing import Any, ClassVar, Tuple

from mxtrain.types import OpenFraction, PositiveFloat, Spec


class Loss(Spec):
    """A loss of class scores against class indices or class probabilities."""

    label_smoothing: OpenFraction = 0.0
    """Share of the target spread evenly over all classes while training. Source: arXiv 1512.00567, section 7."""

    gluon_name: ClassVar[str] = ""
    """The class in mxnet.gluon.loss that does the arithmetic on dense targets."""
    signed_target: ClassVar[bool] = False
    """Whether targets are -1 and 1 instead of 0 and 1."""
    serves: ClassVar[Tuple[str, ...]] = ("classification",)
    """Names of the tasks whose outputs and targets it takes; empty: any."""

    def build(self, num_classes: int, training: bool) -> Any:
        """A HybridBlock (scores (B, K), labels) -> loss (B,).

        Args:
            num_classes: K.
            training: whether labels may be (B, K) probabilities and are smoothed; else they are (B,) indices.
        """
        from mxtrain.loss.blocks import DenseTargetLoss

        smoothing = self.label_smoothing if training else 0.0
        return DenseTargetLoss(self.block(), num_classes, smoothing, self.signed_target)

    def block(self) -> Any:
        """The gluon block of (scores (B, K), targets (B, K)) -> (B,)."""
        from mxtrain.engine.backend import gluon

        return getattr(gluon.loss, self.gluon_name)(**self.model_dump(exclude={"label_smoothing"}))


class LossOfUser(Loss):
    """What stands beside a loss that is brought in by `_target_`."""

    serves: ClassVar[Tuple[str, ...]] = ()

    dense_labels: bool = False
    """Whether it takes class probabilities, (B, K), instead of class indices, (B,), which is Gluon's convention."""


class SoftmaxCrossEntropy(Loss):
    """Softmax cross entropy, the default for classification."""

    def build(self, num_classes: int, training: bool) -> Any:
        from mxtrain.loss.blocks import SoftmaxCrossEntropyLoss

        return SoftmaxCrossEntropyLoss(self.label_smoothing if training else 0.0)


class MaskedSoftmaxCrossEntropy(Loss):
    """Softmax cross entropy of the hidden tokens of texts: the mean over all of them in the global batch."""

    serves: ClassVar[Tuple[str, ...]] = ("masked_language_modeling",)

    def build(self, num_classes: int, training: bool) -> Any:
        from mxtrain.loss.blocks import MaskedSoftmaxCrossEntropyLoss

        return MaskedSoftmaxCrossEntropyLoss(self.label_smoothing if training else 0.0)


class SigmoidBCE(Loss):
    """Binary cross entropy of each class by itself."""

    gluon_name: ClassVar[str] = "SigmoidBCELoss"


class KLDiv(Loss):
    """Kullback-Leibler divergence between the target distribution and the softmax."""

    gluon_name: ClassVar[str] = "KLDivLoss"

    def block(self) -> Any:
        from mxtrain.engine.backend import gluon

        return gluon.loss.KLDivLoss(from_logits=False)


class L1(Loss):
    """Mean absolute difference to the target: the one-hot class, or a value."""

    serves: ClassVar[Tuple[str, ...]] = ("classification", "regression")
    gluon_name: ClassVar[str] = "L1Loss"


class L2(Loss):
    """Half the mean squared difference to the target: the one-hot class, or a value."""

    serves: ClassVar[Tuple[str, ...]] = ("classification", "regression")
    gluon_name: ClassVar[str] = "L2Loss"


class Huber(Loss):
    """Squared below `rho`, absolute above."""

    rho: PositiveFloat = 1.0
    serves: ClassVar[Tuple[str, ...]] = ("classification", "regression")
    gluon_name: ClassVar[str] = "HuberLoss"


class Hinge(Loss):
    """max(0, margin - score * sign)."""

    margin: PositiveFloat = 1.0
    gluon_name: ClassVar[str] = "HingeLoss"
    signed_target: ClassVar[bool] = True


class SquaredHinge(Loss):
    """max(0, margin - score * sign)^2."""

    margin: PositiveFloat = 1.0
    gluon_name: ClassVar[str] = "SquaredHingeLoss"
    signed_target: ClassVar[bool] = True


class Logistic(Loss):
    """log(1 + exp(-score * sign))."""

    gluon_name: ClassVar[str] = "LogisticLoss"
    signed_target: ClassVar[bool] = True

    def block(self) -> Any:
        from mxtrain.engine.backend import gluon

        return gluon.loss.LogisticLoss(label_format="signed")
