"""Soft actor-critic: a stochastic policy of numbers with two critics, and a temperature that holds its entropy.

Source: Haarnoja et al., "Soft actor-critic algorithms and applications", https://arxiv.org/abs/1812.05905. Policy,
critics and temperature are updated in one step, from the weights before it.

Legend: B batch, E environments, O outputs, A numbers of an action, X facts about a sample.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar, Mapping, NamedTuple, Sequence, Union

import numpy as np
from typing_extensions import Literal

from mxtrain.reinforcement.algorithm import ReplayAlgorithm
from mxtrain.reinforcement.draws import standard_normal
from mxtrain.reinforcement.metrics import PolicyMetric, sums_of
from mxtrain.reinforcement.policy import REPLAY_FACTS, facts_of
from mxtrain.types import Finite, Fraction

if TYPE_CHECKING:
    from mxnet import gluon

    from mxtrain.metric.spec import Metric
    from mxtrain.model.spec import Model
    from mxtrain.reinforcement.action_limits import ActionLimits
    from mxtrain.reinforcement.policy import Actions
    from mxtrain.types.annotations import Array, OperatorModule


class SoftOutputs(NamedTuple):
    """Columns of the network's outputs in training, (B,) each; see `SoftActorCriticNetwork`.

    Attributes:
        value_1, value_2: critics' values of the taken action.
        policy_value_1, policy_value_2: critics' values of the policy's action, whose gradient is that of the action.
        next_value_1, next_value_2: target critics' values of the next observation and an action of the policy for it.
        log_p, next_log_p: log p of these two actions of the policy.
        log_temperature: logarithm of the temperature.
    """

    value_1: Array
    value_2: Array
    policy_value_1: Array
    policy_value_2: Array
    next_value_1: Array
    next_value_2: Array
    log_p: Array
    next_log_p: Array
    log_temperature: Array

    @classmethod
    def from_output(cls, F: OperatorModule, output_BO: Array) -> SoftOutputs:
        """Splits the network's output in training, (B, O)."""
        return cls(*F.split(output_BO, num_outputs=len(cls._fields), axis=1, squeeze_axis=True))


class SoftActorCriticLoss(ReplayAlgorithm):
    """Squared errors of the critics, halved; plus temperature * log p - value of an action of the policy; plus
    -log temperature * (log p + target entropy)."""

    setting: ClassVar[str] = "loss=sac model=soft_actor_critic"
    head: ClassVar[str] = "squashed_gaussian"
    followed: ClassVar[str] = "critics"
    passes: ClassVar[int] = 64

    target_rate: Fraction = 0.005
    """Share by which the target critics approach the critics at each of their updates."""
    entropy_target: Union[Literal["auto"], Finite] = "auto"
    """Entropy in nats that the temperature aims at; auto = minus the number of components of an action."""

    def unsupported_reason(self, actions: Actions, limits: ActionLimits) -> str:
        if actions.count:
            return "its actions are choices, and loss=sac is for numbers. Type loss=ppo model=actor_critic"
        if not (np.isfinite(limits.low).all() and np.isfinite(limits.high).all()):
            return "its actions have no finite limits, which loss=sac needs. Type loss=ppo model=actor_critic"
        return ""

    def unsupported_model(self, model: Model) -> str:
        from mxtrain.reinforcement.model import SoftActorCritic

        return "" if isinstance(model, SoftActorCritic) else "it has no critics"

    def num_uniform(self, actions: Actions) -> int:
        return 2 * actions.size

    def num_inputs_drawn(self, actions: Actions) -> int:
        return 2 * actions.size

    def explore(self, actions: Actions, output_EO: np.ndarray, uniform_EW: np.ndarray, num_steps: int) -> np.ndarray:
        first_EA, second_EA = np.split(uniform_EW, 2, axis=1)
        return actions.choose(output_EO, standard_normal(first_EA, second_EA))

    def build_for(self, actions: Actions) -> gluon.HybridBlock:
        from mxtrain.loss.function_block import FunctionBlock

        entropy = -float(actions.size) if self.entropy_target == "auto" else self.entropy_target
        return FunctionBlock(partial(self._loss, entropy))

    def _loss(self, entropy_target: float, F: OperatorModule, output_BO: Array, facts_BX: Array) -> Array:
        out = SoftOutputs.from_output(F, output_BO)
        temperature_B = F.exp(F.BlockGrad(out.log_temperature))
        target_B = self.target_of(F, out, facts_BX)
        error_B = F.square(out.value_1 - target_B) + F.square(out.value_2 - target_B)
        policy_B = temperature_B * out.log_p - F.minimum(out.policy_value_1, out.policy_value_2)
        return 0.5 * error_B + policy_B - out.log_temperature * (F.BlockGrad(out.log_p) + entropy_target)

    @staticmethod
    def target_of(F: OperatorModule, out: SoftOutputs, facts_BX: Array) -> Array:
        """Returns the target of the critics, (B,)."""
        reward_B, discount_B = facts_of(F, facts_BX, "reward", "discount", columns=REPLAY_FACTS)
        soft_B = F.minimum(out.next_value_1, out.next_value_2) - F.exp(out.log_temperature) * out.next_log_p
        return F.BlockGrad(reward_B + discount_B * soft_B)

    def metrics(self, actions: Actions) -> Mapping[str, Metric]:
        return {
            "action_value": CriticValue(actions=actions),
            "policy_entropy": SampledEntropy(actions=actions),
            "temperature": Temperature(actions=actions),
        }


class SoftMetric(PolicyMetric):
    """Base class of metrics of soft actor-critic in training."""

    def measured(self, F: OperatorModule, out: SoftOutputs) -> Array:
        """Returns the measured number of each sample, (B,)."""
        raise NotImplementedError

    def measure(self, F: OperatorModule, outputs: Sequence[Array], targets: Sequence[Array], num_classes: int) -> Array:
        return sums_of(F, self.measured(F, SoftOutputs.from_output(F, outputs[0])))


class CriticValue(SoftMetric):
    """Mean value of the taken actions by the first critic."""

    def measured(self, F: OperatorModule, out: SoftOutputs) -> Array:
        return out.value_1


class SampledEntropy(SoftMetric):
    """Mean of -log p of an action of the policy for each observation, in nats."""

    def measured(self, F: OperatorModule, out: SoftOutputs) -> Array:
        return -out.log_p


class Temperature(SoftMetric):
    """Weight of the entropy."""

    def measured(self, F: OperatorModule, out: SoftOutputs) -> Array:
        return F.exp(out.log_temperature)
