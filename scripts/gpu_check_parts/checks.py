"""The checks: each answers with a sentence and whether it passed, whatever happens in the processes that it starts."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Callable, Dict, List, Literal, Mapping, Sequence, Tuple

from bench_parts import harness

from gpu_check_parts.devices import Device, as_setting, visible
from gpu_check_parts.steps import HELD_MB

TOLERANCES = {"float32": 1e-3, "float64": 1e-9}
"""Relative. In float32 cuDNN sums in another order and may take algorithms that transform what is convolved."""
STATISTICS_LIMIT = 1e-5
TIMEOUT_S = 900
RESNET, SMALL = ("model.name=resnet50_v1b", 224, 64, 40), ("model.name=cifar_resnet20_v1", 32, 8, 4)
"""(model, pixels, batch size, steps) whose images are counted; the second one with --quick."""
NOTHING: Mapping[str, str] = MappingProxyType({})
State = Literal["ok", "failed", "not run"]


@dataclass(frozen=True)
class Answer:
    """One line of the table."""

    state: State
    text: str


@dataclass(frozen=True)
class Bench:
    """Inputs of the checks.

    Attributes:
        devices: those to check.
        folder: for runs; nothing in it is needed afterwards.
        quick: whether sizes are tiny, so that figures mean nothing.
        torch_python: a Python that has PyTorch, or "".
    """

    devices: Sequence[Device]
    folder: Path
    quick: bool = False
    torch_python: str = ""

    @property
    def on_gpus(self) -> bool:
        """Returns True if the devices are GPUs, not CPU devices that stand in."""
        return self.devices[0].kind == "gpu"

    def seeing(self, devices: Sequence[Device]) -> Dict[str, str]:
        """The variables under which a process sees these devices only."""
        return {"CUDA_VISIBLE_DEVICES": visible(devices)} if self.on_gpus else {}

    def ask(self, *words: str, python: str = sys.executable, environ: Mapping[str, str] = NOTHING) -> Any:
        """The JSON object in the last line that `python -m WORDS` prints. Raises: Failed: it ended in another way."""
        done = self.run(*words, python=python, environ=environ)
        if done.returncode:
            raise Failed(done)
        return json.loads(done.stdout.splitlines()[-1])

    def train(self, name: str, *overrides: str, exit_code: int = 0, devices: Sequence[Device] = ()) -> Dict[str, Any]:
        """Runs `python -m mxtrain OVERRIDES` in a run directory of that name and returns status.json.

        Raises:
            Failed: it ended with another exit code.
        """
        run, devices = self.folder / name, devices or self.devices[:1]
        where = [f"parallel.devices={as_setting(devices)}", f"hydra.run.dir={run}", "trainer.test=false"]
        done = self.run("mxtrain", *overrides, *where, environ=self.seeing(devices))
        if done.returncode != exit_code:
            raise Failed(done)
        return json.loads((run / "status.json").read_text(encoding="utf-8"))

    def run(
        self, *words: str, python: str = sys.executable, environ: Mapping[str, str] = NOTHING
    ) -> subprocess.CompletedProcess[str]:
        """`python -m WORDS`, whatever comes of it."""
        given = {**harness.untouched_environment(), **environ}
        arguments = ["-W", "ignore", "-m", *words]
        try:
            return harness.run(arguments, given, self.folder, None, python, TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(arguments, 1, "", f"it did not end within {TIMEOUT_S} s")


class Failed(Exception):
    """A process of a check ended with another exit code than it should."""

    def __init__(self, done: subprocess.CompletedProcess):
        lines = [line for line in (done.stderr or done.stdout or "").splitlines() if line.strip()]
        said = next((line for line in reversed(lines) if "rror" in line), lines[-1] if lines else "it said nothing")
        super().__init__(f"exit code {done.returncode}: {said.strip()[:300]}")


CHECKS: Dict[str, Callable[[Bench], Answer]] = {}


def _check(name: str) -> Callable[[Callable[[Bench], Answer]], Callable[[Bench], Answer]]:
    def enter(function: Callable[[Bench], Answer]) -> Callable[[Bench], Answer]:
        CHECKS[name] = function
        return function

    return enter


def _on_each(
    bench: Bench,
    step: str,
    judge: Callable[[Any], Tuple[bool, str]],
    note: str = "",
    environ: Mapping[str, str] = NOTHING,
) -> Answer:
    """Runs `steps` on each device and judges the answers; returns the words for each device, and True if all passed.

    Args:
        judge: of what a device found: whether that passes, and the words for it, which stand behind the device.
        note: stands behind all.
    """
    found = {
        device: judge(bench.ask("gpu_check_parts.steps", step, device.kind, str(device.number), environ=environ))
        for device in bench.devices
    }
    words = "; ".join(f"{device} {text}" for device, (_, text) in found.items())
    return Answer("ok" if all(passed for passed, _ in found.values()) else "failed", f"{words}{note}")


@_check("first kernel")
def first_kernel(bench: Bench) -> Answer:
    """Each device convolves; where a wheel has no code for it, here it shows."""
    return _on_each(
        bench, "kernel", lambda found: (True, f"{found['first_s']:.2f} s, then {1000 * found['next_s']:.1f} ms")
    )


@_check("gradients against the CPU's")
def gradients(bench: Bench) -> Answer:
    """Float32 without TF32, which has ten bits of mantissa; float64."""
    limits = ", ".join(f"{dtype} {limit:g}" for dtype, limit in TOLERANCES.items())

    def judge(found: Any) -> Tuple[bool, str]:
        passed = all(found[dtype] <= limit for dtype, limit in TOLERANCES.items())
        return passed, ", ".join(f"{dtype} {value:.1e}" for dtype, value in found.items())

    note = f" (relative; at most {limits})"
    return _on_each(bench, "gradients", judge, note, {"NVIDIA_TF32_OVERRIDE": "0"})


@_check("float16 with the loss scale")
def float16(bench: Bench) -> Answer:
    """A residual network learns digits; CPUs have no float16: there it is bfloat16."""
    amp = "float16" if bench.on_gpus else "bfloat16"
    epochs = 1 if bench.quick else 4
    status = bench.train("float16", "model=resnet", f"amp={amp}", f"trainer.max_epochs={epochs}")
    accuracy = status["metrics"]["val/accuracy"]
    passed = accuracy > (0.2 if bench.quick else 0.9)
    return Answer("ok" if passed else "failed", f"amp={amp}: val/accuracy {accuracy:.3f} after {epochs} epochs")


@_check("gradients over all devices")
def stores(bench: Bench) -> Answer:
    """`verify` in float32 and float64 with the store that sums on the devices."""
    if len(bench.devices) < 2:
        return Answer("not run", "it needs two devices")
    words, passed = [], True
    for store in ("nccl", "device") if bench.on_gpus else ("device",):
        report = bench.folder / f"verify-{store}.json"
        done = bench.run(
            "mxtrain",
            "verify",
            "model=lenet",
            "parallel=data",
            f"parallel.devices={as_setting(bench.devices)}",
            f"kvstore={store}",
            f"output={report}",
            environ={"NVIDIA_TF32_OVERRIDE": "0", **bench.seeing(bench.devices)},
        )
        if not report.exists():
            raise Failed(done)
        layers = json.loads(report.read_text(encoding="utf-8"))["layers"]
        worst = max(max(layer["gradient_rel"], layer["parameter_rel"]) for layer in layers)
        passed &= done.returncode == 0
        words.append(f"kvstore={store} {worst:.1e}")
    return Answer("ok" if passed else "failed", f"{', '.join(words)} (relative, of `verify`; at most 1e-06)")


@_check("batch norm's statistics")
def statistics(bench: Bench) -> Answer:
    """Checks mean and variance of a batch; cuDNN divides the variance by n - 1, MXNet's own kernels by n."""

    def judge(found: Any) -> Tuple[bool, str]:
        divisor = min(("n", "n-1"), key=found.__getitem__)
        passed = max(found["mean"], found[divisor]) <= STATISTICS_LIMIT
        return passed, f"mean {found['mean']:.1e}, variance {found[divisor]:.1e} (divided by {divisor})"

    return _on_each(bench, "statistics", judge, f" (at most {STATISTICS_LIMIT:g})")


@_check("steps that are left out")
def skipped(bench: Bench) -> Answer:
    """Checks steps with a too large loss scale; cuDNN's batch norm has moved statistics by then."""

    def judge(found: Any) -> Tuple[bool, str]:
        passed = found["skipped"] == 5 and not found["changed"]
        return passed, f"{found['skipped']} of 5, changed: {', '.join(found['changed']) or 'nothing'}"

    return _on_each(bench, "skipped", judge)


@_check("batches on their way")
def feeding(bench: Bench) -> Answer:
    """Through page-locked buffers that are used again, against copies that are waited for."""

    def judge(found: Any) -> Tuple[bool, str]:
        verdict = ("as sent" if found["same"] else "NOT as sent") + ("" if found["buffers"] else ", without buffers")
        speeds = f"{found['gb_per_s']:.1f} GB/s ({found['waiting_gb_per_s']:.1f} waited for)"
        return found["same"] and found["buffers"], f"{verdict}, {speeds}"

    return _on_each(bench, "feeding", judge)


@_check("memory in use")
def memory(bench: Bench) -> Answer:
    """Returns the memory that the progress bar would show for each GPU while a process holds 256 MB."""
    if not bench.on_gpus:
        return Answer("not run", "CPU devices have none of their own")

    def judge(found: Any) -> Tuple[bool, str]:
        shown = found["shown"]
        whose = "the process" if shown and shown[0]["is_own"] else "all processes"
        text = f"{shown[0]['used_mb']:.0f} MB of {whose}" if shown else "unknown"
        passed = bool(shown) and shown[0]["used_mb"] >= HELD_MB
        return passed, f"at {found['bus_id'] or 'no known place'}: {text}"

    return _on_each(bench, "memory", judge, f" (at least {HELD_MB})")


@_check("dropout by the seed")
def dropout(bench: Bench) -> Answer:
    """The same seed drops the same, of a layer and of an operator: what an exact resume needs."""
    found = {
        device: bench.ask("gpu_check_parts.steps", "dropout", device.kind, str(device.number))
        for device in bench.devices
    }
    wrong = [str(device) for device, one in found.items() if not (one["same"] and one["anew"])]
    return Answer("failed", f"{', '.join(wrong)}: not the same") if wrong else Answer("ok", "the same on each device")


@_check("resume to the same bits")
def resume(bench: Bench) -> Answer:
    """Stopped in the middle of an epoch and continued, against the same run in one piece; with dropout."""
    common = [
        "model=mlp",
        "model.dropout=0.2",
        "trainer.limit_train_batches=10",
        "trainer.max_epochs=2",
        "runtime.deterministic=true",
    ]
    whole = bench.train("whole", *common)
    bench.train("parts", *common, "trainer.max_steps=13", exit_code=75)
    parts = bench.train("parts", *common)
    same = whole["weights_sha256"] == parts["weights_sha256"] and whole["step"] == parts["step"] == 20
    verdict = "the same" if same else "different"
    return Answer("ok" if same else "failed", f"weights after 20 steps, stopped after 13: {verdict}")


@_check("ResNet-50, images/s")
def speed(bench: Bench) -> Answer:
    """On the first device, batches made once; beside PyTorch's where there is one."""
    model, size, batch_size, steps = SMALL if bench.quick else RESNET
    data = [
        "dataset=synthetic",
        f"dataset.shape=[3,{size},{size}]",
        f"dataset.batch_size={batch_size}",
        f"dataset.num_samples={batch_size * steps * 2}",
        f"trainer.limit_train_batches={steps}",
    ]
    common = [model, *data, "optimizer=sgd", "trainer.max_epochs=2", "trainer.limit_val_batches=1"]
    words: List[str] = []
    for dtype, amp in (("float32", "off"), ("float16", "float16" if bench.on_gpus else "bfloat16")):
        ours = bench.train(f"speed-{amp}", *common, f"amp={amp}")["samples_per_s"]
        text = f"amp={amp} {ours:.0f}"
        if bench.torch_python:
            kind = "cuda" if bench.on_gpus else "cpu"
            given = [f"{kind}:{bench.devices[0].number}" if bench.on_gpus else kind, str(size), str(batch_size)]
            overrides_of = ["gpu_check_parts.torch_resnet", *given, str(min(steps, 20)), dtype]
            theirs = bench.ask(*overrides_of, python=bench.torch_python)["samples_per_s"]
            text += f" (PyTorch {theirs:.0f}, ratio {ours / theirs:.2f})"
        words.append(text)
    return Answer("ok", f"{size} px, batch {batch_size}: {', '.join(words)}")
