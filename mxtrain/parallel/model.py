"""Model parallelism: one copy of the network, spread over devices."""

from __future__ import annotations

from mxtrain.parallel.base import Staged


class ModelParallel(Staged):
    """The network's layers on several devices, one after the other; for networks that one device cannot hold."""
