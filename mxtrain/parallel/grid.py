"""Replicas x stages of a network: the one strategy, of which all others are special cases.

    batch -> parts (gradient accumulation) -> a share per replica -> microbatches -> stages, in the schedule's order

Every piece of work is put into MXNet's engine, which runs it as soon as its input is there, on all devices at once; the
host never waits. Stages record their own autograd graphs: a tensor that leaves a stage enters the next one as a
variable, and its gradient comes back as the head gradient of the stage that made it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Collection, Dict, Iterator, List, Optional, Sequence, Tuple, Union

from mxtrain.amp import FULL
from mxtrain.engine.backend import gluon, nd, same_device_runs
from mxtrain.engine.host_graph import HostGraph
from mxtrain.errors import ConfigError
from mxtrain.kvstore.store import Store
from mxtrain.model.graph.trace import blocks_by_path
from mxtrain.model.parameters import distinct_parameters, is_trained
from mxtrain.parallel.balance import Cut, choose_cut
from mxtrain.parallel.base import Layout, Objective, Reduction, Strategy
from mxtrain.parallel.carried import CarriedState
from mxtrain.parallel.chain import BlockRow, open_to_cut
from mxtrain.parallel.cut import Cuttable, Graph, Piece, Tensor
from mxtrain.parallel.executor import Pipelined
from mxtrain.parallel.fence import Fence, written_together
from mxtrain.parallel.joined import JoinedGraph
from mxtrain.parallel.lockstep import Division, GroupPiece, Lockstep, Recorded, Shares
from mxtrain.parallel.norm import JointNorm, obey_placement
from mxtrain.parallel.on_host import host_graph
from mxtrain.parallel.parameters import balanced_owners, move
from mxtrain.parallel.schedule import Action, timetable
from mxtrain.parallel.served_tables import ServedTables, build_row_tables
from mxtrain.parallel.shares import split
from mxtrain.parallel.stage import Stage, WholeNetwork, bring, on_devices
from mxtrain.parallel.statistics import MovingStatistics, moving_statistics
from mxtrain.types import Batch, Shapes, shapes_of

if TYPE_CHECKING:
    import mxnet as mx
    import numpy as np

    from mxtrain.parallel.strategies import Parallel, Staged


@dataclass(frozen=True)
class Form:
    """What computes a network.

    Attributes:
        stages: one after the other.
        inputs, heads: tensors that enter and leave the network; without heads, all that the last stage returns leaves.
    """

    stages: List[Stage]
    inputs: List[Tensor]
    heads: List[Tensor]


def read_tables_directly(network: gluon.Block) -> None:
    """Makes layers that share a table read the parameter itself, for a graph that is not cut between them."""
    blocks = [block for _, block in blocks_by_path(network)]
    copying = [block for block in blocks if getattr(block, "copies_table", False)]
    for block in copying:
        block.copies_table = False
    for block in blocks if copying else ():
        if isinstance(block, gluon.HybridBlock):
            block._clear_cached_op()  # it may have been traced before


class Grid(Strategy):
    """Replicas x stages.

    Args:
        objective: network, loss and meter, initialised and hybridized.
        devices: [replica][stage].
        parallel: microbatches, schedule, batch-norm semantics and cuts.
        grad_accumulation: parts of a batch. Each part's gradient is weighted by its size, so that the sum is the
            gradient of the mean over the batch, whatever the sizes.
        workers: the store, by which workers agree on sums and statistics.

    Raises:
        ConfigError: the network cannot be cut so.
    """

    def __init__(
        self, objective: Objective, devices: List[List[mx.Context]], parallel: Parallel, grad_accumulation: int,
        workers: Optional[Store] = None,
    ):  # fmt: skip
        self._workers = (workers or Store()).within_step()
        self.objective = objective
        self.network = objective.network
        self._state = CarriedState(objective.state_shapes, self.network, self._workers)
        self.carried = self._state if objective.state_shapes else None
        obey_placement(self.network)
        # Before anything looks at the network's parameters: what computes has the rows of a batch only.
        num_samples = objective.global_batch_size or objective.batch_size
        shape, predict_shape = objective.input_shape, objective.predict_shape or objective.input_shape
        self._tables = build_row_tables(self.network, shape, predict_shape, num_samples, self._workers)
        self.rows = self._tables.rows
        self.served = self._tables if isinstance(self._tables, ServedTables) else None
        self._devices, self._num_parts = devices, grad_accumulation
        self._num_microbatches = parallel.num_microbatches()
        self._schedule = getattr(parallel, "schedule", "gpipe")
        self._is_alone = self._workers.world.size == 1 and not self._workers.elastic
        has_one_shard = len(devices) * self._num_microbatches == 1 and self._is_alone
        joint = "per_device" if has_one_shard else parallel.batch_norm
        if len(devices[0]) == 1 and joint == "per_device":
            read_tables_directly(self.network)
        graph = self._graph(len(devices[0]), joint)
        # With several stages it is `Staged`.
        cut = self._choose_cut(graph, objective, parallel, workers or Store())  # type: ignore[arg-type]
        self.layout = Layout(devices, self._num_microbatches, grad_accumulation, cut)
        cuts = cut.positions if cut else []
        pieces = graph.cut(cuts) if graph else []
        self._place(pieces)
        self._arrange_parameters(grad_accumulation * self._num_microbatches)
        # What evaluates; it trains as well where no batch norm is joint.
        self._runs_graph = len(devices[0]) > 1 or objective.precision.dtype != FULL.dtype
        form = self._form(graph, pieces, objective.input_shape)
        self._predicting = self._prediction_form(form, cut)
        joint_pieces = graph is not None and joint != "per_device" and graph.norms()
        if graph is not None and joint_pieces:
            refuse_carried(objective, joint)
            joined = self._joint_pieces(graph, cuts)
            division = Division(grad_accumulation, len(devices), self._num_microbatches, joint == "global")
            self._executor: Union[Lockstep, Pipelined] = Lockstep(
                objective, devices, joined, graph, division, self._workers, self._fences()
            )  # fmt: skip
        else:
            without_gradient = set(graph.without_gradient if graph and self._runs_graph else form.inputs)
            read = {tensor for stage in form.stages for tensor in stage.inputs}
            without_gradient.update(head for head in form.heads[self._num_outputs(form) :] if head not in read)
            self._executor = Pipelined(
                objective, devices, form.stages, self._order, form.inputs, form.heads, without_gradient, self._fences(),
                # On a CPU statistics move in backward passes, which one thread computes behind all that came before.
                self._fences(of_readers=True) if devices[0][0].device_type == "gpu" else (),
            )  # fmt: skip
        has_one_copy = len(devices) == 1 and self._is_alone
        if isinstance(form.stages[0], WholeNetwork) and isinstance(self._executor, Pipelined):
            self._executor.joined = self._join(has_one_copy)
        self._statistics = MovingStatistics(
            [] if joint_pieces or has_one_copy else moving_statistics(self._parameters, self._copies),
            len(devices), devices[0][0].device_type, self._workers,
        )  # fmt: skip

    # What a step asks for.

    def forward_backward(self, batch: Batch) -> nd.NDArray:
        batch = self._state.enter(self._tables.enter(batch))
        parts: List[Shares] = []
        for part in split(batch, self._num_parts) if batch.size else ():
            parts.append([list(split(share, self._num_microbatches)) for share in split(part, len(self._devices))])
        # Those that nothing will be written to are zeroed, those that are added to as well.
        self._zero(range(0 if self._accumulates or not parts else len(parts[0]), len(self._devices)))
        first = self._devices[0][0]
        whole = batch.size if self._workers.world.size == 1 else batch.global_size
        sums = self._executor(parts, whole, self.loss_scale) or [nd.zeros((self.objective.meter.width,), ctx=first)]
        self._state.leave(self._executor.states)
        total = sums[0] if len(sums) == 1 else nd.add_n(*[one.as_in_context(first) for one in sums])
        if whole:
            self._statistics.all_reduce(total, whole, self._num_parts)
        # A worker that sums with nobody reports for all: rows count the samples of the whole batch.
        return total if whole in (0, batch.global_size) else total * (batch.global_size / whole)

    def look_ahead(self, batch: Batch) -> Batch:
        return self._tables.look_ahead(batch)

    def row_gradients(self) -> List[nd.NDArray]:
        return [
            nd.add_n(*[one.as_in_context(reduction.replicas[0].context) for one in reduction.replicas])
            if len(reduction.replicas) > 1 else reduction.replicas[0]
            for reduction in self._served_reductions
        ]  # fmt: skip

    def push_rows(self, gradients: Sequence[nd.NDArray], lr: float, factor: Optional[nd.NDArray]) -> None:
        if self.served is not None:
            named = {one.name: gradient for one, gradient in zip(self._served_reductions, gradients)}
            self.served.push(named, lr, factor)

    def gradient(self, reduction: Reduction) -> np.ndarray:
        found = super().gradient(reduction)
        return self.rows[reduction.name].dense(found) if reduction.name in self.rows else found

    def publish(self, names: Optional[Collection[str]] = None) -> None:
        for name, array in self.other_copies(names):
            self.values[name].copyto(array)

    def other_copies(self, names: Optional[Collection[str]] = None) -> Iterator[Tuple[str, nd.NDArray]]:
        if len(self._devices) == 1:
            return
        for name in self.values if names is None else names:
            if name in self.rows:
                continue  # gathered anew for each batch
            value = self.values[name]
            for array in self._copies[name]:
                if array is not value:
                    yield name, array

    def predict(self, inputs: Sequence[nd.NDArray]) -> Tuple[nd.NDArray, ...]:
        first = self._devices[0][0]
        found: List[List[nd.NDArray]] = []
        for batch in self._tables.fitting(Batch(tuple(inputs), (), inputs[0].shape[0])):
            shares = split(self._tables.enter_alone(batch), len(self._devices))
            found += [self._predict_on(replica, share) for replica, share in enumerate(shares)]
        parts = [[part.as_in_context(first) for part in output] for output in zip(*found)]
        return tuple(output[0] if len(output) == 1 else nd.concat(*output, dim=0) for output in parts)

    @property
    def room_for_ids(self) -> Optional[int]:
        return self._tables.room

    def on_host(self) -> Optional[HostGraph]:
        shapes = shapes_of(self.objective.predict_shape or self.objective.input_shape)
        if self._runs_graph or self.rows or len(shapes) != 1 or self._devices[0][0].device_type != "cpu":
            return None
        names = {parameter.name: name for name, parameter in self._parameters.items()}
        return host_graph(self.network, names)

    def gather(self) -> gluon.Block:
        self.publish()
        for parameter in self._parameters.values():
            move(parameter, [self._devices[0][0]])
        self._tables.restore()
        return self.network

    # Set-up.

    def _graph(self, num_stages: int, joint: str) -> Optional[Cuttable]:
        """The network's operators, where it has to be cut or to compute in another precision."""
        precision = self.objective.precision
        if num_stages > 1:
            why = f"parallel.stages={num_stages}"
        elif joint != "per_device":
            why = f"parallel.batch_norm={joint}"
        elif precision.dtype != FULL.dtype:
            why = f"amp={precision.dtype}"
        else:
            return None
        needs_graph = joint != "per_device" or precision.dtype != FULL.dtype
        return open_to_cut(self.network, self.objective.input_shape, why, needs_graph, precision)

    def _choose_cut(
        self, graph: Optional[Cuttable], objective: Objective, parallel: Staged, workers: Store
    ) -> Optional[Cut]:  # fmt: skip
        """The cut that rank 0 chooses, on all workers: their buckets of gradients follow from it, and their devices may
        be of different kinds."""
        if graph is None or len(self._devices[0]) == 1:
            return None
        num_shards = len(self._devices) * self._num_parts * self._num_microbatches
        microbatch_size = -(-objective.batch_size // num_shards)
        first = self._devices[0]
        cut = choose_cut(graph, parallel, len(first), objective, first[0], microbatch_size)
        if workers.world.size > 1 and not parallel.cut_before:
            is_first = workers.world.rank == 0
            layers = json.loads(workers.broadcast(json.dumps(cut.layers).encode() if is_first else None))
            if layers != cut.layers:
                settings = parallel.model_copy(update={"cut_before": layers})
                cut = choose_cut(graph, settings, len(first), objective, first[0], microbatch_size)
        return cut

    def _place(self, pieces: Sequence[Union[Piece, BlockRow]]) -> None:
        """Moves every parameter to the devices of its stage; what no stage reads stays with the first."""
        stage_of: Dict[str, int] = {}
        for stage, piece in enumerate(pieces):
            stage_of.update(dict.fromkeys(piece.parameters, stage))
        self._parameters = distinct_parameters(self.network)
        for parameter in self._parameters.values():
            move(parameter, [stages[stage_of.get(parameter.name, 0)] for stages in self._devices])

    def _arrange_parameters(self, num_backwards: int) -> None:
        self.constants = frozenset(n for n, p in self._parameters.items() if isinstance(p, gluon.parameter.Constant))
        self.trainable = [name for name, parameter in self._parameters.items() if is_trained(parameter)]
        self._accumulates = num_backwards > 1
        if self._accumulates:
            # Before `list_grad` below: a new grad_req makes new gradient arrays.
            for name in self.trainable:
                self._parameters[name].grad_req = "add"
        # Arrays, not lookups: Gluon checks contexts at every parameter.grad(), which a small network's step would feel.
        self._copies = {name: parameter.list_data() for name, parameter in self._parameters.items()}
        owners = balanced_owners({name: self._copies[name][0].size for name in self.trainable}, len(self._devices))
        owners.update({name: 0 for name in self.trainable if name in self.rows})
        whole = [Reduction(n, self._parameters[n].list_grad(), owners[n]) for n in self.trainable]
        elsewhere = self.served.tables if self.served is not None else {}
        self._served_reductions = [reduction for reduction in whole if reduction.name in elsewhere]
        self.reductions = [reduction for reduction in whole if reduction.name not in elsewhere]
        self.trainable = [reduction.name for reduction in self.reductions]
        self._gradient_runs = []
        for replica in range(len(self._devices)):
            arrays = [reduction.replicas[replica] for reduction in whole]
            self._gradient_runs.append([[arrays[index] for index in run] for run in same_device_runs(arrays)])
        self.values = {name: arrays[owners.get(name, 0)] for name, arrays in self._copies.items()}
        self.values.update(self._tables.tables)
        self._tables.place(self._copies)

    def _form(self, graph: Optional[Cuttable], pieces: Sequence[Union[Piece, BlockRow]], shape: Shapes) -> Form:
        """What computes the network for inputs of that shape."""
        if graph is None or not self._runs_graph:
            whole = WholeNetwork(self.network, len(shapes_of(shape)))
            return Form([whole], whole.inputs, [])
        stages: List[Stage] = [
            on_devices(piece, self.network, stage, self._devices) for stage, piece in enumerate(pieces)
        ]  # fmt: skip
        return Form(stages, graph.inputs, graph.heads if isinstance(graph, Graph) else [])

    def _join(self, has_one_copy: bool) -> Optional[JoinedGraph]:
        """Network, loss and meter as one graph, where nothing stands between them: on CPUs, where all parameters stay
        where they are."""
        if self.rows or self.objective.state_shapes or self._devices[0][0].device_type != "cpu":
            return None
        copies = {parameter.name: self._copies[name] for name, parameter in self._parameters.items()}
        return JoinedGraph(self.objective, copies, in_bulk=has_one_copy)

    def _num_outputs(self, form: Form) -> int:
        """The number of heads that loss and meter see; behind them is what is carried."""
        return len(form.heads) - len(self.objective.state_shapes)

    def _prediction_form(self, trained: Form, cut: Optional[Cut]) -> Form:
        """What predicts: the form that is trained, or another one of the same parameters, cut before the same
        layers."""
        shape = self.objective.predict_shape
        if shape is None:
            return trained
        graph = None
        if self._runs_graph:
            graph = open_to_cut(self.network, shape, "prediction", True, self.objective.precision)
        positions = [graph.begin_of(layer) for layer in cut.layers] if graph and cut else []
        return self._form(graph, graph.cut(positions) if graph else [], shape)

    def _joint_pieces(self, graph: Cuttable, cuts: Sequence[int]) -> List[GroupPiece]:
        """Pieces with every batch norm on its own."""
        norms = graph.norms()
        positions = sorted({*cuts, *norms, *(position + 1 for position in norms)})
        begins = [0, *(position for position in positions if 0 < position < len(graph))]
        pieces: List[GroupPiece] = []
        for piece, begin in zip(graph.cut(positions), begins):
            stage = sum(cut <= begin for cut in cuts)
            if piece.norm is None:
                pieces.append(Recorded(on_devices(piece, self.network, stage, self._devices)))
            else:
                passes_on = piece.inputs[0] not in graph.without_gradient
                pieces.append(JointNorm(piece, self.network, stage, self._devices, self._workers, passes_on))
        return pieces

    def _order(self, num_microbatches: int) -> List[Action]:
        num_stages = len(self._devices[0])
        # A backward takes about twice a forward; only the order is used.
        return timetable(self._schedule, num_microbatches, [1.0] * num_stages, [2.0] * num_stages).actions

    def _fences(self, of_readers: bool = False) -> List[Fence]:
        """The fences around batch norms' statistics, one for each replica: readers wait for backward passes, or with
        `of_readers` forward passes wait for readers."""
        names = {parameter.name: name for name, parameter in self._parameters.items()}
        pairs = [(names[a], self._parameters[names[b]]) for a, b in written_together(self.network).items()]
        return [
            Fence(
                [self._copies[name][replica] for name, _ in pairs],
                [] if of_readers else [parameter.list_grad()[replica] for _, parameter in pairs],
            )
            for replica in range(len(self._devices))
        ]

    # Parts of a step.

    def _zero(self, replicas: Sequence[int]) -> None:
        for replica in replicas:
            for run in self._gradient_runs[replica]:
                nd.reset_arrays(*run, num_arrays=len(run))

    def _predict_on(self, replica: int, batch: Batch) -> List[nd.NDArray]:
        form = self._predicting
        known: Dict[Tensor, nd.NDArray] = dict(zip(form.inputs, batch.inputs))
        for stage in form.stages:
            device = self._devices[replica][stage.number]
            outputs = stage(replica, [bring(known[tensor], device) for tensor in stage.inputs])
            known.update(zip(stage.outputs, outputs))
        return [known[head] for head in form.heads] or outputs


def refuse_carried(objective: Objective, joint: str) -> None:
    """Raises: ConfigError: the network carries state, and is to be run piece by piece over all shards."""
    if objective.state_shapes:
        raise ConfigError(
            f"parallel.batch_norm={joint}: this network carries state from batch to batch and has batch norms, which "
            "is possible only where each device normalises by itself. Type parallel.batch_norm=per_device."
        )
