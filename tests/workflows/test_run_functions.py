"""`runs`, `report`, `clean` and `doctor` as functions: the values of the commands, and no output."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from run_directories import write_run

import mxtrain
from mxtrain.cli import main
from mxtrain.errors import ConfigError
from mxtrain.runtime.probing import ProbeResult
from mxtrain.workflows.doctor import DoctorResult, Finding


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_run(tmp_path / "a", best=0.91, step=10, lr=0.1, checkpoints={5: 0.9, 8: 0.8, 10: 0.91})
    write_run(tmp_path / "b", best=0.95, step=20, lr=0.01, model="lenet")
    write_run(tmp_path / "c", state="failed", exit_code=1, best=None, step=3)
    return tmp_path


def test_runs_returns_the_values_of_the_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = mxtrain.runs(folder, where="state=finished", sort="best", columns=["optimizer.lr"], limit=1)
    assert [one.path for one in found] == [str(folder / "b")] and len(found) == 1
    assert (found.total, len(found.kept), found.best) == (3, 2, found[0])
    assert found[:1].rows() == found.rows()
    header, line = str(found).splitlines()
    assert header.split()[-1] == "optimizer.lr" and line.split()[0] == str(folder / "b") and "0.95" in line
    assert repr(found[0]) == f"ListedRun({str(folder / 'b')!r}, state='finished', step=20, val/accuracy=0.95)"
    assert capsys.readouterr().out == ""
    words = [str(folder), "where=state=finished", "sort=best", "columns=optimizer.lr", "limit=1", "format=json"]
    assert main(["runs", *words]) == 0
    (printed,) = json.loads(capsys.readouterr().out)
    (row,) = found.rows()
    assert {**printed, "age_s": 0} == {**row, "age_s": 0}


@pytest.mark.slow
def test_runs_are_a_data_frame(folder: Path) -> None:
    frame = mxtrain.runs(folder, sort="best", columns="optimizer.lr").frame()
    assert frame["optimizer.lr"].tolist()[:2] == [0.01, 0.1] and frame["best"].tolist()[:2] == [0.95, 0.91]


def test_runs_of_several_filters_and_lists(folder: Path) -> None:
    found = mxtrain.runs([folder / "a", str(folder / "b")], where=["best>0.9", "model=lenet"])
    assert [one.path for one in found] == [str(folder / "b")]
    assert [one.path for one in mxtrain.runs(found)] == [str(folder / "b")]
    assert len(mxtrain.runs(folder, where="")) == 3


@pytest.mark.parametrize(
    "arguments, said",
    [
        ({"sort": "bets"}, "sort=bets: runs have no 'bets'. Did you mean 'best'?"),
        ({"limit": 0}, "runs.limit=0: should be greater than 0"),
        ({"where": 3}, "where=3: give a filter, or a list of filters"),
        ({"where": ["state=finished", ""]}, "give a filter, or a list of filters"),
    ],
)
def test_wrong_arguments_of_runs(arguments: dict, said: str, folder: Path) -> None:
    with pytest.raises(ConfigError) as error:
        mxtrain.runs(folder, **arguments)
    assert said in str(error.value)


def test_folders_must_be_paths(folder: Path) -> None:
    with pytest.raises(ConfigError, match="runs: 3 is a int: give the path of a run or a folder"):
        mxtrain.runs(3)
    with pytest.raises(ConfigError, match="clean: there is no folder"):
        mxtrain.clean(folder / "d")


def test_report_writes_the_page_of_the_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder / "page.html"
    written = mxtrain.report(folder, out=out, where="state=finished", title="Two ✓", sort="best")
    page = out.read_bytes()
    assert (written.file, written.size) == (str(out), len(page)) and "<h1>Two ✓</h1>".encode() in page
    assert [one.path for one in written.runs] == [str(folder / "b"), str(folder / "a")]
    given = mxtrain.report([folder / "a", mxtrain.runs(folder / "b")], out=folder / "given.html")
    assert [one.path for one in given.runs] == [str(folder / "a"), str(folder / "b")]
    assert str(written) == f"{out} (0.0 MB, 2 runs)" and capsys.readouterr().out == ""
    assert main(["report", str(folder / "b"), str(folder / "a"), f"out={folder}/other.html", "title=Two ✓"]) == 0
    assert len((folder / "other.html").read_bytes()) == len(page)


def test_a_page_has_a_limit_of_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mxtrain.archive.report.MAX_RUNS", 3)
    assert len(mxtrain.report(folder, out=folder / "page.html").runs) == 3
    monkeypatch.setattr("mxtrain.archive.report.MAX_RUNS", 2)
    with pytest.raises(ConfigError, match=r"report: 3 runs are more than a page can show \(2\)"):
        mxtrain.report(folder, out=folder / "other.html")
    assert not (folder / "other.html").exists()


def test_clean_deletes_only_when_asked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = mxtrain.clean(folder)
    assert {Path(one.path).name for one in found.removable} == {"step-00000005", "step-00000008", "c"}
    assert found.size > 0 and not found.is_deleted and all(Path(one.path).exists() for one in found.removable)
    assert "Nothing was deleted" in repr(found) and "3 runs" in str(found)
    deleted = mxtrain.clean(folder, what="checkpoints", delete=True)
    assert deleted.is_deleted and not any(Path(one.path).exists() for one in deleted.removable)
    assert (folder / "c").exists() and str(deleted).startswith("deleted: 2 checkpoints")
    assert mxtrain.clean(folder, what=["runs"], where="state=failed").removable[0].path == str(folder / "c")
    with pytest.raises(ConfigError, match="needs a filter"):
        mxtrain.clean(folder, what="runs")
    assert capsys.readouterr().out == ""


@pytest.mark.slow
def test_doctor_returns_findings(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asked = []

    def probe(timeout_s: float) -> ProbeResult:
        asked.append(timeout_s)
        return ProbeResult({}, "mxnet", "libgomp.so.1: cannot open shared object file")

    monkeypatch.setattr("mxtrain.workflows.doctor.run_probe", probe)
    found = mxtrain.doctor(timeout=3.0)
    assert asked == [3.0] and not found.usable and capsys.readouterr().out == ""
    assert [one.remedy for one in found.findings if one.what == "MXNet"] == ["apt install libgomp1"]
    assert main(["doctor"]) == 1
    printed = capsys.readouterr().out
    assert re.sub(r"\d", "", printed) == re.sub(r"\d", "", f"{found}\n")  # free memory has changed meanwhile


def test_only_problems_make_a_machine_unusable() -> None:
    findings = [Finding("MXNet", "ok", "1.9.1"), Finding("GPUs", "missing", "0", "take one")]
    assert DoctorResult(findings).usable and str(DoctorResult(findings)).endswith("Training works here.")
    assert not DoctorResult([*findings, Finding("numpy", "problem", "2.0")]).usable


def test_diff_lists_settings_without_effect_if_asked(folder: Path) -> None:
    config = folder / "b" / ".hydra" / "config.yaml"
    config.write_text(config.read_text().replace("logger: {}", "logger:\n  csv:\n    log_interval: 3"))
    runs = folder / "a", folder / "b"
    names = {one.name for one in mxtrain.diff(*runs, replay=False).sections["settings"]}
    every = {one.name for one in mxtrain.diff(*runs, replay=False, all=True).sections["settings"]}
    assert "optimizer.lr" in names and every - names == {"logger", "logger.csv.log_interval"}


def test_diff_equals_the_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"step": step, "split": "train", "loss": 1.0 / step} for step in range(1, 5)]
    one = write_run(folder / "d", lr=0.1, rows=rows, metrics={"val/loss": 0.5}, checkpoints={2: 0.5, 3: 0.6})
    two = write_run(folder / "e", lr=0.2, rows=[*rows[:3], {**rows[3], "loss": 2.0}], metrics={"val/loss": 0.25})
    found = mxtrain.diff(one, mxtrain.runs(two)[0])
    assert [(each.name, each.first, each.second) for each in found.sections["settings"]] == [
        ("optimizer.lr", "0.1", "0.2")
    ]
    assert (found.parting.step, found.parting.losses, found.parting.last_equal) == (4, (0.25, 2.0), 3)
    assert ("val/loss", 0.5, 0.25) in found.metrics and found.weights is None and found.layers is None
    assert "both runs need a checkpoint of step 3 or before" in found.remark and "e has none" in found.remark
    assert mxtrain.diff(one, two, replay=False).remark == ""
    assert found.has_equal_weights and "weights: the last weights of both are equal, bit by bit" in str(found)
    assert capsys.readouterr().out == ""
    assert main(["diff", str(one), str(two)]) == 0
    assert capsys.readouterr().out == f"{found}\n"
    assert main(["diff", str(one), str(two), "format=json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["curves"] == {**found.to_json()["curves"], "losses": [0.25, 2.0]}


def test_diff_refuses_other_folders(folder: Path) -> None:
    with pytest.raises(ConfigError, match="diff: .* is no run directory"):
        mxtrain.diff(folder / "a", folder)
    with pytest.raises(ConfigError, match="diff.replay=3: should be"):
        mxtrain.diff(folder / "a", folder / "b", replay=3)
