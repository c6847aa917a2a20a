"""`mxtrain tune` in processes of its own: pruning, failures, signals and kills."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Sequence

import pytest

pytest.importorskip("optuna", minversion="4")

ROOT = Path(__file__).resolve().parents[2]
PYTHONPATH = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH", "")])])
FAST = ("model=mlp", "logger=jsonl", "early_stopping=off", "trainer.test=false")
LR = "optimizer.lr=log(1e-5,1e-1)"


@pytest.fixture
def refused_in(monkeypatch, capsys) -> Callable[..., str]:
    """(folder, arguments) -> the message of `mxtrain tune ARGUMENTS` in this process, which is refused."""
    from mxtrain.cli import main
    from mxtrain.cluster.launch.preserved import preserved_process

    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr("mxtrain.cli.tune.QUIET_S", 600.0)

    def refuse(folder: Path, *arguments: str) -> str:
        monkeypatch.chdir(folder)
        with preserved_process():
            assert main(["tune", *arguments]) == 2
        return capsys.readouterr().err

    return refuse


def trials_of(study: Path) -> List[Any]:
    """Optuna's own view of the journal, by its own lock and classes."""
    import optuna
    from optuna.storages.journal import JournalFileBackend

    storage = optuna.storages.JournalStorage(JournalFileBackend(str(study / "journal.log")))
    name = json.loads((study / "study.json").read_text())["name"]
    return list(optuna.load_study(study_name=name, storage=storage).get_trials())


def status_of(run: Path) -> Dict[str, Any]:
    return json.loads((run / "status.json").read_text())


def train_rows(run: Path) -> List[int]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [row["step"] for row in lines if row["split"] == "train"]


def starts_of(run: Path) -> List[int]:
    """The steps at which the run's processes began."""
    found = re.findall(r"run (begins|continues at step (\d+)):", (run / "train.log").read_text())
    return [int(step or 0) for _, step in found]


def start_worker(folder: Path, *arguments: str, stdout: int = subprocess.DEVNULL) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "mxtrain", "tune", *arguments],
        cwd=folder,
        env=environment,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
    )


def children_of(pid: int) -> List[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    return [int(word) for word in text.split()]


def runs_of(worker: subprocess.Popen) -> List[int]:
    """Processes of trials, which the fork server of a worker has started."""
    return [run for server in children_of(worker.pid) for run in children_of(server)]


def kill_and_finish(mxtrain, arguments: List[str], num_kills: int, seed: int, kills_runs: bool) -> Path:
    """Begins a study, kills its worker again and again, with the run every third time if `kills_runs`, and lets the
    last worker end it."""
    draw = random.Random(seed)
    study = mxtrain.folder / "study"
    for number in range(num_kills):
        worker = start_worker(mxtrain.folder, *(arguments if not study.exists() else ["study"]))
        try:
            deadline = time.monotonic() + 60
            while not runs_of(worker) and worker.poll() is None and time.monotonic() < deadline:
                if draw.random() < 0.02:
                    break  # before anything has begun
                time.sleep(0.05)
            time.sleep(draw.uniform(0, 4))
            runs = runs_of(worker) if kills_runs and number % 3 == 2 else []
        finally:
            worker.kill()
            worker.communicate()
        for pid in runs:
            os.kill(pid, signal.SIGKILL)
    last = start_worker(mxtrain.folder, *(arguments if not study.exists() else ["study"]))
    try:
        said = last.communicate(timeout=60 + 30 * num_kills)[1]  # it trains what is left of all trials
    finally:
        last.kill()
    assert last.returncode == 0, said
    return study


def check_nothing_lost_or_repeated(study: Path, n_trials: int, rungs: List[int], starts_at_rungs: bool) -> None:
    trials = trials_of(study)
    assert [trial.number for trial in trials] == list(range(n_trials))
    assert {trial.state.name for trial in trials} <= {"COMPLETE", "PRUNED"}
    assert len({trial.params["optimizer.lr"] for trial in trials}) == n_trials
    assert sorted(path.name for path in study.glob("[0-9]*")) == sorted(map(str, range(n_trials)))
    for trial in trials:
        run = study / str(trial.number)
        steps = train_rows(run)
        assert steps == list(range(1, rungs[-1] + 1 if trial.state.name == "COMPLETE" else steps[-1] + 1))
        assert steps[-1] in rungs
        status, is_pruned = status_of(run), trial.state.name == "PRUNED"
        assert (status["state"] == "pruned", "pruner=" in status["cause"]) == (is_pruned, is_pruned), status
        if starts_at_rungs:  # each rung was trained by one process, from its first step to its last
            assert starts_of(run) == [0, *rungs[: rungs.index(steps[-1])]], run
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        measured = {row["step"]: row["accuracy"] for row in rows if row["split"] == "val"}
        assert trial.intermediate_values == {
            rung // 20: max(value for step, value in measured.items() if step <= rung)
            for rung in rungs[:-1]
            if rung <= steps[-1]
        }
    assert any(trial.state.name == "COMPLETE" for trial in trials)


@pytest.mark.slow
def test_killed_workers_lose_no_trials_and_a_promoted_trial_is_bit_exact(mxtrain, refused_in) -> None:
    arguments = ["study", *FAST, "trainer.max_epochs=3", LR, "n_trials=3", "pruner=asha", "sampler=random"]
    study = kill_and_finish(mxtrain, arguments, num_kills=2, seed=1, kills_runs=False)
    check_nothing_lost_or_repeated(study, 3, [20, 60], starts_at_rungs=True)
    best = max((one for one in trials_of(study) if one.state.name == "COMPLETE"), key=lambda one: one.value)
    shown = mxtrain("tune", "show", "study", PYTHONPATH=PYTHONPATH)  # without MXNet
    assert shown.returncode == 0 and re.search(rf"^{best.number} .* <- best", shown.stdout, re.MULTILINE)
    assert f"eval study/{best.number}" in shown.stdout
    (again,) = re.findall(r"# train the best again\n.* -m mxtrain (.*)", shown.stdout)
    done = mxtrain(*again.split(), "hydra.run.dir=unbroken", mxnet=True)
    assert done.returncode == 0, done.stderr
    unbroken = status_of(mxtrain.folder / "unbroken")
    assert status_of(study / str(best.number))["weights_sha256"] == unbroken["weights_sha256"]
    assert best.value == unbroken["best"]["value"]
    # The same command has nothing left to do.
    again_done = mxtrain("tune", *arguments, mxnet=False, PYTHONPATH=PYTHONPATH)
    assert again_done.returncode == 0 and len(trials_of(study)) == 3
    assert "sampler: was random, now tpe" in refused_in(mxtrain.folder, *arguments[:-1])


@pytest.mark.zoo
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [0, 1])
def test_fifty_kills_lose_no_trials(mxtrain, seed: int) -> None:
    """With seed 0 only workers are killed, and each rung is trained by one process; with seed 1 runs, too."""
    arguments = ["study", *FAST, "trainer.max_epochs=9", LR, "n_trials=12", "pruner=asha", "sampler=tpe"]
    study = kill_and_finish(mxtrain, arguments, num_kills=50, seed=seed, kills_runs=seed == 1)
    check_nothing_lost_or_repeated(study, 12, [20, 60, 180], starts_at_rungs=seed == 0)


@pytest.mark.zoo
@pytest.mark.timeout(1800)
def test_a_population_has_the_same_weights_with_kills_and_two_workers(mxtrain) -> None:
    arguments = [*FAST, "trainer.max_epochs=3", LR, "n_trials=4", "sampler=pbt", "checkpoint.keep_last=1"]
    whole = start_worker(mxtrain.folder, "whole", *arguments)
    assert whole.communicate(timeout=600)[1] == "" and whole.returncode == 0
    study = kill_and_finish(mxtrain, ["study", *arguments], num_kills=6, seed=3, kills_runs=True)

    def members(folder: Path) -> List[Any]:
        return [
            (one.number, one.state.name, one.value, one.user_attrs, one.intermediate_values)
            for one in trials_of(folder)
        ]

    assert members(study) == members(mxtrain.folder / "whole")
    names = sorted(path.name for path in study.iterdir() if path.name[0].isdigit())
    assert names == sorted(path.name for path in (mxtrain.folder / "whole").iterdir() if path.name[0].isdigit())
    assert [name for name in names if name.endswith(".1")] and [name for name in names if name.endswith(".2")]
    for name in names:
        ends = [status_of(folder / name) for folder in (study, mxtrain.folder / "whole")]
        assert ends[0]["weights_sha256"] == ends[1]["weights_sha256"] and ends[0]["step"] == ends[1]["step"]
    assert all(value[1] == "COMPLETE" for value in members(study))


@pytest.mark.slow
def test_a_diverged_trial_fails_alone_and_wrong_input_stops_the_study(mxtrain, refused_in) -> None:
    done = mxtrain(
        "tune",
        "study",
        *FAST,
        "trainer.max_epochs=1",
        "optimizer.lr=choice(1e38,0.01)",
        "sampler=grid",
        mxnet=True,
        PYTHONPATH=PYTHONPATH,
    )
    assert done.returncode == 0, done.stderr
    study = mxtrain.folder / "study"
    by_lr = {trial.params["optimizer.lr"]: trial for trial in trials_of(study)}
    assert {lr: trial.state.name for lr, trial in by_lr.items()} == {"1e+38": "FAIL", "0.01": "COMPLETE"}
    assert "finite" in by_lr["1e+38"].user_attrs["cause"]
    assert by_lr["0.01"].value == status_of(study / str(by_lr["0.01"].number))["best"]["value"]
    # Without the journal, the trials have the values of their runs, and nothing is trained again.
    ends = {number: (study / str(number) / "status.json").read_bytes() for number in range(2)}
    (study / "0").rename(study / "x")
    (study / "1").rename(study / "0")
    (study / "x").rename(study / "1")  # as if another order had been drawn
    (study / "journal.log").unlink()
    assert mxtrain("tune", "study", PYTHONPATH=PYTHONPATH).returncode == 0  # without MXNet
    assert {trial.params["optimizer.lr"]: (trial.number, trial.value) for trial in trials_of(study)} == {
        lr: (1 - trial.number, trial.value) for lr, trial in by_lr.items()
    }
    assert {number: (study / str(1 - number) / "status.json").read_bytes() for number in range(2)} == ends
    file = study / "study.json"
    description = json.loads(file.read_text())
    description["settings"].update(n_trials=3, sampler="random")
    file.write_text(json.dumps({**description, "overrides": [*description["overrides"], "model.hiden=3"]}))
    assert "Did you mean 'model.hidden'" in refused_in(mxtrain.folder, "study")
    assert len(trials_of(study)) == 2  # no trial was started
    # A mistake that only a trial's own process finds; the first trial of a further call meets it.
    description["overrides"].append("model.weights=nowhere.params")
    file.write_text(json.dumps(description))
    stopped = mxtrain("tune", "study", PYTHONPATH=PYTHONPATH)
    assert stopped.returncode == 2 and "nowhere.params" in stopped.stderr and "goes on" in stopped.stderr
    assert [trial.state.name for trial in trials_of(study)][2:] == ["RUNNING"]
    assert "the study has stopped: trial 2" in refused_in(mxtrain.folder, "worker", "study")
    description["overrides"].pop()
    file.write_text(json.dumps(description))
    assert mxtrain("tune", "study", mxnet=True, PYTHONPATH=PYTHONPATH).returncode == 0
    assert [trial.state.is_finished() for trial in trials_of(study)] == [True] * 3


@pytest.mark.zoo
@pytest.mark.slow
def test_a_signal_saves_the_trial_and_another_worker_continues_it(mxtrain) -> None:
    arguments = ["study", *FAST, "trainer.max_epochs=100", LR, "n_trials=1"]
    terminal, its_end = os.openpty()
    worker = start_worker(mxtrain.folder, *arguments, stdout=its_end)
    run = mxtrain.folder / "study" / "0"
    shown = ""
    progress = re.compile(r"trial 0 \(1 of 1\): epoch \d+ of 100, step \d+ of 2,000, val/accuracy=0\.\d{4}, ")
    try:
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            if select.select([terminal], [], [], 0.1)[0]:
                shown += os.read(terminal, 4096).decode("utf-8", "replace")
            if list(run.glob("checkpoints/step-*[1-9]*")) and progress.search(shown):
                break
        worker.terminate()
        said = worker.communicate(timeout=60)[1]
    finally:
        worker.kill()
        os.close(terminal)
        os.close(its_end)
    assert progress.search(shown), shown
    assert shown.startswith("mxtrain: reading the configuration ...") and "trial 0 (1 of 1): optimizer.lr=" in shown
    assert worker.returncode == 143
    assert re.findall(r"^\w+: (.*?);", said, re.MULTILINE) == ["the study was interrupted"], said
    status = status_of(run)
    assert (status["state"], status["exit_code"]) == ("interrupted", 143)
    assert [trial.state.name for trial in trials_of(mxtrain.folder / "study")] == ["RUNNING"]
    assert mxtrain("tune", "worker", "study", mxnet=True, PYTHONPATH=PYTHONPATH).returncode == 0
    assert starts_of(run) == [0, status["step"]] and train_rows(run) == list(range(1, 2001))


# What is refused before anything is written.


@pytest.mark.parametrize(
    "arguments, said",
    [
        ((), "tune takes the folder of one study, and none was given"),
        (("worker",), "Type `tune worker STUDY`"),
        (("sho", "s"), "Did you mean 'show'"),
        (("s",), "nothing differs between the trials"),
        (("s", "model=mlp"), "nothing differs between the trials"),
        (("show", "s"), "there is no study in this folder"),
        (("worker", "s"), "there is no study in this folder"),
        (("worker", "s", LR), "what is trained is written in the study's folder"),
        (("s", LR, "n_trials=0"), "n_trials=0"),
        (("s", LR, "sampler=tpa"), "sampler=tpa"),
        (
            ("s", LR, "pruner=asha", "trainer.max_epochs=null", "trainer.max_steps=9"),
            "trainer.max_epochs, which is null",
        ),
        pytest.param(
            ("s", LR, "pruner=asha", "trainer.max_epochs=1"), "the first rung must be shorter", marks=pytest.mark.slow
        ),
        pytest.param(
            ("s", LR, "pruner=asha", "trainer.max_epochs=9,27"),
            "all trials have the same length",
            marks=pytest.mark.slow,
        ),
        (("s", LR, "pruner=asha", "objectives=val/accuracy,val/loss"), "Type pruner=none"),
        (("s", LR, "objectives=val/acuracy,val/loss"), "Did you mean 'val/accuracy'"),
        (("s", LR, "sampler=grid"), "optimizer.lr: sampler=grid takes values that can be listed"),
        (("s", LR, "sampler=cmaes"), "at least two"),
        (("s", LR, "hydra.run.dir=x"), "each trial has its own"),
        (("s", LR, "checkpoint=off"), "could not be continued"),
        (("-m", "s", LR), "leave out -m"),
        pytest.param(("s", "model=choice(mlp,lenett)"), "lenet", marks=pytest.mark.slow),
        pytest.param(("s", "optimizer.lr=interval(-1,1)"), "optimizer.lr=-1", marks=pytest.mark.slow),
        pytest.param(("s", "model.hidden=choice([8],x)", "model=mlp"), "model.hidden", marks=pytest.mark.slow),
        pytest.param(("s", LR, "storage=nonsense"), "storage=nonsense cannot be opened", marks=pytest.mark.slow),
        pytest.param(("s", LR, "dataset=image_folder"), "image_folder", marks=pytest.mark.slow),
        (("s", LR, "objectives=val/acuracy,val/loss"), "Measured are: val/loss, val/accuracy, samples_per_s."),
    ],
)
def test_mistakes_are_refused(refused, arguments, said: str) -> None:
    assert said in refused("tune", *arguments)


@pytest.mark.slow
def test_a_name_that_does_not_exist_is_composed_once(refused, monkeypatch) -> None:
    from mxtrain.composing.composer import Composer

    composed: List[Any] = []
    compose = Composer.compose

    def counted(self: Composer, words: Sequence[str]) -> Any:
        composed.append(list(words))
        return compose(self, words)

    monkeypatch.setattr(Composer, "compose", counted)
    assert "there is no 'model.num_layers'" in refused("tune", "s", "model.num_layers=int(1,8)")
    assert composed == [["model.num_layers=1"]]


@pytest.mark.slow
def test_setting_of_some_options_suggests_a_condition(refused) -> None:
    Path("space.yaml").write_text("model: [lenet, mlp]\nmodel.hidden: choice([64],[32])\n")
    said = refused("tune", "s", "space=space.yaml")
    line = "model.hidden: {values: 'choice([64],[32])', when: {model: mlp}}"
    assert "model.hidden is refused with model=lenet." in said and f"space=space.yaml: `{line}`" in said
    Path("space.yaml").write_text(f"model: [lenet, mlp]\n{line}\n")
    assert "objectives=val/x" in refused("tune", "s", "space=space.yaml", "objectives=val/x,val/loss")


def test_a_folder_with_other_files_is_refused(refused, tmp_path: Path) -> None:
    (tmp_path / "cwd" / "notes").mkdir()
    (tmp_path / "cwd" / "notes" / "x.txt").write_text("x")
    assert "holds other files and no study" in refused("tune", "notes", LR)


@pytest.fixture
def study_folder(tmp_path: Path) -> Iterator[Path]:
    from mxtrain.tuning.folder import StudyDescription, StudyFolder
    from mxtrain.tuning.space import Space, TunedSetting
    from mxtrain.tuning.spec import TuneSettings

    folder = tmp_path / "cwd" / "study"
    StudyFolder(folder).create(
        StudyDescription(
            "study-x",
            [],
            ["model._target_=mine.Network"],
            str(tmp_path),
            TuneSettings(n_trials=1),
            Space([TunedSetting("trainer.seed", "choice", ("1", "2"))]),
            ["val/loss"],
            ["min"],
            3,
        )
    )
    return folder


@pytest.mark.parametrize(
    "storage, said",
    [
        ("postgres://u:secret@nohost/db", "there is no database 'postgres://'. Did you mean 'postgresql://'?"),
        ("sqlite:////nowhere/x.db", "x.db cannot be opened: "),
        ("postgresql+nodriver://u:secret@nohost/db", "cannot be opened: Can't load plugin"),
        ("postgresql://u:secret@nohost/db", "needs the package psycopg2 ("),
        ("mysql://u:secret@nohost/db", "pip install mysqlclient "),
    ],
)
def test_unopenable_database_is_reported_without_its_password(tmp_path: Path, storage, said) -> None:
    from mxtrain.errors import ConfigError
    from mxtrain.tuning.folder import StudyFolder
    from mxtrain.tuning.trials import open_storage

    module = {"postgresql": "psycopg2", "mysql": "MySQLdb"}.get(storage.partition(":")[0], "")
    if module:
        pytest.importorskip("sqlalchemy")
        if importlib.util.find_spec(module) is not None:
            pytest.skip(f"{module} is installed")
    with pytest.raises(ConfigError) as error:
        open_storage(StudyFolder(tmp_path), storage)
    assert said in str(error.value) and "secret" not in str(error.value)


@pytest.mark.parametrize(
    "text, said",
    [
        ('{"op_code": 4}\ngarbage\n', ", line 2 is not JSON"),
        ("[1]\n", ", line 1 is not an entry of Optuna"),
        ('{"op_code": 4, "worker_id": "x"}\n', " cannot be read: KeyError"),
    ],
)
def test_a_damaged_journal_is_named_with_its_line(refused, study_folder: Path, text: str, said: str) -> None:
    (study_folder / "journal.log").write_text(text)
    message = refused("tune", "show", "study")
    assert f"study/journal.log{said}" in message and "Remove this file, then type" in message


def test_show_lists_running_trials_without_writing(study_folder: Path, capsys) -> None:
    from mxtrain.cli import main
    from mxtrain.tuning.folder import StudyFolder
    from mxtrain.tuning.trials import Study

    def files() -> Dict[str, Any]:
        return {str(file): (file.stat().st_mtime_ns, file.stat().st_size) for file in study_folder.rglob("*")}

    before = files()
    assert main(["tune", "show", str(study_folder)]) == 0 and files() == before
    assert "0 of 1 trials: none has begun" in capsys.readouterr().out
    folder = StudyFolder(study_folder)
    Study(folder, folder.read()).ask()
    with (study_folder / "journal.log").open("a") as journal:
        journal.write('{"op_c')  # incomplete
    claim = folder.claim(0)
    for held, state in ((True, "running"), (False, "interrupted")):
        (claim.acquire if held else claim.release)()
        before = files()
        assert main(["tune", "show", str(study_folder)]) == 0 and files() == before
        assert f"1 of 1 trials: 1 {state}" in capsys.readouterr().out


def test_show_has_progress_of_killed_workers_and_full_causes(study_folder: Path, capsys) -> None:
    from mxtrain.cli import main
    from mxtrain.tuning.folder import StudyFolder
    from mxtrain.tuning.trials import Study

    folder = StudyFolder(study_folder)
    study = Study(folder, folder.read())
    study.ask()
    study.tell(study.ask(), "FAIL", cause="a cause of a hundred characters " * 4 + "end")
    (study_folder / "0").mkdir()
    status = {"state": "running", "step": 7, "epoch": 1, "best": {"metric": "val/loss", "value": 0.3185, "step": 5}}
    (study_folder / "0" / "status.json").write_text(json.dumps(status))
    assert main(["tune", "show", str(study_folder)]) == 0
    said = capsys.readouterr().out
    assert re.search(r"^0 +killed +0\.3185 +7$", said, re.MULTILINE), said
    assert "a cause of a hundred characters end\n" in said and "2 of 1 trials: 1 killed, 1 failed" in said


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_is_refused(refused) -> None:
    assert "/proc/study: the study cannot be kept there" in refused("tune", "/proc/study", LR)


@pytest.mark.slow
def test_changed_settings_and_ranges_of_a_study_are_listed(refused, study_folder: Path) -> None:
    file = study_folder / "study.json"
    content = json.loads(file.read_text())
    content.update(overrides=["model=mlp", "trainer.monitor=val/loss"], objectives=["val/loss"])
    content["space"] = [
        {"key": "optimizer.lr", "kind": "float", "low": 1e-4, "high": 0.1, "log": True},
        {"key": "trainer.seed", "kind": "int", "low": 1, "high": 7, "step": 2},
    ]
    file.write_text(json.dumps(content))
    said = refused("tune", "study", "n_trials=9", "sampler=random", "pruner=none")
    assert "has sampler=tpe, and only n_trials may change. Leave out sampler=random, or name another folder" in said
    said = refused(
        "tune",
        "study",
        "model=lenet",
        "optimizer.lr=log(1e-4,1)",
        "dataset.batch_size=choice(8,16)",
        "objectives=val/loss",
    )
    assert [line.strip() for line in said.splitlines()[1:-1]] == [
        "overrides: was model=mlp, now model=lenet",
        "optimizer.lr: was log(0.0001,0.1), now log(0.0001,1)",
        "trainer.seed: was range(1,9,2), now not given",
        "dataset.batch_size: was not given, now choice(8,16)",
        "objectives: was null, now val/loss",
    ]


def test_code_named_only_by_a_study_is_not_run(refused, study_folder: Path) -> None:
    for arguments in (("worker", "study"), ("study",)):
        said = refused("tune", *arguments)
        assert "model._target_=mine.Network" in said and "--trust-code" in said


UNIT = {"key": "optimizer.lr", "kind": "float", "low": 0.1, "high": 1.0}


@pytest.mark.parametrize(
    "change, said",
    [
        ({"space": 3}, "'space' is a int"),
        ({"settings": {"sampler": "x"}}, "sampler=x"),
        ({"flags": [1]}, "'flags[]'"),
        ({"space": [{"key": "a"}]}, "'kind' is missing"),
        ({"directions": []}, "must have min or max in 'directions'"),
        ({"directions": ["up"]}, "must have min or max in 'directions'"),
        ({"extra": 1}, "has the unknown field 'extra'"),
        ({"objectives": [], "directions": []}, "must have min or max in 'directions'"),
        ({"space": [{**UNIT, "when": {"model": 1}}]}, "'when.model' is no list"),
        ({"space": [{**UNIT, "unit": "s"}]}, "has a parameter with the unknown field 'unit'"),
        ({"space": [{**UNIT, "step": 0}]}, "the step of a range is above 0"),
        ({"space": [{**UNIT, "high": None, "low": 1}]}, "1 is above 0"),
        ({"space": [{**UNIT, "kind": "choice", "choices": None}]}, "there is nothing to choose from"),
    ],
)
def test_a_damaged_study_is_refused(refused, study_folder: Path, change: Dict[str, Any], said: str) -> None:
    file = study_folder / "study.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    assert said in refused("tune", "show", "study")
