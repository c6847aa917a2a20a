"""Averages over runs: which members a greedy soup keeps, what is written, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, List, Mapping

import numpy as np
import pytest
from running import SMALL, train_here

import mxtrain
from mxtrain.checkpoint import Checkpoint, open_checkpoint
from mxtrain.checkpoint.contents import read_checkpoint
from mxtrain.checkpoint.soup import build_soup, require_same_validation, write_soup
from mxtrain.cli.dispatch import run
from mxtrain.errors import CheckpointError, ConfigError

TARGET = np.array([1.0, 2.0, -1.0])


class Held(Checkpoint):
    """A checkpoint in memory."""

    def arrays(self, stem: str) -> Dict[str, np.ndarray]:
        assert stem == "model"
        return {"w": np.asarray(self.state["w"], np.float32)}


def held(name: str, *numbers: float) -> Held:
    return Held(Path(name), 1, 1, {"w": numbers}, None, "max", "", {"model.params": None})  # type: ignore[dict-item]


def measure(weights: Mapping[str, np.ndarray], source: str) -> Dict[str, float]:
    error = float(np.abs(weights["w"] - TARGET).sum())
    return {"val/loss": error, "val/accuracy": -error}


def greedy_by_hand(points: List[np.ndarray]) -> List[int]:
    """Recipe 1 of the paper, from its text: sort by validation accuracy, add where the accuracy does not fall."""

    def loss(chosen: List[int]) -> float:
        return float(np.abs(np.mean([points[index] for index in chosen], axis=0) - TARGET).sum())

    order = sorted(range(len(points)), key=lambda index: loss([index]))
    soup: List[int] = []
    for index in order:
        if not soup or loss([*soup, index]) <= loss(soup):
            soup.append(index)
    return soup


@pytest.mark.parametrize("monitor, direction", [("val/loss", "min"), ("val/accuracy", "max")])
def test_greedy_soups_match_the_paper(monitor: str, direction: str) -> None:
    sizes = set()
    for seed in range(30):
        rng = np.random.RandomState(seed)
        points = [TARGET + rng.normal(0, 1, 3) for _ in range(6)]
        checkpoints = [held(str(number), *point) for number, point in enumerate(points)]
        soup = build_soup(checkpoints, "greedy", monitor, direction, measure)
        expected = greedy_by_hand(points)
        assert [int(str(one.checkpoint.path)) for one in soup.members if one.kept] == expected
        mean = np.mean([np.float64(np.float32(points[index])) for index in expected], axis=0)
        np.testing.assert_array_equal(soup.weights["w"], mean.astype(np.float32))
        assert soup.values == measure(soup.weights, "")
        assert [one.value for one in soup.members] == sorted(
            (one.value for one in soup.members), reverse=direction == "max"
        )
        sizes.add(len(expected))
        whole = build_soup(checkpoints, "uniform", monitor, direction, measure)
        np.testing.assert_allclose(whole.weights["w"], np.mean(points, axis=0), rtol=1e-5)
        assert all(one.kept for one in whole.members) and whole.values == measure(whole.weights, "")
    assert {1, 2, 3} <= sizes


def test_member_without_effect_on_the_metric_is_kept() -> None:
    """The paper keeps a member if the accuracy does not fall."""
    soup = build_soup([held("first", 1, 2, 0), held("same", 1, 2, 0)], "greedy", "val/accuracy", "max", measure)
    assert [member.kept for member in soup.members] == [True, True]


def test_nan_values_rank_last_and_are_excluded() -> None:
    def broken(weights: Mapping[str, np.ndarray], source: str) -> Dict[str, float]:
        return {"val/loss": float("nan") if weights["w"][0] > 50 else measure(weights, source)["val/loss"]}

    bad, good = held("bad", 1e6, 0, 0), held("good", 1, 2, 0)
    soup = build_soup([bad, good], "greedy", "val/loss", "min", broken)
    assert [(str(one.checkpoint.path), one.kept) for one in soup.members] == [("good", True), ("bad", False)]
    with pytest.raises(CheckpointError, match="no checkpoint has a finite val/loss"):
        build_soup([bad, held("worse", 1e7, 0, 0)], "greedy", "val/loss", "min", broken)
    with pytest.raises(CheckpointError, match=r"^b is of another network, it .* shape \(2,\), not \(3,\)"):
        build_soup(
            [held("a", 1, 2, 0), held("b", 1, 2)],
            "uniform",
            "val/loss",
            "min",
            lambda weights, source: {"val/loss": 1.0},
        )


def of_run(inputs: Dict[str, Any], **dataset: Any) -> Held:
    run = {"input": inputs, "description": {"dataset": dataset, "trainer": {"folds": 3}}}
    return Held(Path(str(inputs)), 1, 1, {"run": run}, None, "max", "", {})


def test_runs_with_other_samples_or_inputs_are_refused() -> None:
    require_same_validation([of_run({"mean": 1}, batch_size=3), of_run({"mean": 1}, batch_size=4)])
    with pytest.raises(ConfigError, match=r"not the same \(mean, size\)"):
        require_same_validation([of_run({"mean": 1, "std": 2, "size": 8}), of_run({"mean": 0, "std": 2})])
    with pytest.raises(ConfigError, match=r"same samples: dataset\.val_fraction is 0\.1 and 0\.2"):
        require_same_validation([of_run({}, val_fraction=0.1), of_run({}, val_fraction=0.2)])


def test_nan_value_is_null_in_the_state(tmp_path: Path) -> None:
    def broken(weights: Mapping[str, np.ndarray], source: str) -> Dict[str, float]:
        return {"val/loss": float("nan") if weights["w"][0] > 50 else 0.5}

    first = held("good", 1, 2, 0)
    first.state.update(train={"values": {}}, run={"batch_size": 8}, states={"ema": {}})
    soup = build_soup([held("bad", 1e6, 0, 0), first], "greedy", "val/loss", "min", broken)
    path = tmp_path / "new" / "checkpoints" / "soup"
    write_soup(soup, first, "min", path)
    state = read_checkpoint(path).state
    assert state["run"] == {"batch_size": 8} and "states" not in state  # an average has no arrays for these
    assert state["soup"]["members"] == [
        {"path": "good", "step": 1, "value": 0.5, "kept": True},
        {"path": "bad", "step": 1, "value": None, "kept": False},
    ]
    assert state["averaged_steps"] == [1]


@pytest.mark.zoo
def test_soup_can_be_evaluated_and_used_for_predictions(tmp_path: Path, capsys: Any) -> None:
    first = tmp_path / "first"
    train_here(first, *SMALL, "trainer.max_epochs=2")
    start = f"model.weights={open_checkpoint(first).path}/model.params"
    runs = []
    for seed in (1, 2):
        runs.append(str(tmp_path / f"run-{seed}"))
        train_here(Path(runs[-1]), *SMALL, "trainer.max_epochs=1", start, f"trainer.seed={seed}", "optimizer.lr=0.002")
    other = str(tmp_path / "other")
    train_here(Path(other), *SMALL, "trainer.max_epochs=1", "trainer.folds=3", "trainer.fold=1")
    capsys.readouterr()
    for method in ("greedy", "uniform"):
        assert run(["average", *runs, f"soup={method}"]) == 0
        printed = capsys.readouterr().out
        soup = Path(runs[0]) / f"averaged/{method}-soup"
        written = open_checkpoint(soup)
        facts = written.state["soup"]
        for member in facts["members"]:  # each by its own validation
            assert member["value"] == pytest.approx(open_checkpoint(member["path"]).metric, abs=1e-6)
            assert f"{member['value']:.4f}" in printed
        kept = [open_checkpoint(one["path"]).arrays("model") for one in facts["members"] if one["kept"]]
        assert len(kept) == 2 or method == "greedy"
        for name, array in written.arrays("model").items():
            np.testing.assert_allclose(array, np.mean([one[name] for one in kept], axis=0), rtol=1e-5, atol=1e-7)
        assert run(["eval", str(soup), "split=val"]) == 0
        measured = json.loads((Path(runs[0]) / f"eval/averaged/{method}-soup/val/metrics.json").read_text())
        assert written.metric == pytest.approx(measured["accuracy"], abs=1e-6)
        capsys.readouterr()
        # From Python, the same to the bit; greedy is the default.
        out = tmp_path / f"python-{method}"
        again = mxtrain.soup(runs, out=out, **({} if method == "greedy" else {"method": method}))  # type: ignore[arg-type]
        assert again.path == out and again.checkpoint.state["soup"] == facts and facts["method"] == method
        assert again.checkpoint.metric == written.metric
        assert (out / "model.params").read_bytes() == (soup / "model.params").read_bytes()
    with pytest.raises(ConfigError, match="Did you mean 'greedy'"):
        mxtrain.soup(runs, method="gredy")
    with pytest.raises(ConfigError, match="a list has two runs at least"):
        mxtrain.soup(runs[0])
    assert len(mxtrain.load(soup).predict(np.zeros((8, 8), np.uint8))) == 1
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/notes.txt").write_text("mine")
    for words, said in (
        ([runs[0], "soup=greedy"], "name two runs at least"),
        ([runs[0], runs[0], "soup=greedy"], "are the same checkpoint"),
        ([*runs, "soup=gredy"], "Did you mean 'greedy'"),
        ([*runs, "soup=greedy", "last=2"], "Leave one of them out"),
        (runs, "type soup=greedy or soup=uniform"),
        ([runs[0], "out=x"], "out is for averages of several runs"),
        ([runs[0], str(tmp_path / "nowhere"), "soup=greedy"], "no checkpoint and no run directory"),
        ([runs[0], other, "soup=greedy"], "were not validated with the same samples: trainer.folds is null and 3"),
        ([*runs, "soup=greedy", f"out={tmp_path / 'taken'}"], "holds something else"),
    ):
        assert run(["average", *words]) == 2
        assert said in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "taken").iterdir()] == ["notes.txt"]
