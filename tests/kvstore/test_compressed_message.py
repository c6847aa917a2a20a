"""Compressed messages between workers and a server that updates."""

from __future__ import annotations

from typing import Any, List

import numpy as np
import pytest

from mxtrain.engine.backend import nd
from mxtrain.kvstore.compressed_message import CompressedExchange, CompressedReplies
from mxtrain.kvstore.spec import DistAsync
from mxtrain.kvstore.wire import Reply, Request, decode, encode

SHAPES = [(7, 30), (11,), (3, 2, 2, 5)]
SIZE = sum(int(np.prod(shape)) for shape in SHAPES)


class Served:
    """A server with SGD, and workers that send it messages."""

    def __init__(self, kind: Any, workers: int):
        self.rng = np.random.RandomState(0)
        start = self.rng.randn(SIZE).astype("f")
        self.weights = nd.array(np.concatenate([start, np.zeros(50, "f")]))
        compressors = kind.build_compressor_pair()
        self.server = CompressedReplies(compressors, SHAPES, self.weights, workers)
        self.exchanges = [CompressedExchange(compressors, SHAPES, self.weights.context) for _ in range(workers)]
        self.known = [self._arrays(start) for _ in range(workers)]
        self.sent, self.applied = (np.zeros((workers, SIZE)) for _ in range(2))
        self.stored = nd.zeros(self.exchanges[0].flat.shape)

    @staticmethod
    def _arrays(flat: np.ndarray) -> List[nd.NDArray]:
        parts = np.split(flat, np.cumsum([int(np.prod(shape)) for shape in SHAPES])[:-1])
        return [nd.array(part.reshape(shape)) for part, shape in zip(parts, SHAPES)]

    def step(self, rank: int, size: float) -> None:
        gradient = (size * self.rng.randn(SIZE)).astype("f")
        self.sent[rank] += gradient
        exchange = self.exchanges[rank]
        exchange.send(self._arrays(gradient), encode(Request(1, rank)))
        assert decode(exchange.header.asnumpy(), Request).rank == rank
        found = np.concatenate([array.asnumpy().ravel() for array in self.server.gradients(exchange.flat)])
        self.applied[rank] += found
        self.weights[:SIZE] -= nd.array(0.1 * found)
        unit = self.server.answer(rank)
        self.server.seal(encode(Reply(unit=unit)), self.stored)
        self.stored.copyto(exchange.flat)
        exchange.receive(self.known[rank])

    def distance(self, rank: int) -> float:
        known = np.concatenate([array.asnumpy().ravel() for array in self.known[rank]])
        np.testing.assert_array_equal(known, self.server._known[rank].asnumpy())  # both sides, to the bit
        return float(np.abs(known - self.weights.asnumpy()[:SIZE]).mean())


@pytest.mark.zoo_except("fp16-1e-06", "topk-1.0")
@pytest.mark.slow
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e4])
@pytest.mark.parametrize("compression", ["fp16", "bf16", "2bit", "topk"])
def test_compression_keeps_lost_parts_as_residuals(compression: str, size: float) -> None:
    served = Served(DistAsync(compression=compression, threshold=size, ratio=0.1), workers=2)
    for number in range(40):
        served.step(number % 3 % 2, size)
    for rank in range(2):
        left = served.exchanges[rank].residual.asnumpy()
        scale = np.abs(served.sent).max() + np.abs(left).max()
        np.testing.assert_allclose(served.applied[rank] + left, served.sent[rank], atol=1e-5 * scale)
        assert np.isfinite(served.distance(rank))
    off = served.distance(0)
    for _ in range(40):  # the weights hardly change any more: what a worker has comes close to them
        served.step(0, 0.0)
    assert served.distance(0) < (0.8 if compression in ("2bit", "topk") else 0.2) * off or served.distance(0) < 1e-6


def test_an_infinite_gradient_is_not_hidden() -> None:
    for compression in ("fp16", "bf16", "2bit", "topk"):
        served = Served(DistAsync(compression=compression, threshold=1.0), workers=1)
        served.step(0, np.inf)
        assert not np.isfinite(served.applied[0]).all()
        assert not all(np.isfinite(array.asnumpy()).all() for array in served.known[0])
