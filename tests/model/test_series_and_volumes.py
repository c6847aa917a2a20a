"""Networks of series and volumes: layouts of oneDNN that a validation leaves, and batch norms behind convolutions."""

import numpy as np
import pytest

import mxtrain
from mxtrain.engine.array_layout import restore_layout
from mxtrain.engine.backend import autograd, gluon, nd
from mxtrain.model.graph.kernels import normalise_as_images

nn = gluon.nn
SERIES, VOLUME, IMAGE = (4, 12), (2, 6, 7, 8), (3, 9, 12)


def network_of(*layers):
    network = nn.HybridSequential()
    network.add(*layers)
    return network


@pytest.mark.slow
@pytest.mark.parametrize("layer, shape", [(nn.Conv1D, SERIES), (nn.Conv3D, VOLUME)])
def test_weights_can_be_written_after_inference(layer, shape) -> None:
    network = network_of(layer(16, 3))
    network.initialize()
    network.hybridize(static_alloc=True)
    weight = network[0].weight
    for _ in range(2):
        network(nd.ones((2, *shape))).wait_to_read()
        before = weight.data().asnumpy()
        restore_layout([weight.data()])
        np.testing.assert_array_equal(weight.data().asnumpy(), before)
        nd.sgd_update(weight.data(), nd.ones(weight.shape), lr=0.5, out=weight.data())
        np.testing.assert_allclose(weight.data().asnumpy(), before - 0.5, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("placement", [(), ("parallel=data", "parallel.devices=cpu:2")])
@pytest.mark.parametrize(
    "layers, shape",
    [
        (lambda: (nn.Conv1D(16, 3), nn.BatchNorm(), nn.Activation("relu"), nn.GlobalMaxPool1D()), SERIES),
        (lambda: (nn.Conv3D(8, 3, activation="relu"), nn.MaxPool3D(2)), VOLUME),
    ],
)
def test_training_continues_after_validations(layers, shape, placement, tmp_path) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, *shape)).astype("float32"), rng.integers(0, 2, 40)
    network = network_of(*layers(), nn.Dense(2))
    run = mxtrain.train("trainer.max_epochs=4", "logger=[]", *placement, model=network, dataset=(x, y), dir=tmp_path)
    assert run.state == "finished" and len(run.metrics) == 4


@pytest.mark.parametrize(
    "convolution, shape, axis",
    [
        (nn.Conv1D, SERIES, 1),
        (nn.Conv3D, VOLUME, 1),
        (nn.Conv2D, IMAGE, 3),
        (nn.Conv2D, IMAGE, 2),
        (nn.Conv1D, SERIES, 2),
    ],
)
def test_batch_norm_behind_a_convolution(convolution, shape, axis) -> None:
    """Output, statistics and gradient of the shift against NumPy, in three steps with inference between them."""
    network = network_of(convolution(16, 3), nn.BatchNorm(axis=axis, momentum=0.5), convolution(4, 2))
    network.initialize()
    network(nd.ones((2, *shape)))
    normalise_as_images(network, shape)
    network.hybridize(static_alloc=True)
    seen = network_of(network[0])
    x = nd.array(np.random.default_rng(0).normal(size=(5, *shape)))
    norm, mean, variance = network[1], 0.0, 1.0
    for _ in range(3):
        with autograd.record():
            y = network(x)
        y.backward()
        h = seen(x).asnumpy()
        others = tuple(number for number in range(h.ndim) if number != axis)
        mean, variance = 0.5 * mean + 0.5 * h.mean(others), 0.5 * variance + 0.5 * h.var(others)
        np.testing.assert_allclose(norm.running_mean.data().asnumpy(), mean, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(norm.running_var.data().asnumpy(), variance, rtol=1e-4)
        broad = [-1 if number == axis else 1 for number in range(h.ndim)]
        expected = (h - mean.reshape(broad)) / np.sqrt(variance.reshape(broad) + 1e-5)
        np.testing.assert_allclose(norm(nd.array(h)).asnumpy(), expected, rtol=1e-3, atol=1e-4)
    # Ones leave the second convolution: the gradient of the shift sums its weights over all of their positions.
    weight, windows = network[2].weight.data().asnumpy(), np.prod(y.shape[2:]) * y.shape[0]
    if axis == 1:
        found, expected = norm.beta.grad().asnumpy(), windows * weight.sum((0, *range(2, weight.ndim)))
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-2)


def test_norms_of_images_stay_as_they_are() -> None:
    network = network_of(nn.Conv2D(4, 3), nn.BatchNorm(), nn.Flatten(), nn.Dense(3), nn.BatchNorm())
    normalise_as_images(network, IMAGE)
    assert not any("hybrid_forward" in vars(block) for block in network)
