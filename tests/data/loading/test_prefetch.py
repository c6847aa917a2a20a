import gc
import threading
import time

import pytest

from mxtrain.data.loading.prefetch import prefetch


def num_threads():
    return sum(thread.name == "mxtrain-prefetch" for thread in threading.enumerate())


@pytest.mark.parametrize("depth", [0, 1, 5])
def test_items_are_in_order(depth):
    assert list(prefetch(lambda: (i for i in range(20)), depth)) == list(range(20))
    assert num_threads() == 0


@pytest.mark.parametrize("depth", [0, 2])
def test_error_is_raised_at_its_item(depth):
    def produce():
        yield 1
        raise OSError("disk on fire")

    items = prefetch(produce, depth)
    assert next(items) == 1
    with pytest.raises(OSError, match="disk on fire"):
        next(items)
    assert num_threads() == 0


@pytest.mark.parametrize("end", ["close", "forget", "raise"])
def test_the_thread_ends_with_its_reader(end):
    closed = []

    def produce():
        try:
            while True:
                yield 0
        finally:
            closed.append(True)

    items = prefetch(produce, 2)
    next(items)
    assert num_threads() == 1
    if end == "close":
        items.close()
    elif end == "forget":
        del items
        gc.collect()
    else:
        with pytest.raises(ZeroDivisionError):
            for _ in items:
                raise ZeroDivisionError
        items.close()
    assert num_threads() == 0 and closed


def test_at_most_depth_items_are_prefetched():
    made = []

    def produce():
        for i in range(10):
            made.append(i)
            yield i

    items = prefetch(produce, 2)
    next(items)
    time.sleep(0.3)
    assert len(made) <= 4  # one taken, two waiting, one in hand
    items.close()
