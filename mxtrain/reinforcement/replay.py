"""Replay buffer: the last steps of each environment, of which batches are drawn. Plain NumPy.

Each observation is held once: the next one is that of the next step, except at the end of an episode, whose last
observation is held apart if the episode was truncated, and not at all if it terminated.

Legend: E environments of this worker, C capacity and N held steps of each, S drawn steps of each, A numbers of an
action.
"""

from __future__ import annotations

import math
from typing import Dict, Mapping, NamedTuple, Sequence, Tuple

import numpy as np

from mxtrain.types import Shape

TERMINATED, TRUNCATED = 1, 2
"""Bits of `ReplayBuffer.end_EC`."""


class Transitions(NamedTuple):
    """Drawn steps, (E, S, ...) each.

    Attributes:
        observation: observation before the step.
        next_observation: observation after the step; any if the episode terminated.
        action: action of the policy.
        reward: its reward.
        is_terminated: whether the episode terminated.
        age: number of later steps of the environment.
    """

    observation: np.ndarray
    next_observation: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    is_terminated: np.ndarray
    age: np.ndarray


def buffer_bytes(num_steps: int, shape: Shape, dtype: str, num_components: int) -> int:
    """Returns the memory that a buffer of some steps takes, without the last observations of truncated episodes.

    Args:
        num_steps: number of steps, over all environments.
        shape, dtype, num_components: see `ReplayBuffer`.
    """
    numbers = math.prod(shape) * np.dtype(dtype).itemsize
    return num_steps * (numbers + 4 * num_components + 4 + 1)  # observation, action, reward and end


class ReplayBuffer:
    """Ring of the last steps of environments that step together.

    Args:
        num_environments: E.
        capacity: C.
        shape: shape of an observation.
        dtype: type of observations.
        num_components: A.

    Attributes:
        num_steps: number of steps of each environment so far, including those that are not held any more.
    """

    def __init__(self, num_environments: int, capacity: int, shape: Shape, dtype: str, num_components: int):
        size = (num_environments, capacity)
        self.capacity, self.num_steps = capacity, 0
        # Zeros take no memory before they are written.
        self.observation_EC = np.zeros((*size, *shape), dtype)
        self.action_EC = np.zeros((*size, num_components), np.float32)
        self.reward_EC = np.zeros(size, np.float32)
        self.end_EC = np.zeros(size, np.uint8)
        self._last_observations: Dict[Tuple[int, int], np.ndarray] = {}

    def __len__(self) -> int:
        """Returns N, the number of held steps of each environment."""
        return min(self.num_steps, self.capacity)

    def add(
        self,
        observation_E: np.ndarray,
        action_EA: np.ndarray,
        reward_E: Sequence[float],
        ended: Mapping[int, bool],
        last_observations: Mapping[int, np.ndarray],
    ) -> None:
        """Adds a step of each environment; the oldest one is dropped if the buffer is full.

        Args:
            observation_E: observation before the step.
            action_EA: action of the policy.
            reward_E: reward.
            ended: environment whose episode has ended -> whether it terminated; otherwise it was truncated.
            last_observations: environment whose episode was truncated -> its last observation.
        """
        slot = self.num_steps % self.capacity
        for environment in np.flatnonzero(self.end_EC[:, slot] == TRUNCATED).tolist():
            del self._last_observations[environment, slot]
        self.observation_EC[:, slot], self.action_EC[:, slot] = observation_E, action_EA
        self.reward_EC[:, slot], self.end_EC[:, slot] = reward_E, 0
        for environment, is_terminated in ended.items():
            self.end_EC[environment, slot] = TERMINATED if is_terminated else TRUNCATED
        for environment, observation in last_observations.items():
            self._last_observations[environment, slot] = observation
        self.num_steps += 1

    def draw(self, uniform_ES: np.ndarray, current_E: np.ndarray) -> Transitions:
        """Returns steps of each environment, with replacement.

        Args:
            uniform_ES: random numbers in [0, 1).
            current_E: current observation of each environment.
        """
        age_ES = np.floor(uniform_ES * len(self)).astype(np.int64)
        slot_ES = (self.num_steps - 1 - age_ES) % self.capacity
        row_E1 = np.arange(len(slot_ES))[:, None]
        end_ES = self.end_EC[row_E1, slot_ES]
        next_ES = self.observation_EC[row_E1, (slot_ES + 1) % self.capacity]
        for environment, sample in zip(*np.nonzero((age_ES == 0) & (end_ES == 0))):
            next_ES[environment, sample] = current_E[environment]
        for environment, sample in zip(*np.nonzero(end_ES == TRUNCATED)):
            next_ES[environment, sample] = self._last_observations[environment, slot_ES[environment, sample]]
        return Transitions(
            self.observation_EC[row_E1, slot_ES],
            next_ES,
            self.action_EC[row_E1, slot_ES],
            self.reward_EC[row_E1, slot_ES],
            end_ES == TERMINATED,
            age_ES,
        )

    # In checkpoints.

    def _rings(self) -> Dict[str, np.ndarray]:
        return {
            "observations": self.observation_EC,
            "taken": self.action_EC,
            "rewards": self.reward_EC,
            "ends": self.end_EC,
        }

    def arrays(self) -> Dict[str, np.ndarray]:
        """Returns the held steps, oldest first, one row per environment; copies, because training goes on while they
        are written."""
        order_N = np.arange(self.num_steps - len(self), self.num_steps) % self.capacity
        return {name: array[:, order_N].reshape((len(array), -1)) for name, array in self._rings().items()}

    def last_observations(self, first_environment: int) -> Tuple[np.ndarray, np.ndarray]:
        """Returns (environment, age) of each held last observation of a truncated episode, (M, 2), and these, (M, ...).

        Args:
            first_environment: number of the first environment over all workers.
        """
        shape = self.observation_EC.shape[2:]
        keys = sorted(self._last_observations)
        places = [[first_environment + key[0], (self.num_steps - 1 - key[1]) % self.capacity] for key in keys]
        observations = np.zeros((len(keys), *shape), self.observation_EC.dtype)
        for row, key in enumerate(keys):
            observations[row] = self._last_observations[key]
        return np.array(places, np.int64).reshape((-1, 2)), observations.reshape((len(keys), int(np.prod(shape))))

    def load(
        self, arrays: Mapping[str, np.ndarray], places: np.ndarray, observations: np.ndarray, num_steps: int, first: int
    ) -> None:
        """Restores the state from the rows of this worker's environments.

        Args:
            arrays: see `arrays`.
            places, observations: see `last_observations`; those of other workers' environments are ignored.
            num_steps: see `num_steps`.
            first: number of this worker's first environment.
        """
        self.num_steps, size = num_steps, len(self.end_EC)
        held = len(self)
        order_N = np.arange(num_steps - held, num_steps) % self.capacity
        for name, array in self._rings().items():
            array[:, order_N] = arrays[name].reshape((size, held, *array.shape[2:]))
        self._last_observations = {
            (environment - first, (num_steps - 1 - age) % self.capacity): row.reshape(self.observation_EC.shape[2:])
            for (environment, age), row in zip(places.tolist(), observations)
            if first <= environment < first + size
        }
