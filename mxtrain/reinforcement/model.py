"""Base class of models for reinforcement learning."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, List

from mxtrain.model.networks.layers import Activation
from mxtrain.model.spec import Model, missing_method
from mxtrain.reinforcement.kinds import Observations, Returns
from mxtrain.types import Positive, Shape
from mxtrain.types.kinds import Takes

if TYPE_CHECKING:
    from mxnet import gluon

    from mxtrain.reinforcement.policy import Actions


class PolicyModel(Model):
    """Base class of policy networks. Other models are used as networks with one vector as output (`Model.build`)."""

    takes: ClassVar[Takes] = Takes(Observations, Returns)

    def build_policy(self, actions: Actions, input_shape: Shape) -> gluon.Block:
        """Returns the policy network, uninitialized: (B, ...) to (B, O), see `mxtrain.reinforcement.policy`.

        Args:
            actions: action space.
            input_shape: shape of an observation.
        """
        raise missing_method(self, "build_policy")


class ActorCritic(PolicyModel):
    """Dense layers for the policy and as many for the value; before them, for images, the convolutions of Mnih et al.
    (Nature, 2015), which both share.

    Weights are orthogonal, whatever `init` says: with a gain of sqrt(2), the policy's last layer 0.01, the value's 1.
    A policy for numbers is a Gaussian whose standard deviations are parameters.
    """

    hidden: List[Positive] = [64, 64]
    """Units of each hidden layer."""
    activation: Activation = "tanh"
    """Activation after each hidden layer."""
    shared: bool = False
    """If true, policy and value share their hidden layers."""
    initial_log_std: float = 0.0
    """Initial log standard deviation of a Gaussian policy."""
    normalize_observations: bool = False
    """If true, observations are standardized by running means and deviations, and clipped to +-10."""

    def build_policy(self, actions: Actions, input_shape: Shape) -> gluon.HybridBlock:
        from mxtrain.reinforcement.networks import ActorCriticNetwork, ActorCriticSizes

        sizes = ActorCriticSizes(
            self.hidden, self.activation, self.shared, self.initial_log_std, self.normalize_observations
        )
        return ActorCriticNetwork(actions, input_shape, sizes, prefix="")
