"""The losses as Gluon blocks. Labels are (B,) indices or (B, K) probabilities: a batch's shape says which.

A block returns the loss of each sample, (B,); one with `weighted = True` also the weight of each, (B,), and then the
loss of a batch is sum(loss) / sum(weight) over the global batch.
"""

from __future__ import annotations

from typing import Optional, Sequence

from mxtrain.engine.backend import gluon

PADDING_SCORE = -1e9
"""Of positions that are none, before a softmax in float32: exp of it is exactly 0."""


def dense_target(F, label, num_classes: int, dense: bool):
    """(B, K) probabilities from (B,) indices, or the label itself where it is dense."""
    return label if dense else F.one_hot(label, num_classes)


class SoftmaxCrossEntropyLoss(gluon.HybridBlock):
    """-sum(target * log softmax(scores)), with label smoothing in closed form.

    Source: smoothing by s gives (1 - s) * nll + s * mean(-log p), Szegedy et al., arXiv 1512.00567, section 7.
    """

    def __init__(self, smoothing: float = 0.0):
        super().__init__()
        self._smoothing = smoothing
        self.dense = False

    def hybrid_forward(self, F, logits_BK, label):
        log_p_BK = F.log_softmax(logits_BK)
        if self.dense:
            loss_B = -F.sum(label * log_p_BK, axis=-1)
        else:
            loss_B = -F.pick(log_p_BK, label, axis=-1)
        if self._smoothing:
            loss_B = (1 - self._smoothing) * loss_B - self._smoothing * F.mean(log_p_BK, axis=-1)
        return loss_B


class MaskedSoftmaxCrossEntropyLoss(gluon.HybridBlock):
    """Scores (B, M, K) and labels (B, M), -1 where none counts, to the sum of -log softmax(scores) over each sample's
    positions, (B,), and how many these are, (B,)."""

    weighted = True

    def __init__(self, smoothing: float = 0.0):
        super().__init__()
        self._smoothing = smoothing
        self.dense = False

    def hybrid_forward(self, F, logits_BMK, label_BM):
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

    def hybrid_forward(self, F, score_BT2, span_B2, length_B):
        masked_BT2 = F.SequenceMask(score_BT2, length_B, use_sequence_length=True, value=PADDING_SCORE, axis=1)
        log_p_B2T = F.log_softmax(F.transpose(masked_BT2, axes=(0, 2, 1)), axis=-1)
        return -F.mean(F.pick(log_p_B2T, span_B2, axis=-1), axis=-1)


class TokenLoss(gluon.HybridBlock):
    """-log p of tokens (B, T), 0 where none counts, these tokens (B, T), -1 where none counts, and what only metrics
    look at, to the sum over each sample's, (B,), and how many count, (B,)."""

    weighted = True

    def __call__(self, loss_BT, label_BT, *rest):
        return super().__call__(loss_BT, label_BT)

    def hybrid_forward(self, F, loss_BT, label_BT):
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

    def __call__(self, loss_BT, mean_BT, label_BT, *rest):
        return super().__call__(loss_BT, *([mean_BT] if self._smoothing else []), label_BT)

    def hybrid_forward(self, F, loss_BT, *rest):
        if self._smoothing:
            loss_BT = (1 - self._smoothing) * loss_BT + self._smoothing * rest[0]
        return F.sum(loss_BT, axis=-1), F.sum(rest[-1] >= 0, axis=-1)


class PixelSoftmaxCrossEntropyLoss(gluon.HybridBlock):
    """Scores (B, K, H, W), as many further ones, and masks (B, H, W), -1 where a pixel is ignored, to the sum of
    -weight * log softmax(scores) over each sample's pixels, (B,), and the sum of their weights, (B,).

    GluonCV's losses are not used: they are built on SoftmaxOutput, which ignores the gradient that comes from behind
    it, and with it weights, loss scales and the weight of auxiliary outputs.
    """

    weighted = True

    def __init__(self, class_weights: Sequence[float], aux_weight: float, smoothing: float, num_used: Optional[int]):
        super().__init__()
        self._class_weights = [float(weight) for weight in class_weights]
        self._aux_weight, self._smoothing, self._num_used = aux_weight, smoothing, num_used

    def __call__(self, *arrays):
        # Gluon warns of inputs that nothing uses.
        return super().__call__(*arrays[:-1][: self._num_used], arrays[-1])

    def hybrid_forward(self, F, *arrays):
        logits, mask_BHW = arrays[:-1], arrays[-1]
        class_BHW = F.relu(mask_BHW)  # -1 becomes class 0, with a weight of 0
        weight_BHW = mask_BHW >= 0
        if set(self._class_weights) != {1.0}:
            one = F.slice_axis(mask_BHW.reshape((-1,)), axis=0, begin=0, end=1) * 0 + 1
            weight_K = F.concat(*[one * weight for weight in self._class_weights], dim=0)
            weight_BHW = weight_BHW * F.take(weight_K, class_BHW)
        losses = [self._sum(F, logits_BKHW, class_BHW, weight_BHW) for logits_BKHW in logits]
        return losses[0] + self._aux_weight * sum(losses[1:]) if losses[1:] else losses[0], F.sum(
            weight_BHW, axis=(1, 2)
        )

    def _sum(self, F, logits_BKHW, class_BHW, weight_BHW):
        # With classes last: MXNet's log_softmax over an axis in the middle takes twice as long as this with transpose.
        log_p_BHWK = F.log_softmax(F.transpose(logits_BKHW, axes=(0, 2, 3, 1)), axis=-1)
        loss_BHW = -F.pick(log_p_BHWK, class_BHW, axis=-1)
        if self._smoothing:
            loss_BHW = (1 - self._smoothing) * loss_BHW - self._smoothing * F.mean(log_p_BHWK, axis=-1)
        return F.sum(loss_BHW * weight_BHW, axis=(1, 2))


class WeighingLoss(gluon.Block):
    """A user's loss of all that a network returns and all targets; it may be a block that cannot be hybridized."""

    def __init__(self, block: gluon.Block):
        super().__init__()
        self.weighted = False
        self.block = block

    def forward(self, *arrays):
        return self.block(*arrays)


class RegressionLoss(gluon.Block):
    """One of gluon.loss's losses, or a user's, of predictions (B, 1) against targets (B,).

    Args:
        block: the loss.
        mean, std: of the targets; predictions are of standardised ones.
    """

    def __init__(self, block: gluon.Block, mean: float = 0.0, std: float = 1.0):
        super().__init__()
        self.weighted = False
        self.block = block
        self._mean, self._std = mean, std

    def forward(self, prediction_B1, target_B):
        target_B1 = target_B.reshape((-1, 1))
        if (self._mean, self._std) != (0.0, 1.0):
            target_B1 = (target_B1 - self._mean) / self._std
        return self.block(prediction_B1, target_B1)


class BinaryCrossEntropyLoss(gluon.HybridBlock):
    """Scores (B, 1) and targets (B,), 0 or 1, to -w y log p - (1 - y) log(1 - p), (B,), with p = sigmoid(score).

    -log p is softplus(-score), which has no logarithm of 0.
    """

    weighted = False

    def __init__(self, pos_weight: float):
        super().__init__()
        self._pos_weight = pos_weight

    def hybrid_forward(self, F, score_B1, target_B):
        score_B = F.reshape(score_B1, shape=(-1,))
        yes_B, no_B = F.Activation(-score_B, act_type="softrelu"), F.Activation(score_B, act_type="softrelu")
        return self._pos_weight * target_B * yes_B + (1 - target_B) * no_B


class IndexLabelLoss(gluon.Block):
    """A user's loss, which takes class indices; it may be a block that cannot be hybridized."""

    def __init__(self, block: gluon.Block):
        super().__init__()
        self.dense = False
        self.weighted = False
        self.block = block

    def forward(self, scores, label):
        return self.block(scores, label)


class DenseTargetLoss(gluon.HybridBlock):
    """One of gluon.loss's losses against one-hot or smoothed targets."""

    def __init__(self, block: gluon.Block, num_classes: int, smoothing: float, signed: bool):
        super().__init__()
        self._num_classes, self._smoothing, self._signed = num_classes, smoothing, signed
        self.dense = False
        self.block = block

    def hybrid_forward(self, F, logits_BK, label):
        target_BK = dense_target(F, label, self._num_classes, self.dense)
        if self._smoothing:
            target_BK = (1 - self._smoothing) * target_BK + self._smoothing / self._num_classes
        if self._signed:
            target_BK = 2 * target_BK - 1
        return self.block(logits_BK, target_BK)
