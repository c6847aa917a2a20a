"""Losses of semantic segmentation. Does not import MXNet.

Legend: B batch, K classes, H, W height and width.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar, Dict, Literal, Mapping, Sequence, Tuple, Union

from mxtrain.config.specs import refuse_unknown_names
from mxtrain.errors import ConfigError
from mxtrain.loss.spec import Loss
from mxtrain.types import NonNegativeFloat
from mxtrain.types.kinds import Takes
from mxtrain.vision.kinds import ClassMap

if TYPE_CHECKING:
    from mxnet import gluon

    from mxtrain.types.annotations import Array, OperatorModule


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
        from mxtrain.loss.function_block import FunctionBlock

        class_weights = advised if self.class_weights == "auto" else self.class_weights
        refuse_unknown_names("loss.class_weights", "class", class_weights, class_names)
        weights = [float(class_weights.get(name, 1.0)) for name in class_names]
        if not any(weights):
            raise ConfigError("loss.class_weights: at least one class must weigh more than 0.")
        smoothing, num_used = (self.label_smoothing, None) if training else (0.0, 1)
        return FunctionBlock(
            partial(self._sums, weights, smoothing),
            lambda *arrays: (*arrays[:-1][:num_used], arrays[-1]),
            weighted=True,
        )

    def _sums(
        self, class_weights: Sequence[float], smoothing: float, F: OperatorModule, *arrays: Array
    ) -> Tuple[Array, Array]:
        """Returns the weighted sum over the pixels of each sample, (B,), and the sum of the weights, (B,).

        GluonCV's losses are not used: they are built on SoftmaxOutput, which ignores the gradient of its output, and so
        sample weights, loss scales and the weight of auxiliary outputs.

        Args:
            class_weights: weight of the pixels of each class.
            smoothing: share of each target that is spread evenly over all classes.
            F: mx.nd or mx.sym.
            arrays: scores (B, K, H, W) of one or more outputs, and masks (B, H, W), in which -1 is ignored.
        """
        logits, mask_BHW = arrays[:-1], arrays[-1]
        class_BHW = F.relu(mask_BHW)  # -1 becomes class 0, with a weight of 0
        weight_BHW = mask_BHW >= 0
        if set(class_weights) != {1.0}:
            # A 1 of the type and device of the mask: symbols cannot create constants on an unknown device.
            one_1 = F.slice_axis(mask_BHW.reshape((-1,)), axis=0, begin=0, end=1) * 0 + 1
            weight_K = F.concat(*[one_1 * weight for weight in class_weights], dim=0)
            weight_BHW = weight_BHW * F.take(weight_K, class_BHW)
        losses = [_pixel_sum(F, logits_BKHW, class_BHW, weight_BHW, smoothing) for logits_BKHW in logits]
        loss_B = losses[0] + self.aux_weight * sum(losses[1:]) if losses[1:] else losses[0]
        return loss_B, F.sum(weight_BHW, axis=(1, 2))


def _pixel_sum(F: OperatorModule, logits_BKHW: Array, class_BHW: Array, weight_BHW: Array, smoothing: float) -> Array:
    # Classes last: MXNet's log_softmax over an axis in the middle takes twice as long as with this transpose.
    log_p_BHWK = F.log_softmax(F.transpose(logits_BKHW, axes=(0, 2, 3, 1)), axis=-1)
    loss_BHW = -F.pick(log_p_BHWK, class_BHW, axis=-1)
    if smoothing:
        loss_BHW = (1 - smoothing) * loss_BHW - smoothing * F.mean(log_p_BHWK, axis=-1)
    return F.sum(loss_BHW * weight_BHW, axis=(1, 2))
