"""Recorded episodes: observations, actions and rewards, as files.

Legend: T steps.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import List, Sequence, Union

import numpy as np

MAX_COLUMNS = 64
"""Maximum number of numbers of an observation and an action that a table has columns for."""


@dataclass(frozen=True)
class RecordedEpisode:
    """A played episode.

    Attributes:
        seed: seed of the environment.
        observations: network input before each step and after the last one, (T + 1, ...).
        actions: action of each step as the environment takes it, (T, ...).
        rewards: reward of each step, (T,).
        is_terminated: True if the episode terminated; False if it was truncated.
    """

    seed: int
    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    is_terminated: bool

    def encode(self) -> bytes:
        """Encodes a compressed NPZ file, whose arrays have the names of Minari's files."""
        ends = np.zeros((2, len(self.rewards)), np.bool_)
        ends[0 if self.is_terminated else 1, -1] = True
        file = io.BytesIO()
        np.savez_compressed(
            file,
            observations=self.observations,
            actions=self.actions,
            rewards=self.rewards,
            terminations=ends[0],
            truncations=ends[1],
            seed=np.array(self.seed),
        )
        return file.getvalue()

    def rows(self, number: int) -> List[Sequence[Union[int, float]]]:
        """Returns a row of a table for each step; see `header`.

        Args:
            number: number of the episode.
        """
        steps = len(self.rewards)
        observations, actions = (array[:steps].reshape((steps, -1)) for array in (self.observations, self.actions))
        return [
            [number, step, *observation, *action, float(reward)]
            for step, (observation, action, reward) in enumerate(
                zip(observations.tolist(), actions.tolist(), self.rewards)
            )
        ]

    def header(self, names: Sequence[str]) -> List[str]:
        """Returns the names of the columns of `rows`; empty if there are too many.

        Args:
            names: name of each number of an observation; empty for observations without names.
        """
        width, num_actions = self.observations[0].size, self.actions[0].size
        if width + num_actions > MAX_COLUMNS:
            return []
        observed = list(names) or [f"observation {number}" for number in range(width)]
        taken = ["action"] if num_actions == 1 else [f"action {number}" for number in range(num_actions)]
        return ["episode", "step", *observed, *taken, "reward"]
