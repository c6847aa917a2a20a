"""Runs a whole network, or a piece of its graph, on a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Container, Dict, List, Mapping, Optional, Protocol, Sequence, Tuple, Union

from mxtrain.engine.backend import autograd, mx, nd
from mxtrain.parallel.cut import BlockSequence, Piece, Tensor, variable
from mxtrain.parallel.engine_dependency import written_together

if TYPE_CHECKING:
    from mxnet import gluon
    from mxnet.symbol import Symbol

    from mxtrain.types.annotations import Returned


class Stage(Protocol):
    """Runs a stage of the network on its device of each replica."""

    number: int
    inputs: List[Tensor]
    outputs: List[Tensor]

    def __call__(self, replica: int, inputs: Sequence[nd.NDArray]) -> List[nd.NDArray]:
        """Computes the outputs from the tensors of `self.inputs`, on the devices of one replica."""


def to_device(array: nd.NDArray, device: mx.Context) -> nd.NDArray:
    """Returns an array on a device, copied if it is on another one.

    While autograd records, the copy is part of the graph. Otherwise an array that is on the device already is returned
    as a new handle on the same memory, so that it can be a variable of another autograd graph.
    """
    if array.context != device:
        return array.as_in_context(device)
    return array if autograd.is_recording() else array.detach()


def as_list(outputs: Returned) -> List[nd.NDArray]:
    """Returns the outputs of a block as a list: it returns one array, or several."""
    return list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]


def parameters_by_full_name(network: gluon.Block) -> Dict[str, gluon.Parameter]:
    """Returns the parameters by `Parameter.name`."""
    return {parameter.name: parameter for parameter in network.collect_params().values()}


def argument_flags(names: Sequence[str], data: Container[str]) -> List[Tuple[str, Union[bool, List[int]]]]:
    """Returns the flags that tell a `CachedOp` which of its inputs are data; the others are parameters.

    Args:
        names: names of all inputs, in the order of the graph.
        data: names of the inputs that differ from call to call.
    """
    return [
        ("data_indices", [i for i, name in enumerate(names) if name in data]),
        ("param_indices", [i for i, name in enumerate(names) if name not in data]),
    ]


class WholeNetwork:
    """The whole network as one stage. It is called as its author wrote it, so it need not be traceable."""

    number = 0
    outputs: List[Tensor] = [(1, 0)]

    def __init__(self, network: gluon.Block, num_inputs: int = 1):
        self._network = network
        self.inputs: List[Tensor] = [(0, number) for number in range(num_inputs)]

    def __call__(self, replica: int, inputs: Sequence[nd.NDArray]) -> List[nd.NDArray]:
        return as_list(self._network(*inputs))


class GraphOnDevices:
    """A graph of operators that runs on one device of each replica.

    Args:
        symbol: the graph.
        inputs: names of the variables that a call is given, in order; all others are parameters.
        parameters: parameters of the network by `Parameter.name`.
        devices: device of each replica.
        flags: flags of the `CachedOp`.
        keeps_states: True to give the graph copies of its moving statistics, which it then cannot change.
        operator: `operator` of a graph that is the same but for its names; None: compiles one.
    """

    def __init__(
        self,
        symbol: Symbol,
        inputs: Sequence[str],
        parameters: Mapping[str, gluon.Parameter],
        devices: Sequence[mx.Context],
        flags: Sequence[Tuple[str, object]] = (),
        keeps_states: bool = False,
        operator: Optional[mx.nd.CachedOp] = None,
    ):
        names, states = symbol.list_inputs(), symbol.list_auxiliary_states() if keeps_states else []
        position_of = {name: position for position, name in enumerate(inputs)}
        self.operator = operator or mx.nd.CachedOp(symbol, [*argument_flags(names, position_of), *flags])
        # [replica][argument]: position of the argument in the inputs of a call, or a parameter.
        self._arguments = [
            [
                position_of[name] if name in position_of else _argument(parameters[name], device, name in states)
                for name in names
            ]
            for device in devices
        ]

    def __call__(self, replica: int, inputs: Sequence[nd.NDArray]) -> List[nd.NDArray]:
        """Returns the outputs of the graph on the device of a replica."""
        arguments = [
            inputs[argument] if isinstance(argument, int) else argument.array() for argument in self._arguments[replica]
        ]
        outputs: Union[nd.NDArray, List[nd.NDArray]] = self.operator(*arguments)
        return [outputs] if isinstance(outputs, nd.NDArray) else list(outputs)


class PieceOnDevices:
    """A stage that runs one piece of the graph, on its device of each replica.

    Args:
        piece: piece of the graph.
        network: network that owns the parameters.
        number: number of the stage.
        devices: devices, [replica][stage].
    """

    def __init__(self, piece: Piece, network: gluon.Block, number: int, devices: List[List[mx.Context]]):
        self.number, self.inputs, self.outputs = number, piece.inputs, piece.outputs
        flags: List[Tuple[str, object]] = []
        # The backward of additions alone fails under static memory: MXNet leaves its storage type unknown.
        if not piece.kinds <= {"elemwise_add"}:
            flags.append(("static_alloc", True))
            # Only statistics protected by an `EngineDependency` may stay in their arrays between passes.
            if set(piece.symbol.list_auxiliary_states()) <= set(written_together(network)):
                flags.append(("static_shape", True))
        names = [variable(tensor) for tensor in piece.inputs]
        on_stage = [stages[number] for stages in devices]
        self._graph = GraphOnDevices(piece.symbol, names, parameters_by_full_name(network), on_stage, flags)

    def __call__(self, replica: int, inputs: Sequence[nd.NDArray]) -> List[nd.NDArray]:
        """Computes the outputs from the tensors of `self.inputs`, on the devices of one replica."""
        return self._graph(replica, inputs)


class BlocksOnDevices:
    """A stage that calls blocks one after the other. Each uses its parameters on the device of its input.

    Args:
        piece: the blocks.
        number: number of the stage.
    """

    def __init__(self, piece: BlockSequence, number: int):
        self.number, self.inputs, self.outputs = number, piece.inputs, piece.outputs
        self._blocks = piece.blocks
        parameters = [parameter for block in piece.blocks for parameter in block.collect_params().values()]
        self._without_gradient = [parameter for parameter in parameters if parameter.grad_req == "null"]

    def __call__(self, replica: int, inputs: Sequence[nd.NDArray]) -> List[nd.NDArray]:
        """Runs the blocks one after the other; returns the outputs of the last."""
        # Each graph needs its own handles on parameters without gradients, see `_HandlePerGraph`.
        for parameter in self._without_gradient:
            parameter._data = [array.detach() for array in parameter._data]
        (array,) = inputs
        for block in self._blocks:
            array = block(array)
        return as_list(array)


def on_devices(
    piece: Union[Piece, BlockSequence], network: gluon.Block, number: int, devices: List[List[mx.Context]]
) -> Union[BlocksOnDevices, PieceOnDevices]:
    """Builds the stage that runs a piece, on its device of each replica."""
    return (
        BlocksOnDevices(piece, number)
        if isinstance(piece, BlockSequence)
        else PieceOnDevices(piece, network, number, devices)
    )


class _SharedHandle:
    """A parameter with a gradient. All graphs share its handle, to which the gradient belongs."""

    def __init__(self, array: nd.NDArray):
        self._array = array

    def array(self) -> nd.NDArray:
        return self._array


class _HandlePerGraph(_SharedHandle):
    """A parameter without a gradient. Each graph gets its own handle on the same memory.

    MXNet stores in the handle which graph used it. With one handle for several graphs, such as microbatches in flight,
    the first backward pass would clear it for all of them.
    """

    def array(self) -> nd.NDArray:
        return self._array.detach()


class _CopyPerCall(_SharedHandle):
    """Moving statistics that a pass may not change: each call gets a copy."""

    def array(self) -> nd.NDArray:
        return self._array.copy()


def _argument(parameter: gluon.Parameter, device: mx.Context, copies: bool = False) -> _SharedHandle:
    if copies:
        return _CopyPerCall(parameter.data(device))
    return (_HandlePerGraph if parameter.grad_req == "null" else _SharedHandle)(parameter.data(device))
