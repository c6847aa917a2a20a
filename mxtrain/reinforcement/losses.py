"""Policy gradient losses.

Legend: B batch, O outputs of the network, X facts about a sample.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar, Mapping, Optional

from mxtrain.reinforcement.algorithm import Algorithm
from mxtrain.reinforcement.policy import facts_of
from mxtrain.types import NonNegativeFloat, PositiveFloat

if TYPE_CHECKING:
    from mxnet import gluon

    from mxtrain.data.loading.loader import BatchLoader, LoaderOptions
    from mxtrain.metric.spec import Metric
    from mxtrain.reinforcement.collecting import Environments
    from mxtrain.reinforcement.policy import Actions
    from mxtrain.types.annotations import Array, OperatorModule


class PolicyLoss(Algorithm):
    """-log p of actions times their advantage, and errors of values.

    Source: Mnih et al., "Asynchronous methods for deep reinforcement learning", https://arxiv.org/abs/1602.01783, whose
    synchronous form is A2C.
    """

    setting: ClassVar[str] = "loss=a2c model=actor_critic"

    value_coefficient: NonNegativeFloat = 0.5
    """Weight of the squared error of values."""
    entropy_coefficient: NonNegativeFloat = 0.0
    """Weight of the entropy bonus, in nats."""

    def metrics(self, actions: Actions) -> Mapping[str, Metric]:
        from mxtrain.reinforcement.metrics import ApproximateDivergence, ExplainedVariance, PolicyEntropy

        return {
            "policy_entropy": PolicyEntropy(actions=actions),
            "explained_variance": ExplainedVariance(actions=actions),
            "approx_kl": ApproximateDivergence(actions=actions),
        }

    def build_loader(self, source: Environments, options: LoaderOptions) -> BatchLoader:
        from mxtrain.reinforcement.rollout_loader import RolloutLoader

        return RolloutLoader(source, options)

    def build_for(self, actions: Actions) -> gluon.HybridBlock:
        from mxtrain.loss.function_block import FunctionBlock

        return FunctionBlock(partial(self._loss, actions))

    def _loss(self, actions: Actions, F: OperatorModule, output_BO: Array, facts_BX: Array) -> Array:
        names = ("advantage", "log_probability", "value_target")
        advantage_B, old_log_p_B, target_B = facts_of(F, facts_BX, *names)
        log_p_B, clip_range = actions.log_probability(F, output_BO, facts_BX), self.ratio_clip_range()
        if clip_range is None:
            gain_B = log_p_B * advantage_B
        else:
            ratio_B = F.exp(log_p_B - old_log_p_B)
            clipped_B = F.clip(ratio_B, 1 - clip_range, 1 + clip_range)
            gain_B = F.minimum(ratio_B * advantage_B, clipped_B * advantage_B)
        error_B = F.square(actions.value(F, output_BO) - target_B)
        loss_B = self.value_coefficient * error_B - gain_B
        if self.entropy_coefficient:
            loss_B = loss_B - self.entropy_coefficient * actions.entropy(F, output_BO)
        return loss_B

    def ratio_clip_range(self) -> Optional[float]:
        """Returns the maximum distance from 1 of the ratio of new to old p, beyond which the gradient is 0. None means
        that all actions were chosen with the current weights."""
        return None


class ProximalPolicyLoss(PolicyLoss):
    """Clipped ratios of the current probability of an action to its probability when it was chosen, times its
    advantage; and errors of values.

    Source: Schulman et al., "Proximal policy optimization algorithms", https://arxiv.org/abs/1707.06347, equation 9.
    """

    setting: ClassVar[str] = "loss=ppo model=actor_critic"
    reuses_steps: ClassVar[bool] = True
    passes: ClassVar[int] = 10

    clip_range: PositiveFloat = 0.2
    """Maximum distance of the ratio from 1; beyond it the gradient is 0."""

    def ratio_clip_range(self) -> Optional[float]:
        return self.clip_range


def episode_loss(F: OperatorModule, facts_BX: Array) -> Array:
    """Computes the loss of whole episodes in evaluations: the negative return, (B,)."""
    return -facts_of(F, facts_BX, "return")[0]
