"""Losses of agents as Gluon blocks. Imports MXNet.

Legend: B batch, O outputs of the network, X facts about a sample.
"""

from __future__ import annotations

from typing import Optional

from mxtrain.engine.backend import gluon
from mxtrain.reinforcement.policy import Actions, facts_of


class PolicyLossBlock(gluon.HybridBlock):
    """Outputs (B, O) and facts (B, X) to the loss of each sample, (B,).

    Args:
        actions: what the agent may do.
        value_coefficient, entropy_coefficient: weights of the three parts; that of the first is 1.
        clip_range: of ratios; None: log p takes the place of the ratio.
    """

    def __init__(
        self, actions: Actions, value_coefficient: float, entropy_coefficient: float, clip_range: Optional[float]
    ):
        super().__init__()
        self._actions, self._clip_range = actions, clip_range
        self._value_coefficient, self._entropy_coefficient = value_coefficient, entropy_coefficient

    def hybrid_forward(self, F, output_BO, facts_BX):
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
    """Outputs and facts (B, X) of whole episodes to what there is to lose of each: minus its return, (B,)."""

    def __call__(self, output_BO, facts_BX):
        return super().__call__(facts_BX)

    def hybrid_forward(self, F, facts_BX):
        return -facts_of(F, facts_BX, "return")[0]
