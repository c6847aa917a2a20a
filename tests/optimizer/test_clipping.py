"""The limit of the gradients' norm: the same bits by one operator of our own as by several, and when it computes."""

from __future__ import annotations

import numpy as np
import pytest

from mxtrain.engine.backend import mx, native_operators, nd
from mxtrain.engine.native import Library
from mxtrain.optimizer import clipping
from mxtrain.optimizer.clipping import GradientLimit, multiply, norm_and_limit

needs_own = pytest.mark.skipif(native_operators().path is None, reason=native_operators().why)


def drawn(seed: int, count: int) -> list:
    rng = np.random.RandomState(seed)
    shapes = [tuple(rng.randint(1, 40, size=rng.randint(1, 4))) for _ in range(count)]
    return [nd.array(rng.randn(*shape) * 10 ** rng.uniform(-4, 3)) for shape in shapes]


@needs_own
@pytest.mark.parametrize("count", [1, 2, 12, 61])
@pytest.mark.parametrize("max_norm", [1e-3, 7.5, 1e9])
@pytest.mark.parametrize("is_scaled", [False, True])
def test_norm_and_limit_have_the_bits_of_several_operators(count: int, max_norm: float, is_scaled: bool) -> None:
    gradients, factor = drawn(count, count), nd.array([0.37]) if is_scaled else None
    limit = GradientLimit(max_norm)
    found = limit(gradients, factor)
    assert limit._native is not None
    for one, other in zip(found, norm_and_limit(gradients, max_norm, factor)):
        np.testing.assert_array_equal(one.asnumpy(), other.asnumpy())
    squares = sum(float((gradient.asnumpy().astype(np.float64) ** 2).sum()) for gradient in gradients)
    scale = 0.37 if is_scaled else 1.0
    norm = scale * squares**0.5
    assert found[0].asscalar() == pytest.approx(norm, rel=1e-4)
    assert found[1].asscalar() == pytest.approx(scale * min(1.0, max_norm / (norm + 1e-6)), rel=1e-4)


@pytest.mark.parametrize("own", [pytest.param(True, marks=needs_own), False])
@pytest.mark.parametrize("num_devices", [1, 2])
@pytest.mark.parametrize("size", [1e-30, 1.0, 1.8e19, 1e25, 8e37])
def test_large_and_small_gradients_are_scaled_to_the_limit(
    monkeypatch: pytest.MonkeyPatch, own: bool, num_devices: int, size: float
) -> None:
    """The sum of their squares is no number of float32."""
    if not own:
        monkeypatch.setattr(clipping, "native_operators", lambda: Library(None, "none"))
    values = [np.array([3.0, -1.0]) * size, np.array([[1.0], [2.0]]) * size]
    gradients = [nd.array(value, ctx=mx.cpu(n % num_devices), dtype="float32") for n, value in enumerate(values)]
    norm, factor = GradientLimit(0.5)(gradients)
    expected = np.sqrt(sum((value**2).sum() for value in values))
    assert norm.asscalar() == pytest.approx(expected, rel=1e-6)
    multiply(gradients, factor)
    length = min(0.5, expected)
    for gradient, value in zip(gradients, values):
        np.testing.assert_allclose(gradient.asnumpy(), value * (length / expected), rtol=2e-6)


@pytest.mark.parametrize("own", [pytest.param(True, marks=needs_own), False])
def test_finite_gradients_with_infinite_norm_do_not_become_0(monkeypatch: pytest.MonkeyPatch, own: bool) -> None:
    if not own:
        monkeypatch.setattr(clipping, "native_operators", lambda: Library(None, "none"))
    gradients = [nd.array([3e38, -3e38, 1.5e38])]
    norm, factor = GradientLimit(1.0)(gradients)
    multiply(gradients, factor)
    assert np.isinf(norm.asscalar())
    np.testing.assert_allclose(gradients[0].asnumpy(), np.array([3.0, -3.0, 1.5]) / 3.4028, rtol=1e-4)


@needs_own
@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0, 1e30])
def test_nan_is_propagated(value: float) -> None:
    gradients = [nd.array([value, 0.0]), nd.array([[0.0]])]
    for one, other in zip(GradientLimit(1.0)(gradients), norm_and_limit(gradients, 1.0)):
        np.testing.assert_array_equal(one.asnumpy(), other.asnumpy())


@needs_own
def test_norm_of_an_earlier_call_is_not_overwritten() -> None:
    limit, gradients = GradientLimit(1.0), [nd.array([3.0, 4.0])]
    norm, _ = limit(gradients)
    gradients[0][:] = 1.0
    assert limit(gradients)[0].asscalar() == pytest.approx(2**0.5) and norm.asscalar() == 5.0
    assert limit([nd.array([6.0, 8.0])])[0].asscalar() == 10.0
    assert limit(gradients, nd.array([2.0]))[0].asscalar() == pytest.approx(2 * 2**0.5)
    assert limit(gradients, nd.array([3.0]))[0].asscalar() == pytest.approx(3 * 2**0.5)


def test_gradients_in_float64_and_on_several_devices_are_for_several_operators() -> None:
    two = [nd.array([3.0], ctx=mx.cpu(0)), nd.array([4.0], ctx=mx.cpu(1))]
    for gradients in (two, [nd.array([3.0, 4.0], dtype="float64")]):
        limit = GradientLimit(1.0)
        norm, factor = limit(gradients)
        assert limit._native is None and norm.asscalar() == 5.0
        assert factor.asscalar() == pytest.approx(0.2, rel=1e-6)
