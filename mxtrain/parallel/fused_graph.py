"""Network, loss and meter as one graph: one call forward and one backward, where three each would cost a small network
more than its arithmetic.

    inputs, targets -> network -> loss -> meter        losses, sums

The results equal the three graphs one after the other to the bit: the same operators in the same order.

It is not used if a part needs real arrays, carries state, has large tables, is watched by a hook, or runs on GPUs,
where it was not measured.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union, cast

from mxtrain.engine.backend import autograd, gluon, mx, nd
from mxtrain.model.graph.trace import fresh_variables
from mxtrain.parallel.engine_dependency import can_add_dependencies
from mxtrain.parallel.objective import Objective
from mxtrain.parallel.stage import argument_flags, to_device
from mxtrain.types import Batch

if TYPE_CHECKING:
    from mxnet.symbol import Symbol

    _OfSymbols = Callable[..., Union[Symbol, Sequence[Symbol]]]

BULK = "MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN"
"""Number of operators that MXNet pushes to its engine together; a value set by the user is kept."""
BULK_SIZE = 10_000
"""All operators of a pass."""


class FusedGraph:
    """Computes losses and the meter's sums of a shard in one call.

    Args:
        objective: network, loss and meter.
        copies: the arrays of each parameter, one for each replica, by `Parameter.name`.
        in_bulk: whether the engine gets a whole pass as one operation, without waiting for parts of the gradients.
    """

    def __init__(self, objective: Objective, copies: Mapping[str, Sequence[nd.NDArray]], in_bulk: bool):
        self._objective, self._copies = objective, copies
        self._flags: List[Tuple[str, object]] = [("static_alloc", True), ("inline_limit", 2)]
        self._flags.append(("static_shape", can_add_dependencies(objective.network)))
        # With several copies, gradients are sent while the backward pass runs; a single bulk would hold back all of
        # them.
        if in_bulk and BULK not in os.environ:
            self._flags += [("forward_bulk_size", BULK_SIZE), ("backward_bulk_size", BULK_SIZE)]
        self._calls: Dict[Tuple[int, int], Optional[_Call]] = {}

    def takes(self, batch: Batch) -> bool:
        """Returns True if the three are one graph for such a batch: where their code needs real arrays, they are
        not."""
        key = (len(batch.inputs), len(batch.targets))
        if key not in self._calls:
            self._calls[key] = self._build(*key)
        return self._calls[key] is not None

    def __call__(self, replica: int, batch: Batch, device: mx.Context) -> Tuple[nd.NDArray, nd.NDArray]:
        """Returns the loss of each sample of a batch that it `takes`, (B,), recorded; and the meter's sums.

        Args:
            replica: whose parameters compute.
            batch: anywhere.
            device: of the replica.
        """
        call = self._calls[len(batch.inputs), len(batch.targets)]
        assert call is not None
        # On the same device a handle of its own: MXNet notes in it which graph it is a variable of.
        return call(replica, [to_device(array, device) for array in (*batch.inputs, *batch.targets)])

    def _build(self, num_inputs: int, num_targets: int) -> Optional[_Call]:
        names = [f"joined_{number}" for number in range(num_inputs + num_targets)]
        symbol = traced(self._objective, names[:num_inputs], names[num_inputs:])
        if symbol is None or not set(symbol.list_inputs()) <= {*names, *self._copies}:
            return None
        return _Call(symbol, names, self._copies, self._flags)


class _Call:
    """The graph for a number of inputs and targets, whose `names` are the variables of these."""

    def __init__(
        self,
        symbol: Symbol,
        names: Sequence[str],
        copies: Mapping[str, Sequence[nd.NDArray]],
        flags: Sequence[Tuple[str, object]],
    ):
        input_names, entering_names = symbol.list_inputs(), set(names)
        self._operator = mx.nd.CachedOp(symbol, [*argument_flags(input_names, entering_names), *flags])
        self._positions = [(i, names.index(name)) for i, name in enumerate(input_names) if name in entering_names]
        arrays = [copies.get(name, ()) for name in input_names]
        num_replicas = max(map(len, arrays), default=0)
        self._arguments = [[array[replica] if array else None for array in arrays] for replica in range(num_replicas)]

    def __call__(self, replica: int, entering: Sequence[nd.NDArray]) -> Tuple[nd.NDArray, nd.NDArray]:
        arguments = list(self._arguments[replica])
        for position, number in self._positions:
            arguments[position] = entering[number]
        with autograd.record():
            loss_B, *_, sums = self._operator(*arguments)
        return loss_B, sums


def traced(objective: Objective, inputs: Sequence[str], targets: Sequence[str]) -> Optional[Symbol]:
    """Returns the symbols of the loss and the meter's sums; None if a part needs real arrays.

    Args:
        objective: network, loss and meter.
        inputs, targets: names of the variables.
    """
    blocks = (objective.network, objective.loss, objective.meter)
    if not all(isinstance(block, gluon.HybridBlock) and block._active and not _is_watched(block) for block in blocks):
        return None
    # Within record, so that code that asks for the mode takes its branch for training.
    with fresh_variables(objective.network), autograd.record():
        try:
            network, loss = cast("_OfSymbols", objective.network), cast("_OfSymbols", objective.loss)
            outputs = _single(network(*map(mx.sym.var, inputs)))
            target_symbols = [mx.sym.var(name) for name in targets]
            losses = _single(loss(*outputs, *target_symbols))
            # Metrics need no gradient. With the block after the meter, MXNet would still compute the gradient through
            # it.
            sums = objective.meter(*map(mx.sym.BlockGrad, [*losses, *outputs, *target_symbols]))
            return mx.sym.Group([*losses, sums])
        except Exception:  # user code may raise anything on symbols, and still work on arrays
            return None


def _single(returned: Union[Symbol, Sequence[Symbol]]) -> List[Symbol]:
    """Returns each output as a separate symbol, as a call on arrays would."""
    symbols = returned if isinstance(returned, (tuple, list)) else [returned]
    return [symbol[number] for symbol in symbols for number in range(len(symbol.list_outputs()))]


def _is_watched(block: gluon.Block) -> bool:
    """Returns True if a forward hook is registered, which a cached graph would not call."""
    return bool(block._forward_hooks or block._forward_pre_hooks)
