"""Work in threads with results in input order, so that output files do not depend on the number of threads."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Callable, Deque, Iterable, Iterator, TypeVar

_AHEAD = 2
"""Maximum number of waiting and finished pieces of work per thread."""
Item = TypeVar("Item")
Result = TypeVar("Result")


def map_in_order(function: Callable[[Item], Result], items: Iterable[Item], num_threads: int) -> Iterator[Result]:
    """Yields the results of a function that releases the GIL, in the order of its inputs; computes a few ahead."""
    pool = ThreadPoolExecutor(num_threads, thread_name_prefix="prepare")
    waiting: Deque[Future[Result]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(function, item))
            # The bound keeps memory from growing where writing is slower than computing.
            if len(waiting) >= _AHEAD * num_threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
