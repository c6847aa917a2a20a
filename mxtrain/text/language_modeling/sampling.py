"""Draws the next token of texts. Exported folders have a copy of this module.

Legend: B batch, V vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple, Optional

import numpy as np

from mxtrain.data.loading.uniform_hash import uniform

_PLACES = 1 << 20
"""More tokens are never added to a text."""
NEXT_TOKEN = 704
"""The random stream, see `TextDraw`."""
USUAL_COUNT = 64
"""Tokens that are added to a text where no setting says how many."""


class Sampling(NamedTuple):
    """Settings of sampling the next token.

    Attributes:
        temperature: scores are divided by it; 0 = the likeliest token.
        top_k: only so many of the likeliest are drawn from; 0 = all.
        top_p: only the likeliest are drawn from that together have this probability. Source: Holtzman et al.,
            https://arxiv.org/abs/1904.09751.
        seed: draws are a function of the seed, the index of the text and the index of the token.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def probabilities(self, score_BV: np.ndarray) -> np.ndarray:
        """Returns the probabilities (B, V) that tokens are drawn with, in float64."""
        score_BV = score_BV.astype(np.float64)
        order_BV = np.argsort(-score_BV, axis=1, kind="stable")
        kept = 1 if self.temperature == 0 else self.top_k or score_BV.shape[1]
        sorted_BV = np.take_along_axis(score_BV, order_BV, axis=1) / (self.temperature or 1.0)
        sorted_BV = np.exp(sorted_BV - sorted_BV[:, :1])
        sorted_BV[:, kept:] = 0
        sorted_BV /= sorted_BV.sum(axis=1, keepdims=True)
        # A token counts while those before it have not got as far: so at least one does.
        before_BV = np.cumsum(sorted_BV, axis=1) - sorted_BV
        sorted_BV[before_BV >= self.top_p] = 0
        found_BV = np.zeros_like(sorted_BV)
        np.put_along_axis(found_BV, order_BV, sorted_BV / sorted_BV.sum(axis=1, keepdims=True), axis=1)
        return found_BV

    def choose(self, score_BV: np.ndarray, index_B: np.ndarray, number_B: np.ndarray) -> np.ndarray:
        """Returns the next token of each text.

        Args:
            score_BV: logarithms of probabilities, up to a constant.
            index_B: which text each is.
            number_B: how many tokens were chosen for it before.
        """
        total_BV = np.cumsum(self.probabilities(score_BV), axis=1)
        place_B = index_B * _PLACES + np.maximum(number_B, 0)
        drawn_B = uniform(self.seed, 0, place_B, NEXT_TOKEN)
        # Of the last sum, which rounding may have put below 1.
        return np.argmax(total_BV > (drawn_B * total_BV[:, -1])[:, None], axis=1)


def usual_count(longest: Optional[int]) -> int:
    """Tokens that are added to a text where no setting says how many.

    Args:
        longest: tokens that the network sees at a time; None: any number.
    """
    return USUAL_COUNT if longest is None else max(1, min(USUAL_COUNT, longest // 2))
