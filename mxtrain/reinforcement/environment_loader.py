"""Base class of loaders of steps in environments with the current weights."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Mapping

from mxtrain.data.loading.loader import BatchLoader, LoaderOptions
from mxtrain.kvstore.world import World
from mxtrain.reinforcement.collecting import Environments, StepCollector
from mxtrain.types import Stateful


class EnvironmentLoader(BatchLoader):
    """Loads batches with the same number of steps of each environment, which each worker collects in its share.

    Args:
        source: environments.
        collector: collects the steps.
        options: options of all loaders; `prefetch` is ignored, because batches depend on the current weights.
    """

    state_name: ClassVar[str]
    """Name of the collector's state in a checkpoint."""

    def __init__(self, source: Environments, collector: StepCollector, options: LoaderOptions) -> None:
        self._collector = collector
        self._settings = source.settings
        super().__init__(len(source), replace(options, prefetch=0))
        # The proof of an export reads batches of `dataset.eval_batch_size`, which may be smaller.
        self._steps_each = max(self.batch_size // source.settings.num_envs, 1)

    @property
    def world(self) -> World:
        """Returns the workers; each has a share of the environments."""
        return self._world

    @world.setter
    def world(self, world: World) -> None:
        self._world = world
        self._collector.share(world)

    @property
    def states(self) -> Mapping[str, Stateful]:
        return {self.state_name: self._collector}
