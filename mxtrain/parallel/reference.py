"""The reference for `verify`: computes on one device, shard by shard, what a placement must compute."""

from __future__ import annotations

from itertools import groupby, zip_longest
from typing import TYPE_CHECKING, Iterator, List, Sequence, Tuple

from mxtrain.engine.backend import nd
from mxtrain.parallel.base import Objective
from mxtrain.parallel.grid import Grid
from mxtrain.parallel.lockstep import Division
from mxtrain.parallel.shares import split
from mxtrain.parallel.statistics import moving_statistics
from mxtrain.parallel.strategies import ModelParallel, Parallel, Single
from mxtrain.types import Batch

if TYPE_CHECKING:
    from mxnet import Context

Turn = Tuple[int, int, int]
"""Which worker computes a shard, in which of the parts that it accumulates, with which replica."""


class Reference(Grid):
    """The gradients that `parallel` must give, from the same shards of the batch on one device.

    Batch normalisation sees the samples that it sees under `parallel`. Sums are made in the order in which replicas and
    their microbatches are counted: a placement that adds in this order must give the same bits.

    Args:
        objective: as the placement's.
        device: where everything happens.
        parallel: the placement.
        num_replicas: copies of the network at each worker.
        num_workers: how many there are.
        grad_accumulation: as the placement's.
        cut_before: layers that begin a stage; uncut if empty. A cut changes the memory layouts that oneDNN's kernels
            get, and with them the last bits.
    """

    def __init__(
        self, objective: Objective, device: Context, parallel: Parallel, num_replicas: int, grad_accumulation: int,
        cut_before: Sequence[str] = (), num_workers: int = 1,
    ):  # fmt: skip
        self._num_replicas, self._num_micro = num_replicas, parallel.num_microbatches()
        joint = parallel.batch_norm
        self._division = (
            None if joint == "per_device"
            else Division(grad_accumulation, num_replicas, self._num_micro, over_microbatches=joint == "global")
        )  # fmt: skip
        # Gradients are added up over the shards of a copy.
        stages = ModelParallel(cut_before=list(cut_before)) if cut_before else Single()
        devices = [[device] * (1 + len(cut_before))]
        super().__init__(objective, devices, stages, grad_accumulation * self._num_micro)
        self._parts, self._num_shares = grad_accumulation, num_workers
        self._moving = [replicas[0] for replicas in moving_statistics(self._parameters, self._copies)]

    def forward_backward(self, batch: Batch) -> nd.NDArray:
        batch = self._state.enter(self._tables.enter(batch))
        sums: List[Tuple[Turn, nd.NDArray]] = []
        states: List[Tuple[Turn, List[nd.NDArray]]] = []
        before = [array.copy() for array in self._moving]
        gradients: List[List[nd.NDArray]] = []
        statistics: List[List[nd.NDArray]] = []
        for shards in self._copies_of(batch):
            for array, value in zip(self._moving, before):
                value.copyto(array)
            if self._accumulates:
                self._zero([0])
            for turn, shard in shards:
                sums += [(turn, one) for one in self._executor([[[shard]]], batch.size, self.loss_scale)]
                states += [(turn, one) for one in self._executor.states]
            gradients.append([reduction.replicas[0].copy() for reduction in self.reductions])
            statistics.append([array.copy() for array in self._moving])
        for reduction, parts in zip(self.reductions, zip(*gradients)):
            nd.add_n(*parts).copyto(reduction.replicas[0])
        for array, parts in zip(self._moving, zip(*statistics)):
            (nd.add_n(*parts) * (1.0 / len(parts))).copyto(array)
        self._state.leave([one for _, one in sorted(states, key=lambda one: one[0])])
        return _total(sums)

    def _groups(self, batch: Batch, division: Division) -> Iterator[Batch]:
        """The groups of samples that batch norms of all workers see together."""
        workers = []
        for own in split(batch, self._num_shares):
            parts = [
                [list(split(share, self._num_micro)) for share in split(part, self._num_replicas)]
                for part in split(own, self._parts)
            ]
            workers.append([division.groups(shares) for shares in parts])
        for parts_of_workers in zip_longest(*workers, fillvalue=[]):
            for groups in zip_longest(*parts_of_workers, fillvalue=[]):
                yield _join([shard for group in groups for _, shard in group])

    def _copies_of(self, batch: Batch) -> List[List[Tuple[Turn, Batch]]]:
        """The shards of each replica, in the order in which it works on them, each with its turn."""
        if self._division is not None:
            return [[((0, 0, 0), group) for group in self._groups(batch, self._division)]]
        copies: List[List[Tuple[Turn, Batch]]] = []
        for worker, own in enumerate(split(batch, self._num_shares)):
            before = len(copies)
            for turn, part in enumerate(split(own, self._parts)):
                for number, share in enumerate(split(part, self._num_replicas), start=before):
                    if number == len(copies):
                        copies.append([])
                    copies[number] += (((worker, turn, number), shard) for shard in split(share, self._num_micro))
        return copies


def _total(sums: Sequence[Tuple[Turn, nd.NDArray]]) -> nd.NDArray:
    """The sum of all, added up as workers do: each its own, one accumulated part after the other and in it one replica
    after the other, and then those of all workers. Weights that are no whole numbers have other last bits otherwise."""
    ordered = sorted(sums, key=lambda one: one[0])
    totals = [nd.add_n(*(one for _, one in own)) for _, own in groupby(ordered, key=lambda one: one[0][0])]
    return nd.add_n(*totals)


def _join(shards: List[Batch]) -> Batch:
    inputs, targets = (
        tuple(nd.concat(*parts, dim=0) for parts in zip(*arrays))
        for arrays in ([shard.inputs for shard in shards], [shard.targets for shard in shards])
    )
    return Batch(inputs, targets, sum(shard.size for shard in shards))
