"""Steps of a worker that takes chunks of the data: its rows, and the steps at which all workers meet."""

from __future__ import annotations

from typing import Dict, List, Optional

import mxnet as mx
import pytest

from mxtrain.config.cadence import Cadence
from mxtrain.metric.meter import Meter
from mxtrain.training.plan import Plan
from mxtrain.training.recorder import Entry, Recorder


def plan(
    validate: Optional[int] = None,
    save: Optional[int] = None,
    keep: Optional[int] = None,
    max_steps: Optional[int] = None,
) -> Plan:
    return Plan(
        lr=lambda step: 0.1,
        steps_per_epoch=50,
        total_steps=100,
        max_steps=max_steps,
        max_time=None,
        log=Cadence(every_steps=1),
        validate=Cadence(every_steps=validate),
        save=Cadence(every_steps=save),
        keep=Cadence(every_steps=keep),
        monitor="val/loss",
        direction="min",
        identity={},
    )


@pytest.mark.parametrize(
    "settings, step, meets_at",
    [
        ({}, 0, 50),
        ({}, 50, 100),
        ({"validate": 20}, 0, 20),
        ({"validate": 20}, 20, 40),
        ({"validate": 20, "save": 15}, 20, 30),
        ({"validate": 20, "save": 15, "keep": 7}, 20, 21),
        ({"max_steps": 33}, 20, 33),
        ({"max_steps": 33}, 33, 50),
    ],
    ids=str,
)
def test_workers_meet_at_the_end_of_an_epoch_and_before(settings: Dict[str, int], step: int, meets_at: int) -> None:
    assert plan(**settings).next_meeting(step, step // 50 * 50) == meets_at


def recorder(log_interval: int) -> Recorder:
    return Recorder(Meter({}, 2), [], log_interval=log_interval, total_steps=None)


def record(recorder: Recorder, steps: List[int]) -> None:
    for step in steps:
        recorder.begin()
        recorder.add(Entry(step, 1, 10, 0.1, mx.nd.array([10.0 * step])))


def test_chunks_of_a_step_have_one_row_and_steps_of_others_none() -> None:
    one = recorder(5)
    one.add(Entry(1, 1, 10, 0.1, mx.nd.array([10.0])))
    one.add(Entry(1, 1, 10, 0.1, mx.nd.array([30.0])))
    record(one, [4, 6])
    rows = one.read(everything=True)
    assert [(row["step"], row["loss"]) for row in rows] == [(1, 2.0), (4, 4.0), (6, 6.0)]
    # Step 5 is one of another worker: the point over the first five steps comes with step 6.
    assert [step for step, _ in one.points] == [6]
    record(one, [9])
    one.end_epoch()
    one.read(everything=True)
    assert [step for step, _ in one.points] == [9]


def test_the_speed_counts_steps_of_other_workers() -> None:
    one = recorder(5)
    record(one, [1, 2])
    one.read(everything=True)
    assert one.samples == 20
    record(one, [5, 8])
    one.read(everything=True)
    assert one.samples == 80
