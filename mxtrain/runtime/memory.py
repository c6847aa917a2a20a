"""Finds the memory that this process may use, so that settings that need more are rejected before work starts."""

from __future__ import annotations

import ctypes
import os
import re
import resource
from pathlib import Path
from typing import Iterator

ROOT = Path("/")
LIMITS = ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Files with the memory limit of a container: of control groups version 2 and version 1."""


ARRAY_BYTES = 1 << 20
"""Smallest array whose memory `return_freed_memory` makes malloc return. With 64 KiB peaks are 1 % lower."""
_M_MMAP_THRESHOLD = -3  # malloc.h


def usable_memory(root: Path = ROOT) -> int:
    """Returns the memory of the machine in bytes, or the limit of the process or its container if that is smaller."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *_container_limits(root)]
    address_space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if address_space != resource.RLIM_INFINITY:
        # Batch systems limit the address space (ulimit -v), which malloc meets before the memory of the machine.
        limits.append(address_space)
    return min(limits)


def resident_memory() -> int:
    """Returns the resident memory of this process in bytes; 0 if the system does not report it."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return 0


def peak_memory() -> int:
    """Returns the peak resident memory of this process in bytes; 0 if it is unknown."""
    try:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    except OSError:
        return 0
    return 1024 * int(found[1]) if found else 0


def return_freed_memory() -> None:
    """Makes malloc return freed arrays to the system at once.

    By default glibc keeps freed arrays of up to 32 MiB in its heap, where smaller ones that live longer fragment it:
    see the dynamic threshold in the manual of mallopt(3). MXNet's CPU arrays come from malloc, and oneDNN's copies in
    other layouts are allocated in every step. Other C libraries are left as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, ARRAY_BYTES)


def trim_memory() -> None:
    """Returns the memory that malloc holds free to the system, once, where one phase of a program follows another.

    Unlike `return_freed_memory` it costs later allocations nothing. Other C libraries are left as they are.
    """
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)


def _container_limits(root: Path) -> Iterator[int]:
    for name in LIMITS:
        try:
            yield int((root / name).read_text())
        except (OSError, ValueError):
            continue  # no limit ("max"), or another version


def shown_size(size: float) -> str:
    """Formats a number of bytes for display, e.g. `1.5 GiB`."""
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:,.4g} GiB"
