"""Training environments of a worker: their episodes, seeds and running statistics, and their state in a checkpoint.

A checkpoint holds the actions of unfinished episodes, which are replayed on resume, because gymnasium cannot save the
state of environments.

Legend: E environments of this worker, S steps, A numbers of an action.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable, ClassVar, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from mxtrain.data.loading.randomness import bits
from mxtrain.errors import CheckpointError
from mxtrain.kvstore.store import Store, within_step
from mxtrain.kvstore.world import ALONE, World
from mxtrain.reinforcement.advantages import discounted_sums
from mxtrain.reinforcement.draws import ReinforcementDraw
from mxtrain.reinforcement.environments import EnvironmentFactory, Spaces, VectorEnvironment
from mxtrain.reinforcement.moments import RunningMoments

if TYPE_CHECKING:
    from mxtrain.data.loading.loader import BatchLoader, LoaderOptions
    from mxtrain.kvstore.store import Numbers
    from mxtrain.types.annotations import Json, JsonObject

log = logging.getLogger("mxtrain")
EPSILON = 1e-8
"""Added to variances and standard deviations before a division."""
MAX_REWARD = 10.0
"""Normalised rewards are clipped to +- this, as in OpenAI's Baselines."""
_EPISODE_FACTS = 3
"""Number of columns before the observation in the row of an unfinished episode in a checkpoint: seed, number of
actions, discounted sum of rewards."""


@dataclass(frozen=True)
class RolloutSettings:
    """Fields of `Gymnasium` that determine the steps in training environments; see there."""

    num_envs: int
    rollout_steps: int
    rollouts_per_epoch: int
    passes: int
    gamma: float
    gae_lambda: float
    normalize_advantages: bool
    normalize_rewards: bool
    recordings: Optional[str]
    recordings_only: bool


@dataclass(frozen=True)
class Environments:
    """Training environments as samples: the length counts each step in each pass of an epoch.

    Attributes:
        maker: factory of the environments.
        spaces: observation and action spaces.
        settings: number of environments and lengths of roll-outs.
        make_loader: function that builds the loader of the algorithm.
    """

    maker: EnvironmentFactory
    spaces: Spaces
    settings: RolloutSettings
    make_loader: Callable[[Environments, LoaderOptions], BatchLoader]

    def __len__(self) -> int:
        settings = self.settings
        return settings.rollouts_per_epoch * settings.passes * settings.num_envs * settings.rollout_steps


class StepCollector:
    """Base class of collectors of steps in this worker's environments; `Stateful`.

    Episode seeds are functions of (seed, number of the roll-out, environment, step).

    Args:
        source: environments.
        seed: seed of the run.
    """

    held: ClassVar[str]
    """Content of the checkpoint besides the episodes, for messages."""

    def __init__(self, source: Environments, seed: int):
        self._source, self._seed = source, seed
        self._workers: Optional[Store] = None
        self._world = ALONE
        self._environment: Optional[VectorEnvironment] = None
        self._discounted_E = np.zeros(0)
        self._restored: Mapping[str, np.ndarray] = {}
        self._moments = {
            "observation": RunningMoments(source.spaces.shape),
            "return": RunningMoments(()),
        }

    def share(self, world: World) -> None:
        """Redistributes the environments after workers joined or left. All environments start new episodes."""
        self.end()
        self._world, self._restored = world, {}

    def end(self) -> None:
        """Closes the environments."""
        if self._environment is not None:
            self._environment.close()
        self._environment = None

    def _total(self, values: Numbers) -> np.ndarray:
        """Sums over all workers; with dist_async only over this one, because workers must not wait for each other."""
        return within_step(self._workers or Store()).total(values)

    def _gather(self, rows: np.ndarray) -> np.ndarray:
        """Returns the rows of the environments of all workers, in their order."""
        if self._workers is None or self._workers.world.size == 1:
            return rows
        return self._workers.gather_rows(rows.astype(np.float64)).astype(rows.dtype)

    def _local_environments(self) -> range:
        """Returns the global numbers of this worker's environments."""
        return range(*self._world.share(self._source.settings.num_envs))

    def _begin(self, number: int) -> Mapping[str, np.ndarray]:
        """Opens the environments and continues the episodes of a checkpoint.

        Args:
            number: number of the roll-out whose seeds new episodes get.

        Returns:
            The state that `load_state` got; empty if there is none.
        """
        source, numbers = self._source, self._local_environments()
        names = [f"environment {global_index}" for global_index in numbers]
        self._environment = environment = VectorEnvironment(source.maker, source.spaces, names)
        self._discounted_E = np.zeros(len(numbers))
        restored, self._restored = self._restored, {}
        seed_E = self._episode_seeds(number, source.settings.rollout_steps)[0]
        for index, global_index in enumerate(numbers):
            if restored:
                if self._resume(index, restored["episodes"][global_index], restored["actions"][global_index]):
                    continue
                log.warning(
                    "environment %d of %s is no function of its seed and the actions in it: its open episode could not "
                    "be played again as it was, and it begins a new one",
                    global_index,
                    source.maker.id,
                )
            self._discounted_E[index] = 0.0
            environment.start_episode(index, int(seed_E[index]))
        return restored

    def _resume(self, index: int, episode: np.ndarray, actions: np.ndarray) -> bool:
        """Replays an unfinished episode. Returns True if it ends at the stored observation."""
        assert self._environment is not None
        seed, length = int(episode[0]), int(episode[1])
        size = self._source.spaces.actions.size
        action_SA = actions[: length * size].reshape((length, size)).astype(np.float32)
        is_open = self._environment.replay(index, seed, action_SA)
        self._discounted_E[index] = episode[2]
        observation = self._environment.observation_E[index].reshape(-1).astype(np.float64)
        return is_open and bool((observation == episode[_EPISODE_FACTS:]).all())

    def _episode_seeds(self, number: int, steps: int) -> np.ndarray:
        """Returns the seed of an episode that would begin before each step or after the last one, (S + 1, E)."""
        index_SE = np.arange(steps + 1)[:, None] + (steps + 1) * np.array(self._local_environments(), np.int64)[None]
        # 31 bits fit a signed 32-bit integer, which some environments require.
        seeds = bits(self._seed, number, index_SE.reshape(-1), ReinforcementDraw.EPISODE) >> np.uint64(33)
        return seeds.astype(np.int64).reshape(index_SE.shape)

    def _update_reward_moments(self, reward_SE: np.ndarray, ended_SE: np.ndarray) -> None:
        """Adds discounted sums of rewards to their running moments."""
        sum_SE, self._discounted_E = discounted_sums(
            reward_SE, ended_SE, self._discounted_E, self._source.settings.gamma
        )
        self._moments["return"].update(sum_SE.reshape((-1, 1)), self._total)

    def _scaled(self, reward: np.ndarray) -> np.ndarray:
        """Returns rewards divided by the running standard deviation of their discounted sums, clipped."""
        return np.clip(reward / np.sqrt(self._moments["return"].variance + EPSILON), -MAX_REWARD, MAX_REWARD)

    # In checkpoints.

    def save_state(self) -> Tuple[Mapping[str, np.ndarray], Mapping[str, Json]]:
        """See `Stateful`. Collective, unless the environments have not been started."""
        arrays = {
            f"{name}.{key}": array for name, moments in self._moments.items() for key, array in moments.arrays().items()
        }
        return {**arrays, **(self._restored if self._environment is None else self._rows(self._environment))}, {}

    def _rows(self, environment: VectorEnvironment) -> Dict[str, np.ndarray]:
        """Returns the unfinished episodes of all workers, one row per environment."""
        size = len(self._local_environments())
        actions_of_episodes: List[np.ndarray] = [
            np.concatenate(actions) if actions else np.zeros(0, np.float32) for actions in environment.actions
        ]
        lengths = [len(actions) // self._source.spaces.actions.size for actions in actions_of_episodes]
        facts = np.stack([np.array(environment.seeds, np.float64), lengths, self._discounted_E], axis=1)
        episodes = np.concatenate([facts, environment.observation_E.reshape((size, -1))], axis=1)
        rows = {"episodes": self._gather(episodes)}
        longest = max(int(rows["episodes"][:, 1].max()), 1) * self._source.spaces.actions.size
        padded = np.zeros((size, longest))
        for row, actions in zip(padded, actions_of_episodes):
            row[: len(actions)] = actions
        rows["actions"] = self._gather(padded).astype(np.float32)
        return rows

    def _shapes(self, arrays: Mapping[str, np.ndarray]) -> Dict[str, Sequence[int]]:
        """Returns the required shape of arrays of a checkpoint besides those of the running moments."""
        width = int(np.prod(self._source.spaces.shape))
        return {"episodes": (self._source.settings.num_envs, _EPISODE_FACTS + width)}

    def load_state(self, arrays: Mapping[str, np.ndarray], values: JsonObject, source: str) -> None:
        """See `Stateful`."""
        rows = {name: array for name, array in arrays.items() if "." not in name}
        if rows and (
            "actions" not in rows
            or any(name not in rows or rows[name].shape != tuple(shape) for name, shape in self._shapes(arrays).items())
        ):
            raise CheckpointError(f"{source} holds {self.held} of other environments, or of another number or length.")
        for name, moments in self._moments.items():
            state = {key[len(name) + 1 :]: array for key, array in arrays.items() if key.startswith(f"{name}.")}
            if set(state) != set(moments.arrays()) or state["mean"].shape != moments.arrays()["mean"].shape:
                raise CheckpointError(f"{source} holds the statistics of another environment.")
            moments.load(state)
        self.end()
        self._restored = rows
