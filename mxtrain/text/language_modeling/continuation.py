"""Continues texts: the next token is drawn from what a network expects, one after the other.

Legend: B batch, V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional, Tuple

import numpy as np

from mxtrain.errors import ConfigError
from mxtrain.task.own_network import OwnNetwork
from mxtrain.text.language_modeling.sampling import Sampling, usual_count
from mxtrain.text.model import build_text

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray

    from mxtrain.data.signature import Signature
    from mxtrain.description.groups import Description
    from mxtrain.parallel.base import Strategy
    from mxtrain.types import Batch

def own_network(description: Description, signature: Signature, strategy: Strategy) -> OwnNetwork:
    """Returns a network of its own, which is asked token by token, with the weights of a strategy."""
    size = description.task.num_classes(signature)
    return OwnNetwork(
        lambda: build_text(description.model, size, signature.shape, size), description.model.widths, strategy
    )  # fmt: skip


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
        self._count = count = usual_count(self._longest) if count is None else count
        if self._longest is not None and count >= self._longest:
            raise ConfigError(
                f"task.new_tokens={count}: the network sees at most {self._longest} tokens, including the ones "
                f"that are continued. Type task.new_tokens={self._longest // 2}."
            )

    def __call__(self, outputs: Tuple[NDArray, ...], batch: Batch) -> NDArray:
        """Returns the added tokens, (B, count), int32. The whole window is continued where `Batch.meta` has no
        lengths."""
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
