"""Losses of metric learning against their formulas in NumPy, pair by pair, and gradients against differences."""

from __future__ import annotations

import math
from typing import Any, Callable, Tuple

import numpy as np
import pydantic
import pytest
from low_precision import needs_bfloat16

from mxtrain.amp.spec import FULL, BFloat16
from mxtrain.engine.backend import autograd, gluon, mx, nd
from mxtrain.errors import ConfigError
from mxtrain.metric.meter import Meter
from mxtrain.model.prepare import initialize
from mxtrain.parallel.objective import Objective
from mxtrain.parallel.spec import Single
from mxtrain.training.network import hybridize
from mxtrain.types import Batch
from mxtrain.vision.metric_learning.losses import ArcFace, CosFace, SubCentreArcFace, Triplet
from mxtrain.vision.networks.insightface import build_iresnet

B, K, D = 6, 5, 4
CLASS = np.array([0, 1, 2, 3, 4, 1])
COSINE = np.random.RandomState(0).uniform(-0.95, 0.95, (B, K))
# An own angle of each kind: near 0, acute, obtuse, and so large that the angle with the margin exceeds pi.
COSINE[np.arange(B), CLASS] = [0.99, 0.6, -0.3, -0.97, 0.2, -0.99]


def computed(loss: Any, first: np.ndarray, classes: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    """Loss of each sample as training computes it, and the gradient of the mean over the weights."""
    block = loss.build(K, True)
    block.hybridize()
    array = nd.array(first)
    array.attach_grad()
    arrays = (nd.zeros((len(first), D)), array) if loss.uses_centres else (array,)
    with autograd.record():
        found = block(*arrays, nd.array(classes))
        loss_B, weight_B = found if loss.weighted else (found, nd.ones(len(first)))
        mean = loss_B.sum() / nd.maximum(weight_B.sum(), loss.least_weight)
    mean.backward()
    return loss_B.asnumpy(), array.grad.asnumpy()


def differences(function: Callable[[np.ndarray], float], point: np.ndarray, step: float = 1e-6) -> np.ndarray:
    """Central differences in float64."""
    gradient = np.zeros_like(point)
    for index in np.ndindex(*point.shape):
        moved = [point.copy(), point.copy()]
        moved[0][index] += step
        moved[1][index] -= step
        gradient[index] = (function(moved[0]) - function(moved[1])) / (2 * step)
    return gradient


def arc(margin: float, form: str, cosine: float) -> float:
    angle = math.acos(cosine)
    if form == "easy" and angle >= math.pi / 2:
        return cosine
    if form == "monotone" and angle + margin >= math.pi:
        return cosine - margin * math.sin(margin)
    return math.cos(angle + margin)


def cross_entropy(change: Callable[[float], float], scale: float, cosine: np.ndarray) -> np.ndarray:
    losses = []
    for row, own in zip(cosine, CLASS):
        logits = [scale * (change(value) if number == own else value) for number, value in enumerate(row)]
        losses.append(math.log(sum(math.exp(logit - max(logits)) for logit in logits)) + max(logits) - logits[own])
    return np.array(losses)


CENTRE_LOSSES = [
    (ArcFace(scale=4.0, form="plain"), lambda c: arc(0.5, "plain", c)),
    (ArcFace(scale=4.0, margin=0.3), lambda c: arc(0.3, "monotone", c)),
    (ArcFace(scale=4.0, form="easy"), lambda c: arc(0.5, "easy", c)),
    (ArcFace(scale=4.0, margin=0.3, form="plain", cosine_margin=0.2), lambda c: arc(0.3, "plain", c) - 0.2),
    (CosFace(scale=4.0, margin=0.4), lambda c: c - 0.4),
]


@pytest.mark.parametrize("loss,change", CENTRE_LOSSES)
def test_losses_of_cosines_equal_their_formulas(loss: Any, change: Callable[[float], float]) -> None:
    found, gradient = computed(loss, COSINE, CLASS)
    np.testing.assert_allclose(found, cross_entropy(change, 4.0, COSINE), rtol=2e-5)
    expected = differences(lambda cosine: cross_entropy(change, 4.0, cosine).mean(), COSINE)
    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=2e-6)


def test_defaults_are_those_of_insightface() -> None:
    assert (ArcFace().scale, ArcFace().margin, CosFace().scale, CosFace().margin) == (64.0, 0.5, 64.0, 0.35)
    assert (ArcFace().sub_centres, SubCentreArcFace().sub_centres, Triplet().margin) == (1, 3, 0.3)


@pytest.mark.parametrize("loss", [ArcFace(), ArcFace(form="plain"), ArcFace(form="easy"), CosFace()])
@pytest.mark.parametrize("own", [1.0, -1.0, 1.0 + 2e-7, -1.0 - 2e-7])
def test_parallel_vectors_have_finite_losses_and_bounded_gradients(loss: Any, own: float) -> None:
    cosine = np.array([[own, 0.99, -1.0, 1.0, 0.0]])
    found, gradient = computed(loss, cosine, np.array([0]))
    assert np.isfinite(found).all() and np.isfinite(gradient).all() and np.abs(gradient).max() < 1e5


def test_arc_face_of_a_sampled_set_of_centres_takes_k_from_the_array() -> None:
    full, _ = computed(ArcFace(), COSINE, CLASS)
    padded, _ = computed(ArcFace(), np.concatenate([COSINE, np.full((B, 3), -1.0)], 1), CLASS)
    np.testing.assert_allclose(padded, full, rtol=1e-5)


UNIT = np.random.RandomState(1).randn(7, D)
UNIT /= np.linalg.norm(UNIT, axis=1, keepdims=True)
IDENTITY = np.array([0, 0, 0, 1, 1, 2, 1])  # 2 has no second sample


def hard_triplets(margin: float, squared: bool, embedding: np.ndarray, identity: np.ndarray) -> Tuple[list, list]:
    losses, weights = [], []
    for anchor, own in enumerate(identity):
        distance = [((embedding[anchor] - other) ** 2).sum() ** (1.0 if squared else 0.5) for other in embedding]
        positives = [d for i, d in enumerate(distance) if identity[i] == own and i != anchor]
        negatives = [d for i, d in enumerate(distance) if identity[i] != own]
        weights.append(float(bool(positives and negatives)))
        losses.append(max(0.0, margin + max(positives) - min(negatives)) if weights[-1] else 0.0)
    return losses, weights


@pytest.mark.parametrize("squared", [False, True])
def test_triplet_takes_the_hardest_pairs_of_the_batch(squared: bool) -> None:
    loss = Triplet(margin=0.4, squared=squared)
    found, gradient = computed(loss, UNIT, IDENTITY)
    losses, weights = hard_triplets(0.4, squared, UNIT, IDENTITY)
    np.testing.assert_allclose(found, losses, atol=1e-5)
    assert weights == [1, 1, 1, 1, 1, 0, 1] and 0 < np.count_nonzero(losses) < 7

    def mean(embedding: np.ndarray) -> float:
        # With the identity |a|^2 = |b|^2 = 1 in it, as in the loss: the gradient along a vector itself differs.
        return sum(hard_triplets(0.4, squared, embedding, IDENTITY)[0]) / 6

    def tangent(gradient: np.ndarray) -> np.ndarray:
        return gradient - (gradient * UNIT).sum(1, keepdims=True) * UNIT

    np.testing.assert_allclose(tangent(gradient), tangent(differences(mean, UNIT)), atol=1e-4)


def test_positives_may_be_closer_than_all_negatives() -> None:
    close = np.array([[1.0, 0, 0], [0.8, 0.6, 0], [0, 0, 1.0], [0, 0.6, 0.8]])
    found, _ = computed(Triplet(margin=1.0, squared=True), close, np.array([0, 0, 1, 1]))
    np.testing.assert_allclose(found, [0.0, 1 + 0.4 - 1.28, 0.0, 1 + 0.4 - 1.28], atol=1e-5)


@pytest.mark.parametrize("identity,weight", [([0, 0, 0], [0, 0, 0]), ([0, 1, 2], [0, 0, 0]), ([0, 0, 1], [1, 1, 0])])
def test_samples_without_a_pair_have_no_weight(identity: Any, weight: Any) -> None:
    loss_B, weight_B = Triplet().build(K, True)(nd.array(UNIT[:3]), nd.array(identity))
    assert weight_B.asnumpy().tolist() == weight and (loss_B.asnumpy()[np.array(weight) == 0] == 0).all()


def test_equal_embeddings_have_finite_gradients() -> None:
    found, gradient = computed(Triplet(), np.repeat(UNIT[:1], 4, 0), np.array([0, 0, 1, 1]))
    np.testing.assert_allclose(found, 0.3, atol=1e-5)
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize("kind", [ArcFace, CosFace, SubCentreArcFace, Triplet])
def test_label_smoothing_is_refused(kind: Any) -> None:
    with pytest.raises(ConfigError, match="label_smoothing=0.1: .* smooths nothing"):
        kind(label_smoothing=0.1)


@pytest.mark.parametrize(
    "make", [lambda: ArcFace(margin=3.2), lambda: ArcFace(margin=-0.1), lambda: ArcFace(scale=0.0)]
)
def test_wrong_margins_are_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(pydantic.ValidationError):
        make()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["arcface", "cosface"])
def test_losses_equal_insightfaces_in_pytorch(name: str) -> None:
    """insightface, recognition/arcface_torch/losses.py (commit 443c28fa), with its scale 64.

    Its ArcFace computes the angle outside of autograd, so the gradient of the formula is taken with the angle inside;
    insightface's own is checked to be that of the cosine itself.
    """
    torch = pytest.importorskip("torch")
    cosine = torch.tensor(COSINE, dtype=torch.float64, requires_grad=True)
    rows, classes = torch.arange(B), torch.tensor(CLASS)

    def loss_of(changed: Any) -> Any:
        logits = cosine.clone()
        logits[rows, classes] = changed
        return torch.nn.functional.cross_entropy(64 * logits, classes, reduction="none")

    own = cosine[rows, classes]
    if name == "arcface":
        loss: Any = ArcFace(form="plain")
        expected = loss_of(torch.cos(torch.arccos(own) + 0.5))
        with torch.no_grad():
            passed_on = torch.cos(torch.arccos(own) + 0.5) - own
        straight = torch.autograd.grad(loss_of(own + passed_on).mean(), cosine, retain_graph=True)[0]
    else:
        loss = CosFace(margin=0.4)
        expected = loss_of(own - 0.4)
    found, gradient = computed(loss, COSINE, CLASS)
    np.testing.assert_allclose(found, expected.detach().numpy(), rtol=1e-5, atol=1e-5)
    (true_gradient,) = torch.autograd.grad(expected.mean(), cosine)
    np.testing.assert_allclose(gradient, true_gradient.numpy(), rtol=1e-4, atol=1e-4)
    if name == "arcface":
        assert (straight - true_gradient).abs().max() > 1  # the docstring tells users of it


class Normalised(gluon.HybridBlock):
    """Embeddings of length 1 of a network."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.L2Normalization(self.network(x))


@needs_bfloat16
@pytest.mark.slow
@pytest.mark.parametrize("loss", [ArcFace(), Triplet()])
def test_losses_and_gradients_in_bfloat16(loss: Any) -> None:
    """A small iresnet whose embeddings are taken for cosines: the losses themselves are computed in float32."""
    data = np.random.RandomState(0)
    pixels, classes = nd.array(data.randint(0, 256, (16, 3, 16, 16))), nd.array(data.randint(0, K, 16))
    found = {}
    for name, precision in (("full", FULL), ("low", BFloat16())):
        embedding = build_iresnet(32, (1, 1, 1, 1), "FC", False, "relu", 0.0)
        made = Normalised(embedding)
        made.initialize()
        made(pixels)
        initialize(made, "xavier", 0, mx.cpu(0))
        objective = Objective(hybridize(made), loss.build(K, True), Meter({}, K), (3, 16, 16), 16, precision)
        strategy = Single().build(objective, 1)
        strategy.forward_backward(Batch((pixels,), (classes,), 16))
        arrays = [np.sum([one.asnumpy() for one in each.replicas], axis=0) for each in strategy.reductions]
        found[name] = np.concatenate([array.ravel() for array in arrays])
    full, low = found["full"], found["low"]
    assert np.isfinite(low).all() and np.linalg.norm(full) > 0
    assert (full * low).sum() / np.linalg.norm(full) / np.linalg.norm(low) > 0.95
