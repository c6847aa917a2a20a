"""Loss of semantic segmentation as a Gluon block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional, Sequence

from mxtrain.engine.backend import gluon

if TYPE_CHECKING:
    from mxtrain.types.annotations import Array, OperatorModule


class PixelSoftmaxCrossEntropyLoss(gluon.HybridBlock):
    """Weighted softmax cross entropy of each pixel.

    Inputs are logits (B, K, H, W), auxiliary logits of the same shape, and masks (B, H, W), in which -1 is ignored.
    Returns the sum of -weight * log softmax(logits) over the pixels of each sample, (B,), and the sum of the weights,
    (B,).

    GluonCV's losses are not used: they are built on SoftmaxOutput, which ignores the gradient of its output, and so
    sample weights, loss scales and the weight of auxiliary outputs.

    Args:
        class_weights: weight of the pixels of each class.
        aux_weight: weight of the loss of each auxiliary output.
        smoothing: share of each target that is spread evenly over all classes.
        num_used: number of outputs in the loss; None: all.
    """

    weighted = True

    def __init__(self, class_weights: Sequence[float], aux_weight: float, smoothing: float, num_used: Optional[int]):
        super().__init__()
        self._class_weights = [float(weight) for weight in class_weights]
        self._aux_weight, self._smoothing, self._num_used = aux_weight, smoothing, num_used

    def __call__(self, *arrays: Array) -> Any:
        # Unused outputs are dropped here because Gluon warns of unused inputs.
        return super().__call__(*arrays[:-1][: self._num_used], arrays[-1])

    def hybrid_forward(self, F: OperatorModule, *arrays: Array) -> Any:
        logits, mask_BHW = arrays[:-1], arrays[-1]
        class_BHW = F.relu(mask_BHW)  # -1 becomes class 0, with a weight of 0
        weight_BHW = mask_BHW >= 0
        if set(self._class_weights) != {1.0}:
            # A 1 of the type and device of the mask: symbols cannot create constants on an unknown device.
            one_1 = F.slice_axis(mask_BHW.reshape((-1,)), axis=0, begin=0, end=1) * 0 + 1
            weight_K = F.concat(*[one_1 * weight for weight in self._class_weights], dim=0)
            weight_BHW = weight_BHW * F.take(weight_K, class_BHW)
        losses = [self._sum(F, logits_BKHW, class_BHW, weight_BHW) for logits_BKHW in logits]
        loss_B = losses[0] + self._aux_weight * sum(losses[1:]) if losses[1:] else losses[0]
        return loss_B, F.sum(weight_BHW, axis=(1, 2))

    def _sum(self, F: OperatorModule, logits_BKHW: Array, class_BHW: Array, weight_BHW: Array) -> Array:
        # Classes last: MXNet's log_softmax over an axis in the middle takes twice as long as with this transpose.
        log_p_BHWK = F.log_softmax(F.transpose(logits_BKHW, axes=(0, 2, 3, 1)), axis=-1)
        loss_BHW = -F.pick(log_p_BHWK, class_BHW, axis=-1)
        if self._smoothing:
            loss_BHW = (1 - self._smoothing) * loss_BHW - self._smoothing * F.mean(log_p_BHWK, axis=-1)
        return F.sum(loss_BHW * weight_BHW, axis=(1, 2))
