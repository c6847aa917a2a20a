"""The mean of a run's last checkpoints: to the bit, never of fewer or of others than were asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, List, Optional

import numpy as np
import pytest

from mxtrain.checkpoint import Snapshot, open_checkpoint, read_ndarrays
from mxtrain.checkpoint.average import last_checkpoints, refuse_average, write_average
from mxtrain.checkpoint.contents import write_contents
from mxtrain.cli.dispatch import run
from mxtrain.errors import CheckpointError, ConfigError

STEPS = (10, 25, 40, 55)


def weights(step: int, seed: int = 0) -> Dict[str, np.ndarray]:
    rng = np.random.RandomState(step + seed)
    return {
        "a.weight": rng.normal(0, 1, (30, 7)).astype(np.float32),
        "b.bias": (rng.normal(0, 1, 50) * 10.0 ** rng.randint(-20, 20, 50)).astype(np.float32),
    }


def write(run_dir: Path, steps: Any = STEPS, keep_last: int = 4, arrays: Any = None, copy: str = "") -> None:
    (run_dir / "checkpoints").mkdir(parents=True, exist_ok=True)
    for step in steps:
        train = {
            "step": step,
            "epoch": 0,
            "epoch_step": step,
            "epoch_sums": [],
            "window_sums": [],
            "validated_step": 0,
            "best": None,
            "unmoved": {},
            "validation_due": False,
            "values": {},
            "early_stopping": {},
        }
        own = {
            "description": {"checkpoint": {"keep_last": keep_last}},
            "input": INPUT,
            "workers": 1,
            "updates": False,
            "threads": "1",
            "own_operators": "",
            "cut_before": [],
            "batch_size": 8,
        }
        state = {
            "run": own,
            "train": train,
            "optimizer": {"update_counts": {}, "attributes": {}, "cum_counts": {}},
            "states": {"ema": {}},
        }
        given = arrays(step) if arrays else {"model": weights(step), "optimizer": weights(step, 9)}
        write_contents(Snapshot(step, 0, given, state, 0.5), run_dir / f"checkpoints/step-{step:08d}{copy}")


INPUT = {"shape": [1, 8, 8], "mean": [0.0], "std": [1.0], "class_names": ["a", "b"]}


def averaged(run_dir: Path, count: int) -> Path:
    return write_average(run_dir, last_checkpoints(run_dir, count))


@pytest.mark.parametrize("count", [2, 3, 4])
def test_average_equals_numpy_mean_bit_for_bit(tmp_path: Path, count: int) -> None:
    write(tmp_path)
    found = open_checkpoint(averaged(tmp_path, count))
    assert found.path == tmp_path / f"averaged/last-{count}" and found.stems == ("model",)
    assert (found.step, found.metric, found.state["averaged_steps"]) == (55, None, list(STEPS[-count:]))
    for name, array in found.arrays("model").items():
        every = np.stack([weights(step)[name] for step in STEPS[-count:]]).astype(np.float64)
        assert array.dtype == np.float32
        np.testing.assert_array_equal(array, every.mean(axis=0).astype(np.float32))
    in_float32 = np.stack([weights(step)["a.weight"] for step in STEPS]).mean(axis=0)
    assert count < 4 or (found.arrays("model")["a.weight"] != in_float32).any()


def test_moving_averages_are_averaged_if_the_run_keeps_them(tmp_path: Path) -> None:
    write(tmp_path, arrays=lambda step: {"model": weights(step), "ema": weights(step, 5)})
    found = open_checkpoint(averaged(tmp_path, 2)).arrays("model")
    np.testing.assert_allclose(found["a.weight"], (weights(40, 5)["a.weight"] + weights(55, 5)["a.weight"]) / 2, 1e-6)
    write(tmp_path, steps=[60])
    with pytest.raises(CheckpointError, match="Only some of the checkpoints hold a moving average"):
        averaged(tmp_path, 2)


def test_the_newest_copy_of_a_step_counts_and_an_earlier_average_is_replaced(tmp_path: Path) -> None:
    write(tmp_path)
    before = open_checkpoint(averaged(tmp_path, 2)).arrays("model")
    write(tmp_path, steps=[55], arrays=lambda step: {"model": weights(99)}, copy="-2")
    after = open_checkpoint(averaged(tmp_path, 2)).arrays("model")
    assert (before["a.weight"] != after["a.weight"]).any()
    np.testing.assert_allclose(after["a.weight"], (weights(40)["a.weight"] + weights(99)["a.weight"]) / 2, 1e-6)
    assert [path.name for path in (tmp_path / "averaged").iterdir()] == ["last-2"]


def test_best_checkpoints_do_not_count_as_last_ones(tmp_path: Path) -> None:
    write(tmp_path, keep_last=2)
    with pytest.raises(ConfigError, match=r"last=3: .* has 2 successive checkpoints; .* Type last=2, or .*keep_last=3"):
        averaged(tmp_path, 3)
    assert open_checkpoint(averaged(tmp_path, 2)).state["averaged_steps"] == [40, 55]


@pytest.mark.parametrize("damage", ["model.params", "state.json"])
def test_damaged_checkpoint_is_an_error_instead_of_skipped(tmp_path: Path, damage: str) -> None:
    write(tmp_path)
    file = tmp_path / "checkpoints/step-00000040" / damage
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match="step-00000040 cannot be used"):
        averaged(tmp_path, 3)
    assert not (tmp_path / "averaged").exists()


def test_checkpoints_of_other_networks_are_refused(tmp_path: Path) -> None:
    write(tmp_path)
    write(tmp_path, steps=[60], arrays=lambda step: {"model": {"a.weight": np.zeros((3, 3), np.float32)}})
    with pytest.raises(CheckpointError, match="step-00000060 is of another network, it does not fit"):
        averaged(tmp_path, 2)
    assert not (tmp_path / "averaged").exists()


@pytest.mark.parametrize(
    "arguments, words",
    [
        ([], "average takes a run directory"),
        (["RUN", "last=1"], "last=1: should be"),
        (["RUN"], "last=5: "),
        (["RUN", "last=2", "split=val"], "`last=N` and nothing else, not 'split=val'"),
        (["RUN", "RUN", "last=2"], "one run directory, not also"),
        (["nowhere", "last=2"], "no run directory at nowhere"),
    ],
)
def test_unsupported_arguments_are_refused(tmp_path: Path, arguments: List[str], words: str, capsys: Any) -> None:
    write(tmp_path)
    assert run(["average", *(word.replace("RUN", str(tmp_path)) for word in arguments)]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "averaged").exists()


def test_average_writes_through_no_link(tmp_path: Path, capsys: Any) -> None:
    write(tmp_path / "run")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run/averaged").symlink_to(tmp_path / "elsewhere")
    assert run(["average", str(tmp_path / "run"), "last=2"]) == 2
    assert "averaged is a link" in capsys.readouterr().err and not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.slow
def test_an_average_is_measured_predicts_and_begins_other_runs(train_run: Any, tmp_path: Path, capsys: Any) -> None:
    small = ("model=mlp", "model.hidden=[8]", "early_stopping=off", "trainer.limit_train_batches=6")
    kept = ("checkpoint.keep_last=3", "checkpoint.keep_top=0", "trainer.max_epochs=3")
    train_run(*small, *kept, run_dir=tmp_path / "run")
    assert run(["average", str(tmp_path / "run"), "last=3"]) == 0
    path = tmp_path / "run/averaged/last-3"
    assert f"after steps 6, 12, 18: {path}" in capsys.readouterr().out
    every = [read_ndarrays(one / "model.params") for one in sorted((tmp_path / "run/checkpoints").iterdir())]
    mean = {name: np.mean([one[name] for one in every], axis=0, dtype=np.float64) for name in every[0]}
    for name, array in read_ndarrays(path / "model.params").items():
        np.testing.assert_array_equal(array, mean[name].astype(np.float32))
    assert run(["eval", str(path)]) == 0
    of_mean = json.loads((tmp_path / "run/eval/averaged/last-3/test/metrics.json").read_text())
    assert not (tmp_path / "run/eval/test").exists()  # that is of the run's own checkpoints
    assert run(["eval", str(tmp_path / "run"), "which=last"]) == 0
    of_last = json.loads((tmp_path / "run/eval/test/metrics.json").read_text())
    assert of_mean["loss"] != of_last["loss"]
    still = ("optimizer=sgd", "optimizer.lr=1e-35", "lr_scheduler=constant", "trainer.max_epochs=1")  # changes no bit
    train_run(*small, *still, f"model.weights={path}/model.params", run_dir=tmp_path / "other")
    for name, array in read_ndarrays(tmp_path / "other/checkpoints/step-00000006/model.params").items():
        np.testing.assert_array_equal(array, mean[name].astype(np.float32))
    with pytest.raises(CheckpointError, match="is the average of several .* type model.weights="):
        train_run(*small, f"checkpoint.resume={path}", run_dir=tmp_path / "resumed")


def test_only_averages_are_refused_to_continue_from(tmp_path: Path) -> None:
    write(tmp_path)
    found: Optional[Any] = open_checkpoint(tmp_path)
    refuse_average(found)
    with pytest.raises(CheckpointError):
        refuse_average(open_checkpoint(averaged(tmp_path, 2)))
