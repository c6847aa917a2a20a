"""Finds how much memory this process may ever have, so that what cannot fit is refused before anything is started."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Iterator

ROOT = Path("/")
LIMITS = ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Memory limits of the control group that a container shows as its own, versions 2 and 1."""


def usable_memory(root: Path = ROOT) -> int:
    """Returns bytes of the machine, or the limit of the process or its container if that is smaller."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *_container_limits(root)]
    address_space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if address_space != resource.RLIM_INFINITY:
        limits.append(address_space)
    return min(limits)


def resident_memory() -> int:
    """Bytes that this process has in memory; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
        return 0


def _container_limits(root: Path) -> Iterator[int]:
    for name in LIMITS:
        try:
            yield int((root / name).read_text())
        except (OSError, ValueError):
            continue  # there is none: "max", or no such version


def shown_size(size: float) -> str:
    """Bytes for people, e.g. `1.5 GiB`."""
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.4g} {unit}"
        size /= 1024
    return f"{size:,.4g} GiB"
