"""Runs of several processes on one or many machines: launching, heartbeats, supervision and restarts."""

from mxtrain.cluster.spec import Cluster

__all__ = ["Cluster"]
