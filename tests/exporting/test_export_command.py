"""The command itself: what it refuses before any work, what it says, and what a killed export leaves behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable, List, Tuple

import pytest
import running
import served_folders
from small_runs import CASES, SHORT
from test_export_contract import export, folder  # noqa: F401  # fixtures

import mxtrain
from mxtrain.cli.dispatch import run
from mxtrain.errors import ConfigError
from mxtrain.files.new_folder import new_folder
from mxtrain.terminal.progress import ProgressDisplay, WorkProgress

pytestmark = pytest.mark.usefixtures("own_cache")
KSERVE = "for=kserve and storage=URI belong together"

REFUSED: List[Tuple[Tuple[str, ...], str]] = [
    (("max_loss=0.02",), "export.max_loss=0.02: it limits what quantize= may cost, and nothing is quantized"),
    (("calibration_samples=50",), "export.calibration_samples=50: only quantize=int8 takes ranges from samples"),
    (("calibration_samples=50", "quantize=float16"), "only quantize=int8 takes ranges from samples"),
    (("name=digits",), "export.name=digits: it names the network for a server"),
    (("for=kserve", "name=digits"), KSERVE),
    (("storage=s3://x/y",), KSERVE),
    (("out=there",), "out=there: it is there already, and is not overwritten"),
    (("calibration_samples=-3", "quantize=int8"), "export.calibration_samples=-3: should be greater than 0"),
    (("finetune_steps=5",), "export.finetune_steps=5: only for=pytorch trains in both frameworks"),
    (("finetune_steps=epoch",), "export.finetune_steps=epoch: only for=pytorch trains in both frameworks"),
    (("finetune_steps=0", "for=pytorch"), "export.finetune_steps=0: should be"),
    (("finetune_steps=epok", "for=pytorch"), "export.finetune_steps=epok: should be"),
    (("finetune_step=5", "for=pytorch"), "Did you mean 'finetune_steps'?"),
    (("name=Digits", "for=triton"), "of small letters, digits and hyphens"),
    (("storage=bucket", "for=kserve"), "e.g. s3://bucket/digits"),
]


@pytest.mark.parametrize("words, said", REFUSED)
def test_settings_without_effect_are_refused_before_the_run_is_opened(
    words: Tuple[str, ...],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    assert run(["export", "no_such_run", *words]) == 2
    assert said in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["there"]


def test_defaults_are_accepted_if_they_have_an_effect() -> None:
    from mxtrain.workflows.export import read_settings

    read_settings({"quantize": "int8", "max_loss": 0.01, "calibration_samples": 200})
    read_settings({"quantize": "float16", "max_loss": 0.01})
    read_settings({"for_": "triton", "name": "digits"})
    with pytest.raises(ConfigError, match="max_loss"):
        read_settings({"max_loss": 0.01})


@pytest.mark.slow
def test_default_folder_is_refused_before_data_and_mxnet_are_loaded(tmp_path: Path) -> None:
    trained = tmp_path / "run"
    running.train_here(trained, *SHORT, *CASES["lenet"])
    (trained / "export").mkdir()
    program = (
        "import sys; from mxtrain.cli.dispatch import run; code = run(['export', sys.argv[1]]); "
        "print(code, 'mxnet' in sys.modules, 'sklearn' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(trained)], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["2", "False", "False"]
    assert f"out={trained / 'export'}: it is there already" in done.stderr


@pytest.mark.slow
def test_fixed_sizes_are_named_and_stages_are_shown(
    export: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stages: List[str] = []
    for progress in (ProgressDisplay, WorkProgress):
        monkeypatch.setattr(progress, "begin", lambda self, what, total: stages.append(what))
    exported = export(*CASES["lenet"])
    sentence = "height and width are fixed at 8 x 8: the network computes no other sizes"
    assert json.loads((exported / "export.json").read_text())["fixed"] == sentence
    assert f"\n{sentence}\n" in capsys.readouterr().out
    assert stages == [
        "reading the data",
        "loading the weights",
        "reading samples",
        "tracing and converting the network",
        "proof: comparing onnxruntime with MXNet",
        "measuring the metric of both",
        "proof: reading files",
    ]
    stages.clear()
    mxtrain.load(exported.parent).export(exported.parent / "small", quantize="int8", max_loss=1, limit_batches=1)
    assert stages[-4:] == [
        "calibration: making model.onnx int8",
        "measuring the metric of both",
        "timing",
        "proof: reading files",
    ]


MAKES = (
    "import sys, time; from pathlib import Path; from mxtrain.files.new_folder import new_folder\n"
    "with new_folder(Path(sys.argv[1])) as draft: print(draft, flush=True); time.sleep(60)"
)


def test_folder_of_a_killed_export_is_removed_by_the_next_one(tmp_path: Path) -> None:
    def start() -> Tuple[Any, Path]:
        process = subprocess.Popen(
            [sys.executable, "-c", MAKES, str(tmp_path / "x")], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        with process.stdout as printed:
            return process, Path(printed.readline().strip())

    killed, left = start()
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    assert left.is_dir()
    living, kept = start()
    try:
        assert not left.exists() and kept.is_dir()
        other = tmp_path / ".y-draft-12345678"  # of another target
        other.mkdir()
        with new_folder(tmp_path / "x") as draft:
            assert kept.is_dir() and draft.is_dir()
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted([kept.name, other.name, "x"])
    finally:
        living.kill()
        living.wait()


def test_check_names_an_exported_folder_below(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for place, searched in (("run/export", "run"), ("runs/one/export", "runs"), ("kserve/repository/m/1", "kserve")):
        served_folders.write_mixing(tmp_path / place)
        assert run(["export", "check", str(tmp_path / searched)]) == 2
        said = capsys.readouterr().err
        assert f"{tmp_path / searched} is no exported folder: it has no signature.json." in said
        assert f"Did you mean {tmp_path / place}?" in said
    (tmp_path / "empty").mkdir()
    for name, sentence in (("empty", "`mxtrain export RUN` makes one."), ("nowhere", "There is no folder")):
        assert run(["export", "check", str(tmp_path / name)]) == 2
        assert sentence in capsys.readouterr().err
