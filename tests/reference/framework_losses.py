"""Losses of Gluon and PyTorch: means, factors and limits. The mean over the batch is taken of Gluon's losses."""

from __future__ import annotations

import itertools
from typing import Any, Callable

import numpy as np
from framework_lines import LOSSES, Line, values

from mxtrain.engine.backend import gluon, nd

SCORES_BK, TARGET_BK = values(4, 5) * 2, values(4, 5, seed=1)
LABEL_B = np.array([0, 3, 1, 4])
PROBABILITY_BK = np.abs(TARGET_BK) / np.abs(TARGET_BK).sum(1, keepdims=True)
SIGN_BK = np.sign(TARGET_BK)


def mean_loss(block: Any, *arrays: np.ndarray) -> Any:
    return block(*map(nd.array, arrays)).mean()


def of_torch(torch: Any, function: Callable[..., Any], *arrays: np.ndarray, **options: Any) -> Any:
    return function(*map(torch.tensor, arrays), **options)


def log_softmax(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


class CrossEntropy(Line):
    group = LOSSES
    title = "Softmax cross entropy"
    in_mxnet = "one loss for each sample; `Trainer.step(batch_size)` divides"
    in_pytorch = "the mean over the batch"
    mxtrain = "same: the mean over the global batch"

    def mxnet(self) -> Any:
        return mean_loss(gluon.loss.SoftmaxCELoss(), SCORES_BK, LABEL_B)

    def numpy(self) -> Any:
        return -log_softmax(SCORES_BK)[range(4), LABEL_B].mean()

    def pytorch(self, torch: Any) -> Any:
        return of_torch(torch, torch.nn.functional.cross_entropy, SCORES_BK, LABEL_B)


class LabelSmoothing(Line):
    group = LOSSES
    title = "Label smoothing by 0.1"
    in_mxnet = "has none; mxtrain's `loss.label_smoothing`: 0.1 / K for each class"
    in_pytorch = "`label_smoothing`: 0.1 / K for each class"
    mxtrain = "same"

    def mxnet(self) -> Any:
        from mxtrain.loss.blocks import SoftmaxCrossEntropyLoss

        return mean_loss(SoftmaxCrossEntropyLoss(0.1), SCORES_BK, LABEL_B)

    def numpy(self) -> Any:
        target = 0.9 * np.eye(5)[LABEL_B] + 0.1 / 5
        return -(target * log_softmax(SCORES_BK)).sum(1).mean()

    def pytorch(self, torch: Any) -> Any:
        return of_torch(torch, torch.nn.functional.cross_entropy, SCORES_BK, LABEL_B, label_smoothing=0.1)


class IgnoredLabel(Line):
    group = LOSSES
    title = "Softmax cross entropy: label -100"
    in_mxnet = "counts as class 0, and a label behind the last class as the last one"
    in_pytorch = "is left out (`ignore_index`); behind the last class: refused"
    mxtrain = "refused when the data is read; masks and texts have a value that is left out"
    labels = np.array([0, -100, 1, 4])

    def mxnet(self) -> Any:
        return mean_loss(gluon.loss.SoftmaxCELoss(), SCORES_BK, self.labels)

    def numpy(self) -> Any:
        return -log_softmax(SCORES_BK)[range(4), np.clip(self.labels, 0, 4)].mean()

    def pytorch(self, torch: Any) -> Any:
        return of_torch(torch, torch.nn.functional.cross_entropy, SCORES_BK, self.labels)

    def converted(self, torch: Any) -> Any:
        return of_torch(torch, torch.nn.functional.cross_entropy, SCORES_BK, np.clip(self.labels, 0, 4))


class ClassWeights(Line):
    group = LOSSES
    title = "Softmax cross entropy: weights of classes"
    in_mxnet = "`sample_weight`: the mean is over the number of samples"
    in_pytorch = "`weight`: the mean is over the sum of weights"
    mxtrain = (
        "same as PyTorch: pixels are divided by the sum of weights; images have `dataset.class_weights`, which draws "
        "samples"
    )
    weights_K = np.array([1, 2, 0.5, 3, 1], np.float32)

    def mxnet(self) -> Any:
        return mean_loss(gluon.loss.SoftmaxCELoss(), SCORES_BK, LABEL_B, self.weights_K[LABEL_B][:, None])

    def numpy(self) -> Any:
        return -(log_softmax(SCORES_BK)[range(4), LABEL_B] * self.weights_K[LABEL_B]).mean()

    def pytorch(self, torch: Any) -> Any:
        weight = torch.tensor(self.weights_K)
        return of_torch(torch, torch.nn.functional.cross_entropy, SCORES_BK, LABEL_B, weight=weight)

    def converted(self, torch: Any) -> Any:
        return self.pytorch(torch) * self.weights_K[LABEL_B].mean()


class SquaredError(Line):
    group = LOSSES
    title = "Squared error"
    in_mxnet = "`L2Loss`: half of the square"
    in_pytorch = "`MSELoss`: the square"
    mxtrain = "said: `loss=l2` is MXNet's; the gradient is half of PyTorch's"

    def mxnet(self) -> Any:
        return mean_loss(gluon.loss.L2Loss(), SCORES_BK, TARGET_BK)

    def numpy(self) -> Any:
        return ((SCORES_BK.astype(np.float64) - TARGET_BK) ** 2).mean() / 2

    def pytorch(self, torch: Any) -> Any:
        return of_torch(torch, torch.nn.functional.mse_loss, SCORES_BK, TARGET_BK)

    def converted(self, torch: Any) -> Any:
        return self.pytorch(torch) / 2


class AbsoluteError(Line):
    group = LOSSES
    title = "Absolute error"
    in_mxnet = in_pytorch = "mean of the differences"
    mxtrain = "same"

    def mxnet(self) -> Any:
        return mean_loss(gluon.loss.L1Loss(), SCORES_BK, TARGET_BK)

    def numpy(self) -> Any:
        return np.abs(SCORES_BK.astype(np.float64) - TARGET_BK).mean()

    def pytorch(self, torch: Any) -> Any:
        return of_torch(torch, torch.nn.functional.l1_loss, SCORES_BK, TARGET_BK)


class Huber(Line):
    group = LOSSES
    title = "Huber loss: rho 0.5"
    in_mxnet = "slope 1 outside: divided by rho"
    in_pytorch = "`HuberLoss`: slope delta outside; `SmoothL1Loss(beta=rho)` is MXNet's"
    mxtrain = "said: `loss=huber` is MXNet's"

    def mxnet(self) -> Any:
        return mean_loss(gluon.loss.HuberLoss(rho=0.5), SCORES_BK, TARGET_BK)

    def numpy(self) -> Any:
        away = np.abs(SCORES_BK.astype(np.float64) - TARGET_BK)
        return np.where(away > 0.5, away - 0.25, away**2).mean()

    def pytorch(self, torch: Any) -> Any:
        return of_torch(torch, torch.nn.functional.huber_loss, SCORES_BK, TARGET_BK, delta=0.5)

    def converted(self, torch: Any) -> Any:
        return of_torch(torch, torch.nn.functional.smooth_l1_loss, SCORES_BK, TARGET_BK, beta=0.5)


class Divergence(Line):
    group = LOSSES
    title = "Kullback-Leibler divergence"
    in_mxnet = "`KLDivLoss`: sum over classes (its documentation says mean)"
    in_pytorch = "`KLDivLoss`: mean over classes, too; `batchmean` is MXNet's"
    mxtrain = "said: `loss=kl_div` is MXNet's"

    def mxnet(self) -> Any:
        return mean_loss(gluon.loss.KLDivLoss(from_logits=False), SCORES_BK, PROBABILITY_BK)

    def numpy(self) -> Any:
        p = PROBABILITY_BK.astype(np.float64)
        return (p * (np.log(p) - log_softmax(SCORES_BK))).sum(1).mean()

    def _divergence(self, torch: Any, reduction: str) -> Any:
        log = torch.tensor(SCORES_BK).log_softmax(1)
        return torch.nn.functional.kl_div(log, torch.tensor(PROBABILITY_BK), reduction=reduction)

    def pytorch(self, torch: Any) -> Any:
        return self._divergence(torch, "mean")

    def converted(self, torch: Any) -> Any:
        return self._divergence(torch, "batchmean")


class BinaryCrossEntropy(Line):
    group = LOSSES
    title = "Binary cross entropy of scores"
    in_mxnet = "`SigmoidBCELoss`, `pos_weight`"
    in_pytorch = "`BCEWithLogitsLoss`, `pos_weight`"
    mxtrain = "same"
    scores = np.array([[-200, -3, 0, 2, 90]], np.float32)
    targets, weight = np.array([[0, 1, 0.5, 0, 1]], np.float32), np.array([[3, 3, 3, 3, 3]], np.float32)

    def mxnet(self) -> Any:
        arrays = map(nd.array, (self.scores, self.targets))
        return gluon.loss.SigmoidBCELoss()(*arrays, None, nd.array(self.weight)).mean()

    def numpy(self) -> Any:
        x, y = self.scores.astype(np.float64), self.targets
        return (3 * y * np.logaddexp(0, -x) + (1 - y) * np.logaddexp(0, x)).mean()

    def pytorch(self, torch: Any) -> Any:
        function = torch.nn.functional.binary_cross_entropy_with_logits
        return of_torch(torch, function, self.scores, self.targets, pos_weight=torch.tensor(self.weight))


class CertainProbability(Line):
    group = LOSSES
    title = "Binary cross entropy of probabilities 0 and 1"
    in_mxnet = "`from_sigmoid=True`: adds 1e-12: at most 27.6"
    in_pytorch = "`BCELoss`: log is at least -100"
    mxtrain = "said: mxtrain's losses take scores"
    probabilities, targets = np.array([[0.0, 0.2, 1.0]], np.float32), np.array([[1, 1, 1]], np.float32)

    def mxnet(self) -> Any:
        return mean_loss(gluon.loss.SigmoidBCELoss(from_sigmoid=True), self.probabilities, self.targets)

    def numpy(self) -> Any:
        return -np.log(self.probabilities + 1e-12).mean()

    def pytorch(self, torch: Any) -> Any:
        return of_torch(torch, torch.nn.functional.binary_cross_entropy, self.probabilities, self.targets)

    def converted(self, torch: Any) -> Any:
        return -torch.log(torch.tensor(self.probabilities) + 1e-12).mean()


class Ctc(Line):
    group = LOSSES
    title = "CTC: blank and mean"
    in_mxnet = (
        "`gluon.loss.CTCLoss`: blank is the last class (operator: the first); a sum for each sample; takes scores"
    )
    in_pytorch = "blank is 0; each loss is divided by the length of its label; takes log probabilities"
    mxtrain = 'said: `loss=ctc` is MXNet\'s; in PyTorch `log_softmax`, `blank=K - 1` and `reduction="none"`'
    rounding = 1e-4
    x_BTK = values(2, 6, 4) * 2
    labels, lengths = np.array([[0, 1, 1], [2, 0, -1]]), (3, 2)

    def mxnet(self) -> Any:
        return mean_loss(gluon.loss.CTCLoss(), self.x_BTK, self.labels)

    def numpy(self) -> Any:
        """Sums over all alignments."""
        losses = []
        for log_TK, label in zip(log_softmax(self.x_BTK), self.labels):
            total = 0.0
            for path in itertools.product(range(4), repeat=6):
                read = [one for one, _ in itertools.groupby(path) if one != 3]
                if read == [one for one in label if one >= 0]:
                    total += np.exp(log_TK[range(6), path].sum())
            losses.append(-np.log(total))
        return np.mean(losses)

    def _loss(self, torch: Any, **options: Any) -> Any:
        log_TBK = torch.tensor(self.x_BTK).log_softmax(-1).transpose(0, 1)
        labels, lengths = torch.tensor(self.labels).clamp(min=0), torch.tensor(self.lengths)
        return torch.nn.functional.ctc_loss(log_TBK, labels, torch.tensor([6, 6]), lengths, **options)

    def pytorch(self, torch: Any) -> Any:
        return self._loss(torch)

    def converted(self, torch: Any) -> Any:
        return self._loss(torch, blank=3, reduction="none").mean()


class Hinge(Line):
    group = LOSSES
    title = "Hinge loss of several classes"
    in_mxnet = "`HingeLoss`: max(0, 1 - score sign), mean over classes"
    in_pytorch = "`HingeEmbeddingLoss` is another function; `MultiMarginLoss` compares with the right class"
    mxtrain = "said: `loss=hinge` is MXNet's, the formula is written out"

    def mxnet(self) -> Any:
        return mean_loss(gluon.loss.HingeLoss(), SCORES_BK, SIGN_BK)

    def numpy(self) -> Any:
        return np.maximum(0, 1 - SCORES_BK.astype(np.float64) * SIGN_BK).mean()

    def pytorch(self, torch: Any) -> Any:
        return of_torch(torch, torch.nn.functional.hinge_embedding_loss, SCORES_BK, SIGN_BK)

    def converted(self, torch: Any) -> Any:
        return (1 - torch.tensor(SCORES_BK * SIGN_BK)).clamp(min=0).mean()


class Logistic(Line):
    group = LOSSES
    title = "Logistic loss"
    in_mxnet = "`LogisticLoss` of signs"
    in_pytorch = "`SoftMarginLoss`"
    mxtrain = "same"

    def mxnet(self) -> Any:
        return mean_loss(gluon.loss.LogisticLoss(), SCORES_BK, SIGN_BK)

    def numpy(self) -> Any:
        return np.logaddexp(0, -SCORES_BK.astype(np.float64) * SIGN_BK).mean()

    def pytorch(self, torch: Any) -> Any:
        return of_torch(torch, torch.nn.functional.soft_margin_loss, SCORES_BK, SIGN_BK)


class Triplet(Line):
    group = LOSSES
    title = "Triplet loss: distance"
    in_mxnet = "`TripletLoss`: squared distances"
    in_pytorch = "`TripletMarginLoss`: distances"
    mxtrain = "said: the formula is written out"
    margin = 4.0

    def mxnet(self) -> Any:
        return mean_loss(gluon.loss.TripletLoss(margin=self.margin), SCORES_BK, TARGET_BK, PROBABILITY_BK)

    def numpy(self) -> Any:
        anchor, positive, negative = (x.astype(np.float64) for x in (SCORES_BK, TARGET_BK, PROBABILITY_BK))
        gap = ((positive - anchor) ** 2 - (negative - anchor) ** 2).sum(1)
        return np.maximum(gap + self.margin, 0).mean()

    def pytorch(self, torch: Any) -> Any:
        arrays = SCORES_BK, TARGET_BK, PROBABILITY_BK
        return of_torch(torch, torch.nn.functional.triplet_margin_loss, *arrays, margin=self.margin)

    def converted(self, torch: Any) -> Any:
        anchor, positive, negative = map(torch.tensor, (SCORES_BK, TARGET_BK, PROBABILITY_BK))
        gap = ((positive - anchor) ** 2 - (negative - anchor) ** 2).sum(1)
        return (gap + self.margin).clamp(min=0).mean()


class Poisson(Line):
    group = LOSSES
    title = "Poisson loss"
    in_mxnet = in_pytorch = "exp(score) - target score, without Stirling's term"
    mxtrain = "same"
    counts = np.array([[0, 1, 3, 2, 5]] * 4, np.float32)

    def mxnet(self) -> Any:
        return mean_loss(gluon.loss.PoissonNLLLoss(), SCORES_BK, self.counts)

    def numpy(self) -> Any:
        x = SCORES_BK.astype(np.float64)
        return (np.exp(x) - self.counts * x).mean()

    def pytorch(self, torch: Any) -> Any:
        return of_torch(torch, torch.nn.functional.poisson_nll_loss, SCORES_BK, self.counts)


class CosineEmbedding(Line):
    group = LOSSES
    title = "Cosine embedding loss"
    in_mxnet = in_pytorch = "1 - cosine, or what exceeds the margin"
    mxtrain = "same"
    signs = np.array([1, -1, 1, -1], np.float32)

    def mxnet(self) -> Any:
        return mean_loss(gluon.loss.CosineEmbeddingLoss(), SCORES_BK, TARGET_BK, self.signs)

    def numpy(self) -> Any:
        x, y = SCORES_BK.astype(np.float64), TARGET_BK.astype(np.float64)
        cosine = (x * y).sum(1) / np.sqrt((x * x).sum(1) * (y * y).sum(1))
        return np.where(self.signs > 0, 1 - cosine, np.maximum(0, cosine)).mean()

    def pytorch(self, torch: Any) -> Any:
        return of_torch(torch, torch.nn.functional.cosine_embedding_loss, SCORES_BK, TARGET_BK, self.signs)
