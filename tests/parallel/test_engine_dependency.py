"""Later operations wait for a backward pass that writes more than MXNet's engine knows."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from mxtrain.engine.backend import mx, nd
from mxtrain.parallel.engine_dependency import EngineDependency


def memory_of(array: nd.NDArray) -> np.ndarray:
    """Returns the current bytes of an array, without waiting for the engine."""
    pointer = ctypes.c_void_p()
    mx.base.check_call(mx.base._LIB.MXNDArrayGetData(array.handle, ctypes.byref(pointer)))
    return np.ctypeslib.as_array(ctypes.cast(pointer, ctypes.POINTER(ctypes.c_float)), array.shape)


@pytest.mark.slow
def test_a_fence_of_one_device_leaves_the_other_alone():
    """The other one's array is still being written, and is not waited for: what follows the dependency here is done."""
    devices = [mx.cpu(0), mx.cpu(1)]
    first, second = (nd.full((3,), 5, ctx=device) for device in devices)
    large = nd.ones((1000, 1000), ctx=devices[1])
    nd.waitall()
    shown, product = memory_of(second), large
    for _ in range(30):
        product = nd.dot(product, product) * 1e-3
    nd.broadcast_add(product[0, :3] * 0, nd.full((3,), 7, ctx=devices[1]), out=second)
    EngineDependency([first, second], [])(devices[0])
    first.wait_to_read()
    assert (shown == 5).all()
    second.wait_to_read()
    assert (shown == 7).all()


@pytest.mark.slow
def test_readers_of_statistics_wait_for_gradients_of_their_device():
    devices = [mx.cpu(0), mx.cpu(1)]
    statistics = [nd.full((3,), 5, ctx=device) for device in devices for _ in range(2)]
    gradients = [nd.zeros((3,), ctx=device) for device in devices]
    shown = [memory_of(gradient) for gradient in gradients]
    large = [nd.ones((1000, 1000), ctx=device) for device in devices]
    nd.waitall()
    dependency = EngineDependency(statistics, [gradients[0], gradients[0], gradients[1], gradients[1]])
    for gradient, product in zip(gradients, large):
        for _ in range(30):
            product = nd.dot(product, product) * 1e-3
        nd.broadcast_add(product[0, :3] * 0, nd.full((3,), 7, ctx=gradient.context), out=gradient)
    assert not any(one.any() for one in shown)  # it takes its time
    dependency()
    for device in range(2):
        statistics[2 * device + 1].wait_to_read()
        assert (shown[device] == 7).all()
    assert all((one.asnumpy() == 5).all() for one in statistics)
