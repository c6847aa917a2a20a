"""Replicas x stages of a network: the general strategy, of which all others are special cases.

    batch -> parts (gradient accumulation) -> a share per replica -> microbatches -> stages, in the schedule's order

The planner (`mxtrain.parallel.planner`) computes the layout, `PlacedParameters` moves parameters to devices, and the
executors (`mxtrain.parallel.executors`) compute. This module combines them into a `Strategy`.

The host queues all work in MXNet's engine and never waits. The engine runs each operation as soon as its inputs are
ready, on all devices concurrently. Each stage records its own autograd graph: a tensor that leaves a stage enters the
next one as a variable, whose gradient becomes the head gradient of the stage that produced it.

Reasons: docs/decisions/0009-one-grid.md.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Collection, Iterator, List, Optional, Sequence, Tuple, Union

from mxtrain.amp.spec import FULL
from mxtrain.engine.array_layout import restore_layout
from mxtrain.engine.backend import gluon, nd
from mxtrain.kvstore.store import Store, within_step
from mxtrain.model.graph.trace import blocks_by_path
from mxtrain.parallel.balance import choose_cut
from mxtrain.parallel.base import IdLimits, Strategy
from mxtrain.parallel.chain import open_to_cut
from mxtrain.parallel.cut import BlockSequence, Cuttable, Piece
from mxtrain.parallel.executors import Executors
from mxtrain.parallel.layout import Cut, Shares, split
from mxtrain.parallel.loss_function import FunctionExecutor, LossFunction, Network
from mxtrain.parallel.norm import limit_sync_batch_norms
from mxtrain.parallel.objective import Objective
from mxtrain.parallel.parameters import PlacedParameters
from mxtrain.parallel.planner import assign_stages
from mxtrain.parallel.recurrent_state import RecurrentState
from mxtrain.parallel.segments import choose_segments
from mxtrain.parallel.served_tables import build_row_tables
from mxtrain.parallel.statistics import MovingStatistics, moving_statistics
from mxtrain.types import Batch

if TYPE_CHECKING:
    import mxnet as mx

    from mxtrain.parallel.spec import Parallel


def read_tables_directly(network: gluon.Block) -> None:
    """Clears `copies_table` of embedding layers with tied weights, for a graph that is not cut between the layers.

    The layers then use the parameter itself instead of a copy of it.
    """
    blocks = [block for _, block in blocks_by_path(network)]
    copying = [block for block in blocks if getattr(block, "copies_table", False)]
    for block in copying:
        block.copies_table = False
    for block in blocks if copying else ():
        if isinstance(block, gluon.HybridBlock):
            block._clear_cached_op()  # the block may already have been traced with the copy


def _find_blocked_weights(parameters: PlacedParameters) -> List[nd.NDArray]:
    """Returns the weights that inference leaves in a layout of oneDNN that only convolutions can read; updates of such
    arrays fail. These are the weights of 1D and 3D convolutions on CPUs."""
    return [
        array
        for arrays in parameters.copies.values()
        for array in arrays
        if array.ndim in (3, 5) and array.context.device_type == "cpu"
    ]


class Grid(Strategy):
    """Strategy with replicas x stages devices.

    Args:
        objective: network (initialised and hybridized), loss and meter.
        devices: devices, [replica][stage].
        parallel: microbatches, schedule, batch-norm mode and cuts.
        grad_accumulation: number of parts of a batch. The gradient of a part is weighted by its size, so the sum is the
            gradient of the mean over the batch for all sizes.
        workers: store by which workers exchange sums and statistics.

    Raises:
        ConfigError: the network cannot be cut in this way.
    """

    def __init__(
        self,
        objective: Objective,
        devices: List[List[mx.Context]],
        parallel: Parallel,
        grad_accumulation: int,
        workers: Optional[Store] = None,
    ):
        self._workers = within_step(workers or Store())
        self.objective = objective
        network = objective.network
        self._state = RecurrentState(objective.state_shapes, network, self._workers)
        self.recurrent_state = self._state if objective.state_shapes else None
        limit_sync_batch_norms(network)
        # Must precede everything that reads the network's parameters: it replaces large tables by the rows of a batch.
        num_samples = objective.global_batch_size or objective.batch_size
        shape, predict_shape = objective.input_shape, objective.predict_shape or objective.input_shape
        self._tables = build_row_tables(network, shape, predict_shape, num_samples, self._workers)
        self.rows = self._tables.rows
        self.remote = self._tables.remote
        self.id_limits = IdLimits(distinct=self._tables.room)
        # Workers may join an elastic ring later, and batch norms over several workers must then exist already.
        is_alone = self._workers.world.size == 1 and not self._workers.membership.elastic
        self.layout = parallel.plan(devices, grad_accumulation, is_alone)
        if len(devices[0]) == 1 and self.layout.batch_norm == "per_device" and parallel.recompute == "off":
            read_tables_directly(network)
        graph, pieces = self._cut_network(parallel, workers or Store())
        parameters = self._parameters = PlacedParameters(
            network,
            devices,
            assign_stages(piece.parameters for piece in pieces),
            self.layout.accumulates,
            self.rows,
        )
        self._tables.bind(parameters.copies, parameters.reductions)
        self.reductions = [entry for entry in parameters.reductions if entry.name not in self.remote.names]
        self.trainable = [reduction.name for reduction in self.reductions]
        self.values = {**parameters.values, **self._tables.tables}
        self._blocked_weights = _find_blocked_weights(parameters)
        has_one_copy = len(devices) == 1 and is_alone
        self._executors = Executors(
            objective, self.layout, graph, pieces, parameters, self._workers, bool(self.rows), has_one_copy
        )
        # With one copy, or batch norms over all shards, all moving statistics are equal and need no averaging.
        has_own_statistics = not (self._executors.joins_norms or has_one_copy)
        self._function_executor: Optional[FunctionExecutor] = None
        self._statistics = MovingStatistics(
            moving_statistics(parameters.by_name, parameters.copies) if has_own_statistics else [],
            len(devices),
            devices[0][0].device_type,
            self._workers,
        )

    # Methods that the training step calls.

    def forward_backward(
        self, batch: Batch, loss_scale: float = 1.0, loss_function: Optional[LossFunction] = None
    ) -> nd.NDArray:
        batch = self._state.enter(self._tables.enter(batch))
        parts, num_replicas = self.layout.divide(batch), self.layout.num_replicas
        # Zero the gradients to which several passes add, and those of replicas without samples, which no pass writes. A
        # user's loss function may not use all parameters, so for it all gradients are zeroed.
        adds = self.layout.accumulates or loss_function is not None
        active = 0 if adds or not parts else len(parts[0])
        self._parameters.zero_gradients(range(active, num_replicas))
        first = self.layout.devices[0][0]
        # If servers update, `within_step` gives each worker a world of size 1: its gradient is the mean over its
        # share.
        num_samples = batch.size if self._workers.world.size == 1 else batch.global_size
        sums = self._train(parts, num_samples, loss_scale, loss_function)
        sums = sums or [nd.zeros((self.objective.meter.width,), ctx=first)]
        total = sums[0] if len(sums) == 1 else nd.add_n(*[vector.as_in_context(first) for vector in sums])
        if num_samples:
            self._statistics.all_reduce(total, num_samples, self.layout.num_parts)
        # If servers update, a worker scales its sums to the global batch, whose samples the metric rows count.
        return total if num_samples in (0, batch.global_size) else total * (batch.global_size / num_samples)

    def _train(
        self, parts: List[Shares], num_samples: int, loss_scale: float, loss_function: Optional[LossFunction]
    ) -> List[nd.NDArray]:
        if loss_function is not None:
            return self._build_function_executor()(loss_function, parts, num_samples, loss_scale)
        train = self._executors.train
        sums = train(parts, num_samples, loss_scale)
        self._state.leave(train.states)
        return sums

    def _build_function_executor(self) -> FunctionExecutor:
        """Returns the executor of loss functions; builds it at the first call."""
        if self._function_executor is None:
            self._function_executor = self._executors.build_function_executor()
        return self._function_executor

    def network_on(self, replica: int) -> Network:
        self._build_function_executor()  # refuses placements that do not support loss functions
        return self._executors.network_on(replica)

    def look_ahead(self, batch: Batch) -> Batch:
        return self._tables.look_ahead(batch)

    def publish(self, names: Optional[Collection[str]] = None) -> None:
        for name, array in self.other_copies(names):
            self.values[name].copyto(array)

    def other_copies(self, names: Optional[Collection[str]] = None) -> Iterator[Tuple[str, nd.NDArray]]:
        if self.layout.num_replicas == 1:
            return
        for name in self.values if names is None else names:
            if name in self.rows:
                continue  # the rows are gathered again for each batch
            value = self.values[name]
            for array in self._parameters.copies[name]:
                if array is not value:
                    yield name, array

    def predict(self, inputs: Sequence[nd.NDArray]) -> Tuple[nd.NDArray, ...]:
        first, num_replicas = self.layout.devices[0][0], self.layout.num_replicas
        outputs: List[List[nd.NDArray]] = []
        for batch in self._tables.fitting(Batch(tuple(inputs), (), inputs[0].shape[0])):
            shares = split(self._tables.enter_evaluation(batch), num_replicas)
            outputs += [self._executors.predict(replica, share) for replica, share in enumerate(shares)]
        if self._blocked_weights:
            # The layout changes in place, unknown to the engine, so all operators that read the weights must have
            # finished.
            nd.waitall()
            restore_layout(self._blocked_weights)
        parts = [[part.as_in_context(first) for part in output] for output in zip(*outputs)]
        return tuple(output[0] if len(output) == 1 else nd.concat(*output, dim=0) for output in parts)

    def gather(self) -> gluon.Block:
        self.publish()
        self._parameters.gather(self.layout.devices[0][0])
        self._tables.restore()
        return self.objective.network

    # Set-up.

    def _cut_network(
        self, parallel: Parallel, workers: Store
    ) -> Tuple[Optional[Cuttable], Sequence[Union[Piece, BlockSequence]]]:
        """Cuts the network into one piece for each stage, and adds the cut and the segments to the layout.

        Returns:
            The network as a graph, and its pieces; None and no pieces if the network's own code computes it.
        """
        graph = self._graph(parallel.recompute)
        if graph is None:
            return None, []
        if self.layout.num_stages > 1:
            self.layout = replace(self.layout, cut=self._choose_cut(graph, parallel.stage_layers, workers))
        if parallel.recompute != "off":
            segments = choose_segments(graph, self.layout, parallel.recompute, self.objective)
            self.layout = replace(self.layout, segments=segments)
        return graph, graph.cut(self.layout.cut.positions if self.layout.cut else [])

    def _graph(self, recompute: Union[str, int]) -> Optional[Cuttable]:
        """Returns the network as a graph, if it must be cut or compute in a low precision; otherwise None."""
        precision, layout = self.objective.precision, self.layout
        if recompute != "off":
            reason = f"parallel.recompute={recompute}"
        elif layout.num_stages > 1:
            reason = f"parallel.stages={layout.num_stages}"
        elif layout.batch_norm != "per_device":
            reason = f"parallel.batch_norm={layout.batch_norm}"
        elif precision.dtype != FULL.dtype:
            reason = f"amp={precision.dtype}"
        else:
            return None
        needs_graph = recompute != "off" or layout.batch_norm != "per_device" or precision.dtype != FULL.dtype
        return open_to_cut(self.objective.network, self.objective.input_shape, reason, needs_graph, precision)

    def _choose_cut(self, graph: Cuttable, cut_before: List[str], workers: Store) -> Cut:
        """Chooses the cut of rank 0 on all workers. Collective.

        Gradient buckets depend on the cut, so it must be equal on all workers, whose devices may be of different types.
        """
        cut = choose_cut(graph, self.layout, cut_before, self.objective)
        if workers.world.size > 1 and not cut_before:
            is_first = workers.world.rank == 0
            layers = json.loads(workers.broadcast(json.dumps(cut.layers).encode() if is_first else None))
            if layers != cut.layers:  # choose again with the layers of rank 0, to get the costs of its cut
                cut = choose_cut(graph, self.layout, layers, self.objective)
        return cut
