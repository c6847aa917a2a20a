"""The losses as Gluon blocks. Labels are (B,) indices or (B, K) probabilities: a batch's shape says which.

A block returns the loss of each sample, (B,); one with `weighted = True` also the weight of each, (B,), and then the
loss of a batch is sum(loss) / sum(weight) over the global batch.
"""

from __future__ import annotations

from mxtrain.engine.backend import gluon


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
        loss_BM = -F.pick(log_p_BMK, F.relu(label_BM), axis=-1)
        if self._smoothing:
            loss_BM = (1 - self._smoothing) * loss_BM - self._smoothing * F.mean(log_p_BMK, axis=-1)
        counts_BM = label_BM >= 0
        return F.sum(loss_BM * counts_BM, axis=-1), F.sum(counts_BM, axis=-1)


class RegressionLoss(gluon.Block):
    """One of gluon.loss's losses, or a user's, of predictions (B, 1) against targets (B,)."""

    def __init__(self, block: gluon.Block):
        super().__init__()
        self.weighted = False
        self.block = block

    def forward(self, prediction_B1, target_B):
        return self.block(prediction_B1, target_B.reshape((-1, 1)))


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
