"""The memory in use on GPUs, through a stand-in for nvidia-ml-py: the same functions, as NVML's reference has them."""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Callable, Dict, List, Tuple

import pytest
from logger.conftest import FakeRun
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from mxtrain.callback.protocol import GpuMemory, Progress
from mxtrain.callback.status import StatusFile
from mxtrain.cli.dispatch import run
from mxtrain.logger.progress import RunProgress
from mxtrain.parallel.layout import Layout
from mxtrain.runtime import gpu_memory
from mxtrain.runtime.gpu_memory import INTERVAL_S, GpuMemoryMeter

OTHER = 1


class StandIn(ModuleType):
    """Two GPUs; `processes` by index: (pid, bytes or None)."""

    class NVMLError(Exception):
        pass

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.processes: Dict[int, List[Tuple[int, object]]] = {0: [], 1: []}
        self.used = {0: 5_000_000_000, 1: 7_000_000_000}
        self.names = ["slow", "fast"]
        self.asked: List[str] = []
        self.fails = self.knows_no_processes = False

    def nvmlInit(self) -> None:
        if self.fails:
            raise self.NVMLError("Driver Not Loaded")

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return ("GPU-aa1", "GPU-bb2")[handle]

    def nvmlDeviceGetName(self, handle: int) -> str:
        return self.names[handle]

    def nvmlDeviceGetHandleByPciBusId(self, bus_id: str) -> int:
        self.asked.append(bus_id)
        return {"0000:01:00.0": 0, "0000:02:00.0": 1}[bus_id]

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> List[SimpleNamespace]:
        if self.fails or self.knows_no_processes:
            raise self.NVMLError("GPU is lost" if self.fails else "Function Not Found")
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in self.processes[handle]]

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:
        if self.fails:
            raise self.NVMLError("GPU is lost")
        self.asked.append("memory")
        return SimpleNamespace(used=self.used[handle], total=8_000_000_000)


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    found = StandIn()
    monkeypatch.setitem(sys.modules, "pynvml", found)
    return found


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Moves the time on by some seconds."""
    now = [100.0]
    monkeypatch.setattr(gpu_memory, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def advance(seconds: float) -> None:
        now[0] += seconds

    return advance


BY_BUS = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def test_memory_in_use_and_its_peak(nvml: StandIn, clock: Callable[[float], None]) -> None:
    nvml.processes[0] = [(OTHER, 4_000_000_000), (os.getpid(), 900_000_000)]
    meter = GpuMemoryMeter([0], BY_BUS)
    assert meter.read() == [GpuMemory("gpu:0", 900.0, 900.0, True)]
    nvml.processes[0] = [(os.getpid(), 300_000_000)]
    clock(INTERVAL_S)
    assert meter.read() == [GpuMemory("gpu:0", 300.0, 900.0, True)]


@pytest.mark.parametrize("processes", [[], [(OTHER, 1_000_000)], [(os.getpid(), None)]])
def test_memory_of_the_device_is_shown_for_unknown_processes(nvml: StandIn, processes: list) -> None:
    nvml.processes[1] = processes
    assert GpuMemoryMeter([1], BY_BUS).read() == [GpuMemory("gpu:1", 7000.0, 7000.0, False)]


def test_a_driver_that_lists_no_processes_still_knows_the_device(nvml: StandIn) -> None:
    nvml.knows_no_processes = True
    assert GpuMemoryMeter([0], BY_BUS).read() == [GpuMemory("gpu:0", 5000.0, 5000.0, False)]


def test_the_driver_is_not_asked_for_every_step(nvml: StandIn, clock: Callable[[float], None]) -> None:
    meter = GpuMemoryMeter([0], BY_BUS)
    found = meter.read()
    for _ in range(100):
        clock(INTERVAL_S / 101)
        assert meter.read() == found
    assert nvml.asked == ["memory"]
    nvml.used[0] = 6_000_000_000
    clock(INTERVAL_S / 50)
    assert meter.read() == [GpuMemory("gpu:0", 6000.0, 6000.0, False)]


@pytest.mark.parametrize(
    "environ, names, ordinals, used",
    [
        (BY_BUS, "slow fast", [0, 1], [5000, 7000]),
        ({**BY_BUS, "CUDA_VISIBLE_DEVICES": "1,0"}, "slow fast", [0], [7000]),
        ({"CUDA_VISIBLE_DEVICES": "1"}, "fast fast", [0], [7000]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-bb, GPU-aa1"}, "slow fast", [0, 1], [7000, 5000]),
        # CUDA begins with the fastest, and which that is only CUDA knows; or it sees no such GPU.
        ({}, "slow fast", [0], []),
        ({"CUDA_VISIBLE_DEVICES": "1"}, "slow fast", [0], []),
        ({"CUDA_VISIBLE_DEVICES": "1"}, "fast fast", [1], []),
        ({"CUDA_VISIBLE_DEVICES": ""}, "fast fast", [0], []),
        ({"CUDA_VISIBLE_DEVICES": "2"}, "fast fast", [0], []),
        ({"CUDA_VISIBLE_DEVICES": "GPU-"}, "fast fast", [0], []),
        ({"CUDA_VISIBLE_DEVICES": "MIG-cc"}, "fast fast", [0], []),
    ],
)
def test_devices_are_numbered_by_the_environment_if_cuda_does_not_answer(
    nvml: StandIn, caplog: pytest.LogCaptureFixture, environ: dict, names: str, ordinals: list, used: list
) -> None:
    caplog.set_level("INFO")
    nvml.names = names.split()
    assert [one.used_mb for one in GpuMemoryMeter(ordinals, environ).read()] == used
    assert ("CUDA_DEVICE_ORDER=PCI_BUS_ID" in caplog.text) == (not used)


def test_devices_are_matched_by_bus_id(nvml: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_memory, "bus_id_of", {0: "0000:02:00.0", 1: "0000:01:00.0"}.get)
    assert [one.used_mb for one in GpuMemoryMeter([0, 1], {"CUDA_VISIBLE_DEVICES": "0,1"}).read()] == [7000.0, 5000.0]


def test_loaded_cuda_is_asked_for_the_bus_id(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpu_memory.bus_id_of(0) is None  # this MXNet is a build for CPUs

    def ask(text: ctypes.Array, length: int, ordinal: int) -> int:
        assert length == len(text) > len("0000:01:00.0")
        text.value = b"0000:01:00.%d" % ordinal
        return 0 if ordinal < 2 else 101  # cudaErrorInvalidDevice

    def load(name: str, mode: int) -> SimpleNamespace:
        if name != "libcudart.so.10.2":
            raise OSError(name)
        assert mode & os.RTLD_NOLOAD  # nothing is brought in for this
        return SimpleNamespace(cudaDeviceGetPCIBusId=ask)

    monkeypatch.setattr(gpu_memory.ctypes, "CDLL", load)
    assert [gpu_memory.bus_id_of(ordinal) for ordinal in (0, 1, 2)] == ["0000:01:00.0", "0000:01:00.1", None]


def test_a_driver_that_fails_costs_the_display_alone(nvml: StandIn, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    meter = GpuMemoryMeter([0], BY_BUS)
    nvml.fails = True
    assert meter.read() == meter.read() == [] and GpuMemoryMeter([0], BY_BUS).read() == []
    assert [record.getMessage() for record in caplog.records] == [
        "The memory in use on GPUs is not shown: NVMLError: GPU is lost",
        "The memory in use on GPUs is not shown: NVMLError: Driver Not Loaded",
    ]


def test_nvml_is_not_loaded_without_gpus_and_reported_if_missing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setitem(sys.modules, "pynvml", None)  # importing it raises ImportError
    assert GpuMemoryMeter([]).read() == [] and not caplog.records
    assert GpuMemoryMeter([0]).read() == []
    assert "pip install nvidia-ml-py" in caplog.text


def test_bar_lines_and_status_show_gpu_memory(tmp_path: Path) -> None:
    memory = (GpuMemory("gpu:0", 1234.4, 2345.6, True), GpuMemory("gpu:1", 3456.7, 4567.8, False))
    progress = Progress(3, 0, 10, memory)
    rows = [{"step": 3, "epoch": 1, "split": "train", "loss": 1.0, "lr": 0.1, "samples_per_s": 10.0}]
    shown = RunProgress(FakeRun(tmp_path).info())
    shown.update_train(rows, progress)
    assert "gpu_memory_mb=3457 peak=4568" in shown.plain_line("train")
    assert "GPU GB 3.5 (peak 4.6)" in shown._values_line(200).plain
    status = StatusFile(tmp_path)
    status.on_steps(rows, progress)
    assert json.loads((tmp_path / "status.json").read_text())["gpu_memory"] == [
        {"device": "gpu:0", "used_mb": 1234, "peak_mb": 2346, "of": "process"},
        {"device": "gpu:1", "used_mb": 3457, "peak_mb": 4568, "of": "device"},
    ]


@pytest.mark.slow
def test_run_records_gpu_memory(tmp_path: Path, nvml: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run whose CPU is taken for a GPU writes status.json and curves of TensorBoard."""
    monkeypatch.setattr(Layout, "gpus", property(lambda layout: [1]))
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    given = ["dataset=synthetic", "trainer.max_epochs=1", "checkpoint=off", f"hydra.run.dir={tmp_path / 'run'}"]
    assert run([*given, "trainer.limit_train_batches=4", "trainer.test=false"]) == 0
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert status["gpu_memory"] == [{"device": "gpu:1", "used_mb": 7000, "peak_mb": 7000, "of": "device"}]
    scalars = EventAccumulator(str(tmp_path / "run")).Reload()
    assert [point.value for point in scalars.Scalars("perf/gpu1_memory_mb")][-1] == 7000.0
    assert "perf/gpu1_memory_peak_mb" in scalars.Tags()["scalars"]
