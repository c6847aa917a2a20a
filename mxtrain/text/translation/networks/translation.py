"""Shared parts of translation networks: the output layer with the inputs of its loss. Imports MXNet.

Outputs are -log p of each token and the mean of -log p over the vocabulary, from which any label smoothing follows
exactly. The output layer is computed in chunks of tokens inside the graph, so that scores of a whole batch are never in
memory.

Legend: B batch, T tokens of the target, U units, V tokens of the target vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from mxtrain.text.networks.language import OutputLayer

if TYPE_CHECKING:
    from mxtrain.types.annotations import Array, OperatorModule


class TargetScores(OutputLayer):
    """Output layer with the inputs of its loss.

    Inputs are states (T, B, U) and the next tokens (B, T), -1 = ignored; outputs are -log p of each next token, and the
    mean of -log p over the vocabulary (for label smoothing), (B, T) each, 0 for ignored tokens.

    Lengths differ between batches, so chunks are formed in the graph: chunk c of C has the positions c, c + C, ... The
    scores of a chunk are computed, used and freed before those of the next chunk.

    Args:
        vocab_size: V.
        chunks: C.
        has_bias: True if each token has a bias.
    """

    def __init__(self, vocab_size: int, chunks: int, has_bias: bool = False, **kwargs: Any):
        super().__init__(vocab_size, has_bias, **kwargs)
        self._chunks = chunks

    def hybrid_forward(
        self, F: OperatorModule, state_TBU: Array, label_BT: Array, table_VU: Array, bias: Optional[Array] = None
    ) -> Any:
        label_TB = F.transpose(label_BT)
        if self._chunks == 1:
            loss, mean = self.losses(F, state_TBU, label_TB, table_VU, bias)
            return F.transpose(loss), F.transpose(mean)
        states, labels = self._cut(F, state_TBU), self._cut(F, label_TB)
        parts = [self.losses(F, state, label, table_VU, bias) for state, label in zip(states, labels)]
        joined = (F.reshape(F.stack(*chunks, axis=1), shape=(-3, 0)) for chunks in zip(*parts))
        loss, mean = (F.slice_like(array, label_TB, axes=(0,)) for array in joined)
        return F.transpose(loss), F.transpose(mean)

    def _cut(self, F: OperatorModule, array_TB: Array) -> Any:
        """Returns C chunks of equal length; the last may end with padding."""
        first = F.slice_axis(array_TB, axis=0, begin=0, end=1)
        padded = F.concat(array_TB, *[F.zeros_like(first)] * (self._chunks - 1), dim=0)
        parts = [F.slice(padded, begin=(number,), end=(None,), step=(self._chunks,)) for number in range(self._chunks)]
        return [F.slice_like(part, parts[-1], axes=(0,)) for part in parts]
