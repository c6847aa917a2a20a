"""Translates sources with the weights of a strategy, one token after the other.

Legend: B batch, R rows, V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Tuple

import numpy as np

from mxtrain.task.own_network import OwnNetwork

if TYPE_CHECKING:
    from mxnet import Context
    from mxnet.ndarray import NDArray

    from mxtrain.dataset.signature import Signature
    from mxtrain.description.groups import Description
    from mxtrain.parallel.base import Strategy
    from mxtrain.types import Batch


class Translating:
    """Translates the sources of a batch, with a network of its own on one device that has the weights of a strategy.

    Args:
        description: of the run.
        signature: of the network.
        strategy: has the weights.
        length_ratio, extra_length: a translation has at most `ratio * tokens of the source + extra` tokens.
    """

    def __init__(
        self, description: Description, signature: Signature, strategy: Strategy, length_ratio: float,
        extra_length: int,
    ) -> None:  # fmt: skip
        assert signature.vocab_size is not None and signature.target_tokenizer_config is not None
        self._ratio, self._extra = length_ratio, extra_length
        self._special = signature.target_tokenizer_config.tokenizer.special
        size = description.task.num_classes(signature)
        network = description.model.build_translator(
            size, signature.shape, signature.vocab_size, bool(signature.is_joint)
        )
        self._own = OwnNetwork(network, strategy)

    def __call__(self, outputs: Tuple[NDArray, ...], batch: Batch) -> NDArray:
        """The tokens of translations, (B, longest), int32, filled up with <eos>."""
        from mxtrain.engine.backend import nd

        network: Any = self._own.current()
        source_BS, length_B = (array.as_in_context(self._own.device) for array in batch.inputs[:2])
        limit_B = (self._ratio * (length_B.asnumpy() - 1)).astype(np.int64) + self._extra
        assert self._special.bos is not None and self._special.eos is not None
        found = greedy(network, (source_BS, length_B), limit_B, self._special.bos, self._special.eos, self._own.device)
        return nd.array(found, dtype="int32")


def greedy(
    network: Any, inputs: Tuple[NDArray, ...], limit_B: np.ndarray, bos: int, eos: int, device: Context
) -> np.ndarray:
    """The likeliest next token, again and again: (B, longest), filled up with `eos`.

    Args:
        network: a `StepDecoder`.
        inputs: of its `begin`.
        limit_B: tokens of each at most.
        bos, eos: what begins and ends.
        device: where the network is.
    """
    from mxtrain.engine.backend import autograd, nd

    token_B, chosen = np.full(len(limit_B), bos), []
    with autograd.pause(train_mode=False):
        fixed, moving = network.begin(*inputs)
        for place in range(int(limit_B.max())):
            log_p, moving = network.step(nd.array(token_B, ctx=device, dtype="int32"), place, fixed, moving)
            token_B = np.where((token_B == eos) | (place >= limit_B), eos, log_p.asnumpy().argmax(axis=1))
            chosen.append(token_B)
            if (token_B == eos).all():
                break
    return np.stack(chosen, axis=1) if chosen else np.full((len(limit_B), 1), eos)
