"""Opens gymnasium environments, reads their spaces, and steps them. Errors name the environment and the step.

gymnasium's vector environments are not used because they restart episodes without a seed: an episode then depends on
all earlier ones and cannot be replayed after an interruption. All environments of a worker run in its process, because
a step of most environments takes less time than a message to another process. `cluster.workers` gives more processes.

Legend: E environments, A numbers of an action.
"""

from __future__ import annotations

import logging
import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from mxtrain.config.libraries import require_library
from mxtrain.errors import DataError, LoaderError, did_you_mean
from mxtrain.reinforcement.action_limits import ActionLimits
from mxtrain.reinforcement.flattening import Leaf, leaves_of
from mxtrain.reinforcement.image_layout import Channels, ImageLayout, find_images, holds_images
from mxtrain.reinforcement.policy import Actions

if TYPE_CHECKING:
    from mxtrain.types import Shape

log = logging.getLogger("mxtrain")
ATARI = re.compile(r"ALE/|\w+NoFrameskip-v4$")
"""Ids of Atari's games, which gymnasium knows only after ale_py was imported."""
MAX_NAMES = 8
"""Names of numbers of an observation in a message."""
FAILURES = (Exception, SystemExit)
"""Exceptions of environment code, some of which calls `sys.exit`."""


def require_gymnasium() -> Any:
    """Imports and returns the module gymnasium.

    Raises:
        DataError: gymnasium is not installed.
    """
    return require_library("gymnasium", "gymnasium", "dataset=gymnasium")


@dataclass(frozen=True)
class EnvironmentFactory:
    """Factory of an environment.

    Attributes:
        id: id in gymnasium's registry.
        arguments: arguments of the environment.
        max_episode_steps: number of steps after which an episode is truncated; None = the registered number.
    """

    id: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    max_episode_steps: Optional[int] = None

    def make(self, render_mode: Optional[str] = None) -> Any:
        """Opens a new environment.

        Args:
            render_mode: gymnasium's render mode; None = nothing is drawn.

        Raises:
            DataError: gymnasium is not installed, there is no such environment, or it cannot be opened.
        """
        gymnasium = require_gymnasium()
        if self.id not in gymnasium.registry and ATARI.match(self.id):
            require_library("ale_py", "ale-py", f"dataset.id={self.id}")  # its import registers Atari's games
        if self.id not in gymnasium.registry:
            raise DataError(
                f"dataset.id={self.id}: gymnasium knows no such environment.{did_you_mean(self.id, gymnasium.registry)}"
                " `python -c 'import gymnasium; gymnasium.pprint_registry()'` lists all."
            )
        # Pass on requested arguments only: an environment may not take the other ones.
        requested = {"max_episode_steps": self.max_episode_steps, "render_mode": render_mode}
        options = {name: value for name, value in requested.items() if value is not None}
        try:
            # gymnasium's checker would slow down each step; `VectorEnvironment` checks shapes and numbers itself.
            return gymnasium.make(self.id, disable_env_checker=True, **options, **self.arguments)
        except FAILURES as error:
            remedy = "Install that" if _lacks_package(error) else "Correct dataset.kwargs, or install what it needs"
            raise DataError(
                f"dataset.id={self.id}: the environment cannot be opened: {_describe_error(error)}. {remedy}."
            ) from error


@dataclass(frozen=True)
class Spaces:
    """Observation and action spaces of an environment, and their conversion.

    Attributes:
        shape: shape of an observation as network input: (C, H, W) for images, otherwise one axis.
        dtype: type of stored observations: uint8 for images of bytes, otherwise float32.
        actions: action space of the policy.
        limits: action space of the environment.
        space: gymnasium's observation space if observations must be flattened; otherwise None.
        images: layout of observations that are images; otherwise None.
        remark: a sentence on the conversion of observations, or an empty string.
        leaves: parts of observations that are flattened; empty for others, and if a part has no names.
    """

    shape: Shape
    dtype: str
    actions: Actions
    limits: ActionLimits
    space: Optional[Any] = None
    images: Optional[ImageLayout] = None
    remark: str = ""
    leaves: Tuple[Leaf, ...] = ()

    @classmethod
    def from_environment(cls, environment: Any, name: str, channels: Channels = "auto") -> Spaces:
        """Reads the spaces of an environment.

        Args:
            environment: an open environment.
            name: its id, for messages.
            channels: position of the channel axis of images.

        Raises:
            DataError: the type of actions is not supported, observations have no fixed size, or the channel axis of
                images is unknown.
        """
        spaces = require_gymnasium().spaces
        space, dtype, flattened, images, remark = environment.observation_space, "float32", None, None, ""
        shape: Shape
        leaves: Tuple[Leaf, ...] = ()
        if not getattr(space, "is_np_flattenable", False):
            raise DataError(
                f"dataset.id={name}: its observations, {_short(space)}, have no fixed size. Wrap the environment in "
                "one that gives a Box of numbers."
            )
        if isinstance(space, spaces.Box):
            images = find_images(space, channels, name)
        elif channels != "auto":
            raise DataError(
                f"dataset.channels={channels}: observations of {name} are {_short(space)}, and no images. Type "
                "dataset.channels=auto."
            )
        if images is not None:
            shape, dtype, remark = images.shape, "uint8" if space.dtype == np.uint8 else "float32", images.remark
        elif isinstance(space, spaces.Box) and len(space.shape) <= 1:
            shape = space.shape or (1,)
        else:
            shape, flattened = (spaces.flatdim(space),), space
            leaves = _leaves(space)
            if not _is_choice(space, spaces):
                names = [name for leaf in leaves for name in leaf.names()]
                listed = f": {', '.join(names[:MAX_NAMES])}{', ...' * (len(names) > MAX_NAMES)}" if names else ""
                remark = f"observations, {_short(space)}, enter as {shape[0]} numbers{listed}"
            if holds_images(space):
                remark += ": images in them go through no convolutions. To use convolutions, wrap the environment in "
                remark += "one that gives the image alone"
        actions, limits = _read_actions(environment.action_space, name)
        return cls(shape, dtype, actions, limits, flattened, images, remark, leaves)

    @property
    def names(self) -> Tuple[str, ...]:
        """Returns the name of each number of an observation; empty if they have none."""
        return tuple(name for leaf in self.leaves for name in leaf.names())

    @property
    def is_plain(self) -> bool:
        """Returns True if observations need no conversion."""
        return self.space is None and self.images is None

    def convert_observation(self, observation: Any) -> Any:
        """Converts an observation of the environment to network input."""
        if self.images is not None:
            return self.images.read(observation)
        if self.space is None:
            return observation
        shape = self.space.shape
        if shape is not None and np.shape(observation) != shape:
            raise ValueError(f"its observation has the shape {np.shape(observation)}, and not {shape}")
        return require_gymnasium().spaces.flatten(self.space, observation)

    def actions_for(self, action_EA: np.ndarray) -> Sequence[Any]:
        """Converts actions of the policy, (E, A), to those of the environments; numbers are clipped to their limits."""
        return self.limits.actions_for(self.actions, action_EA)


class VectorEnvironment:
    """Several environments, each with its current episode.

    Args:
        maker: factory of the environments.
        spaces: observation and action spaces.
        names: name of each environment, for messages.
        render_mode: gymnasium's render mode, if frames are drawn.

    Attributes:
        observation_E: current observation of each environment, (E, ...).
        seeds: seed of each current episode.
        actions: actions of the policy in each current episode, each (A,).
        returns: sum of rewards of each current episode.
    """

    def __init__(
        self, maker: EnvironmentFactory, spaces: Spaces, names: Sequence[str], render_mode: Optional[str] = None
    ):
        self._spaces, self._id, self._names = spaces, maker.id, names
        self._is_plain = spaces.is_plain
        self._environments = [maker.make(render_mode) for _ in names]
        self.observation_E = np.zeros((len(names), *spaces.shape), spaces.dtype)
        self.seeds = [0] * len(names)
        self.actions: List[List[np.ndarray]] = [[] for _ in names]
        self.returns = [0.0] * len(names)

    def start_episode(self, number: int, seed: int) -> None:
        """Starts an episode.

        Raises:
            LoaderError: the environment raised an exception.
        """
        self.seeds[number], self.actions[number], self.returns[number] = seed, [], 0.0
        try:
            observation, _ = self._environments[number].reset(seed=seed)
            self._keep(number, self._spaces.convert_observation(observation))
        except FAILURES as error:
            raise self._failure(number, _describe_error(error)) from error

    def step(self, number: int, action: Any, action_A: np.ndarray) -> Tuple[float, bool, bool]:
        """Takes a step in one environment.

        Args:
            number: index of the environment.
            action: action in the form that the environment expects.
            action_A: the same action in the form of the policy.

        Returns:
            Reward, whether the episode terminated, and whether it was truncated.

        Raises:
            LoaderError: the environment raised an exception.
        """
        self.actions[number].append(action_A)
        try:
            observation, reward, terminated, truncated, _ = self._environments[number].step(action)
            self._keep(number, observation if self._is_plain else self._spaces.convert_observation(observation))
            reward, terminated, truncated = float(reward), bool(terminated), bool(truncated)
        except FAILURES as error:
            raise self._failure(number, _describe_error(error)) from error
        if not math.isfinite(reward):
            raise self._failure(number, f"its reward is {reward}")
        self.returns[number] += reward
        return reward, terminated, truncated

    def _keep(self, number: int, observation: Any) -> None:
        shape = self.observation_E.shape[1:]
        # Without this check, NumPy would broadcast smaller arrays. `.shape` takes a tenth of the time of `np.shape`.
        if getattr(observation, "shape", None) != shape and (np.shape(observation) or (1,)) != shape:
            raise ValueError(f"its observation has the shape {np.shape(observation)}, and not {shape}")
        self.observation_E[number] = observation

    def step_all(self, action_EA: np.ndarray) -> Tuple[List[float], List[Tuple[int, bool]]]:
        """Takes a step in all environments.

        Args:
            action_EA: actions of the policy.

        Returns:
            Rewards, and (index, terminated) of each environment whose episode has ended; False means truncated.

        Raises:
            LoaderError: an environment raised an exception.
        """
        rewards, ended = [], []
        for number, action in enumerate(self._spaces.actions_for(action_EA)):
            reward, terminated, truncated = self.step(number, action, action_EA[number])
            rewards.append(reward)
            if terminated or truncated:
                ended.append((number, terminated))
        return rewards, ended

    def replay(self, number: int, seed: int, action_TA: np.ndarray) -> bool:
        """Replays an unfinished episode. Returns True if it is still unfinished after its last action."""
        self.start_episode(number, seed)
        for action, action_A in zip(self._spaces.actions_for(action_TA), action_TA):
            _, terminated, truncated = self.step(number, action, action_A)
            if terminated or truncated:
                return False
        return True

    def require_finite(self) -> None:
        """Raises a `LoaderError` if an observation is infinite or NaN."""
        if self._spaces.dtype == "uint8" or np.isfinite(self.observation_E).all():  # one check for all environments
            return
        number = int(np.argmin(np.isfinite(self.observation_E.reshape((len(self._names), -1))).all(axis=1)))
        raise self._failure(number, f"its observation is not finite: {self.observation_E[number]!s:.100}")

    def render(self, number: int) -> np.ndarray:
        """Returns the current frame of an environment, (H, W, 3) uint8.

        Raises:
            DataError: the environment cannot be drawn.
        """
        try:
            frame = self._environments[number].render()
        except FAILURES as error:
            reason = _describe_error(error)
            raise DataError(f"{self._id} cannot be drawn: {reason}. Install what it draws with.") from error
        if not isinstance(frame, np.ndarray) or frame.ndim != 3 or frame.shape[2] != 3:
            raise DataError(f"{self._id} cannot be drawn: it renders no image (render_mode=rgb_array).")
        return frame.astype(np.uint8)

    def close(self) -> None:
        """Closes all environments."""
        for environment in self._environments:
            close(environment)

    def _failure(self, number: int, reason: str) -> LoaderError:
        step = len(self.actions[number])
        return LoaderError(
            f"{self._names[number]} of {self._id} failed in step {step} of its episode, which began with the seed "
            f"{self.seeds[number]}: {reason}."
        )


def close(environment: Any) -> None:
    """Closes an environment. An error is only logged, because the environment is not used any more."""
    try:
        environment.close()
    except FAILURES as error:
        log.warning("an environment cannot be closed: %s", _describe_error(error))


def _lacks_package(error: BaseException) -> bool:
    return isinstance(error, ImportError) or type(error).__name__ == "DependencyNotInstalled"  # gymnasium's


def _describe_error(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].rstrip('.')}" if lines else type(error).__name__


def _read_actions(action: Any, name: str) -> Tuple[Actions, ActionLimits]:
    """Reads an action space.

    Args:
        action: gymnasium's space.
        name: id of the environment, for messages.

    Raises:
        DataError: the type of actions is not supported.
    """
    spaces = require_gymnasium().spaces
    if isinstance(action, spaces.Discrete):
        return Actions(int(action.n)), ActionLimits(int(action.start))
    if isinstance(action, spaces.MultiDiscrete):
        parts = tuple(np.asarray(action.nvec, np.int64).reshape(-1).tolist())
        starts = tuple(np.asarray(getattr(action, "start", np.zeros_like(action.nvec))).reshape(-1).tolist())
        limits = ActionLimits(shape=tuple(action.shape), dtype=action.dtype.name, starts=starts)
        return Actions(sum(parts), len(parts), parts), limits
    if isinstance(action, spaces.Box) and np.issubdtype(action.dtype, np.floating):
        low, high = (np.asarray(limit, np.float32).reshape(-1) for limit in (action.low, action.high))
        limits = ActionLimits(0, low, high, tuple(action.shape), action.dtype.name)
        return Actions(size=math.prod(action.shape)), limits
    raise DataError(
        f"dataset.id={name}: its actions are {_short(action)}, and policies are for Discrete (one of some), "
        "MultiDiscrete (several of them) and Box (numbers) alone. Choose another environment."
    )


def _leaves(space: Any) -> Tuple[Leaf, ...]:
    try:
        return tuple(leaves_of(space))
    except ValueError:
        return ()


def _is_choice(space: Any, spaces: Any) -> bool:
    return isinstance(space, (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary))


def _short(space: Any) -> str:
    return f"{space!r:.80}"
