"""Experts on several workers: each worker has some of the experts of a layer, and `alltoall` sends tokens to them.

    horovodrun -np 2 --gloo python examples/experts/expert_parallel.py

Every worker routes its own tokens to the best two experts:

    own tokens -> alltoall -> tokens of all workers for the own experts -> experts -> alltoall -> outputs of own tokens

The program trains a layer for a few steps and compares it with the same layer with all experts on one worker.

Legend: N tokens of a worker, U units, E experts, K experts of a token, R rows that a worker receives.
"""

from __future__ import annotations

import sys
from typing import Any, List, Tuple

import horovod.mxnet as hvd
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, nd

NUM_EXPERTS, EXPERTS_PER_TOKEN, UNITS, HIDDEN = 8, 2, 16, 64
NUM_TOKENS, STEPS, LR = 48, 5, 0.5


class AllToAll(autograd.Function):
    """Sends rows to other workers. The gradient goes the opposite way.

    Args:
        splits: number of rows for each worker.
        received: number of rows from each worker.
        name: name of the operation, the same on all workers.
    """

    def __init__(self, splits: np.ndarray, received: np.ndarray, name: str):
        super().__init__()
        self._splits, self._received, self._name = splits, received, name

    def forward(self, row_NU: nd.NDArray) -> nd.NDArray:
        return exchange(row_NU, self._splits, self._name)

    def backward(self, grad_RU: nd.NDArray) -> nd.NDArray:
        return exchange(grad_RU, self._received, f"{self._name}.grad")


def exchange(row_NU: nd.NDArray, splits: np.ndarray, name: str) -> nd.NDArray:
    """Sends `splits[r]` rows to worker r; returns the rows received, in the order of the workers."""
    # MXNet has no arrays without rows, which a worker that gets no tokens would need: each part has a row of zeros.
    parts, begin = [], 0
    for size in splits:
        parts += [nd.zeros((1, row_NU.shape[1])), row_NU[begin : begin + int(size)]][: 1 + (size > 0)]
        begin += int(size)
    found, counts = hvd.alltoall(nd.concat(*parts, dim=0), splits=(splits + 1).tolist(), name=name)
    ends = np.cumsum(counts.asnumpy())
    kept = [number for end, size in zip(ends, counts.asnumpy()) for number in range(end - size + 1, end)]
    return found.take(nd.array(kept)) if kept else nd.zeros((1, row_NU.shape[1]))


class ParallelExperts:
    """A layer of experts of which this worker has the ones in `own`. Rows are sent in the order of their experts."""

    def __init__(self, rank: int, size: int):
        per_worker = NUM_EXPERTS // size
        self.size, self.own = size, range(rank * per_worker, (rank + 1) * per_worker)
        self.router = gluon.nn.Dense(NUM_EXPERTS, use_bias=False, in_units=UNITS)
        self.experts = [build_expert() for _ in range(NUM_EXPERTS)]
        for number, block in enumerate([self.router, *self.experts]):
            mx.random.seed(number)  # the same weights on any number of workers
            block.initialize(mx.init.Normal(0.3), force_reinit=True)

    def __call__(self, x_NU: nd.NDArray) -> nd.NDArray:
        probability_NE = nd.softmax(self.router(x_NU))
        index_NK = probability_NE.detach().topk(k=EXPERTS_PER_TOKEN)
        weight_NK = nd.pick(nd.repeat(probability_NE.expand_dims(1), EXPERTS_PER_TOKEN, axis=1), index_NK)
        weight_NK = weight_NK / weight_NK.sum(axis=1, keepdims=True)
        expert_M = index_NK.asnumpy().astype(int).ravel()  # M = N * K choices
        order_M = np.argsort(expert_M, kind="stable")
        row_MU = x_NU.take(nd.array(order_M // EXPERTS_PER_TOKEN))
        sent_E = np.bincount(expert_M, minlength=NUM_EXPERTS)
        y_MU = self._at_the_experts(row_MU, sent_E).take(nd.array(np.argsort(order_M)))
        return (y_MU.reshape((-1, EXPERTS_PER_TOKEN, UNITS)) * weight_NK.expand_dims(2)).sum(axis=1)

    def _at_the_experts(self, row_MU: nd.NDArray, sent_E: np.ndarray) -> nd.NDArray:
        """Returns the outputs of the experts for rows in the order of experts."""
        if self.size == 1:
            return self._compute(row_MU, sent_E)
        by_worker = sent_E.reshape(self.size, -1)
        counts = hvd.alltoall(nd.array(by_worker.ravel(), dtype="int32"), name="counts").asnumpy()
        from_worker = counts.reshape(self.size, -1)  # (workers, own experts)
        splits, received = by_worker.sum(axis=1), from_worker.sum(axis=1)
        row_RU = AllToAll(splits, received, "tokens")(row_MU)
        # Received in the order of workers; each expert computes its rows of all workers at once.
        expert_R = np.concatenate([np.repeat(np.arange(len(self.own)), row) for row in from_worker])
        order_R = np.argsort(expert_R, kind="stable")
        if not len(order_R):
            return AllToAll(received, splits, "outputs")(row_RU)
        y_RU = self._compute(row_RU.take(nd.array(order_R)), from_worker.sum(axis=0))
        return AllToAll(received, splits, "outputs")(y_RU.take(nd.array(np.argsort(order_R))))

    def _compute(self, row_RU: nd.NDArray, count_E: np.ndarray) -> nd.NDArray:
        parts, begin = [], 0
        for number, count in zip(self.own, count_E):
            if count:
                parts.append(self.experts[number](row_RU[begin : begin + int(count)]))
            begin += int(count)
        return nd.concat(*parts, dim=0)

    def parameters(self) -> Tuple[List[Any], List[Any]]:
        """Returns the parameters that all workers have, and those of the own experts."""
        own = [self.experts[number] for number in self.own]
        of_experts = [parameter for expert in own for parameter in expert.collect_params().values()]
        return list(self.router.collect_params().values()), of_experts


def build_expert() -> gluon.nn.HybridSequential:
    expert = gluon.nn.HybridSequential()
    expert.add(gluon.nn.Dense(HIDDEN, in_units=UNITS), gluon.nn.GELU(), gluon.nn.Dense(UNITS, in_units=HIDDEN))
    return expert


def train(layer: ParallelExperts, x_NU: nd.NDArray, target_NU: nd.NDArray, num_tokens: int) -> List[float]:
    """Trains the layer by SGD on the mean squared error over the tokens of all workers; returns the losses."""
    losses = []
    shared, of_experts = layer.parameters()
    for step in range(STEPS):
        with autograd.record():
            loss = ((layer(x_NU) - target_NU) ** 2).sum() / num_tokens
        loss.backward()
        for parameter in [*shared, *of_experts]:
            grad = parameter.grad()
            # Experts have got the tokens of all workers, so their gradients are complete already.
            if layer.size > 1 and parameter in shared:
                grad = hvd.allreduce(grad, average=False, name=f"router.{step}")
            parameter.set_data(parameter.data() - LR * grad)
            parameter.zero_grad()
        losses.append(
            float((hvd.allreduce(loss, average=False, name=f"loss.{step}") if layer.size > 1 else loss).asscalar())
        )
    return losses


def main() -> int:
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    if NUM_EXPERTS % size or NUM_TOKENS % size:
        print(f"{NUM_EXPERTS} experts and {NUM_TOKENS} tokens cannot be divided by {size} workers", file=sys.stderr)
        return 2
    rng = np.random.RandomState(0)
    x_NU, target_NU = (nd.array(rng.normal(0, 1, (NUM_TOKENS, UNITS))) for _ in range(2))
    share = slice(rank * NUM_TOKENS // size, (rank + 1) * NUM_TOKENS // size)
    layer, alone = ParallelExperts(rank, size), ParallelExperts(0, 1)
    losses = train(layer, x_NU[share], target_NU[share], NUM_TOKENS)
    wanted = train(alone, x_NU, target_NU, NUM_TOKENS)
    difference = max(
        float(nd.max(nd.abs(own.data() - whole.data())).asscalar())
        for number in layer.own
        for own, whole in zip(
            layer.experts[number].collect_params().values(), alone.experts[number].collect_params().values()
        )
    )
    print(
        f"worker {rank} of {size}: experts {layer.own.start} to {layer.own.stop - 1}, loss {losses[0]:.6f} to "
        f"{losses[-1]:.6f}, on one worker {wanted[0]:.6f} to {wanted[-1]:.6f}, weights differ by {difference:.1e}",
        flush=True,
    )
    return 0 if difference < 1e-4 and np.allclose(losses, wanted, rtol=1e-4) else 1


if __name__ == "__main__":
    sys.exit(main())
