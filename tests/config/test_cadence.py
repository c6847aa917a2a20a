"""The cadence: counters decide the same in a resumed run, and the clock moves nothing that they decide."""

from __future__ import annotations

import random

from mxtrain.config.cadence import Cadence


def moments(
    cadence: Cadence, steps, steps_per_epoch: int = 10, seconds_per_step: float = 1.0, start: int = 0
) -> list[int]:
    cadence.start(start, start // steps_per_epoch, start * seconds_per_step)
    return [step for step in steps if cadence.due(step, step // steps_per_epoch, step * seconds_per_step)]


def test_each_rule():
    steps = range(1, 61)
    assert moments(Cadence(every_steps=25), steps) == [25, 50]
    assert moments(Cadence(every_epochs=2), steps) == [20, 40, 60]
    assert moments(Cadence(every_minutes=0.5), steps) == [30, 60]
    assert moments(Cadence(), steps) == [] and not Cadence().is_set
    for rule in ("every_steps", "every_epochs", "every_minutes"):
        assert Cadence(**{rule: 2}).is_set


def test_due_step_restarts_only_the_minutes():
    both = moments(Cadence(every_steps=25, every_minutes=20 / 60), range(1, 61))
    assert both == [20, 25, 45, 50]
    assert {25, 50} <= set(both)


def test_counters_do_not_depend_on_the_clock():
    clock = random.Random(1)
    for _ in range(50):
        cadence, now = Cadence(every_steps=7, every_epochs=1, every_minutes=0.1), 0.0
        cadence.start(0, 0, now)
        due = set()
        for step in range(1, 101):
            now += clock.expovariate(0.5)
            if cadence.due(step, step // 10, now):
                due.add(step)
        assert due >= set(range(7, 101, 7)) | set(range(10, 101, 10))


def test_resume_at_any_step_has_the_same_due_steps():
    def cadence() -> Cadence:
        return Cadence(every_steps=6, every_epochs=1)

    whole = moments(cadence(), range(1, 101))
    for start in range(100):
        assert moments(cadence(), range(start + 1, 101), start=start) == [step for step in whole if step > start]


def test_calls_may_skip_steps():
    assert moments(Cadence(every_steps=10), [4, 8, 12, 16, 31, 39, 40]) == [12, 31, 40]


def test_first_time_is_not_due_without_start():
    cadence = Cadence(every_minutes=1)
    assert not cadence.due(0, 0, 1e6)
    assert cadence.due(1, 0, 1e6 + 60)
