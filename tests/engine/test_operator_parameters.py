"""Members of enums as parameters of MXNet's operators, which takes them as texts; see `plain_parameters`."""

from __future__ import annotations

import enum

import numpy as np
import pytest

from mxtrain.engine.backend import gluon, mx, nd
from mxtrain.model.graph.trace import NotTraceable, symbol_of
from mxtrain.vision.detection.boxes import Column


class Place(enum.IntEnum):
    SECOND = 1


class FromSecond(gluon.HybridBlock):
    def hybrid_forward(self, F, x):
        return F.slice_axis(x, axis=1, begin=Place.SECOND, end=None)


@pytest.mark.parametrize(
    "given",
    [
        {"axis": 0, "begin": Place.SECOND, "end": 2},
        {"axis": np.int64(0), "begin": 0, "end": Place.SECOND},
    ],
)
def test_enum_is_refused_on_every_python(given: dict) -> None:
    with pytest.raises(AssertionError, match="an operator gets <Place.SECOND: 1>"):
        nd.slice_axis(nd.arange(3), **given)
    with pytest.raises(AssertionError, match="an operator gets <Place.SECOND: 1>"):
        mx.sym.slice_axis(mx.sym.var("x"), **given)


def test_enum_in_a_shape_is_refused() -> None:
    for member in (Place.SECOND, Column.CLASS):
        with pytest.raises(AssertionError, match="before Python 3.11 its text is no number"):
            nd.reshape(nd.zeros((2, 4)), shape=(member, -1))


def test_enum_in_a_traced_network_is_refused() -> None:
    with pytest.raises(NotTraceable, match="an operator gets <Place.SECOND: 1>"):
        symbol_of(FromSecond(), training=False)


def test_named_integers_and_plain_numbers_pass() -> None:
    row = nd.arange(8).reshape((1, 8))
    assert nd.slice_axis(row, axis=1, begin=Column.CLASS, end=Column.FLAGS).asnumpy().tolist() == [[4]]
    assert nd.slice_axis(row, axis=1, begin=np.int64(6), end=None).asnumpy().tolist() == [[6, 7]]
