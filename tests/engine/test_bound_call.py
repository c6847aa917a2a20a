"""An operator bound to its arrays."""

from __future__ import annotations

import numpy as np
import pytest

from mxtrain.engine.backend import mx, nd
from mxtrain.engine.bound_call import BoundCall


def test_each_call_reads_and_writes_the_arrays_as_they_are() -> None:
    first, second, out = nd.array([1.0, 2.0]), nd.array([10.0, 20.0]), nd.zeros(2)
    call = BoundCall("elemwise_add", [first, second], [out])
    assert call()[0] is out and out.asnumpy().tolist() == [11, 22]
    first[:] = 5
    call()
    assert out.asnumpy().tolist() == [15, 25]
    other, elsewhere = nd.array([1.0, 1.0]), nd.zeros(2)
    call.read(1, other)
    call.write(0, elsewhere)
    call()
    assert elsewhere.asnumpy().tolist() == [6, 6] and out.asnumpy().tolist() == [15, 25]


def test_attributes_match_the_call() -> None:
    array = nd.array([1.0, -4.0, 9.0])
    call = BoundCall("clip", [array], [array])
    call(a_min=-2.0, a_max=5.0)
    assert array.asnumpy().tolist() == [1, -2, 5]
    call(a_min=0, a_max=2)
    np.testing.assert_array_equal(array.asnumpy(), [1, 0, 2])


def test_invalid_arguments_raise_an_error() -> None:
    with pytest.raises(mx.MXNetError):
        BoundCall("elemwise_add", [nd.zeros(2), nd.zeros(3)], [nd.zeros(2)])()
    with pytest.raises(mx.MXNetError):
        BoundCall("no_such_operator", [nd.zeros(2)], [nd.zeros(2)])
