"""Parts of networks that predict the next token: the output layer with its loss, and step-by-step decoding.

Legend: B batch, T tokens of a window, U units, V vocabulary.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, List, Optional, Protocol, Sequence, Tuple, Union

from mxtrain.engine.backend import gluon, native_operators
from mxtrain.model.networks import fused
from mxtrain.model.networks.traced_step import read

if TYPE_CHECKING:
    import numpy as np
    from mxnet import Context
    from mxnet.ndarray import NDArray

    from mxtrain.types.annotations import Array, OperatorModule

CHUNK_SCORES = 1 << 18
"""Number of scores per row of a batch from which they are computed in chunks, with MXNet's operators."""
NATIVE_CHUNK_SCORES = 1 << 25
"""The same with our native operator, which stores neither log probabilities nor their gradients. It is larger, because
each chunk computes a gradient of the whole table."""
MAX_CHUNKS = 8


class Stepwise(Protocol):
    """A network that decodes one token after the other."""

    def initial_state(self, batch_size: int, device: Context) -> List[NDArray]:
        """Returns the state before the first token."""

    def step(self, token_B: NDArray, position: int, memory: List[NDArray]) -> Tuple[NDArray, List[NDArray]]:
        """Returns the scores (B, V) of the next token, and the new state.

        Args:
            token_B: input tokens, int32.
            position: position of the input tokens, from 0.
            memory: state after the previous tokens.
        """


def chunk_scores() -> int:
    """Returns the number of scores per row of a batch from which they are computed in chunks."""
    return NATIVE_CHUNK_SCORES if native_operators().path else CHUNK_SCORES


def num_chunks(setting: Union[str, int], length: int, vocab_size: int) -> int:
    """Returns the number of chunks of a window whose scores are computed at a time.

    With a large vocabulary, scores need most of the memory of a step: MXNet's operators store them three times (scores,
    log probabilities, gradients).

    Args:
        setting: number of chunks, or "auto".
        length: number of tokens of a window.
        vocab_size: number of tokens of the vocabulary.
    """
    if setting == "auto":
        return min(MAX_CHUNKS, max(1, math.ceil(length * vocab_size / chunk_scores())))
    return min(int(setting), length)


class OutputLayer(gluon.HybridBlock):
    """Base class of output layers. The weights are an input, because they may be those of the embedding.

    Args:
        vocab_size: V.
        has_bias: True if each token has a bias.
    """

    begins_stage = True

    def __init__(self, vocab_size: int, has_bias: bool = True, **kwargs: Any):
        super().__init__(**kwargs)
        self._vocab_size = vocab_size
        self.bias = self.params.get("bias", shape=(vocab_size,), init="zeros") if has_bias else None

    def losses(self, F: OperatorModule, state: Array, label: Array, table_VU: Array, bias: Any) -> Tuple[Array, Array]:
        """Returns -log p of the next tokens, and the mean of -log p over the vocabulary, (...) both.

        Args:
            F: operators.
            state: states (..., U).
            label: next tokens (...); -1 = ignored, both results are 0.
            table_VU: weights.
            bias: bias (V,), or None.
        """
        score = self._scores(F, state, table_VU, bias)
        if native_operators().path:
            return fused.cross_entropy(F, score, label, self._vocab_size)
        log_p = F.log_softmax(score)
        counts = label >= 0
        # -1 becomes token 0, as `pick` would clip it silently; its loss is multiplied by 0.
        return -F.pick(log_p, F.relu(label), axis=-1) * counts, -F.mean(log_p, axis=-1) * counts

    def _scores(self, F: OperatorModule, state: Any, table_VU: Array, bias: Optional[Array]) -> Any:
        inputs = [state, table_VU, *([] if bias is None else [bias])]
        return F.FullyConnected(*inputs, num_hidden=self._vocab_size, flatten=False, no_bias=bias is None)

    def scores(self, F: OperatorModule, state_BU: Array, table_VU: Array) -> Array:
        """Returns the scores (B, V) of the next token."""
        return self._scores(F, state_BU, table_VU, None if self.bias is None else read(F, self.bias, state_BU))


class TokenScores(OutputLayer):
    """Output layer with its loss.

    Inputs are states (T, B, U) and the next tokens (B, T), -1 = ignored; the output is -log p of each next token, (B,
    T), 0 for ignored ones. The scores of a chunk of the window are computed, used and freed before those of the next
    chunk.

    Args:
        vocab_size: V.
        length: T.
        chunks: number of chunks.
        has_bias: True if each token has a bias.
    """

    def __init__(self, vocab_size: int, length: int, chunks: int, has_bias: bool = True, **kwargs: Any):
        super().__init__(vocab_size, has_bias, **kwargs)
        # The window is divided along time, whose length is known when the graph is traced; the batch size is not.
        self._bounds = [length * number // chunks for number in range(chunks + 1)]

    def hybrid_forward(
        self, F: OperatorModule, state_TBU: Array, label_BT: Array, table_VU: Array, bias: Optional[Array] = None
    ) -> Array:
        label_TB = F.transpose(label_BT)
        parts = []
        for begin, end in zip(self._bounds, self._bounds[1:]):
            state, label = (F.slice_axis(array, axis=0, begin=begin, end=end) for array in (state_TBU, label_TB))
            # Only -log p leaves a chunk: scores of a large vocabulary for the whole window would fill the memory.
            parts.append(self.losses(F, state, label, table_VU, bias)[0])
        return F.transpose(parts[0] if len(parts) == 1 else F.concat(*parts, dim=0))


def generate(
    network: Stepwise, prompts: Sequence[np.ndarray], count: int, choose: Any, device: Context
) -> List[np.ndarray]:
    """Continues the prompts of a batch, one token at a time.

    Args:
        network: network.
        prompts: prompts of at least one token each.
        count: number of tokens to add to each prompt.
        choose: function of the scores (B, V) and the number of tokens added to each row (B,), which returns the next
            tokens (B,).
        device: device of the network.

    Returns:
        The added tokens of each row.
    """
    import numpy as np

    from mxtrain.engine.backend import autograd, nd

    length_B = np.array([len(prompt) for prompt in prompts])
    token_BL = np.zeros((len(prompts), int(length_B.max()) + count), np.int32)
    for row, prompt in zip(token_BL, prompts):
        row[: len(prompt)] = prompt
    memory = network.initial_state(len(prompts), device)
    with autograd.pause(train_mode=False):
        for position in range(token_BL.shape[1] - 1):
            token_B = nd.array(token_BL[:, position], ctx=device, dtype="int32")
            score_BV, memory = network.step(token_B, position, memory)
            is_chosen_B = position + 1 >= length_B
            if is_chosen_B.any():
                chosen_B = choose(score_BV.asnumpy(), position + 1 - length_B)
                token_BL[is_chosen_B, position + 1] = chosen_B[is_chosen_B]
    return [row[length : length + count] for row, length in zip(token_BL, length_B)]
