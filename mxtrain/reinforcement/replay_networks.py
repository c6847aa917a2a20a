"""Networks of algorithms with a replay buffer, each with the target network that follows it. Imports MXNet.

In training their inputs are (observation, next observation, ...), in prediction (observation,) alone.

Legend: B batch, O outputs, A numbers of an action.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Optional, Tuple

from mxtrain.engine.backend import gluon, mx
from mxtrain.errors import ConfigError
from mxtrain.model.graph.shapes import infer_shapes
from mxtrain.model.networks.classifier import build_activation
from mxtrain.model.networks.train_predict_block import TrainPredictBlock
from mxtrain.reinforcement.networks import build_features, dense, hidden_layers
from mxtrain.reinforcement.policy import LOG_STD_LIMITS
from mxtrain.types import Shape

if TYPE_CHECKING:
    from mxtrain.reinforcement.model import DensePolicyModel, SoftActorCritic
    from mxtrain.types.annotations import Array, OperatorModule

NUM_CRITICS = 2
TARGET = "target"
"""Name of the child of a network that follows another child."""
_LOG_2_PI = math.log(2 * math.pi)


class ActionValues(gluon.HybridBlock):
    """Observations (B, ...) to outputs (B, O) by dense layers, whose last one has a small gain.

    Args:
        num_outputs: O.
        input_shape: shape of an observation.
        spec: sizes of the layers.
        uniform: kind of initial values, see `networks.dense`.
    """

    def __init__(
        self,
        num_outputs: int,
        input_shape: Shape,
        spec: DensePolicyModel,
        uniform: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        with self.name_scope():
            self.features = build_features(input_shape, spec.normalize_observations)
            self.hidden = hidden_layers(spec.hidden, spec.activation, uniform)
            self.output = dense(num_outputs, 0.01, uniform)

    def hybrid_forward(self, F: OperatorModule, x: Array) -> Array:
        return self.output(self.hidden(self.features(x)))


def freeze_target(target: gluon.Block) -> None:
    """Makes the parameters of a target network constants of the optimizer."""
    for parameter in target.collect_params().values():
        parameter.grad_req = "null"


def both_halves(F: OperatorModule, network: gluon.Block, x: Array, next_x: Array) -> Tuple[Array, Array]:
    """Returns the outputs of a network for observations and, as constants, for the next ones.

    They are computed as one batch: with two calls, MXNet would also compute the gradient of the second one, of zeros.
    """
    output, next_output = F.split(network(F.concat(x, next_x, dim=0)), num_outputs=2, axis=0)
    return output, F.BlockGrad(next_output)


class DoubleValueNetwork(TrainPredictBlock):
    """Observation to the values of actions (B, K); in training (observation, next observation) to the values of both,
    and those of the next one by the target network, (B, 3 K).

    Args:
        policy: network (B, ...) to (B, K).
        target: another one that is built in the same way.
        input_shape: shape of an observation.
        double: if False, the values of the next observation by the policy are left out, (B, 2 K).
    """

    def __init__(
        self, policy: gluon.Block, target: gluon.Block, input_shape: Shape, double: bool = True, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self._double = double
        if {*policy.collect_params()} & {*target.collect_params()}:
            raise ConfigError(
                "model: two networks that are built one after the other have the same names of parameters, and would "
                "be one network in training. Build it with prefix=None."
            )
        self.policy, self.target = policy, target
        # Prediction does not use the target. A hybridized block that contained it would warn of unused parameters.
        object.__setattr__(self, "_prediction_form", policy)
        for block in (policy, target):  # prediction, by which shapes are inferred, never calls the target
            infer_shapes(block, input_shape, None)
        freeze_target(target)

    def train_forward(self, F: OperatorModule, x: Array, *annotations: Array) -> Any:
        (next_x,) = annotations
        # In this order, a cut between two devices can be before the target: layers on both sides cannot share weights.
        values = both_halves(F, self.policy, x, next_x) if self._double else (self.policy(x),)
        return F.concat(*values, F.BlockGrad(self.target(next_x)), dim=1)


class TwinCritics(gluon.HybridBlock):
    """Two critics: observations and actions (B, A) to their values (B, 2).

    With a second action, the values of this one follow, (B, 4), whose gradient is that of the action alone.

    Args:
        size: A.
        input_shape: shape of an observation.
        spec: sizes of the layers.
    """

    def __init__(self, size: int, input_shape: Shape, spec: DensePolicyModel, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._num_layers = len(spec.hidden) + 1
        with self.name_scope():
            self.features = build_features(input_shape, spec.normalize_observations)
            self.activation = build_activation(spec.activation)
            for critic in range(NUM_CRITICS):
                width = 0  # inferred: that of the features and the action
                for layer, units in enumerate((*spec.hidden, 1)):
                    init = mx.init.Orthogonal(1.0 if layer == len(spec.hidden) else math.sqrt(2))
                    for role, shape, first in (("weight", (units, width), init), ("bias", (units,), mx.init.Zero())):
                        name = f"critic{critic}_{layer}_{role}"
                        parameter = self.params.get(name, shape=shape, init=first, allow_deferred_init=True)
                        setattr(self, name, parameter)
                    width = units

    def hybrid_forward(
        self, F: OperatorModule, x: Array, action_BA: Array, policy_action_BA: Optional[Array] = None, **weights: Array
    ) -> Array:
        x = self.features(x)
        values = self._values(F, x, action_BA, weights)
        if policy_action_BA is not None:
            constants = {name: F.BlockGrad(weight) for name, weight in weights.items()}
            values += self._values(F, F.BlockGrad(x), policy_action_BA, constants)
        return F.concat(*values, dim=1)

    def _values(self, F: OperatorModule, x: Array, action_BA: Array, weights: Any) -> Tuple[Array, ...]:
        """Returns the value by each critic, (B, 1)."""
        values, joined = [], F.concat(x, action_BA, dim=1)
        for critic in range(NUM_CRITICS):
            y = joined
            for layer in range(self._num_layers):
                weight, bias = (weights[f"critic{critic}_{layer}_{role}"] for role in ("weight", "bias"))
                y = F.FullyConnected(y, weight, bias, num_hidden=_units(self, critic, layer))
                y = self.activation(y) if layer < self._num_layers - 1 else y
            values.append(y)
        return tuple(values)


def _units(critics: TwinCritics, critic: int, layer: int) -> int:
    parameter: gluon.Parameter = getattr(critics, f"critic{critic}_{layer}_bias")
    return int(parameter.shape[0])


class SoftActorCriticNetwork(TrainPredictBlock):
    """Observation to means and log standard deviations (B, 2 A); in training (observation, next observation, action,
    noise (B, 2 A)) to the columns of `sac.SoftOutputs`.

    Source: Haarnoja et al., "Soft actor-critic algorithms and applications", https://arxiv.org/abs/1812.05905.

    Args:
        size: A.
        input_shape: shape of an observation.
        spec: sizes of the layers and initial temperature.
    """

    def __init__(self, size: int, input_shape: Shape, spec: SoftActorCritic, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._size = size
        with self.name_scope():
            self.policy = ActionValues(2 * size, input_shape, spec, prefix="policy_")
            self.critics = TwinCritics(size, input_shape, spec, prefix="critics_")
            self.target = TwinCritics(size, input_shape, spec, prefix="target_")
            initial = mx.init.Constant(math.log(spec.initial_temperature))
            self.log_temperature = self.params.get("log_temperature", shape=(1, 1), init=initial)
        object.__setattr__(self, "_prediction_form", self.policy)
        for critics in (self.critics, self.target):
            infer_shapes(critics, (tuple(input_shape), (size,)), None)
        freeze_target(self.target)

    def hybrid_forward(  # type: ignore[override]  # Gluon passes parameters by name
        self, F: OperatorModule, x: Array, *annotations: Array, log_temperature: Array
    ) -> Any:
        next_x, action_BA, noise_BN = annotations
        first_BA, second_BA = F.split(noise_BN, num_outputs=2, axis=1)
        output_BO, next_output_BO = both_halves(F, self.policy, x, next_x)
        policy_action_BA, log_p_B1 = self._draw(F, output_BO, first_BA)
        next_action_BA, next_log_p_B1 = self._draw(F, next_output_BO, second_BA)
        value_B4 = self.critics(x, action_BA, policy_action_BA)
        target_B2 = F.BlockGrad(self.target(next_x, next_action_BA))
        log_temperature_B1 = F.broadcast_like(log_temperature, log_p_B1)
        return F.concat(value_B4, target_B2, log_p_B1, next_log_p_B1, log_temperature_B1, dim=1)

    def _draw(self, F: OperatorModule, output_BO: Array, noise_BA: Array) -> Tuple[Array, Array]:
        """Returns actions (B, A) of a policy for standard normal noise, and their log p, (B, 1)."""
        mean_BA = F.slice_axis(output_BO, axis=1, begin=0, end=self._size)
        log_std_BA = F.clip(F.slice_axis(output_BO, axis=1, begin=self._size, end=None), *LOG_STD_LIMITS)
        raw_BA = mean_BA + F.exp(log_std_BA) * noise_BA
        # log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2 u)), which has no cancellation for large u.
        log_slope_BA = 2.0 * (math.log(2.0) - raw_BA - F.Activation(-2.0 * raw_BA, act_type="softrelu"))
        log_p_BA = -0.5 * F.square(noise_BA) - log_std_BA - 0.5 * _LOG_2_PI - log_slope_BA
        return F.tanh(raw_BA), F.sum(log_p_BA, axis=1, keepdims=True)
