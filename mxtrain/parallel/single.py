"""Everything on one device."""

from __future__ import annotations

from mxtrain.parallel.base import Parallel


class Single(Parallel):
    """One device."""
