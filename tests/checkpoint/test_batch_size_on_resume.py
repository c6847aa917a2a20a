"""Another batch size on resume: epochs, schedules and the step number continue, and no sample is trained twice."""

import math

import numpy as np
import pytest
from running import here, rows, status

from mxtrain.errors import CheckpointError
from mxtrain.training.resume import epoch_origin_of, epoch_step_of

CHANGE = "checkpoint.changes=[dataset.batch_size]"
PLAIN = ("model=mlp", "model.hidden=[8]", "early_stopping=off", "optimizer=sgd", "optimizer.lr=0.1",
         "lr_scheduler=cosine", "trainer.log_interval=1", "trainer.test=false")  # fmt: skip


class Stored:
    """Counters of a checkpoint."""

    path = "run/checkpoints/step-00000047"

    def __init__(self, step, epoch, epoch_step, batch_size):
        self.step, self.epoch = step, epoch
        self.state = {"run": {"batch_size": batch_size}, "train": {"epoch_step": epoch_step}}


@pytest.mark.parametrize("stored, batch_size, steps_per_epoch, expected", [
    ((40, 2, 0, 64), 64, 20, 0), ((47, 2, 7, 64), 64, 20, 0), ((40, 2, 0, 64), 128, 10, 20),
    ((40, 2, 0, 64), 32, 40, -40),
    ((46, 2, 6, 64), 128, 10, 23), ((47, 2, 7, 64), 32, 40, -47),
])  # fmt: skip
def test_origin_of_epochs(stored, batch_size, steps_per_epoch, expected) -> None:
    assert epoch_origin_of(Stored(*stored), batch_size, steps_per_epoch) == expected
    assert epoch_origin_of(None, batch_size, steps_per_epoch) == 0


def test_samples_of_an_epoch_are_whole_batches() -> None:
    assert epoch_step_of(Stored(46, 2, 6, 64), 128) == 3
    with pytest.raises(CheckpointError, match="448 samples .* batches of 128.*batch_size=64 trainer.epoch_budget=3"):
        epoch_step_of(Stored(47, 2, 7, 64), 128)


@pytest.mark.slow
@pytest.mark.parametrize("small, large", [(100, 200), (200, 100)])
def test_epochs_and_rates_go_on(small, large, tmp_path) -> None:
    here(tmp_path, *PLAIN, "trainer.max_epochs=4", "trainer.epoch_budget=2", f"dataset.batch_size={small}",
         exit_code=75)  # fmt: skip
    before = status(tmp_path)["step"]
    changed = (*PLAIN, "trainer.max_epochs=4", f"dataset.batch_size={large}")
    assert "dataset.batch_size: was" in here(tmp_path, *changed, exit_code=2)
    here(tmp_path, *changed, CHANGE, "parallel=data", "parallel.devices=cpu:2")
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
    assert status(tmp_path)["epoch"] == 4 and "nothing is left to do" in here(tmp_path, *changed, CHANGE)
