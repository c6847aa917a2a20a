"""A run that drives loggers as the runner does, without training anything."""

from __future__ import annotations

import contextlib
import resource
from typing import Any, Callable, Dict, Iterator, List

import numpy as np
import pytest

from mxtrain.callback.protocol import Callback, Progress, Result, RunInfo, Validation
from mxtrain.task.sample_figure import PredictedImages, draw_samples
from mxtrain.types import Artifact, Figure

STEPS_PER_EPOCH = 10
CONFIG = {
    "model": {"_target_": "mxtrain.vision.classification.lenet.LeNet", "channels": [16, 32], "weights": None},
    "dataset": {"_target_": "mxtrain.data.loading.sources.Digits", "batch_size": 64, "root": "somewhere"},
    "optimizer": {"_target_": "mxtrain.optimizer.optimizers.SGD", "lr": 0.1},
    "trainer": {"seed": 3, "max_epochs": 3, "log_interval": 5},
    "logger": {},
}
NODES = [
    ("data", "null", [], {}, (1, 1, 8, 8)),
    ("net_conv0_weight", "null", [], {}, (4, 1, 3, 3)),
    ("net_conv0_fwd", "Convolution", ["data", "net_conv0_weight"], {"kernel": "(3, 3)"}, (1, 4, 6, 6)),
    ("net_relu0_fwd", "Activation", ["net_conv0_fwd"], {"act_type": "relu"}, (1, 4, 6, 6)),
]


def row_of(step: int, split: str = "train") -> Dict[str, Any]:
    """The row of a step; a function of the step, as of a run that repeats itself bit by bit."""
    row = {
        "step": step,
        "epoch": (step - 1) // STEPS_PER_EPOCH,
        "split": split,
        "loss": 2.0 / step,
        "accuracy": 1 - 1.0 / step,
        "samples_per_s": 1000.0 + step,
    }
    return {**row, "lr": 0.1} if split == "train" else row


def shown_samples() -> PredictedImages:
    images = np.arange(6 * 8 * 8, dtype=np.uint8).reshape(6, 8, 8, 1)
    probability = np.eye(3, dtype=np.float32)[[0, 1, 2, 0, 1, 2]] * 0.7 + 0.1
    return PredictedImages(images, np.array([0, 1, 2, 0, 1, 0]), probability)


def read_samples() -> List[Artifact]:
    return [Figure("samples", lambda most: draw_samples(shown_samples(), ["zero", "one", "two"], most))]


def read_parameters() -> Dict[str, np.ndarray]:
    return {"features.0.weight": np.linspace(-1, 1, 100), "features.0.bias": np.array([np.nan, 1.0])}


class FakeRun:
    """Calls loggers as the runner does, from one step to another."""

    def __init__(self, run_dir: Any, total_steps: int = 30) -> None:
        self.run_dir = run_dir
        self.total_steps = total_steps

    def info(self, resumed_step: int = 0, **changes: Any) -> RunInfo:
        values = dict(
            run_dir=self.run_dir,
            config=CONFIG,
            resumed_step=resumed_step,
            total_steps=self.total_steps,
            steps_per_epoch=STEPS_PER_EPOCH,
            input_shape=(1, 8, 8),
            network=None,
            metric_names=["accuracy"],
            graph_nodes=lambda: NODES,
        )
        return RunInfo(**{**values, **changes})

    def drive(self, callback: Callback, first: int, last: int, end: bool = True) -> None:
        """Steps `first` to `last`: rows every 5 steps, a validation and a checkpoint every epoch."""
        callback.on_start(self.info(first - 1))
        for step in range(first + 4, last + 1, 5):
            self.five_steps(callback, step)
        if end:
            callback.on_end(self.result(last))

    def five_steps(self, callback: Callback, step: int) -> None:
        progress = Progress(step, step // STEPS_PER_EPOCH, self.total_steps)
        callback.on_steps([row_of(number) for number in range(step - 4, step + 1)], progress)
        rows = [row_of(number) for number in range(step - 4, step + 1)]
        means = {f"train/{name}": sum(row[name] for row in rows) / 5 for name in ("loss", "accuracy", "lr")}
        callback.on_scalars(means, step)
        callback.on_scalars({"perf/samples_per_s": 1000.0 + step}, step)
        if step % STEPS_PER_EPOCH == 0:
            row = row_of(step, "val")
            best = {"metric": "val/accuracy", "value": row["accuracy"], "step": step}
            validation = Validation(row=row, best=best, read_samples=read_samples, read_parameters=read_parameters)
            callback.on_validation(validation, progress)
            callback.on_checkpoint(step)

    def result(self, step: int, state: str = "finished", exit_code: int = 0, cause: str = "") -> Result:
        best = {"metric": "val/accuracy", "value": 0.75, "step": 10}
        metrics = {"val/accuracy": 0.75, "test/accuracy": 0.5, "train/loss": 0.1}
        return Result(state, exit_code, cause, step, step // STEPS_PER_EPOCH, best=best, metrics=metrics, wall_s=75.0)

    def rows(self, last: int) -> List[Dict[str, Any]]:
        """All rows that a whole run up to `last` has, in order."""
        rows = []
        for step in range(1, last + 1):
            rows.append(row_of(step))
            if step % STEPS_PER_EPOCH == 0:
                rows.append(row_of(step, "val"))
        return rows


@pytest.fixture
def fake_run(tmp_path) -> FakeRun:
    return FakeRun(tmp_path)


@pytest.fixture
def file_size_limit() -> Iterator[Callable[[int], contextlib.AbstractContextManager]]:
    """A real write failure that comes and goes: no file may grow past so many bytes while the context is open."""

    @contextlib.contextmanager
    def limit(size: int) -> Iterator[None]:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return limit
