"""The loss of a network with class centres, as a block. Imports MXNet.

Legend: B batch, D embedding size, K identities.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mxtrain.engine.backend import gluon, nd

if TYPE_CHECKING:
    from mxtrain.types.annotations import Array, OperatorModule
    from mxtrain.vision.metric_learning.losses import EmbeddingLoss


class IdentityLoss(gluon.HybridBlock):
    """Loss of (embedding (B, D), cosines (B, K), identity (B,)), or of (embedding, identity) without centres.

    In evaluation, samples of unknown identities have no weight: for them the loss is not defined, e.g. for pairs.

    Args:
        loss: description of the loss.
        num_classes: K.
        training: False for evaluation.
        is_sampled: True if the first cosine of a sample is that of its own identity, and the others are those of drawn
            identities.
    """

    def __init__(self, loss: EmbeddingLoss, num_classes: int, training: bool, is_sampled: bool = False):
        super().__init__()
        self._is_sampled = is_sampled
        self._loss, self._num_classes, self._training = loss, num_classes, training
        self.weighted = loss.weighted or not training
        self.least_weight = loss.least_weight

    def __call__(self, *arrays: Array) -> Any:
        *outputs, class_B = arrays
        if self._loss.uses_centres and len(outputs) == 1:  # a network whose centres were left out
            zero_B: Any = nd.zeros_like(class_B)
            return zero_B, zero_B
        # A hybridized block warns about unused inputs.
        return super().__call__(outputs[1 if self._loss.uses_centres else 0], class_B)

    def hybrid_forward(self, F: OperatorModule, first: Array, class_B: Array) -> Any:
        found = self._loss.compute(F, first, F.zeros_like(class_B) if self._is_sampled else class_B)
        if self._training:
            return found
        loss_B, weight_B = found if self._loss.weighted else (found, F.ones_like(class_B))
        if not self._loss.uses_centres:
            return loss_B, weight_B
        is_known_B = (class_B >= 0) * (class_B < self._num_classes)
        return F.where(is_known_B, loss_B, F.zeros_like(loss_B)), weight_B * is_known_B
