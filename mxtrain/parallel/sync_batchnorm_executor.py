"""Synchronised batch norm: runs each piece of a network for all shards before the next piece.

The network is cut at its batch norms, so that a batch norm sees the samples of several devices, microbatches or workers
together. Legend: W workers.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, Dict, List, Protocol, Sequence, Tuple

from mxtrain.engine.backend import autograd, nd
from mxtrain.kvstore.store import Store
from mxtrain.kvstore.world import World, bounds
from mxtrain.parallel.cut import Cuttable, Tensor
from mxtrain.parallel.engine_dependency import EngineDependency
from mxtrain.parallel.layout import Shares
from mxtrain.parallel.objective import Objective
from mxtrain.parallel.stage import Stage, as_list
from mxtrain.parallel.tape import HeadGradients, Tape
from mxtrain.types import Batch

if TYPE_CHECKING:
    from mxnet import Context

Group = List[Tuple[int, Batch]]
"""Shards that batch norms see together: (replica, microbatch)."""


class GroupPiece(Protocol):
    """A piece of a network that runs for all shards of a group."""

    number: int
    inputs: List[Tensor]
    outputs: List[Tensor]

    def forward(
        self, replicas: Sequence[int], inputs: Sequence[List[nd.NDArray]], counts: Sequence[int]
    ) -> List[List[nd.NDArray]]:
        """Runs the forward pass.

        Args:
            replicas: replica of each shard.
            inputs: input tensors of each shard.
            counts: number of samples of the group on each worker.

        Returns:
            The output tensors of each shard.
        """

    def backward(self, outputs: Sequence[nd.NDArray], heads: Sequence[nd.NDArray]) -> None:
        """Writes the gradients of the inputs and parameters."""


class SyncBatchNormExecutor:
    """Runs groups of shards.

    Batch norms communicate, so all workers must run the same groups in the same order, even groups in which they have
    no samples.

    Args:
        objective: loss and meter.
        devices: devices as [replica][stage].
        pieces: `Recorded` pieces, and each synchronised batch norm as a separate piece.
        graph: graph of the network.
        division: division of a worker's share into groups.
        workers: store by which workers exchange statistics.
        dependencies: one for each replica, for batch norms that are not synchronised.
    """

    def __init__(
        self,
        objective: Objective,
        devices: List[List[Context]],
        pieces: List[GroupPiece],
        graph: Cuttable,
        division: NormGroups,
        workers: Store,
        dependencies: Sequence[EngineDependency],
    ):
        self._objective, self._devices, self._pieces, self._graph = objective, devices, pieces, graph
        self._division, self._workers, self._dependencies = division, workers, dependencies
        self.head_gradient = HeadGradients()
        self.states: List[List[nd.NDArray]] = []
        """Recurrent state for the next batch: always empty, because `Executors` rejects it."""

    def __call__(self, parts: List[Shares], global_batch_size: int, loss_scale: float) -> List[nd.NDArray]:
        """Returns the meter's sums of each shard, and writes gradients of the scaled loss into the parameters."""
        self.head_gradient.scale = loss_scale
        sums: List[nd.NDArray] = []
        # Each worker derives the counts of all workers from the batch size, so no message is needed.
        counts = self._division.counts(global_batch_size, self._workers.world)
        # A worker with fewer groups than others takes part in their collectives without samples.
        for number, counts_of_groups in enumerate(counts):
            groups = self._division.groups(parts[number]) if number < len(parts) else []
            for index, counts_W in enumerate(counts_of_groups):
                sums += self._run(groups[index] if index < len(groups) else [], counts_W, global_batch_size)
        active = max(map(len, parts), default=0)
        for dependency in self._dependencies[:active]:
            dependency()
        return sums

    def _run(self, group: Group, counts_W: Sequence[int], global_batch_size: int) -> List[nd.NDArray]:
        graph, pieces = self._graph, self._pieces
        replicas = [replica for replica, _ in group]
        tapes = [Tape(graph.inputs, batch.inputs, graph.without_gradient) for _, batch in group]
        for number, piece in enumerate(pieces):
            inputs = [
                tape.enter(number, piece.inputs, self._devices[replica][piece.number])
                for replica, tape in zip(replicas, tapes)
            ]
            for tape, outputs in zip(tapes, piece.forward(replicas, inputs, counts_W)):
                tape.leave(piece.outputs, outputs)
        sums = [
            self._compute_loss(tape, batch, self._devices[replica][-1], global_batch_size)
            for tape, (replica, batch) in zip(tapes, group)
        ]
        # The host orders the backward pass, because autograd's threads would reach collectives in another order on each
        # worker.
        for number, piece in reversed(list(enumerate(pieces))):
            found = [tape.heads(piece.outputs) for tape in tapes]
            piece.backward([output for outputs, _ in found for output in outputs], [h for _, hs in found for h in hs])
            for tape in tapes:
                tape.keep_input_gradients(number)
        return sums

    def _compute_loss(self, tape: Tape, batch: Batch, device: Context, global_batch_size: int) -> nd.NDArray:
        """Computes the loss of a shard, its backward pass, and the meter's sums. The loss counts as the last piece."""
        last = len(self._pieces)
        outputs = tape.enter(last, self._graph.heads, device)
        targets = [target.as_in_context(device) for target in batch.targets]
        with autograd.record():
            losses = as_list(self._objective.loss(*outputs, *targets))
        losses[0].backward(self.head_gradient(losses[0], batch.size, global_batch_size))
        tape.keep_input_gradients(last)
        return self._objective.meter(*losses, *outputs, *targets)


class Recorded:
    """A piece without synchronised batch norms, which computes each shard independently.

    Args:
        piece: the piece, with a copy on each replica.
    """

    def __init__(self, piece: Stage):
        self._piece = piece
        self.number, self.inputs, self.outputs = piece.number, piece.inputs, piece.outputs

    def forward(
        self, replicas: Sequence[int], inputs: Sequence[List[nd.NDArray]], counts: Sequence[int]
    ) -> List[List[nd.NDArray]]:
        """Runs the forward pass and returns the output tensors of each shard."""
        with autograd.record():
            return [self._piece(replica, tensors) for replica, tensors in zip(replicas, inputs)]

    def backward(self, outputs: Sequence[nd.NDArray], heads: Sequence[nd.NDArray]) -> None:
        """Writes the gradients of the inputs and parameters."""
        if outputs:
            autograd.backward(list(outputs), list(heads))


class NormGroups:
    """Divides each worker's share of a batch into groups of shards.

    Args:
        num_parts: parts of a share by gradient accumulation.
        num_replicas: replicas of each worker.
        num_microbatches: microbatches of each replica.
        over_microbatches: if True, a group has all microbatches of all replicas; otherwise the microbatches with the
            same number of all replicas.
    """

    def __init__(self, num_parts: int, num_replicas: int, num_microbatches: int, over_microbatches: bool):
        self._num_parts, self._num_replicas, self._num_microbatches = num_parts, num_replicas, num_microbatches
        self._over_microbatches = over_microbatches
        self._counts: Dict[Tuple[int, World], List[List[List[int]]]] = {}

    def groups(self, shares: Shares) -> List[Group]:
        """Returns the groups of one part."""
        if self._over_microbatches:
            return [[(replica, batch) for replica, share in enumerate(shares) for batch in share]] if shares else []
        return [
            [(replica, share[m]) for replica, share in enumerate(shares) if m < len(share)]
            for m in range(max(map(len, shares), default=0))
        ]

    def counts(self, global_batch_size: int, world: World) -> List[List[List[int]]]:
        """Returns the number of samples of each worker in each group, [part][group][worker]. Cached."""
        key = (global_batch_size, world)
        if key not in self._counts:
            own = [self._sizes(worker, global_batch_size, world) for worker in range(world.size)]
            self._counts[key] = [
                [list(workers) for workers in zip_longest(*parts, fillvalue=0)]
                for parts in zip_longest(*own, fillvalue=[])
            ]
        return self._counts[key]

    def _sizes(self, worker: int, global_batch_size: int, world: World) -> List[List[int]]:
        """Returns the number of samples of one worker in each group, [part][group]."""
        begin, end = world.share_of(worker, global_batch_size)
        parts = sizes(end - begin, self._num_parts)
        if self._over_microbatches:
            return [[part] for part in parts]
        shares = [[sizes(s, self._num_microbatches) for s in sizes(part, self._num_replicas)] for part in parts]
        return [[sum(shards) for shards in zip_longest(*replicas, fillvalue=0)] for replicas in shares]


def sizes(count: int, num_parts: int) -> List[int]:
    """Returns the sizes of at most `num_parts` non-empty parts of `count` samples."""
    num_parts = min(num_parts, count)
    return [end - begin for begin, end in (bounds(count, num_parts, part) for part in range(num_parts))]
