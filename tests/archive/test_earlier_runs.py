"""Runs and checkpoints of mxtrain at commit 5273d801, whose modules have moved since: each is evaluated, resumed and
exported, and gives the numbers that it gave at that commit.

earlier_runs.tar.xz holds 14 small runs with data and the user's code, a sweep, a study, averages, exports, and
expected.json with the numbers.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
import tarfile
from pathlib import Path
from typing import Any, Iterator, List

import pytest
from running import ROOT
from tiers import rest_in_zoo

from mxtrain.cli import main
from mxtrain.config.moved import moved_targets

ARCHIVE = Path(__file__).parent / "earlier_runs.tar.xz"


SINCE = {"regression": ["dataset=number_table"], "wide_deep": ["loss=binary_cross_entropy"]}
"""Overrides that select what was the default of the task at that commit."""


def read_expected() -> Any:
    with tarfile.open(ARCHIVE) as archive:
        return json.loads(archive.extractfile("expected.json").read())  # type: ignore[union-attr]


EXPECTED = read_expected()
RUNS = sorted(name for name, facts in EXPECTED.items() if "train" in facts)
"""Each is resumed, which opens all of its parts and measures the validation split."""
AVERAGES = sorted(set(EXPECTED) - {*RUNS})


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("earlier")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture
def folder(unpacked: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, with all runs in it and the user's modules on the path."""
    monkeypatch.chdir(unpacked)
    monkeypatch.syspath_prepend(str(unpacked / "own"))
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{unpacked / 'own'}")
    yield unpacked
    for name in ("shapes", "transforms"):
        sys.modules.pop(name, None)


def assert_close(found: Any, expected: Any, path: str = "") -> None:
    """Numbers may differ in the last digits: the kernels depend on the processor. Files may be named in more detail."""
    if isinstance(expected, dict):
        for name in set(expected) - {"file"}:
            assert_close(found[name], expected[name], f"{path}.{name}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), path
        for number, (one, other) in enumerate(zip(found, expected)):
            assert_close(one, other, f"{path}[{number}]")
    elif isinstance(expected, float):
        same = math.isclose(found, expected, rel_tol=1e-3, abs_tol=1e-5) or (found != found and expected != expected)
        assert same, (path, found, expected)
    else:
        assert found == expected, path


def rows_of(path: Path) -> List[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("{")]


def trust(name: str) -> List[str]:
    return {"own-code": ["--config-dir", "own/conf"], "resnet": ["--trust-code"]}.get(name, [])


def test_the_archive_holds_runs_with_paths_that_have_moved(unpacked: Path) -> None:
    """Else the other tests would show nothing."""
    state = json.loads((unpacked / "lenet/checkpoints/step-00000008/state.json").read_text())
    assert len(list(moved_targets(state["state"]["run"]["description"]))) >= 6


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:mxtrain.* has moved to mxtrain:DeprecationWarning")
@pytest.mark.parametrize("name", rest_in_zoo(sorted(EXPECTED), *AVERAGES, "lenet", "own-code"))
def test_evaluating_an_earlier_run(name: str, folder: Path) -> None:
    output = folder / f"eval-{name.replace('/', '-')}"
    assert main(["eval", name, *trust(name), f"output={output}"]) == 0
    assert_close(json.loads((output / "metrics.json").read_text()), EXPECTED[name]["eval"])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:mxtrain.* has moved to mxtrain:DeprecationWarning")
@pytest.mark.parametrize("name", rest_in_zoo(RUNS, "centernet_fpn", "own-code", "wide_deep"))
def test_predicting_with_an_earlier_run(name: str, folder: Path) -> None:
    predict = EXPECTED[name]["predict"]
    output = folder / f"predicted-{name}.jsonl"
    assert main(["predict", name, *predict["words"], f"output={output}"]) == 0
    if name == "wide_deep":  # then the row named the second class and its probability, now the likeliest
        for row in predict["rows"]:
            if row["probability"] < 0.5:
                row.update({"class": "benign", "probability": 1 - row["probability"]})
    assert_close(rows_of(output)[: len(predict["rows"])], predict["rows"])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:mxtrain.* has moved to mxtrain:DeprecationWarning")
@pytest.mark.parametrize("name", RUNS)
def test_resuming_an_earlier_run(name: str, folder: Path, capfd: pytest.CaptureFixture) -> None:
    resumed = folder / f"{name}-resumed"
    words = [*EXPECTED[name]["train"], *SINCE.get(name, [])]
    code = main([*words, f"checkpoint.resume={name}", f"hydra.run.dir={resumed}"])
    assert code == 0, capfd.readouterr().err
    status, expected = json.loads((resumed / "status.json").read_text()), EXPECTED[name]["resume"]
    assert status["step"] == expected["step"]
    assert_close(status["metrics"], expected["metrics"])
    losses = [row["loss"] for row in rows_of(resumed / "metrics.jsonl") if row["split"] == "train"]
    assert_close(losses[-1], expected["last_train_loss"])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:mxtrain.* has moved to mxtrain:DeprecationWarning")
@pytest.mark.parametrize("name", rest_in_zoo(RUNS, "lenet", "own-code", "transformer"))
def test_exporting_an_earlier_run(name: str, folder: Path) -> None:
    out = folder / f"exported-{name}"
    assert main(["export", name, *trust(name), f"out={out}"]) == 0
    assert set(EXPECTED[name]["export"]) <= {path.name for path in out.iterdir()}


@pytest.mark.slow
def test_an_earlier_export_still_proves_itself(folder: Path) -> None:
    assert main(["export", "check", "exports/lenet"]) == 0


@pytest.mark.slow
def test_earlier_folders_of_runs_are_listed(folder: Path, capfd: pytest.CaptureFixture) -> None:
    assert main(["runs", "lenet", "sweep", "study", "format=json"]) == 0
    runs = {Path(row["run"]).name: row for row in json.loads(capfd.readouterr().out)}
    assert set(runs) == {"lenet", "0_optimizer-adam", "1_optimizer-sgd", "0", "1"}
    assert {row["state"] for row in runs.values()} == {"finished"}
    assert main(["tune", "show", "study"]) == 0
    assert "2 of 2 trials: 2 finished" in capfd.readouterr().out
    shutil.rmtree(folder / "reports", ignore_errors=True)
    assert main(["diff", "lenet", "regression"]) == 0
    assert main(["report", "lenet", f"out={folder / 'reports'}"]) == 0
