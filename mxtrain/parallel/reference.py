"""Reference implementation for `verify`: trains a network on one device, like a plain Gluon loop.

    batch -> shards of the placement -> forward, loss and backward of one shard after the other -> sum -> optimizer

The reference shares no code with strategies, executors, gradient stores and the training step, because it would then
share their bugs. It therefore repeats the rules of a placement in their simplest form: how a batch is divided, which
samples a batch norm sees, and how moving statistics are averaged.

Reasons: docs/decisions/0086-reference-of-verify.md.

Legend: B global batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby, zip_longest
from typing import TYPE_CHECKING, Any, Collection, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np

from mxtrain.amp.scaling import NoScaling
from mxtrain.amp.spec import FULL
from mxtrain.engine.backend import STATISTICS, autograd, mx, nd
from mxtrain.engine.parameter_names import role_of
from mxtrain.model.graph.id_inputs import tables_of
from mxtrain.model.parameters import distinct_parameters, is_trained
from mxtrain.optimizer.rows import TouchedRows, lazy_update
from mxtrain.optimizer.updater import create_state
from mxtrain.parallel.base import Strategy
from mxtrain.parallel.chain import open_to_cut
from mxtrain.parallel.cut import BlockSequence, Graph, Piece, Tensor, variable
from mxtrain.parallel.objective import Objective
from mxtrain.types import Batch

if TYPE_CHECKING:
    from mxtrain.optimizer.state import OptimizerState

Rows = Tuple[int, int]
"""(begin, end) of a shard's rows of the global batch."""
# FTRL and FTML multiply by the inverse of the rate, which becomes non-finite for smaller rates.
NO_RATE = 1e-30
"""A parameter whose learning rate is smaller is not updated."""


def divide(rows: Rows, count: int) -> List[Rows]:
    """Divides rows into at most `count` non-empty parts, whose sizes differ by at most one; larger parts come first."""
    begin, end = rows
    # Not `bounds`, because the reference shares no code with the placements that it verifies.
    parts = np.array_split(np.arange(begin, end), max(min(count, end - begin), 1))
    return [(int(part[0]), int(part[-1]) + 1) for part in parts if len(part)]


@dataclass(frozen=True)
class BatchDivision:
    """Division of a global batch by a placement: workers x parts x replicas x microbatches.

    Attributes:
        num_workers: number of workers.
        num_parts: parts of a worker's share by gradient accumulation.
        num_replicas: replicas of each worker.
        num_microbatches: microbatches of each replica's share of a part.
        batch_norm: samples that batch norms see together: "per_device", "replicas" or "global".
    """

    num_workers: int
    num_parts: int
    num_replicas: int
    num_microbatches: int
    batch_norm: str

    def copies(self, size: int) -> List[List[List[Rows]]]:
        """Returns the shards of a batch of `size` samples as [copy][pass][shard].

        A copy is a network with moving statistics of its own. Its passes follow each other; the shards of a pass are
        computed together. If batch norms see the samples of several devices, there is only one copy.
        """
        shards = [  # [worker][part][replica][microbatch]
            [
                [divide(share, self.num_microbatches) for share in divide(part, self.num_replicas)]
                for part in divide(own, self.num_parts)
            ]
            for own in divide((0, size), self.num_workers)
        ]
        if self.batch_norm == "per_device":
            return [
                [[shard] for part in parts if replica < len(part) for shard in part[replica]]
                for parts in shards
                for replica in range(len(parts[0]))
            ]
        together: List[List[Rows]] = []
        for parts in zip_longest(*shards, fillvalue=[]):
            replicas = [shares for part in parts for shares in part]
            if self.batch_norm == "global":
                together.append([shard for shares in replicas for shard in shares])
            else:
                together += [[one for one in turn if one] for turn in zip_longest(*replicas)]
        return [together]

    def worker_of(self, row: int, size: int) -> int:
        """Returns 1 + the rank of the worker that owns a row of a batch of `size` samples; only used to group rows."""
        return sum(begin <= row for begin, _ in divide((0, size), self.num_workers))


class Reference(Strategy):
    """Trains a network on one device.

    Args:
        objective: network, loss and meter; the network holds all rows of its tables.
        division: batch division of the placement that is verified.
        optimizer: an mxnet.optimizer.Optimizer that nothing else uses.
        multipliers: structural name -> (lr_mult, wd_mult).
        clip_global_norm: largest L2 norm of all gradients together; None = no clipping.
        lazy: if True, rows of large tables that a batch does not read stay unchanged.
        scaling: loss scaling; None = none.
        cut_before: layers before which the placement cuts the network, see `Pieces`.
    """

    def __init__(
        self,
        objective: Objective,
        division: BatchDivision,
        optimizer: mx.optimizer.Optimizer,
        multipliers: Mapping[str, Tuple[float, float]],
        clip_global_norm: Optional[float] = None,
        lazy: bool = False,
        scaling: Optional[NoScaling] = None,
        cut_before: Sequence[str] = (),
    ):
        self.objective, self.network = objective, objective.network
        self._division, self._optimizer, self._clip = division, optimizer, clip_global_norm
        self._scaling = scaling or NoScaling()
        self._ids_of: Dict[str, int] = {}
        self._parameters = distinct_parameters(self.network)
        names = {parameter: name for name, parameter in self._parameters.items()}
        for table in tables_of(self.network):
            if table.ids_from is not None:
                # The table was prepared for row-wise gradients. Here it gets a dense gradient like other parameters.
                table.weight.grad_req = "write" if table.weight.lr_mult else "null"
                if lazy:
                    self._ids_of[names[table.weight]] = table.ids_from
        self.trainable = [name for name, parameter in self._parameters.items() if is_trained(parameter)]
        if division.num_parts * division.num_microbatches > 1:  # several backward passes sum into one gradient
            for name in self.trainable:
                self._parameters[name].grad_req = "add"
        self.values = {name: parameter.data() for name, parameter in self._parameters.items()}
        is_whole = objective.precision.dtype == FULL.dtype and not cut_before
        self._pieces = None if is_whole else Pieces(objective, cut_before)
        self._statistics = [
            self.values[name]
            for name, parameter in self._parameters.items()
            if role_of(name) in STATISTICS and parameter.lr_mult
        ]
        self.gradients: Dict[str, nd.NDArray] = {}
        """Structural name -> gradient of the last step. It is not divided by the sum of sample weights if the optimizer
        applies that factor itself (`Updater.accepts_factor`)."""
        self._recurrent_state: List[nd.NDArray] = []
        optimizer.lr_mult = {i: multipliers[name][0] for i, name in enumerate(self.trainable)}
        optimizer.wd_mult = {i: multipliers[name][1] for i, name in enumerate(self.trainable)}
        # LARS recognises parameters without a rate of their own by their structural names.
        optimizer.idx2name = dict(enumerate(self.trainable))
        self._states: List[OptimizerState] = [
            create_state(optimizer, i, self.values[name], name) for i, name in enumerate(self.trainable)
        ]

    def publish(self, names: Optional[Collection[str]] = None) -> None:
        """Does nothing: there is only one copy of `values`."""

    def step(self, batch: Batch, lr: float) -> None:
        """Updates the parameters with the gradient of the mean loss over a global batch."""
        inputs = (*batch.inputs, *self._state_before(batch))
        copies = self._division.copies(batch.size)
        before = [array.copy() for array in self._statistics]
        gradients: List[List[nd.NDArray]] = []
        statistics: List[List[nd.NDArray]] = []
        weights: Dict[Rows, nd.NDArray] = {}
        states: Dict[Rows, List[nd.NDArray]] = {}
        for passes in copies:  # each copy starts with the statistics before the step and sums its own gradients
            for array, value in zip(self._statistics, before):
                value.copyto(array)
            for name in self.trainable:
                self._parameters[name].zero_grad()
            for shards in passes:
                self._compute(shards, inputs, batch, weights, states)
                # MXNet's engine does not know that a backward pass writes moving statistics, so the next pass could
                # read old ones: see `engine_dependency.py`.
                nd.waitall()
            gradients.append([self._parameters[name].grad().copy() for name in self.trainable])
            statistics.append([array.copy() for array in self._statistics])
        for array, found in zip(self._statistics, zip(*statistics)):
            (nd.add_n(*found) * (1.0 / len(found))).copyto(array)
        in_order = [states[rows] for rows in sorted(states)]  # shards were computed in the order of copies, not of rows
        self._recurrent_state = [nd.concat(*arrays, dim=0) for arrays in zip(*in_order)]
        self.gradients = {name: nd.add_n(*found) for name, found in zip(self.trainable, zip(*gradients))}
        if not self._scaling.unscale(list(self.gradients.values())):
            for array, value in zip(self._statistics, before):
                value.copyto(array)
            return
        self._update(batch, self._divisor(weights, batch.size), lr)

    def _state_before(self, batch: Batch) -> List[nd.NDArray]:
        """Returns the recurrent state from the previous batch; zeros if the batch does not continue it."""
        if batch.continues_previous and self._recurrent_state:
            return self._recurrent_state
        first = next(iter(self.values.values()))
        return [
            nd.zeros((batch.size, *shape), ctx=first.context, dtype=first.dtype)
            for shape in self.objective.state_shapes
        ]

    def _compute(
        self,
        shards: Sequence[Rows],
        inputs: Sequence[nd.NDArray],
        batch: Batch,
        weights: Dict[Rows, nd.NDArray],
        states: Dict[Rows, List[nd.NDArray]],
    ) -> None:
        """Adds the gradient of sum(loss) / B over some shards, which are one forward pass together."""

        def rows_of(array: nd.NDArray) -> nd.NDArray:
            parts = [array[begin:end] for begin, end in shards]
            return parts[0] if len(parts) == 1 else nd.concat(*parts, dim=0)

        count = len(self.objective.state_shapes)
        with autograd.record():
            outputs = _as_list((self._pieces or self.network)(*map(rows_of, inputs)))
            outputs, state_after = outputs[: len(outputs) - count], outputs[len(outputs) - count :]
            losses = _as_list(self.objective.loss(*outputs, *map(rows_of, batch.targets)))
        head = self._scaling.scale / batch.size
        losses[0].backward(nd.full(losses[0].shape, head, ctx=losses[0].context, dtype=losses[0].dtype))
        if self._pieces is not None:
            self._pieces.backward()
        if self.objective.meter.weighted:
            weights[shards[0]] = nd.sum(losses[1].astype("float32")).reshape((1,))
        states[shards[0]] = [array.detach() for array in state_after]

    def _divisor(self, weights: Mapping[Rows, nd.NDArray], size: int) -> Optional[nd.NDArray]:
        """Returns B / sum(weight), the factor from sum(loss) / B to sum(loss) / sum(weight); None without weights."""
        if not weights:
            return None
        # Add in the order of a real run, each worker's own shards first: the order changes the last bits of the sum.
        by_worker = groupby(sorted(weights), key=lambda rows: self._division.worker_of(rows[0], size))
        total = nd.add_n(*[nd.add_n(*[weights[rows] for rows in rows_of_worker]) for _, rows_of_worker in by_worker])
        total = nd.maximum(total, self.objective.meter.least_weight)
        return size / nd.maximum(total, 1e-12) * (total > 0)

    def _update(self, batch: Batch, factor: Optional[nd.NDArray], lr: float) -> None:
        gradients = list(self.gradients.values())
        if self._clip is not None:
            scale = 1.0 if factor is None else float(factor.asscalar())
            squares = sum(float(np.sum(np.square(one.asnumpy(), dtype=np.float64))) for one in gradients)
            scale *= min(self._clip / (scale * squares**0.5 + 1e-6), 1.0)
            factor = nd.array([scale], ctx=gradients[0].context, dtype=gradients[0].dtype)
        if factor is not None:
            factor = factor.astype(gradients[0].dtype)
            gradients = [nd.broadcast_mul(one, factor.reshape((1,) * one.ndim)) for one in gradients]
        if getattr(self._optimizer, "factor", False) is not None:
            self.gradients = dict(zip(self.trainable, gradients))
        self._optimizer.lr = lr
        for i, (name, gradient) in enumerate(zip(self.trainable, gradients)):
            if abs(lr * self._optimizer.lr_mult[i]) < NO_RATE:
                continue
            weight, state = self.values[name], self._states[i]
            if name in self._ids_of:
                rows = TouchedRows(weight)
                rows.set(np.unique(batch.inputs[self._ids_of[name]].asnumpy()).astype(np.int64))
                lazy_update(self._optimizer, i, weight, state, rows, rows.gather(gradient))
            # MXNet's optimizers that aggregate updates take lists, even for a single parameter.
            elif self._optimizer.aggregate_num > 0:
                self._optimizer.update_multi_precision([i], [weight], [gradient], [state])
            else:
                self._optimizer.update_multi_precision(i, weight, gradient, state)


class Pieces:
    """Runs a network as consecutive pieces of its graph, to reproduce a cut or low-precision placement bit by bit.

    Tensors between pieces are copied, as between devices, so that oneDNN's kernels get the same memory layouts. Each
    piece therefore has its own autograd graph, and `backward` runs through all pieces but the last.

    Args:
        objective: network and precision.
        cut_before: layers that begin a piece.
    """

    def __init__(self, objective: Objective, cut_before: Sequence[str]):
        needs_graph = objective.precision.dtype != FULL.dtype
        self._graph = open_to_cut(objective.network, objective.input_shape, "verify", needs_graph, objective.precision)
        self._pieces = self._graph.cut([self._graph.begin_of(layer) for layer in cut_before])
        self._operators = [mx.nd.CachedOp(p.symbol) if isinstance(p, Piece) else None for p in self._pieces]
        self._parameters = {parameter.name: parameter for parameter in objective.network.collect_params().values()}
        self._entered: List[Dict[Tensor, nd.NDArray]] = []
        self._values: Dict[Tensor, nd.NDArray] = {}

    def __call__(self, *inputs: nd.NDArray) -> List[nd.NDArray]:
        """Returns the outputs of the network. Must be called inside `autograd.record`."""
        graph, self._entered = self._graph, []
        self._values = dict(zip(graph.inputs, inputs))
        for piece, operator in zip(self._pieces, self._operators):
            entering: Dict[Tensor, nd.NDArray] = {}
            passing = graph.heads if piece is self._pieces[-1] else []  # some may come from an earlier piece
            with autograd.pause(train_mode=True):
                for tensor in dict.fromkeys([*piece.inputs, *(t for t in passing if t not in piece.outputs)]):
                    entering[tensor] = self._values[tensor].detach()
                    if tensor not in graph.without_gradient:
                        entering[tensor] = self._values[tensor].copy()
                        entering[tensor].attach_grad()
            self._entered.append(entering)
            outputs = self._run(piece, operator, entering)
            self._values.update(zip(piece.outputs, outputs))
        return [{**self._values, **entering}[head] for head in graph.heads] if isinstance(graph, Graph) else outputs

    def _run(
        self, piece: Union[Piece, BlockSequence], operator: Any, entering: Mapping[Tensor, nd.NDArray]
    ) -> List[nd.NDArray]:
        if isinstance(piece, Piece):
            assert operator is not None
            values = {variable(tensor): array for tensor, array in entering.items()}
            names = piece.symbol.list_inputs()
            return _as_list(operator(*[values[n] if n in values else self._parameters[n].data() for n in names]))
        array: object = entering[piece.inputs[0]]
        for block in piece.blocks:
            array = block(array)
        return _as_list(array)

    def backward(self) -> None:
        """Runs the backward pass of the remaining pieces. The backward pass of the loss must have covered the last."""
        gradients_of: Dict[Tensor, List[nd.NDArray]] = {}
        for piece, entering in zip(reversed(self._pieces), reversed(self._entered)):
            reached = [tensor for tensor in piece.outputs if tensor in gradients_of]
            if reached:
                heads = [nd.add_n(*gradients_of[tensor]) for tensor in reached]
                autograd.backward([self._values[tensor] for tensor in reached], heads)
            for tensor, array in entering.items():
                if array.grad is not None:
                    gradients_of.setdefault(tensor, []).append(array.grad.copy())


def _as_list(outputs: object) -> List[nd.NDArray]:
    return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]  # type: ignore[list-item]
