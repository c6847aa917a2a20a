"""A network of its own for whoever asks it token by token, with the weights that a strategy has placed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Optional

if TYPE_CHECKING:
    from mxnet import Context

    from mxtrain.parallel.base import Strategy


class OwnNetwork:
    """A network on one device, whatever the strategy made of the one that is trained.

    Args:
        build: makes it, uninitialised, with the same structure.
        strategy: has the weights.

    Attributes:
        device: where it is.
        longest: tokens that it can see at a time; None: any number.
    """

    def __init__(self, build: Callable[[], Any], strategy: Strategy) -> None:
        from mxtrain.engine.backend import autograd

        self._strategy = strategy
        self.device: Context = strategy.layout.devices[0][0]
        with autograd.pause():
            self._network = build()
            self._network.initialize(ctx=self.device)
        self.longest: Optional[int] = getattr(self._network, "longest", None)

    def current(self) -> Any:
        """The network with the weights of the moment, which training changes."""
        from mxtrain.model.prepare import distinct_parameters

        for name, parameter in distinct_parameters(self._network).items():
            parameter.set_data(self._strategy.values[name].as_in_context(self.device))
        return self._network
