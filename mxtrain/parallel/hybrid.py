"""Replicas of a pipeline."""

from __future__ import annotations

from mxtrain.parallel.base import Pipelined, Replicated


class Hybrid(Replicated, Pipelined):
    """Several copies of the network, each spread over devices that work at the same time."""
