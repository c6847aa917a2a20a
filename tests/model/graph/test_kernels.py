"""Layers that are computed by other operators compute the same."""

import numpy as np
import pytest

from mxtrain.engine.backend import autograd, gluon, mx, nd
from mxtrain.model.graph.kernels import fill_block
from mxtrain.model.parameters import distinct_parameters


def layer_of(channels, is_filled, **options):
    layer = gluon.nn.Conv2D(channels, 3, padding=1, prefix="conv_", **options)
    if is_filled:
        fill_block(layer)
    return layer


def computed(layer, image, head, hybrid):
    """Its values and the gradients of what it is given."""
    mx.random.seed(2)
    layer.initialize(mx.init.Uniform(1), force_reinit=True)
    layer.cast(image.dtype)
    if layer.bias is not None:
        layer.bias.initialize(mx.init.Uniform(1), force_reinit=True)
    layer.hybridize(hybrid)
    image.attach_grad()
    with autograd.record():
        made = layer(image)
    made.backward(head)
    parameters = layer.collect_params().values()
    return [made.asnumpy(), image.grad.asnumpy(), *(one.grad().asnumpy() for one in parameters)]


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("options", [{}, {"use_bias": False}, {"activation": "relu", "strides": 2}])
def test_a_convolution_with_filled_blocks_computes_the_same(options, hybrid):
    draw = np.random.RandomState(0)
    image = nd.array(draw.randn(2, 16, 6, 6), dtype="float64")
    side = 3 if "strides" in options else 6
    head = nd.array(draw.randn(2, 21, side, side), dtype="float64")
    found, wanted = (computed(layer_of(21, filled, **options), image, head, hybrid) for filled in (True, False))
    assert len(found) == len(wanted) == (3 if "use_bias" in options else 4)
    for one, other in zip(found, wanted):
        assert abs(other).max() > 1
        np.testing.assert_allclose(one, other, atol=1e-12)


@pytest.mark.parametrize("channels, filters", [(84, 96), (24, 32), (16, 16), (3, 3)])
def test_filters_are_filled_up_to_a_multiple_of_sixteen_but_not_for_less_than_half(channels, filters):
    layer = layer_of(channels, True)
    nodes = [node for node in layer(mx.sym.var("data")).get_internals() if node.list_attr().get("num_filter")]
    assert [int(node.list_attr()["num_filter"]) for node in nodes] == [filters]
    assert list(distinct_parameters(layer)) == ["weight", "bias"] and layer.weight.shape[0] == channels
