"""A network of its own for whoever asks it token by token, with the weights that a strategy has placed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Dict, Mapping, Optional

if TYPE_CHECKING:
    from mxnet import Context
    from mxnet.ndarray import NDArray

    from mxtrain.parallel.base import Strategy


class OwnNetwork:
    """A network on one device, whatever the strategy made of the one that is trained. It learns nothing, so it has no
    gradients; and it shares weights, and copies only the ones on another device.

    Args:
        build: makes it, uninitialised, with the same structure.
        widths: `model.widths` of its description.
        strategy: has the weights.

    Attributes:
        device: device of the network.
        longest: tokens that it can see at a time; None: any number.
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
        self.longest: Optional[int] = getattr(self._network, "longest", None)

    def current(self) -> Any:
        """Returns the network with the weights of the moment, which training changes. Do not train while it is used."""
        from mxtrain.engine.gluon_parameters import exchange

        for name, parameter in self._parameters.items():
            array = self._strategy.values[name].as_in_context(self.device)
            if self._read.get(name) is not array:  # else it is what training writes to
                exchange(parameter, array, "null")
                self._read[name] = array
        return self._network
