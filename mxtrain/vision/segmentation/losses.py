"""Losses of semantic segmentation. Does not import MXNet."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Dict, Literal, Mapping, Sequence, Union

from mxtrain.config.specs import refuse_unknown_names
from mxtrain.errors import ConfigError
from mxtrain.loss.spec import Loss
from mxtrain.types import NonNegativeFloat
from mxtrain.types.kinds import Takes
from mxtrain.vision.kinds import ClassMap

if TYPE_CHECKING:
    from mxnet import gluon


class PixelSoftmaxCrossEntropy(Loss):
    """Softmax cross entropy of the class of each pixel: the weighted mean over all pixels of the global batch that are
    not ignored."""

    takes: ClassVar[Takes] = Takes(ClassMap)

    class_weights: Union[Literal["auto"], Dict[str, NonNegativeFloat]] = "auto"
    """Weight of the pixels of a class, by name, e.g. {background: 0.2}; 1 for other classes. auto = the weights that
    the dataset recommends."""
    aux_weight: NonNegativeFloat = 0.5
    """Weight of the loss of each auxiliary output in training. Source: Zhao et al., "Pyramid Scene Parsing Network"
    (2017), section 3.3, with 0.4; GluonCV's recipes have 0.5."""

    def build_for(self, class_names: Sequence[str], advised: Mapping[str, float], training: bool) -> gluon.HybridBlock:
        """Returns a HybridBlock (*scores (B, K, H, W), mask (B, H, W)) -> loss (B,), weight (B,).

        Args:
            class_names: names of the K classes.
            advised: class weights that the dataset recommends, used if `class_weights` is auto.
            training: if True, auxiliary outputs are used and targets are smoothed.

        Raises:
            ConfigError: a weight is for an unknown class, or all weights are 0.
        """
        from mxtrain.vision.segmentation.loss_blocks import PixelSoftmaxCrossEntropyLoss

        class_weights = advised if self.class_weights == "auto" else self.class_weights
        refuse_unknown_names("loss.class_weights", "class", class_weights, class_names)
        weights = [float(class_weights.get(name, 1.0)) for name in class_names]
        if not any(weights):
            raise ConfigError("loss.class_weights: at least one class must weigh more than 0.")
        return PixelSoftmaxCrossEntropyLoss(
            weights, self.aux_weight, self.label_smoothing if training else 0.0, None if training else 1
        )
