"""Converts actions of a policy to those of an environment. Exported folders have a copy of this module.

Legend: E environments, A numbers of an action.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Dict, Sequence, Tuple

import numpy as np

if TYPE_CHECKING:
    from mxtrain.reinforcement.policy import Actions

TOLERANCE = 1e-5
"""Relative rounding of recorded actions that counts as within the limits."""


@dataclass(frozen=True)
class ActionLimits:
    """The action space of an environment.

    Attributes:
        start: number of the first discrete action.
        low, high: limits of each component of a continuous action.
        shape, dtype: shape and type of actions of several components.
        starts: number of the first choice of each component of discrete actions of several components.
    """

    start: int = 0
    low: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))
    high: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))
    shape: Tuple[int, ...] = ()
    dtype: str = "int64"
    starts: Tuple[int, ...] = ()

    def actions_for(self, actions: Actions, action_EA: np.ndarray) -> Sequence[Any]:
        """Converts actions of the policy, (E, A), to those of the environments. Numbers are clipped to their limits;
        squashed ones, from -1 to 1, are scaled to them."""
        if actions.count:
            if not self.starts:
                return (action_EA[:, 0].astype(np.int64) + self.start).tolist()
            chosen_EA = (action_EA.astype(np.int64) + np.array(self.starts, np.int64)).astype(self.dtype)
            return list(chosen_EA.reshape((-1, *self.shape)))
        if actions.head == "squashed_gaussian":
            action_EA = self.low + (action_EA + np.float32(1)) * (np.float32(0.5) * (self.high - self.low))
        clipped_EA = np.clip(action_EA, self.low, self.high).astype(self.dtype)
        return list(clipped_EA.reshape((-1, *self.shape)))

    def policy_actions(self, actions: Actions, native: np.ndarray) -> np.ndarray:
        """Converts actions of an environment, (N, ...), to those of the policy, (N, A) float32: the inverse of
        `actions_for`.

        Raises:
            ValueError: they have another shape, are no choices, or are beyond the limits.
        """
        size = actions.size
        if native[:1].size != size:
            raise ValueError(f"an action has {native[:1].size} numbers, and not {size}")
        native_NA = native.reshape((-1, size)).astype(np.float64)
        if actions.count:
            chosen_NA = native_NA - (np.array(self.starts) if self.starts else self.start)
            if (
                (chosen_NA != np.floor(chosen_NA)).any()
                or (chosen_NA < 0).any()
                or (chosen_NA >= actions.choices).any()
            ):
                raise ValueError("an action is none of the choices")
            return chosen_NA.astype(np.float32)
        if actions.head != "squashed_gaussian":
            return native_NA.astype(np.float32)
        scaled_NA = 2.0 * (native_NA - self.low) / (self.high.astype(np.float64) - self.low) - 1.0
        if (np.abs(scaled_NA) > 1.0 + TOLERANCE).any():
            raise ValueError("an action is beyond the limits")
        return np.clip(scaled_NA, -1.0, 1.0).astype(np.float32)

    def to_json(self) -> Dict[str, Any]:
        """Returns plain values; a limit that is infinite is None."""
        low, high = (
            [float(limit) if np.isfinite(limit) else None for limit in limits] for limits in (self.low, self.high)
        )
        values = {"start": self.start, "low": low, "high": high, "shape": list(self.shape), "dtype": self.dtype}
        return {**values, "starts": list(self.starts)} if self.starts else values

    @classmethod
    def from_json(cls, values: Dict[str, Any]) -> ActionLimits:
        """Restores the limits from `to_json`."""
        low, high = (
            np.array([infinite if limit is None else limit for limit in values[name]], np.float32)
            for name, infinite in (("low", -np.inf), ("high", np.inf))
        )
        starts = tuple(values.get("starts", ()))
        return cls(values["start"], low, high, tuple(values["shape"]), values["dtype"], starts)
