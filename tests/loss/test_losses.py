import inspect

import numpy as np
import pytest

from mxtrain.backend import autograd, gluon, nd
from mxtrain.loss import losses

KINDS = [c for _, c in inspect.getmembers(losses, inspect.isclass) if issubclass(c, losses.Loss)]
ALL = [c for c in KINDS if c is not losses.Loss and not c.of_positions]
SCORES = np.random.RandomState(0).randn(6, 4).astype("float32")
LABELS = np.array([0, 1, 2, 3, 1, 1], dtype="float32")
ONE_HOT = np.eye(4, dtype="float32")[LABELS.astype(int)]


def value(spec, labels, training=True, dense=False):
    block = spec.build(4, training)
    block.dense = dense
    block.hybridize()
    return block(nd.array(SCORES), nd.array(labels)).asnumpy()


def log_softmax():
    return SCORES - np.log(np.exp(SCORES).sum(1, keepdims=True))


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


def test_softmax_cross_entropy_is_gluons():
    gluons = gluon.loss.SoftmaxCrossEntropyLoss()(nd.array(SCORES), nd.array(LABELS)).asnumpy()
    np.testing.assert_allclose(value(losses.SoftmaxCrossEntropy(), LABELS), gluons, rtol=1e-6)


def test_smoothed_cross_entropy_equals_its_definition():
    target = 0.8 * ONE_HOT + 0.2 / 4
    expected = -(target * log_softmax()).sum(1)
    spec = losses.SoftmaxCrossEntropy(label_smoothing=0.2)
    np.testing.assert_allclose(value(spec, LABELS), expected, rtol=1e-5)
    mixed = 0.5 * ONE_HOT + 0.5 * ONE_HOT[::-1]
    expected = -((0.8 * mixed + 0.2 / 4) * log_softmax()).sum(1)
    np.testing.assert_allclose(value(spec, mixed, dense=True), expected, rtol=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_hidden_tokens_count_alike_within_their_sample(smoothing):
    """Positions with the label -1 have no part, not in the gradient either."""
    scores = np.random.RandomState(1).randn(3, 2, 4).astype("float32")
    labels = np.array([[0, 3], [2, -1], [-1, -1]], dtype="float32")
    array = nd.array(scores)
    array.attach_grad()
    with autograd.record():
        found = losses.MaskedSoftmaxCrossEntropy(label_smoothing=smoothing).build(4, True)(array, nd.array(labels))
    found.backward()
    log_p = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
    one = -(1 - smoothing) * log_p - smoothing * log_p.mean(-1, keepdims=True)
    np.testing.assert_allclose(found.asnumpy(), [(one[0, 0, 0] + one[0, 1, 3]) / 2, one[1, 0, 2], 0], rtol=1e-5)
    assert not array.grad.asnumpy()[labels < 0].any() and array.grad.asnumpy()[labels >= 0].any()
