"""Random streams of reinforcement learning."""

from __future__ import annotations

import numpy as np

from mxtrain.types import NamedInt

LEAST_UNIFORM = 2.0**-54
"""Replaces the random number 0, whose logarithm would be infinite."""


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


def standard_normal(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Converts two arrays of random numbers in [0, 1) to standard normal ones, float32, by the Box-Muller transform."""
    radius = np.sqrt(-2.0 * np.log(np.maximum(first, LEAST_UNIFORM)))
    return (radius * np.cos(2.0 * np.pi * second)).astype(np.float32)
