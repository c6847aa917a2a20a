"""Base class of models for reinforcement learning."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, List

from mxtrain.model.networks.layers import Activation
from mxtrain.model.spec import Model, missing_method
from mxtrain.reinforcement.kinds import Observations, Returns
from mxtrain.types import Positive, PositiveFloat, Shape
from mxtrain.types.kinds import Takes

if TYPE_CHECKING:
    from mxnet import gluon

    from mxtrain.reinforcement.policy import Actions


class PolicyModel(Model):
    """Base class of policy networks. Other models are used as networks with one vector as output (`Model.build`)."""

    takes: ClassVar[Takes] = Takes(Observations, Returns)

    head: ClassVar[str] = "actor_critic"
    """Form of the outputs, one of `policy.HEADS`."""

    def build_policy(self, actions: Actions, input_shape: Shape) -> gluon.Block:
        """Returns the policy network, uninitialized: (B, ...) to (B, O), see `mxtrain.reinforcement.policy`.

        Args:
            actions: action space.
            input_shape: shape of an observation.
        """
        raise missing_method(self, "build_policy")


class DensePolicyModel(PolicyModel):
    """Base class of policy networks of dense layers; before them, for images, the convolutions of Mnih et al. (Nature,
    2015).

    Weights are orthogonal, whatever `init` says: with a gain of sqrt(2), the policy's last layer 0.01, the value's 1.
    """

    hidden: List[Positive] = [64, 64]
    """Units of each hidden layer."""
    activation: Activation = "tanh"
    """Activation after each hidden layer."""
    normalize_observations: bool = False
    """If true, observations are standardized by running means and deviations, and clipped to +-10."""


class ActorCritic(DensePolicyModel):
    """Dense layers for the policy and as many for the value, which share convolutions.

    A policy for numbers is a Gaussian whose standard deviations are parameters.
    """

    shared: bool = False
    """If true, policy and value share their hidden layers."""
    initial_log_std: float = 0.0
    """Initial log standard deviation of a Gaussian policy."""

    def build_policy(self, actions: Actions, input_shape: Shape) -> gluon.HybridBlock:
        from mxtrain.reinforcement.networks import ActorCriticNetwork, ActorCriticSizes

        sizes = ActorCriticSizes(
            self.hidden, self.activation, self.shared, self.initial_log_std, self.normalize_observations
        )
        return ActorCriticNetwork(actions, input_shape, sizes, prefix="")


class QNetwork(DensePolicyModel):
    """Dense layers for the values of discrete actions."""

    head: ClassVar[str] = "action_values"

    hidden: List[Positive] = [128, 128]
    """Units of each hidden layer."""
    activation: Activation = "relu"
    """Activation after each hidden layer."""

    def build_policy(self, actions: Actions, input_shape: Shape) -> gluon.HybridBlock:
        from mxtrain.reinforcement.replay_networks import ActionValues

        # Without a prefix of its own, so that a target network gets another one.
        return ActionValues(actions.num_outputs, input_shape, self, uniform=True)


class SoftActorCritic(DensePolicyModel):
    """Dense layers for the policy, and for each of two critics, which value an observation with an action. They share
    nothing; images pass through convolutions of the policy and of the critics."""

    head: ClassVar[str] = "squashed_gaussian"

    hidden: List[Positive] = [64, 64]
    """Units of each hidden layer."""
    activation: Activation = "relu"
    """Activation after each hidden layer."""
    initial_temperature: PositiveFloat = 1.0
    """Initial weight of the entropy."""

    def build_policy(self, actions: Actions, input_shape: Shape) -> gluon.HybridBlock:
        from mxtrain.reinforcement.replay_networks import SoftActorCriticNetwork

        return SoftActorCriticNetwork(actions.size, input_shape, self, prefix="")
