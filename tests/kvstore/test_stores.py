"""MXNet's stores as a sum over replicas."""

import numpy as np
import pytest

from mxtrain.engine.backend import mx, nd
from mxtrain.errors import ConfigError
from mxtrain.kvstore import NCCL, Device, Local
from mxtrain.parallel.base import Reduction


def reductions(replicas, seed, shapes=((3, 4), (5,), (2, 2, 2))):
    rng = np.random.RandomState(seed)
    return [
        Reduction(str(i), [nd.array(rng.randn(*shape), ctx=mx.cpu(r)) for r in range(replicas)], i % replicas)
        for i, shape in enumerate(shapes)
    ]


def refill(made, seed):
    for old, new in zip(made, reductions(len(made[0].replicas), seed)):
        for a, b in zip(old.replicas, new.replicas):
            b.copyto(a)


@pytest.mark.parametrize("replicas", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", [Local, Device])
def test_the_owner_gets_the_sum_in_every_step(kind, replicas):
    store, made = kind().build(), reductions(replicas, 0)
    for seed in range(3):
        refill(made, seed)
        wanted = [np.sum([array.asnumpy() for array in one.replicas], axis=0, dtype=np.float64) for one in made]
        store.reduce(made)
        for one, value in zip(made, wanted):
            np.testing.assert_allclose(one.replicas[one.owner].asnumpy(), value, rtol=1e-6, atol=1e-6)


def test_the_sum_of_two_is_exact():
    for kind in (Local, Device):
        made = reductions(2, 1)
        wanted = [one.replicas[0].asnumpy() + one.replicas[1].asnumpy() for one in made]
        kind().build().reduce(made)
        for one, value in zip(made, wanted):
            np.testing.assert_array_equal(one.replicas[one.owner].asnumpy(), value)


def test_2bit_sends_thresholds_and_keeps_the_rest_for_later():
    store, made = Device(compression="2bit", threshold=0.5).build(), reductions(2, 0)
    left = [[np.zeros(array.shape, np.float32) for array in one.replicas] for one in made]
    for seed in range(4):
        refill(made, seed)
        wanted = []
        for one, rest in zip(made, left):
            wish = [array.asnumpy() + over for array, over in zip(one.replicas, rest)]
            sent = [0.5 * ((value >= 0.5).astype(np.float32) - (value <= -0.5)) for value in wish]
            rest[:] = [value - part for value, part in zip(wish, sent)]
            wanted.append(sum(sent))
        store.reduce(made)
        for one, value in zip(made, wanted):
            np.testing.assert_allclose(one.replicas[one.owner].asnumpy(), value, atol=1e-6)


def test_what_cannot_work_is_refused():
    with pytest.raises(ConfigError, match="built without NCCL"):
        NCCL().build()
    assert "NVIDIA GPUs only" in NCCL().reason_against("cpu:2")
    assert "kvstore.threshold" in Device(compression="2bit").reason_against("auto")
    assert "links between GPUs" in Device(tree=True).reason_against("cpu:2")
