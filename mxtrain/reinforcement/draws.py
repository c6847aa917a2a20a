"""Random streams of reinforcement learning."""

from __future__ import annotations

from mxtrain.types import NamedInt


class ReinforcementDraw(NamedInt):
    """Random streams of reinforcement learning; see `mxtrain.data.loading.randomness.Draw`."""

    ACTION = 740
    """Noise that is added to the outputs of the policy; also stream 741."""
    EPISODE = 742
    """Seeds of the episodes of roll-outs."""
    MEASURED_EPISODE = 743
    """Seeds of the episodes of validation; 744 for testing and 745 for prediction."""
    MINIBATCH = 746
    """Steps of a roll-out that form a minibatch."""
    REPLAY = 747
    """Steps of a replay buffer that form a batch."""
    NOISE = 748
    """Noise of actions that the network draws in training."""
