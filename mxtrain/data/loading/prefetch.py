"""Runs a generator in a background thread, with a bounded queue of its items."""

from __future__ import annotations

import queue
import threading
from typing import Callable, Generator, Iterator, TypeVar

from mxtrain.errors import LoaderError

Item = TypeVar("Item")
_POLL_S = 0.2
"""Seconds between checks of a blocked side whether the other has ended."""


def prefetch(produce: Callable[[], Iterator[Item]], depth: int) -> Generator[Item, None, None]:
    """Yields the items of `produce()`, computed up to `depth` items ahead in a thread.

    The thread ends after the last item, when the returned generator is closed or collected, or when `produce` fails.

    Args:
        produce: creates the iterator; called in the thread, in which a generator is also closed.
        depth: largest number of waiting items; 0: no thread, items are computed on request.

    Yields:
        The items in order.

    Raises:
        Exception: an exception of `produce`, after the items before it.
    """
    if depth == 0:
        yield from produce()
        return
    ready: queue.Queue = queue.Queue(maxsize=depth)
    stop = threading.Event()

    def put(kind: str, value: object) -> bool:
        while not stop.is_set():
            try:
                # A put without an end would keep the thread, and the arrays in it, if the consumer has gone.
                ready.put((kind, value), timeout=_POLL_S)
                return True
            except queue.Full:
                continue
        return False

    def run() -> None:
        items = produce()
        try:
            for item in items:
                if not put("item", item):
                    return
            put("end", None)
        except BaseException as error:  # the consumer raises it
            put("error", error)
        finally:
            if isinstance(items, Generator):  # so that its `finally` blocks run in this thread
                items.close()

    thread = threading.Thread(target=run, name="mxtrain-prefetch", daemon=True)
    thread.start()
    try:
        while True:
            kind, value = _take(ready, thread)
            if kind == "end":
                return
            if kind == "error":
                raise value
            yield value
    finally:
        stop.set()
        while not ready.empty():  # unblocks a producer that waits for room in the queue
            ready.get_nowait()
        # The thread may be reading files, and must not outlive the run that started it.
        thread.join()


def _take(ready: queue.Queue, thread: threading.Thread) -> tuple:
    while True:
        try:
            return ready.get(timeout=_POLL_S)
        except queue.Empty:
            if not thread.is_alive() and ready.empty():
                raise LoaderError(
                    "The thread that prepares batches ended without a word. Try dataset.prefetch=0."
                ) from None
