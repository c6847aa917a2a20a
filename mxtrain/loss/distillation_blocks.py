"""Distillation losses as Gluon blocks. Imports MXNet.

Legend: B batch, K classes, C channels, P positions of a map.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mxtrain.loss.blocks import LossAround

if TYPE_CHECKING:
    from mxtrain.types.annotations import Array, LossBlock, OperatorModule

SCORES, SCORE, VALUES = "scores", "score", "values"
"""Kinds of outputs, see `Task.distils`; "score": one score (B, 1), whose sigmoid is the probability of the
second of two classes."""


def attention_maps(F: OperatorModule, feature: Array) -> Any:
    """Computes attention maps: sums of squares over the channels, normalised to L2 norm 1, (B, P).

    Source: Zagoruyko and Komodakis, https://arxiv.org/abs/1612.03928, section 3.1.

    Args:
        F: mx.nd or mx.sym.
        feature: output of a layer, (B, C, ...).
    """
    map_BP = F.sum(F.square(F.reshape(feature, shape=(0, 0, -1))), axis=1)
    # 1e-12 keeps the derivative of the root finite where a map is 0 everywhere.
    return F.broadcast_div(map_BP, F.sqrt(F.sum(F.square(map_BP), axis=1, keepdims=True) + 1e-12))


class DistillationLoss(LossAround):
    """Combines the task's loss with the distillation loss against a teacher.

    Inputs are (*outputs, *features, *targets, teacher output, *attention maps of the teacher). Returns the loss (B,),
    and also the weight of each sample (B,) if the task's loss returns weights and alpha > 0.

    Args:
        task_loss: the task's loss of (*outputs, *targets).
        kind: kind of the outputs, "scores", "score" or "values".
        num_outputs: number of outputs.
        num_features: number of features and of attention maps.
        alpha: weight of the task's loss; 0: it is not computed, and each sample has weight 1.
        temperature: divides the scores of the network and of the teacher before the softmax.
        feature_weight: weight of each pair of features.
    """

    def __init__(
        self,
        task_loss: LossBlock,
        kind: str,
        num_outputs: int,
        num_features: int,
        alpha: float,
        temperature: float,
        feature_weight: float,
    ):
        super().__init__()
        self.weighted = bool(getattr(task_loss, "weighted", False)) and alpha > 0  # Gluon's own losses have none
        self.least_weight = getattr(task_loss, "least_weight", 0.0) if self.weighted else 0.0
        self.parts = tuple(getattr(task_loss, "parts", ())) if alpha else ()
        self.zero_weight_is_error = bool(getattr(task_loss, "zero_weight_is_error", False)) and self.weighted
        self._num_outputs, self._num_features, self._alpha = num_outputs, num_features, alpha
        self._kind, self._temperature, self._feature_weight = kind, temperature, feature_weight
        if alpha:
            self.task_loss = task_loss

    def __call__(self, *arrays: Array) -> Any:
        end = self._num_outputs + self._num_features
        # With alpha = 0 the targets are unused. They are dropped here because Gluon warns of unused inputs.
        return super().__call__(*(arrays if self._alpha else [*arrays[:end], *arrays[-1 - self._num_features :]]))

    def hybrid_forward(self, F: OperatorModule, *arrays: Any) -> Any:
        count, end = self._num_outputs, self._num_outputs + self._num_features
        teacher_index = len(arrays) - 1 - self._num_features
        # With amp the outputs may be float16, in which a sum of squares would overflow.
        output, teacher = F.cast(arrays[0], "float32"), F.cast(arrays[teacher_index], "float32")
        loss_B = (1 - self._alpha) * self._distillation_loss(F, output, teacher)
        for feature, activity_BP in zip(arrays[count:end], arrays[teacher_index + 1 :]):
            difference_BP = attention_maps(F, F.cast(feature, "float32")) - F.cast(activity_BP, "float32")
            loss_B = loss_B + self._feature_weight * 0.5 * F.sum(F.square(difference_BP), axis=-1)
        if not self._alpha:
            return loss_B
        task_loss = self.task_loss(*arrays[:count], *arrays[end:teacher_index])
        if not self.weighted and not self.parts:
            return self._alpha * F.cast(task_loss, "float32") + loss_B
        task_loss_B, *others = task_loss
        if self.weighted:
            loss_B = loss_B * others[0]
        return (self._alpha * F.cast(task_loss_B, "float32") + loss_B, *others)

    def _distillation_loss(self, F: OperatorModule, output: Array, teacher: Array) -> Array:
        """Returns T^2 * KL(teacher || output) at temperature T, or the squared difference for values, (B,)."""
        if self._kind == VALUES:
            return F.sum(F.square(F.Flatten(output) - F.Flatten(teacher)), axis=-1)
        if self._kind == SCORE:
            output, teacher = (F.concat(F.zeros_like(score_B1), score_B1, dim=1) for score_B1 in (output, teacher))
        log_q_BK = F.log_softmax(output, temperature=self._temperature)
        log_p_BK = F.log_softmax(teacher, temperature=self._temperature)
        # T^2 keeps the size of the gradients independent of T. Source: Hinton et al., section 2.
        return self._temperature**2 * F.sum(F.exp(log_p_BK) * (log_p_BK - log_q_BK), axis=-1)


class OutputsOnly(LossAround):
    """Applies the task's loss to a network that returns features after its outputs; ignores the features.

    Args:
        task_loss: the task's loss of (*outputs, *targets).
        num_outputs: number of outputs.
        num_features: number of features between the outputs and the targets.
    """

    def __init__(self, task_loss: LossBlock, num_outputs: int, num_features: int):
        super().__init__()
        self.weighted = getattr(task_loss, "weighted", False)
        self.least_weight = getattr(task_loss, "least_weight", 0.0)
        self.parts, self.zero_weight_is_error = (
            getattr(task_loss, "parts", ()),
            getattr(task_loss, "zero_weight_is_error", False),
        )
        self._begin, self._end = num_outputs, num_outputs + num_features
        self.task_loss = task_loss

    def __call__(self, *arrays: Array) -> Any:
        return super().__call__(*arrays[: self._begin], *arrays[self._end :])

    def hybrid_forward(self, F: OperatorModule, *arrays: Any) -> Any:
        return self.task_loss(*arrays)
