"""A step of `dist_async` in fewer bytes: compressed gradients go to a server, compressed changes of weights come back.

A server remembers which weights each worker has. Its answer is the difference between its own and those, compressed;
what the answer leaves out is still a difference next time, so nothing is lost and nothing has to be kept. Source: Yan
et al., Dual-Way Gradient Sparsification for Asynchronous Distributed Deep Learning,
https://doi.org/10.1145/3404397.3404401.

    message = payload + shared (one word each) + two words that mean nothing + header
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
    """One direction of the exchange: a compressor with room for the arrays that it sends or receives.

    Args:
        build: makes the compressor.
        shapes: of the parameters.
        device: of the gradients.

    Attributes:
        flat: (N,) values to send, or received values.
        arrays: the same in the parameters' shapes: views.
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
        """Makes `flat` what a message holds. Asynchronous."""
        message.before_payload()
        message.payload.copyto(self.compressor.payload)
        message.after_payload()
        for value, word in zip(self.compressor.shared.values(), message.shared):
            word.copyto(value)
        self.compressor.decompress()


class CompressedMessage:
    """A compressed message in host memory: always the same array.

    A payload of float16 is another view of the same memory, of which MXNet's engine does not know that it is the same.
    So an operator that reads the one and writes a spare word of the other is placed between the two.

    Args:
        arrays: whose messages these are.
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
    """A worker's messages about parameters that are updated together.

    Args:
        ways: what makes the compressors of gradients and of changes.
        shapes: of the parameters.
        device: device of the arrays.
    """

    def __init__(self, ways: Tuple[Build, Build], shapes: Sequence[Shape], device: Context):
        self._there, self._back = (CompressedArrays(build, shapes, device) for build in ways)
        # An answer is as long as its question, and they share the memory.
        self._message = CompressedMessage(self._there)
        self.flat, self.header = self._message.flat, self._message.header
        self._unit = self.header[UNIT : UNIT + 1]  # the first of its three words holds a power of two by itself

    def send(self, gradients: Sequence[nd.NDArray], header: np.ndarray) -> None:
        """Writes a message. Asynchronous."""
        for gradient, array in zip(gradients, self._there.arrays):
            gradient.copyto(array)
        self._there.write(self._message)
        self._message.seal(header)
        if self._there.compressor.shared:  # which follows what has been sent
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
        """Further state that the next message depends on, (1,) each."""
        return self._there.compressor.shared

    @property
    def residual(self) -> nd.NDArray:
        """(N,) what the messages have left over."""
        residual = self._there.compressor.residual
        assert residual is not None
        return residual


class CompressedReplies:
    """A server's side of a `CompressedExchange`, with all workers.

    Args:
        ways: see `CompressedExchange`.
        shapes: of the parameters.
        weights: (N,) or longer, the server's own: always the same array.
        workers: how many there are.
    """

    def __init__(self, ways: Tuple[Build, Build], shapes: Sequence[Shape], weights: nd.NDArray, workers: int):
        self._there, self._back = (CompressedArrays(build, shapes, mx.cpu()) for build in ways)
        self._inbox, self._outbox = CompressedMessage(self._there), CompressedMessage(self._back)
        self._weights = weights[: self._there.flat.size]
        self._known = [self._weights.copy() for _ in range(workers)]

    def knows(self, *ranks: int) -> None:
        """Notes that these workers, or all, have the weights as they are now."""
        for rank in ranks or range(len(self._known)):
            self._weights.copyto(self._known[rank])

    def gradients(self, received: nd.NDArray) -> List[nd.NDArray]:
        """The gradients that a worker has sent."""
        received.copyto(self._inbox.flat)
        self._there.read(self._inbox)
        return self._there.arrays

    def answer(self, rank: int) -> float:
        """Writes the changes for a worker; returns their unit, a power of two, by which they have been divided.

        Compressors whose range or threshold is fixed need values of a known size.
        """
        known, back = self._known[rank], self._back
        change = self._weights - known
        unit = back.compressor.unit_of(change)
        assert back.compressor.residual is not None
        nd._internal._div_scalar(change, scalar=unit, out=back.compressor.residual)
        back.flat[:] = 0
        for value in back.compressor.shared.values():  # a range that follows messages: divided values need none
            value[:] = 1
        back.write(self._outbox)
        back.compressor.decompress()
        nd._internal._mul_scalar(back.flat, scalar=unit, out=back.flat)
        nd.elemwise_add(known, back.flat, out=known)
        return unit

    def seal(self, header: np.ndarray, stored: nd.NDArray) -> None:
        """Writes the header; the message becomes `stored`."""
        self._outbox.seal(header)
        self._outbox.flat.copyto(stored)
