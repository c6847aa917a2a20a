"""Shared parts of translation networks: the output layer with the inputs of its loss. Imports MXNet.

Legend: B batch, T tokens of the target, U units, V tokens of the target vocabulary.
"""

from __future__ import annotations

from typing import Any

from mxtrain.text.networks.language import OutputLayer


class TargetScores(OutputLayer):
    """States (T, B, U) and the tokens that follow, (B, T), -1 where none counts, to -log p of each, and the mean of
    -log p over all tokens of the vocabulary, which label smoothing needs: (B, T) both, 0 where none counts.

    Batches have different lengths, so chunks are made while it computes: chunk c has the places c, c + C, ... of C
    chunks, and is as long as the others. Scores of a chunk are computed, used and freed before the next chunk.

    Args:
        vocab_size: V.
        chunks: C.
        has_bias: whether each token has a bias.
    """

    def __init__(self, vocab_size: int, chunks: int, has_bias: bool = False, **kwargs: Any):
        super().__init__(vocab_size, has_bias, **kwargs)
        self._chunks = chunks

    def hybrid_forward(self, F, state_TBU, label_BT, table_VU, bias=None):
        label_TB = F.transpose(label_BT)
        if self._chunks == 1:
            own, mean = self.losses(F, state_TBU, label_TB, table_VU, bias)
            return F.transpose(own), F.transpose(mean)
        states, labels = self._cut(F, state_TBU), self._cut(F, label_TB)
        parts = [self.losses(F, state, label, table_VU, bias) for state, label in zip(states, labels)]
        joined = (F.reshape(F.stack(*some, axis=1), shape=(-3, 0)) for some in zip(*parts))
        own, mean = (F.slice_like(one, label_TB, axes=(0,)) for one in joined)
        return F.transpose(own), F.transpose(mean)

    def _cut(self, F, array_TB):
        """Chunks of the same length, ceil(T / C), the last of which may end in places that are none."""
        first = F.slice_axis(array_TB, axis=0, begin=0, end=1)
        padded = F.concat(array_TB, *[F.zeros_like(first)] * (self._chunks - 1), dim=0)
        parts = [F.slice(padded, begin=(number,), end=(None,), step=(self._chunks,)) for number in range(self._chunks)]
        return [F.slice_like(part, parts[-1], axes=(0,)) for part in parts]
