"""Many processes, many machines: who they are, how they are started, and what happens when one of them dies."""

from mxtrain.cluster.spec import Cluster

__all__ = ["Cluster"]
