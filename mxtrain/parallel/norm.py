"""Batch normalisation whose mean and variance are over the samples of several devices, and of several workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, List, Sequence, Tuple

import numpy as np

from mxtrain.engine.backend import autograd, gluon, nd
from mxtrain.kvstore.store import Store
from mxtrain.model.graph.trace import blocks_by_path
from mxtrain.parallel.cut import Piece
from mxtrain.parallel.stage import bring, parameters_by_full_name

if TYPE_CHECKING:
    from mxnet import Context


class JointNorm:
    """One batch-norm operator, computed for all shards of a batch together, wherever they are.

        shards -> own mean and variance -> those of this worker -> gather -> joint mean and variance -> shards
        gradients -> sums over own shards -> gather -> what mean and variance pass on -> gradients of the shards

    All workers gather once on the way there and once on the way back, those without samples, too. Rows come in the
    order of the ranks, so every worker computes the same from them. The moving statistics of all replicas get the same
    value, biased variance included, as MXNet's operator on the whole batch would leave it.
    Source: Ioffe and Szegedy, https://arxiv.org/abs/1502.03167, algorithm 1; means and variances are put together as in
    Chan et al., https://doi.org/10.2307/2683386.

    Args:
        piece: consists of the operator.
        network: owns its parameters.
        number: its stage.
        devices: [replica][stage].
        workers: the store that sums over workers.
        passes_on: whether what enters needs a gradient.
    """

    def __init__(
        self, piece: Piece, network: gluon.Block, number: int, devices: List[List[Context]], workers: Store,
        passes_on: bool,
    ):  # fmt: skip
        self.number, self.inputs, self.outputs = number, piece.inputs, piece.outputs
        self._workers, self._passes_on, self._device = workers, passes_on, devices[0][number]
        attributes = piece.norm or {}
        self._axis = int(attributes.get("axis", 1))
        self._eps = float(attributes.get("eps", 1e-3))
        self._momentum = float(np.float32(attributes.get("momentum", 0.9)))  # MXNet rounds it so in float64, too
        self._fix_gamma = attributes.get("fix_gamma", "True") in ("True", "1")
        self._rectifies = attributes["op"] == "_contrib_BatchNormWithReLU"
        parameters = parameters_by_full_name(network)
        self._gamma, self._beta, mean, variance = (parameters[name] for name in piece.parameters)
        self._places = [stages[number] for stages in devices]
        self._moving = [[statistic.data(place) for place in self._places] for statistic in (mean, variance)]
        self._fractions: Dict[Tuple[Tuple[int, ...], Context, type], nd.NDArray] = {}
        self._going: List[_Shard] = []
        self._joint: Any = None

    def forward(
        self, replicas: Sequence[int], inputs: Sequence[List[nd.NDArray]], counts: Sequence[int]
    ) -> List[List[nd.NDArray]]:
        """Returns the normalised shards.

        Args:
            replicas: of each shard.
            inputs: of each shard, one tensor; shards follow each other along its first dim.
            counts: per worker, samples of all of its shards.
        """
        self._going = [
            _Shard(replica, tensors[0], *self._scale(replica)) for replica, tensors in zip(replicas, inputs)
        ]  # fmt: skip
        rows = [bring(self._own_statistics(shard.input), self._device) for shard in self._going]
        sizes = [shard.input.shape[0] for shard in self._going]
        own = self._together(rows, sizes) if rows else self._zeros()
        rows_WN = self._workers.gather(own)
        joint = self._together([rows_WN[rank] for rank in range(len(counts))], counts)
        # A network may have made several rows of each sample.
        rows_of_sample = sum(sizes) // counts[self._workers.world.rank] if sizes else 1
        self._joint = (joint, sum(counts) * rows_of_sample)
        mean, variance = nd.split(joint, num_outputs=2, axis=0)
        self._move(mean, variance)
        for shard in self._going:
            own_mean, own_variance = (bring(value, shard.input.context) for value in (mean, variance))
            shard.statistics = (own_mean, own_variance)
            with autograd.record():
                shard.output = self._apply(shard.input, shard.gamma, shard.beta, shard.statistics)
                if self._rectifies:
                    shard.output = nd.relu(shard.output)
        return [[shard.output] for shard in self._going]

    def backward(self, outputs: Sequence[nd.NDArray], heads: Sequence[nd.NDArray]) -> None:
        """Writes the gradients of the inputs, of gamma and of beta.

        Args:
            outputs: what `forward` returned; none where no gradient is needed.
            heads: their gradients.
        """
        shards, (joint, count) = self._going, self._joint
        self._going, self._joint = [], None
        if outputs:
            autograd.backward(list(outputs), list(heads))  # as if mean and variance were constants
            for shard in shards:
                self._keep_gradients(shard)
        if not self._passes_on:
            return
        rows = [bring(nd.concat(shard.gamma.grad, shard.beta.grad, dim=0), self._device) for shard in shards]
        own = nd.add_n(*rows) if rows else self._zeros()
        total = self._workers.gather(own).sum(axis=0)
        if not shards:
            return
        _, variance = nd.split(joint, num_outputs=2, axis=0)
        inverse = nd.rsqrt(variance + self._eps)
        first = shards[0].input
        positions = first.size // first.shape[0] // first.shape[self._axis]
        sums = [part * inverse * (-1.0 / (count * positions)) for part in nd.split(total, num_outputs=2, axis=0)]
        # What mean and variance pass on is linear in the normalised input: a batch norm with this gamma and beta.
        for shard in shards:
            gamma, beta = (bring(part, shard.input.context) * shard.gamma for part in sums)
            passed_on = self._apply(shard.input, gamma, beta, shard.statistics)
            nd.elemwise_add(shard.input.grad, passed_on, out=shard.input.grad)

    def _scale(self, replica: int) -> Tuple[nd.NDArray, nd.NDArray]:
        """gamma and beta as variables of this graph."""
        gamma, beta = (parameter.data(self._places[replica]) for parameter in (self._gamma, self._beta))
        found = (nd.ones_like(gamma) if self._fix_gamma else gamma.detach(), beta.detach())
        for array in found:
            array.attach_grad()
        return found

    def _keep_gradients(self, shard: _Shard) -> None:
        place = self._places[shard.replica]
        for parameter, gradient in ((self._gamma, shard.gamma.grad), (self._beta, shard.beta.grad)):
            if parameter.grad_req == "null":
                continue
            kept = parameter.grad(place)
            if parameter is self._gamma and self._fix_gamma:
                gradient = nd.zeros_like(kept)
            if parameter.grad_req == "add":
                nd.elemwise_add(kept, gradient, out=kept)
            else:
                gradient.copyto(kept)

    # MXNet's operator does the work, in one pass each; broadcasts and sums over axes take five times as long.

    def _own_statistics(self, shard: nd.NDArray) -> nd.NDArray:
        """Mean and variance of one shard, (2 C,)."""
        like = self._moving[0][0]
        ones, zeros = (nd.full(like.shape, value, ctx=shard.context, dtype=like.dtype) for value in (1, 0))
        # In training mode it computes statistics; the moving ones that it writes are thrown away (see `_move`).
        with autograd.train_mode():
            _, mean, inverse = nd.BatchNorm(
                shard, ones, zeros, nd.zeros_like(zeros), nd.ones_like(ones), eps=self._eps, axis=self._axis,
                fix_gamma=False, output_mean_var=True,
            )  # fmt: skip
        # What it calls the variance is 1 / sqrt(variance + eps). Rounding may bring a variance of 0 below 0.
        return nd.concat(mean, nd.maximum(1 / nd.square(inverse) - self._eps, 0), dim=0)

    def _apply(
        self, shard: nd.NDArray, gamma: nd.NDArray, beta: nd.NDArray, statistics: Tuple[nd.NDArray, nd.NDArray]
    ) -> nd.NDArray:
        return nd.BatchNorm(
            shard, gamma, beta, *statistics, eps=self._eps, axis=self._axis, fix_gamma=False, use_global_stats=True
        )

    def _together(self, rows: Sequence[nd.NDArray], sizes: Sequence[int]) -> nd.NDArray:
        """Returns mean and variance of all samples, (2 C,), from mean and variance of parts, (2 C,) each, and the
        parts' sizes."""
        if len(rows) == 1:
            return rows[0]
        whole = sum(sizes)
        key = (tuple(sizes), rows[0].context, rows[0].dtype)
        if key not in self._fractions:
            column = np.array(sizes, np.float64).reshape((-1, 1)) / whole
            self._fractions[key] = nd.array(column, ctx=rows[0].context, dtype=rows[0].dtype)
        fractions = self._fractions[key]
        means, variances = nd.split(nd.stack(*rows), num_outputs=2, axis=1)
        mean = nd.broadcast_mul(means, fractions).sum(axis=0)
        off = nd.square(nd.broadcast_sub(means, mean.reshape((1, -1))))
        return nd.concat(mean, nd.broadcast_mul(variances + off, fractions).sum(axis=0), dim=0)

    def _zeros(self) -> nd.NDArray:
        """Returns the statistics of a worker without samples: zeros."""
        return nd.zeros((2 * self._moving[0][0].size,), ctx=self._device, dtype=self._moving[0][0].dtype)

    def _move(self, mean: nd.NDArray, variance: nd.NDArray) -> None:
        for copies, value in zip(self._moving, (mean, variance)):
            moved = self._momentum * copies[0] + (1 - self._momentum) * bring(value, copies[0].context)
            for copy in copies:
                moved.copyto(copy)


def limit_sync_batch_norms(network: gluon.Block) -> None:
    """Makes every gluon SyncBatchNorm wait for one device only: `parallel.batch_norm` says what batch norms take their
    mean over. It would wait for as many devices as it was told, for ever if there are fewer."""
    norms = [block for _, block in blocks_by_path(network) if isinstance(block, gluon.contrib.nn.SyncBatchNorm)]
    for block in norms:
        block._kwargs["ndev"] = 1
    for _, block in blocks_by_path(network) if norms else ():
        if isinstance(block, gluon.HybridBlock):
            block._clear_cached_op()  # it may have been traced before


class _Shard:
    """The values that the backward pass of a shard needs.

    Attributes:
        statistics: joint mean and variance, on its device.
    """

    statistics: Tuple[nd.NDArray, nd.NDArray]
    output: nd.NDArray

    def __init__(self, replica: int, input: nd.NDArray, gamma: nd.NDArray, beta: nd.NDArray):
        self.replica, self.input, self.gamma, self.beta = replica, input, gamma, beta
