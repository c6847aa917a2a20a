"""Cuts a network that MXNet cannot trace, between blocks that follow each other.

    network -> one forward pass, watched -> blocks that only hand one tensor on -> pieces

The trace records the arrays that each block takes and returns. A block whose code only calls its children one after the
other is split into these; any other block stays whole.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Callable, Dict, Iterator, List, Optional, Tuple

from mxtrain.amp.spec import FULL, Precision
from mxtrain.engine.backend import autograd, nd
from mxtrain.errors import ConfigError
from mxtrain.model.graph.trace import NotTraceable, blocks_by_path
from mxtrain.parallel.cut import BlockSequence, Cuttable, Graph, Tensor, marked_layers
from mxtrain.types import Shape, Shapes, shapes_of

if TYPE_CHECKING:
    from mxnet import gluon


@dataclass
class Call:
    """One call of a block."""

    layer: str
    block: gluon.Block
    inputs: Tuple[object, ...]
    output: object = None
    calls: List[Call] = field(default_factory=list)

    def row(self) -> Optional[List[Call]]:
        """Returns the calls inside this one, if each takes only the output of the one before."""
        array = self.inputs[0] if len(self.inputs) == 1 else None
        for call in self.calls:
            # Identity instead of equality: the block must pass on the very array, without computing anything in
            # between.
            if len(call.inputs) != 1 or call.inputs[0] is not array or not isinstance(call.output, nd.NDArray):
                return None
            array = call.output
        return self.calls if self.calls and array is self.output else None

    def parts(self) -> List[Call]:
        """Splits this call into the longest row of calls."""
        row = self.row()
        return [self] if row is None else [part for call in row for part in call.parts()]


class Chain(Cuttable):
    """Cuttable network that is a sequence of blocks; each block takes the role of an operator in a `Graph`.

    Args:
        network: initialised gluon block on one device.
        input_shape: shape of one sample.
    """

    def __init__(self, network: gluon.Block, input_shape: Shapes):
        network_call = watch(network, input_shape, train=True)
        parts = network_call.parts()
        if [part.layer for part in parts] != [part.layer for part in watch(network, input_shape, train=False).parts()]:
            parts = [network_call]  # its code takes another path in training
        self._blocks = [part.block for part in parts]
        self.operators = list(range(len(parts)))
        self.layers = [part.layer for part in parts]
        self.inputs, self.heads = [(-1, 0)], [(len(parts) - 1, 0)]
        self.marked = marked_layers(network)
        self._sizes = [getattr(part.output, "shape", (1,)) for part in parts]
        self.text = str([(p.layer, type(p.block).__qualname__, size) for p, size in zip(parts, self._sizes)])
        self._produced_at = {number: number for number in range(-1, len(parts))}
        self._last_read = {(number, 0): number + 1 for number in range(-1, len(parts))}
        self._shared = self._find_shared()
        trains = [any(p.grad_req != "null" for p in block.collect_params().values()) for block in self._blocks]
        first = trains.index(True) if any(trains) else len(trains)
        self.without_gradient = frozenset((number, 0) for number in range(-1, first))

    def norms(self) -> List[int]:
        return []  # batch norms are inside blocks

    def shapes(self, input_shape: Shapes, batch_size: int) -> Dict[Tensor, Shape]:
        shape_of = {(n, 0): (first * batch_size, *rest) for n, (first, *rest) in enumerate(self._sizes)}
        return {self.inputs[0]: (batch_size, *shapes_of(input_shape)[0]), **shape_of}

    def _piece(self, begin: int, end: int, outputs: List[Tensor]) -> BlockSequence:
        return BlockSequence(self._blocks[begin:end], [(begin - 1, 0)], [(end - 1, 0)])

    def _find_shared(self) -> List[Tuple[int, int]]:
        reads: Dict[str, List[int]] = {}
        for position, block in enumerate(self._blocks):
            for name in block.collect_params():
                reads.setdefault(name, []).append(position)
        return [(min(positions), max(positions)) for positions in reads.values() if min(positions) != max(positions)]


def watch(network: gluon.Block, input_shape: Shapes, train: bool) -> Call:
    """Runs one sample of zeros in training or inference mode; returns the call of the network, with all inner calls."""
    stack = [Call("", None, ())]  # type: ignore[arg-type]  # the root: not a call itself
    first = next(iter(network.collect_params().values()), None)
    device, dtype = (first.list_ctx()[0], first.dtype) if first is not None else (None, "float32")
    # Not recorded, since only the order of the calls and the shapes are needed.
    with watched(network, stack), autograd.pause(train_mode=train):
        network(*[nd.zeros((1, *shape), ctx=device, dtype=dtype) for shape in shapes_of(input_shape)])
    return stack[0].calls[0]


@contextmanager
def watched(network: gluon.Block, stack: List[Call]) -> Iterator[None]:
    """Records the calls of all blocks in `stack`. Disables cached graphs, which do not call children."""
    blocks: Dict[int, gluon.Block] = {}
    active: Dict[int, bool] = {}

    def wrap(layer: str, block: gluon.Block) -> Callable[..., object]:
        forward = block.forward

        def call(*inputs: object) -> object:
            stack.append(Call(layer, block, inputs))
            try:
                stack[-1].output = forward(*inputs)
            finally:
                finished = stack.pop()
                stack[-1].calls.append(finished)
            return finished.output

        return call

    for layer, block in blocks_by_path(network):
        if id(block) not in blocks:
            blocks[id(block)] = block
            active[id(block)] = getattr(block, "_active", False)
            if active[id(block)]:
                block._active = False
            object.__setattr__(block, "forward", wrap(layer, block))
    try:
        yield
    finally:
        for key, block in blocks.items():
            object.__delattr__(block, "forward")
            if active[key]:
                block._active = True


def open_to_cut(
    network: gluon.Block, input_shape: Shapes, setting: str, needs_graph: bool, precision: Precision = FULL
) -> Cuttable:
    """Returns a network that can be cut: between operators if MXNet can trace it, otherwise between blocks.

    Args:
        network: initialised gluon block on one device.
        input_shape: shape of one sample.
        setting: setting that requires the cut, for messages.
        needs_graph: True if the network must be traced.
        precision: precision of the pieces; other than full precision needs a traced network.

    Raises:
        ConfigError: neither is possible; the message names the block and a remedy.
    """
    try:
        return Graph(network, precision, input_shape)
    except NotTraceable as error:
        reason = error
    chain = None if needs_graph else Chain(network, input_shape)
    if chain is None or len(chain) == 1:
        detail = (
            ""
            if chain is None
            else (f", and the code of {type(network).__name__} does more than call its parts one after the other")
        )
        raise ConfigError(
            f"{setting} needs the network as a graph, but {reason}{detail}. Write that block as a gluon.HybridBlock "
            "whose hybrid_forward uses only F and needs no shapes, or make the network a gluon.nn.Sequential of its "
            "parts (it is cut between them, wherever one has the attribute begins_stage=True if any has), or use "
            "parallel=single or parallel=data with amp=off: they need no cut."
        ) from reason
    return chain
