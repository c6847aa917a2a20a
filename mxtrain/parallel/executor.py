"""Runs microbatches through the stages of their replica, in the schedule's order.

The other executor is `SyncBatchNormExecutor`, for batch norms over several shards.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Callable, Collection, Dict, List, Optional, Sequence, Tuple, Union

from mxtrain.engine.backend import autograd, nd
from mxtrain.parallel.cut import Tensor
from mxtrain.parallel.engine_dependency import EngineDependency
from mxtrain.parallel.fused_graph import FusedGraph
from mxtrain.parallel.layout import Shares
from mxtrain.parallel.objective import Objective
from mxtrain.parallel.recompute import RecomputedSegment
from mxtrain.parallel.schedule import FORWARD, StageAction
from mxtrain.parallel.stage import Stage, as_list, to_device
from mxtrain.parallel.tape import HeadGradients, Tape
from mxtrain.types import Batch

if TYPE_CHECKING:
    from mxnet import Context


@dataclass(frozen=True)
class StagedNetwork:
    """Executors of a network.

    Attributes:
        stages: stages in order.
        inputs: input tensors of the network.
        heads: output tensors of the network; empty = all outputs of the last stage.
    """

    stages: List[Stage]
    inputs: List[Tensor]
    heads: List[Tensor]


@dataclass(frozen=True)
class TrainedNetwork:
    """Executors that train a network.

    Attributes:
        segments: segments of all stages in order; a stage is a single one unless it recomputes activations.
        inputs, heads: as in `StagedNetwork`.
    """

    segments: Sequence[Union[Stage, RecomputedSegment]]
    inputs: List[Tensor]
    heads: List[Tensor]


class Pipelined:
    """Runs each replica's microbatches through its stages in the schedule's order, all replicas in step.

    Args:
        objective: loss and meter.
        devices: devices as [replica][stage].
        trained: segments of the network.
        order: function (number of microbatches) -> the actions of one replica.
        without_gradient: tensors for which no gradient is computed.
        dependencies: engine dependency of each replica, for which readers of its statistics wait.
        guards: engine dependency of each replica, for which its forward passes wait; empty if they write no statistics.
    """

    def __init__(
        self,
        objective: Objective,
        devices: List[List[Context]],
        trained: TrainedNetwork,
        order: Callable[[int], List[StageAction]],
        without_gradient: Collection[Tensor],
        dependencies: Sequence[EngineDependency],
        guards: Sequence[EngineDependency] = (),
    ):
        self.segments, self.inputs, self.heads = trained.segments, trained.inputs, trained.heads
        self.segments_of = [
            [index for index, segment in enumerate(self.segments) if segment.number == number]
            for number in range(len(devices[0]))
        ]
        """Indices of the segments of each stage."""
        self.objective, self.devices, self.without_gradient = objective, devices, without_gradient
        self.head_gradient = HeadGradients()
        self._order, self._dependencies, self.guards = order, dependencies, guards
        self._schedules: Dict[int, List[StageAction]] = {}
        self.fused: Optional[FusedGraph] = None
        """Computes network, loss and meter in one call if one stage has the whole network."""
        self.states: List[List[nd.NDArray]] = []
        """Recurrent state of each shard for the next batch, in the order of their rows."""

    def __call__(self, parts: List[Shares], global_batch_size: int, loss_scale: float) -> List[nd.NDArray]:
        """Returns the meter's sums of each microbatch, and writes gradients of the scaled loss into the parameters."""
        self.head_gradient.scale = loss_scale
        sums: List[nd.NDArray] = []
        self.states = []
        # A single call has no place for guards, which wait before each forward pass.
        fused = None if self.guards else self.fused
        if fused is not None and parts and fused.takes(parts[0][0][0]):
            return self._run_fused(fused, parts, global_batch_size)
        for shares in parts:
            lanes = [Lane(self, replica, share, global_batch_size) for replica, share in enumerate(shares)]
            # Queue one action of every replica before the next one, so that all devices have work from the beginning.
            for actions in zip_longest(*[self._actions(len(share)) for share in shares]):
                for lane, action in zip(lanes, actions):
                    if action is not None:
                        segments = self.segments_of[action.stage]
                        is_forward = action.kind == FORWARD
                        begin = lane.forward if is_forward else lane.backward
                        for index in segments if is_forward else reversed(segments):
                            begin(index, action.microbatch)
            # After all backward passes of a part, since these passes write the moving statistics on CPUs.
            for dependency in self._dependencies[: len(lanes)]:
                dependency()
            sums += [vector for lane in lanes for vector in lane.sums]
            self.states += [lane.states[m] for lane in lanes for m in sorted(lane.states)]
        return sums

    def _run_fused(self, fused: FusedGraph, parts: List[Shares], global_batch_size: int) -> List[nd.NDArray]:
        """Does the same with one forward and one backward call per shard, alternating between replicas."""
        sums: List[nd.NDArray] = []
        for shares in parts:
            sums_of_replica: List[List[nd.NDArray]] = [[] for _ in shares]
            for shards in zip_longest(*shares):
                for replica, batch in enumerate(shards):
                    if batch is not None:
                        loss_B, shard_sums = fused(replica, batch, self.devices[replica][0])
                        loss_B.backward(self.head_gradient(loss_B, batch.size, global_batch_size))
                        sums_of_replica[replica].append(shard_sums)
            for dependency in self._dependencies[: len(shares)]:
                dependency()
            sums += [vector for vectors in sums_of_replica for vector in vectors]
        return sums

    def _actions(self, num_microbatches: int) -> List[StageAction]:
        if num_microbatches not in self._schedules:
            self._schedules[num_microbatches] = self._order(num_microbatches)
        return self._schedules[num_microbatches]


class Lane:
    """Runs the microbatches of one replica through the stages, for one step."""

    def __init__(self, pipeline: Pipelined, replica: int, microbatches: List[Batch], global_batch_size: int):
        self._pipeline, self._replica, self._microbatches = pipeline, replica, microbatches
        self._global_batch_size = global_batch_size
        self._devices = pipeline.devices[replica]
        inputs, unneeded = pipeline.inputs, pipeline.without_gradient
        self._tapes = [Tape(inputs, batch.inputs, unneeded) for batch in microbatches]
        self._losses: Dict[int, nd.NDArray] = {}
        # (microbatch, segment) -> random masks of its first pass.
        self._masks: Dict[Tuple[int, int], List[nd.NDArray]] = {}
        self.sums: List[nd.NDArray] = []
        self.states: Dict[int, List[nd.NDArray]] = {}

    def forward(self, index: int, m: int) -> None:
        """Queues the forward pass of a microbatch through a segment; through the loss, too, if it is the last."""
        segment = self._pipeline.segments[index]
        if isinstance(segment, RecomputedSegment):
            inputs = self._tapes[m].bring(segment.inputs, self._devices[segment.number])
            outputs, self._masks[m, index] = segment.forward(self._replica, inputs)
            self._tapes[m].leave(segment.outputs, outputs)
            return
        objective, device = self._pipeline.objective, self._devices[segment.number]
        tape, batch = self._tapes[m], self._microbatches[m]
        is_last = index == len(self._pipeline.segments) - 1
        # An auxiliary output may leave the network long before its end.
        heads = self._pipeline.heads if is_last else []
        entering = [*segment.inputs, *(head for head in heads if head not in [*segment.inputs, *segment.outputs])]
        inputs = tape.enter(index, entering, device)
        if self._pipeline.guards:
            self._pipeline.guards[self._replica](device)
        with autograd.record():
            outputs = segment(self._replica, inputs[: len(segment.inputs)])
            if is_last:
                values = {**dict(zip(entering, inputs)), **dict(zip(segment.outputs, outputs))}
                outputs = [values[head] for head in heads] or outputs
                outputs = self._keep_state(m, outputs)
                targets = [to_device(target, device) for target in batch.targets]
                losses = as_list(objective.loss(*outputs, *targets))
        if is_last:
            self._losses[m] = losses[0]
            # Outside of `record`: with a graph, metrics would keep the outputs of all microbatches in memory.
            self.sums.append(objective.meter(*losses, *outputs, *targets))
        else:
            tape.leave(segment.outputs, outputs)

    def _keep_state(self, m: int, outputs: List[nd.NDArray]) -> List[nd.NDArray]:
        """Stores the recurrent state of a microbatch, detached; returns the outputs for loss and meter."""
        count = len(self._pipeline.objective.state_shapes)
        if not count:
            return outputs
        # Detach: otherwise gradients would flow back through all earlier batches, whose graphs would stay in memory.
        self.states[m] = [array.detach() for array in outputs[-count:]]
        return outputs[:-count]

    def backward(self, index: int, m: int) -> None:
        """Queues the backward pass of a microbatch through a segment."""
        tape, segment = self._tapes[m], self._pipeline.segments[index]
        if m in self._losses:
            loss_B = self._losses.pop(m)
            size = self._microbatches[m].size
            # Head gradients are scale / global batch, so sums over any division of the batch are the gradient of the
            # mean.
            loss_B.backward(self._pipeline.head_gradient(loss_B, size, self._global_batch_size))
        elif isinstance(segment, RecomputedSegment):
            self._recompute(index, segment, m)
        else:
            outputs, heads = tape.heads(segment.outputs)
            if outputs:
                autograd.backward(outputs, heads)
        tape.keep_input_gradients(index)

    def _recompute(self, index: int, segment: RecomputedSegment, m: int) -> None:
        """Queues a recorded forward pass through a segment, and its backward pass."""
        tape, device, masks = self._tapes[m], self._devices[segment.number], self._masks.pop((m, index))
        gradients = tape.take_gradients(segment.outputs)
        inputs = tape.enter(index, segment.inputs, device)
        if not gradients:
            return
        # The engine would compute the activations of all segments at once, because their inputs exist. After this
        # operator they also depend on the gradient of the next segment.
        EngineDependency(inputs, list(gradients.values()))()
        if self._pipeline.guards:
            self._pipeline.guards[self._replica](device)
        with autograd.record():
            outputs = dict(zip(segment.outputs, segment.again(self._replica, inputs, masks)))
        autograd.backward([outputs[tensor] for tensor in gradients], list(gradients.values()))
