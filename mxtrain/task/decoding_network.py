"""A separate network for step-by-step decoding, which shares the weights that a strategy has placed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Dict, Mapping, Optional

if TYPE_CHECKING:
    from mxnet import Context
    from mxnet.ndarray import NDArray

    from mxtrain.parallel.base import Strategy


class DecodingNetwork:
    """A network on one device for inference during training, independent of how the strategy places the trained
    network.

    It has no gradients. It shares the weights of the strategy, and copies only those on other devices.

    Args:
        build: function that builds a network with the structure of the trained one, uninitialized.
        widths: `model.widths` of the description.
        strategy: holds the weights.

    Attributes:
        device: device of the network.
        max_positions: number of positions of the network; None = unlimited.
    """

    def __init__(self, build: Callable[[], Any], widths: Mapping[str, int], strategy: Strategy) -> None:
        from mxtrain.model.parameters import distinct_parameters
        from mxtrain.model.widths import set_widths

        self._strategy = strategy
        self.device: Context = strategy.layout.devices[0][0]
        self._network = build()
        if widths:
            set_widths(self._network, widths)
        self._parameters = distinct_parameters(self._network)
        self._read: Dict[str, NDArray] = {}
        self.max_positions: Optional[int] = getattr(self._network, "max_positions", None)

    def current(self) -> Any:
        """Returns the network with the current weights. Training must not run while it is used."""
        from mxtrain.engine.gluon_parameters import exchange

        for name, parameter in self._parameters.items():
            array = self._strategy.values[name].as_in_context(self.device)
            if self._read.get(name) is not array:  # otherwise it already is the array that training updates
                exchange(parameter, array, "null")
                self._read[name] = array
        return self._network
