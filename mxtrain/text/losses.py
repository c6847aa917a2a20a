"""Losses over tokens: of hidden ones, of each, of the answer's two ends, and of the next one."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from mxtrain.loss.spec import Loss
from mxtrain.text.kinds import AnswerSpan, MaskedTokens, NextTokens, TokenTags
from mxtrain.types import OpenFraction
from mxtrain.types.kinds import Takes, Translations

if TYPE_CHECKING:
    from mxnet import gluon


class MaskedSoftmaxCrossEntropy(Loss):
    """Softmax cross entropy of the hidden tokens of texts: the mean over all of them in the global batch."""

    takes: ClassVar[Takes] = Takes(MaskedTokens)

    def build(self, num_classes: int, training: bool) -> gluon.Block:
        from mxtrain.text.loss_blocks import MaskedSoftmaxCrossEntropyLoss

        return MaskedSoftmaxCrossEntropyLoss(self.label_smoothing if training else 0.0)


class TokenSoftmaxCrossEntropy(MaskedSoftmaxCrossEntropy):
    """Softmax cross entropy of the tags of words: the mean over all words in the global batch."""

    takes: ClassVar[Takes] = Takes(TokenTags)


class SpanSoftmaxCrossEntropy(Loss):
    """Softmax cross entropy of the first and the last token of an answer, over the tokens of a sample; the mean of
    both."""

    takes: ClassVar[Takes] = Takes(AnswerSpan)

    def build(self, num_classes: int, training: bool) -> gluon.Block:
        from mxtrain.text.loss_blocks import SpanSoftmaxCrossEntropyLoss

        return SpanSoftmaxCrossEntropyLoss()


class TokenCrossEntropy(Loss):
    """Cross entropy of the tokens of texts: the mean over all that are predicted in the global batch. The network
    computes it for each token."""

    takes: ClassVar[Takes] = Takes(NextTokens)

    def build(self, num_classes: int, training: bool) -> gluon.Block:
        from mxtrain.text.loss_blocks import TokenLoss

        return TokenLoss()


class LabelSmoothedCrossEntropy(Loss):
    """Cross entropy of the tokens of translations, smoothed while training: the mean over all of them in the global
    batch. The network computes what it is made of for each token; validation reports it without smoothing."""

    takes: ClassVar[Takes] = Takes(Translations)

    label_smoothing: OpenFraction = 0.1
    """Share of the target spread evenly over the vocabulary while training; val/loss is without."""

    def build(self, num_classes: int, training: bool) -> gluon.Block:
        from mxtrain.text.loss_blocks import SmoothedTokenLoss

        return SmoothedTokenLoss(self.label_smoothing if training else 0.0)
