"""Policy and value as a Gluon block. Imports MXNet.

Legend: B batch, O outputs, A numbers of an action.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple, Sequence

from mxtrain.engine.backend import gluon, mx
from mxtrain.model.networks.classifier import build_activation
from mxtrain.reinforcement.policy import MIN_IMAGE_SIDE, Actions
from mxtrain.types import Shape

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray

    from mxtrain.types.annotations import Array, OperatorModule

nn = gluon.nn
EPSILON = 1e-8
MAX_OBSERVATION = 10.0
CONVOLUTIONS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
"""Channels, side and stride. Source: Mnih et al., "Human-level control through deep reinforcement learning" (2015)."""


class ActorCriticSizes(NamedTuple):
    """The fields of `ActorCritic`; see there."""

    hidden: Sequence[int]
    activation: str
    shared: bool
    initial_log_std: float
    normalize_observations: bool


class Normalize(gluon.HybridBlock):
    """Normalizes observations by running means and standard deviations.

    The statistics are parameters without gradients, so that they are placed and saved with the weights; `PolicyClient`
    updates them.
    """

    def __init__(self, shape: Shape, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        with self.name_scope():
            self.observation_mean = self.params.get(
                "observation_mean", shape=shape, init=mx.init.Zero(), grad_req="null"
            )
            self.observation_variance = self.params.get(
                "observation_variance", shape=shape, init=mx.init.One(), grad_req="null"
            )

    def hybrid_forward(
        self, F: OperatorModule, x: Array, observation_mean: Array, observation_variance: Array
    ) -> Array:
        # Elements that never change have a variance of 0.
        mean, deviation = F.expand_dims(observation_mean, axis=0), F.sqrt(observation_variance + EPSILON)
        scaled = F.broadcast_div(F.broadcast_sub(x, mean), F.expand_dims(deviation, axis=0))
        return F.clip(scaled, -MAX_OBSERVATION, MAX_OBSERVATION)


class LogStd(gluon.HybridBlock):
    """Learned log standard deviations that do not depend on the observation: means (B, A) to (B, A)."""

    def __init__(self, size: int, initial: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        with self.name_scope():
            self.log_std = self.params.get("log_std", shape=(1, size), init=mx.init.Constant(initial))

    def hybrid_forward(self, F: OperatorModule, mean_BA: Array, log_std: Array) -> Array:
        return F.broadcast_like(log_std, mean_BA)


def build_features(input_shape: Shape, normalizes: bool) -> gluon.HybridBlock:
    """Builds the first layers of a network for observations (B, ...), whose output is (B, U).

    Args:
        input_shape: shape of an observation.
        normalizes: whether observations are normalized by running statistics.
    """
    features = nn.HybridSequential(prefix="features_")
    if normalizes:
        features.add(Normalize(tuple(input_shape)))
    elif len(input_shape) == 3:
        features.add(nn.HybridLambda(lambda F, x: x / 255.0))
    if len(input_shape) == 3 and min(input_shape[1:]) >= MIN_IMAGE_SIDE:
        for channels, side, stride in CONVOLUTIONS:
            weights = mx.init.Orthogonal(math.sqrt(2))
            features.add(nn.Conv2D(channels, side, stride, weight_initializer=weights), nn.Activation("relu"))
    if len(input_shape) > 1:
        features.add(nn.Flatten())
    return features


class ActorCriticNetwork(gluon.HybridBlock):
    """Policy and value network: observations (B, ...) to (B, O), see `mxtrain.reinforcement.policy`.

    The output is a single array, because each copy to the host costs time.

    Args:
        actions: action space.
        input_shape: shape of an observation.
        sizes: sizes and variants of the network.
    """

    def __init__(self, actions: Actions, input_shape: Shape, sizes: ActorCriticSizes, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._is_shared = sizes.shared
        with self.name_scope():
            self.features = build_features(input_shape, sizes.normalize_observations)
            self.policy = hidden_layers(sizes.hidden, sizes.activation)
            self.policy_output = dense(actions.count or actions.size, 0.01)
            self.value = None if sizes.shared else hidden_layers(sizes.hidden, sizes.activation)
            self.value_output = dense(1, 1.0)
            self.log_std = None if actions.count else LogStd(actions.size, sizes.initial_log_std)

    def hybrid_forward(self, F: OperatorModule, x: Array) -> Array:
        x = self.features(x)
        acting = self.policy(x)
        policy = self.policy_output(acting)
        value = self.value_output(acting if self.value is None else self.value(x))
        return F.concat(*([policy] if self.log_std is None else [policy, self.log_std(policy)]), value, dim=1)


def hidden_layers(hidden: Sequence[int], activation: str, uniform: bool = False) -> gluon.HybridBlock:
    """Builds dense layers with activations, see `dense`."""
    layers = nn.HybridSequential()
    for units in hidden:
        layers.add(dense(units, math.sqrt(2), uniform), build_activation(activation))
    return layers


def dense(units: int, gain: float, uniform: bool = False) -> gluon.HybridBlock:
    """Builds a dense layer with orthogonal initial weights and biases of zero; or with weights and biases that are
    uniform within +- 1 / sqrt(inputs of a unit), as PyTorch's layers have them.

    Action values need random biases: from zero, layers with ReLU only scale with the observation, the values of rare
    observations rise with all others, and DQN with Huber's loss diverges on CartPole-v1 if observations are normalized.
    That of stable-baselines3 2.9 diverges, too, if its biases are set to zero.
    """
    if not uniform:
        return nn.Dense(units, weight_initializer=mx.init.Orthogonal(gain))
    layer = nn.Dense(units, weight_initializer=mx.init.Xavier(rnd_type="uniform", factor_type="in", magnitude=1.0))
    layer.bias.init = BiasByInputs(layer.weight)
    return layer


class BiasByInputs(mx.init.Initializer):
    """Biases that are uniform within +- 1 / sqrt(inputs of a unit).

    Args:
        weight: weights of the layer, (units, inputs).
    """

    def __init__(self, weight: gluon.Parameter):
        super().__init__()
        self._weight = weight

    def _init_weight(self, name: str, array: NDArray) -> None:
        mx.init.Uniform(1.0 / math.sqrt(self._weight.shape[1]))._init_weight(name, array)
