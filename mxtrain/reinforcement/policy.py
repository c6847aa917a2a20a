"""Action spaces and policies. NumPy chooses actions; MXNet's operators compute gradients. Does not import MXNet.

The network returns one row for each observation. Its form is the head of `Actions`:

- "actor_critic": for discrete actions K scores and the value, O = K + 1; for continuous actions A means, A logarithms
  of standard deviations and the value, O = 2 A + 1.
- "action_values": the values of K discrete actions, O = K.
- "squashed_gaussian": A means and A logarithms of standard deviations of a Gaussian, whose tanh is the action, O = 2 A.

Legend: N samples, O outputs of the network, K actions to choose from, A numbers of an action, X columns of a target:
`FACTS` and the action.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Mapping, Sequence, Tuple

import numpy as np

if TYPE_CHECKING:
    from mxtrain.types.annotations import Array, Json, JsonObject, OperatorModule

LOG_STD_LIMITS = (-20.0, 2.0)
"""Log standard deviations of a Gaussian policy are clipped to this range."""
HEADS = ("actor_critic", "action_values", "squashed_gaussian")
"""Forms of the outputs of a policy network."""
MIN_IMAGE_SIDE = 36
"""Minimum height and width of images for the convolutions of `model=actor_critic`; the pixels of smaller images enter
dense layers."""
_LOG_2_PI = math.log(2 * math.pi)

FACTS = ("log_probability", "advantage", "value_target", "value", "return", "length", "ended")
"""First columns of the target of a sample: log p of the action when it was chosen, its advantage, the target of the
value and the predicted value; then return and length of the episode so far, and 1 if the episode ended with this
sample, else 0. The action follows these columns."""
NUM_FACTS = len(FACTS)


REPLAY_FACTS = ("reward", "discount", "terminated", "age", "return", "length", "ended")
"""First columns of the target of a sample of a replay buffer: reward of the action; the discount factor of the value of
the next observation, 0 if the episode terminated; 1 if it terminated, else 0; the number of steps since then in the
environment. The last three columns are sums over the episodes that ended since the batch before, in the row of one
sample of each environment, and 0 in the others."""


def facts_of(F: OperatorModule, facts_NX: Array, *names: str, columns: Sequence[str] = FACTS) -> List[Array]:
    """Returns some of the facts of each sample, (N,) each.

    Args:
        F: MXNet's operators.
        facts_NX: facts, followed by the action.
        names: facts to return.
        columns: names of all facts, `FACTS` or `REPLAY_FACTS`.
    """
    # Facts are constants of the loss: no gradient may flow into e.g. the advantages.
    constant_NX = F.BlockGrad(F.slice_axis(facts_NX, axis=1, begin=0, end=NUM_FACTS))
    found = F.split(constant_NX, num_outputs=NUM_FACTS, axis=1, squeeze_axis=True)
    return [found[columns.index(name)] for name in names]


@dataclass(frozen=True)
class Actions:
    """Action space of an agent, and the form of its policy.

    Attributes:
        count: number K of discrete actions, summed over the components of an action; 0 = actions are continuous.
        size: A, the number of components of an action.
        parts: number of choices of each component of discrete actions; () = one component with all K.
        head: form of the network's outputs, one of `HEADS`.
    """

    count: int = 0
    size: int = 1
    parts: Tuple[int, ...] = ()
    head: str = "actor_critic"

    def __post_init__(self) -> None:
        is_wrong = self.parts and (sum(self.parts), len(self.parts)) != (self.count, self.size)
        if is_wrong or self.head not in HEADS:
            raise ValueError(f"there are no such actions: {self}")

    @property
    def choices(self) -> Tuple[int, ...]:
        """Returns the number of choices of each component; empty if actions are continuous."""
        return self.parts or ((self.count,) if self.count else ())

    @property
    def num_outputs(self) -> int:
        """Returns O, the number of outputs of the network for an observation."""
        return (self.count or 2 * self.size) + (self.head == "actor_critic")

    def names(self) -> List[str]:
        """Returns the name of each output."""
        value = ["value"] if self.head == "actor_critic" else []
        if self.count:
            kind = "value" if self.head == "action_values" else "score"
            if self.parts:
                return [*(f"{kind} {part}.{n}" for part, count in enumerate(self.parts) for n in range(count)), *value]
            return [*(f"{kind} {number}" for number in range(self.count)), *value]
        means, deviations = ([f"{name} {number}" for number in range(self.size)] for name in ("mean", "log_std"))
        return [*means, *deviations, *value]

    def to_json(self) -> Mapping[str, Json]:
        values: Dict[str, Json] = {"count": self.count, "size": self.size}
        if self.parts:
            values["parts"] = list(self.parts)
        return values if self.head == "actor_critic" else {**values, "head": self.head}

    @classmethod
    def from_json(cls, values: JsonObject) -> Actions:
        """Restores the actions from `to_json`.

        Raises:
            ValueError: the numbers contradict each other, or the head is unknown.
        """
        head = values.get("head", "actor_critic")
        return cls(values["count"], values["size"], tuple(values.get("parts", ())), head)

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
            scored_NK = output_NO[:, : self.count] + noise
            return np.stack([np.argmax(part, axis=1) for part in self._parts_of(scored_NK)], axis=1).astype(np.float32)
        mean_NA, log_std_NA = self._gaussian(output_NO)
        action_NA = mean_NA + np.exp(log_std_NA) * noise
        return np.tanh(action_NA) if self.head == "squashed_gaussian" else action_NA

    def draw(self, uniform_NA: np.ndarray) -> np.ndarray:
        """Draws actions uniformly, whatever the policy: discrete ones, or numbers between -1 and 1.

        Args:
            uniform_NA: random numbers in [0, 1).

        Returns:
            Actions (N, A), float32.
        """
        if self.count:
            return np.floor(uniform_NA * np.array(self.choices)).astype(np.float32)
        return (2.0 * uniform_NA - 1.0).astype(np.float32)

    def _parts_of(self, score_NK: np.ndarray) -> List[np.ndarray]:
        """Returns the scores of each component, (N, choices) each."""
        return np.split(score_NK, np.cumsum(self.choices)[:-1], axis=1)

    def _gaussian(self, output_NO: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
        size = self.size
        return output_NO[:, :size], np.clip(output_NO[:, size : 2 * size], *LOG_STD_LIMITS)

    def log_probability_of(self, output_NO: np.ndarray, action_NA: np.ndarray) -> np.ndarray:
        """Returns log p of each action under its policy, (N,) float32."""
        if self.count:
            return sum(  # type: ignore[return-value]  # of at least one component
                self._log_softmax_of(score_NK, action_NA[:, part].astype(np.int64))
                for part, score_NK in enumerate(self._parts_of(output_NO[:, : self.count]))
            )
        mean_NA, log_std_NA = self._gaussian(output_NO)
        scaled_NA = (action_NA - mean_NA) * np.exp(-log_std_NA)
        return -0.5 * (scaled_NA**2).sum(axis=1) - log_std_NA.sum(axis=1) - np.float32(0.5 * self.size * _LOG_2_PI)

    @staticmethod
    def _log_softmax_of(score_NK: np.ndarray, chosen_N: np.ndarray) -> np.ndarray:
        score_NK = score_NK - score_NK.max(axis=1, keepdims=True)  # so that the exponential cannot overflow
        return score_NK[np.arange(len(score_NK)), chosen_N] - np.log(np.exp(score_NK).sum(axis=1))

    def estimates(self, output_O: np.ndarray) -> Dict[str, Any]:
        """Returns what the outputs for one observation estimate, as plain values: the value of the observation, and
        probabilities or values of actions."""
        row: Dict[str, Any] = {}
        if self.head == "actor_critic":
            row["value"] = round(float(output_O[-1]), 6)
        if self.head == "action_values":
            row["value"] = round(float(output_O.max()), 6)
            row["action_values"] = [round(float(value), 6) for value in output_O]
        elif self.count:
            shares = []
            for (score_K,) in self._parts_of(output_O[None, : self.count]):
                share_K = np.exp(score_K.astype(np.float64) - score_K.max())
                shares.append([round(float(share), 6) for share in share_K / math.fsum(share_K)])
            row["probabilities"] = shares if self.parts else shares[0]
        return row

    # On a device, with gradients.

    def taken(self, F: OperatorModule, facts_NX: Array) -> Array:
        """Returns the action of each sample, (N, A): the columns after the facts."""
        return F.BlockGrad(F.slice_axis(facts_NX, axis=1, begin=NUM_FACTS, end=NUM_FACTS + self.size))

    def log_probability(self, F: OperatorModule, output_NO: Array, facts_NX: Array) -> Array:
        """Returns log p of each action (the columns after `FACTS`) under its policy, (N,)."""
        action_NA = self.taken(F, facts_NX)
        if self.count:
            chosen = [F.slice_axis(action_NA, axis=1, begin=part, end=part + 1) for part in range(self.size)]
            return _add(
                F.pick(log_NK, F.reshape(chosen_N1, shape=(-1,)), axis=1)
                for log_NK, chosen_N1 in zip(self._log_softmaxes(F, output_NO), chosen)
            )
        mean_NA = F.slice_axis(output_NO, axis=1, begin=0, end=self.size)
        log_std_NA = self._log_std(F, output_NO)
        scaled_NA = (action_NA - mean_NA) * F.exp(-log_std_NA)
        return -0.5 * F.sum(F.square(scaled_NA), axis=1) - F.sum(log_std_NA, axis=1) - 0.5 * self.size * _LOG_2_PI

    def entropy(self, F: OperatorModule, output_NO: Array) -> Array:
        """Returns the entropy of each policy in nats, (N,)."""
        if self.count:
            return _add(-F.sum(F.exp(log_NK) * log_NK, axis=1) for log_NK in self._log_softmaxes(F, output_NO))
        return F.sum(self._log_std(F, output_NO), axis=1) + 0.5 * self.size * (1 + _LOG_2_PI)

    def value(self, F: OperatorModule, output_NO: Array) -> Array:
        """Returns the value of each observation, (N,)."""
        return F.reshape(F.slice_axis(output_NO, axis=1, begin=self.num_outputs - 1, end=None), shape=(-1,))

    def _log_softmaxes(self, F: OperatorModule, output_NO: Array) -> List[Array]:
        """Returns log p of the choices of each component, (N, choices) each."""
        ends = np.cumsum(self.choices).tolist()
        return [
            F.log_softmax(F.slice_axis(output_NO, axis=1, begin=end - count, end=end), axis=1)
            for count, end in zip(self.choices, ends)
        ]

    def _log_std(self, F: OperatorModule, output_NO: Array) -> Array:
        return F.clip(F.slice_axis(output_NO, axis=1, begin=self.size, end=2 * self.size), *LOG_STD_LIMITS)


def _add(arrays: Iterable[Array]) -> Array:
    """Returns the sum of the arrays."""
    return functools.reduce(lambda total, array: total + array, arrays)
