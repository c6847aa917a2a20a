"""Attributions: maps and sums against NumPy, chosen and refused layers, shown samples."""

from __future__ import annotations

from typing import Any, Tuple

import numpy as np
import pytest

from mxtrain.engine.backend import autograd, gluon, mx, nd
from mxtrain.errors import ConfigError
from mxtrain.task.explained import Explained
from mxtrain.training.attribution import (
    MAX_STEPS,
    TOLERANCE,
    LargestLosses,
    build_method,
    explain,
    find_layer,
    find_layers,
)
from mxtrain.types import Batch

nn = gluon.nn
SHAPE = (2, 6, 6)


def small_network(seed: int = 0) -> Any:
    """Convolution, batch norm with statistics of its own, ReLU, overlapping max pooling, and scores of 3 classes."""
    network = nn.HybridSequential()
    network.add(
        nn.Conv2D(4, 3, padding=1, in_channels=2),
        nn.BatchNorm(in_channels=4),
        nn.Activation("relu"),
        nn.MaxPool2D(3, 2, 1),
        nn.Flatten(),
        nn.Dense(3, in_units=36),
    )
    network.initialize(mx.init.Normal(0.5))
    rng = np.random.RandomState(seed)
    for parameter in network.collect_params().values():
        # Variances and scales stay above 0.
        drawn = rng.rand(*parameter.shape) + 0.5 if parameter.name.endswith(("var", "gamma")) else None
        parameter.set_data(nd.array(rng.randn(*parameter.shape) if drawn is None else drawn))
    network.hybridize()
    return network


def batch_of(image_BCHW: np.ndarray) -> Batch:
    return Batch((nd.array(image_BCHW),), (), len(image_BCHW), index_B=np.arange(len(image_BCHW)))


def likeliest(outputs: Tuple[Any, ...], batch: Batch) -> Explained:
    predicted_B = outputs[0].argmax(axis=-1)
    names = [f"{int(k)}" for k in predicted_B.asnumpy()]
    return Explained(
        lambda given: nd.pick(given[0], predicted_B), names, names, np.ones(batch.size), np.ones(batch.size, bool)
    )


def found_by(method: Any, image_BCHW: np.ndarray) -> Any:
    return explain(batch_of(image_BCHW), range(100, 200), method, likeliest)


def after_convolution(network: Any, map_Chw: np.ndarray) -> np.ndarray:
    """Scores, from the convolution's output on, in float64."""
    _, norm, _, _, _, dense = network
    gamma, beta, mean, var = (
        p.data().asnumpy().astype(np.float64)[:, None, None]
        for p in (norm.gamma, norm.beta, norm.running_mean, norm.running_var)
    )
    norm_Chw = np.maximum((map_Chw - mean) / np.sqrt(var + 1e-5) * gamma + beta, 0)
    padded = np.pad(norm_Chw, ((0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
    pooled = np.array(
        [[padded[:, 2 * y : 2 * y + 3, 2 * x : 2 * x + 3].max(axis=(1, 2)) for x in range(3)] for y in range(3)]
    )
    return dense.weight.data().asnumpy() @ pooled.transpose(2, 0, 1).ravel() + dense.bias.data().asnumpy()


@pytest.mark.slow
def test_grad_cam_equals_finite_differences() -> None:
    """Looks at a layer before batch norm, ReLU and max pooling, whose gradients differ between inference and training;
    the network was hybridized and called in both modes before."""
    network = small_network(seed=5)
    image_BCHW = 3 * np.random.RandomState(1).randn(5, *SHAPE)
    with autograd.record():
        network(nd.array(image_BCHW))
    scores_BK = network(nd.array(image_BCHW)).asnumpy()
    map_BChw = network[0](nd.array(image_BCHW)).asnumpy().astype(np.float64)
    found = found_by(build_method("grad_cam", network, "0", SHAPE), image_BCHW)
    for one, score_K, map_Chw in zip(found, scores_BK, map_BChw):
        predicted = int(score_K.argmax())
        assert after_convolution(network, map_Chw)[predicted] == pytest.approx(score_K[predicted], abs=1e-4)
        gradient_Chw = np.zeros_like(map_Chw)
        for place in np.ndindex(*map_Chw.shape):
            step = np.zeros_like(map_Chw)
            step[place] = 1e-6
            up, down = (after_convolution(network, map_Chw + sign * step)[predicted] for sign in (1, -1))
            gradient_Chw[place] = (up - down) / 2e-6
        weight_C = gradient_Chw.mean(axis=(1, 2))
        expected = np.maximum((weight_C[:, None, None] * map_Chw).sum(axis=0), 0)
        np.testing.assert_allclose(one.heat_hw, expected, rtol=1e-4, atol=1e-3)
        assert one.score == pytest.approx(score_K[predicted], abs=1e-5) and one.predicted == str(predicted)
    assert [one.index for one in found] == [100, 101, 102, 103, 104] and len({one.predicted for one in found}) > 1


def test_integrated_gradients_add_up_to_the_difference_of_the_scores() -> None:
    network = small_network(seed=2)
    image_BCHW = np.random.RandomState(3).randn(6, *SHAPE)
    whole_BK, baseline_K = network(nd.array(image_BCHW)).asnumpy(), network(nd.zeros((1, *SHAPE))).asnumpy()[0]
    found = found_by(build_method("integrated_gradients", network, "auto", SHAPE), image_BCHW)
    for one, score_K in zip(found, whole_BK):
        difference = score_K.max() - baseline_K[score_K.argmax()]
        assert one.heat_hw.shape == SHAPE[1:] and one.facts["steps"] >= 16
        assert one.heat_hw.sum() == pytest.approx(difference, rel=TOLERANCE, abs=1e-6)
        assert one.facts["error"] <= TOLERANCE
        assert one.facts["sum"] == pytest.approx(one.heat_hw.sum(), rel=1e-6)
        assert one.score - one.facts["baseline"] == pytest.approx(difference, abs=1e-4)


def test_attributions_of_a_linear_network_are_weight_times_input() -> None:
    network = nn.Dense(3, in_units=72)
    network.initialize(mx.init.Normal(1))
    image_BCHW = np.random.RandomState(0).randn(2, *SHAPE)
    found = found_by(build_method("integrated_gradients", network, "auto", SHAPE), image_BCHW)
    for one, image_CHW in zip(found, image_BCHW):
        weight = network.weight.data().asnumpy()[int(one.predicted)].reshape(SHAPE)
        np.testing.assert_allclose(one.heat_hw, (weight * image_CHW).sum(axis=0), atol=1e-5)


class Squares(gluon.HybridBlock):
    """A sum of squares: its gradient grows evenly on the way from zeros."""

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return (x * x).sum(axis=(2, 3))


def test_attributions_of_squares_are_the_squares() -> None:
    image_BCHW = np.random.RandomState(0).randn(2, *SHAPE)
    found = found_by(build_method("integrated_gradients", WithParameter(Squares()), "auto", SHAPE), image_BCHW)
    for one, image_CHW in zip(found, image_BCHW):
        np.testing.assert_allclose(one.heat_hw, image_CHW[int(one.predicted)] ** 2, rtol=1e-4, atol=1e-6)


class Steps(gluon.HybridBlock):
    """A sum of whole numbers: its gradient is 0 wherever it has one."""

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.floor(4 * x).sum(axis=(2, 3))


def test_an_incomplete_sum_is_reported() -> None:
    (one,) = found_by(build_method("integrated_gradients", WithParameter(Steps()), "auto", SHAPE), np.ones((1, *SHAPE)))
    assert one.facts["steps"] == MAX_STEPS and one.facts["error"] == 1 and not one.heat_hw.any()


class WithParameter(gluon.HybridBlock):
    """Another block's output, and a parameter that says where the network is."""

    def __init__(self, inner: Any):
        super().__init__()
        with self.name_scope():
            self.inner = inner
            self.unused = self.params.get("unused", shape=(1,))
        self.initialize()

    def hybrid_forward(self, F: Any, x: Any, unused: Any) -> Any:
        return self.inner(x)


class Cornered(gluon.HybridBlock):
    """Looks at the top left 2 x 2 places of a convolution's output, and at nothing else."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.convolution = nn.Conv2D(3, 1, in_channels=2)
            self.corner = nn.HybridLambda(lambda F, x: x * self._mask(F, x))
            self.side = nn.Conv2D(5, 1, in_channels=2)
            self.output = nn.Dense(2, in_units=3 * 36)

    @staticmethod
    def _mask(F: Any, x: Any) -> Any:
        row = F.arange(6).reshape((1, 1, 6, 1)) < 2
        return F.broadcast_mul(row, F.transpose(row, axes=(0, 1, 3, 2))).broadcast_like(x)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        self.side(x)
        return self.output(self.corner(self.convolution(x)))


@pytest.mark.parametrize("name", ["grad_cam", "integrated_gradients"])
def test_a_network_that_looks_at_a_corner_lights_up_that_corner(name: str) -> None:
    network = Cornered()
    network.initialize(mx.init.Normal(1))
    image_BCHW = np.random.RandomState(5).randn(8, *SHAPE)
    layer = "corner" if name == "grad_cam" else "auto"
    found = found_by(build_method(name, network, layer, SHAPE), image_BCHW)
    outside = np.ones(SHAPE[1:], bool)
    outside[:2, :2] = False
    assert all(not one.heat_hw[outside].any() for one in found)
    assert sum(bool(one.heat_hw[:2, :2].any()) for one in found) >= 6  # of a map that is all below 0, nothing is left


def test_layer_without_effect_on_the_prediction_is_refused() -> None:
    network = Cornered()
    network.initialize(mx.init.Normal(1))
    with pytest.raises(ConfigError, match="explain_layer=side: nothing of what it returns reaches the prediction"):
        found_by(build_method("grad_cam", network, "side", SHAPE), np.ones((1, *SHAPE)))
    assert nd.Pooling.__module__ != "mxtrain.training.attribution" and not autograd.is_recording()


def dense_network() -> Any:
    """Maps of 6, 3 and 6 places a side, the network's own output being one; the coarsest have 8, 8 and 4 channels."""
    network = nn.HybridSequential()
    network.add(
        nn.Conv2D(16, 3, padding=1),
        nn.MaxPool2D(),
        nn.Conv2D(8, 3, padding=1),
        nn.Activation("relu"),
        nn.Conv2D(4, 1),
        nn.Conv2DTranspose(3, 2, 2),
    )
    network.initialize()
    return network


@pytest.mark.parametrize(
    "make, asked, expected",
    [(small_network, "auto", "2"), (small_network, "3", "3"), (dense_network, "auto", "3"), (dense_network, "5", "5")],
)
def test_layer_of_grad_cam(make: Any, asked: str, expected: str) -> None:
    network = make()
    network.hybridize(active=False)
    assert find_layer(network, asked, SHAPE) == expected


class TwoMaps(gluon.HybridBlock):
    """Scores of each place of a fine and of a coarse map; each place is scored from itself alone."""

    scored_maps = ("maps",)

    class Maps(gluon.HybridBlock):
        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return [x, F.Pooling(x, kernel=(3, 3), stride=(3, 3), pool_type="avg")]

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.maps = self.Maps()
            self.head = nn.Conv2D(1, 1, in_channels=2, use_bias=False)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.concat(*(F.flatten(self.head(one)) for one in self.maps(x)), dim=1)


@pytest.mark.parametrize("place", [8, 36 + 3])
def test_map_that_scores_a_detection_is_attributed(place: int) -> None:
    network = TwoMaps()
    network.initialize(mx.init.One())
    image_BCHW = np.random.RandomState(0).rand(2, *SHAPE)

    def choose(outputs: Tuple[Any, ...], batch: Batch) -> Explained:
        names = ["it"] * batch.size
        return Explained(
            lambda given: given[0][:, place],
            names,
            names,
            np.ones(batch.size),
            np.ones(batch.size, bool),
            is_of_one_place=True,
        )

    method = build_method("grad_cam", network, "auto", SHAPE)
    assert method.title == "Grad-CAM of maps"
    found = explain(batch_of(image_BCHW), range(2), method, choose)
    for one, image_CHW in zip(found, image_BCHW):
        assert one.heat_hw.shape == (6, 6)
        if place < 36:
            expected = np.zeros((6, 6))
            expected[1, 2] = image_CHW[:, 1, 2].sum()
            np.testing.assert_allclose(one.heat_hw, expected, rtol=1e-5)
        else:  # the right lower quarter, smoothly
            assert one.heat_hw.argmax() // 6 >= 4 and one.heat_hw.max() == pytest.approx(one.score, rel=1e-5)
            assert one.heat_hw[:2, :2].max() < 1e-6 and one.heat_hw[4:, 4:].min() > one.heat_hw[:3].max()


def test_a_network_names_the_maps_that_it_scores() -> None:
    assert find_layers(TwoMaps(), "auto", SHAPE) == ("maps",) and find_layers(TwoMaps(), "maps", SHAPE) == ["maps"]


@pytest.mark.parametrize(
    "asked, said",
    [
        ("6", "explain_layer=6: there is no such layer. Type auto, or e.g. 0, 1, 2, 3."),
        ("5", "explain_layer=5: its output is no map of more than one position. Type auto, or e.g. 0, 1, 2, 3."),
        ("1.", "explain_layer=1.: there is no such layer. Type auto, or e.g. 1."),
    ],
)
def test_unknown_layer_is_refused(asked: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build_method("grad_cam", small_network(), asked, SHAPE)
    assert str(caught.value) == said


def test_a_network_without_maps_is_refused() -> None:
    network = nn.HybridSequential()
    network.add(nn.Dense(4), nn.Dense(2))
    network.initialize()
    with pytest.raises(ConfigError, match="no layer .* Type explain=integrated_gradients"):
        build_method("grad_cam", network, "auto", SHAPE)


class Given:
    """An evaluator whose losses are the outputs: losses and, if there are two of them, weights."""

    def __init__(self, weighted: bool) -> None:
        self.weighted = weighted

    def losses(self, batch: Batch, outputs: Tuple[Any, ...]) -> Any:
        return list(outputs)


@pytest.mark.parametrize(
    "losses, expected",
    [
        ([[[1, 5], [3, 2, 9]]], [14, 11, 12]),
        ([[[1, float("nan")], [3, 2, 9]]], [11, 14, 12]),
        ([[[1, 5], [3, 2, 9]], [[0.1, 5], [1, 0, 9]]], [13, 10, 12]),
    ],
    ids=["plain", "not a number first", "for their weight"],
)
def test_samples_are_sorted_by_largest_loss(losses: Any, expected: Any) -> None:
    largest = LargestLosses(Given(len(losses) == 2))  # type: ignore[arg-type]
    for number, (begin, end) in enumerate(((10, 12), (12, 15))):
        batch = Batch((), (), end - begin, index_B=np.arange(begin, end))
        largest.update(batch, tuple(nd.array(kind[number]) for kind in losses))
    assert largest.indices(3) == expected
    assert len(largest.indices(99)) == 5
