"""Losses of texts: of masked tokens, of the tags of words, of the ends of an answer, of next tokens, and of
translations.

Legend: B batch, M positions, T tokens, K classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Sequence, Tuple

from mxtrain.loss.spec import PADDING_SCORE, FunctionLoss
from mxtrain.text.kinds import AnswerSpan, MaskedTokens, NextTokens, TokenTags
from mxtrain.types import OpenFraction
from mxtrain.types.kinds import Takes, Translations

if TYPE_CHECKING:
    from mxtrain.types.annotations import Array, OperatorModule


class MaskedSoftmaxCrossEntropy(FunctionLoss):
    """Softmax cross entropy of the masked tokens of texts: the mean over all of them in the global batch."""

    takes: ClassVar[Takes] = Takes(MaskedTokens)
    weighted: ClassVar[bool] = True

    def compute(self, F: OperatorModule, logits_BMK: Array, label_BM: Array) -> Tuple[Array, Array]:
        """Returns the sum over each sample's positions, (B,), and their number, (B,); positions with the label -1 do
        not count."""
        log_p_BMK = F.log_softmax(logits_BMK)
        # -1 becomes class 0, as `pick` would clip it silently; its loss is multiplied by 0 below.
        loss_BM = -F.pick(log_p_BMK, F.relu(label_BM), axis=-1)
        if self.label_smoothing:
            loss_BM = (1 - self.label_smoothing) * loss_BM - self.label_smoothing * F.mean(log_p_BMK, axis=-1)
        counts_BM = label_BM >= 0
        return F.sum(loss_BM * counts_BM, axis=-1), F.sum(counts_BM, axis=-1)


class TokenSoftmaxCrossEntropy(MaskedSoftmaxCrossEntropy):
    """Softmax cross entropy of the tags of words: the mean over all words in the global batch."""

    takes: ClassVar[Takes] = Takes(TokenTags)


class SpanSoftmaxCrossEntropy(FunctionLoss):
    """Softmax cross entropy of the first and the last token of an answer, over the tokens of a sample; the mean of
    both."""

    takes: ClassVar[Takes] = Takes(AnswerSpan)

    def compute(self, F: OperatorModule, score_BT2: Array, span_B2: Array, length_B: Array) -> Array:
        """Returns the mean of both losses, (B,).

        Args:
            F: mx.nd or mx.sym.
            score_BT2: scores of the first and the last token, (B, T, 2).
            span_B2: first and last token, (B, 2).
            length_B: number of tokens, (B,).
        """
        masked_BT2 = F.SequenceMask(score_BT2, length_B, use_sequence_length=True, value=PADDING_SCORE, axis=1)
        log_p_B2T = F.log_softmax(F.transpose(masked_BT2, axes=(0, 2, 1)), axis=-1)
        return -F.mean(F.pick(log_p_B2T, span_B2, axis=-1), axis=-1)


class TokenCrossEntropy(FunctionLoss):
    """Cross entropy of the tokens of texts: the mean over all that are predicted in the global batch. The network
    computes it for each token."""

    takes: ClassVar[Takes] = Takes(NextTokens)
    weighted: ClassVar[bool] = True

    def used(self, *arrays: Array) -> Sequence[Array]:
        """Leaves out arrays that only metrics read: further outputs, and the last target."""
        return arrays[0], arrays[-2]

    def compute(self, F: OperatorModule, loss_BT: Array, label_BT: Array) -> Tuple[Array, Array]:
        """Returns the sum over each sample's tokens, (B,), and their number, (B,).

        Args:
            F: mx.nd or mx.sym.
            loss_BT: -log p of each token, 0 at ignored positions.
            label_BT: the tokens, -1 at ignored positions.
        """
        return F.sum(loss_BT, axis=-1), F.sum(label_BT >= 0, axis=-1)


class LabelSmoothedCrossEntropy(FunctionLoss):
    """Cross entropy of the tokens of translations, the mean over all of them in the global batch; smoothed in training
    only. The network computes -log p of each token and, for the smoothing, its mean over the vocabulary.

    A token's loss is (1 - s) * -log p(token) + s / V * sum over all V tokens of -log p: the cross entropy with a
    target of which s is spread evenly over the vocabulary, the token itself included. Source: Szegedy et al.,
    arXiv 1512.00567, section 7.
    """

    takes: ClassVar[Takes] = Takes(Translations)
    weighted: ClassVar[bool] = True

    label_smoothing: OpenFraction = 0.1
    """Share of the target spread evenly over the vocabulary in training; val/loss is not smoothed."""

    def used(self, *arrays: Array) -> Sequence[Array]:
        """Leaves out arrays that only metrics read, and the mean over the vocabulary if nothing is smoothed."""
        loss_BT, mean_BT, label_BT = arrays[:3]
        return (loss_BT, *([mean_BT] if self.label_smoothing else []), label_BT)

    def compute(self, F: OperatorModule, loss_BT: Array, *rest: Array) -> Tuple[Array, Array]:
        """Returns the sum over each sample's tokens, (B,), and their number, (B,).

        Args:
            F: mx.nd or mx.sym.
            loss_BT: -log p of each token, 0 at ignored positions.
            rest: if targets are smoothed, the mean of -log p over the vocabulary, (B, T); then the tokens (B, T), -1 at
                ignored positions.
        """
        if self.label_smoothing:
            loss_BT = (1 - self.label_smoothing) * loss_BT + self.label_smoothing * rest[0]
        return F.sum(loss_BT, axis=-1), F.sum(rest[-1] >= 0, axis=-1)
