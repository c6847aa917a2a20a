"""Deep Q-learning: values of discrete actions, learned from a replay buffer.

Source: Mnih et al., "Human-level control through deep reinforcement learning" (Nature, 2015); with `double`, van
Hasselt et al., "Deep reinforcement learning with double Q-learning", https://arxiv.org/abs/1509.06461.

Legend: B batch, E environments, K actions, O outputs of training, A numbers of an action, X facts about a sample.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Callable, ClassVar, Mapping, Optional, Sequence, Tuple

import numpy as np

from mxtrain.reinforcement.algorithm import ReplayAlgorithm
from mxtrain.reinforcement.metrics import PolicyMetric, sums_of
from mxtrain.reinforcement.policy import REPLAY_FACTS, facts_of
from mxtrain.types import Fraction, Positive, PositiveFloat, Shape

if TYPE_CHECKING:
    from mxnet import gluon

    from mxtrain.metric.spec import Metric
    from mxtrain.reinforcement.action_limits import ActionLimits
    from mxtrain.reinforcement.policy import Actions
    from mxtrain.types.annotations import Array, OperatorModule


class DeepQLoss(ReplayAlgorithm):
    """Half the squared error of the value of the taken action against reward + discount * value of the next action by
    the target network."""

    setting: ClassVar[str] = "loss=dqn model=q_network"
    head: ClassVar[str] = "action_values"
    passes: ClassVar[int] = 16

    target_interval: Positive = 50
    """Number of optimizer steps between two updates of the target network."""
    error_limit: Optional[PositiveFloat] = None
    """Error beyond which the loss grows linearly (Huber's loss); null = never."""
    double: bool = True
    """If true, the network chooses the next action and the target network values it; otherwise the target network does
    both."""
    epsilon_start: Fraction = 1.0
    """Share of random actions at the beginning."""
    epsilon_end: Fraction = 0.05
    """Share of random actions after `epsilon_steps`; between, it changes linearly."""
    epsilon_steps: Positive = 10_000
    """Number of steps, over all environments together, until `epsilon_end`."""

    def unsupported_reason(self, actions: Actions, limits: ActionLimits) -> str:
        if actions.count and not actions.parts:
            return ""
        kind = "of several components" if actions.count else "numbers"
        other = "" if actions.count else ", loss=sac model=soft_actor_critic"
        return (
            f"its actions are {kind}, and loss=dqn values a few single actions. Type loss=ppo model=actor_critic{other}"
        )

    def build_network(self, build: Callable[[], gluon.Block], actions: Actions, shape: Shape) -> gluon.Block:
        from mxtrain.reinforcement.replay_networks import DoubleValueNetwork

        return DoubleValueNetwork(build(), build(), shape, self.double, prefix="")

    def num_uniform(self, actions: Actions) -> int:
        return 1 + actions.size

    def explore(self, actions: Actions, output_EO: np.ndarray, uniform_EW: np.ndarray, num_steps: int) -> np.ndarray:
        is_random_E1 = uniform_EW[:, :1] < self.epsilon_at(num_steps)
        return np.where(
            is_random_E1, actions.draw(uniform_EW[:, 1:]), actions.choose(output_EO, np.zeros(1, np.float32))
        )

    def epsilon_at(self, num_steps: int) -> float:
        """Returns the share of random actions after some steps."""
        progress = min(num_steps / self.epsilon_steps, 1.0)
        return self.epsilon_start + progress * (self.epsilon_end - self.epsilon_start)

    def build_for(self, actions: Actions) -> gluon.HybridBlock:
        from mxtrain.loss.function_block import FunctionBlock

        return FunctionBlock(partial(self._loss, actions))

    def _loss(self, actions: Actions, F: OperatorModule, output_BO: Array, facts_BX: Array) -> Array:
        value_B, target_B = action_values(self, actions, F, output_BO, facts_BX)
        error_B, limit = value_B - target_B, self.error_limit
        if limit is None:
            return 0.5 * F.square(error_B)
        return limit * F.smooth_l1(error_B, scalar=limit**-0.5)

    def metrics(self, actions: Actions) -> Mapping[str, Metric]:
        return {
            "action_value": MeanActionValue(actions=actions, loss=self),
            "td_error": TemporalDifference(actions=actions, loss=self),
        }


def action_values(
    loss: DeepQLoss, actions: Actions, F: OperatorModule, output_BO: Array, facts_BX: Array
) -> Tuple[Array, Array]:
    """Returns the value of each taken action and its target, (B,) each."""
    count = actions.count
    value_BK, *next_BK, target_BK = (
        F.slice_axis(output_BO, axis=1, begin=begin * count, end=(begin + 1) * count)
        for begin in range(3 if loss.double else 2)
    )
    reward_B, discount_B = facts_of(F, facts_BX, "reward", "discount", columns=REPLAY_FACTS)
    next_action_B = F.argmax(next_BK[0] if loss.double else target_BK, axis=1)
    target_B = F.BlockGrad(reward_B + discount_B * F.pick(target_BK, next_action_B, axis=1))
    taken_B = F.reshape(actions.taken(F, facts_BX), shape=(-1,))
    return F.pick(value_BK, taken_B, axis=1), target_B


class MeanActionValue(PolicyMetric):
    """Mean value of the taken actions."""

    loss: Any

    def measure(self, F: OperatorModule, outputs: Sequence[Array], targets: Sequence[Array], num_classes: int) -> Array:
        return sums_of(F, action_values(self.loss, self.actions, F, outputs[0], targets[0])[0])


class TemporalDifference(PolicyMetric):
    """Mean absolute difference of the value of the taken action and its target."""

    loss: Any

    def measure(self, F: OperatorModule, outputs: Sequence[Array], targets: Sequence[Array], num_classes: int) -> Array:
        value_B, target_B = action_values(self.loss, self.actions, F, outputs[0], targets[0])
        return sums_of(F, F.abs(value_B - target_B))
