"""Batch normalisation whose mean and variance are over the samples of several devices, and of several workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, List, Sequence, Tuple

import numpy as np

from mxtrain.engine.backend import autograd, gluon, nd
from mxtrain.kvstore.store import Store
from mxtrain.model.graph.trace import blocks_by_path
from mxtrain.parallel.cut import Piece
from mxtrain.parallel.stage import parameters_by_full_name, to_device

if TYPE_CHECKING:
    from mxnet import Context


class JointNorm:
    """A batch-norm operator that is synchronised over all shards of a batch, on all devices and workers.

        shards -> mean and variance of each -> combined per worker -> gather -> combined over workers -> shards
        gradients -> sums over this worker's shards -> gather -> gradients through mean and variance -> shards

    Workers gather once in the forward and once in the backward pass, including workers without samples. Rows arrive in
    rank order, so every worker computes the same result. The moving statistics of all replicas get the value that
    MXNet's operator would compute on the whole batch, with its biased variance.
    Source: Ioffe and Szegedy, https://arxiv.org/abs/1502.03167, algorithm 1; means and variances are combined as in
    Chan et al., https://doi.org/10.2307/2683386.

    Args:
        piece: piece that consists of the operator alone.
        network: network with its parameters.
        number: stage of the operator.
        devices: devices as [replica][stage].
        workers: store that gathers over workers.
        passes_on: True if the input needs a gradient.
    """

    def __init__(
        self,
        piece: Piece,
        network: gluon.Block,
        number: int,
        devices: List[List[Context]],
        workers: Store,
        passes_on: bool,
    ):
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
        self._replica_devices = [stages[number] for stages in devices]
        self._moving = [[statistic.data(device) for device in self._replica_devices] for statistic in (mean, variance)]
        self._fractions: Dict[Tuple[Tuple[int, ...], Context, type], nd.NDArray] = {}
        self._shards: List[_Shard] = []
        self._joint: Any = None

    def forward(
        self, replicas: Sequence[int], inputs: Sequence[List[nd.NDArray]], counts: Sequence[int]
    ) -> List[List[nd.NDArray]]:
        """Returns the normalised shards.

        Args:
            replicas: replica of each shard.
            inputs: input tensor of each shard, in a list of one; shards are consecutive rows of the batch.
            counts: number of samples of each worker.
        """
        self._shards = [
            _Shard(replica, tensors[0], *self._scale(replica)) for replica, tensors in zip(replicas, inputs)
        ]
        rows = [to_device(self._shard_statistics(shard.input), self._device) for shard in self._shards]
        sizes = [shard.input.shape[0] for shard in self._shards]
        local_statistics = self._combine(rows, sizes) if rows else self._zeros()
        # Mean and variance travel in one message; a sum of squares around a common mean would need two.
        rows_WN = self._workers.gather(local_statistics)
        joint = self._combine([rows_WN[rank] for rank in range(len(counts))], counts)
        # A network may have made several rows of each sample.
        rows_of_sample = sum(sizes) // counts[self._workers.world.rank] if sizes else 1
        self._joint = (joint, sum(counts) * rows_of_sample)
        mean, variance = nd.split(joint, num_outputs=2, axis=0)
        self._update_moving(mean, variance)
        for shard in self._shards:
            mean_copy, variance_copy = (to_device(value, shard.input.context) for value in (mean, variance))
            shard.statistics = (mean_copy, variance_copy)
            with autograd.record():
                shard.output = self._apply(shard.input, shard.gamma, shard.beta, shard.statistics)
                if self._rectifies:
                    shard.output = nd.relu(shard.output)
        return [[shard.output] for shard in self._shards]

    def backward(self, outputs: Sequence[nd.NDArray], heads: Sequence[nd.NDArray]) -> None:
        """Writes the gradients of the inputs, of gamma and of beta.

        Args:
            outputs: outputs of `forward`; empty if no gradient is needed.
            heads: gradients of the outputs.
        """
        shards, (joint, count) = self._shards, self._joint
        self._shards, self._joint = [], None
        if outputs:
            # Mean and variance are constants here; their part of the gradient is added below.
            autograd.backward(list(outputs), list(heads))
            for shard in shards:
                self._keep_gradients(shard)
        if not self._passes_on:
            return
        rows = [to_device(nd.concat(shard.gamma.grad, shard.beta.grad, dim=0), self._device) for shard in shards]
        local_sum = nd.add_n(*rows) if rows else self._zeros()
        total = self._workers.gather(local_sum).sum(axis=0)
        # Only after the gather, in which workers without samples must take part.
        if not shards:
            return
        _, variance = nd.split(joint, num_outputs=2, axis=0)
        inverse = nd.rsqrt(variance + self._eps)
        first = shards[0].input
        positions = first.size // first.shape[0] // first.shape[self._axis]
        sums = [part * inverse * (-1.0 / (count * positions)) for part in nd.split(total, num_outputs=2, axis=0)]
        # The gradient through mean and variance is linear in the normalised input: a norm with this gamma and beta.
        for shard in shards:
            gamma, beta = (to_device(part, shard.input.context) * shard.gamma for part in sums)
            passed_on = self._apply(shard.input, gamma, beta, shard.statistics)
            nd.elemwise_add(shard.input.grad, passed_on, out=shard.input.grad)

    def _scale(self, replica: int) -> Tuple[nd.NDArray, nd.NDArray]:
        """Returns gamma and beta as variables of the recorded graph."""
        gamma, beta = (parameter.data(self._replica_devices[replica]) for parameter in (self._gamma, self._beta))
        scale = (nd.ones_like(gamma) if self._fix_gamma else gamma.detach(), beta.detach())
        for array in scale:
            array.attach_grad()
        return scale

    def _keep_gradients(self, shard: _Shard) -> None:
        device = self._replica_devices[shard.replica]
        for parameter, gradient in ((self._gamma, shard.gamma.grad), (self._beta, shard.beta.grad)):
            if parameter.grad_req == "null":
                continue
            target = parameter.grad(device)
            if parameter is self._gamma and self._fix_gamma:
                gradient = nd.zeros_like(target)
            if parameter.grad_req == "add":
                nd.elemwise_add(target, gradient, out=target)
            else:
                gradient.copyto(target)

    # MXNet's operator computes these in one pass; broadcasts and sums over axes would take five times as long.

    def _shard_statistics(self, shard: nd.NDArray) -> nd.NDArray:
        """Returns mean and variance of one shard, (2 C,)."""
        like = self._moving[0][0]
        ones, zeros = (nd.full(like.shape, value, ctx=shard.context, dtype=like.dtype) for value in (1, 0))
        # In training mode it computes statistics; the moving ones that it writes are discarded (see `_update_moving`).
        with autograd.train_mode():
            _, mean, inverse = nd.BatchNorm(
                shard,
                ones,
                zeros,
                nd.zeros_like(zeros),
                nd.ones_like(ones),
                eps=self._eps,
                axis=self._axis,
                fix_gamma=False,
                output_mean_var=True,
            )
        # The operator's "variance" output is 1 / sqrt(variance + eps). Rounding may to_device a variance of 0 below 0.
        return nd.concat(mean, nd.maximum(1 / nd.square(inverse) - self._eps, 0), dim=0)

    def _apply(
        self, shard: nd.NDArray, gamma: nd.NDArray, beta: nd.NDArray, statistics: Tuple[nd.NDArray, nd.NDArray]
    ) -> nd.NDArray:
        # For 64 x 16 x 32 x 32 on one core this takes 8 ms with its backward pass; broadcasts take 24 ms for the mean
        # and square.
        return nd.BatchNorm(
            shard, gamma, beta, *statistics, eps=self._eps, axis=self._axis, fix_gamma=False, use_global_stats=True
        )

    def _combine(self, rows: Sequence[nd.NDArray], sizes: Sequence[int]) -> nd.NDArray:
        """Combines mean and variance (2 C,) of several parts.

        Args:
            rows: mean and variance of each part, (2 C,).
            sizes: number of samples of each part.
        """
        if len(rows) == 1:
            return rows[0]
        total = sum(sizes)
        key = (tuple(sizes), rows[0].context, rows[0].dtype)
        if key not in self._fractions:
            column = np.array(sizes, np.float64).reshape((-1, 1)) / total
            self._fractions[key] = nd.array(column, ctx=rows[0].context, dtype=rows[0].dtype)
        fractions = self._fractions[key]
        means, variances = nd.split(nd.stack(*rows), num_outputs=2, axis=1)
        mean = nd.broadcast_mul(means, fractions).sum(axis=0)
        squared_offset = nd.square(nd.broadcast_sub(means, mean.reshape((1, -1))))
        return nd.concat(mean, nd.broadcast_mul(variances + squared_offset, fractions).sum(axis=0), dim=0)

    def _zeros(self) -> nd.NDArray:
        """Returns the statistics of a worker without samples: zeros."""
        return nd.zeros((2 * self._moving[0][0].size,), ctx=self._device, dtype=self._moving[0][0].dtype)

    def _update_moving(self, mean: nd.NDArray, variance: nd.NDArray) -> None:
        for copies, value in zip(self._moving, (mean, variance)):
            updated = self._momentum * copies[0] + (1 - self._momentum) * to_device(value, copies[0].context)
            for copy in copies:
                updated.copyto(copy)


def limit_sync_batch_norms(network: gluon.Block) -> None:
    """Makes every gluon SyncBatchNorm wait for one device only, because `parallel.batch_norm` synchronises batch norms.

    A SyncBatchNorm waits for its `num_devices`, and would hang if there are fewer.
    """
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
