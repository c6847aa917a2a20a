"""Losses over class scores, by MXNet's names."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Dict, Literal, Mapping, Sequence, Tuple, Union

from mxtrain.description.config import refuse_unknown_names
from mxtrain.errors import ConfigError
from mxtrain.types import NonNegativeFloat, OpenFraction, PositiveFloat, Spec

if TYPE_CHECKING:
    from mxnet import gluon


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
    passes: ClassVar[int] = 1
    """How often a sample that the weights have drawn is learned from, before others are drawn with new weights."""

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
    """The fields that stand beside a loss that is brought in by `_target_`."""

    serves: ClassVar[Tuple[str, ...]] = ()

    dense_labels: bool = False
    """Whether it takes class probabilities, (B, K), instead of class indices, (B,), which is Gluon's convention."""


class SoftmaxCrossEntropy(Loss):
    """Softmax cross entropy, the default for classification."""

    def build(self, num_classes: int, training: bool) -> gluon.Block:
        from mxtrain.loss.blocks import SoftmaxCrossEntropyLoss

        return SoftmaxCrossEntropyLoss(self.label_smoothing if training else 0.0)


class MaskedSoftmaxCrossEntropy(Loss):
    """Softmax cross entropy of the hidden tokens of texts: the mean over all of them in the global batch."""

    serves: ClassVar[Tuple[str, ...]] = ("masked_language_modeling",)

    def build(self, num_classes: int, training: bool) -> gluon.Block:
        from mxtrain.loss.blocks import MaskedSoftmaxCrossEntropyLoss

        return MaskedSoftmaxCrossEntropyLoss(self.label_smoothing if training else 0.0)


class TokenSoftmaxCrossEntropy(MaskedSoftmaxCrossEntropy):
    """Softmax cross entropy of the tags of words: the mean over all words in the global batch."""

    serves: ClassVar[Tuple[str, ...]] = ("token_classification",)


class SpanSoftmaxCrossEntropy(Loss):
    """Softmax cross entropy of the first and the last token of an answer, over the tokens of a sample; the mean of
    both."""

    serves: ClassVar[Tuple[str, ...]] = ("question_answering",)

    def build(self, num_classes: int, training: bool) -> gluon.Block:
        from mxtrain.loss.blocks import SpanSoftmaxCrossEntropyLoss

        return SpanSoftmaxCrossEntropyLoss()


class TokenCrossEntropy(Loss):
    """Cross entropy of the tokens of texts: the mean over all that are predicted in the global batch. The network
    computes it for each token."""

    serves: ClassVar[Tuple[str, ...]] = ("language_modeling",)

    def build(self, num_classes: int, training: bool) -> gluon.Block:
        from mxtrain.loss.blocks import TokenLoss

        return TokenLoss()


class LabelSmoothedCrossEntropy(Loss):
    """Cross entropy of the tokens of translations, smoothed while training: the mean over all of them in the global
    batch. The network computes what it is made of for each token; validation reports it without smoothing."""

    serves: ClassVar[Tuple[str, ...]] = ("translation",)

    label_smoothing: OpenFraction = 0.1

    def build(self, num_classes: int, training: bool) -> gluon.Block:
        from mxtrain.loss.blocks import SmoothedTokenLoss

        return SmoothedTokenLoss(self.label_smoothing if training else 0.0)


class CTC(Loss):
    """Connectionist temporal classification: -log p of a transcript, over all its alignments with the frames; the mean
    over utterances of the global batch.

    Source: Graves et al., "Connectionist Temporal Classification" (2006).
    """

    serves: ClassVar[Tuple[str, ...]] = ("speech_recognition",)

    def build(self, num_classes: int, training: bool) -> gluon.Block:
        from mxtrain.loss.ctc_blocks import CTCLoss

        return CTCLoss()


class FrameL1(Loss):
    """Mean absolute difference of frames from those that are right, over all frames of the global batch that are no
    padding; each band counts in units of its deviation."""

    serves: ClassVar[Tuple[str, ...]] = ("speech_synthesis",)

    def build(self, num_classes: int, training: bool) -> gluon.Block:
        from mxtrain.loss.frame_blocks import AbsoluteFrameLoss

        return AbsoluteFrameLoss()


class FrameL2(FrameL1):
    """Mean squared difference, likewise."""

    def build(self, num_classes: int, training: bool) -> gluon.Block:
        from mxtrain.loss.frame_blocks import SquaredFrameLoss

        return SquaredFrameLoss()


class RankingLoss(Loss):
    """Base of losses of an item that a user has against sampled ones that he has not."""

    serves: ClassVar[Tuple[str, ...]] = ("recommendation",)

    block_name: ClassVar[str] = ""
    """The class in mxtrain.loss.ranking_blocks."""

    def build(self, num_classes: int, training: bool) -> gluon.Block:
        from mxtrain.loss import ranking_blocks

        return getattr(ranking_blocks, self.block_name)()


class SampledBCE(RankingLoss):
    """Binary cross entropy of items that users have against sampled ones that they have not: the mean over both in the
    global batch.

    Source: He et al., "Neural Collaborative Filtering" (2017), equation 7.
    """

    block_name: ClassVar[str] = "SampledBCELoss"


class BPR(RankingLoss):
    """-log sigmoid of how far an item that a user has is above a sampled one: the mean over such pairs in the global
    batch.

    Source: Rendle et al., "BPR: Bayesian Personalized Ranking from Implicit Feedback" (2009).
    """

    block_name: ClassVar[str] = "BPRLoss"


class SampledSoftmax(RankingLoss):
    """Softmax cross entropy of an item that a user has among sampled ones: the mean over items in the global batch."""

    block_name: ClassVar[str] = "SampledSoftmaxLoss"


class SigmoidBCE(Loss):
    """Binary cross entropy of each class by itself."""

    gluon_name: ClassVar[str] = "SigmoidBCELoss"


class BinaryCrossEntropy(Loss):
    """Binary cross entropy of one score and a yes/no target: -w y log p - (1 - y) log(1 - p), with p = sigmoid(score);
    the mean over samples."""

    serves: ClassVar[Tuple[str, ...]] = ("tabular",)

    pos_weight: PositiveFloat = 1.0
    """How much a positive sample weighs (w above), against 1 of a negative one; above 1 probabilities come out higher
    than they are. Source: as `pos_weight` of PyTorch's BCEWithLogitsLoss."""

    def build(self, num_classes: int, training: bool) -> gluon.Block:
        from mxtrain.loss.blocks import BinaryCrossEntropyLoss

        return BinaryCrossEntropyLoss(self.pos_weight)


class KLDiv(Loss):
    """Kullback-Leibler divergence between the target distribution and the softmax."""

    gluon_name: ClassVar[str] = "KLDivLoss"

    def block(self) -> gluon.Block:
        from mxtrain.engine.backend import gluon

        return gluon.loss.KLDivLoss(from_logits=False)


class PixelSoftmaxCrossEntropy(Loss):
    """Softmax cross entropy of the class of each pixel: the weighted mean over all of them in the global batch that are
    not ignored."""

    serves: ClassVar[Tuple[str, ...]] = ("segmentation",)

    class_weights: Union[Literal["auto"], Dict[str, NonNegativeFloat]] = "auto"
    """By the name of a class: how much each of its pixels weighs, e.g. {background: 0.2}; 1 where nothing is said. auto
    = as the dataset advises."""
    aux_weight: NonNegativeFloat = 0.5
    """How much the same loss of each auxiliary output of the network weighs in training. Source: Zhao et al., "Pyramid
    Scene Parsing Network" (2017), section 3.3, with 0.4; GluonCV's recipes have 0.5."""

    def build_for(self, class_names: Sequence[str], advised: Mapping[str, float], training: bool) -> gluon.HybridBlock:
        """A HybridBlock (*scores (B, K, H, W), mask (B, H, W)) -> loss (B,), weight (B,).

        Args:
            class_names: of the K classes.
            advised: class weights where the description leaves them to the dataset.
            training: whether auxiliary outputs count, and targets are smoothed.

        Raises:
            ConfigError: a weight is of a class that there is not, or all weights are 0.
        """
        from mxtrain.loss.blocks import PixelSoftmaxCrossEntropyLoss

        class_weights = advised if self.class_weights == "auto" else self.class_weights
        refuse_unknown_names("loss.class_weights", "class", class_weights, class_names)
        weights = [float(class_weights.get(name, 1.0)) for name in class_names]
        if not any(weights):
            raise ConfigError("loss.class_weights: at least one class must weigh more than 0.")
        return PixelSoftmaxCrossEntropyLoss(
            weights, self.aux_weight, self.label_smoothing if training else 0.0, None if training else 1
        )


class L1(Loss):
    """Mean absolute difference to the target: the one-hot class, or a value."""

    serves: ClassVar[Tuple[str, ...]] = ("classification", "regression", "recommendation")
    gluon_name: ClassVar[str] = "L1Loss"


class L2(Loss):
    """Half the mean squared difference to the target: the one-hot class, or a value."""

    serves: ClassVar[Tuple[str, ...]] = ("classification", "regression", "recommendation")
    gluon_name: ClassVar[str] = "L2Loss"


class Huber(Loss):
    """Squared below `rho`, absolute above."""

    rho: PositiveFloat = 1.0
    serves: ClassVar[Tuple[str, ...]] = ("classification", "regression", "recommendation")
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

    def block(self) -> gluon.Block:
        from mxtrain.engine.backend import gluon

        return gluon.loss.LogisticLoss(label_format="signed")
