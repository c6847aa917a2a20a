"""Samples the next token of texts. Exported folders contain a copy of this module.

Legend: B batch, V vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple, Optional

import numpy as np

from mxtrain.data.loading.uniform_hash import uniform

_MAX_POSITIONS = 1 << 20
"""Upper limit of the tokens added to a text, so that indices of random numbers never overlap."""
NEXT_TOKEN = 704
"""The random stream, see `TextDraw`."""
DEFAULT_NEW_TOKENS = 64
"""Default number of tokens added to a text."""


class Sampling(NamedTuple):
    """Settings of sampling the next token.

    Attributes:
        temperature: divisor of the scores; 0 = always the most probable token (greedy).
        top_k: number of most probable tokens to sample from; 0 = all.
        top_p: sample from the most probable tokens whose probabilities add up to this value. Source: Holtzman et al.,
            https://arxiv.org/abs/1904.09751.
        seed: random numbers are a function of the seed, the index of the text and the index of the token.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def probabilities(self, score_BV: np.ndarray) -> np.ndarray:
        """Returns the probabilities (B, V) with which tokens are sampled, float64."""
        score_BV = score_BV.astype(np.float64)
        # A stable sort gives equal scores one order, whatever algorithm NumPy chooses.
        order_BV = np.argsort(-score_BV, axis=1, kind="stable")
        num_kept = 1 if self.temperature == 0 else self.top_k or score_BV.shape[1]
        sorted_BV = np.take_along_axis(score_BV, order_BV, axis=1) / (self.temperature or 1.0)
        # The largest becomes 0, since a low temperature makes scores whose exponential overflows.
        sorted_BV = np.exp(sorted_BV - sorted_BV[:, :1])
        sorted_BV[:, num_kept:] = 0
        sorted_BV /= sorted_BV.sum(axis=1, keepdims=True)
        # A token is kept if those before it add up to less than top_p, so at least one is kept.
        before_BV = np.cumsum(sorted_BV, axis=1) - sorted_BV
        sorted_BV[before_BV >= self.top_p] = 0
        probability_BV = np.zeros_like(sorted_BV)
        np.put_along_axis(probability_BV, order_BV, sorted_BV / sorted_BV.sum(axis=1, keepdims=True), axis=1)
        return probability_BV

    def choose(self, score_BV: np.ndarray, index_B: np.ndarray, number_B: np.ndarray) -> np.ndarray:
        """Returns the next token of each text.

        Args:
            score_BV: log probabilities, up to a constant.
            index_B: index of each text.
            number_B: number of tokens added to each text so far.
        """
        total_BV = np.cumsum(self.probabilities(score_BV), axis=1)
        # A draw is a function of sample and place, so a text does not depend on the batch that it is in.
        position_B = index_B * _MAX_POSITIONS + np.maximum(number_B, 0)
        uniform_B = uniform(self.seed, 0, position_B, NEXT_TOKEN)
        # Scaled by the last sum, which rounding may have made less than 1.
        return np.argmax(total_BV > (uniform_B * total_BV[:, -1])[:, None], axis=1)


def default_new_tokens(longest: Optional[int]) -> int:
    """Returns the default number of tokens added to a text.

    Args:
        longest: number of positions of the network; None = unlimited.
    """
    return DEFAULT_NEW_TOKENS if longest is None else max(1, min(DEFAULT_NEW_TOKENS, longest // 2))
