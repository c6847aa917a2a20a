"""Base class of models for reinforcement learning."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from mxtrain.model.spec import Model, missing_method
from mxtrain.reinforcement.kinds import Observations, Returns
from mxtrain.types import Shape
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
