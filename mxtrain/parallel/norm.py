"""Batch normalisation whose mean and variance are over several devices' samples."""

from __future__ import annotations

from typing import Any, List, Sequence

from mxtrain.backend import autograd, nd
from mxtrain.parallel.cut import Piece
from mxtrain.parallel.stage import bring, parameters_by_full_name


class JointNorm:
    """One BatchNorm operator, computed for all shards of a batch together; gradients flow through the joint statistics.

    Mean and variance are sums over the shards, in their order, on the first one's device. The moving statistics of all
    replicas get the same value, biased variance included, as MXNet's operator on the whole batch would leave it.
    Source: Ioffe and Szegedy, https://arxiv.org/abs/1502.03167, algorithm 1.

    Args:
        piece: consists of the operator.
        network: owns its parameters.
        number: its stage.
        devices: [replica][stage].
    """

    def __init__(self, piece: Piece, network: Any, number: int, devices: List[List[Any]]):
        self.number, self.inputs, self.outputs = number, piece.inputs, piece.outputs
        attributes = piece.norm or {}
        self._axis = int(attributes.get("axis", 1))
        self._eps = float(attributes.get("eps", 1e-3))
        self._momentum = float(attributes.get("momentum", 0.9))
        self._fix_gamma = attributes.get("fix_gamma", "True") in ("True", "1")
        parameters = parameters_by_full_name(network)
        gamma, beta, mean, variance = (parameters[name] for name in piece.parameters)
        self._scale = [(gamma.data(stages[number]), beta.data(stages[number])) for stages in devices]
        self._moving = [[statistic.data(stages[number]) for stages in devices] for statistic in (mean, variance)]

    def together(self, replicas: Sequence[int], inputs: Sequence[List[nd.NDArray]]) -> List[List[nd.NDArray]]:
        """The normalised shards."""
        shards = [tensors[0] for tensors in inputs]
        axis = self._axis % shards[0].ndim
        over = tuple(dim for dim in range(shards[0].ndim) if dim != axis)
        shape = [1] * shards[0].ndim
        shape[axis] = shards[0].shape[axis]
        count = sum(shard.size // shard.shape[axis] for shard in shards)
        mean = self._sum([shard.sum(axis=over) for shard in shards]) / count
        centred = [
            nd.broadcast_sub(shard, bring(mean, shard.context).reshape(shape)) for shard in shards
        ]  # fmt: skip
        variance = self._sum([nd.square(shard).sum(axis=over) for shard in centred]) / count
        inverse = nd.rsqrt(variance + self._eps)
        outputs = []
        for replica, shard in zip(replicas, centred):
            gamma, beta = self._scale[replica]
            scale = bring(inverse, shard.context)
            scale = scale if self._fix_gamma else scale * gamma
            outputs.append([nd.broadcast_add(nd.broadcast_mul(shard, scale.reshape(shape)), beta.reshape(shape))])
        with autograd.pause():
            for copies, value in zip(self._moving, (mean, variance)):
                moved = self._momentum * copies[0] + (1 - self._momentum) * bring(value, copies[0].context)
                for copy in copies:
                    moved.copyto(copy)
        return outputs

    @staticmethod
    def _sum(parts: List[nd.NDArray]) -> nd.NDArray:
        return parts[0] if len(parts) == 1 else nd.add_n(*[bring(part, parts[0].context) for part in parts])
