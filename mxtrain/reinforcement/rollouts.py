"""Roll-outs: steps in environments with the current weights, and their advantages and returns.

Action noise and episode seeds are functions of (seed, number of the roll-out, environment, step). So a roll-out depends
only on the weights, not on which worker has which environment. A checkpoint holds the actions of unfinished episodes,
which are replayed on resume, and the roll-out that training still uses.

Legend: T steps, E environments of this worker, X facts about a sample, A numbers of an action, K actions, O outputs of
the network, N = T * E samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from mxtrain.data.loading.randomness import uniform
from mxtrain.kvstore.store import Store
from mxtrain.reinforcement.advantages import generalised_advantages
from mxtrain.reinforcement.collecting import EPSILON, Environments, StepCollector
from mxtrain.reinforcement.draws import LEAST_UNIFORM, ReinforcementDraw, standard_normal
from mxtrain.reinforcement.environments import VectorEnvironment
from mxtrain.reinforcement.moments import RunningMoments
from mxtrain.reinforcement.policy import NUM_FACTS

if TYPE_CHECKING:
    from mxtrain.reinforcement.policy_client import PolicyClient


@dataclass(frozen=True)
class Rollout:
    """Results of T steps in this worker's environments.

    Attributes:
        observation_ET: observation before each step, (E, T, ...).
        facts_ETX: `policy.FACTS` of each step, followed by the action.
    """

    observation_ET: np.ndarray
    facts_ETX: np.ndarray


class Rollouts(StepCollector):
    """Collects one roll-out after the other."""

    held: ClassVar[str] = "roll-outs"

    def __init__(self, source: Environments, seed: int):
        super().__init__(source, seed)
        self._current: Optional[Rollout] = None

    def end(self) -> None:
        super().end()
        self._current = None

    def collect(self, number: int, is_new: bool, client: PolicyClient, workers: Optional[Store] = None) -> Rollout:
        """Returns a roll-out. Collective: statistics are computed over all workers.

        Args:
            number: number of the roll-out over all epochs, from 0.
            is_new: True for the first pass over the roll-out; otherwise the last roll-out is returned again.
            client: network that chooses actions.
            workers: store that connects to the workers with the other environments.
        """
        self._workers = workers
        if self._environment is None:
            self._begin(number)
        if is_new or self._current is None:
            self._current = self._collect(number, client)
        return self._current

    def forget(self) -> None:
        """Discards the last roll-out; called before its last batch is used."""
        self._current = None

    def _begin(self, number: int) -> Mapping[str, np.ndarray]:
        restored = super()._begin(number)
        if "facts" in restored:
            numbers, shape = self._local_environments(), self._source.spaces.shape
            steps, (begin, end) = self._source.settings.rollout_steps, (numbers.start, numbers.stop)
            observation_ET, facts_ETX = (restored[name][begin:end] for name in ("observations", "facts"))
            self._current = Rollout(
                observation_ET.reshape((len(numbers), steps, *shape)), facts_ETX.reshape((len(numbers), steps, -1))
            )
        return restored

    def _noise(self, number: int) -> np.ndarray:
        """Returns the noise that is added to the policy's outputs.

        For discrete actions, this is Gumbel noise (T, E, K), with which the argmax of the scores is a draw from their
        softmax. Otherwise it is standard normal noise (T, E, A), by the Box-Muller transform.
        """
        actions, steps = self._source.spaces.actions, self._source.settings.rollout_steps
        width = actions.count or actions.size
        local_E = np.array(self._local_environments(), np.int64)
        index_TEW = np.arange(steps)[:, None, None] + steps * local_E[None, :, None]
        index_TEW = index_TEW * width + np.arange(width)
        first, second = (
            uniform(self._seed, number, index_TEW.reshape(-1), draw).reshape(index_TEW.shape)
            for draw in (ReinforcementDraw.ACTION, ReinforcementDraw.ACTION + 1)
        )
        if actions.count:
            return -np.log(-np.log(np.maximum(first, LEAST_UNIFORM))).astype(np.float32)
        return standard_normal(first, second)

    def _collect(self, number: int, client: PolicyClient) -> Rollout:
        assert self._environment is not None
        environment, spaces, settings = self._environment, self._source.spaces, self._source.settings
        steps, size, actions = settings.rollout_steps, len(self._local_environments()), spaces.actions
        client.publish(self._moments["observation"])
        client.refresh()
        noise_TE, seed_TE = self._noise(number), self._episode_seeds(number, steps)
        observation_TE = np.empty((steps, *environment.observation_E.shape), spaces.dtype)
        output_TE = np.empty((steps, size, actions.num_outputs), np.float32)
        action_TE = np.empty((steps, size, actions.size), np.float32)
        reward_TE, ended_TE, terminated_TE = (np.zeros((steps, size)) for _ in range(3))
        return_TE, length_TE = (np.zeros((steps, size)) for _ in range(2))
        truncated: List[Tuple[int, int, np.ndarray]] = []
        for step in range(steps if size else 0):  # a worker without environments only takes part in the collectives
            observation_TE[step] = environment.observation_E
            output_TE[step] = output_EO = client.act(environment.observation_E)
            action_TE[step] = action_EA = actions.choose(output_EO, noise_TE[step])
            reward_TE[step], ended = environment.step_all(action_EA)
            for index, is_terminated in ended:
                ended_TE[step, index], terminated_TE[step, index] = 1.0, is_terminated
                return_TE[step, index] = environment.returns[index]
                length_TE[step, index] = len(environment.actions[index])
                if not is_terminated:  # copied, because the next episode overwrites the observation
                    truncated.append((step, index, environment.observation_E[index].copy()))
                environment.start_episode(index, int(seed_TE[step + 1, index]))
            environment.require_finite()
        value_TE = output_TE[:, :, -1].astype(np.float64)
        next_value_TE = self._next_values(value_TE, ended_TE, truncated, client)
        if settings.normalize_rewards:
            self._update_reward_moments(reward_TE, ended_TE)
            reward_TE = self._scaled(reward_TE)
        advantage_TE = generalised_advantages(
            reward_TE, value_TE, next_value_TE, ended_TE, settings.gamma, settings.gae_lambda
        )
        # Must precede the standardization: targets of the value are in the unit of rewards.
        target_TE = advantage_TE + value_TE
        if settings.normalize_advantages:
            advantage_TE = self._standardized(advantage_TE)
        # Computed from the outputs that chose the actions, so that PPO's probability ratios are exactly 1 at first.
        log_p_N = actions.log_probability_of(
            output_TE.reshape((-1, actions.num_outputs)), action_TE.reshape((-1, actions.size))
        )
        facts = (log_p_N.reshape((steps, size)), advantage_TE, target_TE, value_TE, return_TE, length_TE, ended_TE)
        facts_TEX = np.concatenate([np.stack(facts, axis=-1), action_TE], axis=-1).astype(np.float32)
        if client.has_moments:  # updated last, so that all steps of a roll-out are normalised in the same way
            rows = observation_TE.reshape((steps * size, *spaces.shape))
            self._moments["observation"].update(rows, self._total)
        return Rollout(
            np.ascontiguousarray(observation_TE.swapaxes(0, 1)), np.ascontiguousarray(facts_TEX.swapaxes(0, 1))
        )

    def _next_values(
        self,
        value_TE: np.ndarray,
        ended_TE: np.ndarray,
        truncated: Sequence[Tuple[int, int, np.ndarray]],
        client: PolicyClient,
    ) -> np.ndarray:
        """Returns the value of the observation after each step, (T, E).

        It is 0 if the episode terminated. If it was truncated, the value of its last observation is bootstrapped.
        """
        assert self._environment is not None
        size = value_TE.shape[1]
        if not size:
            return value_TE
        last_E = client.act(self._environment.observation_E)[:, -1]
        next_TE = np.concatenate([value_TE[1:], last_E[None]]) * (1.0 - ended_TE)
        for begin in range(0, len(truncated), size):
            # Batches of always the same size, for which the network's memory is already allocated.
            block = truncated[begin : begin + size]
            observation_E = self._environment.observation_E.copy()
            observation_E[: len(block)] = [observation for _, _, observation in block]
            for (step, index, _), value in zip(block, client.act(observation_E)[:, -1]):
                next_TE[step, index] = value
        return next_TE

    def _standardized(self, advantage_TE: np.ndarray) -> np.ndarray:
        """Returns advantages with mean 0 and standard deviation 1 over the roll-outs of all workers."""
        moments = RunningMoments(())
        moments.update(advantage_TE.reshape((-1, 1)), self._total)
        return (advantage_TE - moments.mean) / (np.sqrt(moments.variance) + EPSILON)

    # In checkpoints.

    def _rows(self, environment: VectorEnvironment) -> Dict[str, np.ndarray]:
        """Returns the unfinished episodes and the current roll-out of all workers, one row per environment."""
        rows, size = super()._rows(environment), len(self._local_environments())
        # The weights change with the first batch of a roll-out, so a resumed run could not collect the same one again.
        if self._current is not None:
            for name, array in (("observations", self._current.observation_ET), ("facts", self._current.facts_ETX)):
                rows[name] = self._gather(array.reshape((size, -1)))
        return rows

    def _shapes(self, arrays: Mapping[str, np.ndarray]) -> Dict[str, Sequence[int]]:
        settings, spaces, shapes = self._source.settings, self._source.spaces, super()._shapes(arrays)
        if "facts" in arrays:
            shapes["observations"] = (settings.num_envs, settings.rollout_steps * int(np.prod(spaces.shape)))
            shapes["facts"] = (settings.num_envs, settings.rollout_steps * (NUM_FACTS + spaces.actions.size))
        return shapes
