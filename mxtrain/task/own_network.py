"""A network on one device that has the weights of a strategy, for predictions that are made token by token."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mxnet import gluon

    from mxtrain.parallel.base import Strategy


class OwnNetwork:
    """A network that is asked beside the one that is trained, wherever that one's stages are.

    Args:
        network: with the same parameters, uninitialised.
        strategy: has the weights.
    """

    def __init__(self, network: gluon.Block, strategy: Strategy) -> None:
        from mxtrain.engine.backend import autograd

        self.network, self.device, self._strategy = network, strategy.layout.devices[0][0], strategy
        with autograd.pause():
            network.initialize(ctx=self.device)

    def current(self) -> gluon.Block:
        """The network with the weights of the moment."""
        from mxtrain.model.prepare import distinct_parameters

        for name, parameter in distinct_parameters(self.network).items():
            parameter.set_data(self._strategy.values[name].as_in_context(self.device))
        return self.network
