"""Another batch size on resume: epochs, schedules and the step number continue, and no sample is trained twice."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
from running import rows, status, train_here

from mxtrain.errors import CheckpointError
from mxtrain.training.plan import build_rate, step_budget, total_steps_of
from mxtrain.training.resume import epoch_origin_of, epoch_step_of, require_same_batch

CHANGE = "checkpoint.changes=[dataset.batch_size]"
PLAIN = (
    "model=mlp",
    "model.hidden=[8]",
    "early_stopping=off",
    "optimizer=sgd",
    "optimizer.lr=0.1",
    "lr_scheduler=cosine",
    "trainer.log_interval=1",
    "trainer.test=false",
)


class Stored:
    """Counters of a checkpoint."""

    path = "run/checkpoints/step-00000047"

    def __init__(self, step, epoch, epoch_step, batch_size):
        self.step, self.epoch = step, epoch
        self.state = {"run": {"batch_size": batch_size}, "train": {"epoch_step": epoch_step}}


@pytest.mark.parametrize(
    "stored, batch_size, steps_per_epoch, expected",
    [
        ((40, 2, 0, 64), 64, 20, 0),
        ((47, 2, 7, 64), 64, 20, 0),
        ((40, 2, 0, 64), 128, 10, 20),
        ((40, 2, 0, 64), 32, 40, -40),
        ((46, 2, 6, 64), 128, 10, 23),
        ((47, 2, 7, 64), 32, 40, -47),
    ],
)
def test_origin_of_epochs(stored, batch_size, steps_per_epoch, expected) -> None:
    assert epoch_origin_of(Stored(*stored), batch_size, steps_per_epoch) == expected
    assert epoch_origin_of(None, batch_size, steps_per_epoch) == 0


def test_samples_of_an_epoch_must_fill_batches() -> None:
    assert epoch_step_of(Stored(46, 2, 6, 64), 128) == 3
    with pytest.raises(CheckpointError, match="448 samples .* batches of 128.*batch_size=64 trainer.epoch_budget=3"):
        epoch_step_of(Stored(47, 2, 7, 64), 128)


@pytest.mark.parametrize(
    "setting, config, is_refused",
    [
        ("batch_size", {}, True),
        ("batch_size", {"checkpoint": {"changes": ["optimizer.lr"]}}, True),
        ("batch_size", {"checkpoint": {"changes": ["dataset.batch_size"]}}, False),
        ("num_steps", {}, False),
    ],
)
def test_another_batch_size_must_be_allowed(setting, config, is_refused) -> None:
    """Settings of other names were compared with the whole description."""
    checkpoint = Stored(40, 2, 0, 64)
    require_same_batch(checkpoint, "batch_size", 64, config)
    if is_refused:
        with pytest.raises(CheckpointError, match="Type dataset.batch_size=64"):
            require_same_batch(checkpoint, setting, 32, config)
    else:
        require_same_batch(checkpoint, setting, 32, config)


@pytest.mark.parametrize(
    "unit, origin, total, expected",
    [
        ("epochs", 20, 60, (0.1, 10, 40, 5)),
        ("epochs", 20, None, (0.1, 10, None, 5)),
        ("epochs", 0, 60, (0.1, 10, 60, 25)),
        ("steps", 20, 60, (0.1, 10, 60, 25)),
    ],
)
def test_schedules_in_epochs_count_from_their_origin(unit, origin, total, expected) -> None:
    def build(lr, steps_per_epoch, total_steps):
        return lambda step: (lr, steps_per_epoch, total_steps, step)

    rates = SimpleNamespace(schedule=SimpleNamespace(unit=unit, build=build), lr=0.1)
    assert build_rate(SimpleNamespace(rates=rates), 10, total, origin)(25) == expected


def test_lengths_in_epochs_count_from_their_origin() -> None:
    trainer = SimpleNamespace(max_epochs=4, max_steps=None, epoch_budget=3)
    assert total_steps_of(trainer, 10, 20) == 60
    assert step_budget(trainer, 10, 20) == (50, "trainer.epoch_budget=3")


@pytest.mark.slow
def test_a_change_within_an_epoch(tmp_path) -> None:
    train_here(tmp_path, *PLAIN, "trainer.max_epochs=3", "trainer.max_steps=15", "dataset.batch_size=100", exit_code=75)
    train_here(tmp_path, *PLAIN, "trainer.max_epochs=3", "dataset.batch_size=200", CHANGE)
    found = [(row["epoch"], row["step"]) for row in rows(tmp_path) if row["split"] == "train"]
    assert [step for _, step in found] == list(range(1, len(found) + 1))
    assert [epoch for epoch, _ in found].count(1) == 13  # and 2 of the second epoch, or 1 of the present size
    assert sum(epoch == 2 and step > 15 for epoch, step in found) == [epoch for epoch, _ in found].count(3) - 1


@pytest.mark.slow
@pytest.mark.parametrize("small, large", [(100, 200), (200, 100)])
def test_epochs_and_rates_continue(small, large, tmp_path) -> None:
    train_here(
        tmp_path, *PLAIN, "trainer.max_epochs=4", "trainer.epoch_budget=2", f"dataset.batch_size={small}", exit_code=75
    )
    before = status(tmp_path)["step"]
    changed = (*PLAIN, "trainer.max_epochs=4", f"dataset.batch_size={large}")
    assert "dataset.batch_size: was" in train_here(tmp_path, *changed, exit_code=2)
    train_here(tmp_path, *changed, CHANGE, "parallel=data", "parallel.devices=cpu:2")
    found = [row for row in rows(tmp_path) if row["split"] == "train"]
    steps = [row["step"] for row in found]
    num_after = (steps[-1] - before) // 2
    assert steps == list(range(1, steps[-1] + 1))
    place = [step / (before // 2) for step in range(before)]  # in epochs
    place += [2 + step / num_after for step in range(2 * num_after)]
    assert [row["epoch"] for row in found] == [1 + int(at) for at in place]
    # The cosine falls from 0.1 to 0 over four epochs.
    expected = [0.05 * (1 + math.cos(math.pi * at / 4)) for at in place]
    np.testing.assert_allclose([row["lr"] for row in found], expected, atol=1e-9)
    assert status(tmp_path)["epoch"] == 4 and "nothing is left to do" in train_here(tmp_path, *changed, CHANGE)
