"""Replicas of a pipeline."""

from __future__ import annotations

from mxtrain.parallel.base import Microbatched, Replicated


class Hybrid(Replicated, Microbatched):
    """Several copies of the network, each spread over devices that work at the same time."""
