"""Cuts a batch into shares of replicas, parts and microbatches."""

from __future__ import annotations

from typing import Iterator

from mxtrain.kvstore.world import bounds
from mxtrain.types import Batch


def split(batch: Batch, num_parts: int) -> Iterator[Batch]:
    """Yields at most `num_parts` parts of a batch, as views, whose sizes differ by at most one."""
    num_parts = min(num_parts, batch.size)
    if num_parts == 1:
        yield batch
        return
    for part in range(num_parts):
        begin, end = bounds(batch.size, num_parts, part)
        yield batch.slice(begin, end)
