"""Algorithms of reinforcement learning: the seam between a loss, its samples and its network. Does not import MXNet.

An algorithm is one subclass of `Algorithm` and one YAML file in conf/loss/.

Legend: B batch, E environments, O outputs, A numbers of an action, X facts about a sample.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, ClassVar, Mapping, Tuple

from mxtrain.loss.spec import Loss
from mxtrain.reinforcement.kinds import Returns
from mxtrain.types import Fraction, Positive, Shape, Shapes
from mxtrain.types.kinds import Takes

if TYPE_CHECKING:
    import numpy as np
    from mxnet import gluon

    from mxtrain.data.loading.loader import BatchLoader, LoaderOptions
    from mxtrain.metric.spec import Metric
    from mxtrain.model.spec import Model
    from mxtrain.reinforcement.action_limits import ActionLimits
    from mxtrain.reinforcement.collecting import Environments
    from mxtrain.reinforcement.policy import Actions


class Algorithm(Loss):
    """Base class of losses of policies that learn from their own steps in environments."""

    takes: ClassVar[Takes] = Takes(Returns)

    setting: ClassVar[str]
    """Words that select the algorithm, for messages."""
    head: ClassVar[str] = "actor_critic"
    """Form of the outputs that the loss reads, one of `policy.HEADS`."""
    reuses_steps: ClassVar[bool] = False
    """True if steps of earlier weights can be learned from, so that `dataset.passes` can be more than 1."""
    has_buffer: ClassVar[bool] = False
    """True if batches are drawn from a replay buffer; False if they are parts of the last roll-out."""

    def unsupported_reason(self, actions: Actions, limits: ActionLimits) -> str:
        """Returns why the algorithm is not for these actions, and what to type; empty if it is."""
        return ""

    def unsupported_model(self, model: Model) -> str:
        """Returns why the algorithm cannot train a model's network; empty if it can. Called if the model's own outputs
        have the form `head`, or any form."""
        return ""

    def build_network(self, build: Callable[[], gluon.Block], actions: Actions, shape: Shape) -> gluon.Block:
        """Builds the network of training.

        Args:
            build: function that builds the model's network, uninitialized: observations (B, ...) to (B, O).
            actions: action space.
            shape: shape of an observation.
        """
        return build()

    def training_shapes(self, actions: Actions, shape: Shape) -> Shapes:
        """Returns the shapes of the network's inputs in training."""
        return shape

    def build_for(self, actions: Actions) -> gluon.HybridBlock:
        """Returns a HybridBlock of (outputs of training, facts (B, X)) -> loss (B,)."""
        raise NotImplementedError

    def metrics(self, actions: Actions) -> Mapping[str, Metric]:
        """Returns metrics of training by name."""
        return {}

    def build_loader(self, source: Environments, options: LoaderOptions) -> BatchLoader:
        """Returns the loader of training."""
        raise NotImplementedError


class ReplayAlgorithm(Algorithm):
    """Base class of algorithms that learn from a replay buffer, by a target network: a child of the network called
    "target" that follows another child slowly."""

    has_buffer: ClassVar[bool] = True
    reuses_steps: ClassVar[bool] = True
    followed: ClassVar[str] = "policy"
    """Name of the child of the network that the target network follows."""

    buffer_size: Positive = 50_000
    """Number of last steps that batches are drawn from, over all environments and workers together. They are held in
    memory and saved in every checkpoint."""
    learning_starts: Positive = 1_000
    """Number of steps with random actions before the first batch, over all environments together."""
    target_rate: Fraction = 1.0
    """Share by which the target network approaches the network at each of its updates; 1 = it becomes a copy."""
    target_interval: Positive = 1
    """Number of optimizer steps between two updates of the target network."""

    def explore(self, actions: Actions, output_EO: np.ndarray, uniform_EW: np.ndarray, num_steps: int) -> np.ndarray:
        """Chooses actions for training.

        Args:
            actions: action space.
            output_EO: outputs of the network.
            uniform_EW: random numbers in [0, 1), W = `num_uniform` for each environment.
            num_steps: number of steps so far, over all environments together.

        Returns:
            Actions (E, A), float32.
        """
        raise NotImplementedError

    def num_uniform(self, actions: Actions) -> int:
        """Returns the number of random numbers that a choice of an action needs; at least A."""
        return actions.size

    def num_inputs_drawn(self, actions: Actions) -> int:
        """Returns the number of standard normal numbers of each sample that the network of training gets."""
        return 0

    def training_shapes(self, actions: Actions, shape: Shape) -> Shapes:
        return (shape, shape, *self.further_shapes(actions))

    def further_shapes(self, actions: Actions) -> Tuple[Shape, ...]:
        """Returns the shapes of inputs of training after the observation and the next one: the action and noise."""
        return ((actions.size,), (self.num_inputs_drawn(actions),)) if self.num_inputs_drawn(actions) else ()

    def build_loader(self, source: Environments, options: LoaderOptions) -> BatchLoader:
        from mxtrain.reinforcement.replay_loader import ReplayLoader

        return ReplayLoader(source, self, options)
