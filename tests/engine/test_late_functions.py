"""Functions made of source text are compiled at their first call and are otherwise unchanged."""

from __future__ import annotations

import builtins
import inspect
import threading
from typing import Any, Callable

import pytest

from mxtrain.engine.late_functions import compiled_late

FACTOR = 2
SOURCE = '''
def scaled(value, more=1, **rest):
    """Of the source."""
    return value * FACTOR + more, rest
'''


def build_function(source: str, name: str = "scaled") -> Callable[..., Any]:
    local: dict = {}
    exec(source, None, local)
    local[name].__doc__ = "given"
    return local[name]


def make_now(source: str, name: str = "scaled") -> Callable[..., Any]:
    local: dict = {}
    exec(source, None, local)
    return local[name]


def test_a_function_compiles_itself_when_it_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    with compiled_late(["build_function"]):
        late = build_function(SOURCE)
    assert list(inspect.signature(late).parameters) == ["args", "kwargs"] and late.__name__ == "scaled"
    held = late
    monkeypatch.setitem(globals(), "FACTOR", 10)
    assert late(3, other=5) == (31, {"other": 5})
    assert list(inspect.signature(held).parameters) == ["value", "more", "rest"]
    assert held(3, 4) == (34, {}) and held(value=1, more=0) == (10, {}) and held.__doc__ == "given"
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'value'"):
        late()


def test_other_executed_code_is_unchanged() -> None:
    real = builtins.exec
    with compiled_late(["build_function"]):
        assert list(inspect.signature(make_now(SOURCE)).parameters) == ["value", "more", "rest"]
        names: dict = {}
        exec("a = 1", names)
        exec("b = a", names, names)
        assert (names["a"], names["b"]) == (1, 1)
        assert build_function("scaled = lambda: 3")() == 3
        exec("globals()['_left'] = FACTOR")
        assert globals().pop("_left") == FACTOR
    assert builtins.exec is real


def test_threads_may_call_it_for_the_first_time_at_once() -> None:
    for _ in range(50):
        with compiled_late(["build_function"]):
            late = build_function(SOURCE)
        start, found = threading.Barrier(4), []

        def call(late: Any = late, start: Any = start, found: Any = found) -> None:
            start.wait()
            found.extend(late(number) for number in range(20))

        threads = [threading.Thread(target=call) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(found) == sorted([(number * FACTOR + 1, {}) for number in range(20)] * 4)


def test_mxnets_operators_are_compiled_late_and_work() -> None:
    """Another operator than tests use is still waiting; each kind that MXNet generates works."""
    from mxtrain.engine.backend import mx, nd

    assert list(inspect.signature(mx.sym.khatri_rao).parameters) == ["args", "kwargs"]
    assert nd.relu(nd.array([1, -1])).asnumpy().tolist() == [1, 0]
    assert list(inspect.signature(nd.relu).parameters)[0] == "data"
    assert nd.concat(nd.ones((1,)), nd.zeros((1,)), dim=0).asnumpy().tolist() == [1, 0]
    assert mx.sym.concat(mx.sym.var("a"), mx.sym.var("b"), dim=0, name="joined").list_arguments() == ["a", "b"]
    assert mx.np.tanh(mx.np.zeros((2,))).asnumpy().tolist() == [0, 0]
    out = nd.zeros((2,))
    assert nd.random.uniform(shape=(2,), out=out) is out and "Computes" in nd.relu.__doc__
