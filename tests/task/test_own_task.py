"""The examples of a user's own task and own field: trained, resumed, placed and measured, also against NumPy."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any, Sequence

import numpy as np
import pytest
from in_threads import Rendezvous, Threads

from mxtrain.cli import main
from mxtrain.data.loading.randomness import Draw
from mxtrain.errors import ConfigError
from mxtrain.kvstore.world import World

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "own_task"
SMALL = ("task=denoising", "model.channels=4", "model.depth=2", "dataset.batch_size=96")
FIELD = ("task=circle_fitting", "model.units=8", "dataset.num_train=128")
FUNCTION = ("task=circle_fitting", "model=flat", "dataset.num_train=128")


@pytest.fixture
def in_example(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXAMPLE)
    monkeypatch.syspath_prepend(str(EXAMPLE))


@pytest.fixture
def describe(in_example: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    from mxtrain.composing.composer import Composer
    from mxtrain.composing.environment import check

    def make(*overrides: str, small: Sequence[str] = SMALL) -> Any:
        with Composer([str(EXAMPLE / "conf")]) as composer:
            return check(composer.compose(["logger=jsonl", *small, *overrides]))

    return make


def weights(run: Any) -> Any:
    return {name: array.asnumpy() for name, array in run.runner.context.step.strategy.values.items()}


@pytest.mark.slow
def test_loss_and_psnr_match_numpy(describe: Any, tmp_path: Path) -> None:
    from mxtrain.training.build import build_run

    run = build_run(describe(), tmp_path / "run")
    strategy = run.runner.context.step.strategy
    batch = next(iter(run.runner.context.data.train.epoch(0)))
    (noisy,), (clean,) = ([array.asnumpy() for array in arrays] for arrays in (batch.inputs, batch.targets))
    expected = np.stack([np.random.default_rng([0, 0, int(i)]).normal(0, 0.5, (1, 8, 8)) for i in batch.index_B])
    np.testing.assert_allclose(noisy - clean, expected, atol=1e-5)
    (found,) = (output.asnumpy() for output in strategy.predict(batch.inputs))
    error_B = ((found - clean) ** 2).mean(axis=(1, 2, 3))
    loss, psnr = strategy.forward_backward(batch).asnumpy()
    assert loss == pytest.approx(0.5 * error_B.sum(), rel=1e-4)
    assert psnr == pytest.approx((10 * np.log10(2.6**2 / error_B)).sum(), rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("placement", [("parallel=hybrid", "parallel.devices=cpu:4"), ("parallel=data",)], ids=str)
def test_placements_give_the_same_weights(describe: Any, tmp_path: Path, placement: Any) -> None:
    from mxtrain.training.build import build_run

    found = []
    for name, given in (("one", ()), ("placed", placement)):
        run = build_run(describe("trainer.max_steps=6", *given), tmp_path / name)
        run.runner.train(run.info)
        found.append(weights(run))
    for name, array in found[0].items():
        np.testing.assert_allclose(found[1][name], array, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_workers_give_the_same_weights(describe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each adds the noise of its own samples, whose draws do not depend on who has them."""
    from mxtrain.training.build import build_run

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


@pytest.mark.slow
def test_own_task_is_resumed_and_measured(in_example: None, tmp_path: Path) -> None:
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


def test_a_field_of_its_own_uses_none_of_the_package(in_example: None) -> None:
    tree = ast.parse((EXAMPLE / "circles.py").read_text(encoding="utf-8"))
    modules = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert {name.split(".")[1] for name in modules if name.startswith("mxtrain.")} == {
        "data",
        "files",
        "loss",
        "metric",
        "model",
        "task",
        "types",
    }
    from circles import CircleDraw

    assert not {int(one) for one in CircleDraw} & {int(one) for one in Draw}


@pytest.mark.slow
def test_a_field_of_its_own_is_trained_resumed_and_measured(in_example: None, tmp_path: Path) -> None:
    def train(folder: str, steps: int, small: Sequence[str] = FIELD) -> Any:
        given = ["--config-dir", "conf", *small, f"trainer.max_steps={steps}", f"hydra.run.dir={tmp_path / folder}"]
        assert main(given) == 75
        return json.loads((tmp_path / folder / "status.json").read_text())

    whole = train("whole", 12)
    train("parts", 5)
    assert train("parts", 12)["weights_sha256"] == whole["weights_sha256"]
    assert main(["eval", "--config-dir", "conf", str(tmp_path / "whole"), "split=val"]) == 0
    measured = json.loads((tmp_path / "whole" / "eval" / "val" / "metrics.json").read_text())
    assert measured["samples"] == 256 and 0 < measured["radius_error"] < 1
    train("function", 3, small=FUNCTION)


@pytest.mark.slow
def test_a_field_of_its_own_is_placed_and_measured_as_by_numpy(describe: Any, tmp_path: Path) -> None:
    from mxtrain.training.build import build_run

    found = []
    for name, given in (("one", ()), ("placed", ("parallel=hybrid", "parallel.devices=cpu:4"))):
        run = build_run(describe("trainer.max_steps=4", *given, small=FIELD), tmp_path / name)
        run.runner.train(run.info)
        found.append(weights(run))
    for name, array in found[0].items():
        np.testing.assert_allclose(found[1][name], array, rtol=1e-4, atol=1e-5)
    description = describe(small=FIELD)
    run = build_run(description, tmp_path / "measured")
    strategy = run.runner.context.step.strategy
    batch = next(iter(run.runner.context.data.train.epoch(0)))
    (point_BP2, count_B), (circle_B3,) = ([one.asnumpy() for one in arrays] for arrays in (batch.inputs, batch.targets))
    (output_B3,) = (output.asnumpy() for output in strategy.predict(batch.inputs))
    value = weights(run)

    def dense(x: np.ndarray, name: str) -> np.ndarray:
        return x @ value[f"{name}.weight"].T + value[f"{name}.bias"]

    hidden = np.maximum(dense(np.maximum(dense(point_BP2, "points.0"), 0), "points.1"), 0)
    hidden *= np.arange(point_BP2.shape[1])[None, :, None] < count_B[:, None, None]
    mean = hidden.sum(axis=1) / count_B[:, None]
    np.testing.assert_allclose(output_B3, dense(np.maximum(dense(mean, "output.0"), 0), "output.1"), atol=1e-5)
    loss, error = strategy.forward_backward(batch).asnumpy()
    assert loss == pytest.approx(np.abs(output_B3 - circle_B3).mean(axis=1).sum(), rel=1e-4)
    assert error == pytest.approx(np.abs(output_B3 - circle_B3)[:, 2].sum(), rel=1e-4)
    scale = description.dataset.infer_signature(description.dataset.open(), description.model).scale
    radius = np.linalg.norm(point_BP2[:, 0] * scale - circle_B3[:, :2], axis=1)
    np.testing.assert_allclose(radius, circle_B3[:, 2], atol=0.05)


@pytest.mark.slow
def test_arguments_that_a_signature_does_not_know_are_refused(describe: Any) -> None:
    with pytest.raises(ConfigError, match=r"model\.most_points must be given: type \+\+model\.most_points="):
        describe("model=flat", small=("task=denoising",))
    with pytest.raises(ConfigError, match="takes arcs, and dataset gives images.*of arcs, e.g. dataset=circles"):
        describe("model=deep_set", small=("task=denoising",))
