"""Base class of models for reinforcement learning."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Mapping, Tuple

from mxtrain.model.base import Model, missing_method
from mxtrain.types import Shape

if TYPE_CHECKING:
    from mxnet import gluon

    from mxtrain.reinforcement.policy import Actions


class PolicyModel(Model):
    """Base of networks that are made for the actions of an environment. Of any other model the network for as many
    numbers is taken (`Model.build`)."""

    input_types: ClassVar[Tuple[str, ...]] = ("observations",)
    dataset_hints: ClassVar[Mapping[str, str]] = {"": "dataset=gymnasium"}
    tasks: ClassVar[Tuple[str, ...]] = ("reinforcement_learning",)

    def build_policy(self, actions: Actions, input_shape: Shape) -> gluon.Block:
        """Returns the network that acts, uninitialized: (B, ...) to (B, O), see `mxtrain.reinforcement.policy`.

        Args:
            actions: what it may do.
            input_shape: of one observation.
        """
        raise missing_method(self, "build_policy")
