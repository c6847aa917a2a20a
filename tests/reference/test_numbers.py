"""Whole runs against the same run in NumPy: weights after each step, each row, each evaluation. 10 s, and 15 s with
worker processes."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Tuple
from unittest import mock

import numpy as np
import pytest
from arithmetic import Adam, Moment, Momentum, Reference, Settings, Split, falling, log_softmax, warmup_cosine
from in_threads import Rendezvous, Threads
from running import Process, rows, status

from mxtrain.callback.protocol import Callback
from mxtrain.cli.dispatch import run as run_command
from mxtrain.composing.composer import Composer
from mxtrain.composing.environment import check
from mxtrain.errors import EXIT_BUDGET
from mxtrain.kvstore.world import World
from mxtrain.task import sample_figure
from mxtrain.task.sample_figure import PredictedImages
from mxtrain.training.build import build_run

# 8 steps of 157 samples and one of a single sample: where two share it, one of them has nothing.
COMMON = (
    "dataset.batch_size=157",
    "trainer.max_epochs=2",
    "early_stopping=off",
    "checkpoint.every_steps=1",
    "checkpoint.keep_last=100",
    "trainer.val_interval=4",
    "trainer.val_interval_unit=steps",
)
STEPS_PER_EPOCH, NUM_STEPS = 9, 18
LENET = ("model=lenet", "model.channels=[4]", "model.hidden=8", "model.dropout=0")
NO_DECAY = {f"features.{layer}.{name}": (1.0, 0.0) for layer in (1, 4, 8) for name in ("gamma", "beta", "bias")}


@dataclass
class Case:
    overrides: Tuple[str, ...]
    settings: Dict[str, Any]
    optimizer: Any
    stops_after: int = 0
    """Steps after which the run is stopped, and continued from its checkpoint."""
    num_threads: int = 1
    """Workers in threads of this process."""
    has_processes: bool = False


CASES = {
    "mlp": Case(
        (
            "model=mlp",
            "model.hidden=[16]",
            "model.param_groups=[{pattern: output.*, lr_mult: 3.0, wd_mult: 2.0}]",
            "optimizer=sgd",
            "optimizer.lr=0.1",
            "optimizer.wd=0.01",
            "loss.label_smoothing=0.1",
            "trainer.clip_global_norm=1.5",
            "trainer.ema_decay=0.5",
            "lr_scheduler=cosine",
            "lr_scheduler.unit=steps",
            "lr_scheduler.warmup=4",
            "lr_scheduler.warmup_from=0.25",
            "dataset.eval_batch_size=2",
        ),
        dict(
            network="mlp",
            lr=warmup_cosine(0.1, 0.25, 4, NUM_STEPS),
            wd=0.01,
            smoothing=0.1,
            clip_global_norm=1.5,
            average_decay=0.5,
            multipliers={
                "features.1.bias": (1.0, 0.0),
                "output.weight": (3.0, 2.0),
                "output.bias": (3.0, 2.0),
            },
        ),
        Momentum,
    ),
    "lenet": Case(
        (
            *LENET,
            "optimizer=adam",
            "optimizer.lr=0.01",
            "optimizer.wd=0.1",
            "lr_scheduler=multistep",
            "lr_scheduler.milestones=[0.5,1]",
            "lr_scheduler.gamma=0.3",
        ),
        dict(
            network="lenet",
            lr=falling(0.01, 0.3, [4, 9]),
            wd=0.1,
            multipliers={**NO_DECAY, "output.bias": (1.0, 0.0)},
        ),
        Adam,
    ),
    "two replicas": Case(
        (
            *LENET,
            "parallel=data",
            "parallel.devices=cpu:2",
            "trainer.grad_accumulation=2",
            "optimizer=sgd",
            "optimizer.lr=0.05",
            "optimizer.clip_gradient=0.01",
            "lr_scheduler=constant",
            "trainer.ema_decay=0.9",
            "trainer.monitor=val/loss",
        ),
        dict(network="lenet", lr=lambda step: 0.05, average_decay=0.9, num_parts=2, num_shares=2),
        lambda: Momentum(clip_gradient=0.01),
        stops_after=5,
    ),
    "three workers": Case(
        (
            *LENET,
            "kvstore._target_=in_threads.Threads",
            "cluster.workers=3",
            "optimizer=sgd",
            "optimizer.lr=0.05",
            "optimizer.wd=0.01",
            "trainer.clip_global_norm=1",
            "loss.label_smoothing=0.2",
            "lr_scheduler=constant",
            "trainer.ema_decay=0.8",
        ),
        dict(
            network="lenet",
            lr=lambda step: 0.05,
            wd=0.01,
            multipliers={**NO_DECAY, "output.bias": (1.0, 0.0)},
            smoothing=0.2,
            clip_global_norm=1.0,
            average_decay=0.8,
            num_shares=3,
        ),
        Momentum,
        stops_after=5,
        num_threads=3,
    ),
    "two workers": Case(
        (
            *LENET,
            "kvstore=dist_sync",
            "cluster.workers=2",
            "optimizer=sgd",
            "optimizer.lr=0.05",
            "optimizer.wd=0.02",
            "model.no_decay_norm_and_bias=false",
            "trainer.clip_global_norm=1",
            "lr_scheduler=constant",
            "trainer.ema_decay=0.9",
        ),
        dict(
            network="lenet",
            lr=lambda step: 0.05,
            wd=0.02,
            clip_global_norm=1.0,
            average_decay=0.9,
            num_shares=2,
        ),
        Momentum,
        has_processes=True,
    ),
}


class Watching(Callback):
    """Keeps what callbacks are shown."""

    def __init__(self) -> None:
        self.scalars: Dict[int, Dict[str, float]] = {}
        self.samples: Dict[int, PredictedImages] = {}

    def on_scalars(self, scalars: Any, step: int) -> None:
        self.scalars.setdefault(step, {}).update(scalars)

    def on_validation(self, validation: Any, progress: Any) -> None:
        with mock.patch.object(sample_figure, "draw_samples", lambda shown, names, most: shown):
            (image,) = validation.read_samples()
            self.samples[progress.step] = image.draw(16)


@dataclass
class Trained:
    """A run, and the reference of the same run."""

    run_dir: Path
    reference: Reference
    moments: List[Moment]
    splits: Any
    watching: Watching = field(default_factory=Watching)

    def split(self, name: str) -> Split:
        source = getattr(self.splits, name)
        return Split(source.image_NCHW, source.label_N)

    def validated(self, step: int) -> Dict[str, np.ndarray]:
        """The weights that an evaluation at this step is of."""
        moment = self.moments[step - 1]
        return moment.weights if self.reference.settings.average_decay is None else moment.average


def saved(run_dir: Path, step: int, stem: str = "model") -> Dict[str, np.ndarray]:
    from mxtrain.engine.backend import nd

    arrays = nd.load(str(run_dir / "checkpoints" / f"step-{step:08d}" / f"{stem}.params"))
    return {name: array.asnumpy() for name, array in arrays.items()}


PARAMS = [pytest.param(name, marks=[pytest.mark.zoo] * case.has_processes) for name, case in CASES.items()]
"""Processes equal replicas to the bit: tests/cluster/test_workers.py."""


def describe(*overrides: str) -> Any:
    with Composer() as composer:
        return check(composer.compose(overrides))


def train(description: Any, run_dir: Path, num_threads: int, watching: Watching) -> int:
    """The exit code of all workers; rank 0 is watched."""

    def work(world: World) -> int:
        made = build_run(description, run_dir, world=world)
        if world.rank == 0:
            made.runner.context.callbacks.callbacks.insert(0, watching)
        return made.runner.train(made.info).exit_code

    Threads.rendezvous = Rendezvous(num_threads)
    (code,) = set(Threads.rendezvous.run(work))
    return code


@pytest.fixture(scope="module", params=PARAMS)
def trained(request: Any, tmp_path_factory: Any) -> Trained:
    case, run_dir, watching = CASES[request.param], tmp_path_factory.mktemp("numbers") / "run", Watching()
    description = describe("logger=jsonl", *COMMON, *case.overrides)
    if case.has_processes:
        Process(run_dir, *COMMON, *case.overrides).end()
    elif case.stops_after:
        stopped = describe("logger=jsonl", *COMMON, *case.overrides, f"trainer.max_steps={case.stops_after}")
        assert train(stopped, run_dir, case.num_threads, watching) == EXIT_BUDGET
    if not case.has_processes:
        assert train(description, run_dir, case.num_threads, watching) == 0
    splits = description.dataset.open()
    settings = Settings(batch_size=157, epochs=2, optimizer=case.optimizer(), **case.settings)
    reference = Reference(settings, saved(run_dir, 0), Split(splits.train.image_NCHW, splits.train.label_N))
    return Trained(run_dir, reference, list(reference.moments()), splits, watching)


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_the_weights_after_each_step(trained: Trained) -> None:
    assert len(trained.moments) == NUM_STEPS
    for step, moment in enumerate(trained.moments, start=1):
        found = saved(trained.run_dir, step)
        assert set(found) == set(moment.weights)
        for name, array in found.items():
            np.testing.assert_allclose(
                array, moment.weights[name], rtol=1e-4, atol=1e-5, err_msg=f"{name} after step {step}"
            )


def test_the_moving_average_after_each_step(trained: Trained) -> None:
    if trained.reference.settings.average_decay is None:
        assert not list(trained.run_dir.glob("checkpoints/*/ema.params"))
        return
    for step, moment in enumerate(trained.moments, start=1):
        for name, array in saved(trained.run_dir, step, "ema").items():
            np.testing.assert_allclose(
                array, moment.average[name], rtol=1e-4, atol=1e-5, err_msg=f"{name} after step {step}"
            )


def test_every_row_of_training(trained: Trained) -> None:
    found = [row for row in rows(trained.run_dir) if row["split"] == "train"]
    assert len(found) == NUM_STEPS
    for row, moment in zip(found, trained.moments):
        assert set(row) == {*moment.row, "split"}
        for name, value in moment.row.items():
            assert row[name] == pytest.approx(value, rel=1e-4), (name, row)


def test_every_row_of_validation_and_the_best(trained: Trained) -> None:
    found = [row for row in rows(trained.run_dir) if row["split"] == "val"]
    assert [(row["step"], row["epoch"]) for row in found] == [(4, 1), (8, 1), (12, 2), (16, 2), (18, 2)]
    for row in found:
        expected = trained.reference.measure(trained.validated(row["step"]), trained.split("val"))
        assert row["loss"] == pytest.approx(expected["loss"], rel=1e-4), row
        assert row["accuracy"] == pytest.approx(expected["accuracy"]), row
    best = status(trained.run_dir)["best"]
    name, choose = ("loss", min) if best["metric"] == "val/loss" else ("accuracy", max)
    expected_best = choose(found, key=lambda row: row[name])
    assert (best["step"], best["value"]) == (expected_best["step"], expected_best[name])


def test_the_test_split_is_measured_with_the_best_weights(trained: Trained) -> None:
    ended = status(trained.run_dir)
    expected = trained.reference.measure(trained.validated(ended["best"]["step"]), trained.split("test"))
    assert ended["metrics"]["test/loss"] == pytest.approx(expected["loss"], rel=1e-4)
    assert ended["metrics"]["test/accuracy"] == pytest.approx(expected["accuracy"])


@pytest.mark.zoo_except("lenet", "three workers")
@pytest.mark.slow
def test_eval_measures_the_test_split(trained: Trained, tmp_path: Path, capsys: Any) -> None:
    step = status(trained.run_dir)["best"]["step"]
    assert run_command(["eval", str(trained.run_dir), f"output={tmp_path}"]) == 0
    found = json.loads((tmp_path / "metrics.json").read_text())
    expected = trained.reference.measure(trained.validated(step), trained.split("test"))
    assert (found["split"], found["step"], found["samples"]) == ("test", step, len(trained.split("test").label_N))
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-4)
    assert found["accuracy"] == pytest.approx(expected["accuracy"])


def test_the_probabilities_of_shown_samples(trained: Trained) -> None:
    val = trained.split("val")
    shown = np.linspace(0, len(val.label_N) - 1, 16).astype(int)
    few = Split(val.image_NCHW[shown], val.label_N[shown])
    for step, found in trained.watching.samples.items():
        close(found.probability_BK, np.exp(log_softmax(trained.reference.scores(trained.validated(step), few))))
        np.testing.assert_array_equal(found.image_BHWC, few.image_NCHW.transpose(0, 2, 3, 1))
        np.testing.assert_array_equal(found.label_B, few.label_N)


def test_the_norm_of_a_steps_gradients(trained: Trained) -> None:
    for step, found in trained.watching.scalars.items():
        if "train/grad_norm" in found:
            assert found["train/grad_norm"] == pytest.approx(trained.moments[step - 1].grad_norm, rel=1e-4)
    told = any("train/grad_norm" in found for found in trained.watching.scalars.values())
    assert told == bool(trained.watching.scalars and trained.reference.settings.clip_global_norm)


def test_cases_exercise_their_features(trained: Trained) -> None:
    """Otherwise the comparisons above would prove less than they claim."""
    limit, norms = trained.reference.settings.clip_global_norm, [moment.grad_norm for moment in trained.moments]
    assert limit is None or min(norms) < limit < max(norms), norms
    first, last = trained.moments[0], trained.moments[-1]
    assert all(np.abs(last.weights[name] - array).max() > 1e-3 for name, array in first.weights.items())


@pytest.mark.slow
def test_run_without_checkpoints_tests_the_last_average_and_keeps_live_weights(
    describe_run: Any, tmp_path: Path
) -> None:
    case = CASES["mlp"]
    overrides = [one for one in COMMON if not one.startswith("checkpoint")]
    description = describe_run(*overrides, *case.overrides, "checkpoint=off", "logger=jsonl")
    made = build_run(description, tmp_path / "run")
    values = made.runner.context.step.strategy.values
    initial, splits = {name: array.asnumpy() for name, array in values.items()}, description.dataset.open()
    result = made.runner.train(made.info)
    settings = Settings(batch_size=157, epochs=2, optimizer=case.optimizer(), **case.settings)
    reference = Reference(settings, initial, Split(splits.train.image_NCHW, splits.train.label_N))
    *_, last = reference.moments()
    for name, array in values.items():
        close(array.asnumpy(), last.weights[name])
    expected = reference.measure(last.average, Split(splits.test.image_NCHW, splits.test.label_N))
    live = reference.measure(last.weights, Split(splits.test.image_NCHW, splits.test.label_N))
    assert result.metrics["test/loss"] == pytest.approx(expected["loss"], rel=1e-4) != live["loss"]
    assert result.metrics["test/accuracy"] == pytest.approx(expected["accuracy"])
