"""Action spaces and policies. NumPy chooses actions; MXNet's operators compute gradients. Does not import MXNet.

The network returns one row for each observation. For discrete actions it has K scores and the value, O = K + 1. For
continuous actions it has A means, A logarithms of standard deviations and the value, O = 2 A + 1.

Legend: N samples, O outputs of the network, K actions to choose from, A numbers of an action, X columns of a target:
`FACTS` and the action.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, List, Mapping, Tuple

import numpy as np

if TYPE_CHECKING:
    from mxtrain.types.annotations import Array, Json, JsonObject, OperatorModule

LOG_STD_LIMITS = (-20.0, 2.0)
"""Log standard deviations of a Gaussian policy are clipped to this range."""
MIN_IMAGE_SIDE = 36
"""Minimum height and width of images for the convolutions of `model=actor_critic`; the pixels of smaller images enter
dense layers."""
_LOG_2_PI = math.log(2 * math.pi)

FACTS = ("log_probability", "advantage", "value_target", "value", "return", "length", "ended")
"""First columns of the target of a sample: log p of the action when it was chosen, its advantage, the target of the
value and the predicted value; then return and length of the episode so far, and 1 if the episode ended with this
sample, else 0. The action follows these columns."""
NUM_FACTS = len(FACTS)


def facts_of(F: OperatorModule, facts_NX: Array, *names: str) -> List[Array]:
    """Returns some of `FACTS` of each sample, (N,) each."""
    # Facts are constants of the loss: no gradient may flow into e.g. the advantages.
    constant_NX = F.BlockGrad(F.slice_axis(facts_NX, axis=1, begin=0, end=NUM_FACTS))
    columns = F.split(constant_NX, num_outputs=NUM_FACTS, axis=1, squeeze_axis=True)
    return [columns[FACTS.index(name)] for name in names]


@dataclass(frozen=True)
class Actions:
    """Action space of an agent.

    Attributes:
        count: number K of discrete actions; 0 = actions are continuous.
        size: A, the number of components of a continuous action; 1 for discrete actions.
    """

    count: int = 0
    size: int = 1

    @property
    def num_outputs(self) -> int:
        """Returns O, the number of outputs of the network for an observation."""
        return (self.count or 2 * self.size) + 1

    def names(self) -> List[str]:
        """Returns the name of each output."""
        if self.count:
            return [*(f"score {number}" for number in range(self.count)), "value"]
        means, deviations = ([f"{name} {number}" for number in range(self.size)] for name in ("mean", "log_std"))
        return [*means, *deviations, "value"]

    def to_json(self) -> Mapping[str, Json]:
        return {"count": self.count, "size": self.size}

    @classmethod
    def from_json(cls, values: JsonObject) -> Actions:
        return cls(values["count"], values["size"])

    # On the host, without gradients.

    def choose(self, output_NO: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Chooses an action for each policy.

        Args:
            output_NO: outputs of the network.
            noise: Gumbel noise (N, K), or standard normal noise (N, A); zeros choose the most probable action.

        Returns:
            Actions (N, A), float32.
        """
        if self.count:
            return np.argmax(output_NO[:, : self.count] + noise, axis=1)[:, None].astype(np.float32)
        mean_NA, log_std_NA = self._gaussian(output_NO)
        return mean_NA + np.exp(log_std_NA) * noise

    def _gaussian(self, output_NO: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
        size = self.size
        return output_NO[:, :size], np.clip(output_NO[:, size : 2 * size], *LOG_STD_LIMITS)

    def log_probability_of(self, output_NO: np.ndarray, action_NA: np.ndarray) -> np.ndarray:
        """Returns log p of each action under its policy, (N,) float32."""
        if self.count:
            score_NK = output_NO[:, : self.count]
            score_NK = score_NK - score_NK.max(axis=1, keepdims=True)  # so that the exponential cannot overflow
            chosen_N = score_NK[np.arange(len(score_NK)), action_NA[:, 0].astype(np.int64)]
            return chosen_N - np.log(np.exp(score_NK).sum(axis=1))
        mean_NA, log_std_NA = self._gaussian(output_NO)
        scaled_NA = (action_NA - mean_NA) * np.exp(-log_std_NA)
        return -0.5 * (scaled_NA**2).sum(axis=1) - log_std_NA.sum(axis=1) - np.float32(0.5 * self.size * _LOG_2_PI)

    # On a device, with gradients.

    def log_probability(self, F: OperatorModule, output_NO: Array, facts_NX: Array) -> Array:
        """Returns log p of each action (the columns after `FACTS`) under its policy, (N,)."""
        action_NA = F.BlockGrad(F.slice_axis(facts_NX, axis=1, begin=NUM_FACTS, end=NUM_FACTS + self.size))
        if self.count:
            return F.pick(F.log_softmax(self._scores(F, output_NO), axis=1), F.reshape(action_NA, shape=(-1,)), axis=1)
        mean_NA = F.slice_axis(output_NO, axis=1, begin=0, end=self.size)
        log_std_NA = self._log_std(F, output_NO)
        scaled_NA = (action_NA - mean_NA) * F.exp(-log_std_NA)
        return -0.5 * F.sum(F.square(scaled_NA), axis=1) - F.sum(log_std_NA, axis=1) - 0.5 * self.size * _LOG_2_PI

    def entropy(self, F: OperatorModule, output_NO: Array) -> Array:
        """Returns the entropy of each policy in nats, (N,)."""
        if self.count:
            log_NK = F.log_softmax(self._scores(F, output_NO), axis=1)
            return -F.sum(F.exp(log_NK) * log_NK, axis=1)
        return F.sum(self._log_std(F, output_NO), axis=1) + 0.5 * self.size * (1 + _LOG_2_PI)

    def value(self, F: OperatorModule, output_NO: Array) -> Array:
        """Returns the value of each observation, (N,)."""
        return F.reshape(F.slice_axis(output_NO, axis=1, begin=self.num_outputs - 1, end=None), shape=(-1,))

    def _scores(self, F: OperatorModule, output_NO: Array) -> Array:
        return F.slice_axis(output_NO, axis=1, begin=0, end=self.count)

    def _log_std(self, F: OperatorModule, output_NO: Array) -> Array:
        return F.clip(F.slice_axis(output_NO, axis=1, begin=self.size, end=2 * self.size), *LOG_STD_LIMITS)
