"""Copies arrays to a GPU asynchronously, through buffers of page-locked (pinned) memory. Imports MXNet.

A copy from pageable memory blocks until it is done. Allocating page-locked memory blocks until the GPU is idle, so a
few buffers are allocated once and reused.

MXNet allocates and frees page-locked memory for each array. Four buffers per type and power of two are kept; writing to
one waits for the copies that still read it.
"""

from __future__ import annotations

import logging
import threading
from typing import Dict, List, Optional, Tuple

import numpy as np

from mxtrain.engine.backend import autograd, mx, nd

BUFFERS = 4
"""Number of buffers of each dtype and size: the next copy waits for the first of this many pending ones."""


class Staging:
    """Staging buffers for one device. Thread-safe.

    MXNet's engine keeps a buffer from being overwritten too early: writing to it waits for earlier copies from it. If
    there is no page-locked memory, arrays are copied without it, and a warning is logged once.

    Args:
        memory: context of the buffers; `cpu_pinned` is page-locked if MXNet was built for GPUs.
        device: target of the copies.
        count: number of buffers for each dtype and size.
    """

    def __init__(self, memory: mx.Context, device: mx.Context, count: int = BUFFERS):
        self._memory, self._device, self._count = memory, device, count
        self._rings: Dict[Tuple[str, int], List[nd.NDArray]] = {}
        self._turns: Dict[Tuple[str, int], int] = {}
        self._lock = threading.Lock()
        self.is_refused = False
        """True if the last allocation of such memory failed."""

    def copy(self, array: np.ndarray) -> nd.NDArray:
        """Copies an array to the device asynchronously. The caller may change `array` after the return."""
        if not array.size:
            return nd.empty(array.shape, ctx=self._device, dtype=array.dtype)
        # A copy within a recorded step would become a part of the graph.
        with self._lock, autograd.pause():
            buffer = self._next(array.dtype, array.size)
            if buffer is None:
                return copy_and_wait(array, self._device)
            part = buffer[: array.size].reshape(array.shape)
            part._sync_copyfrom(np.ascontiguousarray(array))
            return part.copyto(self._device)

    @property
    def num_bytes(self) -> int:
        """Returns the size of all buffers."""
        return sum(buffer.size * np.dtype(buffer.dtype).itemsize for ring in self._rings.values() for buffer in ring)

    def _next(self, dtype: np.dtype, size: int) -> Optional[nd.NDArray]:
        """Returns a flat buffer of at least this size, or None if none can be allocated.

        Sizes are powers of two, so that batches of different lengths share buffers.
        """
        key = (np.dtype(dtype).name, 1 << max(size - 1, 0).bit_length())
        ring = self._rings.setdefault(key, [])
        if len(ring) < self._count and not self.is_refused:
            try:
                ring.append(nd.empty((key[1],), ctx=self._memory, dtype=dtype))
                return ring[-1]
            except mx.MXNetError as error:
                self.is_refused = True
                logging.getLogger(__name__).warning(
                    "There is no (more) page-locked memory for batches to %s, so that copying them takes longer: %s",
                    self._device,
                    str(error).strip().splitlines()[-1],
                )
        if not ring:
            return None
        self._turns[key] = (self._turns.get(key, -1) + 1) % len(ring)
        return ring[self._turns[key]]


def copy_and_wait(array: np.ndarray, device: mx.Context) -> nd.NDArray:
    """Returns the array on the device; the copy is complete on return."""
    # Not nd.from_numpy: without a copy, MXNet calls back into Python to free the array, even at interpreter exit.
    # Not nd.array: it does the same as this, with twice the Python around it.
    result = nd.empty(array.shape, ctx=device, dtype=array.dtype)
    result._sync_copyfrom(np.ascontiguousarray(array))
    return result
