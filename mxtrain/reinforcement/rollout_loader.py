"""Loads minibatches of roll-outs. Each roll-out is used for several passes; a batch has the same number of steps of
each environment.

A batch depends on the weights before it, so `prefetch` must be 0. A worker's share of a batch is its environments'
share, so two workers play what one would. Each episode has a seed of its own, a function of (seed, roll-out,
environment, step), and a checkpoint holds the actions since then.

Legend: B batch, E environments of this worker, T steps of a roll-out, S steps of each in a batch, P batches of a pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Iterator, Optional, Tuple

import numpy as np

from mxtrain.data.loading.loader import Consumer, LoaderOptions
from mxtrain.data.loading.randomness import bits
from mxtrain.reinforcement.collecting import Environments
from mxtrain.reinforcement.draws import ReinforcementDraw
from mxtrain.reinforcement.environment_loader import EnvironmentLoader
from mxtrain.reinforcement.rollouts import Rollout, Rollouts
from mxtrain.types import Batch

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray


class RolloutLoader(EnvironmentLoader):
    """Collects roll-outs with the current weights and loads their minibatches.

    Args:
        source: environments.
        options: options of all loaders, see `EnvironmentLoader`.
    """

    state_name: ClassVar[str] = "rollouts"

    def __init__(self, source: Environments, options: LoaderOptions):
        self.rollouts = Rollouts(source, options.seed)
        super().__init__(source, self.rollouts, options)
        self._placed: Optional[Tuple[Rollout, Tuple[int, int], Tuple[NDArray, NDArray]]] = None

    def _make_batches(self, epoch: int, start: int, consumer: Consumer) -> Iterator[Batch]:
        from mxtrain.reinforcement.policy_client import PolicyClient

        settings, client = self._settings, PolicyClient(consumer.strategies, self._device)
        parts = settings.rollout_steps // self._steps_each
        for number in range(start, self.num_batches):
            rollout_of_epoch, part = divmod(number, settings.passes * parts)
            rollout_number = epoch * settings.rollouts_per_epoch + rollout_of_epoch
            rollout = self.rollouts.collect(rollout_number, part == 0, client, consumer.workers)
            if part == settings.passes * parts - 1 or number == self.num_batches - 1:
                self.rollouts.forget()
            yield self._batch(rollout, rollout_number, *divmod(part, parts))

    def _batch(self, rollout: Rollout, number: int, pass_number: int, part: int) -> Batch:
        """Returns the batch with this part of a pass over a roll-out, grouped by environment."""
        count, global_size = len(rollout.facts_ETX), self._settings.num_envs * self._steps_each
        if not count:
            return Batch((), (), 0, global_size)
        is_single = self._steps_each == self._settings.rollout_steps
        key = (number, 0 if is_single else pass_number)
        if self._placed is None or self._placed[0] is not rollout or self._placed[1] != key:
            self._placed = (rollout, key, self._place(rollout, key))
        size = count * self._steps_each
        observations, facts = self._placed[2]
        placed = Batch((observations,), (facts,), len(facts), global_size)
        return placed if is_single else placed.slice(part * size, (part + 1) * size, global_size)

    def _place(self, rollout: Rollout, key: Tuple[int, int]) -> Tuple[NDArray, NDArray]:
        """Copies all batches of a pass to the device, concatenated, because each copy costs as much as a small
        network."""
        from mxtrain.data.loading.placing import copy_to

        count, steps = rollout.facts_ETX.shape[:2]
        order_PES = self._steps_of(key, count).reshape((count, steps // self._steps_each, -1)).swapaxes(0, 1)
        position_1E1 = np.arange(count)[None, :, None]
        observations, facts = (
            copy_to(
                array[position_1E1, order_PES]
                .reshape((count * steps, *array.shape[2:]))
                .astype(np.float32, copy=False),
                self._device,
            )
            for array in (rollout.observation_ET, rollout.facts_ETX)
        )
        return observations, facts

    def _steps_of(self, key: Tuple[int, int], count: int) -> np.ndarray:
        """Returns the order of the steps of each environment in a pass, (E, T)."""
        number, pass_number = key
        steps = self._settings.rollout_steps
        if self._steps_each == steps:
            return np.tile(np.arange(steps), (count, 1))
        first, _ = self.world.share(self._settings.num_envs)
        index = first * steps + np.arange(count * steps)
        random = bits(self.seed, number * self._settings.passes + pass_number, index, ReinforcementDraw.MINIBATCH)
        return np.argsort(random.reshape((count, steps)), axis=1, kind="stable")
