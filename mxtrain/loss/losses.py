"""Options of the group `loss` for class scores and single values, named as in mxnet.gluon.loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import pydantic

from mxtrain.errors import ConfigError
from mxtrain.loss.spec import Loss
from mxtrain.types import Fraction, NonNegativeFloat, OpenFraction, PositiveFloat
from mxtrain.types.kinds import ClassIndex, ClassSet, Number, Preference, RowClass, Takes

if TYPE_CHECKING:
    from mxnet import gluon


class UserLoss(Loss):
    """Settings of the group `loss` that a user's own loss (`_target_`) accepts in addition to its arguments."""

    takes: ClassVar[Takes] = Takes()

    dense_labels: bool = False
    """If true, labels are class probabilities, (B, K), instead of class indices, (B,), as in Gluon."""


class SoftmaxCrossEntropy(Loss):
    """Softmax cross entropy, the default for classification."""

    def build(self, num_classes: int, training: bool) -> gluon.Block:
        from mxtrain.loss.blocks import SoftmaxCrossEntropyLoss

        return SoftmaxCrossEntropyLoss(self.label_smoothing if training else 0.0)


class SigmoidBCE(Loss):
    """Binary cross entropy of each class, independent of the other classes; the mean over classes."""

    takes: ClassVar[Takes] = Takes(ClassIndex, ClassSet)

    pos_weight: PositiveFloat = 1.0
    """Weight of the positive classes of a sample, relative to 1 for the negative ones. Values above 1 make predicted
    probabilities too high. As `pos_weight` of PyTorch's BCEWithLogitsLoss."""

    def block(self) -> gluon.Block:
        from mxtrain.engine.backend import gluon
        from mxtrain.loss.multi_label_blocks import WeightedSigmoidLoss

        return gluon.loss.SigmoidBCELoss() if self.pos_weight == 1 else WeightedSigmoidLoss(self.pos_weight)


class SigmoidFocal(Loss):
    """Binary cross entropy of each class, in which classes that are predicted well count little; the mean over classes.

    The loss of a class is -a (1 - q)^gamma log q, where q is the predicted probability of the right answer, and a is
    alpha for the positive classes of a sample and 1 - alpha for the negative ones. Source: Lin et al., "Focal Loss for
    Dense Object Detection" (2017), https://arxiv.org/abs/1708.02002, equation 5.
    """

    takes: ClassVar[Takes] = Takes(ClassIndex, ClassSet)

    gamma: NonNegativeFloat = 2.0
    """Exponent: 0 = all classes count equally, as in the cross entropy."""
    alpha: Fraction = 0.25
    """Weight of positive classes; negative classes have 1 - alpha."""

    def block(self) -> gluon.Block:
        from mxtrain.loss.multi_label_blocks import SigmoidFocalLoss

        return SigmoidFocalLoss(self.gamma, self.alpha)


class Asymmetric(Loss):
    """Asymmetric loss: focal losses with different exponents for the positive and the negative classes of a sample.
    Negative classes of probability below `margin` have no loss. The loss of a sample is the mean over classes.

    The loss is -(1 - p)^gamma_positive log p, or -q^gamma_negative log(1 - q) with q = max(p - margin, 0). The gradient
    is that of this formula; the authors' program adds the losses of the classes, and treats the factors as constants.
    Source: Ridnik et al., "Asymmetric Loss For Multi-Label Classification" (2021), https://arxiv.org/abs/2009.14119,
    equations 4 to 6.
    """

    takes: ClassVar[Takes] = Takes(ClassIndex, ClassSet)

    gamma_positive: NonNegativeFloat = 0.0
    """Exponent for positive classes."""
    gamma_negative: NonNegativeFloat = 4.0
    """Exponent for negative classes: 0, or at least 1."""
    margin: OpenFraction = 0.05
    """Probability up to which negative classes have no loss: 0, or at least 0.000001."""

    @pydantic.field_validator("gamma_negative")
    @classmethod
    def _finite_gradient(cls, gamma: float) -> float:
        # The derivative of q^gamma at q = 0 is infinite.
        if 0 < gamma < 1:
            raise ValueError("gamma_negative must be 0, or at least 1")
        return gamma

    @pydantic.field_validator("margin")
    @classmethod
    def _finite_loss(cls, margin: float) -> float:
        # In float32, a probability of 1 minus a smaller margin is 1, and the logarithm of 1 - 1 is infinite.
        if 0 < margin < 1e-6:
            raise ValueError("margin must be 0, or at least 0.000001")
        return margin

    def block(self) -> gluon.Block:
        from mxtrain.loss.multi_label_blocks import AsymmetricLoss

        return AsymmetricLoss(self.gamma_positive, self.gamma_negative, self.margin)


class ClassCrossEntropy(Loss):
    """Cross entropy of the classes of a table, averaged over samples: binary cross entropy of one score for two
    classes, softmax cross entropy for more."""

    takes: ClassVar[Takes] = Takes(RowClass)

    pos_weight: PositiveFloat = 1.0
    """Weight of positive samples, for two classes only; see `BinaryCrossEntropy`."""

    def build(self, num_classes: int, training: bool) -> gluon.Block:
        from mxtrain.loss.blocks import BinaryCrossEntropyLoss, SoftmaxCrossEntropyLoss

        if num_classes == 1:
            return BinaryCrossEntropyLoss(self.pos_weight)
        if self.pos_weight != 1:
            raise ConfigError(
                f"loss.pos_weight={self.pos_weight:g} is the weight of the second of two classes, and there are "
                f"{num_classes}. Type dataset.sampler=weighted 'dataset.class_weights={{NAME: WEIGHT}}'."
            )
        return SoftmaxCrossEntropyLoss()


class BinaryCrossEntropy(Loss):
    """Binary cross entropy of one score and a yes/no target: -w y log p - (1 - y) log(1 - p), with p = sigmoid(score);
    the mean over samples."""

    takes: ClassVar[Takes] = Takes(RowClass)

    pos_weight: PositiveFloat = 1.0
    """Weight of a positive sample (w above), relative to 1 for a negative one. Values above 1 make predicted
    probabilities too high. As `pos_weight` of PyTorch's BCEWithLogitsLoss."""

    def build(self, num_classes: int, training: bool) -> gluon.Block:
        from mxtrain.loss.blocks import BinaryCrossEntropyLoss

        if num_classes != 1:
            raise ConfigError(
                f"loss: BinaryCrossEntropy is for two classes, and there are {num_classes}. Type "
                "loss=class_cross_entropy."
            )
        return BinaryCrossEntropyLoss(self.pos_weight)


class KLDiv(Loss):
    """Kullback-Leibler divergence between the target distribution and the softmax."""

    gluon_name: ClassVar[str] = "KLDivLoss"

    def block(self) -> gluon.Block:
        from mxtrain.engine.backend import gluon

        # Gluon's default takes the outputs for logarithms of probabilities, and networks return scores.
        return gluon.loss.KLDivLoss(from_logits=False)


class L1(Loss):
    """Mean absolute difference to the target: the one-hot class, or a value."""

    takes: ClassVar[Takes] = Takes(ClassIndex, Number, Preference)
    gluon_name: ClassVar[str] = "L1Loss"


class L2(Loss):
    """Half the mean squared difference to the target: the one-hot class, or a value."""

    takes: ClassVar[Takes] = Takes(ClassIndex, Number, Preference)
    gluon_name: ClassVar[str] = "L2Loss"


class Huber(Loss):
    """Huber loss: quadratic for differences below `rho`, linear above."""

    rho: PositiveFloat = 1.0
    """Difference from which on the loss is linear."""
    takes: ClassVar[Takes] = Takes(ClassIndex, Number, Preference)
    gluon_name: ClassVar[str] = "HuberLoss"


class Hinge(Loss):
    """Hinge loss max(0, margin - score * sign); sign is 1 for the class of the sample and -1 for all others."""

    margin: PositiveFloat = 1.0
    """Margin: samples with a larger score have no loss."""
    gluon_name: ClassVar[str] = "HingeLoss"
    signed_target: ClassVar[bool] = True


class SquaredHinge(Loss):
    """Squared hinge loss max(0, margin - score * sign)^2; see `Hinge`."""

    margin: PositiveFloat = 1.0
    """Margin: samples with a larger score have no loss."""
    gluon_name: ClassVar[str] = "SquaredHingeLoss"
    signed_target: ClassVar[bool] = True


class Logistic(Loss):
    """Logistic loss log(1 + exp(-score * sign)); see `Hinge`."""

    gluon_name: ClassVar[str] = "LogisticLoss"
    signed_target: ClassVar[bool] = True

    def block(self) -> gluon.Block:
        from mxtrain.engine.backend import gluon

        return gluon.loss.LogisticLoss(label_format="signed")
