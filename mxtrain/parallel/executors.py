"""Builds the executors of a network: `Pipelined` or `SyncBatchNormExecutor` for training, and `Predictor`."""

from __future__ import annotations

from typing import Dict, List, Optional, Sequence, Union

from mxtrain.amp.spec import FULL
from mxtrain.engine.backend import nd
from mxtrain.errors import ConfigError
from mxtrain.kvstore.store import Store
from mxtrain.parallel.chain import open_to_cut
from mxtrain.parallel.cut import BlockSequence, Cuttable, Graph, Piece, Tensor
from mxtrain.parallel.engine_dependency import EngineDependency, written_together
from mxtrain.parallel.executor import Pipelined, StagedNetwork, TrainedNetwork
from mxtrain.parallel.fused_graph import FusedGraph
from mxtrain.parallel.fused_inference import FusedInference
from mxtrain.parallel.layout import Layout
from mxtrain.parallel.loss_function import FunctionExecutor, Network
from mxtrain.parallel.norm import JointNorm
from mxtrain.parallel.objective import Objective
from mxtrain.parallel.parameters import PlacedParameters
from mxtrain.parallel.planner import isolate
from mxtrain.parallel.recompute import RecomputedSegment, are_alike
from mxtrain.parallel.stage import PieceOnDevices, Stage, WholeNetwork, on_devices, to_device
from mxtrain.parallel.sync_batchnorm_executor import GroupPiece, NormGroups, Recorded, SyncBatchNormExecutor
from mxtrain.types import Batch, Shapes, shapes_of


class Predictor:
    """Computes a network in inference mode, stage after stage.

    Args:
        staged: executors of the network.
        layout: devices of the stages.
    """

    def __init__(self, staged: StagedNetwork, layout: Layout):
        self._staged, self._devices = staged, layout.devices

    def __call__(self, replica: int, batch: Batch) -> List[nd.NDArray]:
        """Returns the network's outputs for `Batch.inputs`, on the last device of a replica. Asynchronous."""
        staged = self._staged
        values: Dict[Tensor, nd.NDArray] = dict(zip(staged.inputs, batch.inputs))
        for stage in staged.stages:
            device = self._devices[replica][stage.number]
            outputs = stage(replica, [to_device(values[tensor], device) for tensor in stage.inputs])
            values.update(zip(stage.outputs, outputs))
        return [values[head] for head in staged.heads] or outputs


class Executors:
    """Executors of a network on its devices, for training and for prediction.

    Args:
        objective: network, loss and meter.
        layout: devices and cut.
        graph: graph of the network, if it is cut, computed in another precision, or has synchronised batch norms.
        pieces: pieces of the graph, one for each stage.
        parameters: parameters of the network and their devices.
        workers: store that sums and gathers over workers.
        has_rows: True if parameters hold only the table rows of the current batch.
        has_one_copy: True if no other copy of the network is trained, in this or another process.

    Attributes:
        train: function (shares of a batch, global batch size, loss scale) -> the meter's sums; writes gradients.
        predict: function (replica, batch) -> outputs.
        runs_graph: True if stages are pieces of a graph; False if they are the network's own code.
        joins_norms: True if batch norms are synchronised over several devices.

    Raises:
        ConfigError: the network carries state from batch to batch, which synchronised batch norms do not support.
    """

    def __init__(
        self,
        objective: Objective,
        layout: Layout,
        graph: Optional[Cuttable],
        pieces: Sequence[Union[Piece, BlockSequence]],
        parameters: PlacedParameters,
        workers: Store,
        has_rows: bool,
        has_one_copy: bool,
    ):
        self._objective, self._layout, self._parameters = objective, layout, parameters
        # This form evaluates the network. It also trains it, unless batch norms are synchronised over shards.
        self.runs_graph = layout.num_stages > 1 or objective.precision.dtype != FULL.dtype
        staged = self._build_stages(graph, pieces, objective.input_shape)
        self.predict = Predictor(self._build_prediction_stages(staged), layout)
        self.train: Union[SyncBatchNormExecutor, Pipelined]
        self._trained_stages, self._has_rows = staged, has_rows
        self.joins_norms = graph is not None and layout.batch_norm != "per_device" and bool(graph.norms())
        if graph is not None and self.joins_norms:
            self.train = self._sync_batchnorm(graph, workers)
        else:
            trained = (
                self._build_segments(graph)
                if graph is not None and layout.segments
                else TrainedNetwork(staged.stages, staged.inputs, staged.heads)
            )
            self.train = self._pipelined(graph, trained)
            if isinstance(trained.segments[0], WholeNetwork) and not has_rows:
                self.train.fused = self._fuse(has_one_copy)

    def _build_stages(
        self, graph: Optional[Cuttable], pieces: Sequence[Union[Piece, BlockSequence]], shape: Shapes
    ) -> StagedNetwork:
        """Returns the executors of the network for inputs of that shape."""
        if graph is None or not self.runs_graph:
            kind = FusedInference if self._objective.fuse else WholeNetwork
            network = kind(self._objective.network, len(shapes_of(shape)))
            return StagedNetwork([network], network.inputs, [])
        stages: List[Stage] = [
            on_devices(piece, self._objective.network, stage, self._layout.devices)
            for stage, piece in enumerate(pieces)
        ]
        return StagedNetwork(stages, graph.inputs, graph.heads if isinstance(graph, Graph) else [])

    def _build_segments(self, graph: Cuttable) -> TrainedNetwork:
        """Returns the executors that recompute activations: the segments of all stages in order."""
        network, layout = self._objective.network, self._layout
        assert layout.segments is not None and isinstance(graph, Graph)
        cuts = layout.cut.positions if layout.cut else []
        begins, pieces = layout.segments.begins, graph.cut(layout.segments.begins)
        # The backward pass of the last segment follows its forward pass, so its activations are kept. The first one may
        # differ from the others, because it has the embedding.
        others = [piece for piece in pieces[1:-1] if isinstance(piece, Piece)]
        is_alike = len(others) > 1 and are_alike(others)
        segments: List[Union[Stage, RecomputedSegment]] = []
        like: Optional[RecomputedSegment] = None
        for index, (begin, piece) in enumerate(zip(begins, pieces)):
            assert isinstance(piece, Piece)
            number = sum(cut <= begin for cut in cuts)
            if index == len(pieces) - 1:
                segments.append(PieceOnDevices(piece, network, number, layout.devices))
            elif index == 0 or not is_alike:
                segments.append(RecomputedSegment(piece, network, number, layout.devices))
            else:
                like = RecomputedSegment(piece, network, number, layout.devices, True, like)
                segments.append(like)
        return TrainedNetwork(segments, graph.inputs, graph.heads)

    def _build_prediction_stages(self, trained: StagedNetwork) -> StagedNetwork:
        """Returns the executors for prediction: the trained ones, or others with the same parameters and cuts."""
        shape = self._objective.predict_shape
        if shape is None:
            return trained
        graph = None
        if self.runs_graph:
            graph = open_to_cut(self._objective.network, shape, "prediction", True, self._objective.precision)
        layers = list(self._layout.cut_before) if graph else []
        # The last stages may compute only what training needs, such as a target network: prediction leaves them out.
        while layers and graph and not graph.computes(layers[-1]):
            layers.pop()
        positions = [graph.begin_of(layer) for layer in layers] if graph else []
        return self._build_stages(graph, graph.cut(positions) if graph else [], shape)

    def _sync_batchnorm(self, graph: Cuttable, workers: Store) -> SyncBatchNormExecutor:
        """Returns the executor for synchronised batch norms, each of which is a separate piece."""
        objective, layout = self._objective, self._layout
        if objective.state_shapes:
            raise ConfigError(
                f"parallel.batch_norm={layout.batch_norm}: this network carries state from batch to batch and has "
                "batch norms, which is possible only where each device normalises by itself. Type "
                "parallel.batch_norm=per_device."
            )
        begins = isolate(graph.norms(), layout.cut.positions if layout.cut else [], len(graph))
        pieces: List[GroupPiece] = []
        for (_, stage), piece in zip(begins, graph.cut([begin for begin, _ in begins])):
            if piece.norm is None:
                pieces.append(Recorded(on_devices(piece, objective.network, stage, layout.devices)))
            else:
                # The graph decides, so all workers skip the gather of the backward pass for the same norms.
                passes_on = piece.inputs[0] not in graph.without_gradient
                pieces.append(JointNorm(piece, objective.network, stage, layout.devices, workers, passes_on))
        division = NormGroups(
            layout.num_parts, layout.num_replicas, layout.num_microbatches, layout.batch_norm == "global"
        )
        return SyncBatchNormExecutor(objective, layout.devices, pieces, graph, division, workers, self.dependencies())

    def _pipelined(self, graph: Optional[Cuttable], trained: TrainedNetwork) -> Pipelined:
        objective, layout = self._objective, self._layout
        is_graph = graph is not None and not isinstance(trained.segments[0], WholeNetwork)
        without_gradient = set(graph.without_gradient if graph and is_graph else trained.inputs)
        read = {tensor for segment in trained.segments for tensor in segment.inputs}
        # The last heads are the recurrent state for the next batch, which loss and meter do not read.
        num_outputs = len(trained.heads) - len(objective.state_shapes)
        without_gradient.update(head for head in trained.heads[num_outputs:] if head not in read)
        # On a CPU, backward passes update the statistics, and one thread computes them in order: no guards are needed.
        guards = self.dependencies(of_readers=True) if layout.devices[0][0].device_type == "gpu" else ()
        return Pipelined(
            objective, layout.devices, trained, layout.order, without_gradient, self.dependencies(), guards
        )

    def _fuse(self, has_one_copy: bool) -> Optional[FusedGraph]:
        """Returns network, loss and meter as one graph; None on GPUs or for networks with recurrent state."""
        if self._objective.state_shapes or self._layout.devices[0][0].device_type != "cpu":
            return None
        names = self._parameters.structural_names
        copies = {full_name: self._parameters.copies[name] for full_name, name in names.items()}
        return FusedGraph(self._objective, copies, in_bulk=has_one_copy)

    def build_function_executor(self) -> FunctionExecutor:
        """Builds the executor of user-defined loss functions.

        Raises:
            ConfigError: the placement or the network does not support loss functions.
        """
        objective, layout = self._objective, self._layout
        obstacle, remedy = "", ""
        if layout.num_stages > 1:
            obstacle, remedy = f"parallel.stages={layout.num_stages} cuts the network", "Type parallel=data"
        elif layout.segments:
            obstacle, remedy = "parallel.recompute cuts the network", "Type parallel.recompute=off"
        elif self.joins_norms:
            obstacle = f"parallel.batch_norm={layout.batch_norm} joins the batch norms of several devices"
            remedy = "Type parallel.batch_norm=per_device"
        elif self._has_rows:
            obstacle, remedy = "gradients of tables hold some rows only", "Type trainer.sparse_grad=false"
        elif objective.state_shapes:
            obstacle, remedy = "this network carries state from batch to batch", "Choose another model"
        if obstacle:
            raise ConfigError(f"s.step(loss=...): {obstacle}, which a Python function cannot follow. {remedy}.")
        networks = [self.network_on(replica) for replica in range(layout.num_replicas)]
        return FunctionExecutor(objective, networks, [stages[0] for stages in layout.devices], self.dependencies())

    def network_on(self, replica: int) -> Network:
        """Returns the network on a replica, in training precision."""
        stage, heads = self._trained_stages.stages[0], self._trained_stages.heads
        if isinstance(stage, WholeNetwork):
            return self._objective.network  # it finds its parameters by the device of its input

        def network(*inputs: nd.NDArray) -> Union[nd.NDArray, List[nd.NDArray]]:
            values = dict(zip(stage.outputs, stage(replica, inputs)))
            outputs = [values[head] for head in heads] or list(values.values())
            return outputs[0] if len(outputs) == 1 else outputs

        return network

    def dependencies(self, of_readers: bool = False) -> List[EngineDependency]:
        """Returns the engine dependencies of batch-norm statistics, one for each replica.

        Readers of the statistics wait for backward passes; with `of_readers`, forward passes wait for readers.
        """
        parameters = self._parameters
        names = parameters.structural_names
        pairs = [(names[a], parameters.by_name[names[b]]) for a, b in written_together(self._objective.network).items()]
        return [
            EngineDependency(
                [parameters.copies[name][replica] for name, _ in pairs],
                [] if of_readers else [parameter.list_grad()[replica] for _, parameter in pairs],
            )
            for replica in range(self._layout.num_replicas)
        ]
