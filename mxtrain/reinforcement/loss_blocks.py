"""Losses of agents as Gluon blocks. Imports MXNet.

Legend: B batch, O outputs of the network, X facts about a sample.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from mxtrain.engine.backend import gluon
from mxtrain.reinforcement.policy import Actions, facts_of

if TYPE_CHECKING:
    from mxtrain.types.annotations import Array, OperatorModule


class PolicyLossBlock(gluon.HybridBlock):
    """Policy gradient loss with value loss and entropy bonus: outputs (B, O) and facts (B, X) to the loss (B,).

    Args:
        actions: action space.
        value_coefficient, entropy_coefficient: weights of value loss and entropy bonus.
        clip_range: maximum distance of the ratio of new to old p from 1 (PPO); None = use log p instead of the ratio.
    """

    def __init__(
        self, actions: Actions, value_coefficient: float, entropy_coefficient: float, clip_range: Optional[float]
    ):
        super().__init__()
        self._actions, self._clip_range = actions, clip_range
        self._value_coefficient, self._entropy_coefficient = value_coefficient, entropy_coefficient

    def hybrid_forward(self, F: OperatorModule, output_BO: Array, facts_BX: Array) -> Array:
        actions = self._actions
        names = ("advantage", "log_probability", "value_target")
        advantage_B, old_log_p_B, target_B = facts_of(F, facts_BX, *names)
        log_p_B = actions.log_probability(F, output_BO, facts_BX)
        if self._clip_range is None:
            gain_B = log_p_B * advantage_B
        else:
            ratio_B = F.exp(log_p_B - old_log_p_B)
            clipped_B = F.clip(ratio_B, 1 - self._clip_range, 1 + self._clip_range)
            gain_B = F.minimum(ratio_B * advantage_B, clipped_B * advantage_B)
        error_B = F.square(actions.value(F, output_BO) - target_B)
        loss_B = self._value_coefficient * error_B - gain_B
        if self._entropy_coefficient:
            loss_B = loss_B - self._entropy_coefficient * actions.entropy(F, output_BO)
        return loss_B


class EpisodeLossBlock(gluon.HybridBlock):
    """Loss of whole episodes in evaluations: the negative return, (B,), from outputs and facts (B, X)."""

    def __call__(self, output_BO: Array, facts_BX: Array) -> Any:
        return super().__call__(facts_BX)

    def hybrid_forward(self, F: OperatorModule, facts_BX: Array) -> Any:
        return -facts_of(F, facts_BX, "return")[0]
