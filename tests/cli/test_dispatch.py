"""Output and exit code of interrupted commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import List

import pytest

from mxtrain.cli import data, dispatch, evaluate, main, train
from mxtrain.cli.commands import COMMANDS
from mxtrain.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    "words, module, said",
    [
        (["data", "check"], data, "interrupted before `data` came to its end; the same command begins anew"),
        (["eval", "run"], evaluate, "interrupted before `eval` came to its end; the same command begins anew"),
        (["model=mlp"], train, "interrupted before training began; nothing was lost"),
    ],
)
def test_interrupted_command_reports_lost_work(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch, words: List[str], module: object, said: str
) -> None:
    def interrupt(arguments: List[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "run", interrupt)
    assert dispatch.run(words) == 130
    assert capsys.readouterr().err == f"stopped: {said}\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, value, store",
    [
        ("DMLC_ROLE", "server", "dist_sync"),
        ("DMLC_ROLE", "scheduler", "dist_sync"),
        ("DMLC_ROLE", "worker", "dist_sync"),
        ("HOROVOD_RANK", "1", "horovod"),
    ],
)
@pytest.mark.parametrize("command", ["train", "verify"])
def test_role_of_another_launcher_needs_a_distributed_store(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str, name: str, value: str, store: str
) -> None:
    others = {"DMLC_NUM_WORKER": "2", "DMLC_NUM_SERVER": "1", "DMLC_WORKER_ID": "1", "HOROVOD_SIZE": "2"}
    for variable, text in {**others, name: value}.items():
        monkeypatch.setenv(variable, text)
    place = [f"hydra.run.dir={tmp_path / 'run'}"] if command == "train" else []
    with pytest.raises(ConfigError, match=f"{name}={value} is set in the environment.*env -u {name}.*kvstore={store}"):
        dispatch.command_of([command, "debug=fast", *place])()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("words", [["data", "check"], ["eval", "run"], ["predict", "run"], ["doctor"]])
def test_role_is_ignored_by_commands_of_one_process(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch, words: List[str]
) -> None:
    monkeypatch.setenv("DMLC_ROLE", "server")
    seen = []
    monkeypatch.setattr(COMMANDS[words[0]].module + ".run", lambda arguments: seen.append(dict(os.environ)) or 0)
    assert main(words) == 0
    assert "DMLC_ROLE" not in seen[0]
    assert capsys.readouterr().err == f"mxtrain: {words[0]} runs in one process: DMLC_ROLE=server is ignored\n"


@pytest.mark.slow
def test_doctor_answers_in_the_environment_of_a_server() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mxtrain", "doctor", "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        env={
            **os.environ,
            "DMLC_ROLE": "server",
            "DMLC_PS_ROOT_URI": "127.0.0.1",
            "DMLC_PS_ROOT_PORT": "9099",
            "DMLC_NUM_WORKER": "1",
            "DMLC_NUM_SERVER": "1",
            "PYTHONPATH": str(ROOT),
        },
    )
    assert done.returncode == 0 and json.loads(done.stdout)["usable"], done.stdout + done.stderr


def test_python_without_docstrings_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    from types import SimpleNamespace

    for level, code in ((2, 2), (1, 0)):
        fake = SimpleNamespace(**{**vars(sys), "flags": SimpleNamespace(optimize=level)})
        monkeypatch.setattr(dispatch, "sys", fake)
        assert dispatch.run(["train", "--help"]) == code
        assert ("unset PYTHONOPTIMIZE" in capsys.readouterr().err) == (level == 2)
