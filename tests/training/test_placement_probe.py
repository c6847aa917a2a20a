"""Steps and passes of `mxtrain plan` are timed on a device with a clock of its own, and memory on this machine."""

from __future__ import annotations

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
    time_passes,
    time_steps,
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


def batch_of(size: int) -> Any:
    return SimpleNamespace(size=size, slice=lambda begin, end: batch_of(end - begin))


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Callable[[Device], Device]:
    def use(device: Device) -> Device:
        monkeypatch.setattr(placement_probe, "nd", SimpleNamespace(waitall=device.waitall))
        monkeypatch.setattr(placement_probe, "time", SimpleNamespace(perf_counter=lambda: device.now))
        return device

    return use


def test_steps_are_queued_as_in_training_and_passes_are_waited_for(on: Callable[[Device], Device]) -> None:
    device = on(Device(lambda size: 0.01 * size, update_s=0.02))
    found = time_steps(device, batches(8), 1.02)  # type: ignore[arg-type]
    assert found["step_s"] == pytest.approx(0.1) and found["passes_s"] == pytest.approx(0.08)
    assert device.longest_queue == STEPS_AHEAD + 1
    assert found["step_peak_bytes"] == pytest.approx(peak_memory(), rel=0.1)
    assert device.num_steps == WARM_UP + ROUNDS * (6 + STEPS_AHEAD), "6 x 0.1 s are the first above 2 x 1.02 s / 4"


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
