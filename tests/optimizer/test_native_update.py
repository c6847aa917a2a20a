"""Updates by our own operators: one call for small arrays, which stays bound to them."""

from __future__ import annotations

from typing import Any, Dict, List, Optional

import numpy as np
import pytest

from mxtrain.engine.backend import native_operators, nd
from mxtrain.optimizer import native_update, optimizers
from mxtrain.optimizer.updater import Updater

pytestmark = pytest.mark.skipif(native_operators().path is None, reason=native_operators().why)
SHAPES = {"small": (3,), "kernel": (4, 2, 3, 3), "matrix": (60, 70), "large": (100, 100)}
KINDS = [optimizers.Adam(wd=0.1), optimizers.AdamW(wd=0.1), optimizers.SGD(wd=0.1, momentum=0.9), optimizers.SGD()]


def drawn(seed: int) -> Dict[str, nd.NDArray]:
    rng = np.random.RandomState(seed)
    return {name: nd.array(rng.randn(*shape)) for name, shape in SHAPES.items()}


def updater(spec: Any, values: Dict[str, nd.NDArray], rates: Optional[Dict[str, float]] = None) -> Updater:
    multipliers = {name: ((rates or {}).get(name, 1.0), 0.0 if name == "small" else 1.0) for name in values}
    return Updater(spec.build(steps_per_epoch=4), values, multipliers)


def calls_of(monkeypatch: Any) -> List[int]:
    """Parameters of each call from now on."""
    found: List[int] = []

    class Counted(native_update.BoundCall):
        def __call__(self, **attributes: Any) -> Any:
            found.append(attributes["size"])
            return super().__call__(**attributes)

    monkeypatch.setattr(native_update, "BoundCall", Counted)
    return found


@pytest.mark.parametrize("spec", KINDS, ids=["adam", "adamw", "momentum", "sgd"])
@pytest.mark.parametrize("rates", [None, {"matrix": 0.5}], ids=["one rate", "two rates"])
def test_small_arrays_are_updated_in_one_call_as_each_alone(spec: Any, rates: Any, monkeypatch: Any) -> None:
    calls, values, alone = calls_of(monkeypatch), drawn(0), drawn(0)
    together = updater(spec, values, rates)
    gradients = drawn(1)
    for step in range(3):
        for gradient in gradients.values():
            gradient[:] = gradient * 0.9 + step  # the same arrays in every step, as a strategy's are
        together.update(list(gradients.values()), 0.05)
    assert calls == [1, 3] * 3, "the large one by itself"
    singles = [updater(spec, {name: value}, rates) for name, value in alone.items()]
    again = drawn(1)
    for step in range(3):
        for gradient, single in zip(again.values(), singles):
            gradient[:] = gradient * 0.9 + step
            single.update([gradient], 0.05)
    for name, value in values.items():
        np.testing.assert_array_equal(value.asnumpy(), alone[name].asnumpy())


def test_other_gradients_and_other_factors_are_read() -> None:
    values, plain = drawn(0), drawn(0)
    one, other = updater(optimizers.Adam(), values), updater(optimizers.Adam(), plain)
    for step in range(4):
        factor = nd.array([0.5 + step]) if step % 2 else None
        gradients = list(drawn(10 + step).values())
        one.update(gradients, 0.01, factor)
        other.update([gradient * (0.5 + step) if step % 2 else gradient for gradient in gradients], 0.01)
    for name, value in values.items():
        np.testing.assert_array_equal(value.asnumpy(), plain[name].asnumpy())
