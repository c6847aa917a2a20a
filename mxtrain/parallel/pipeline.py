"""Pipeline parallelism: one copy of the network, spread over devices that work on different microbatches."""

from __future__ import annotations

from mxtrain.parallel.base import Microbatched


class Pipeline(Microbatched):
    """The network's layers on several devices that work at the same time."""
