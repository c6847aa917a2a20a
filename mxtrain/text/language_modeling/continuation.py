"""Continues texts: samples one token after the other from the probabilities of a network.

Legend: B batch, V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional, Tuple

import numpy as np

from mxtrain.errors import ConfigError
from mxtrain.task.decoding_network import DecodingNetwork
from mxtrain.text.language_modeling.sampling import Sampling, default_new_tokens
from mxtrain.text.model import build_text

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray

    from mxtrain.data.signature import Signature
    from mxtrain.model.spec import Model
    from mxtrain.parallel.base import Strategy
    from mxtrain.types import Batch


def decoding_network(model: Model, size: int, signature: Signature, strategy: Strategy) -> DecodingNetwork:
    """Returns a separate network for step-by-step decoding, which reads the weights of the strategy.

    Args:
        model: model of the run.
        size: V.
        signature: signature of the network.
        strategy: holds the weights.
    """
    return DecodingNetwork(lambda: build_text(model, size, signature.shape, size), model.widths, strategy)


class ContinuationDecoder:
    """Continues the texts of a batch, with a separate network on one device that reads the weights of the strategy.

    Args:
        network: result of `decoding_network`.
        sampling: settings of sampling.
        count: number of tokens to add; None = `DEFAULT_NEW_TOKENS`, or half of the network's positions if that is less.

    Raises:
        ConfigError: the network has too few positions.
    """

    def __init__(self, network: DecodingNetwork, sampling: Sampling, count: Optional[int]) -> None:
        self._network, self._sampling = network, sampling
        self._max_positions = self._network.max_positions
        self._count = count = default_new_tokens(self._max_positions) if count is None else count
        if self._max_positions is not None and count >= self._max_positions:
            raise ConfigError(
                f"task.new_tokens={count}: the network sees at most {self._max_positions} tokens, including the ones "
                f"that are continued. Type task.new_tokens={self._max_positions // 2}."
            )

    def __call__(self, outputs: Tuple[NDArray, ...], batch: Batch) -> NDArray:
        """Returns the added tokens, (B, count), int32. Without lengths in `Batch.meta`, whole windows are continued."""
        from mxtrain.engine.backend import nd
        from mxtrain.text.networks.language import generate

        token_BT = batch.inputs[0].asnumpy()
        index_B = batch.index_B
        assert index_B is not None
        length_B = np.full(batch.size, token_BT.shape[1]) if batch.meta is None else batch.meta[:, 0]
        max_prompt = token_BT.shape[1] if self._max_positions is None else self._max_positions - self._count
        prompts = [row[max(length - max_prompt, 0) : max(length, 1)] for row, length in zip(token_BT, length_B)]

        def choose(score_BV: np.ndarray, number_B: np.ndarray) -> np.ndarray:
            return self._sampling.choose(score_BV, index_B, number_B)

        continuations = generate(self._network.current(), prompts, self._count, choose, self._network.device)
        return nd.array(np.stack(continuations), dtype="int32")
