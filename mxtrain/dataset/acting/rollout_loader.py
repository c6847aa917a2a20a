"""Batches of roll-outs: each is gone through several times, in parts that hold as many steps of each environment.

Legend: B batch, E environments of this worker, S steps of each in a batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Iterator, Mapping, Optional, Sequence, Union

import numpy as np

from mxtrain.dataset.acting.rollouts import Environments, Rollout, Rollouts
from mxtrain.dataset.loading.loader import BatchLoader
from mxtrain.dataset.loading.randomness import Draw, bits
from mxtrain.kvstore.world import World
from mxtrain.types import Batch, Stateful

if TYPE_CHECKING:
    from mxnet import Context

    from mxtrain.kvstore.store import Store
    from mxtrain.parallel.base import Strategy


class RolloutLoader(BatchLoader):
    """Batches of what the network does with its weights as they are.

    Args:
        source: environments.
        device: a context or its name.
        options: of `BatchLoader`; nothing is made ahead, whatever `prefetch` says.
    """

    def __init__(self, source: Environments, device: Union[str, Context] = "cpu:0", **options: Any):
        from mxtrain.dataset.acting.following import Following

        self.rollouts = Rollouts(source, options.get("seed", 0), Following(device))
        self._settings, self._device = source.settings, device
        super().__init__(len(source), **{**options, "prefetch": 0})
        self._steps_each = self.batch_size // source.settings.num_envs

    @property
    def world(self) -> World:
        """Of which this worker plays its share of the environments."""
        return self._world

    @world.setter
    def world(self, world: World) -> None:
        self._world = world
        self.rollouts.share(world)

    @property
    def states(self) -> Mapping[str, Stateful]:
        return {"rollouts": self.rollouts}

    def follow(self, strategies: Sequence[Strategy], workers: Optional[Store] = None) -> None:
        self.rollouts.follow(strategies, workers)

    def _make_batches(self, epoch: int, start: int) -> Iterator[Batch]:
        settings = self._settings
        parts = settings.rollout_steps // self._steps_each
        for number in range(start, self.num_batches):
            turn, part = divmod(number, settings.passes * parts)
            rollout_number = epoch * settings.rollouts_per_epoch + turn
            rollout = self.rollouts.of(rollout_number, is_new=part == 0)
            if part == settings.passes * parts - 1 or number == self.num_batches - 1:
                self.rollouts.forget()
            yield self._batch(rollout, rollout_number, *divmod(part, parts))

    def _batch(self, rollout: Rollout, number: int, turn: int, part: int) -> Batch:
        """A part of a pass over a roll-out, environment after environment."""
        from mxtrain.dataset.loading.placing import copy_to

        count, steps = len(rollout.facts_ETX), self._settings.rollout_steps
        global_size = self._settings.num_envs * self._steps_each
        if not count:
            return Batch((), (), 0, global_size)
        own = slice(part * self._steps_each, (part + 1) * self._steps_each)
        if self._steps_each == steps:
            arrays = [rollout.observation_ET, rollout.facts_ETX]
        else:
            first = self.world.share(self._settings.num_envs)[0]
            index = first * steps + np.arange(count * steps)
            key_ET = bits(self.seed, number * self._settings.passes + turn, index, Draw.MINIBATCH)
            order_ES = np.argsort(key_ET.reshape((count, steps)), axis=1, kind="stable")[:, own]
            place_E1 = np.arange(count)[:, None]
            arrays = [array[place_E1, order_ES] for array in (rollout.observation_ET, rollout.facts_ETX)]
        observation_B, facts_BX = (
            copy_to(array.reshape((-1, *array.shape[2:])).astype(np.float32, copy=False), self._device)
            for array in arrays
        )
        return Batch((observation_B,), (facts_BX,), count * self._steps_each, global_size)
