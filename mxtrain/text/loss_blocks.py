"""Losses over tokens as Gluon blocks. Shapes are suffixes: B batch, T tokens, K classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mxtrain.engine.backend import gluon
from mxtrain.loss.blocks import PADDING_SCORE

if TYPE_CHECKING:
    from mxtrain.types.annotations import Array, OperatorModule


class MaskedSoftmaxCrossEntropyLoss(gluon.HybridBlock):
    """Scores (B, M, K) and labels (B, M), -1 where none counts, to the sum of -log softmax(scores) over each sample's
    positions, (B,), and how many these are, (B,)."""

    weighted = True

    def __init__(self, smoothing: float = 0.0):
        super().__init__()
        self._smoothing = smoothing
        self.dense = False

    def hybrid_forward(self, F: OperatorModule, logits_BMK: Array, label_BM: Array) -> Any:
        log_p_BMK = F.log_softmax(logits_BMK)
        # -1 becomes class 0, as `pick` would clip it silently; its loss is multiplied by 0 below.
        loss_BM = -F.pick(log_p_BMK, F.relu(label_BM), axis=-1)
        if self._smoothing:
            loss_BM = (1 - self._smoothing) * loss_BM - self._smoothing * F.mean(log_p_BMK, axis=-1)
        counts_BM = label_BM >= 0
        return F.sum(loss_BM * counts_BM, axis=-1), F.sum(counts_BM, axis=-1)


class SpanSoftmaxCrossEntropyLoss(gluon.HybridBlock):
    """Scores (B, T, 2), first and last token (B, 2) and number of tokens (B,) to the mean of both losses, (B,)."""

    weighted = False

    def hybrid_forward(self, F: OperatorModule, score_BT2: Array, span_B2: Array, length_B: Array) -> Any:
        masked_BT2 = F.SequenceMask(score_BT2, length_B, use_sequence_length=True, value=PADDING_SCORE, axis=1)
        log_p_B2T = F.log_softmax(F.transpose(masked_BT2, axes=(0, 2, 1)), axis=-1)
        return -F.mean(F.pick(log_p_B2T, span_B2, axis=-1), axis=-1)


class TokenLoss(gluon.HybridBlock):
    """-log p of tokens (B, T), 0 where none counts, these tokens (B, T), -1 where none counts, and what only metrics
    look at, to the sum over each sample's, (B,), and how many count, (B,)."""

    weighted = True

    def __call__(self, loss_BT: Array, label_BT: Array, *rest: Array) -> Any:
        return super().__call__(loss_BT, label_BT)

    def hybrid_forward(self, F: OperatorModule, loss_BT: Array, label_BT: Array) -> Any:
        return F.sum(loss_BT, axis=-1), F.sum(label_BT >= 0, axis=-1)


class SmoothedTokenLoss(gluon.HybridBlock):
    """-log p of tokens (B, T) and the mean of -log p over the vocabulary (B, T), both 0 where none counts, these tokens
    (B, T), -1 where none counts, and what only metrics look at, to the sum over each sample's, (B,), and how many
    count, (B,).

    A token's loss is (1 - s) * -log p(token) + s / V * sum over all V tokens of -log p: the cross entropy with a
    target of which s is spread evenly over the vocabulary, the token itself included. Source: Szegedy et al.,
    arXiv 1512.00567, section 7.
    """

    weighted = True

    def __init__(self, smoothing: float):
        super().__init__()
        self._smoothing = smoothing

    def __call__(self, loss_BT: Array, mean_BT: Array, label_BT: Array, *rest: Array) -> Any:
        return super().__call__(loss_BT, *([mean_BT] if self._smoothing else []), label_BT)

    def hybrid_forward(self, F: OperatorModule, loss_BT: Array, *rest: Array) -> Any:
        if self._smoothing:
            loss_BT = (1 - self._smoothing) * loss_BT + self._smoothing * rest[0]
        return F.sum(loss_BT, axis=-1), F.sum(rest[-1] >= 0, axis=-1)
