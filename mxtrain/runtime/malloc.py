"""Memory that is freed stays with the process, to be given out again. No MXNet here.

MXNet 1.9.1 allocates what an operator converts for itself (a gradient in oneDNN's own layout) anew each time on a CPU.
glibc takes pieces of that size from the kernel and gives them back when they are freed, so each of their pages is
zeroed and mapped again in every step. docs/decisions/0019 has what it costs.
"""

from __future__ import annotations

import ctypes
import os
from typing import Mapping

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
LARGEST_THRESHOLD = 32 << 20
"""Bytes: the most that glibc takes for M_MMAP_THRESHOLD, half of what one of its heaps may hold."""
NEVER = 2**31 - 1


def keep_freed(environ: Mapping[str, str] = os.environ) -> bool:
    """Pieces of up to 32 MiB come from memory that the process keeps, from now on and in all threads.

    Returns:
        Whether it is so; False where the user has set glibc's own variables, or another allocator is used.
    """
    if any(name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in environ):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, LARGEST_THRESHOLD) and mallopt(_M_TRIM_THRESHOLD, NEVER))
