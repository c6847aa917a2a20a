"""Large pages for the memory that MXNet computes in.

MXNet asks the C library for each array, and the kernel hands that out in pages of 4 KiB: a network of gigabytes has a
million of them, more than a processor keeps the addresses of. Where transparent huge pages are on request ("madvise",
the default of most distributions), the kernel joins the pages of a range into pages of 2 MiB when asked to.

Source: Linux, Documentation/admin-guide/mm/transhuge.rst; madvise(2).
"""

from __future__ import annotations

import ctypes
import re
import resource
import threading
import time
from pathlib import Path
from typing import Iterator, Tuple

ENABLED = Path("/sys/kernel/mm/transparent_hugepage/enabled")
MAPS = Path("/proc/self/maps")
SIZE = 2 << 20
FIRST_S, LONGEST_S = 2.0, 60.0
"""Seconds until new memory is looked for first, and at most between two looks: each wait is twice the last."""
_MADV_HUGEPAGE, _MADV_COLLAPSE = 14, 25
_ANONYMOUS = re.compile(r"([0-9a-f]+)-([0-9a-f]+) rw-p \S+ \S+ 0 *(\[heap\])?$", re.M)


def on_request(enabled: Path = ENABLED) -> bool:
    """Returns True if the kernel gives large pages only to processes that ask."""
    try:
        return "[madvise]" in enabled.read_text()
    except OSError:
        return False


def join_pages() -> int:
    """Joins the pages of this process's private memory, where it spans whole large ones. Returns their bytes.

    Blocks for about a second per gigabyte that is joined for the first time; other threads continue. Memory freed
    meanwhile is skipped. Linux before 6.1 only remembers the wish, for memory that is used later.
    """
    libc = ctypes.CDLL(None)
    libc.madvise.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
    joined = 0
    for begin, end in _ranges():
        if libc.madvise(begin, end - begin, _MADV_HUGEPAGE) == 0:
            libc.madvise(begin, end - begin, _MADV_COLLAPSE)
            joined += end - begin
    return joined


def keep_joining() -> bool:
    """Starts a thread that joins pages now and then; False if the kernel does not join pages on request."""
    if not on_request():
        return False
    threading.Thread(target=_keep_joining, name="mxtrain-huge-pages", daemon=True).start()
    return True


def _keep_joining() -> None:
    wait_s = FIRST_S
    while True:
        time.sleep(wait_s)
        join_pages()
        wait_s = min(2 * wait_s, LONGEST_S)


def _ranges() -> Iterator[Tuple[int, int]]:
    """(begin, end) of each range of private memory that spans whole large pages; stacks of threads are left out."""
    stack = resource.getrlimit(resource.RLIMIT_STACK)[0]
    for words in _ANONYMOUS.findall(MAPS.read_text()):
        begin, end = int(words[0], 16), int(words[1], 16)
        first, last = -(-begin // SIZE) * SIZE, end // SIZE * SIZE
        if last > first and not stack - SIZE < end - begin <= stack:
            yield first, last
