from __future__ import annotations

import functools
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from mxtrain.engine import backend, native
from mxtrain.engine.backend import MAX_ARRAYS_PER_CHECK, all_finite, nd


@pytest.mark.parametrize("count", [0, 1, MAX_ARRAYS_PER_CHECK, MAX_ARRAYS_PER_CHECK + 1, 2 * MAX_ARRAYS_PER_CHECK + 1])
def test_all_finite_takes_any_number_of_arrays(count):
    """MXNet's operator aborts the process for 201."""
    arrays = [nd.ones((3,)) for _ in range(count)]
    assert all_finite(arrays)
    if count:
        arrays[-1][1] = float("nan")
        assert not all_finite(arrays)


def test_threads_share_one_operator_library(monkeypatch: Any) -> None:
    """MXNet loads a library once: a thread that tried it, too, would compute with other operators than the others."""
    asked = []

    def slow_library() -> native.Library:
        asked.append(threading.get_ident())
        time.sleep(0.05)
        return native.Library(None, f"answer {len(asked)}")

    monkeypatch.setattr(native, "library", slow_library)
    monkeypatch.setattr(backend, "_native_operators", functools.cache(backend._native_operators.__wrapped__))
    with ThreadPoolExecutor(3) as pool:
        found = [future.result() for future in [pool.submit(backend.native_operators) for _ in range(3)]]
    assert len(asked) == 1 and {one.why for one in found} == {"answer 1"}
