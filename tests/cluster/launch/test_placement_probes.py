"""Placements are measured in processes: their requests, results and ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

import pytest

from mxtrain.cluster.launch import new_process, placement_probes
from mxtrain.cluster.launch.placement_probes import Probing, keep, read_kept
from mxtrain.cluster.reported_cause import CAUSE_FILE
from mxtrain.errors import ConfigError, MxtrainError
from mxtrain.parallel.placement import Placement
from mxtrain.parallel.placement_profile import PlacementProfile
from mxtrain.terminal.progress import SILENT

WORDS = ["model=mlp", "logger=csv", "trainer.max_epochs=3"]
MEASURED = {"batch_size": 8, "steps_per_epoch": 5, "kind": "cpu", "num_gpus": 0, "step_s": 0.2, "passes_s": 0.1}
Child = Callable[[Sequence[str], Mapping[str, str]], int]


@pytest.fixture
def measure(monkeypatch: pytest.MonkeyPatch) -> Callable[..., PlacementProfile]:
    """Child process -> profile of two cores."""

    def call(
        child: Child,
        num_devices: Optional[int] = 2,
        stores: Sequence[str] = (),
        variants: Sequence[Placement] = (Placement(),),
        kind: str = "",
    ) -> PlacementProfile:
        for module in (placement_probes, new_process):
            monkeypatch.setattr(module, "run_silently", child)
        monkeypatch.setattr(placement_probes, "usable_cores", lambda: 2)
        return Probing(WORDS, [], 0.1, SILENT, kind).measure("hash", num_devices, variants, stores)

    return call


def _answer(command: Sequence[str], content: Dict[str, Any]) -> List[str]:
    """Writes the result of a request; returns its words."""
    Path(command[-1]).write_text(json.dumps(content))
    return list(json.loads(Path(command[-2]).read_text())["words"])


def _refuse(environment: Mapping[str, str], cause: str) -> int:
    Path(environment[CAUSE_FILE]).write_text(json.dumps({"cause": cause, "step": 0}))
    return 2


def test_each_placement_gets_the_threads_of_a_run(measure: Callable[..., PlacementProfile]) -> None:
    asked: List[List[str]] = []
    sizes: List[int] = []

    def child(command: Sequence[str], environment: Mapping[str, str]) -> int:
        asked.append(_answer(command, MEASURED)[len(WORDS) :])
        sizes.append(json.loads(Path(command[-2]).read_text())["num_sizes"])
        return 0

    found = measure(child)
    assert sizes == [*[7] * 4, *[0] * 4], "numbers of samples are measured on one device"
    assert [" ".join(words) for words in asked] == [
        "parallel=single amp=off runtime.threads=2",
        "parallel=single amp=off runtime.threads=1",
        "parallel=single trainer.grad_accumulation=2 amp=off runtime.threads=2",
        "parallel=single trainer.grad_accumulation=2 amp=off runtime.threads=1",
        "parallel=data parallel.replicas=2 amp=off runtime.threads=1",
        "parallel=model parallel.stages=2 amp=off runtime.threads=1",
        "parallel=pipeline parallel.stages=2 parallel.microbatches=2 amp=off runtime.threads=1",
        "parallel=pipeline parallel.stages=2 parallel.microbatches=4 amp=off runtime.threads=1",
    ]
    assert (found.batch_size, found.steps_per_epoch, found.kind, found.cores) == (8, 5, "cpu", 2)


def test_placements_that_are_refused_are_noted_but_one_device_must_train(
    measure: Callable[..., PlacementProfile],
) -> None:
    def refuses_stages(command: Sequence[str], environment: Mapping[str, str]) -> int:
        words = _answer(command, MEASURED)
        if "parallel.stages=2" not in words:
            return 0
        Path(command[-1]).unlink()
        return _refuse(environment, "it cannot be cut")

    assert [probe.refused for probe in measure(refuses_stages).probes] == [*[""] * 5, *["it cannot be cut"] * 3]
    with pytest.raises(ConfigError, match="there is no data"):
        measure(lambda command, environment: _refuse(environment, "there is no data"))


def test_a_crash_names_the_placement(measure: Callable[..., PlacementProfile]) -> None:
    with pytest.raises(MxtrainError, match="measured parallel=single amp=off ended with exit code -9: without a cause"):
        measure(lambda command, environment: -9)


@pytest.mark.parametrize("num_gpus, largest", [(0, 2), (4, 4), (16, 8)], ids=["cores", "gpus", "many"])
def test_auto_compares_the_gpus_of_a_run(measure: Callable[..., PlacementProfile], num_gpus: int, largest: int) -> None:
    """Stands for GPUs: the first process reports them."""
    kind = "gpu" if num_gpus else "cpu"

    def child(command: Sequence[str], environment: Mapping[str, str]) -> int:
        _answer(command, {**MEASURED, "kind": kind, "num_gpus": num_gpus})
        return 0

    found = measure(child, None)
    assert found.num_devices == largest
    alone = [probe for probe in found.probes if probe.placement == Placement()]
    assert [probe.threads for probe in alone] == ([2] if num_gpus else [2, 1])


def test_named_kinds_of_devices_are_measured(measure: Callable[..., PlacementProfile]) -> None:
    asked: List[List[str]] = []

    def child(command: Sequence[str], environment: Mapping[str, str]) -> int:
        asked.append(_answer(command, MEASURED))
        return 0

    measure(child, 2, kind="cpu")
    assert [next(word for word in words if "devices" in word)[-1] for words in asked] == [
        *["1"] * 4,
        "2",
        "2",
        "2",
        "2",
    ]


def test_each_precision_and_recomputation_is_measured(measure: Callable[..., PlacementProfile]) -> None:
    variants = [Placement(), Placement(precision="bfloat16", recompute="auto")]

    def child(command: Sequence[str], environment: Mapping[str, str]) -> int:
        words = _answer(command, MEASURED)
        return _refuse(environment, "no bfloat16") if "amp=bfloat16" in words else 0

    probes = measure(child, 1, (), variants).probes
    assert [probe.placement.variant for probe in probes] == [("off", "off")] * 2 + [("bfloat16", "auto")] * 2


def test_two_workers_are_trained_for_the_time_of_a_step(measure: Callable[..., PlacementProfile]) -> None:
    """The mean time of steps with 40, 80, 80 and 160 samples/s, after the first 10 steps; settings of length and
    outputs are those of the probe."""
    asked: List[Sequence[str]] = []

    def child(command: Sequence[str], environment: Mapping[str, str]) -> int:
        if "train" not in command:
            _answer(command, MEASURED)
            return 0
        asked.append(command)
        if "kvstore=horovod" in command:
            return _refuse(environment, "there is no Horovod")
        run_dir = Path(command[-1].partition("=")[2])
        run_dir.mkdir()
        rows = [
            {"split": "train", "step": 5 * number + 5, "samples_per_s": speed}
            for number, speed in enumerate((1, 2, 80, 160, 40, 80))
        ]
        (run_dir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return 75

    found = measure(child, 1, ["dist_sync", "horovod"])
    one, other = found.probes[-2:]
    assert (
        one.step_s == pytest.approx(8 * (1 / 80 + 1 / 160 + 1 / 40 + 1 / 80) / 4)
        and other.refused == "there is no Horovod"
    )
    assert found.find_exchange(one.placement) == one and found.find_exchange(other.placement) is None
    assert "kvstore=dist_sync" in asked[0] and "cluster.workers=2" in asked[0]
    assert "logger=csv" not in asked[0] and "trainer.max_epochs=3" not in asked[0]


def test_kept_measurements_belong_to_a_configuration_and_a_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    profile = PlacementProfile("hash", WORDS, 8, 5, "cpu", 2, 1e9, "a processor", [])
    keep(profile, 2, ["off"])
    assert read_kept("hash", 2, ["off"]) == profile
    assert read_kept("other", 2, ["off"]) is read_kept("hash", 4, ["off"]) is read_kept("hash", 2, ["bfloat16"]) is None
    monkeypatch.setattr(placement_probes, "processor_name", lambda: "another processor")
    assert read_kept("hash", 2, ["off"]) is None
