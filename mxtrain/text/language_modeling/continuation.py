"""Continues texts: the next token is drawn from what a network expects, one after the other.

Legend: B batch, V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Optional, Tuple

import numpy as np

from mxtrain.data.loading.randomness import uniform
from mxtrain.errors import ConfigError
from mxtrain.task.own_network import OwnNetwork
from mxtrain.text.draws import TextDraw
from mxtrain.text.model import build_text

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray

    from mxtrain.data.signature import Signature
    from mxtrain.description.groups import Description
    from mxtrain.parallel.base import Strategy
    from mxtrain.types import Batch

_PLACES = 1 << 20
"""More tokens are never added to a text."""


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
        """The probabilities (B, V) that tokens are drawn with, in float64."""
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
        """The next token of each text.

        Args:
            score_BV: logarithms of probabilities, up to a constant.
            index_B: which text each is.
            number_B: how many tokens were chosen for it before.
        """
        total_BV = np.cumsum(self.probabilities(score_BV), axis=1)
        place_B = index_B * _PLACES + np.maximum(number_B, 0)
        drawn_B = uniform(self.seed, 0, place_B, TextDraw.NEXT_TOKEN)
        # Of the last sum, which rounding may have put below 1.
        return np.argmax(total_BV > (drawn_B * total_BV[:, -1])[:, None], axis=1)


def own_network(description: Description, signature: Signature, strategy: Strategy) -> OwnNetwork:
    """A network of its own, which is asked token by token, with the weights of a strategy."""
    size = description.task.num_classes(signature)
    return OwnNetwork(lambda: build_text(description.model, size, signature.shape, size), strategy)


USUAL_COUNT = 64
"""Tokens that are added to a text where no setting says how many."""


class Continuing:
    """Continues the texts of a batch, with a network of its own on one device that has the weights of a strategy.

    Args:
        description: of the run.
        signature: of the network.
        strategy: has the weights.
        sampling: how tokens are chosen.
        count: of tokens to add; None = `USUAL_COUNT`, or half of what the network sees at a time if that is less.

    Raises:
        ConfigError: the network cannot see so many tokens at a time.
    """

    def __init__(
        self, description: Description, signature: Signature, strategy: Strategy, sampling: Sampling,
        count: Optional[int],
    ) -> None:  # fmt: skip
        self._sampling = sampling
        self._network = own_network(description, signature, strategy)
        self._longest = self._network.longest
        if count is None:
            count = USUAL_COUNT if self._longest is None else max(1, min(USUAL_COUNT, self._longest // 2))
        self._count = count
        if self._longest is not None and count >= self._longest:
            raise ConfigError(
                f"task.new_tokens={count}: the network sees at most {self._longest} tokens, including the ones "
                f"that are continued. Type task.new_tokens={self._longest // 2}."
            )

    def __call__(self, outputs: Tuple[NDArray, ...], batch: Batch) -> NDArray:
        """The added tokens, (B, count), int32. The whole window is continued where `Batch.meta` has no lengths."""
        from mxtrain.engine.backend import nd
        from mxtrain.text.networks.language import generate

        token_BT = batch.inputs[0].asnumpy()
        index_B = batch.index_B
        assert index_B is not None
        length_B = np.full(batch.size, token_BT.shape[1]) if batch.meta is None else batch.meta[:, 0]
        most = token_BT.shape[1] if self._longest is None else self._longest - self._count
        prompts = [row[max(length - most, 0) : max(length, 1)] for row, length in zip(token_BT, length_B)]

        def choose(score_BV: np.ndarray, number_B: np.ndarray) -> np.ndarray:
            return self._sampling.choose(score_BV, index_B, number_B)

        found = generate(self._network.current(), prompts, self._count, choose, self._network.device)
        return nd.array(np.stack(found), dtype="int32")
