"""Loads batches of a replay buffer, which grows by the steps of the current weights between them.

A batch has the same number of steps of each environment, drawn from those of this environment. So a worker holds the
steps of its own environments alone, and two workers learn from what one would. A checkpoint holds the buffer: a resumed
run draws the same batches.

Legend: B batch, E environments of this worker, T steps of a roll-out, S drawn steps of each environment, A numbers of
an action, W random numbers of a choice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Dict, Iterator, List, Mapping, Optional, Sequence

import numpy as np

from mxtrain.data.loading.loader import Consumer, LoaderOptions
from mxtrain.data.loading.randomness import uniform, uniform_rows
from mxtrain.errors import ConfigError
from mxtrain.kvstore.store import Store
from mxtrain.reinforcement.collecting import Environments, StepCollector
from mxtrain.reinforcement.draws import ReinforcementDraw, standard_normal
from mxtrain.reinforcement.environment_loader import EnvironmentLoader
from mxtrain.reinforcement.environments import VectorEnvironment
from mxtrain.reinforcement.policy import NUM_FACTS, REPLAY_FACTS
from mxtrain.reinforcement.recording import RecordedSteps, read_recordings
from mxtrain.reinforcement.replay import ReplayBuffer, buffer_bytes
from mxtrain.runtime.memory import shown_size, usable_memory
from mxtrain.types import Batch

if TYPE_CHECKING:
    from mxtrain.reinforcement.algorithm import ReplayAlgorithm
    from mxtrain.reinforcement.policy_client import PolicyClient

HELD = ("observations", "taken", "rewards", "ends")
"""Names of the arrays of the buffer in a checkpoint, one row per environment."""
BLOCK_BYTES = 1 << 24
"""Memory in which workers exchange the rows of a checkpoint at a time, as float64."""


class ReplayCollector(StepCollector):
    """Steps in environments with exploration, and holds them in a replay buffer.

    Args:
        source: environments.
        algorithm: chooses actions, and sizes the buffer.
        seed: seed of the run.

    Attributes:
        buffer: the last steps.
        ended_EF: number of returns, lengths and episodes that ended in the last roll-out, summed, (E, 3).
    """

    held: ClassVar[str] = "a replay buffer"
    buffer: ReplayBuffer

    def __init__(self, source: Environments, algorithm: ReplayAlgorithm, seed: int):
        super().__init__(source, seed)
        self._algorithm = algorithm
        self.ended_EF = np.zeros((0, 3))
        self._recorded = self._read_recordings()

    def _read_recordings(self) -> Optional[RecordedSteps]:
        """Reads the recorded steps that fill the buffer at first; None = there are none.

        Raises:
            DataError: a file cannot be read, or is of another environment.
            ConfigError: the buffer does not hold them, or they are too few for the environments.
        """
        settings, algorithm = self._source.settings, self._algorithm
        if settings.recordings is None:
            return None
        recorded = read_recordings(settings.recordings, self._source.spaces, self._source.maker.id)
        count, each = len(recorded.reward), len(recorded.reward) // settings.num_envs
        if not 1 <= each <= self._capacity:
            remedy = "Record more of them, or type fewer dataset.num_envs"
            if each:
                remedy = f"Type loss.buffer_size={count} or more"
            raise ConfigError(
                f"dataset.recordings={settings.recordings}: it has {count:,} steps, and the buffer of "
                f"loss.buffer_size={algorithm.buffer_size} takes 1 to {self._capacity:,} for each of "
                f"dataset.num_envs={settings.num_envs} environments. {remedy}."
            )
        return recorded

    @property
    def _capacity(self) -> int:
        return max(self._algorithm.buffer_size // self._source.settings.num_envs, 1)

    @property
    def current_E(self) -> np.ndarray:
        """Returns the current observation of each environment."""
        assert self._environment is not None
        return self._environment.observation_E

    def collect(self, number: int, client: PolicyClient, workers: Optional[Store] = None) -> None:
        """Takes the steps of a roll-out; before the first one, recorded steps fill the buffer, or steps with random
        actions. With `recordings_only` there are no others. Collective.

        Args:
            number: number of the roll-out over all epochs, from 0.
            client: network that chooses actions.
            workers: store that connects to the workers with the other environments.
        """
        self.resume(number, workers)
        client.publish(self._moments["observation"])
        client.refresh()
        self.ended_EF = np.zeros((len(self._local_environments()), 3))
        recorded, self._recorded = self._recorded, None  # they may be as large as the buffer, which keeps a copy
        if not self.buffer.num_steps and recorded is not None:
            self._fill(recorded, client)
        elif not self.buffer.num_steps:
            # The first roll-out has number 1 below, so that its random numbers differ from these.
            self._steps(0, -(-self._algorithm.learning_starts // self._source.settings.num_envs), None, client)
        if not self._source.settings.recordings_only:
            self._steps(number + 1, self._source.settings.rollout_steps, client, client)

    def resume(self, number: int, workers: Optional[Store]) -> None:
        """Opens the environments and restores the buffer of a checkpoint, if that has not been done.

        Args:
            number: number of the next roll-out.
            workers: see `collect`.
        """
        self._workers = workers
        if self._environment is None:
            self._begin(number + 1)

    def _begin(self, number: int) -> Mapping[str, np.ndarray]:
        spaces, local = self._source.spaces, self._local_environments()
        self.buffer = ReplayBuffer(len(local), self._capacity, spaces.shape, spaces.dtype, spaces.actions.size)
        self.ended_EF = np.zeros((len(local), 3))
        restored = super()._begin(number)
        if restored:
            rows = {name: restored[name][local.start : local.stop] for name in HELD}
            places, observations = np.zeros((0, 2)), np.zeros((0, 1))
            if "last_places" in restored:
                places, observations = restored["last_places"], restored["last_observations"]
            self.buffer.load(rows, places.astype(np.int64), observations, int(restored["num_steps"][0]), local.start)
        return restored

    def _steps(self, number: int, steps: int, acting: Optional[PolicyClient], client: PolicyClient) -> None:
        """Takes steps in all environments; without an `acting` network, with random actions."""
        assert self._environment is not None
        environment, spaces, size = self._environment, self._source.spaces, len(self._local_environments())
        num_envs, algorithm = self._source.settings.num_envs, self._algorithm
        uniform_TEW, seed_TE = self._uniform(number, steps), self._episode_seeds(number, steps)
        observation_TE = np.empty((steps, *environment.observation_E.shape), spaces.dtype)
        reward_TE, ended_TE = np.zeros((steps, size)), np.zeros((steps, size))
        for step in range(steps if size else 0):
            observation_TE[step] = environment.observation_E
            if acting is None:
                action_EA = spaces.actions.draw(uniform_TEW[step][:, : spaces.actions.size])
            else:
                num_steps = self.buffer.num_steps * num_envs
                output_EO = acting.act(environment.observation_E)
                action_EA = algorithm.explore(spaces.actions, output_EO, uniform_TEW[step], num_steps)
            reward_TE[step], ended = environment.step_all(action_EA)
            truncated = {index: environment.observation_E[index].copy() for index, is_over in ended if not is_over}
            environment.require_finite()
            self.buffer.add(observation_TE[step], action_EA, reward_TE[step], dict(ended), truncated)
            for index, _ in ended:
                ended_TE[step, index] = 1.0
                self.ended_EF[index] += (environment.returns[index], len(environment.actions[index]), 1.0)
                environment.start_episode(index, int(seed_TE[step + 1, index]))
            environment.require_finite()
        self._update_moments(observation_TE, reward_TE, ended_TE, client, publishes=acting is None)

    def _fill(self, recorded: RecordedSteps, client: PolicyClient) -> None:
        """Fills the buffer with recorded steps: as many consecutive ones for each environment of all workers."""
        steps = len(recorded.reward) // self._source.settings.num_envs
        index_TE = np.arange(steps)[:, None] + steps * np.array(self._local_environments(), np.int64)[None]
        # The last step of an environment is followed by a step of another episode.
        is_cut_TE = recorded.is_truncated[index_TE] | (np.arange(steps) == steps - 1)[:, None]
        ended_TE = recorded.is_terminated[index_TE] | is_cut_TE
        for index_E, is_over_E in zip(index_TE, ended_TE):
            ended = {number: bool(recorded.is_terminated[index_E[number]]) for number in np.flatnonzero(is_over_E)}
            last = {number: recorded.next_observation[index_E[number]] for number in ended if not ended[number]}
            self.buffer.add(
                recorded.observation[index_E], recorded.action[index_E], recorded.reward[index_E], ended, last
            )
        observation_TE, reward_TE = recorded.observation[index_TE], recorded.reward[index_TE]
        self._update_moments(observation_TE, reward_TE, ended_TE.astype(np.float64), client, publishes=True)

    def _update_moments(
        self,
        observation_TE: np.ndarray,
        reward_TE: np.ndarray,
        ended_TE: np.ndarray,
        client: PolicyClient,
        publishes: bool,
    ) -> None:
        """Adds steps to the running statistics. Collective.

        Args:
            observation_TE, reward_TE, ended_TE: observations before the steps, their rewards, and 1 where an episode
                ended.
            client: network that normalizes observations.
            publishes: whether the network gets the statistics now, because it has to know them before it acts.
        """
        if client.has_moments:
            self._moments["observation"].update(observation_TE.reshape((-1, *self._source.spaces.shape)), self._total)
            if publishes:
                client.publish(self._moments["observation"])
                client.refresh()
        if self._source.settings.normalize_rewards:
            self._update_reward_moments(reward_TE, ended_TE)

    def _uniform(self, number: int, steps: int) -> np.ndarray:
        """Returns the random numbers in [0, 1) of a roll-out's choices, (T, E, W)."""
        local_E = np.array(self._local_environments(), np.int64)
        index_TE = np.arange(steps)[:, None] + steps * local_E[None]
        width = self._algorithm.num_uniform(self._source.spaces.actions)
        rows = uniform_rows(self._seed, number, index_TE.reshape(-1), ReinforcementDraw.ACTION, width)
        return rows.reshape((*index_TE.shape, width))

    def normalized(self, reward: np.ndarray) -> np.ndarray:
        """Returns rewards as they are learned from."""
        if not self._source.settings.normalize_rewards:
            return reward
        return self._scaled(reward)

    # In checkpoints.

    def _rows(self, environment: VectorEnvironment) -> Dict[str, np.ndarray]:
        """Returns the unfinished episodes and the buffer of all workers, one row per environment."""
        rows = super()._rows(environment)
        rows.update({name: self._gather_blocks(array) for name, array in self.buffer.arrays().items()})
        rows["num_steps"] = np.array([float(self.buffer.num_steps)])
        places, observations = (
            self._gather_blocks(array) for array in self.buffer.last_observations(self._local_environments().start)
        )
        if len(places):  # a checkpoint holds no empty arrays
            rows["last_places"], rows["last_observations"] = places, observations
        return rows

    def _gather_blocks(self, array: np.ndarray) -> np.ndarray:
        """Gathers the rows of all workers in blocks of columns, because rows are exchanged as float64."""
        if self._workers is None or self._workers.world.size == 1:
            return array
        # By the columns of all workers, so that each has the same blocks.
        width = max(BLOCK_BYTES // (8 * self._source.settings.num_envs), 1)
        blocks = range(0, array.shape[1], width)
        return np.concatenate([self._gather(array[:, begin : begin + width]) for begin in blocks], axis=1)

    def _shapes(self, arrays: Mapping[str, np.ndarray]) -> Dict[str, Sequence[int]]:
        shapes, settings, spaces = super()._shapes(arrays), self._source.settings, self._source.spaces
        num_steps = arrays.get("num_steps", np.zeros(1))
        held, width = min(int(num_steps[0]), self._capacity), int(np.prod(spaces.shape))
        widths = {"observations": width, "taken": spaces.actions.size, "rewards": 1, "ends": 1}
        shapes.update({name: (settings.num_envs, held * size) for name, size in widths.items()})
        if "last_places" in arrays:
            count = len(arrays["last_places"])
            shapes.update(last_places=(count, 2), last_observations=(count, width))
        return {**shapes, "num_steps": (1,)}


class ReplayLoader(EnvironmentLoader):
    """Draws batches from a replay buffer, and updates the target network before each.

    Args:
        source: environments.
        algorithm: algorithm that learns from the batches.
        options: options of all loaders, see `EnvironmentLoader`.
    """

    state_name: ClassVar[str] = "replay"

    def __init__(self, source: Environments, algorithm: ReplayAlgorithm, options: LoaderOptions):
        self.collector = ReplayCollector(source, algorithm, options.seed)
        self._source, self._algorithm = source, algorithm
        super().__init__(source, self.collector, options)
        self._require_memory()

    def _require_memory(self) -> None:
        """Raises a `ConfigError` if this worker's share of the buffer exceeds the memory: the system would end the
        process without a message when the buffer is nearly full."""
        spaces, total = self._source.spaces, self._algorithm.buffer_size
        first, end = self.world.share(self._source.settings.num_envs)
        held = total * (end - first) // self._source.settings.num_envs
        size, memory = buffer_bytes(held, spaces.shape, spaces.dtype, spaces.actions.size), usable_memory()
        if size > memory:
            shape = " x ".join(map(str, spaces.shape))
            raise ConfigError(
                f"loss.buffer_size={total}: so many observations of {shape} numbers take {shown_size(size)}, and this "
                f"process may have {shown_size(memory)}. Type loss.buffer_size={total * memory // (2 * size)} or less."
            )

    def _make_batches(self, epoch: int, start: int, consumer: Consumer) -> Iterator[Batch]:
        from mxtrain.reinforcement.policy_client import PolicyClient
        from mxtrain.reinforcement.target_network import update_target

        settings, client = self._source.settings, PolicyClient(consumer.strategies, self._device)
        per_rollout = settings.passes * settings.num_envs * settings.rollout_steps // self.batch_size
        for number in range(start, self.num_batches):
            step = epoch * self.num_batches + number
            if step % self._algorithm.target_interval == 0:
                # The first update makes a copy: initial values depend on the names of parameters.
                rate = self._algorithm.target_rate if step else 1.0
                update_target(consumer.strategies, self._algorithm.followed, rate)
            rollout, part = divmod(number, per_rollout)
            rollout += epoch * settings.rollouts_per_epoch
            if part == 0:
                self.collector.collect(rollout, client, consumer.workers)
            else:
                self.collector.resume(rollout, consumer.workers)
            yield self._batch(step, part == 0)

    def _batch(self, step: int, is_first: bool) -> Batch:
        """Returns this worker's share of a batch, grouped by environment."""
        from mxtrain.data.loading.placing import place

        collector, actions, each = self.collector, self._source.spaces.actions, self._steps_each
        first, end = self.world.share(self._source.settings.num_envs)
        size = (end - first) * each
        if not size:
            return Batch((), (), 0, self.batch_size)
        index_B = first * each + np.arange(size)
        uniform_ES = uniform(self.seed, step, index_B, ReinforcementDraw.REPLAY).reshape((-1, each))
        drawn = collector.buffer.draw(uniform_ES, collector.current_E)
        facts_ESX = np.zeros((end - first, each, NUM_FACTS + actions.size), np.float32)
        columns: Dict[str, np.ndarray] = {
            "reward": collector.normalized(drawn.reward),
            "discount": self._source.settings.gamma * (1.0 - drawn.is_terminated),
            "terminated": drawn.is_terminated,
            "age": drawn.age,
        }
        for name, column in columns.items():
            facts_ESX[..., REPLAY_FACTS.index(name)] = column
        if is_first:
            facts_ESX[:, 0, REPLAY_FACTS.index("return") : REPLAY_FACTS.index("ended") + 1] = collector.ended_EF
        facts_ESX[..., NUM_FACTS:] = drawn.action
        inputs: List[np.ndarray] = [drawn.observation, drawn.next_observation]
        if self._algorithm.num_inputs_drawn(actions):
            inputs += [drawn.action, self._noise(step, index_B)]
        arrays, facts = place(
            self._device,
            tuple(array.reshape((size, *array.shape[2:])).astype(np.float32, copy=False) for array in inputs[:3])
            + tuple(inputs[3:]),
            (facts_ESX.reshape((size, -1)),),
        )
        return Batch(arrays, facts, size, self.batch_size)

    def _noise(self, step: int, index_B: np.ndarray) -> np.ndarray:
        """Returns the standard normal numbers of each sample, (B, W)."""
        width = self._algorithm.num_inputs_drawn(self._source.spaces.actions)
        rows = uniform_rows(self.seed, step, index_B, ReinforcementDraw.NOISE, 2 * width)
        first, second = np.split(rows.astype(np.float64), 2, axis=1)
        return standard_normal(first, second)
