"""Several networks of one training loop as one block, so that they are placed, saved and resumed together."""

from __future__ import annotations

from typing import Any, Mapping

from mxtrain.engine.backend import gluon


class NetworkGroup(gluon.HybridBlock):
    """Networks by name, each an attribute; parameters are called `<name>.<parameter>`. It is not called itself.

    Args:
        networks: blocks whose parameters have shapes.
    """

    def __init__(self, networks: Mapping[str, gluon.Block]):
        super().__init__()
        self.names = list(networks)
        for name, network in networks.items():
            setattr(self, name, network)

    def hybrid_forward(self, F: Any, *inputs: Any) -> Any:
        """Returns the first input: a trace of the group has no operators."""
        return F.identity(inputs[0])
