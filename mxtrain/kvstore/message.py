"""Arrays of several parameters and a header in one flat array, on both sides of the wire."""

from __future__ import annotations

from typing import Any, List, Sequence

import numpy as np

from mxtrain.backend import nd
from mxtrain.kvstore.wire import HEADER, payload_words
from mxtrain.types import Shape


class Message:
    """Writes arrays of fixed shapes into a message and reads them from one.

    Args:
        shapes: of the arrays.
        dtype: float32 or float64; of the latter the bits travel, through the host (`verify`).
        device: where messages are written and read.
    """

    def __init__(self, shapes: Sequence[Shape], dtype: str, device: Any):
        self.words = payload_words(shapes, dtype)
        self._dtype, self._device = np.dtype(dtype), device
        sizes = [int(np.prod(shape, dtype=np.int64)) for shape in shapes]
        self._begins = tuple(int(begin) for begin in np.cumsum([0, *sizes]))
        """Of the arrays, and of what fills the message up."""
        padding = max(self.words - self._begins[-1], 0)
        self._padding = [nd.zeros((padding,), ctx=device)] if padding else []
        self.rows = [nd.zeros((size,), ctx=device, dtype=dtype) for size in sizes]
        """Where `read` writes."""
        self.arrays = [row.reshape(shape) for row, shape in zip(self.rows, shapes)]
        """The same memory in its shapes."""
        self._rest = nd.zeros((padding + HEADER,), ctx=device)

    def empty(self) -> nd.NDArray:
        """A message of zeros."""
        return nd.zeros((self.words + HEADER,), ctx=self._device)

    def write(self, rows: Sequence[nd.NDArray], header: np.ndarray, message: nd.NDArray) -> None:
        """Writes flat arrays and a header. Asynchronous for float32."""
        if self._dtype == np.float32:
            words = nd.array(header, ctx=self._device)
            nd.concat(*rows, *self._padding, words, dim=0, out=message)
            return
        payload = np.zeros(self.words, np.float32)
        given = np.concatenate([row.asnumpy() for row in rows]).view(np.float32)
        payload[: len(given)] = given
        self.write_words(payload, header, message)

    def write_words(self, payload: np.ndarray, header: np.ndarray, message: nd.NDArray) -> None:
        """Writes at most `words` words from the host."""
        rest = np.zeros(self.words - len(payload), np.float32)
        nd.array(np.concatenate([payload, rest, header]), ctx=self._device).copyto(message)

    def read(self, message: nd.NDArray) -> List[nd.NDArray]:
        """Reads the arrays into `self.rows`. Asynchronous for float32."""
        if self._dtype == np.float32:
            outputs = [*self.rows, self._rest]
            nd._internal._split_v2(message, indices=self._begins, axis=0, squeeze_axis=False, out=outputs)
        else:
            values = message.asnumpy()[: self.words].view(self._dtype)
            for row, begin in zip(self.rows, self._begins):
                nd.array(values[begin : begin + row.size], ctx=self._device, dtype=self._dtype).copyto(row)
        return self.arrays


def header_of(message: nd.NDArray) -> nd.NDArray:
    """The header as a view, (HEADER,)."""
    return message[message.size - HEADER :]
