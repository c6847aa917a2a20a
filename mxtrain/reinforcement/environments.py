"""gymnasium's environments by their id: opened, described and stepped, with errors that name environment and step.

Why not gymnasium's vector environments: they begin an episode anew without a seed, so that it depends on all before it,
and an open one could not be played again after an interruption. Why one process: a step of most environments takes
less time than a message to another process; several workers (`cluster.workers`) are several processes.

Legend: E environments, A numbers of an action.
"""

from __future__ import annotations

import logging
import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from mxtrain.data.loading.libraries import require_library
from mxtrain.errors import DataError, LoaderError, did_you_mean
from mxtrain.reinforcement.image_layout import Channels, ImageLayout, find_images, holds_images
from mxtrain.reinforcement.policy import Actions

if TYPE_CHECKING:
    from mxtrain.types import Shape

log = logging.getLogger("mxtrain")
ATARI = re.compile(r"ALE/|\w+NoFrameskip-v4$")
"""Ids of Atari's games, which gymnasium knows only where ale_py was imported."""
FAILURES = (Exception, SystemExit)
"""Whatever an environment's own code raises: some leave the whole program."""


def require_gymnasium() -> Any:
    """The module gymnasium.

    Raises:
        DataError: it is not installed.
    """
    return require_library("gymnasium", "gymnasium", "dataset=gymnasium")


@dataclass(frozen=True)
class Maker:
    """Opens an environment any number of times.

    Attributes:
        id: as gymnasium has it registered.
        arguments: of the environment.
        max_episode_steps: where an episode is cut off; None = where the environment is registered with.
    """

    id: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    max_episode_steps: Optional[int] = None

    def make(self, render_mode: Optional[str] = None) -> Any:
        """The environment.

        Raises:
            DataError: gymnasium is not installed, there is no such environment, or it cannot be opened.
        """
        gymnasium = require_gymnasium()
        if self.id not in gymnasium.registry and ATARI.match(self.id):
            require_library("ale_py", "ale-py", f"dataset.id={self.id}")  # registers them when it is imported
        if self.id not in gymnasium.registry:
            raise DataError(
                f"dataset.id={self.id}: gymnasium knows no such environment.{did_you_mean(self.id, gymnasium.registry)}"
                " `python -c 'import gymnasium; gymnasium.pprint_registry()'` lists all."
            )
        # Pass on requested arguments only: an environment may not take the other ones.
        asked = {"max_episode_steps": self.max_episode_steps, "render_mode": render_mode}
        options = {name: value for name, value in asked.items() if value is not None}
        try:
            return gymnasium.make(self.id, disable_env_checker=True, **options, **self.arguments)
        except FAILURES as error:
            remedy = "Install that" if _lacks_package(error) else "Correct dataset.kwargs, or install what it needs"
            raise DataError(
                f"dataset.id={self.id}: the environment cannot be opened: {_said(error)}. {remedy}."
            ) from error  # fmt: skip


@dataclass(frozen=True)
class Spaces:
    """Observations that enter the network, and actions that it chooses.

    Attributes:
        shape: of an observation as it enters the network: images as (C, H, W), all else as one axis.
        dtype: in which observations are kept: uint8 of images in bytes, else float32.
        actions: what the agent may do.
        start: the number of the first action, where it chooses one of some.
        space: gymnasium's space of observations, where they have to be flattened.
        images: the layout of observations that are images.
        remark: a sentence on how observations enter the network, or an empty string.
        low, high: limits of each number of an action.
        action_shape, action_dtype: as the environment takes it.
    """

    shape: Shape
    dtype: str
    actions: Actions
    start: int = 0
    space: Optional[Any] = None
    images: Optional[ImageLayout] = None
    remark: str = ""
    low: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))
    high: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))
    action_shape: Shape = ()
    action_dtype: str = "int64"

    @classmethod
    def of(cls, environment: Any, name: str, channels: Channels = "auto") -> Spaces:
        """The spaces of an environment.

        Raises:
            DataError: its actions are of a kind that no policy is for, its observations have no fixed size, or it is
                not known how images in them lie.
        """
        spaces = require_gymnasium().spaces
        space, dtype, flattened, images, remark = environment.observation_space, "float32", None, None, ""
        shape: Shape
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
            remark = f"observations, {_short(space)}, enter as {shape[0]} numbers" * (not _is_choice(space, spaces))
            if holds_images(space):
                remark += ": images in them go through no convolutions. To have them, wrap the environment in one that "
                remark += "gives the image alone"
        action = environment.action_space
        if isinstance(action, spaces.Discrete):
            return cls(shape, dtype, Actions(int(action.n)), int(action.start), flattened, images, remark)
        if isinstance(action, spaces.Box) and np.issubdtype(action.dtype, np.floating):
            low, high = (np.asarray(limit, np.float32).reshape(-1) for limit in (action.low, action.high))
            size = math.prod(action.shape)
            return cls(
                shape, dtype, Actions(size=size), 0, flattened, images, remark, low, high, tuple(action.shape),
                action.dtype.name,
            )  # fmt: skip
        raise DataError(
            f"dataset.id={name}: its actions are {_short(action)}, and policies are for Discrete (one of some) and Box "
            "(numbers) alone. Choose another environment."
        )

    @property
    def is_plain(self) -> bool:
        """True if an observation enters the network as the environment gives it."""
        return self.space is None and self.images is None

    def observed(self, observation: Any) -> Any:
        """An observation of the environment as it enters the network."""
        if self.images is not None:
            return self.images.read(observation)
        if self.space is None:
            return observation
        wanted = self.space.shape
        if wanted is not None and np.shape(observation) != wanted:
            raise ValueError(f"its observation has the shape {np.shape(observation)}, and not {wanted}")
        return require_gymnasium().spaces.flatten(self.space, observation)

    def actions_for(self, action_EA: np.ndarray) -> Sequence[Any]:
        """Actions of the policy as environments take them: numbers within their limits."""
        if self.actions.count:
            return (action_EA[:, 0].astype(np.int64) + self.start).tolist()
        clipped_EA = np.clip(action_EA, self.low, self.high).astype(self.action_dtype)
        return list(clipped_EA.reshape((-1, *self.action_shape)))


class VectorEnvironment:
    """Some environments side by side, each with its open episode.

    Args:
        maker: opens them.
        spaces: what they give and take.
        names: what each is called in messages.
        render_mode: gymnasium's render mode, if frames are drawn.

    Attributes:
        observation_E: what each shows now, (E, ...).
        seeds: that its episode began with.
        taken: the policy's actions since then, each (A,).
        returns: sums of its rewards since then.
    """

    def __init__(self, maker: Maker, spaces: Spaces, names: Sequence[str], render_mode: Optional[str] = None):
        self._spaces, self._id, self._names = spaces, maker.id, names
        self._is_plain = spaces.is_plain
        self._environments = [maker.make(render_mode) for _ in names]
        self.observation_E = np.zeros((len(names), *spaces.shape), spaces.dtype)
        self.seeds = [0] * len(names)
        self.taken: List[List[np.ndarray]] = [[] for _ in names]
        self.returns = [0.0] * len(names)

    def start_episode(self, number: int, seed: int) -> None:
        """Begins an episode.

        Raises:
            LoaderError: the environment raised something.
        """
        self.seeds[number], self.taken[number], self.returns[number] = seed, [], 0.0
        try:
            observation, _ = self._environments[number].reset(seed=seed)
            self._keep(number, self._spaces.observed(observation))
        except FAILURES as error:
            raise self._failure(number, _said(error)) from error

    def step(self, number: int, action: Any, taken_A: np.ndarray) -> Tuple[float, bool, bool]:
        """Acts in one environment: its reward, whether the episode is over, and whether its time is.

        Args:
            number: of the environment.
            action: as it takes it.
            taken_A: the same as the policy chose it.

        Raises:
            LoaderError: the environment raised something.
        """
        self.taken[number].append(taken_A)
        try:
            observation, reward, terminated, truncated, _ = self._environments[number].step(action)
            self._keep(number, observation if self._is_plain else self._spaces.observed(observation))
            reward, terminated, truncated = float(reward), bool(terminated), bool(truncated)
        except FAILURES as error:
            raise self._failure(number, _said(error)) from error
        if not math.isfinite(reward):
            raise self._failure(number, f"its reward is {reward}")
        self.returns[number] += reward
        return reward, terminated, truncated

    def _keep(self, number: int, observation: Any) -> None:
        wanted = self.observation_E.shape[1:]
        # NumPy would broadcast smaller arrays. Reading the shape of an array takes a tenth of the time.
        if getattr(observation, "shape", None) != wanted and (np.shape(observation) or (1,)) != wanted:
            raise ValueError(f"its observation has the shape {np.shape(observation)}, and not {wanted}")
        self.observation_E[number] = observation

    def step_all(self, action_EA: np.ndarray) -> Tuple[List[float], List[Tuple[int, bool]]]:
        """Acts in all: their rewards, and the numbers of those whose episode has ended, each with whether it is over
        and not only its time.

        Args:
            action_EA: as the policy chose them.

        Raises:
            LoaderError: an environment raised something.
        """
        rewards, ended = [], []
        for number, action in enumerate(self._spaces.actions_for(action_EA)):
            reward, terminated, truncated = self.step(number, action, action_EA[number])
            rewards.append(reward)
            if terminated or truncated:
                ended.append((number, terminated))
        return rewards, ended

    def replay(self, number: int, seed: int, action_TA: np.ndarray) -> bool:
        """Plays an open episode again; whether it is still open behind its last action."""
        self.start_episode(number, seed)
        for action, taken_A in zip(self._spaces.actions_for(action_TA), action_TA):
            _, terminated, truncated = self.step(number, action, taken_A)
            if terminated or truncated:
                return False
        return True

    def require_finite(self) -> None:
        """Raises: LoaderError: an observation is infinite or not a number."""
        if self._spaces.dtype == "uint8" or np.isfinite(self.observation_E).all():
            return
        number = int(np.argmin(np.isfinite(self.observation_E.reshape((len(self._names), -1))).all(axis=1)))
        raise self._failure(number, f"its observation is not finite: {self.observation_E[number]!s:.100}")

    def drawn(self, number: int) -> np.ndarray:
        """An image of an environment as it is, (H, W, 3), uint8.

        Raises:
            DataError: it cannot be drawn.
        """
        try:
            found = self._environments[number].render()
        except FAILURES as error:
            raise DataError(f"{self._id} cannot be drawn: {_said(error)}. Install what it draws with.") from error
        if not isinstance(found, np.ndarray) or found.ndim != 3 or found.shape[2] != 3:
            raise DataError(f"{self._id} cannot be drawn: it renders no image (render_mode=rgb_array).")
        return found.astype(np.uint8)

    def close(self) -> None:
        """Closes all environments."""
        for environment in self._environments:
            close(environment)

    def _failure(self, number: int, said: str) -> LoaderError:
        step = len(self.taken[number])
        return LoaderError(
            f"{self._names[number]} of {self._id} failed in step {step} of its episode, which began with the seed "
            f"{self.seeds[number]}: {said}."
        )


def close(environment: Any) -> None:
    """Closes an environment; one that cannot be closed is left as it is, since nothing more is asked of it."""
    try:
        environment.close()
    except FAILURES as error:
        log.warning("an environment cannot be closed: %s", _said(error))


def _lacks_package(error: BaseException) -> bool:
    return isinstance(error, ImportError) or type(error).__name__ == "DependencyNotInstalled"  # gymnasium's


def _said(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].rstrip('.')}" if lines else type(error).__name__


def _is_choice(space: Any, spaces: Any) -> bool:
    return isinstance(space, (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary))


def _short(space: Any) -> str:
    return f"{space!r:.80}"
