"""Random streams of reinforcement learning."""

from __future__ import annotations

from mxtrain.types import NamedInt


class ReinforcementDraw(NamedInt):
    """Random streams of reinforcement learning; see `mxtrain.data.loading.randomness.Draw`."""

    ACTION = 740
    """Noise that is added to a policy before it acts; the stream 741 as well."""
    EPISODE = 742
    """The seed that an episode of a roll-out begins with."""
    MEASURED_EPISODE = 743
    """And 2 above it: the same of validation, testing and prediction."""
    MINIBATCH = 746
    """Steps of a roll-out that form a minibatch."""
