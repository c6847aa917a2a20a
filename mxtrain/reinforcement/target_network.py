"""Target networks: copies of a part of a network that follow it slowly. Imports MXNet.

Their parameters belong to the network, so that they are placed and saved with it, but have no gradients.
"""

from __future__ import annotations

from typing import Sequence

from mxtrain.parallel.base import Strategy
from mxtrain.reinforcement.policy_client import MOMENTS
from mxtrain.reinforcement.replay_networks import TARGET


def update_target(strategies: Sequence[Strategy], followed: str, rate: float) -> None:
    """Moves the parameters of the target network towards those of the network that it follows: target += rate *
    (followed - target). Asynchronous.

    Args:
        strategies: strategies that hold the network.
        followed: name of the child of the network that the target follows.
        rate: between 0 and 1; 1 copies the parameters.
    """
    for strategy in strategies:
        values, prefix = strategy.values, f"{TARGET}."
        # Statistics of observations are the same in all parts of a network: `PolicyClient` writes them.
        names = [name for name in values if name.startswith(prefix) and name.rpartition(".")[2] not in MOMENTS]
        for name in names:
            target = values[name]
            source = values[f"{followed}.{name[len(prefix) :]}"].as_in_context(target.context)
            if rate == 1.0:
                source.copyto(target)
            else:
                target += rate * (source - target)
        strategy.publish(names)
