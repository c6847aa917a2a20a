"""scripts/gpu_check with CPU devices in the place of GPUs: its checks run, and notice what is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from gpu_check_parts import __main__ as program
from gpu_check_parts import checks, devices, steps

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_every_check_passes_on_cpu_devices(capsys: pytest.CaptureFixture[str]) -> None:
    """Forty seconds: the runs, `verify` and the resume are real."""
    assert program.main(["--devices", "cpu:0,cpu:1", "--quick"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split(" | ")[:2] for line in lines if line.startswith("| ") and "---" not in line][1:]
    assert rows == [[f"| {name}", "ok"] for name in ("versions", *checks.CHECKS)]
    assert lines[-1] == "CPU devices stood in: this says nothing about GPUs."


def test_without_a_gpu_it_is_exit_2_and_one_sentence() -> None:
    command = [sys.executable, "-m", "gpu_check_parts"]
    done = subprocess.run(
        command, env={"PYTHONPATH": f"{ROOT / 'scripts'}:{ROOT}"}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("error: MXNet sees no GPU here") and done.stderr.count("\n") == 1


@pytest.mark.parametrize("text", ["gpu:0,cpu:1", "gpu", "cpu:0,cpu:0", "gpu:0,,gpu:1", "gpu:0;gpu:1"])
def test_wrong_devices_are_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["--devices", text]) == 2
    assert f"--devices={text}: it must be different devices of one kind" in capsys.readouterr().err


def test_hidden_gpus_are_numbered_anew() -> None:
    chosen = devices.read_devices("gpu:2,gpu:5")
    assert devices.as_setting(chosen) == "gpu:2" and devices.visible(chosen) == "2,5"


def test_wrong_gradients_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second device adds a hundredth of the largest value to one weight's gradient."""
    from mxtrain.engine.backend import mx

    right = steps._gradients

    def disturbed(device, dtype):
        found = right(device, dtype)
        if device == mx.cpu(1):
            found[0][1].flat[0] += 0.01 * np.abs(found[0][1]).max()
        return found

    monkeypatch.setattr(steps, "_gradients", disturbed)
    assert steps.gradients(mx.cpu(0)) == {"float32": 0.0, "float64": 0.0}
    differences = steps.gradients(mx.cpu(1))
    assert all(0.005 < value < 0.02 for value in differences.values())
    answered = iter([{"float32": 0.0, "float64": 0.0}, differences])
    bench = SimpleNamespace(devices=devices.read_devices("cpu:0,cpu:1"), ask=lambda *_, **__: next(answered))
    assert checks.gradients(bench).state == "failed"


def test_a_resume_to_other_weights_fails(tmp_path: Path) -> None:
    hashes = iter("aab")
    bench = SimpleNamespace(train=lambda *_, **__: {"weights_sha256": next(hashes), "step": 20})
    assert checks.resume(bench).state == "failed"


def test_a_check_that_crashes_is_a_line_of_the_table_and_the_others_go_on(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(checks.Bench, "run", lambda *_, **__: subprocess.CompletedProcess(
        (), -11, "", "noise\nCUDA error: no kernel image is available\nlast"))  # fmt: skip
    bench = checks.Bench(devices.read_devices("cpu:0,cpu:1"), tmp_path)
    answers = dict(program._run_all(bench))
    assert list(answers) == list(checks.CHECKS) and {answer.state for answer in answers.values()} == {"failed"}
    assert answers["first kernel"].text == "exit code -11: CUDA error: no kernel image is available"
    assert json.dumps(program.table(list(answers.items())))
