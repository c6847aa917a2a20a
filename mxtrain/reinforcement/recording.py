"""Recorded episodes: observations, actions and rewards, as files.

Legend: T steps of an episode, N steps of all, A numbers of an action.
"""

from __future__ import annotations

import io
import os
import zipfile
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Dict, List, NamedTuple, Sequence, Union

import numpy as np

from mxtrain.errors import DataError, reason_of
from mxtrain.files.regular_files import open_regular

if TYPE_CHECKING:
    from mxtrain.reinforcement.environments import Spaces

ENDING = ".npz"
ARRAYS = ("observations", "actions", "rewards", "terminations", "truncations")
"""Arrays of a file that are read, by the names of Minari's files."""
DAMAGED = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError)
"""Exceptions of NumPy that reads a file which is not what it should be; pickled objects are a ValueError."""
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


class RecordedSteps(NamedTuple):
    """Steps of recorded episodes, one after the other, (N, ...) each.

    Attributes:
        observation, next_observation: network input before and after the step.
        action: action in the form of the policy, (N, A).
        reward: its reward.
        is_terminated, is_truncated: whether the episode ended with the step.
    """

    observation: np.ndarray
    next_observation: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    is_terminated: np.ndarray
    is_truncated: np.ndarray


def read_recordings(folder: str, spaces: Spaces, name: str) -> RecordedSteps:
    """Reads the episodes of a folder, in the order of the names of its files.

    Args:
        folder: folder of files that `RecordedEpisode.encode` encoded.
        spaces: observation and action spaces of the environment.
        name: id of the environment, for messages.

    Raises:
        DataError: there is no such folder or no file in it, or a file is damaged or of another environment.
    """
    try:
        files = sorted(file for file in os.listdir(folder) if file.endswith(ENDING))
    except OSError as error:
        raise DataError(f"dataset.recordings={folder} cannot be read: {reason_of(error)}.") from error
    if not files:
        raise DataError(
            f"dataset.recordings={folder}: it holds no {ENDING} files. `python -m mxtrain predict RUN "
            "task.episode_files=npz folder=FOLDER` writes some."
        )
    parts = [_read(os.path.join(folder, file), spaces, name) for file in files]
    return RecordedSteps(*map(np.concatenate, zip(*parts)))


def _read(path: str, spaces: Spaces, name: str) -> RecordedSteps:
    try:
        with open_regular(path) as (stream, _):
            loaded = np.load(stream, allow_pickle=False)  # lint: an open file
            if not isinstance(loaded, np.lib.npyio.NpzFile):
                raise ValueError("it is a single array")
            found: Dict[str, np.ndarray] = {array: loaded[array] for array in ARRAYS}
    except DAMAGED as error:
        raise DataError(f"{path} is no recorded episode: {reason_of(error)}.") from error
    steps = len(found["rewards"]) if found["rewards"].ndim == 1 else 0
    shapes = {array: values.shape for array, values in found.items()}
    wanted = {"observations": (steps + 1, *spaces.shape), "terminations": (steps,), "truncations": (steps,)}
    wrong = next((array for array in wanted if shapes[array] != wanted[array]), "")
    if not steps or shapes["actions"][:1] != (steps,):
        raise DataError(f"{path}: rewards and actions have the shapes {shapes['rewards']} and {shapes['actions']}.")
    if wrong:
        raise DataError(
            f"{path}: {wrong} has the shape {shapes[wrong]}, and {steps} steps in {name} have {wanted[wrong]}."
        )
    for array in ("observations", "rewards", "actions"):
        # The buffer holds float32, in which larger numbers would be infinite.
        if found[array].dtype.kind not in "fiub" or not (np.abs(found[array]) <= np.finfo(np.float32).max).all():
            raise DataError(f"{path}: {array} holds values that are no finite numbers of 32 bits.")
    ends = found["terminations"].astype(np.bool_) | found["truncations"].astype(np.bool_)
    if ends[:-1].any() or not ends[-1]:
        raise DataError(f"{path}: it is no single episode, which ends with its last step.")
    observations = found["observations"].astype(spaces.dtype)
    if observations.dtype == np.uint8 and not np.array_equal(observations, found["observations"]):
        raise DataError(f"{path}: observations of {name} are whole numbers from 0 to 255, and not all of these are.")
    try:
        action_NA = spaces.limits.policy_actions(spaces.actions, found["actions"])
    except ValueError as error:
        raise DataError(f"{path}: {error}; it is of another environment than {name}.") from error
    terminated, truncated = (found[array].astype(np.bool_) for array in ("terminations", "truncations"))
    return RecordedSteps(
        observations[:-1], observations[1:], action_NA, found["rewards"].astype(np.float64), terminated, truncated
    )
