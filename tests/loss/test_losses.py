import inspect

import numpy as np
import pytest

from mxtrain.engine.backend import autograd, gluon, nd
from mxtrain.errors import ConfigError
from mxtrain.loss import losses
from mxtrain.loss.custom import CustomLoss
from mxtrain.text import losses as text_losses
from mxtrain.types.kinds import ClassIndex

KINDS = [c for _, c in inspect.getmembers(losses, inspect.isclass) if issubclass(c, losses.Loss)]
ALL = [c for c in KINDS if c not in (losses.Loss, losses.UserLoss) and c.takes.takes_target(ClassIndex)]
SCORES = np.random.RandomState(0).randn(6, 4).astype("float32")
LABELS = np.array([0, 1, 2, 3, 1, 1], dtype="float32")
ONE_HOT = np.eye(4, dtype="float32")[LABELS.astype(int)]


def value(spec, labels, training=True, dense=False):
    block = spec.build(4, training)
    block.dense = dense
    block.hybridize()
    return block(nd.array(SCORES), nd.array(labels)).asnumpy()


def log_softmax(scores=SCORES):
    return scores - np.log(np.exp(scores).sum(1, keepdims=True))


@pytest.mark.parametrize("kind", ALL)
def test_indices_and_one_hot_targets_agree(kind):
    got = value(kind(), LABELS)
    assert got.shape == (6,) and np.isfinite(got).all()
    np.testing.assert_allclose(got, value(kind(), ONE_HOT, dense=True), rtol=1e-5)


@pytest.mark.parametrize("kind", ALL)
def test_label_smoothing_is_for_training_only(kind):
    spec = kind(label_smoothing=0.3)
    smoothed = value(spec, LABELS)
    assert not np.allclose(smoothed, value(kind(), LABELS))
    np.testing.assert_allclose(value(spec, LABELS, training=False), value(kind(), LABELS))


def test_softmax_cross_entropy_equals_gluon():
    gluons = gluon.loss.SoftmaxCrossEntropyLoss()(nd.array(SCORES), nd.array(LABELS)).asnumpy()
    np.testing.assert_allclose(value(losses.SoftmaxCrossEntropy(), LABELS), gluons, rtol=1e-6)


def mean(value_BK):
    return value_BK.mean(axis=1)


def log_sigmoid(score):
    return -np.logaddexp(0, -score)


def focal(s, t, gamma=2.0, alpha=0.25):
    """Equation 5 of arXiv 1708.02002, of either answer."""
    p = 1 / (1 + np.exp(-s))
    return -alpha * t * (1 - p) ** gamma * np.log(p) - (1 - alpha) * (1 - t) * p**gamma * np.log(1 - p)


def asymmetric(s, t, positive=0.0, negative=4.0, margin=0.05):
    """Equations 4 to 6 of arXiv 2009.14119."""
    p = 1 / (1 + np.exp(-s))
    shifted = np.maximum(p - margin, 0)
    return -t * (1 - p) ** positive * np.log(p) - (1 - t) * shifted**negative * np.log(1 - shifted)


# Of scores (B, K) and targets (B, K) from 0 to 1; the signed ones take 2 * target - 1.
FORMULAS = {
    losses.SoftmaxCrossEntropy: lambda s, t: -(t * log_softmax(s)).sum(1),
    losses.SigmoidBCE: lambda s, t: mean(-t * log_sigmoid(s) - (1 - t) * log_sigmoid(-s)),
    losses.SigmoidFocal: lambda s, t: mean(focal(s, t)),
    losses.Asymmetric: lambda s, t: mean(asymmetric(s, t)),
    losses.KLDiv: lambda s, t: (t * (np.log(t + 1e-12) - log_softmax(s))).sum(1),
    losses.L1: lambda s, t: mean(np.abs(s - t)),
    losses.L2: lambda s, t: mean((s - t) ** 2) / 2,
    losses.Huber: lambda s, t: mean(np.where(np.abs(s - t) > 1, np.abs(s - t) - 0.5, (s - t) ** 2 / 2)),
    losses.Hinge: lambda s, t: mean(np.maximum(0, 1 - s * (2 * t - 1))),
    losses.SquaredHinge: lambda s, t: mean(np.maximum(0, 1 - s * (2 * t - 1)) ** 2),
    losses.Logistic: lambda s, t: mean(-t * log_sigmoid(s) - (1 - t) * log_sigmoid(-s)),
}


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("kind", ALL)
def test_every_loss_and_its_gradient_equal_the_formula(kind, smoothing):
    target = (1 - smoothing) * ONE_HOT.astype(np.float64) + smoothing / 4
    spec = kind(label_smoothing=smoothing)
    np.testing.assert_allclose(value(spec, LABELS), FORMULAS[kind](SCORES.astype(np.float64), target), rtol=1e-5)
    scores = nd.array(SCORES)
    scores.attach_grad()
    block = spec.build(4, True)
    with autograd.record():
        block(scores, nd.array(LABELS)).sum().backward()
    numeric = np.zeros((6, 4))
    for column in range(4):
        step = np.zeros((6, 4))
        step[:, column] = 1e-5
        above, below = (FORMULAS[kind](SCORES.astype(np.float64) + sign * step, target) for sign in (1, -1))
        numeric[:, column] = (above - below) / 2e-5
    np.testing.assert_allclose(scores.grad.asnumpy(), numeric, rtol=1e-3, atol=1e-5)


def test_settings_of_a_loss_change_it():
    """`rho` of Huber, `margin` of the hinges."""
    score = SCORES.astype(np.float64)
    off, signed = np.abs(score - ONE_HOT), 2 * ONE_HOT - 1
    huber = np.where(off > 0.3, off - 0.15, off**2 / 0.6)
    np.testing.assert_allclose(value(losses.Huber(rho=0.3), LABELS), mean(huber), rtol=1e-5)
    hinge = np.maximum(0, 0.4 - score * signed)
    np.testing.assert_allclose(value(losses.Hinge(margin=0.4), LABELS), mean(hinge), rtol=1e-5)
    np.testing.assert_allclose(value(losses.SquaredHinge(margin=0.4), LABELS), mean(hinge**2), rtol=1e-5)


def test_settings_of_losses_of_each_class_change_them():
    """`pos_weight`, `gamma`, `alpha` and the settings of the asymmetric loss, with class weights."""
    score, sets = SCORES.astype(np.float64), (SCORES > 0.3).astype(np.float64)
    weights = np.array([[1.0, 2.0, 0.5, 3.0]])

    def with_weights(spec):
        block = spec.build(4, True)
        block.dense = True
        block.hybridize()
        arrays = [nd.array(array, dtype="float64") for array in (score, sets, np.repeat(weights, 6, axis=0))]
        return block(*arrays).asnumpy()

    plain = -sets * log_sigmoid(score) - (1 - sets) * log_sigmoid(-score)
    heavy = -3 * sets * log_sigmoid(score) - (1 - sets) * log_sigmoid(-score)
    cases = {
        losses.SigmoidBCE(): plain,
        losses.SigmoidBCE(pos_weight=3.0): heavy,
        losses.SigmoidFocal(gamma=0.5, alpha=0.7): focal(score, sets, 0.5, 0.7),
        losses.Asymmetric(gamma_positive=1.5, gamma_negative=1.0, margin=0.2): asymmetric(score, sets, 1.5, 1.0, 0.2),
        losses.Asymmetric(gamma_negative=3.0, margin=0.0): asymmetric(score, sets, 0.0, 3.0, 0.0),
        losses.Asymmetric(gamma_negative=0.0): asymmetric(score, sets, 0.0, 0.0),
    }
    for spec, expected_BK in cases.items():
        np.testing.assert_allclose(with_weights(spec), mean(weights * expected_BK), rtol=1e-12)


@pytest.mark.parametrize("spec", [losses.SigmoidFocal(gamma=0.3), losses.Asymmetric(gamma_negative=1.0)])
def test_gradients_of_sure_scores_are_finite(spec):
    scores = nd.array([[-200.0, 200.0, -200.0, 200.0]])
    scores.attach_grad()
    block = spec.build(4, True)
    block.dense = True
    with autograd.record():
        loss = block(scores, nd.array([[1.0, 1.0, 0.0, 0.0]]))
    loss.backward()
    assert np.isfinite(scores.grad.asnumpy()).all() and np.isfinite(loss.asnumpy()).all()
    assert abs(scores.grad.asnumpy()[0, 0]) > 0.01  # a wrong class is still learned


def test_asymmetric_loss_refuses_an_infinite_gradient():
    with pytest.raises(ValueError, match="must be 0, or at least 1"):
        losses.Asymmetric(gamma_negative=0.5)
    with pytest.raises(ValueError, match="margin must be 0, or at least 0.000001"):
        losses.Asymmetric(margin=1e-7)
    loss = losses.Asymmetric(margin=1e-6, gamma_negative=0.0).block()(nd.full((1, 1), 100), nd.zeros((1, 1)))
    assert loss.asscalar() == pytest.approx(-np.log(1e-6), rel=0.01)


def test_smoothed_cross_entropy_equals_its_definition():
    target = 0.8 * ONE_HOT + 0.2 / 4
    expected = -(target * log_softmax()).sum(1)
    spec = losses.SoftmaxCrossEntropy(label_smoothing=0.2)
    np.testing.assert_allclose(value(spec, LABELS), expected, rtol=1e-5)
    mixed = 0.5 * ONE_HOT + 0.5 * ONE_HOT[::-1]
    expected = -((0.8 * mixed + 0.2 / 4) * log_softmax()).sum(1)
    np.testing.assert_allclose(value(spec, mixed, dense=True), expected, rtol=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_hidden_tokens_are_summed_and_counted(smoothing):
    """Positions with the label -1 have no part, not in the gradient either."""
    scores = np.random.RandomState(1).randn(3, 2, 4).astype("float32")
    labels = np.array([[0, 3], [2, -1], [-1, -1]], dtype="float32")
    array = nd.array(scores)
    array.attach_grad()
    with autograd.record():
        block = text_losses.MaskedSoftmaxCrossEntropy(label_smoothing=smoothing).build(4, True)
        found, weight = block(array, nd.array(labels))
    found.backward()
    log_p = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
    one = -(1 - smoothing) * log_p - smoothing * log_p.mean(-1, keepdims=True)
    np.testing.assert_allclose(found.asnumpy(), [one[0, 0, 0] + one[0, 1, 3], one[1, 0, 2], 0], rtol=1e-5)
    assert block.weighted and weight.asnumpy().tolist() == [2, 1, 0]
    assert not array.grad.asnumpy()[labels < 0].any() and array.grad.asnumpy()[labels >= 0].any()


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_tokens_of_translations_are_smoothed_over_the_vocabulary(smoothing):
    """The cross entropy with a target of which a share is spread evenly, padding left out, against NumPy."""
    scores, size = np.random.RandomState(1).randn(3, 4, 7), 7
    labels = np.array([[0, 3, 6, 2], [5, 1, -1, -1], [4, -1, -1, -1]])
    log_p, counts = scores - np.log(np.exp(scores).sum(-1, keepdims=True)), labels >= 0
    target = np.full(scores.shape, smoothing / size) + (1 - smoothing) * np.eye(size)[np.maximum(labels, 0)]
    np.testing.assert_allclose(target.sum(-1), 1)
    wanted = -((target * log_p).sum(-1) * counts).sum(-1)
    own = -np.take_along_axis(log_p, np.maximum(labels, 0)[:, :, None], axis=2)[:, :, 0] * counts
    given = [nd.array(array) for array in (own, -log_p.mean(-1) * counts, labels, np.ones(3))]
    spec = text_losses.LabelSmoothedCrossEntropy(label_smoothing=smoothing)
    found, weight = spec.build(size, True)(*given)
    np.testing.assert_allclose(found.asnumpy(), wanted, rtol=1e-5)
    assert weight.asnumpy().tolist() == [4, 2, 1]
    np.testing.assert_allclose(spec.build(size, False)(*given)[0].asnumpy(), own.sum(-1), rtol=1e-5)


def test_running_text_counts_only_tokens_with_a_target():
    given = [nd.array([[1.0, 2.0, 4.0], [8.0, 0.0, 0.0]]), nd.array([[0, 3, 6], [5, -1, -1]]), nd.ones((2,))]
    loss, weight = text_losses.TokenCrossEntropy().build(7, True)(*given)
    assert loss.asnumpy().tolist() == [7, 8] and weight.asnumpy().tolist() == [3, 1]


class Target(gluon.HybridBlock):
    """A user's loss of indices, which is -score of the class."""

    def hybrid_forward(self, F, scores, label):
        return -F.pick(scores, label, axis=-1)


class Plain(gluon.Block):
    """A loss that cannot be hybridized."""

    def forward(self, scores, label):
        assert label.shape == scores.shape[:1]
        return -nd.pick(scores, label, axis=-1)


class Mean(gluon.HybridBlock):
    def hybrid_forward(self, F, scores, label):
        return F.mean(F.pick(scores, label))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "target, arguments, expected",
    [
        (gluon.loss.SoftmaxCrossEntropyLoss, {}, lambda: -log_softmax()[range(6), LABELS.astype(int)]),
        (gluon.loss.SoftmaxCELoss, {"weight": 2.0}, lambda: -2 * log_softmax()[range(6), LABELS.astype(int)]),
        (Target, {}, lambda: -SCORES[range(6), LABELS.astype(int)]),
        (Plain, {}, lambda: -SCORES[range(6), LABELS.astype(int)]),
    ],
)
def test_own_loss_receives_class_indices(target, arguments, expected, training):
    """Gluon's losses take class indices, too."""
    spec = CustomLoss(target=target, arguments=arguments)
    block = spec.build(4, training)
    spec.check(block, (2, 4))
    block.hybridize()
    np.testing.assert_allclose(block(nd.array(SCORES), nd.array(LABELS)).asnumpy(), expected(), rtol=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_dense_labels_are_probabilities(smoothing):
    """One-hot, smoothed while training, and as they come where samples are mixed."""
    spec = CustomLoss(
        target=gluon.loss.SoftmaxCrossEntropyLoss,
        arguments={"sparse_label": False},
        dense_labels=True,
        label_smoothing=smoothing,
    )
    spec.check(spec.build(4, True), (2, 4))
    smoothed = (1 - smoothing) * ONE_HOT + smoothing / 4
    np.testing.assert_allclose(value(spec, LABELS), -(smoothed * log_softmax()).sum(1), rtol=1e-5)
    np.testing.assert_allclose(value(spec, LABELS, training=False), -(ONE_HOT * log_softmax()).sum(1), rtol=1e-5)
    mixed = 0.5 * ONE_HOT + 0.5 * ONE_HOT[::-1]
    expected = -(((1 - smoothing) * mixed + smoothing / 4) * log_softmax()).sum(1)
    np.testing.assert_allclose(value(spec, mixed, dense=True), expected, rtol=1e-5)


@pytest.mark.parametrize(
    "spec, words",
    [
        (CustomLoss(target=gluon.loss.L2Loss), ["mxnet.gluon.loss.L2Loss", "loss.dense_labels=true"]),
        (CustomLoss(target=gluon.loss.TripletLoss), ["mxnet.gluon.loss.TripletLoss", "fails"]),
        (CustomLoss(target=Target, dense_labels=True), ["Target", "loss.dense_labels=false"]),
        (CustomLoss(target=Mean), ["Mean", "one value per sample", ".mean(axis=1)"]),
    ],
)
def test_a_loss_that_does_not_fit_its_labels_is_refused_before_training(spec, words):
    with pytest.raises(ConfigError, match="^loss: ") as caught:
        spec.check(spec.build(4, True), (2, 4))
    assert all(word in str(caught.value) for word in words)


class Misspelt(gluon.loss.Loss):
    def __init__(self):
        super().__init__(None, 0)

    def hybrid_forward(self, F, pred, label):
        return F.log_sofmax(pred).mean(axis=1)


class Unknown(Misspelt):
    def hybrid_forward(self, F, pred, label):
        return (pred * self.alfa).mean(axis=1)


class Misshapen(Misspelt):
    def hybrid_forward(self, F, pred, label):
        return (pred + label).mean(axis=1)


@pytest.mark.parametrize("target, said", [(Misspelt, "has no attribute 'log_sofmax'"), (Unknown, "'alfa'")])
def test_error_in_an_own_loss_is_reported_with_its_line(target, said):
    lines, first = inspect.getsourcelines(target.hybrid_forward)
    spec = CustomLoss(target=target)
    with pytest.raises(ConfigError, match=f"fails: AttributeError: .*{said}.* \\({__file__}:{first + 1}\\)\\.$"):
        spec.check(spec.build(4, True), (2, 4))


def test_shapes_that_do_not_fit_are_answered_with_the_other_kind_of_labels():
    spec = CustomLoss(target=Misshapen)
    with pytest.raises(ConfigError, match=r"Type loss.dense_labels=true if it takes probabilities \(one-hot\)\.$"):
        spec.check(spec.build(4, True), (2, 4))
