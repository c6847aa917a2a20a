"""Runs one microbatch forward through pieces of a network, and backward.

piece -> tensor -> a variable of the next piece's graph ... its gradient -> head gradient of the piece that made it
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Collection, Dict, List, Sequence, Tuple

from mxtrain.engine.backend import nd
from mxtrain.parallel.cut import Tensor
from mxtrain.parallel.stage import to_device

if TYPE_CHECKING:
    from mxnet import Context


class Tape:
    """Tensors between pieces, each of which records a separate autograd graph.

    Args:
        inputs: input tensors of the network.
        values: arrays of the input tensors.
        without_gradient: tensors whose gradient is not needed.
    """

    def __init__(
        self,
        inputs: Sequence[Tensor],
        values: Sequence[nd.NDArray],
        without_gradient: Collection[Tensor],
    ):
        self._values: Dict[Tensor, nd.NDArray] = dict(zip(inputs, values))
        self._entered: Dict[int, List[Tuple[Tensor, nd.NDArray]]] = {}
        self._gradients: Dict[Tensor, List[nd.NDArray]] = {}
        self._without_gradient = without_gradient

    def bring(self, tensors: Sequence[Tensor], device: Context) -> List[nd.NDArray]:
        """Returns the inputs of a piece that is not recorded, on its device. See `enter`."""
        # A tensor that stays on its device keeps its memory layout, as in a network that is not cut there.
        return [to_device(self._values[tensor], device) for tensor in tensors]

    def enter(self, number: int, tensors: Sequence[Tensor], device: Context) -> List[nd.NDArray]:
        """Returns the inputs of piece `number`, on its device.

        Must be called outside of `autograd.record`: a recorded copy would join two pieces into one graph, and MXNet
        runs backward through a graph only once.
        """
        inputs = self.bring(tensors, device)
        entered = self._entered[number] = []
        for tensor, array in zip(tensors, inputs):
            if tensor not in self._without_gradient:
                array.attach_grad()
                entered.append((tensor, array))
        return inputs

    def leave(self, tensors: Sequence[Tensor], outputs: Sequence[nd.NDArray]) -> None:
        """Keeps the outputs of a piece."""
        self._values.update(zip(tensors, outputs))

    def heads(self, tensors: Sequence[Tensor]) -> Tuple[List[nd.NDArray], List[nd.NDArray]]:
        """Returns the outputs of a piece for which gradients have come back, and these gradients. Each is returned
        once."""
        outputs = {tensor: self._values[tensor] for tensor in tensors if tensor in self._gradients}
        gradients = self.take_gradients(tensors)
        return [outputs[tensor] for tensor in gradients], list(gradients.values())

    def take_gradients(self, tensors: Sequence[Tensor]) -> Dict[Tensor, nd.NDArray]:
        """Returns the gradients that have come back for the outputs of a piece, each once. Frees these outputs."""
        gradients = {}
        for tensor in tensors:
            if tensor not in self._gradients:
                continue
            device = self._values.pop(tensor).context
            parts = [to_device(gradient, device) for gradient in self._gradients.pop(tensor)]
            # Several later pieces may have read the tensor (a skip connection over a cut), each with a gradient of its
            # own.
            gradients[tensor] = parts[0] if len(parts) == 1 else nd.add_n(*parts)
        return gradients

    def keep_input_gradients(self, number: int) -> None:
        """Keeps the gradients of the inputs of piece `number`, after its backward pass."""
        for tensor, value in self._entered.pop(number):
            self._gradients.setdefault(tensor, []).append(value.grad)


class HeadGradients:
    """The gradients that backward begins with: scale / global batch for each sample, made once per size and device."""

    def __init__(self) -> None:
        self.scale = 1.0
        self._known: Dict[Tuple[int, int, Context, float], nd.NDArray] = {}

    def __call__(self, loss_B: nd.NDArray, size: int, global_batch_size: int) -> nd.NDArray:
        key = (size, global_batch_size, loss_B.context, self.scale)
        if key not in self._known:
            self._known[key] = nd.full((size,), self.scale / global_batch_size, ctx=loss_B.context, dtype=loss_B.dtype)
        return self._known[key]
