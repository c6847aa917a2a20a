"""Joins the pages of MXNet's memory into huge pages of 2 MiB.

MXNet allocates arrays with the C library, in pages of 4 KiB. Gigabytes have a million of these, more than a processor
keeps the addresses of. If the kernel uses transparent huge pages only on request ("madvise", the default of most
distributions), madvise(2) joins the pages of a range.

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
FIRST_WAIT_S, LONGEST_WAIT_S = 2.0, 60.0
"""Seconds before pages are joined for the first time, and the longest interval; intervals double each time."""
_MADV_HUGEPAGE, _MADV_COLLAPSE = 14, 25
_ANONYMOUS = re.compile(r"([0-9a-f]+)-([0-9a-f]+) rw-p \S+ \S+ 0 *(\[heap\])?$", re.M)


def is_madvise(enabled: Path = ENABLED) -> bool:
    """Returns True if the kernel uses huge pages only for memory for which `madvise` requests them."""
    try:
        return "[madvise]" in enabled.read_text()
    except OSError:
        return False


def join_pages() -> int:
    """Joins the pages of this process's private memory into huge pages; returns the size of the joined ranges in bytes.

    Blocks for about a second per gigabyte that is joined for the first time; other threads continue. Memory freed
    meanwhile is skipped. Linux before 6.1 only records the request, for memory that is used later.
    """
    libc = ctypes.CDLL(None)
    libc.madvise.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]
    joined_bytes = 0
    for begin, end in _ranges():
        if libc.madvise(begin, end - begin, _MADV_HUGEPAGE) == 0:
            libc.madvise(begin, end - begin, _MADV_COLLAPSE)
            joined_bytes += end - begin
    return joined_bytes


def keep_joining() -> bool:
    """Starts a thread that joins new pages periodically. Returns False if the kernel does not join pages on request."""
    if not is_madvise():
        return False
    threading.Thread(target=_keep_joining, name="mxtrain-huge-pages", daemon=True).start()
    return True


def _keep_joining() -> None:
    wait_s = FIRST_WAIT_S
    while True:
        time.sleep(wait_s)
        join_pages()
        wait_s = min(2 * wait_s, LONGEST_WAIT_S)


def _ranges() -> Iterator[Tuple[int, int]]:
    """Yields (begin, end) of each range of private memory with whole huge pages, without the stacks of threads."""
    stack = resource.getrlimit(resource.RLIMIT_STACK)[0]
    for words in _ANONYMOUS.findall(MAPS.read_text()):
        begin, end = int(words[0], 16), int(words[1], 16)
        first, last = -(-begin // SIZE) * SIZE, end // SIZE * SIZE
        if last > first and not stack - SIZE < end - begin <= stack:
            yield first, last
