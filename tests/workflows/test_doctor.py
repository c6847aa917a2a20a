from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Callable, Sequence

import pytest

from mxtrain.archive.provenance import package_version
from mxtrain.cli.doctor import run
from mxtrain.engine.backend import mx
from mxtrain.runtime import probe
from mxtrain.runtime.given_mxnet import NvidiaContainer
from mxtrain.runtime.probing import ProbeResult, run_probe
from mxtrain.workflows import doctor as diagnosis
from mxtrain.workflows.doctor import (
    DoctorResult,
    judge_container,
    judge_mxnet,
    judge_mxnet_packages,
    judge_numpy,
    remedy_for,
)


@pytest.mark.slow
def test_this_machine_can_train(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    by_name = {finding["what"]: finding for finding in report["findings"]}
    assert report["usable"] is True
    assert by_name["MXNet"]["value"].startswith("1.9.1")
    assert by_name["distributed stores"]["state"] == "ok"
    assert by_name["computing"]["state"] == "ok"
    assert {finding["state"] for finding in report["findings"]} <= {"ok", "missing"}
    assert by_name["GluonCV"]["value"] == package_version("gluoncv")  # what meta.json says
    assert not any("mxtrain[" in finding["remedy"] for finding in report["findings"])  # it is not published


@pytest.mark.slow
def test_a_broken_mxnet_is_a_problem_with_a_remedy(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    (tmp_path / "mxnet.py").write_text("raise OSError('libgomp.so.1: cannot open shared object file')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    assert run([]) == 1
    printed = capsys.readouterr().out
    assert "problem  MXNet" in printed and "apt install libgomp1" in printed
    assert "Training cannot work here" in printed


@pytest.mark.parametrize(
    "words, said",
    [
        (("--jsn",), "doctor takes no '--jsn'. Did you mean '--json'? It takes --json and --timeout SECONDS."),
        (("x",), "doctor takes no 'x'. It takes --json and --timeout SECONDS."),
        (("--timeout", "soon"), "doctor: argument --timeout: invalid float value: 'soon'. It takes --json and"),
    ],
)
def test_a_wrong_option_is_exit_2(refused: Callable[..., str], words: Sequence[str], said: str) -> None:
    assert refused("doctor", *words).startswith(f"error: {said}")


@pytest.mark.parametrize(
    "code, cause, stage",
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", "SIGILL", "compute"),
        ("raise SystemExit(3)", "exit code 3", "compute"),
        pytest.param("import time; time.sleep(60)", "did not answer within 2 s", "compute", marks=pytest.mark.slow),
    ],
    ids=["illegal instruction", "exit", "hang"],
)
def test_a_probe_that_ends_badly_is_described(code: str, cause: str, stage: str) -> None:
    found = f'{{"mxnet": "1.9.1"}}\\n{{"trying": "{stage}"}}\\n{{"incompl'
    script = f"import sys; print('{{\"mxnet\": 1}}'); open(sys.argv[1], 'w').write('{found}')\n{code}"
    result = run_probe(2.0, (sys.executable, "-c", script))
    assert cause in result.cause and stage in result.cause
    assert result.found == {"mxnet": "1.9.1"} and result.stage == stage


def test_processor_without_bfloat16_is_reported_and_other_checks_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object, **_kwargs: object) -> None:
        raise mx.MXNetError("could not create a primitive descriptor iterator")

    with monkeypatch.context() as without:
        without.setattr(mx.nd, "FullyConnected", refuse)
        found = probe.bfloat16()
    assert found == {"bfloat16": False, "bfloat16_error": "could not create a primitive descriptor iterator"}
    monkeypatch.setattr(diagnosis, "cpu_flags", lambda: frozenset({"avx2"}))
    finding = diagnosis.judge_bfloat16(ProbeResult(found, "", ""))
    assert finding.state == "missing" and "no AVX-512" in finding.value and "primitive" not in finding.value


def test_a_probe_that_cannot_start_is_described() -> None:
    assert "no/such/python" in run_probe(2.0, ("/no/such/python",)).cause


@pytest.mark.parametrize("version, state", [("1.23.5", "ok"), ("1.26.4", "ok"), ("2.0.1", "problem"), ("", "problem")])
def test_numpy(version: str, state: str) -> None:
    finding = judge_numpy(version)
    assert finding.state == state
    assert ("numpy==1.23.5" in finding.remedy) == (version != "1.23.5")


@pytest.mark.parametrize("minor, state", [(8, "problem"), (9, "ok"), (11, "ok"), (12, "problem")])
def test_pythons(minor: int, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, minor, 7, "final", 0))
    python = diagnosis.judge_machine()[0]
    assert python.state == state and ("MXTRAIN_PYTHON" in python.remedy) == (state == "problem")


def test_space_on_disks(tmp_path: Path) -> None:
    assert diagnosis.judge_space("disk", tmp_path, 1e-9, "more").state == "ok"
    full, missing = (diagnosis.judge_space("disk", place, 1e9, "more") for place in (tmp_path, tmp_path / "none"))
    assert (full.state, full.remedy) == (missing.state, missing.remedy) == ("missing", "more")
    assert full.value.endswith(" GiB free") and "none" in missing.value


def test_packages() -> None:
    bare, used = (diagnosis.judge_package("pytest", "pytest", "install it", use) for use in ("", "tests"))
    assert used.value == f"{bare.value}; tests" and bare.value == pytest.__version__
    absent = diagnosis.judge_package("x", "mxtrain-no-such-package", "install it")
    assert (absent.state, absent.value, absent.remedy) == ("missing", "not installed", "install it")


def test_two_mxnets_at_once_are_a_problem() -> None:
    finding = judge_mxnet_packages(["mxnet 1.9.1", "mxnet-cu117 1.9.1"])
    assert finding.state == "problem"
    assert "pip uninstall -y mxnet mxnet-cu117" in finding.remedy
    assert judge_mxnet_packages(["mxnet 1.9.1"]).state == "ok"
    assert judge_mxnet_packages([]).state == "missing"
    built = judge_mxnet_packages([], "/opt/mxnet/python/mxnet/__init__.py")
    assert (built.state, built.remedy) == ("ok", "") and "comes from /opt/mxnet/python/mxnet" in built.value


@pytest.mark.parametrize(
    "version, state",
    [("1.9.1", "ok"), ("1.9.1+sm90", "ok"), ("1.9.0", "missing"), ("1.9.10", "missing"), ("2.0.0", "missing")],
)
def test_versions_of_mxnet(version: str, state: str) -> None:
    finding = judge_mxnet(version, "/x/mxnet/__init__.py")
    assert finding.state == state and finding.value.startswith(f"{version} (/x/mxnet/__init__.py)")
    assert ("tested with 1.9.1 only" in finding.value) == (state == "missing")


def test_nvidia_container_keeps_its_mxnet() -> None:
    known, other = NvidiaContainer("24.05"), NvidiaContainer("22.05")
    good = judge_container(known, {"CUDA": True})
    assert good.state == "ok" and "6.0 to 9.0, with NCCL and Horovod, by its release notes" in good.value
    assert judge_container(known, {}) == good  # MXNet's own line says that it cannot be imported
    assert "9.0" not in judge_container(other, {"CUDA": True}).value
    replaced = judge_container(known, {"CUDA": False})
    assert replaced.state == "missing" and "replaced by one for CPUs" in replaced.value
    assert "Dockerfile.ngc" in replaced.remedy


def test_report_of_nvidia_container(monkeypatch: pytest.MonkeyPatch) -> None:
    """The findings of a probe on an H100 in the container, as far as they differ from a wheel for CPUs."""
    found = {
        "mxnet": "1.9.1",
        "path": "/opt/mxnet/python/mxnet/__init__.py",
        "features": {"CUDA": True, "CUDNN": True, "NCCL": True, "MKLDNN": True, "DIST_KVSTORE": True},
        "libraries": {"cuda": "12.4", "cudnn": "9.1.0", "nccl": "2.21.5"},
        "s3": False,
        "gradient": 1.0,
        "gpus": 1,
        "gpu_failures": {},
        "horovod": "0.28.1",
        "horovod_with": "MPI, NCCL",
    }
    monkeypatch.setenv("NVIDIA_MXNET_VERSION", "24.05")
    monkeypatch.setattr(diagnosis, "run_probe", lambda timeout: ProbeResult(found))
    monkeypatch.setattr(diagnosis, "mxnet_packages", lambda: [])
    report: DoctorResult = diagnosis.doctor()
    by_name = {finding.what: finding for finding in report.findings}
    assert report.usable and by_name["container"].state == "ok"
    assert by_name["MXNet package"].value == "none: MXNet comes from /opt/mxnet/python/mxnet, and needs none"
    assert by_name["CUDA"].value == "built in, 12.4 is loaded"
    assert by_name["cuDNN"].value == "built in, 9.1.0 is loaded"
    assert by_name["NCCL"].value == "built in, 2.21.5 is loaded"
    assert by_name["oneDNN"].value == "built in"
    assert by_name["s3:// in MXNet"].value == "not in this build" and by_name["s3:// in MXNet"].state == "missing"
    assert by_name["Horovod"].value == "0.28.1, MPI, NCCL: summed with itself"
    monkeypatch.setattr(diagnosis, "run_probe", lambda timeout: ProbeResult({**found, "s3": True, "gpus": 0}))
    by_name = {finding.what: finding for finding in diagnosis.doctor().findings}
    assert by_name["s3:// in MXNet"].state == "ok"
    assert by_name["CUDA"].value == "built in, 12.4 is loaded, but no GPU found"


@pytest.mark.parametrize(
    "cause, remedy",
    [
        ("AttributeError: module 'numpy' has no attribute 'PZERO'", "numpy==1.23.5"),
        ("OSError: libcudnn.so.8: cannot open shared object file", "MXTRAIN_MXNET=cpu"),
        ("OSError: libcuda.so.1: cannot open shared object file", "no NVIDIA driver"),
        ("ImportError: libGL.so.1: cannot open shared object file", "headless"),
        ("ModuleNotFoundError: No module named 'mxnet'", "scripts/train"),
        ("the process was ended by SIGILL while trying: mxnet", "DNNL_MAX_CPU_ISA"),
        ("something new", "scripts/train"),
    ],
)
def test_causes_have_remedies(cause: str, remedy: str) -> None:
    assert remedy in remedy_for(cause)
