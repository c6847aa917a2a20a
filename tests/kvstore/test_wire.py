"""Messages between workers and updating servers, and agreement of workers without waiting."""

import dataclasses
import random

import numpy as np
import pytest

from mxtrain.kvstore import wire
from mxtrain.kvstore.server.update_server import Poll
from mxtrain.kvstore.wire import LOOK, UPDATE, Reply, Request


@pytest.mark.parametrize("lr", [0.0, 0.1, 1 / 3, 1e-17, 12345.678901234567, np.nextafter(1.0, 2.0)])
def test_headers_are_exact(lr):
    request = Request(UPDATE, rank=7, count=2**31 + 1, vote=3, lag=3, lr=float(lr), offset=2**40 + 5, size=2**52 + 1)
    assert wire.decode(wire.encode(request), Request) == request
    assert all(type(value) is (float if name == "lr" else int) for name, value in dataclasses.asdict(request).items())


def test_header_fields_default_to_zero():
    assert dataclasses.astuple(Request(UPDATE, 3)) == (UPDATE, 3, 0, 0, 0, 0.0, 0, 0, -1)
    assert dataclasses.astuple(Reply()) == (0, 0, 0, 0, 0, 0, 1.0)


def test_a_header_that_holds_no_such_numbers_is_refused():
    words = wire.encode(Reply(updates=3))
    words[0] = 0.5
    with pytest.raises(ValueError):
        wire.decode(words, Reply)


def test_state_is_unpacked_and_damaged_state_is_refused():
    arrays = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array(7, np.int64), "c": np.zeros((0, 2))}
    blob = wire.pack_state(arrays, {"counts": [1, 2]})
    words = wire.to_words(blob)
    found, numbers = wire.unpack_state(words.tobytes()[: len(blob)])
    assert numbers == {"counts": [1, 2]} and list(found) == list(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype
    for damaged in (b"", blob[:-30], blob[:20], blob.replace(b'"float32"', b'"object" '), b"\xff" * 64):
        with pytest.raises(ValueError):
            wire.unpack_state(damaged)


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"cos\nsystem\n.", b'{"mxtrain": "dist_sync"}', b"[" * 10**5, b"\xff\x00"]
)
def test_only_known_commands_are_parsed(body):
    assert wire.read_command(body) is None
    assert wire.read_command(wire.write_command(begin=True).encode()).begin


@pytest.mark.parametrize("seed", range(50))
def test_workers_of_any_speed_act_after_the_same_step(seed):
    """Three workers, two of which want something at some time; each reads the answer to a step `lag` steps later."""
    rng, lag, steps = random.Random(seed), seed % 4, 200
    poll, counts, pending = Poll(3), [0, 0, 0], [0, 0, 0]
    answers = [{}, {}, {}]
    done = [[], [], []]
    speeds = [rng.random() + 0.05 for _ in counts]
    while min(counts) < steps:
        rank = rng.choices(range(3), speeds)[0]
        if counts[rank] == steps:
            speeds[rank] = 0
            continue
        counts[rank] += 1
        count = counts[rank]
        answers[rank][count] = poll.count(Request(rng.choice([UPDATE, LOOK]), rank, count, pending[rank], lag))
        pending[rank] = 0
        outcome, at = answers[rank].get(count - lag, (0, 0))
        if outcome and at == count:
            done[rank].append((count, outcome))
        if rank < 2 and rng.random() < 0.03:
            pending[rank] = rank + 1
    most = min(map(len, done))  # those that ended first may be ahead by what the others had not come to yet
    assert done[0][:most] == done[1][:most] == done[2][:most]
    assert 0 < most >= max(map(len, done)) - 1
