"""Data parallelism: replicas of the network, each with its share of every batch."""

from __future__ import annotations

from mxtrain.parallel.base import Replicated


class Data(Replicated):
    """A copy of the network on every device."""
