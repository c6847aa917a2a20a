"""Policy gradient losses."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Optional

from mxtrain.loss.spec import Loss
from mxtrain.reinforcement.kinds import Returns
from mxtrain.types import NonNegativeFloat, PositiveFloat
from mxtrain.types.kinds import Takes

if TYPE_CHECKING:
    from mxnet import gluon

    from mxtrain.reinforcement.policy import Actions


class PolicyLoss(Loss):
    """-log p of actions times their advantage, and errors of values.

    Source: Mnih et al., "Asynchronous methods for deep reinforcement learning", https://arxiv.org/abs/1602.01783, whose
    synchronous form is A2C.
    """

    takes: ClassVar[Takes] = Takes(Returns)

    value_coefficient: NonNegativeFloat = 0.5
    """Weight of the squared error of values."""
    entropy_coefficient: NonNegativeFloat = 0.0
    """Weight of the entropy bonus, in nats."""

    def build_for(self, actions: Actions) -> gluon.Block:
        """Returns a HybridBlock of (outputs (B, O), facts (B, X)) -> loss (B,); see
        `mxtrain.reinforcement.policy`."""
        from mxtrain.reinforcement.loss_blocks import PolicyLossBlock

        return PolicyLossBlock(actions, self.value_coefficient, self.entropy_coefficient, self.clips_ratio())

    def clips_ratio(self) -> Optional[float]:
        """Returns the maximum distance from 1 of the ratio of new to old p, beyond which the gradient is 0. None means
        that all actions were chosen with the current weights."""
        return None


class ProximalPolicyLoss(PolicyLoss):
    """Clipped ratios of p of actions to what it was when they were chosen, times their advantage, and errors of values.

    Source: Schulman et al., "Proximal policy optimization algorithms", https://arxiv.org/abs/1707.06347, equation 9.
    """

    passes: ClassVar[int] = 10

    clip_range: PositiveFloat = 0.2
    """Maximum distance of the ratio from 1; beyond it the gradient is 0."""

    def clips_ratio(self) -> Optional[float]:
        return self.clip_range
