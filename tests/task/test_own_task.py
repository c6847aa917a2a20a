"""The example of a user's own task: trained, resumed, placed and measured like any other, and against NumPy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_threads import Rendezvous, Threads

from mxtrain.cli import main
from mxtrain.kvstore.world import World

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "own_task"
SMALL = ("task=denoising", "model.channels=4", "model.depth=2", "dataset.batch_size=96")


@pytest.fixture
def in_example(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLE)
    monkeypatch.syspath_prepend(str(EXAMPLE))


@pytest.fixture
def describe(in_example: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    from mxtrain.cli.compose import Composer
    from mxtrain.cli.environment import check

    def make(*overrides: str) -> Any:
        with Composer([str(EXAMPLE / "conf")]) as composer:
            return check(composer.compose(["logger=jsonl", *SMALL, *overrides]))

    return make


def weights(run: Any) -> Any:
    return {name: array.asnumpy() for name, array in run.runner._step.strategy.values.items()}


def test_loss_and_psnr_are_those_of_numpy(describe: Any, tmp_path: Path) -> None:
    from mxtrain.build import build_run

    run = build_run(describe(), tmp_path / "run")
    strategy = run.runner._step.strategy
    batch = next(iter(run.runner._data.train.epoch(0)))
    (noisy,), (clean,) = ([array.asnumpy() for array in arrays] for arrays in (batch.inputs, batch.targets))
    expected = np.stack([np.random.default_rng([0, 0, int(i)]).normal(0, 0.5, (1, 8, 8)) for i in batch.index_B])
    np.testing.assert_allclose(noisy - clean, expected, atol=1e-5)
    (found,) = (output.asnumpy() for output in strategy.predict(batch.inputs))
    error_B = ((found - clean) ** 2).mean(axis=(1, 2, 3))
    loss, psnr = strategy.forward_backward(batch).asnumpy()
    assert loss == pytest.approx(0.5 * error_B.sum(), rel=1e-4)
    assert psnr == pytest.approx((10 * np.log10(2.6**2 / error_B)).sum(), rel=1e-4)


@pytest.mark.parametrize("placement", [("parallel=hybrid", "parallel.devices=cpu:4"), ("parallel=data",)], ids=str)
def test_placements_give_the_same_weights(describe: Any, tmp_path: Path, placement: Any) -> None:
    from mxtrain.build import build_run

    found = []
    for name, given in (("one", ()), ("placed", placement)):
        run = build_run(describe("trainer.max_steps=6", *given), tmp_path / name)
        run.runner.train(run.info)
        found.append(weights(run))
    for name, array in found[0].items():
        np.testing.assert_allclose(found[1][name], array, rtol=1e-4, atol=1e-5)


def test_workers_give_the_same_weights(describe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each adds the noise of its own samples, whose draws do not depend on who has them."""
    from mxtrain.build import build_run

    alone = build_run(describe("trainer.max_steps=6"), tmp_path / "alone")
    alone.runner.train(alone.info)
    monkeypatch.setattr(Threads, "rendezvous", Rendezvous(2), raising=False)
    description = describe("trainer.max_steps=6", "kvstore._target_=in_threads.Threads")

    def work(world: World) -> Any:
        run = build_run(description, tmp_path / "shared", world=world)
        run.runner.train(run.info)
        return weights(run)

    for found in Threads.rendezvous.run(work):
        for name, array in weights(alone).items():
            np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5)


def test_it_is_resumed_and_measured(in_example: None, tmp_path: Path) -> None:
    def train(folder: str, steps: int) -> Any:
        given = ["--config-dir", "conf", *SMALL, f"trainer.max_steps={steps}", f"hydra.run.dir={tmp_path / folder}"]
        assert main(given) == 75
        return json.loads((tmp_path / folder / "status.json").read_text())

    whole = train("whole", 20)
    train("parts", 7)
    assert train("parts", 20)["weights_sha256"] == whole["weights_sha256"]
    assert main(["eval", "--config-dir", "conf", str(tmp_path / "whole"), "split=val"]) == 0
    measured = json.loads((tmp_path / "whole" / "eval" / "val" / "metrics.json").read_text())
    rows = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    validated = [row for row in rows if row["split"] == "val"][-1]
    assert measured["samples"] == 270
    assert validated["step"] == measured["step"]
    assert measured["psnr"] == pytest.approx(validated["psnr"], rel=1e-6)
