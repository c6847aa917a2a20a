"""`mxtrain runs`: what it lists, filters and sorts, and that run directories of strangers do no harm."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, List

import pytest
from run_directories import size_of, write_run

from mxtrain.archive.filter import parse_filter
from mxtrain.archive.registry import read_run, read_runs, read_settings
from mxtrain.checkpoint.run_directory import lock_run_directory
from mxtrain.cli.dispatch import run as main
from mxtrain.cli.runs import left_out_columns
from mxtrain.errors import ConfigError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four runs of two tasks, in folders of different depth."""
    write_run(tmp_path / "a" / "1", best=0.91, step=10, lr=0.1, metrics={"val/loss": 0.5})
    write_run(tmp_path / "a" / "2", best=0.95, step=20, lr=0.01, model="lenet", metrics={"val/loss": 0.7})
    write_run(tmp_path / "b", state="failed", exit_code=1, best=None, step=3)
    write_run(tmp_path / "c" / "d" / "e", task="regression", best=0.2, step=30, direction="min", monitor="val/loss")
    return tmp_path


def listed(capsys: pytest.CaptureFixture, *arguments: str) -> List[Any]:
    assert main(["runs", *arguments, "format=json"]) == 0
    return json.loads(capsys.readouterr().out)


def names(runs: List[Any], folder: Path) -> List[str]:
    return [os.path.relpath(one["run"], folder) for one in runs]


def test_json_has_the_values_of_the_files(folder: Path, capsys: pytest.CaptureFixture) -> None:
    found = {name: one for one in listed(capsys, str(folder)) for name in names([one], folder)}
    assert sorted(found) == ["a/1", "a/2", "b", "c/d/e"]
    one = found["a/2"]
    assert (one["task"], one["model"], one["dataset"]) == ("classification", "lenet", "digits")
    assert (one["best"], one["metric"], one["step"], one["exit_code"]) == (0.95, "val/accuracy", 20, 0)
    assert one["size"] == size_of(folder / "a" / "2") and one["metrics"] == {"val/loss": 0.7}
    assert found["b"]["best"] is None and found["c/d/e"]["direction"] == "min"


@pytest.mark.parametrize(
    "where, expected",
    [
        ("task=classification and best>0.92", ["a/2"]),
        ("best>0.92 or state=failed", ["a/2", "b"]),
        ("not (best>0.92 or state=failed)", ["a/1", "c/d/e"]),
        ("state=finished and model=le*", ["a/2"]),
        ("model=lenet,mlp and step<=10", ["a/1", "b"]),
        ("optimizer.lr<0.05 and val/loss>=0.7", ["a/2"]),
        ("early_stopping.monitor=val/accuracy and step=20", ["a/2"]),
        ("size>0.2kB and age<1h and speed=1234.5 and step!=20", ["a/1", "b", "c/d/e"]),
        ("task='classification' and best<0.92", ["a/1"]),
        ("best!=0.95 and task=classification", ["a/1", "b"]),
    ],
)
def test_filters(where: str, expected: List[str], folder: Path) -> None:
    kept = parse_filter([where]).apply(read_runs([str(folder)]))
    assert sorted(os.path.relpath(one.path, folder) for one in kept) == expected


def test_narrow_terminal_omits_least_important_columns() -> None:
    titles = ["run", "state", "task", "model", "val/loss", "step", "samples/s", "size", "age"]
    rows = [["a" * 30, "finished", "tabular", "wide_deep", "0.1234", "100", "4,000", "1.2 MB", "3 d"]]
    widths = [max(len(title), len(cell)) + 2 for title, cell in zip(titles, rows[0])]
    assert left_out_columns(titles, rows, sum(widths)) == []
    assert left_out_columns(titles, rows, sum(widths) - 3) == [titles.index("size")]
    left_out = [titles[number] for number in left_out_columns(titles, rows, 62)]
    assert left_out == ["size", "samples/s", "age", "task", "model"]


def test_several_filters_must_all_hold(folder: Path, capsys: pytest.CaptureFixture) -> None:
    found = listed(capsys, str(folder), "where=best>0.5", "where=optimizer.lr=0.1")
    assert names(found, folder) == ["a/1"]


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["where=bst>0.5"], "Did you mean 'best'?"),
        (["where=steps>5"], "Did you mean 'step'?"),
        (["where=state=finished,prund"], "Did you mean 'pruned'?"),
        (["where=best>"], "a value is missing after 'best>'"),
        (["where=best 0.5"], "= or another comparison is missing after 'best'"),
        (["where=best>0.5 step=3"], "'and' or 'or' is missing before 'step'"),
        (["where=(best>0.5"], "a closing parenthesis is missing"),
        (["where=best>many"], "needs a number, not 'many'"),
        (["where=task>3"], "is a text"),
        (["where=" + "(" * 100 + "best>1"], "nested deeper"),
        (["where="], "the filter is empty"),
        (["where=__import__('os').getcwd()=1"], "runs have no '__import__'"),
        (["where=optimizer.lrr=3"], "Did you mean 'optimizer.lr'?"),
        (["sort=bset"], "Did you mean 'best'?"),
        (["columns=optimizer.lrr"], "Did you mean 'optimizer.lr'?"),
        (["srt=best"], "Did you mean 'sort'?"),
        (["format=jsn"], "Did you mean 'json'?"),
        (["and"], "Put it in quotes"),
        (["aa"], "there is no folder 'aa'"),
    ],
)
def test_mistakes(
    arguments: List[str], said: str, folder: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    places = [] if "=" not in arguments[0] else ["."]
    assert main(["runs", *places, *arguments]) == 2
    captured = capsys.readouterr()
    assert said in captured.err and "Traceback" not in captured.err and captured.out == ""


def test_sorting_puts_the_best_first_and_absent_values_last(folder: Path, capsys: pytest.CaptureFixture) -> None:
    where = "where=task=classification"
    assert names(listed(capsys, str(folder), where, "sort=best"), folder) == ["a/2", "a/1", "b"]
    assert names(listed(capsys, str(folder), where, "sort=-best"), folder) == ["a/1", "a/2", "b"]
    assert names(listed(capsys, str(folder), "sort=-step", "limit=2"), folder) == ["c/d/e", "a/2"]
    write_run(folder / "f", task="regression", best=0.1, direction="min", monitor="val/loss")
    assert names(listed(capsys, str(folder), "where=task=regression", "sort=best"), folder) == ["f", "c/d/e"]


def test_piped_output_has_lines_and_terminal_has_a_table(folder: Path, capsys: pytest.CaptureFixture) -> None:
    assert main(["runs", str(folder / "a"), "sort=best", "columns=optimizer.lr"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and lines[0].startswith(f"{folder}/a/2 state=finished task=classification model=lenet ")
    assert " best=val/accuracy:0.9500 " in lines[0] and lines[1].endswith("optimizer.lr=0.1")
    assert not any(" size=" in line for line in lines)  # reading sizes takes as long as all else
    assert main(["runs", str(folder / "a"), "sort=size", "columns=size"]) == 0
    lines = capsys.readouterr().out.splitlines()
    sizes = sorted(size_of(folder / "a" / name) for name in ("1", "2"))
    assert [line.rpartition(" ")[2] for line in lines] == [f"size={size}" for size in sizes]
    assert main(["runs", str(folder), "format=table", "limit=3"]) == 0
    table = capsys.readouterr().out
    assert "4 runs: 3 finished, 1 failed; 3 are listed, limit=4 lists all" in table and " diff " in table


@pytest.mark.slow
def test_several_processes_list_the_same_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the same order, each once, with folders inside of each other and no run left out at the limit."""
    folders = [str(folder), str(folder / "a"), os.path.join(str(folder), ".")]
    needed = ["choices", "size"]
    alone = read_runs(folders, needed)
    assert [one.path for one in alone] == [str(folder / name) for name in ("a/1", "a/2", "b", "c/d/e")]
    monkeypatch.setattr("mxtrain.archive.registry.usable_cores", lambda: 2)
    for shared in (1, 2, 4):
        monkeypatch.setattr("mxtrain.archive.registry.MIN_RUNS_FOR_PROCESSES", shared)
        found = read_runs(folders, needed)
        assert [(one.path, one.size, one.choices) for one in found] == [
            (one.path, one.size, one.choices) for one in alone
        ]


def test_run_state_is_read_from_the_lock(tmp_path: Path) -> None:
    """A run that says it is running is killed unless a process holds its lock; looking does not write."""
    write_run(tmp_path / "run", state="running", exit_code=None)
    assert read_run(str(tmp_path / "run")).state == "killed"
    with lock_run_directory(tmp_path / "run"):
        holder = (tmp_path / "run" / ".lock").read_bytes()
        assert read_run(str(tmp_path / "run")).state == "running"
        assert (tmp_path / "run" / ".lock").read_bytes() == holder
    (tmp_path / "run" / ".lock").write_bytes(holder)  # as a killed process leaves it
    assert read_run(str(tmp_path / "run")).state == "killed"
    lock_run_directory(tmp_path / "run").release()  # looking has not kept it


def test_own_classes_have_the_name_of_their_class(tmp_path: Path) -> None:
    write_run(tmp_path / "run", typed="    - model._target_=my.networks.Wide\n")
    choices = read_run(str(tmp_path / "run")).choices
    assert choices == {"task": "classification", "model": "Wide", "dataset": "digits", "optimizer": "adam"}


def test_many_runs_are_read_by_several_processes_as_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(5):
        write_run(tmp_path / str(number), best=number / 10)
    alone = read_runs([str(tmp_path)])
    monkeypatch.setattr("mxtrain.archive.registry.MIN_RUNS_FOR_PROCESSES", 2)
    monkeypatch.setattr("mxtrain.archive.registry.usable_cores", lambda: 2)
    shared = read_runs([str(tmp_path)], ("choices", "size"))
    assert [(one.path, one.status) for one in shared] == [(one.path, one.status) for one in alone]
    assert [vars(one)["size"] for one in shared] == [one.size for one in alone]


def test_run_directories_of_unknown_origin(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Damaged, huge and malicious files: each run is listed, nothing hangs, and nothing reaches the terminal."""
    contents = {
        "truncated": b'{"state": "fin',
        "nan": b'{"state": "finished", "step": NaN}',
        "list": b"[1]",
        "deep": b"[" * 100_000,
        "types": b'{"state": 3, "best": [], "step": "x", "metrics": {"a": "b"}, "epoch": true}',
    }
    for name, content in contents.items():
        write_run(tmp_path / name)
        (tmp_path / name / "status.json").write_bytes(content)
    write_run(tmp_path / "huge")
    os.truncate(tmp_path / "huge" / "status.json", 1 << 40)
    write_run(tmp_path / "pipe")
    os.unlink(tmp_path / "pipe" / "status.json")
    os.mkfifo(tmp_path / "pipe" / "status.json")
    os.mkfifo(tmp_path / "pipe" / ".lock")
    write_run(tmp_path / "\x1b[2Jname\n", state="\x1b]0;owned\x07", monitor="val/\x1b[31m")
    (tmp_path / "loop").mkdir()
    os.symlink(tmp_path, tmp_path / "loop" / "again")
    os.symlink("/", tmp_path / "truncated" / "root")
    began = time.process_time()
    runs = {os.path.basename(one.path): one for one in read_runs([str(tmp_path)], ("size",))}
    assert time.process_time() - began < 20  # a walk over / or through the loop would not end
    assert len(runs) == 8
    damaged = {name for name, one in runs.items() if one.state == "damaged"}
    assert damaged == {"truncated", "nan", "list", "deep", "huge", "pipe", "types"}
    assert runs["types"].status.metrics == {"a": None} and runs["types"].status.step == 0
    for form in ("table", "lines"):
        assert main(["runs", str(tmp_path), f"format={form}"]) == 0
        out = capsys.readouterr().out
        assert "\x1b" not in out and "\x07" not in out and "\\x1b[2Jname\\n" in out
    assert len(listed(capsys, str(tmp_path))) == 8


def test_settings_of_unknown_origin_are_plain_and_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No tag of YAML builds an object, no interpolation reads the environment, and aliases do not fill the memory."""
    monkeypatch.setenv("SECRET", "hidden")
    file = tmp_path / ".hydra" / "config.yaml"
    file.parent.mkdir()
    file.write_text("a: ${oc.env:SECRET}\nb: ${c.d}\nc: {d: 5}\ne: 2020-01-01\n")
    assert read_settings(str(tmp_path)) == {"a": "${oc.env:SECRET}", "b": 5, "c.d": 5, "e": "(date)"}
    file.write_text(f"a: !!python/object/apply:os.mkdir [{tmp_path}/made]\n")
    assert read_settings(str(tmp_path)) == {} and not (tmp_path / "made").exists()
    levels = "".join(f"a{n}: &a{n} {{{', '.join(f'k{i}: *a{n - 1}' for i in range(9))}}}\n" for n in range(1, 12))
    file.write_text("a0: &a0 {x: 1}\n" + levels)
    assert 0 < len(read_settings(str(tmp_path))) <= 20_000
    file.write_text("a: &a {b: *a}\n")
    assert len(read_settings(str(tmp_path))) == 1


@pytest.mark.slow
def test_runs_needs_no_mxnet(folder: Path, mxtrain: Any) -> None:
    done = mxtrain("runs", str(folder), "where=best>0.92", "sort=size")
    assert done.returncode == 0 and "a/2 state=finished" in done.stdout, done.stderr


def test_a_filter_is_never_evaluated() -> None:
    for text in ("best>(lambda: 1)()", "best>0;import os", "`id`=1"):
        with pytest.raises(ConfigError):
            parse_filter([text])
