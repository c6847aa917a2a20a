"""Forward and backward on one device, in as many parts as gradient accumulation asks for."""

from __future__ import annotations

from typing import Dict, Iterator, List, Tuple

from mxtrain.backend import autograd, nd
from mxtrain.model.prepare import distinct_parameters, is_trained
from mxtrain.parallel.base import Objective, Strategy
from mxtrain.types import Batch


def split(batch: Batch, num_parts: int) -> Iterator[Batch]:
    """At most `num_parts` parts whose sizes differ by at most one, as views."""
    num_parts = min(num_parts, batch.size)
    if num_parts == 1:
        yield batch
        return
    start = 0
    for part in range(num_parts):
        size = batch.size // num_parts + (part < batch.size % num_parts)
        yield Batch(batch.data[start : start + size], batch.label[start : start + size], size)
        start += size


class SingleDevice(Strategy):
    """One replica on one device.

    Args:
        objective: network, loss and meter, initialised and hybridized.
        grad_accumulation: parts of a batch. Each part's gradient is weighted by its size, so that the sum is the
            gradient of the mean over the batch, whatever the sizes.
    """

    def __init__(self, objective: Objective, grad_accumulation: int):
        self._objective = objective
        self.network = objective.network
        self._num_parts = grad_accumulation
        self.parameters = distinct_parameters(objective.network)
        self.trainable = [name for name, parameter in self.parameters.items() if is_trained(parameter)]
        if grad_accumulation > 1:
            for name in self.trainable:
                self.parameters[name].grad_req = "add"
        # Arrays, not lookups: Gluon checks contexts at every parameter.grad(), which a small network's step would feel.
        self._gradients = [[self.parameters[name].grad()] for name in self.trainable]
        self._head_gradients: Dict[Tuple[int, int], nd.NDArray] = {}

    def forward_backward(self, batch: Batch) -> nd.NDArray:
        if self._num_parts > 1:
            nd.reset_arrays(*[replicas[0] for replicas in self._gradients], num_arrays=len(self._gradients))
        sums = [self._part(part, batch.size) for part in split(batch, self._num_parts)]
        return sums[0] if len(sums) == 1 else nd.add_n(*sums)

    def gradients(self) -> List[List[nd.NDArray]]:
        return self._gradients

    def weights(self) -> Dict[str, nd.NDArray]:
        return {name: self.parameters[name].data() for name in self.trainable}

    def predict(self, data: nd.NDArray) -> nd.NDArray:
        return self._objective.network(data)

    def _part(self, part: Batch, global_batch_size: int) -> nd.NDArray:
        with autograd.record():
            logits = self._objective.network(part.data)
            loss_B = self._objective.loss(logits, part.label)
        loss_B.backward(self._head_gradient(part.size, global_batch_size, loss_B))
        return self._objective.meter(logits, part.label, loss_B)

    def _head_gradient(self, size: int, global_batch_size: int, loss_B: nd.NDArray) -> nd.NDArray:
        key = (size, global_batch_size)
        if key not in self._head_gradients:
            self._head_gradients[key] = nd.full((size,), 1.0 / global_batch_size, ctx=loss_B.context)
        return self._head_gradients[key]
