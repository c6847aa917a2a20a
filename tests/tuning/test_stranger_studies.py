"""Untrusted study.json: `tune` runs no code, writes no file and opens no connection that only this file names."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, Dict, List

import pytest

pytest.importorskip("optuna", minversion="4")

from mxtrain.cli import main
from mxtrain.errors import ConfigError
from mxtrain.tuning.folder import StudyDescription, StudyFolder
from mxtrain.tuning.samplers import draw
from mxtrain.tuning.space import Space, TunedSetting
from mxtrain.tuning.spec import TuneSettings
from mxtrain.tuning.trials import Study
from mxtrain.tuning.worker import Worker, environment

RATE = TunedSetting("optimizer.lr", "float", low=1e-4, high=0.1, log=True)


class Stranger:
    """A stranger's folder with a module that leaves a mark when it is imported, and a study that `change` edits."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.study, self.mark = folder, folder / "study", folder / "RAN"
        (folder / "conf" / "callback").mkdir(parents=True)
        (folder / "conf" / "callback" / "evil.yaml").write_text("# @package callback.evil\n_target_: evil.Evil\n")
        (folder / "evil.py").write_text(f"open({str(self.mark)!r}, 'a').write('x')\nclass Evil: pass\n")
        (folder / "notes").write_text("mine\n")
        settings = TuneSettings(n_trials=1)
        StudyFolder(self.study).create(
            StudyDescription(
                "study-x",
                [],
                ["model=mlp"],
                str(folder),
                settings,
                Space([RATE]),
                ["val/loss"],
                ["min"],
                3,
            )
        )

    def change(self, **changes: Any) -> None:
        content = json.loads((self.study / "study.json").read_text())
        for key, value in changes.items():
            merges = isinstance(value, dict)
            content[key] = {**content[key], **value} if merges else [*content[key], *value]
        (self.study / "study.json").write_text(json.dumps(content))

    def files(self) -> Dict[str, str]:
        return {str(path): path.read_text() if path.is_file() else "" for path in sorted(self.folder.rglob("*"))}


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stranger:
    monkeypatch.setattr(sys, "path", [str(tmp_path / "stranger"), *sys.path])
    monkeypatch.delitem(sys.modules, "evil", raising=False)
    (tmp_path / "me").mkdir()
    monkeypatch.chdir(tmp_path / "me")
    return Stranger(tmp_path / "stranger")


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> List[StudyDescription]:
    """The descriptions that would be trained."""
    found: List[StudyDescription] = []
    monkeypatch.setattr("mxtrain.cli.tune.train", lambda folder, description: found.append(description) or 0)
    return found


CONF = "{W}/conf"
CODE: Dict[str, Dict[str, Any]] = {
    "model target": {"overrides": ["model._target_=evil.Evil"]},
    "callback target": {"overrides": ["+callback.evil._target_=evil.Evil"]},
    "callback mapping": {"overrides": ["+callback.evil={_target_: evil.Evil}"]},
    "callback whole": {"overrides": ["callback={evil: {_target_: evil.Evil}}"]},
    "logger target": {"overrides": ["+logger.evil._target_=evil.Evil"]},
    "metric target forced": {"overrides": ["++metric.evil._target_=evil.Evil"]},
    "--config-dir": {"flags": ["--config-dir", CONF], "overrides": ["callback=evil"]},
    "-cd": {"flags": ["-cd", CONF], "overrides": ["callback=evil"]},
    "--config-dir=": {"flags": ["--config-dir=" + CONF], "overrides": ["callback=evil"]},
    "--config-dir= among overrides": {"overrides": ["--config-dir=" + CONF, "callback=evil"]},
    "--config-path": {"flags": ["--config-path", CONF], "overrides": ["+callback=evil"]},
    "-cp=": {"flags": ["-cp=" + CONF], "overrides": ["+callback=evil"]},
    "searchpath": {"overrides": ["hydra.searchpath=[" + CONF + "]", "callback=evil"]},
    "searchpath forced": {"overrides": ["++hydra.searchpath=[file://" + CONF + "]", "callback=evil"]},
    "searchpath in a mapping": {"overrides": ["hydra={searchpath: [" + CONF + "]}", "callback=evil"]},
    "space in a key": {"overrides": ["model={_target_ : evil.Evil}"]},
    "escape in a key": {"overrides": ['model={"_targe\\u0074_": evil.Evil}']},
    "launcher class": {"overrides": ["hydra.launcher._target_=evil.Evil"]},
    "launcher option": {"overrides": ["hydra/launcher=evil"]},
    "hydra callbacks": {"overrides": ["+hydra.callbacks.x._target_=evil.Evil"]},
    "group moved to hydra": {"overrides": ["+callback@hydra.callbacks=[default]"]},
    "job_logging class": {"overrides": ["hydra.job_logging.handlers.console.class=evil.Evil"]},
    "lookup in the environment": {"overrides": ["trainer.seed=${oc.env:HOME}"]},
    "lookup in a choice": {"space": [{"key": "model", "kind": "choice", "choices": ["mlp", "${oc.env:HOME}"]}]},
    "program of hosts": {"overrides": ["cluster.workers=2", "kvstore=dist_sync", "cluster.python={W}/evil.py"]},
    "launcher of hosts": {"overrides": ["cluster.launcher=ssh", "cluster.hostfile={W}/notes"]},
    "options of ssh": {"overrides": ["cluster.launcher_options=[-F,evil]"]},
    "code of a teacher": {"overrides": ["distillation.trust_code=true"]},
    "class as a choice": {"space": [{"key": "+callback.evil._target_", "kind": "choice", "choices": ["evil.Evil"]}]},
    "mapping as a late choice": {
        "space": [
            {
                "key": "model",
                "kind": "choice",
                "choices": [*(f"mlp{number}" for number in range(40)), "{_target_: evil.Evil}", "mlp"],
            }
        ]
    },
    "hydra as a range": {"space": [{"key": "hydra.verbose", "kind": "int", "low": 0, "high": 1}]},
    "flag as a range": {"space": [{"key": "--config-dir", "kind": "choice", "choices": [CONF]}]},
    "several values in a choice": {"space": [{"key": "model", "kind": "choice", "choices": ["mlp,lenet"]}]},
}
FILES: Dict[str, Dict[str, Any]] = {
    "log file": {"overrides": ["hydra.job_logging.handlers.file.filename={W}/notes"]},
    "log file overwritten": {"overrides": ["+hydra.job_logging.handlers.file.mode=w"]},
    "rows elsewhere": {"overrides": ["logger.jsonl.file_name={W}/rows"]},
    "rows above": {"overrides": ["logger.jsonl.file_name=../../rows"]},
    "output_subdir": {"overrides": ["hydra.output_subdir=../../../me/sub"]},
    "env_set": {"overrides": ["+hydra.job.env_set.PYTHONPATH=/x"]},
    "env_set whole": {"overrides": ["hydra.job.env_set={LD_PRELOAD: /x}"]},
    "chdir": {"overrides": ["hydra.job.chdir=true"]},
    "run directory": {"overrides": ["hydra.run.dir={W}/notes"]},
    "job name": {"overrides": ["hydra.job.name=../../../me/jn"]},
    "LD_PRELOAD": {"overrides": ["+runtime.env.LD_PRELOAD=/none.so"]},
    "variables whole": {"overrides": ["runtime.env={PYTHONPATH: {W}}"]},
    "address of a tracker": {"overrides": ["logger=[jsonl,mlflow]", "logger.mlflow.uri=http://stranger.example"]},
    "database of a tracker": {"overrides": ["logger=[mlflow]", "logger.mlflow.uri=sqlite:///{W}/ml.db"]},
    "storage": {"settings": {"storage": "sqlite:///{W}/made.db"}},
}


def placed(value: Any, folder: Path) -> Any:
    return json.loads(json.dumps(value).replace("{W}", str(folder)))


@pytest.mark.parametrize(
    "form, command", [*((form, "") for form in (*CODE, *FILES)), ("callback target", "worker"), ("log file", "worker")]
)
def test_study_of_unknown_origin_is_refused_before_imports_and_writes(
    stranger: Stranger, trained: List[StudyDescription], capsys: pytest.CaptureFixture, form: str, command: str
) -> None:
    stranger.change(**placed({**CODE, **FILES}[form], stranger.folder))
    before = stranger.files()
    assert main(["tune", *command.split(), str(stranger.study)]) == 2
    said = capsys.readouterr().err
    assert "Traceback" not in said and ("--trust-code" in said or "is no override" in said)
    assert trained == [] and not stranger.mark.exists() and stranger.files() == before


@pytest.mark.slow
@pytest.mark.parametrize("command", ["", "worker"])
def test_a_study_of_mxtrains_own_parts_needs_no_trust(
    stranger: Stranger, trained: List[StudyDescription], command: str
) -> None:
    choices = ["mlp", "lenet"]
    stranger.change(
        overrides=["trainer.max_epochs=2", "runtime.env={OMP_DYNAMIC: 'false'}", "logger=[jsonl,mlflow]"],
        space=[
            {"key": "model", "kind": "choice", "choices": choices},
            {"key": "model.dropout", "kind": "float", "low": 0.0, "high": 0.5, "when": {"model": ["mlp"]}},
        ],
    )
    stranger.change(space=[{"key": "dataset.batch_size", "kind": "choice", "choices": ["8", "16"]}])
    content = json.loads((stranger.study / "study.json").read_text())
    content["overrides"].remove("model=mlp")
    (stranger.study / "study.json").write_text(json.dumps(content))
    assert main(["tune", *command.split(), str(stranger.study)]) == 0
    assert trained[0].overrides == content["overrides"]


@pytest.mark.slow
def test_trusted_or_typed_words_are_trained(
    stranger: Stranger, trained: List[StudyDescription], capsys: pytest.CaptureFixture
) -> None:
    stranger.change(flags=["--config-dir", "conf"], overrides=["callback=evil"])
    assert main(["tune", str(stranger.study), "--trust-code"]) == 0
    assert main(["tune", str(stranger.study), "--config-dir", str(stranger.folder / "conf")]) == 0
    assert len(trained) == 2 and trained[0].to_json() == trained[1].to_json()
    assert main(["tune", str(stranger.study), "--config-dir", "."]) == 2
    assert main(["tune", str(stranger.study)]) == 2
    assert len(trained) == 2
    assert "--config-dir conf" in capsys.readouterr().err


def test_a_folder_of_options_is_refused_for_a_study_that_has_none(stranger: Stranger, capsys) -> None:
    assert main(["tune", str(stranger.study), "--config-dir", str(stranger.folder / "conf")]) == 2
    assert "has none. Leave it out" in capsys.readouterr().err


@pytest.mark.slow
def test_a_database_that_only_the_file_names_is_not_opened(
    stranger: Stranger, trained: List[StudyDescription], capsys: pytest.CaptureFixture
) -> None:
    database = stranger.folder / "made.db"
    url = f"sqlite:///{database}"
    stranger.change(settings={"storage": f"{url}?password=hidden"})
    for arguments in (["show"], ["worker"], []):
        assert main(["tune", *arguments, str(stranger.study)]) == 2
        said = capsys.readouterr().err
        assert "sqlite:///" in said and "type the same storage=..." in said and "hidden" not in said
        assert main(["tune", *arguments, str(stranger.study), "storage=sqlite:///other.db"]) == 2
        assert "only n_trials may change" in capsys.readouterr().err
    assert not database.exists() and trained == [] and not Path("other.db").exists()
    content = json.loads((stranger.study / "study.json").read_text())
    content["settings"]["storage"] = url
    (stranger.study / "study.json").write_text(json.dumps(content))
    assert main(["tune", "show", str(stranger.study), f"storage={url}"]) == 0 and database.exists()
    assert main(["tune", "worker", str(stranger.study), f"storage={url}"]) == 0
    assert main(["tune", "worker", str(stranger.study), "--trust-code"]) == 0
    assert len(trained) == 2


@pytest.mark.parametrize("name", ["logs", ".claims", "journal.log", ".study.lock", ".seeds"])
def test_files_of_a_study_that_are_links_are_refused(
    stranger: Stranger, trained: List[StudyDescription], capsys: pytest.CaptureFixture, name: str
) -> None:
    target = stranger.folder / "elsewhere"
    target.mkdir()
    path = stranger.study / name
    if path.is_dir():
        path.rmdir()
    path.unlink(missing_ok=True)
    path.symlink_to(target)
    assert main(["tune", str(stranger.study)]) == 2
    assert f"{name} is a link" in capsys.readouterr().err and trained == [] and list(target.iterdir()) == []


@pytest.mark.slow
def test_the_run_directory_of_a_trial_is_no_link(stranger: Stranger) -> None:
    mine = stranger.folder / "mine"
    mine.mkdir()
    (stranger.study / "0").symlink_to(mine)
    folder = StudyFolder(stranger.study)
    assert main(["tune", str(stranger.study)]) == 2 and list(mine.iterdir()) == []
    assert not (folder.path / "logs" / "0.txt").exists()


@pytest.mark.slow
def test_study_changed_after_the_check_is_trained_as_checked(
    stranger: Stranger, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: List[List[str]] = []

    class Process:
        def __init__(self, command: List[str], **options: Any) -> None:
            started.append(command)

        def send_signal(self, number: int) -> None:
            raise AssertionError("no signal has arrived")

        def wait(self) -> int:
            stranger.change(overrides=["model._target_=evil.Evil"])
            return 2

    monkeypatch.setattr("mxtrain.tuning.worker.ForkServer.start", lambda *_: None)
    monkeypatch.setattr("mxtrain.tuning.worker.subprocess.Popen", Process)
    assert main(["tune", str(stranger.study), "n_trials=3"]) == 2
    assert json.loads((stranger.study / "study.json").read_text())["overrides"][-1] == "model._target_=evil.Evil"
    assert not any("evil" in word for word in started[0])
    assert main(["tune", str(stranger.study)]) == 2 and len(started) == 1


@pytest.mark.slow
def test_trial_process_imports_no_code_of_the_working_folder(
    stranger: Stranger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`python -m` would put the folder that study.json names first on the path, before the standard library."""
    (stranger.folder / "mxtrain").mkdir()
    for file in ("json.py", "mxtrain/__init__.py", "mxtrain/__main__.py"):
        (stranger.folder / file).write_text(f"open({str(stranger.mark)!r}, 'a').write('x')\n")
    monkeypatch.setenv("PYTHONPATH", "")
    assert os.fspath(Path(__file__).parents[2]) in environment()["PYTHONPATH"].split(os.pathsep)
    folder = StudyFolder(stranger.study)
    description = folder.read()
    worker = Worker(folder, description, lambda line: None)
    job = worker.next_job()
    assert job is not None
    object.__setattr__(description, "overrides", ["model=nothing_of_the_kind"])
    assert worker.train_process(job, None) == 2
    job.claim.release()
    assert "nothing_of_the_kind" in folder.log(0).read_text() and not stranger.mark.exists()


@pytest.mark.parametrize(
    "value, refused",
    [
        ("${oc.env:HOME}", True),
        (0.2, True),
        (0.05, False),
        (1e-5, True),
        (0.1 * (1 + 1e-12), False),
        (0.10001, True),
        (None, True),
    ],
)
def test_a_value_of_the_journal_that_is_not_in_the_range_is_no_override(
    stranger: Stranger, value: object, refused: bool
) -> None:
    """The journal is the stranger's, too, and Optuna returns a recorded number as it is."""
    folder = StudyFolder(stranger.study)
    study = Study(folder, folder.read())
    draw(study.ask(), folder.read().space)
    journal = stranger.study / "journal.log"
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    for line in lines:
        if "param_value_internal" in line:
            line["param_value_internal"] = value
    journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
    study = Study(folder, folder.read())
    trial = study.adopt(study.trials[0])
    if refused:
        with pytest.raises(ConfigError, match="which is not in log"):
            draw(trial, folder.read().space)
    else:
        assert draw(trial, folder.read().space) == {"optimizer.lr": value}


def test_a_choice_of_the_journal_that_the_study_does_not_have_is_no_override(stranger: Stranger) -> None:
    stranger.change(space=[{"key": "model", "kind": "choice", "choices": ["mlp", "lenet"]}])
    folder = StudyFolder(stranger.study)
    study = Study(folder, folder.read())
    draw(study.ask(), folder.read().space)
    journal = stranger.study / "journal.log"
    journal.write_text(journal.read_text().replace("mlp", "evil").replace("lenet", "evil2"))
    study = Study(folder, folder.read())
    with pytest.raises(ConfigError, match="trial 0 is recorded with other values of model than"):
        draw(study.adopt(study.trials[0]), folder.read().space)
