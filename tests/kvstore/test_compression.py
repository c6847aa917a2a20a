"""Each compressor against NumPy, its payloads summed by hand as a server would: in float32, rounded to what travels."""

import numpy as np
import pytest

from mxtrain.engine.backend import mx, nd
from mxtrain.kvstore.compression import (
    BFloat16Compressor,
    TopK,
    TwoBit,
    compressor_of,
    digits_per_word,
    redistribute_residual,
    rounded_down,
)
from mxtrain.kvstore.spec import DistSync
from mxtrain.kvstore.world import World

SIZES = (1, 7, 1000)
KINDS = {"fp16": {}, "bf16": {}, "2bit": {"threshold": 0.5}, "topk": {"ratio": 0.05}}


def workers_of(build, size, count):
    return [build(nd.zeros((count,), ctx=mx.cpu(rank)), World(rank, size)) for rank in range(size)]


def exchange(workers, gradients):
    """One step; what each worker sent, by its residual, and what all got."""
    before = [worker.residual.asnumpy().astype(np.float64) for worker in workers]
    for worker, gradient in zip(workers, gradients):
        worker.flat[:] = gradient
        worker.compress()
    total = sum(worker.payload.astype("float32").asnumpy() for worker in workers)
    for worker in workers:
        worker.payload[:] = total  # rounded to the payload's type
        worker.decompress()
    sent = [rest + gradient - worker.residual.asnumpy() for worker, rest, gradient in zip(workers, before, gradients)]
    found = [worker.flat.asnumpy() for worker in workers]
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])
    return sent, found[0]


def gradients_of(rng, workers, count, scale=1.0):
    return [scale * rng.randn(count).astype(np.float32) for _ in range(workers)]


@pytest.mark.zoo_except("fp16-1", "fp16-2", "bf16-1", "2bit-1", "2bit-2", "topk-1")
@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_workers_get_the_sum_of_messages_and_keep_residuals(kind, size):
    for count in SIZES:
        rng, workers = np.random.RandomState(count), workers_of(compressor_of(kind, **KINDS[kind]), size, count)
        wanted, got = np.zeros(count), np.zeros(count)
        for _ in range(30):
            gradients = gradients_of(rng, size, count)
            sent, found = exchange(workers, gradients)
            rounding = 2.0**-11 if kind in ("fp16", "bf16") else 0
            np.testing.assert_allclose(found, sum(sent), rtol=rounding, atol=4e-6)
            wanted, got = wanted + sum(gradients), got + found
        left = sum(worker.residual.asnumpy() for worker in workers)
        np.testing.assert_allclose(got + left, wanted, atol=2e-2 if kind in ("fp16", "bf16") else 1e-4)


def test_2bit_equals_mxnet():
    rng, (one, other) = np.random.RandomState(0), workers_of(compressor_of("2bit", threshold=0.5), 2, 123)
    rests = [np.zeros(123, np.float32), np.zeros(123, np.float32)]
    for _ in range(5):
        gradients = gradients_of(rng, 2, 123)
        wishes = [rest + gradient for rest, gradient in zip(rests, gradients)]
        sent = [np.float32(0.5) * ((wish >= 0.5).astype(np.float32) - (wish <= -0.5)) for wish in wishes]
        rests = [wish - part for wish, part in zip(wishes, sent)]
        _, found = exchange([one, other], gradients)
        np.testing.assert_array_equal(found, sum(sent))
        np.testing.assert_array_equal(one.residual.asnumpy(), rests[0])


@pytest.mark.parametrize("size", [1, pytest.param(2, marks=pytest.mark.zoo), 3, 4, 8, 100])
def test_every_packed_word_is_decoded(size):
    base, digits = 2 * size + 1, digits_per_word(size)
    assert base**digits <= 2**24 < base ** (digits + 1)
    count = base**digits
    some = 2**18  # division could go wrong next to multiples of a power
    near = [
        base**place * multiple + away
        for place in range(digits)
        for multiple in range(1, base**2)
        for away in (-1, 0, 1)
    ]
    words = np.unique(np.concatenate([np.arange(some), np.arange(count - some, count), near]))
    words = words[(0 <= words) & (words < count)] if size != 2 else np.arange(count)
    worker = TwoBit(nd.zeros((digits * len(words),)), World(0, size), threshold=1.0)
    worker.payload[:] = words
    worker.decompress()
    found = worker.flat.asnumpy().reshape((digits, len(words)))
    rest = words
    for row in found:
        np.testing.assert_array_equal(row, rest % base - size)
        rest = rest // base


def test_topk_sends_the_largest():
    rng, workers = np.random.RandomState(0), workers_of(compressor_of("topk", ratio=0.05), 3, 1000)
    assert workers[0].payload.size == 3 * 2 * 50
    gradients = gradients_of(rng, 3, 1000)
    _, found = exchange(workers, gradients)
    wanted = np.zeros(1000, np.float32)
    for gradient in gradients:
        largest = np.argsort(-np.abs(gradient))[:50]
        wanted[largest] += gradient[largest]
    np.testing.assert_array_equal(found, wanted)


def test_topk_of_more_elements_than_float32_counts():
    rng = np.random.RandomState(0)
    workers = workers_of(lambda flat, world: TopK(flat, world, ratio=0.1, row_size=300), 2, 1000)
    gradients = gradients_of(rng, 2, 1000)
    _, found = exchange(workers, gradients)
    wanted = np.zeros(1000, np.float32)
    for gradient in gradients:
        for begin in range(0, 1000, 250):
            largest = begin + np.argsort(-np.abs(gradient[begin : begin + 250]))[:25]
            wanted[largest] += gradient[largest]
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7])
def test_float16_never_overflows(size):
    limit = rounded_down(65504 / size, 11)
    assert np.isfinite(np.float16(size * limit)) and np.float16(limit) == limit > 65504 / size - 33
    workers = workers_of(compressor_of("fp16"), size, 2)
    _, found = exchange(workers, [np.array([1e6, -1e30], np.float32)] * size)
    assert np.isfinite(found).all() and found[0] >= 65472 and found[1] <= -65472
    assert workers[0].residual.asnumpy()[0] == np.float32(1e6) - np.float32(limit)


@pytest.mark.parametrize("scale", [1e-30, 1e-9, 1.0, 1e9, 1e30])
def test_bfloat16_follows_gradients_of_any_size(scale):
    rng, workers = np.random.RandomState(1), workers_of(compressor_of("bf16"), 2, 1000)
    for _ in range(40):
        gradients = gradients_of(rng, 2, 1000, np.float32(scale))
        rests = [worker.residual.asnumpy() for worker in workers]
        _, found = exchange(workers, gradients)
    lefts = [worker.residual.asnumpy() for worker in workers]
    for rest, gradient, left in zip(rests, gradients, lefts):
        # 8 significant bits: the rest is half a unit of the last of them at most.
        assert (np.abs(left) <= 2.0**-8 * np.abs(rest + gradient) * (1 + 1e-6)).all()
        sent = (rest + gradient).astype(np.float32) - left
        bits = sent[np.abs(left) > 0].astype(np.float32).view(np.uint32)
        assert (bits & 0xFFFF == 0).all()
    np.testing.assert_allclose(found, sum(gradients), atol=0.02 * scale)


def test_bfloat16_scale_recovers_after_zero_gradients():
    (worker,) = workers_of(compressor_of("bf16"), 1, 3)
    for _ in range(20):
        exchange([worker], [np.zeros(3, np.float32)])
    got = sum(exchange([worker], [np.ones(3, np.float32)])[1] for _ in range(25))
    np.testing.assert_allclose(got, 25, rtol=0.01)
    assert BFloat16Compressor.LOW * 2 <= BFloat16Compressor.HIGH  # or it would go to and fro


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", KINDS)
def test_non_finite_values_reach_all_workers(kind, value):
    workers = workers_of(compressor_of(kind, **KINDS[kind]), 2, 100)
    gradients = gradients_of(np.random.RandomState(0), 2, 100)
    gradients[1][77] = value
    for worker, gradient in zip(workers, gradients):
        worker.flat[:] = gradient
        worker.compress()
    total = sum(worker.payload.astype("float32").asnumpy() for worker in workers)
    assert not np.isfinite(total).all()
    for worker in workers:
        worker.payload[:] = total
        worker.decompress()
        assert not np.isfinite(worker.flat.asnumpy()).all()


def test_residuals_for_another_number_of_workers():
    arrays = {f"w:{rank}": np.full((2, 3), rank + 1, np.float32) for rank in range(3)}
    np.testing.assert_array_equal(redistribute_residual(arrays, "w", World(1, 3)), np.full((2, 3), 2))
    for rank in range(2):
        np.testing.assert_array_equal(redistribute_residual(arrays, "w", World(rank, 2)), np.full((2, 3), 3))
    with pytest.raises(KeyError):
        redistribute_residual(arrays, "other", World(0, 2))


def test_impossible_settings_are_refused():
    assert "kvstore.threshold" in DistSync(compression="2bit").unsupported_reason("auto", 2)
    assert "1.2 times the bytes" in DistSync(compression="topk", ratio=0.1).unsupported_reason("auto", 6)
    assert DistSync(compression="topk", ratio=0.1).unsupported_reason("auto", 4) == ""
