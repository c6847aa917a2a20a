"""Whole runs of workers in threads: what only several of them do. 10 s."""

from __future__ import annotations

from pathlib import Path
from typing import Any, List

import numpy as np
import pytest
from in_threads import Rendezvous, Threads
from running import checkpoints, rows, status

from mxtrain.checkpoint import open_checkpoint
from mxtrain.kvstore.world import World
from mxtrain.training.build import build_run

THREE = (
    "kvstore._target_=in_threads.Threads",
    "cluster.workers=3",
    "model=mlp",
    "model.hidden=[8]",
    "logger=jsonl",
    "dataset.batch_size=200",
    "trainer.max_epochs=2",
    "early_stopping=off",
)


def train(description: Any, run_dir: Path, poison: Any = None, count: int = 3) -> List[Any]:
    """The results of all workers; `poison` may change a worker's runner before it begins."""

    def work(world: World) -> Any:
        made = build_run(description, run_dir, world=world)
        if poison:
            poison(world.rank, made.runner)
        return made.runner.train(made.info)

    Threads.rendezvous = Rendezvous(count)
    return Threads.rendezvous.run(work)


@pytest.mark.zoo
@pytest.mark.parametrize("way", ["fp16", "bf16", "topk", "2bit"])
def test_residuals_of_compression_are_resumed_bit_for_bit(describe_run: Any, tmp_path: Path, way: str) -> None:
    compressed = (
        *THREE,
        f"kvstore.compression={way}",
        "kvstore.ratio=0.1",
        *["kvstore.threshold=0.001"] * (way == "2bit"),
    )
    whole = train(describe_run(*compressed), tmp_path / "whole")
    stopped = train(describe_run(*compressed, "trainer.max_steps=5"), tmp_path / "run")
    assert [result.exit_code for result in stopped] == [75] * 3
    left = open_checkpoint(tmp_path / "run", which="last").arrays("residual")
    assert {name.split(":")[1] for name in left} >= {"0", "1", "2"}
    assert all(left[f"output.weight:{rank}"].any() for rank in range(3))
    assert (left["output.weight:0"] != left["output.weight:1"]).any()
    remarks: List[str] = []
    resumed = train(describe_run(*compressed), tmp_path / "run", lambda rank, runner: remarks.extend(runner.remarks))
    assert remarks == []
    assert len({result.weights_sha256 for result in (*whole, *resumed)}) == 1
    assert rows(tmp_path / "run") == rows(tmp_path / "whole")
    assert status(tmp_path / "run")["metrics"] == status(tmp_path / "whole")["metrics"]


@pytest.mark.slow
def test_another_number_of_workers_reports_residuals(describe_run: Any, tmp_path: Path) -> None:
    compressed = (*THREE, "kvstore.compression=fp16")
    train(describe_run(*compressed, "trainer.max_steps=3"), tmp_path / "run")
    remarks: List[str] = []
    two = describe_run(*compressed, "cluster.workers=2")
    train(two, tmp_path / "run", lambda rank, runner: remarks.extend(runner.remarks), count=2)
    assert len(remarks) == 2 and all("of 3 workers is split evenly over 2" in remark for remark in remarks), remarks


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 3])
def test_weights_that_break_while_the_loss_is_finite_are_never_saved(
    describe_run: Any, tmp_path: Path, count: int
) -> None:
    def poison(rank: int, runner: Any) -> None:
        update = runner.context.step.updater.update

        def broken(gradients: Any, lr: float) -> None:
            update(gradients, lr)
            if runner.state.step == 5:  # the sixth: the checkpoint of its step must not be written
                runner.context.step.strategy.values["output.bias"][:] = np.inf

        runner.context.step.updater.update = broken

    two = (*THREE, f"cluster.workers={count}", "checkpoint.every_steps=2")
    for result in train(describe_run(*two), tmp_path / "run", poison, count):
        assert result.exit_code == 3, result.cause
        assert "the weights became non-finite in step 6 or before; the first is 'output.bias'; the same" in result.cause
    assert checkpoints(tmp_path / "run")[-1] == "step-00000004"


class Spoilt:
    """Batches whose `number`th, from 1, is not finite."""

    def __init__(self, loader: Any, number: int) -> None:
        self._loader, self._number = loader, number

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def epoch(self, epoch: int, start: int, consumer: Any) -> Any:
        for number, batch in enumerate(self._loader.epoch(epoch, start, consumer), start=start + 1):
            if number == self._number:
                batch.inputs[0][:] = np.inf
            yield batch


@pytest.mark.slow
@pytest.mark.parametrize(
    "ranks, said",
    [
        ([1], "in step 4 the gradients of worker 1 alone were non-finite, from its data or its machine"),
        ([0, 2], "in step 4 the gradients of workers 0, 2 alone were non-finite, from its data or its machine"),
        (
            [0, 1, 2],
            "in step 4 the gradients of workers 0, 1, 2 (all) were the first non-finite ones",
        ),
    ],
)
def test_first_worker_with_non_finite_numbers_is_named(
    describe_run: Any, tmp_path: Path, ranks: List[int], said: str
) -> None:
    def poison(rank: int, runner: Any) -> None:
        if rank in ranks:
            runner.context.data.train = Spoilt(runner.context.data.train, 4)

    results = train(describe_run(*THREE, "checkpoint.every_steps=2"), tmp_path / "run", poison)
    for result in results:
        assert (result.exit_code, result.state) == (3, "failed")
        assert said in result.cause and "step 4" in result.cause, result.cause


@pytest.mark.slow
def test_workers_with_different_weights_end_at_the_next_validation(describe_run: Any, tmp_path: Path) -> None:
    def poison(rank: int, runner: Any) -> None:
        if rank == 2:
            update = runner.context.step.updater.update

            def other(gradients: Any, lr: float) -> None:
                update(gradients, lr)
                weight = runner.context.step.strategy.values["output.weight"]
                weight[:] = weight[:, ::-1] if runner.state.step == 3 else weight

            runner.context.step.updater.update = other

    results = train(describe_run(*THREE), tmp_path / "run", poison)
    assert [result.exit_code for result in results] == [1] * 3
    assert all(f"weights differ, seen by worker {rank}" in result.cause for rank, result in enumerate(results))
