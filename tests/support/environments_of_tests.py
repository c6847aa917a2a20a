"""Environments that tests register: some go wrong, some are easy to reckon with."""

from __future__ import annotations

import sys
from typing import Any, Iterator

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete


class Counting(gymnasium.Env):
    """Shows the step and the sum of actions so far; the reward is the step. Ends after `length` steps."""

    def __init__(self, length: int = 5, goes_wrong: str = "", at: int = 3, render_mode: Any = None):
        self.observation_space, self.action_space = Box(-1e9, 1e9, (3,), np.float32), Discrete(2, start=5)
        self.length, self.goes_wrong, self.at, self.render_mode = length, goes_wrong, at, render_mode
        self._others = 0

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.step_number, self.total, self._others = 0, 0, self._others + 1
        self.start = float(self.np_random.integers(100))
        return self._shown(), {}

    def _shown(self) -> np.ndarray:
        wrong = self.goes_wrong if self.step_number == self.at else ""
        first = np.nan if wrong == "observation" else self.start
        random = np.random.rand() if self.goes_wrong == "unseeded" else 0.0
        return np.array([first + random, self.step_number, self.total], np.float32)

    def step(self, action: int) -> Any:
        assert action in (5, 6)
        self.step_number, self.total = self.step_number + 1, self.total + action - 5
        wrong = self.goes_wrong if self.step_number == self.at else ""
        if wrong == "raises":
            raise RuntimeError("the cart fell off\nthe table")
        if wrong == "exits":
            sys.exit(3)
        reward = {"reward": np.inf, "no reward": None}.get(wrong, float(self.step_number))
        shown = self._shown()[:1] if wrong == "shape" else self._shown()
        return shown, reward, self.step_number == self.length, False, {}

    def render(self) -> np.ndarray:
        return np.full((20, 30, 3), self.step_number, np.uint8)


class Looking(Counting):
    """Shows an image (H, W, C), in which one pixel is the step."""

    def __init__(self, **options: Any):
        super().__init__(**options)
        self.observation_space = Box(0, 255, (4, 5, 3), np.uint8)

    def _shown(self) -> np.ndarray:
        found = np.zeros((4, 5, 3), np.uint8)
        found[1, 2, 0] = self.step_number
        return found


class Bare(Counting):
    """Has no argument, not even for drawing, and cannot be closed."""

    def __init__(self) -> None:
        super().__init__()

    def close(self) -> None:
        raise RuntimeError("it is jammed")


class Lacking(Counting):
    """Needs a package that is not installed."""

    def __init__(self, **options: Any):
        import box2d_of_tests  # type: ignore[import-not-found]  # noqa: F401  # there is none


class Choosing(Counting):
    """Its actions are of a kind that no policy is for."""

    def __init__(self, **options: Any):
        super().__init__(**options)
        self.action_space = gymnasium.spaces.MultiBinary(3)


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    """Registers them as Counting-v0, Looking-v0, ..."""
    kinds = (Counting, Looking, Bare, Lacking, Choosing)
    for kind in kinds:
        gymnasium.register(f"{kind.__name__}-v0", entry_point=kind)
    yield
    for kind in kinds:
        del gymnasium.registry[f"{kind.__name__}-v0"]
