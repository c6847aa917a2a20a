"""Roll-outs: what a network does in environments with its weights as they are, and what came of it.

Noise of actions and seeds of episodes are functions of (seed, number of the roll-out, environment, step), so a roll-out
follows from the weights alone, whichever worker has the environment. A checkpoint holds the actions of open episodes,
which are played again, and a roll-out that is still being learned from.

Legend: T steps, E environments of this worker, X facts about a sample, A numbers of an action.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from mxtrain.data.loading.randomness import bits, uniform
from mxtrain.errors import CheckpointError
from mxtrain.kvstore.world import ALONE, World
from mxtrain.reinforcement.advantages import discounted_sums, generalised_advantages
from mxtrain.reinforcement.draws import ReinforcementDraw
from mxtrain.reinforcement.environments import Maker, Spaces, VectorEnvironment
from mxtrain.reinforcement.moments import RunningMoments
from mxtrain.reinforcement.policy import NUM_FACTS

if TYPE_CHECKING:
    from mxtrain.annotations import Json, JsonObject
    from mxtrain.kvstore.store import Numbers, Store
    from mxtrain.reinforcement.policy_client import PolicyClient

log = logging.getLogger("mxtrain")
EPSILON = 1e-8
LARGEST_REWARD = 10.0
"""Normalised rewards are clipped to +- this, as in OpenAI's Baselines."""
_EPISODE_FACTS = 3
"""Columns of an open episode in a checkpoint before its last observation: seed, actions so far, discounted sum."""


@dataclass(frozen=True)
class RolloutSettings:
    """The fields of `Gymnasium` that roll-outs follow from; see there."""

    num_envs: int
    rollout_steps: int
    rollouts_per_epoch: int
    passes: int
    gamma: float
    gae_lambda: float
    normalize_advantages: bool
    normalize_rewards: bool


@dataclass(frozen=True)
class Environments:
    """Environments to learn in, as samples: every step of each, as often as it is learned from in an epoch.

    Attributes:
        maker: opens them.
        spaces: what they give and take.
        settings: how many there are, and how long they are played.
    """

    maker: Maker
    spaces: Spaces
    settings: RolloutSettings

    def __len__(self) -> int:
        settings = self.settings
        return settings.rollouts_per_epoch * settings.passes * settings.num_envs * settings.rollout_steps


@dataclass(frozen=True)
class Rollout:
    """Results of T steps in this worker's environments.

    Attributes:
        observation_ET: before each step, (E, T, ...).
        facts_ETX: `policy.FACTS` of each, and the action behind them.
    """

    observation_ET: np.ndarray
    facts_ETX: np.ndarray


class Rollouts:
    """Makes roll-outs one after the other; `Stateful`.

    Args:
        source: the environments.
        seed: of the run.
    """

    def __init__(self, source: Environments, seed: int):
        self._source, self._seed = source, seed
        self._workers: Optional[Store] = None
        self._world = ALONE
        self._playing: Optional[VectorEnvironment] = None
        self._discounted_E = np.zeros(0)
        self._open: Optional[Rollout] = None
        self._restored: Mapping[str, np.ndarray] = {}
        self._moments = {
            "observation": RunningMoments(source.spaces.shape), "return": RunningMoments(()),
        }  # fmt: skip

    def share(self, world: World) -> None:
        """Workers have come or gone: who has which environment changes, so all begin new episodes."""
        self.end()
        self._world, self._restored = world, {}

    def end(self) -> None:
        """Closes the environments."""
        if self._playing is not None:
            self._playing.close()
        self._playing, self._open = None, None

    def of(self, number: int, is_new: bool, client: PolicyClient, workers: Optional[Store] = None) -> Rollout:
        """Returns the roll-out with this number. Collective, as statistics are over all workers.

        Args:
            number: from 0, over all epochs.
            is_new: whether it is learned from for the first time; else it is the last one again.
            client: the network that acts.
            workers: who have the other environments.
        """
        self._workers = workers
        if self._playing is None:
            self._begin(number)
        if is_new or self._open is None:
            self._open = self._collect(number, client)
        return self._open

    def forget(self) -> None:
        """The last roll-out is not learned from any more behind the batch that comes."""
        self._open = None

    def _total(self, values: Numbers) -> np.ndarray:
        """Sums over all workers; with dist_async of this one, as workers do not wait for each other in an epoch."""
        workers = self._workers.within_step() if self._workers is not None else None
        return np.asarray(values, np.float64) if workers is None else workers.total(values)

    def _gather(self, rows: np.ndarray) -> np.ndarray:
        """The rows of all environments, in their order."""
        return rows if self._workers is None else self._workers.gather_rows(rows)

    # Playing.

    def _own(self) -> range:
        """The numbers of this worker's environments, among all."""
        return range(*self._world.share(self._source.settings.num_envs))

    def _begin(self, number: int) -> None:
        source, own = self._source, self._own()
        self._playing = playing = VectorEnvironment(source.maker, source.spaces, [f"environment {one}" for one in own])
        self._discounted_E = np.zeros(len(own))
        restored, self._restored = self._restored, {}
        seed_E = self._episode_seeds(number)[0]
        for place, one in enumerate(own):
            if restored and self._resume(place, restored["episodes"][one], restored["actions"][one]):
                continue
            if restored:
                log.warning(
                    "environment %d of %s is no function of its seed and the actions in it: its open episode could not "
                    "be played again as it was, and it begins a new one", one, source.maker.id,
                )  # fmt: skip
            self._discounted_E[place] = 0.0
            playing.start_episode(place, int(seed_E[place]))
        if "facts" in restored:
            steps, (begin, end) = source.settings.rollout_steps, (own.start, own.stop)
            observation_ET, facts_ETX = (restored[name][begin:end] for name in ("observations", "facts"))
            self._open = Rollout(
                observation_ET.reshape((len(own), steps, *source.spaces.shape)),
                facts_ETX.reshape((len(own), steps, -1)),
            )

    def _resume(self, place: int, episode: np.ndarray, actions: np.ndarray) -> bool:
        """Plays an open episode again; whether it led to where it was."""
        assert self._playing is not None
        seed, length = int(episode[0]), int(episode[1])
        size = self._source.spaces.actions.size
        action_TA = actions[: length * size].reshape((length, size)).astype(np.float32)
        is_open = self._playing.replay(place, seed, action_TA)
        self._discounted_E[place] = episode[2]
        found = self._playing.observation_E[place].reshape(-1).astype(np.float64)
        return is_open and bool((found == episode[_EPISODE_FACTS:]).all())

    def _episode_seeds(self, number: int) -> np.ndarray:
        """Seeds of the episodes that begin before each step of a roll-out and behind its last, (T + 1, E)."""
        steps = self._source.settings.rollout_steps + 1
        index_TE = np.arange(steps)[:, None] + steps * np.array(self._own(), np.int64)[None]
        seeds = bits(self._seed, number, index_TE.reshape(-1), ReinforcementDraw.EPISODE) >> np.uint64(33)
        return seeds.astype(np.int64).reshape(index_TE.shape)

    def _noise(self, number: int) -> np.ndarray:
        """Returns the noise added to policies, (T, E, K) or (T, E, A): Gumbel noise, which makes the largest score a
        draw from the softmax, or standard normal numbers."""
        actions, steps = self._source.spaces.actions, self._source.settings.rollout_steps
        width = actions.count or actions.size
        index_TEW = np.arange(steps)[:, None, None] + steps * np.array(self._own(), np.int64)[None, :, None]
        index_TEW = index_TEW * width + np.arange(width)
        first, second = (
            uniform(self._seed, number, index_TEW.reshape(-1), draw).reshape(index_TEW.shape)
            for draw in (ReinforcementDraw.ACTION, ReinforcementDraw.ACTION + 1)
        )
        first = np.maximum(first, 2.0**-54)
        if actions.count:
            return -np.log(-np.log(first)).astype(np.float32)
        return (np.sqrt(-2.0 * np.log(first)) * np.cos(2.0 * np.pi * second)).astype(np.float32)

    def _collect(self, number: int, client: PolicyClient) -> Rollout:
        assert self._playing is not None
        playing, spaces, settings = self._playing, self._source.spaces, self._source.settings
        steps, size, actions = settings.rollout_steps, len(self._own()), spaces.actions
        client.publish(self._moments["observation"])
        client.refresh()
        noise_TE, seed_TE = self._noise(number), self._episode_seeds(number)
        observation_TE = np.empty((steps, *playing.observation_E.shape), spaces.dtype)
        output_TE = np.empty((steps, size, actions.num_outputs), np.float32)
        action_TE = np.empty((steps, size, actions.size), np.float32)
        reward_TE, ended_TE, over_TE = (np.zeros((steps, size)) for _ in range(3))
        return_TE, length_TE = (np.zeros((steps, size)) for _ in range(2))
        cut_off: List[Tuple[int, int, np.ndarray]] = []
        for step in range(steps if size else 0):
            observation_TE[step] = playing.observation_E
            output_TE[step] = output_EO = client.act(playing.observation_E)
            action_TE[step] = action_EA = actions.choose(output_EO, noise_TE[step])
            reward_TE[step], ended = playing.step_all(action_EA)
            for place, is_over in ended:
                ended_TE[step, place], over_TE[step, place] = 1.0, is_over
                return_TE[step, place] = playing.returns[place]
                length_TE[step, place] = len(playing.taken[place])
                if not is_over:
                    cut_off.append((step, place, playing.observation_E[place].copy()))
                playing.start_episode(place, int(seed_TE[step + 1, place]))
            playing.require_finite()
        value_TE = output_TE[:, :, -1].astype(np.float64)
        next_value_TE = self._next_values(value_TE, ended_TE, cut_off, client)
        if settings.normalize_rewards:
            reward_TE = self._normalized(reward_TE, ended_TE)
        advantage_TE = generalised_advantages(
            reward_TE, value_TE, next_value_TE, ended_TE, settings.gamma, settings.gae_lambda
        )
        target_TE = advantage_TE + value_TE
        if settings.normalize_advantages:
            advantage_TE = self._standardized(advantage_TE)
        log_p_N = actions.log_probability_of(
            output_TE.reshape((-1, actions.num_outputs)), action_TE.reshape((-1, actions.size))
        )
        facts = (log_p_N.reshape((steps, size)), advantage_TE, target_TE, value_TE, return_TE, length_TE, ended_TE)
        facts_TEX = np.concatenate([np.stack(facts, axis=-1), action_TE], axis=-1).astype(np.float32)
        if client.has_moments:
            rows = observation_TE.reshape((steps * size, *spaces.shape))
            self._moments["observation"].update(rows, self._total)
        return Rollout(np.ascontiguousarray(observation_TE.swapaxes(0, 1)),
                       np.ascontiguousarray(facts_TEX.swapaxes(0, 1)))  # fmt: skip

    def _next_values(
        self, value_TE: np.ndarray, ended_TE: np.ndarray, cut_off: Sequence[Tuple[int, int, np.ndarray]],
        client: PolicyClient,
    ) -> np.ndarray:  # fmt: skip
        """The value of the observation after each step: 0 where the episode is over, that of its last observation where
        only its time is."""
        assert self._playing is not None
        size = value_TE.shape[1]
        if not size:
            return value_TE
        last_E = client.act(self._playing.observation_E)[:, -1]
        next_TE = np.concatenate([value_TE[1:], last_E[None]]) * (1.0 - ended_TE)
        for begin in range(0, len(cut_off), size):
            some = cut_off[begin : begin + size]  # in batches of one size alone, for which the network has its memory
            observation_E = self._playing.observation_E.copy()
            observation_E[: len(some)] = [observation for _, _, observation in some]
            for (step, place, _), value in zip(some, client.act(observation_E)[:, -1]):
                next_TE[step, place] = value
        return next_TE

    def _normalized(self, reward_TE: np.ndarray, ended_TE: np.ndarray) -> np.ndarray:
        """Rewards over the deviation of discounted sums of them."""
        sum_TE, self._discounted_E = discounted_sums(
            reward_TE, ended_TE, self._discounted_E, self._source.settings.gamma
        )
        moments = self._moments["return"]
        moments.update(sum_TE.reshape((-1, 1)), self._total)
        return np.clip(reward_TE / np.sqrt(moments.variance + EPSILON), -LARGEST_REWARD, LARGEST_REWARD)

    def _standardized(self, advantage_TE: np.ndarray) -> np.ndarray:
        """Advantages with mean 0 and deviation 1 over the roll-outs of all workers."""
        moments = RunningMoments(())
        moments.update(advantage_TE.reshape((-1, 1)), self._total)
        return (advantage_TE - moments.mean) / (np.sqrt(moments.variance) + EPSILON)

    # In checkpoints.

    def save_state(self) -> Tuple[Mapping[str, np.ndarray], Mapping[str, Json]]:
        """See `Stateful`. Collective, but where the environments have not begun."""
        arrays = {f"{name}.{key}": array for name, one in self._moments.items() for key, array in one.arrays().items()}
        return {**arrays, **(self._restored if self._playing is None else self._rows(self._playing))}, {}

    def _rows(self, playing: VectorEnvironment) -> Dict[str, np.ndarray]:
        """Open episodes and the open roll-out of all workers, a row for each environment."""
        size = len(self._own())
        taken = [np.concatenate(one) if one else np.zeros(0, np.float32) for one in playing.taken]
        lengths = [len(one) // self._source.spaces.actions.size for one in taken]
        facts = np.stack([np.array(playing.seeds, np.float64), lengths, self._discounted_E], axis=1)
        episodes = np.concatenate([facts, playing.observation_E.reshape((size, -1))], axis=1)
        rows = {"episodes": self._gather(episodes)}
        longest = max(int(rows["episodes"][:, 1].max()), 1) * self._source.spaces.actions.size
        padded = np.zeros((size, longest))
        for row, one in zip(padded, taken):
            row[: len(one)] = one
        rows["actions"] = self._gather(padded).astype(np.float32)
        if self._open is not None:
            for name, array in (("observations", self._open.observation_ET), ("facts", self._open.facts_ETX)):
                rows[name] = self._gather(array.reshape((size, -1)).astype(np.float64)).astype(array.dtype)
        return rows

    def load_state(self, arrays: Mapping[str, np.ndarray], values: JsonObject, source: str) -> None:
        """See `Stateful`."""
        settings, spaces = self._source.settings, self._source.spaces
        width = int(np.prod(spaces.shape))
        wanted = {"episodes": (settings.num_envs, _EPISODE_FACTS + width)}
        if "facts" in arrays:
            wanted["observations"] = (settings.num_envs, settings.rollout_steps * width)
            wanted["facts"] = (settings.num_envs, settings.rollout_steps * (NUM_FACTS + spaces.actions.size))
        rows = {name: array for name, array in arrays.items() if "." not in name}
        if rows and ("actions" not in rows or any(name not in rows or rows[name].shape != shape
                                                  for name, shape in wanted.items())):  # fmt: skip
            raise CheckpointError(f"{source} holds roll-outs of other environments, or of another number or length.")
        for name, moments in self._moments.items():
            own = {key[len(name) + 1 :]: array for key, array in arrays.items() if key.startswith(f"{name}.")}
            if set(own) != set(moments.arrays()) or own["mean"].shape != moments.arrays()["mean"].shape:
                raise CheckpointError(f"{source} holds the statistics of another environment.")
            moments.load(own)
        self.end()
        self._restored = rows
