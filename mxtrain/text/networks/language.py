"""Parts of networks that predict the next token: the output layer with its loss, and step-by-step decoding.

Legend: B batch, T tokens of a window, U units, V vocabulary.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, List, Protocol, Sequence, Tuple, Union

from mxtrain.engine.backend import gluon, native_operators
from mxtrain.model.networks import fused
from mxtrain.model.networks.traced_step import read

if TYPE_CHECKING:
    import numpy as np
    from mxnet import Context
    from mxnet.ndarray import NDArray

    from mxtrain.annotations import Array, OperatorModule

LARGE = 1 << 18
"""Scores of one row of a batch, from which on they are computed in chunks by MXNet's operators."""
LARGE_FOR_OWN = 1 << 25
"""The same with our own operator, which stores neither logarithms of probabilities nor their gradients. Each chunk
makes a gradient of the whole table."""
MOST_CHUNKS = 8


class Stepwise(Protocol):
    """A network that can be asked for one token after the other."""

    def initial_state(self, batch_size: int, device: Context) -> List[NDArray]:
        """Returns the state before the first token."""

    def step(self, token_B: NDArray, place: int, memory: List[NDArray]) -> Tuple[NDArray, List[NDArray]]:
        """Scores (B, V) of the token behind one, and what it remembers then.

        Args:
            token_B: the tokens that are read.
            place: how many were read before.
            memory: of what was read before.
        """


def large() -> int:
    """Scores of one row of a batch, from which on they are computed in chunks."""
    return LARGE_FOR_OWN if native_operators().path else LARGE


def num_chunks(given: Union[str, int], length: int, vocab_size: int) -> int:
    """Returns the number of parts of a window in which scores are computed: with a large vocabulary they are most of
    the memory of a step, and are needed three times by MXNet's operators (scores, logarithms of probabilities,
    gradients)."""
    if given == "auto":
        return min(MOST_CHUNKS, max(1, math.ceil(length * vocab_size / large())))
    return min(int(given), length)


class OutputLayer(gluon.HybridBlock):
    """Base: scores of tokens, whose table of weights comes from elsewhere: it may be that of the embeddings.

    Args:
        vocab_size: V.
        has_bias: whether each token has a bias.
    """

    begins_stage = True

    def __init__(self, vocab_size: int, has_bias: bool = True, **kwargs: Any):
        super().__init__(**kwargs)
        self._vocab_size = vocab_size
        self.bias = self.params.get("bias", shape=(vocab_size,), init="zeros") if has_bias else None

    def losses(self, F: OperatorModule, state: Array, label: Array, table_VU: Array, bias: Any) -> Tuple[Array, Array]:
        """-log p of the tokens that follow states (..., U), and the mean of -log p over the vocabulary.

        Args:
            label: these tokens, (...), -1 where none counts: both are 0 there.
        """
        score = self._scores(F, state, table_VU, bias)
        if native_operators().path:
            return fused.cross_entropy(F, score, label, self._vocab_size)
        log_p = F.log_softmax(score)
        counts = label >= 0
        # -1 becomes token 0, as `pick` would clip it silently; its loss is multiplied by 0.
        return -F.pick(log_p, F.relu(label), axis=-1) * counts, -F.mean(log_p, axis=-1) * counts

    def _scores(self, F, state, table_VU, bias):
        given = [state, table_VU, *([] if bias is None else [bias])]
        return F.FullyConnected(*given, num_hidden=self._vocab_size, flatten=False, no_bias=bias is None)

    def scores(self, F: OperatorModule, state_BU: Array, table_VU: Array) -> Array:
        """Scores (B, V) of the next token."""
        return self._scores(F, state_BU, table_VU, None if self.bias is None else read(F, self.bias, state_BU))


class TokenScores(OutputLayer):
    """States (T, B, U) and the tokens that follow, (B, T), -1 where none counts, to -log p of each, (B, T), 0 where
    none counts.

    Scores of a chunk of the window are computed, used and freed before the next chunk.

    Args:
        vocab_size: V.
        length: T.
        chunks: how many.
        has_bias: whether each token has a bias.
    """

    def __init__(self, vocab_size: int, length: int, chunks: int, has_bias: bool = True, **kwargs: Any):
        super().__init__(vocab_size, has_bias, **kwargs)
        self._bounds = [length * number // chunks for number in range(chunks + 1)]

    def hybrid_forward(self, F, state_TBU, label_BT, table_VU, bias=None):
        label_TB = F.transpose(label_BT)
        parts = []
        for begin, end in zip(self._bounds, self._bounds[1:]):
            state, label = (F.slice_axis(one, axis=0, begin=begin, end=end) for one in (state_TBU, label_TB))
            parts.append(self.losses(F, state, label, table_VU, bias)[0])
        return F.transpose(parts[0] if len(parts) == 1 else F.concat(*parts, dim=0))


def generate(
    network: Stepwise, prompts: Sequence[np.ndarray], count: int, choose: Any, device: Context
) -> List[np.ndarray]:  # fmt: skip
    """Continues token rows, all of a batch at once, one token at a time.

    Args:
        network: is asked.
        prompts: at least one token each.
        count: of tokens to add.
        choose: (scores (B, V), how many tokens each row has) -> the next token of each, (B,).
        device: where the network is.

    Returns:
        The added tokens of each row.
    """
    import numpy as np

    from mxtrain.engine.backend import autograd, nd

    length_B = np.array([len(prompt) for prompt in prompts])
    whole = np.zeros((len(prompts), int(length_B.max()) + count), np.int32)
    for row, prompt in zip(whole, prompts):
        row[: len(prompt)] = prompt
    memory = network.initial_state(len(prompts), device)
    with autograd.pause(train_mode=False):
        for place in range(whole.shape[1] - 1):
            token_B = nd.array(whole[:, place], ctx=device, dtype="int32")
            score_BV, memory = network.step(token_B, place, memory)
            is_chosen_B = place + 1 >= length_B
            if is_chosen_B.any():
                chosen_B = choose(score_BV.asnumpy(), place + 1 - length_B)
                whole[is_chosen_B, place + 1] = chosen_B[is_chosen_B]
    return [row[length : length + count] for row, length in zip(whole, length_B)]
