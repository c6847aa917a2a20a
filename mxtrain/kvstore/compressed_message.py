"""Compressed messages of `dist_async`: a worker sends compressed gradients and receives compressed changes of weights.

A server keeps a copy of each worker's weights. Its answer is the compressed difference between its own weights and that
copy. The error of an answer is still a part of the next difference, so answers need no residual. Source: Yan et al.,
Dual-Way Gradient Sparsification for Asynchronous Distributed Deep Learning, https://doi.org/10.1145/3404397.3404401.

    message = payload + shared state (one word each) + two spare words + header
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, List, Sequence, Tuple

import numpy as np

from mxtrain.engine.backend import mx, nd
from mxtrain.kvstore.compression import Build, Compressor
from mxtrain.kvstore.message import header_of, views_of
from mxtrain.kvstore.wire import HEADER, UNIT, num_elements
from mxtrain.kvstore.world import ALONE
from mxtrain.types import Shape

if TYPE_CHECKING:
    from mxnet import Context


class CompressedArrays:
    """One direction of the exchange: a compressor with the arrays that it sends or receives.

    Args:
        build: builds the compressor.
        shapes: shapes of the parameters.
        device: device of the gradients.

    Attributes:
        flat: values to send, or received values, (N,).
        arrays: views of `flat` in the shapes of the parameters.
    """

    def __init__(self, build: Build, shapes: Sequence[Shape], device: Context):
        self.flat = nd.zeros((num_elements(shapes),), ctx=device)
        self.arrays = views_of(self.flat, shapes)
        self.compressor: Compressor = build(self.flat, ALONE)

    def write(self, message: CompressedMessage) -> None:
        """Compresses `flat` into a message. Asynchronous."""
        self.compressor.compress()
        message.before_payload()
        self.compressor.payload.copyto(message.payload)
        message.after_payload()
        for value, word in zip(self.compressor.shared.values(), message.shared):
            value.copyto(word)

    def read(self, message: CompressedMessage) -> None:
        """Decompresses a message into `flat`. Asynchronous."""
        message.before_payload()
        message.payload.copyto(self.compressor.payload)
        message.after_payload()
        for value, word in zip(self.compressor.shared.values(), message.shared):
            word.copyto(value)
        self.compressor.decompress()


class CompressedMessage:
    """A compressed message in host memory; the same array in every step.

    A float16 payload is a second NDArray over the memory of `flat`. MXNet's engine does not know that both share it, so
    it would not order operations on one after operations on the other. An operator that reads a spare word of the first
    and writes a spare word of the second makes the dependency explicit (`before_payload`, `after_payload`).

    Args:
        arrays: arrays and compressor of the messages.
    """

    def __init__(self, arrays: CompressedArrays):
        payload, shared = arrays.compressor.payload, arrays.compressor.shared
        bytes_each = np.dtype(payload.dtype).itemsize
        words = -(-payload.size * bytes_each // 4)
        memory = np.zeros(words + len(shared) + 2 + HEADER, np.float32)
        self.flat = nd.from_numpy(memory)
        self.shared = [self.flat[words + i : words + i + 1] for i in range(len(shared))]
        self.header = header_of(self.flat)
        free = words + len(shared)
        self._halves = nd.from_numpy(memory.view(payload.dtype)) if bytes_each == 2 else None
        if self._halves is None:
            self.payload = self.flat[:words]
        else:
            self.payload = self._halves[: payload.size]
            self._fences = (self._halves[2 * free : 2 * free + 1], self.flat[free + 1 : free + 2])

    def before_payload(self) -> None:
        """Orders all earlier operations on `flat` before all later ones on `payload`."""
        if self._halves is not None:
            nd.Cast(self._fences[1], dtype="float16", out=self._fences[0])

    def after_payload(self) -> None:
        """Orders all earlier operations on `payload` before all later ones on `flat`."""
        if self._halves is not None:
            nd.Cast(self._fences[0], dtype="float32", out=self._fences[1])

    def seal(self, header: np.ndarray) -> None:
        """Writes the header. Asynchronous."""
        nd.array(header, ctx=mx.cpu()).copyto(self.header)


class CompressedExchange:
    """A worker's side of the exchange for a group of parameters.

    Args:
        compressors: builders of the compressors of gradients and of changes of weights.
        shapes: shapes of the parameters.
        device: device of the parameters.
    """

    def __init__(self, compressors: Tuple[Build, Build], shapes: Sequence[Shape], device: Context):
        self._there, self._back = (CompressedArrays(build, shapes, device) for build in compressors)
        # ps-lite writes an answer into the array of the message, so both have the same length.
        self._message = CompressedMessage(self._there)
        self.flat, self.header = self._message.flat, self._message.header
        self._unit = self.header[UNIT : UNIT + 1]  # the first of its three words holds a power of two by itself

    def send(self, gradients: Sequence[nd.NDArray], header: np.ndarray) -> None:
        """Writes a message. Asynchronous."""
        for gradient, array in zip(gradients, self._there.arrays):
            gradient.copyto(array)
        self._there.write(self._message)
        self._message.seal(header)
        if self._there.compressor.shared:  # decompressing updates it from the sent values
            self._there.compressor.decompress()

    def receive(self, weights: Sequence[nd.NDArray]) -> None:
        """Adds the changes of the answer to the weights. Asynchronous."""
        self._back.read(self._message)
        flat = self._back.flat
        nd.broadcast_mul(flat, self._unit.as_in_context(flat.context), out=flat)
        for weight, change in zip(weights, self._back.arrays):
            nd.elemwise_add(weight, change, out=weight)

    @property
    def shared(self) -> Dict[str, nd.NDArray]:
        """Returns further state of the gradients' compressor, (1,) each."""
        return self._there.compressor.shared

    @property
    def residual(self) -> nd.NDArray:
        """Returns the residual of the gradients' compressor, (N,)."""
        residual = self._there.compressor.residual
        assert residual is not None
        return residual


class CompressedReplies:
    """A server's side of the exchange with all workers; see `CompressedExchange`.

    Args:
        compressors: see `CompressedExchange`.
        shapes: shapes of the parameters.
        weights: the server's weights, (N,) or longer; the same array in every step.
        workers: number of workers.
    """

    def __init__(self, compressors: Tuple[Build, Build], shapes: Sequence[Shape], weights: nd.NDArray, workers: int):
        self._there, self._back = (CompressedArrays(build, shapes, mx.cpu()) for build in compressors)
        self._inbox, self._outbox = CompressedMessage(self._there), CompressedMessage(self._back)
        self._weights = weights[: self._there.flat.size]
        self._known = [self._weights.copy() for _ in range(workers)]

    def knows(self, *ranks: int) -> None:
        """Records that these workers (default: all) have the current weights."""
        for rank in ranks or range(len(self._known)):
            self._weights.copyto(self._known[rank])

    def gradients(self, received: nd.NDArray) -> List[nd.NDArray]:
        """Decompresses the gradients that a worker has sent."""
        # Copied, because ps-lite owns the memory of `received`, and only the inbox has a float16 view of its words.
        received.copyto(self._inbox.flat)
        self._there.read(self._inbox)
        return self._there.arrays

    def answer(self, rank: int) -> float:
        """Writes the compressed changes of weights for a worker, divided by a unit; returns the unit, a power of two.

        The division adapts the changes to compressors with a fixed range or threshold.
        """
        known, back = self._known[rank], self._back
        change = self._weights - known
        unit = back.compressor.unit_of(change)
        assert back.compressor.residual is not None
        nd._internal._div_scalar(change, scalar=unit, out=back.compressor.residual)
        back.flat[:] = 0
        for value in back.compressor.shared.values():  # the unit replaces a scale that follows earlier messages
            value[:] = 1
        back.write(self._outbox)
        back.compressor.decompress()
        nd._internal._mul_scalar(back.flat, scalar=unit, out=back.flat)
        nd.elemwise_add(known, back.flat, out=known)  # exactly what the worker adds to its weights
        return unit

    def seal(self, header: np.ndarray, stored: nd.NDArray) -> None:
        """Writes the header and copies the message into `stored`."""
        self._outbox.seal(header)
        self._outbox.flat.copyto(stored)
