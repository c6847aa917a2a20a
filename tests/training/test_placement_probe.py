"""Steps and passes of `mxtrain plan` are timed on a device with a clock of its own, and memory on this machine."""

from __future__ import annotations

import itertools
from collections import deque
from types import SimpleNamespace
from typing import Any, Callable, Deque, Iterator, List

import pytest

from mxtrain.engine.trace import Operation
from mxtrain.runtime.memory import peak_memory
from mxtrain.training import placement_probe
from mxtrain.training.placement_probe import (
    MAX_REPEATS,
    ROUNDS,
    STEPS_AHEAD,
    TRACED_STEPS,
    WARM_UP,
    compute_times,
    full_batches,
    halved_sizes,
    time_passes,
    time_steps,
    typical_batch,
)


class Device:
    """A device that computes one thing after the other, in seconds of its own clock. The host takes no time.

    Args:
        seconds: function (number of samples) -> seconds of a pass.
        update_s: what a step takes beside its passes.
    """

    def __init__(self, seconds: Callable[[int], float], update_s: float = 0.0):
        self.now, self._free = 0.0, 0.0
        self._seconds, self._update_s = seconds, update_s
        self.queued: Deque[float] = deque()
        self.longest_queue = self.num_steps = 0
        self.strategy = SimpleNamespace(forward_backward=lambda batch, scale: self._put(self._seconds(batch.size)))
        self.scaling = SimpleNamespace(scale=1.0)

    def __call__(self, batch: Any, lr: float, number: int) -> Any:
        """Queues a step; returns its sums."""
        assert lr == 0.0, "weights must stay as they are"
        self.num_steps += 1
        return self._put(self._seconds(batch.size) + self._update_s)

    def _put(self, seconds: float) -> Any:
        self._free = end_s = max(self._free, self.now) + seconds
        self.queued.append(end_s)
        self.longest_queue = max(self.longest_queue, sum(end > self.now for end in self.queued))
        return SimpleNamespace(wait_to_read=lambda: self._wait(end_s))

    def _wait(self, end_s: float) -> None:
        self.now = max(self.now, end_s)

    def waitall(self) -> None:
        self._wait(self._free)


def batches(size: int) -> Iterator[Any]:
    while True:
        yield batch_of(size)


def batch_of(size: int, length: int = 1) -> Any:
    inputs = (SimpleNamespace(size=size * length),)
    return SimpleNamespace(size=size, inputs=inputs, slice=lambda begin, end: batch_of(end - begin, length))


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Callable[[Device], Device]:
    def use(device: Device) -> Device:
        monkeypatch.setattr(placement_probe, "nd", SimpleNamespace(waitall=device.waitall))
        monkeypatch.setattr(placement_probe, "time", SimpleNamespace(perf_counter=lambda: device.now))
        return device

    return use


def test_steps_are_queued_as_in_training_and_passes_are_waited_for(on: Callable[[Device], Device]) -> None:
    device = on(Device(lambda size: 0.01 * size, update_s=0.02))
    found, mean_elements = time_steps(device, batches(8), 1.02)  # type: ignore[arg-type]
    assert mean_elements == 8
    assert found["step_s"] == pytest.approx(0.1) and found["passes_s"] == pytest.approx(0.08)
    assert device.longest_queue == STEPS_AHEAD + 1
    assert found["step_peak_bytes"] == pytest.approx(peak_memory(), rel=0.1)
    assert device.num_steps == WARM_UP + ROUNDS * (6 + STEPS_AHEAD), "6 x 0.1 s are the first above 2 x 1.02 s / 4"


def test_passes_and_elements_are_means_over_batches_of_different_lengths(
    on: Callable[[Device], Device],
) -> None:
    """Batches of 8 samples with 1, 2 and 3 tokens each, in turn; a pass takes 1 ms for a token."""
    device = on(Device(lambda size: 0.01))
    lengths = itertools.cycle([1, 2, 3])
    given = (batch_of(8, length) for length in lengths)
    device.strategy.forward_backward = lambda batch, scale: device._put(0.001 * batch.inputs[0].size)
    found, mean_elements = time_steps(device, given, 1.0)  # type: ignore[arg-type]
    assert mean_elements == pytest.approx(16, rel=0.05)
    assert found["passes_s"] == pytest.approx(0.016, rel=0.1)


@pytest.mark.parametrize(
    "lengths, mean_length, expected, taken",
    [
        ([104, 100, 100], 100, 104, 2),
        ([106, 100, 100], 100, 100, 3),
        ([1] * 39 + [5, 10], 10, 5, MAX_REPEATS),
        ([30, 11], 10, 11, 2),
    ],
    ids=["within 5 %", "beyond 5 %", "limit", "nearest"],
)
def test_passes_are_timed_with_a_batch_of_mean_length(
    lengths: List[int], mean_length: int, expected: int, taken: int
) -> None:
    given = iter([batch_of(2, length) for length in lengths])
    assert typical_batch(given, 2 * mean_length).inputs[0].size == 2 * expected
    assert len(lengths) - len(list(given)) == taken


def test_times_are_means_so_that_rare_slow_passes_count(on: Callable[[Device], Device]) -> None:
    """Every fourth pass takes 5 s instead of 1 s."""
    numbers = iter(range(10**6))
    device = on(Device(lambda size: 5.0 if next(numbers) % 4 == 3 else 1.0))
    (found,) = time_passes(device, batch_of(8), [8], 40.0)  # type: ignore[arg-type]
    assert found["samples"] == 8 and found["seconds"] == pytest.approx(2.0, rel=0.15)


def test_numbers_of_samples_are_measured_in_turn(on: Callable[[Device], Device]) -> None:
    """The device gets slower by the same factor for all numbers of samples."""
    device = on(Device(lambda size: size * (1.0 + 0.001 * device.now)))
    small, large = time_passes(device, batch_of(8), [4, 8], 32.0)  # type: ignore[arg-type]
    assert large["seconds"] / small["seconds"] == pytest.approx(2.0, rel=0.02)


def test_the_first_pass_of_a_size_compiles_and_short_passes_are_not_repeated_forever(
    on: Callable[[Device], Device],
) -> None:
    sizes: List[int] = []

    def seconds(size: int) -> float:
        sizes.append(size)
        return 100.0 if sizes.count(size) == 1 else 1e-6

    device = on(Device(seconds))
    (found,) = time_passes(device, batch_of(8), [2], 1.0)  # type: ignore[arg-type]
    assert found["seconds"] == pytest.approx(1e-6)
    assert len(sizes) == 1 + ROUNDS * MAX_REPEATS


def test_smaller_batches_are_left_out_unless_there_is_no_other() -> None:
    def epoch(number: int, start: int, consumer: object) -> Iterator[Any]:
        assert start == 0
        yield from ([batch_of(8 + number)] if number > 1 else [batch_of(8), batch_of(8), batch_of(3)])

    given = full_batches(epoch, 8, None)  # type: ignore[arg-type]
    assert [next(given).size for _ in range(6)] == [8, 8, 8, 8, 10, 11]
    given.close()


def test_devices_compute_without_their_updates() -> None:
    operations = [
        Operation("cpu(0)", "FullyConnected", 0.0, 0.6),
        Operation("cpu(0)", "sgd_mom_update", 1.0, 9.0),
        Operation("cpu(1)", "CopyCPU2CPU", 2.0, 2.3),
    ]
    assert compute_times(operations, ["cpu(0)", "cpu(1)"]) == pytest.approx([0.6 / TRACED_STEPS, 0.3 / TRACED_STEPS])


@pytest.mark.parametrize(
    "batch_size, parts, count, expected",
    [(64, 1, 7, [1, 2, 4, 8, 16, 32, 64]), (100, 1, 3, [25, 50, 100]), (6, 2, 7, [2, 6]), (64, 2, 0, [])],
    ids=["powers", "three", "small", "none"],
)
def test_numbers_of_samples_can_be_divided_into_parts(
    batch_size: int, parts: int, count: int, expected: List[int]
) -> None:
    assert halved_sizes(batch_size, parts, count) == expected
