"""Messages about GPUs that no published MXNet supports, from a stand-in for nvidia-smi."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mxtrain.errors import ConfigError
from mxtrain.parallel import spec as strategies
from mxtrain.parallel.spec import Single
from mxtrain.runtime import probe
from mxtrain.runtime.gpus import PUBLISHED, find_gpus
from mxtrain.workflows import doctor as diagnosis

HOPPER, AMPERE = "NVIDIA H100 80GB HBM3, 9.0", "NVIDIA A100-SXM4-40GB, 8.0"


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Puts a driver with these GPUs on PATH."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def install(*gpus: str) -> None:
        rows = [f"{index}, {gpu.split(', ')[1]}, {gpu.split(', ')[0]}" for index, gpu in enumerate(gpus)]
        program = tmp_path / f"driver-{len(list(tmp_path.iterdir()))}" / "nvidia-smi"
        program.parent.mkdir()
        program.write_text("#!/bin/sh\n" + "".join(f"echo '{row}'\n" for row in rows))
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")

    return install


def test_the_driver_is_asked_and_hidden_gpus_do_not_count(driver, monkeypatch: pytest.MonkeyPatch) -> None:
    driver(AMPERE, HOPPER)
    assert [(gpu.name, gpu.capability) for gpu in find_gpus()] == [
        ("NVIDIA A100-SXM4-40GB", (8, 0)),
        ("NVIDIA H100 80GB HBM3", (9, 0)),
    ]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert [gpu.index for gpu in find_gpus()] == [1]
    monkeypatch.setenv("PATH", "/nowhere")
    assert find_gpus() == []


def test_parallel_refuses_hopper_with_reason_and_remedy(driver) -> None:
    driver(HOPPER)
    with pytest.raises(
        ConfigError, match=r"gpu:1: GPU 0 \(NVIDIA H100.*9\.0\).*up to 8\.6 and no PTX.*parallel.devices=cpu:1"
    ):
        Single(devices="gpu:1").resolve_devices()
    driver(AMPERE)  # MXNet's CPU build sees none: another reason
    with pytest.raises(ConfigError, match="MXNet sees no GPU here"):
        Single(devices="gpu:1").resolve_devices()


@pytest.mark.parametrize("devices", ["gpu:1", "auto"])
def test_published_build_is_refused_for_unsupported_gpus(driver, monkeypatch, devices: str) -> None:
    from mxtrain.engine.backend import mx

    driver(HOPPER, AMPERE)
    monkeypatch.setattr(mx.context, "num_gpus", lambda: 2)
    monkeypatch.setattr(strategies, "is_published_build", lambda: True)
    with pytest.raises(ConfigError, match="CUDA_VISIBLE_DEVICES=1"):
        Single(devices=devices).resolve_devices()
    monkeypatch.setattr(strategies, "is_published_build", lambda: False)  # one's own, for that architecture
    assert str(Single(devices=devices).resolve_devices()[0][0]) == "gpu(0)"


def test_doctor_reports_unsupported_gpus(driver) -> None:
    driver(HOPPER)
    finding = diagnosis.judge_gpus(0)
    assert finding.state == "missing" and "9.0" in finding.value and "1.9.1+sm90" in finding.remedy
    assert "container 24.05 or 24.06" in finding.remedy
    driver("NVIDIA L4, 8.9")
    assert diagnosis.judge_gpus(1) == diagnosis.Finding("GPUs", "ok", "1 (NVIDIA L4); each multiplied")


def test_doctor_computes_on_each_gpu_instead_of_counting(driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """CPU devices stand in for GPUs; the third is one that MXNet has no machine code for."""
    from mxtrain.engine.backend import mx, nd

    tried = []

    def device(index: int):
        tried.append(index)
        if index == 2:
            raise mx.MXNetError("Traceback\nno kernel image is available for execution on the device")
        return mx.cpu(index)

    monkeypatch.setattr(mx.context, "num_gpus", lambda: 4)
    monkeypatch.setattr(mx, "gpu", device)
    monkeypatch.setenv("PATH", "/nowhere")
    found = probe.gpus()
    assert sorted(set(tried)) == [0, 1, 2, 3]
    assert found == {"gpus": 4, "gpu_failures": {"2": "no kernel image is available for execution on the device"}}
    finding = diagnosis.judge_gpus(4, found["gpu_failures"])
    assert finding.state == "missing" and "1 of 4 can't multiply: gpu(2): no kernel image" in finding.value
    monkeypatch.setattr(nd, "dot", lambda a, b: a + b)
    assert probe.gpus()["gpu_failures"]["0"] == "it gave 128 where 512 is right"


def test_published_wheels_are_recognized() -> None:
    assert all(PUBLISHED.fullmatch(f"mxnet-cu{cuda} 1.9.1") for cuda in (102, 110, 112, 117))
    assert not any(map(PUBLISHED.fullmatch, ["mxnet 1.9.1", "mxnet-cu121 1.9.1", "mxnet-cu117 1.9.1+sm90"]))
