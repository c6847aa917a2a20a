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
from low_precision import needs_bfloat16

ROOT = Path(__file__).parents[1]


@pytest.mark.zoo
@pytest.mark.slow
@needs_bfloat16  # where CPU devices stand in for float16
def test_every_check_passes_on_cpu_devices(capsys: pytest.CaptureFixture[str]) -> None:
    """Forty seconds: the runs, `verify` and the resume are real."""
    assert program.main(["--devices", "cpu:0,cpu:1", "--quick"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split(" | ")[:2] for line in lines if line.startswith("| ") and "---" not in line][1:]
    states = {name: "not run" if name == "memory in use" else "ok" for name in ("versions", *checks.CHECKS)}
    assert rows == [[f"| {name}", state] for name, state in states.items()]
    assert lines[-1] == "CPU devices stood in: this says nothing about GPUs."


@pytest.mark.slow
def test_missing_gpu_exits_with_2_and_one_sentence() -> None:
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


def test_hidden_gpus_are_renumbered() -> None:
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


def test_another_divisor_of_a_variance_is_named_and_a_wrong_mean_fails() -> None:
    from mxtrain.engine.backend import mx

    right = steps.statistics(mx.cpu(0))
    assert max(right["mean"], right["n"]) < 1e-6 and right["n-1"] > 1e-3
    by_cudnn = {"mean": right["mean"], "n": right["n-1"], "n-1": right["n"]}
    wrong = {**right, "mean": 1e-3}
    for found, state, said in ((right, "ok", "by n)"), (by_cudnn, "ok", "by n-1)"), (wrong, "failed", "mean 1.0e-03")):
        answer = checks.statistics(asked(found))
        assert answer.state == state and said in answer.text


def test_dropout_that_follows_no_seed_or_never_changes_fails() -> None:
    from mxtrain.engine.backend import mx

    assert steps.dropout(mx.cpu(0)) == {"same": True, "anew": True}
    assert checks.dropout(asked({"same": False, "anew": True})).state == "failed"
    assert checks.dropout(asked({"same": True, "anew": False})).state == "failed"


@pytest.mark.slow
def test_skipped_step_with_changed_values_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    from mxtrain.engine.backend import mx
    from mxtrain.training.step import TrainingStep

    assert steps.skipped(mx.cpu(1)) == {"skipped": 5, "changed": []}
    monkeypatch.setattr(TrainingStep, "_restore_statistics", lambda step: None)
    found = steps.skipped(mx.cpu(0))
    assert len(found["changed"]) == 6 and all("running" in name for name in found["changed"])
    assert checks.skipped(asked(found)).state == "failed"
    assert checks.skipped(asked({"skipped": 4, "changed": []})).state == "failed"


def test_changed_batches_or_missing_buffers_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    from mxtrain.data.loading.staging import Staging
    from mxtrain.engine.backend import mx, nd

    monkeypatch.setattr(steps, "FED", 6)
    found = steps.feeding(mx.cpu(1))
    assert found["same"] and found["buffers"] and checks.feeding(asked(found)).state == "ok"
    monkeypatch.setattr(Staging, "copy", lambda staging, array: nd.zeros(array.shape, ctx=mx.cpu(1)))
    found = steps.feeding(mx.cpu(1))
    assert not found["same"] and not found["buffers"] and checks.feeding(asked(found)).state == "failed"


@pytest.mark.parametrize(
    "shown, state",
    [([{"used_mb": 700.0, "is_own": True}], "ok"), ([{"used_mb": 90.0, "is_own": True}], "failed"), ([], "failed")],
)
def test_unknown_or_too_small_memory_fails(shown: list, state: str) -> None:
    bench = SimpleNamespace(**vars(asked({"shown": shown, "bus_id": None})), on_gpus=True)
    answer = checks.memory(bench)
    assert answer.state == state and "gpu" not in answer.text and "no known place" in answer.text


def asked(found: dict) -> SimpleNamespace:
    """A bench whose one device answers so."""
    return SimpleNamespace(devices=devices.read_devices("cpu:0"), ask=lambda *_, **__: found)


def test_a_resume_to_other_weights_fails(tmp_path: Path) -> None:
    hashes = iter("aab")
    bench = SimpleNamespace(train=lambda *_, **__: {"weights_sha256": next(hashes), "step": 20})
    assert checks.resume(bench).state == "failed"


def test_crashed_check_is_a_table_row_and_others_continue(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(
        checks.Bench,
        "run",
        lambda *_, **__: subprocess.CompletedProcess(
            (), -11, "", "noise\nCUDA error: no kernel image is available\nlast"
        ),
    )
    bench = checks.Bench(devices.read_devices("cpu:0,cpu:1"), tmp_path)
    answers = dict(program._run_all(bench))
    assert list(answers) == list(checks.CHECKS) and answers.pop("memory in use").state == "not run"
    assert {answer.state for answer in answers.values()} == {"failed"}
    assert answers["first kernel"].text == "exit code -11: CUDA error: no kernel image is available"
    assert json.dumps(program.table(list(answers.items())))
