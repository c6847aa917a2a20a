"""The commands on a trained run are functions: they print nothing, and return what the command line prints."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mxtrain
from mxtrain.cli.dispatch import run as run_command
from mxtrain.composing.restored import restore
from mxtrain.errors import ConfigError, DataError, LoaderError
from mxtrain.terminal.progress import WorkProgress
from mxtrain.workflows.average import AverageSettings, average_last, average_runs
from mxtrain.workflows.evaluate import EvalSettings, evaluate
from mxtrain.workflows.lr_find import LrFindSettings, range_test
from mxtrain.workflows.predict import PredictSettings, write_predictions

pytestmark = pytest.mark.slow
WORDS = ("debug=fast", "model=lenet", "logger=jsonl", "dataset.test_fraction=0.2")


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = mxtrain.train(*WORDS, dir=tmp_path_factory.mktemp("functions") / "run")
    assert run.state == "finished", run.cause
    return run.path


class Seen(WorkProgress):
    """Counts what is shown."""

    def __init__(self) -> None:
        self.parts: dict[str, list[int]] = {}

    def begin(self, what: str, total: int) -> None:
        self.parts[what] = [total, 0]
        self._now = what

    def advance(self, count: int) -> None:
        self.parts[self._now][1] += count


def test_evaluation_equals_the_command(run_dir: Path, tmp_path: Path, capfd: Any) -> None:
    settings = EvalSettings(
        split="val", limit_batches=1, output=str(tmp_path / "here"), corrupt=["noise"], explain="grad_cam"
    )
    seen, reported = Seen(), []
    result = evaluate(restore(run_dir), settings, seen, reported.append)
    assert capfd.readouterr() == ("", "")
    assert [len(one.parts) for one in reported] == [1, 2, 3] and reported[-1] == result
    assert [name.split()[0] for name in seen.parts] == ["measuring", "Grad-CAM"]
    assert all(total == done for total, done in seen.parts.values())
    words = ["split=val", "limit_batches=1", "corrupt=noise", "explain=grad_cam", f"output={tmp_path / 'there'}"]
    assert run_command(["eval", str(run_dir), *words]) == 0
    printed = capfd.readouterr().out
    assert f"val: loss {result.values['loss']:.4f}" in printed and f"{result.num_samples} samples, step" in printed
    assert printed.index("noise") < printed.index("of the largest loss")
    files = {path.relative_to(tmp_path / "here"): path for path in (tmp_path / "here").rglob("*") if path.is_file()}
    assert len(files) > 6
    for name, path in files.items():
        one, two = path.read_bytes(), (tmp_path / "there" / name).read_bytes()
        if name.suffix == ".json":  # the rate differs
            one, two = (re.sub(rb'"samples_per_s": [0-9.e+]+', b"", content) for content in (one, two))
        assert one == two, name
    values = mxtrain.evaluate(run_dir, split="val", limit_batches=1)
    assert {**values, "samples_per_s": 0} == {**result.values, "samples_per_s": 0}


def test_unreadable_samples_are_an_error_of_the_data(run_dir: Path, tmp_path: Path, monkeypatch: Any) -> None:
    def fail(*arguments: Any) -> None:
        raise LoaderError("3.png is damaged.")

    monkeypatch.setattr("mxtrain.workflows.evaluate.measure", fail)
    with pytest.raises(DataError, match=r"^3.png is damaged\.$"):
        evaluate(restore(run_dir), EvalSettings(split="val", output=str(tmp_path / "out")))


def test_lr_find_counts_its_steps(describe_run: Any) -> None:
    seen = Seen()
    curve = range_test(describe_run(*WORDS), LrFindSettings(end=1e-4, steps=10), seen)
    assert seen.parts["steps of rising learning rate:"] == [10, 10] and len(curve.rates) == 10


def test_predictions_match_the_command(run_dir: Path, tmp_path: Path, capfd: Any) -> None:
    with open(tmp_path / "here.jsonl", "w") as stream:
        result = write_predictions(restore(run_dir, command="predict"), [], PredictSettings(sample=3), stream)
    assert (result.count, result.listed, result.folder, result.unreadable) == (3, 0, None, [])
    assert run_command(["predict", str(run_dir), "sample=3", f"output={tmp_path / 'there.jsonl'}"]) == 0
    assert capfd.readouterr().out == f"3 predictions written to {tmp_path / 'there.jsonl'}\n"
    rows = (tmp_path / "here.jsonl").read_text()
    assert rows == (tmp_path / "there.jsonl").read_text()
    assert [json.loads(row)["file"] for row in rows.splitlines()] == ["test:0", "test:1", "test:2"]


def test_average_of_checkpoints_and_soup_of_runs(run_dir: Path, tmp_path: Path, capfd: Any) -> None:
    kept = ("checkpoint.every_steps=1", "checkpoint.keep_last=3")
    other = mxtrain.train(*WORDS, *kept, "trainer.seed=1", dir=tmp_path / "other").path
    capfd.readouterr()
    result = average_last(other, 2, restore, print)
    assert list(result.steps) == [4, 5] and capfd.readouterr() == ("", "")
    assert run_command(["average", str(other), "last=2"]) == 0
    assert f"the mean of the weights after steps 4, 5: {result.path}\n" in capfd.readouterr().out
    assert mxtrain.average(other, last=2).path == result.path
    paths = [str(run_dir), str(other)]
    settings = AverageSettings(soup="uniform", out=str(tmp_path / "here"))
    soup = average_runs(paths, settings, lambda path: restore(path, command="average"), print)
    assert capfd.readouterr() == ("", "")
    assert run_command(["average", *paths, "soup=uniform", f"out={tmp_path / 'there'}"]) == 0
    printed = capfd.readouterr().out
    assert f"val/loss {soup.values['val/loss']:.4f}" in printed and soup.monitor in printed
    assert sorted(member.run for member in soup.members) == sorted(paths) and all(one.kept for one in soup.members)
    (ours, theirs) = (mxtrain.load(tmp_path / name) for name in ("here", "there"))
    for name, array in ours.network.collect_params().items():
        other_array = theirs.network.collect_params()[name.replace(ours.network.prefix, theirs.network.prefix)]
        np.testing.assert_array_equal(array.data().asnumpy(), other_array.data().asnumpy())
    greedy = mxtrain.soup(paths, out=tmp_path / "greedy")
    assert greedy.evaluate(split="val")["loss"] <= max(member.value for member in soup.members) + 9
    for arguments, said in (
        ({"runs": other, "method": "greedy"}, "average: method is for averages of several runs"),
        ({"runs": other, "out": tmp_path / "x"}, "average: out is for averages of several runs"),
        ({"runs": [other]}, "a list has two runs at least"),
        ({"runs": [other, other]}, "are the same checkpoint"),
        ({"runs": paths, "method": "mean"}, "'greedy' or 'uniform'"),
    ):
        with pytest.raises(ConfigError, match=said):
            mxtrain.average(**arguments)  # type: ignore[arg-type]


def test_export_is_proven_without_the_command_line(run_dir: Path, tmp_path: Path, capfd: Any) -> None:
    pytest.importorskip("onnxruntime")
    report = mxtrain.export(run_dir, tmp_path / "here")
    assert capfd.readouterr() == ("", "") and report.folder == tmp_path / "here"
    assert run_command(["export", str(run_dir), f"out={tmp_path / 'there'}"]) == 0
    printed = capfd.readouterr().out
    assert [line.split(":")[0] for line in printed.splitlines() if "relative error" in line] == list(report.errors)
    for name in ("model.onnx", "signature.json"):
        assert (tmp_path / "here" / name).read_bytes() == (tmp_path / "there" / name).read_bytes()
    checked = mxtrain.check_export(tmp_path / "here")
    assert {name: checked[name] for name in report.errors} == pytest.approx(report.errors) and len(checked) > 1
    with pytest.raises(DataError, match="here"):
        mxtrain.export(run_dir, tmp_path / "here")
    (tmp_path / "there" / "model.onnx").write_bytes(b"x")
    with pytest.raises(DataError):
        mxtrain.check_export(tmp_path / "there")


def test_network_without_unused_channels_is_not_slimmed(run_dir: Path, tmp_path: Path, capfd: Any) -> None:
    """Networks with such channels are in `test_pruning`."""
    with pytest.raises(ConfigError, match="every channel is read by a weight that is not 0"):
        mxtrain.slim(run_dir, tmp_path / "slim")
    assert capfd.readouterr() == ("", "") and not (tmp_path / "slim").exists()


def test_verification_and_dry_run_are_silent(capfd: Any) -> None:
    found = mxtrain.verify("model=mlp", "parallel=data", "parallel.devices=cpu:2", steps=2)
    assert found.passed and found.steps == 2
    with pytest.raises(ConfigError, match="dist_async: gradients are applied in"):
        mxtrain.verify("kvstore=dist_async", "cluster.workers=2")
    rows = dict(mxtrain.dry_run("model=mlp").rows)
    assert capfd.readouterr() == ("", "") and "steps" in rows
    assert run_command(["train", "--dry-run", "model=mlp"]) == 0
    printed = capfd.readouterr().out
    assert all(value in printed for name, value in rows.items() if name not in ("time", "memory"))
