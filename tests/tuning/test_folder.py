"""Folders of studies, lengths of rungs, and the processes of trials."""

from __future__ import annotations

import json
import os
import signal
import sysconfig
from dataclasses import replace
from pathlib import Path
from typing import Any, List, Optional

import pytest

pytest.importorskip("optuna", minversion="4")

from scripted_worker import ScriptedWorker, end_of_rung

from mxtrain.cluster.stopping import SignalStop
from mxtrain.errors import ConfigError
from mxtrain.tuning import worker as workers
from mxtrain.tuning.folder import StudyDescription, StudyFolder
from mxtrain.tuning.space import Space, TunedSetting, setting_of
from mxtrain.tuning.spec import TuneSettings, first_rung
from mxtrain.tuning.trials import build_pruner
from mxtrain.tuning.worker import WorkerStopped, environment

RATE = TunedSetting("optimizer.lr", "float", low=1e-4, high=0.1, log=True)


def description(**changes: Any) -> StudyDescription:
    made = StudyDescription(
        "study-a",
        [],
        ["model=mlp"],
        "/",
        TuneSettings(n_trials=4, pruner="asha"),
        Space([RATE]),
        ["val/loss"],
        ["min"],
        20,
        val_interval=2,
    )
    return replace(made, **changes)


def test_a_folder_keeps_the_name_and_the_number_of_trials_of_its_study(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path / "study")
    first = description()
    assert folder.create(first) is first and folder.read().to_json() == first.to_json()
    second = description(name="study-b", settings=TuneSettings(n_trials=9, pruner="asha"), directions=["max"])
    assert folder.create(second).to_json() == replace(first, directions=["max"]).to_json()  # nothing else of the file
    changed = folder.set_n_trials(second, 7)
    assert changed.settings.n_trials == folder.read().settings.n_trials == 7 and changed.directions == ["max"]
    other = description(overrides=["model=lenet", "logger.mlflow.uri=http://user:secret@host"])
    with pytest.raises(ConfigError, match="was begun with other settings") as caught:
        folder.create(other)
    assert "overrides: was model=mlp, now model=lenet" in str(caught.value) and "secret" not in str(caught.value)


@pytest.mark.parametrize("stored, expected", [(5, 5), (1, 1), (0, 1), (-3, 1), (None, 1)])
def test_studies_of_earlier_versions_have_no_interval(tmp_path: Path, stored: Optional[int], expected: int) -> None:
    content = json.loads(json.dumps(description().to_json()))
    assert content.pop("val_interval") == 2
    if stored is not None:
        content["val_interval"] = stored
    found = StudyDescription.from_json(content)
    assert found.val_interval == expected and found.budget(0) == max(2, expected)


@pytest.mark.parametrize("name", ["study.json", "journal.log.lock", "journal.log", ".study.lock"])
def test_no_file_of_a_study_may_be_a_link(tmp_path: Path, name: str) -> None:
    folder = StudyFolder(tmp_path / "study")
    folder.create(description())
    (folder.path / name).unlink(missing_ok=True)
    (folder.path / name).symlink_to(tmp_path / "elsewhere")
    for use in (folder.refuse_links, lambda: folder.create(description())):
        with pytest.raises(ConfigError, match=f"{name} is a link"):
            use()
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    "given, max_epochs, expected",
    [
        ({"pruner": "median"}, 20, 2),
        ({"sampler": "pbt"}, 29, 2),
        ({"pruner": "asha"}, 27, 3),
        ({"pruner": "asha"}, 53, 5),
        ({"pruner": "asha", "reduction": 2}, 28, 7),
        ({"pruner": "asha"}, None, 1),
        ({"pruner": "asha"}, 2, 1),
        ({"min_steps": 7, "min_epochs": 3}, 20, 7),
        ({"min_epochs": 3}, 20, 3),
    ],
)
def test_first_rung(given: Any, max_epochs: Optional[int], expected: int) -> None:
    assert first_rung(TuneSettings(**given), max_epochs) == expected


def test_pruners_have_the_rungs_of_the_study() -> None:
    pruner: Any = build_pruner(TuneSettings(pruner="asha", reduction=4), 33, 3)
    assert (pruner._min_resource, pruner._reduction_factor) == (3, 4)
    pruner = build_pruner(TuneSettings(pruner="hyperband", reduction=2), 20, 3)
    assert (pruner._min_resource, pruner._max_resource, pruner._reduction_factor) == (6, 20, 2)
    pruner = build_pruner(TuneSettings(pruner="hyperband", min_steps=10), 20)
    assert (pruner._min_resource, pruner._max_resource) == (10, "auto")
    assert build_pruner(TuneSettings(pruner="median"), 20)._n_startup_trials == 4  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "key, setting",
    [
        ("optimizer.lr", "optimizer.lr"),
        ("optimizer.lr#2", "optimizer.lr"),
        ("optimizer.lr#13", "optimizer.lr"),
        ("a#b", "a#b"),
    ],
)
def test_setting_of_a_range(key: str, setting: str) -> None:
    assert setting_of(key) == setting


def test_three_ranges_of_one_setting_exclude_each_other() -> None:
    def setting(number: int, **when: Any) -> TunedSetting:
        return TunedSetting(f"optimizer.lr#{number}", "float", low=1, high=2, when=when)

    model, amp = TunedSetting("model", "choice", ("a", "b", "c")), TunedSetting("amp", "choice", ("on", "off"))
    first, second = setting(2, model=("a",), amp=("on", "off")), setting(3, model=("b",), amp=("off",))
    assert len(Space([model, amp, first, second]).parameters) == 4  # one condition suffices
    with pytest.raises(ConfigError, match="optimizer.lr: .* can exist at once"):
        Space([model, amp, first, second, setting(4, amp=("on",))])


def test_a_trial_finds_this_copy_of_mxtrain(monkeypatch: pytest.MonkeyPatch) -> None:
    own = str(Path(workers.__file__).resolve().parents[2])
    for before, after in (("", own), ("/a", f"/a{os.pathsep}{own}"), (f"/a{os.pathsep}{own}", f"/a{os.pathsep}{own}")):
        monkeypatch.setenv("PYTHONPATH", before)
        assert environment()["PYTHONPATH"] == after
    for path in ("purelib", "platlib"):  # an installed one is found anyway
        with monkeypatch.context() as patch:
            patch.setattr(sysconfig, "get_path", lambda name, path=path: own if name == path else "/elsewhere")
            patch.setenv("PYTHONPATH", "/a")
            assert environment()["PYTHONPATH"] == "/a"


@pytest.mark.parametrize(
    "overrides, stops", [([], True), (["checkpoint.on_signal=stop"], True), (["checkpoint.on_signal=save"], False)]
)
def test_no_trial_begins_after_a_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, overrides: List[str], stops: bool
) -> None:
    made = ScriptedWorker(tmp_path, description(overrides=overrides), lambda number, budget: end_of_rung(None, 0.5))
    monkeypatch.setattr(SignalStop, "warning", int(signal.SIGUSR2))
    if not stops:
        made.run()
        assert len(made.study.trials) == 4
        return
    with pytest.raises(WorkerStopped, match="SIGUSR2 received: no further trial begins") as caught:
        made.run()
    assert caught.value.exit_code == 75 and not made.study.trials
