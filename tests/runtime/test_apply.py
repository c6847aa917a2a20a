from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pydantic
import pytest

from mxtrain.runtime import Runtime, apply
from mxtrain.runtime.amx import cpu_flags, has_amx

CONF = Path(__file__).parents[2] / "conf" / "runtime"
CORES = len(os.sched_getaffinity(0))
ISA = "DNNL_MAX_CPU_ISA"


def _python(code: str, **environ: str) -> str:
    """Returns the output of `code` in a fresh interpreter that has not imported MXNet."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "MXNET_", "DNNL_"))}
    clean.pop("MXTRAIN_RUNTIME_SET", None)
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, env={**clean, **environ}, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture(autouse=True)
def mxnet_is_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests of the same process import MXNet; what `apply` decides then has a test of its own."""
    monkeypatch.delitem(sys.modules, "mxnet", raising=False)


@pytest.mark.parametrize(
    "wrong",
    [{"threads": 0}, {"threads": "2"}, {"amx": "yes"}, {"mode": "fast"}, {"env": {"lower": "1"}}, {"treads": 2}],
)
def test_wrong_descriptions_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(pydantic.ValidationError):
        Runtime(**wrong)


def test_one_device_takes_all_usable_cores() -> None:
    environ: dict[str, str] = {}
    report = apply(Runtime(), environ=environ)
    assert environ["OMP_NUM_THREADS"] == str(report.cores) == report.threads
    assert "MXNET_CPU_TEMP_COPY" not in environ
    assert environ["OMP_WAIT_POLICY"] == "passive"


def test_devices_share_the_cores_and_get_work_spaces() -> None:
    environ: dict[str, str] = {}
    apply(Runtime(), num_devices=CORES, environ=environ)
    assert environ["OMP_NUM_THREADS"] == "1"
    assert CORES == 1 or environ["MXNET_CPU_TEMP_COPY"] == "64"


def test_more_devices_than_cores_still_get_a_thread_each() -> None:
    environ: dict[str, str] = {}
    apply(Runtime(), num_devices=10 * CORES, environ=environ)
    assert environ["OMP_NUM_THREADS"] == "1"


def test_manual_mode_sets_only_given_variables() -> None:
    environ: dict[str, str] = {}
    apply(Runtime(mode="manual"), num_devices=4, bfloat16=True, environ=environ)
    assert environ == {"MXTRAIN_OPERATORS": "off", "MXTRAIN_RUNTIME_SET": "MXTRAIN_OPERATORS=off"}
    environ = {}
    apply(Runtime(mode="manual", operators=True), environ=environ)
    assert environ == {}
    apply(Runtime(mode="manual", operators=True, threads=3, bulk_size=0, env={"DNNL_VERBOSE": 1}), environ=environ)
    assert {name: environ[name] for name in environ if name != "MXTRAIN_RUNTIME_SET"} == {
        "OMP_NUM_THREADS": "3",
        "MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN": "0",
        "DNNL_VERBOSE": "1",
    }


def test_the_users_environment_is_kept_and_reported() -> None:
    environ = {"OMP_NUM_THREADS": "7"}
    report = apply(Runtime(), environ=environ)
    assert environ["OMP_NUM_THREADS"] == "7" == report.threads
    assert [item.source for item in report.settings[:2]] == ["user", "set"]
    assert "yours, kept" in report.lines()[0] and str(CORES) in report.lines()[0]


def test_configuration_replaces_environment_variables() -> None:
    environ = {"OMP_NUM_THREADS": "7", "DNNL_VERBOSE": "0", "MXNET_CPU_TEMP_COPY": "9"}
    report = apply(Runtime(threads=1, cpu_temp_copy=9, env={"DNNL_VERBOSE": 1}), environ=environ)
    assert (environ["OMP_NUM_THREADS"], environ["DNNL_VERBOSE"]) == ("1", "1")
    assert report.lines()[0] == "OMP_NUM_THREADS=1: given in the configuration, instead of the environment's 7"
    assert any(line.startswith("MXNET_CPU_TEMP_COPY=9 (yours, kept)") for line in report.lines())


def test_more_threads_than_cores_are_remarked_on() -> None:
    (line, *_) = apply(Runtime(threads=CORES + 1), environ={}).lines()
    assert f"more than there are cores ({CORES})" in line
    assert "more than" not in apply(Runtime(threads=CORES), environ={}).lines()[0]
    assert "more than" in apply(Runtime(threads=CORES), num_devices=2, environ={}).lines()[0]


def test_a_child_process_does_not_take_its_parents_settings_for_the_users() -> None:
    environ: dict[str, str] = {}
    apply(Runtime(threads=3, cpu_temp_copy=9), environ=environ)
    report = apply(Runtime(threads=5), environ=environ)
    assert environ["OMP_NUM_THREADS"] == "5" and report.settings[0].source == "set"
    assert "MXNET_CPU_TEMP_COPY" not in environ


def test_applying_twice_is_the_same_as_once() -> None:
    environ: dict[str, str] = {}
    first = apply(Runtime(), num_devices=2, environ=environ)
    before = dict(environ)
    assert apply(Runtime(), num_devices=2, environ=environ) == first
    assert environ == before


def test_settings_after_the_import_of_mxnet_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mxnet", sys)
    environ: dict[str, str] = {}
    report = apply(Runtime(threads=3), environ=environ)
    assert environ == {} and report.settings[0].source == "too late"
    assert "too late: MXNet was imported before" in report.lines()[0]


def test_settings_before_the_import_take_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    environ: dict[str, str] = {}
    apply(Runtime(threads=3), environ=environ)
    monkeypatch.setitem(sys.modules, "mxnet", sys)
    assert apply(Runtime(threads=3), environ=environ).settings[0].source == "set"


def test_amx_is_for_bfloat16_only() -> None:
    environ: dict[str, str] = {}
    assert apply(Runtime(), environ=environ).amx is False and ISA not in environ
    assert apply(Runtime(amx=False), bfloat16=True, environ=environ).amx is False and ISA not in environ
    report = apply(Runtime(), bfloat16=True, environ=environ)
    assert report.amx == has_amx(cpu_flags()) == (environ.get(ISA) == "AVX512_CORE_AMX")


def test_a_chosen_instruction_set_stays() -> None:
    environ = {ISA: "AVX2"}
    report = apply(Runtime(amx=True), bfloat16=True, environ=environ)
    assert report.amx is False and report.fast_bfloat16 is False
    assert environ[ISA] == "AVX2"


@pytest.mark.parametrize("fast", [True, False])
def test_remark_on_bfloat16_without_amx_depends_on_avx512(monkeypatch: pytest.MonkeyPatch, fast: bool) -> None:
    module = sys.modules[apply.__module__]  # its package has a function of that name
    monkeypatch.setattr(module, "has_amx", lambda flags: False)
    monkeypatch.setattr(module, "has_fast_bfloat16", lambda: fast)
    report = apply(Runtime(), bfloat16=True, environ={})
    assert report.fast_bfloat16 is fast
    assert any("no faster than float32" in line for line in report.lines()) is not fast


@pytest.mark.slow
def test_mxnet_really_gets_the_threads() -> None:
    """MXNet's own OpenMP pool has as many threads as were asked for, which is not its default."""
    code = (
        "from mxtrain.runtime import Runtime, apply; apply(Runtime(threads=3))\n"
        "import ctypes, mxtrain.engine.backend\n"
        "print(ctypes.CDLL('libgomp.so.1').omp_get_max_threads())"
    )
    assert _python(code) == "3"


def test_verify_forbids_tf32_and_a_given_value_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    from mxtrain.amp.spec import FULL
    from mxtrain.composing.environment import set_environment
    from mxtrain.parallel.spec import Single

    for name in ("NVIDIA_TF32_OVERRIDE", "MXTRAIN_RUNTIME_SET", "OMP_WAIT_POLICY"):
        monkeypatch.setenv(name, "")  # so that the end of the test restores it
    found = {}
    for given in ("auto", True, False):
        for exact in (False, True):
            monkeypatch.delenv("NVIDIA_TF32_OVERRIDE", raising=False)
            monkeypatch.delenv("MXTRAIN_RUNTIME_SET", raising=False)
            description = SimpleNamespace(
                runtime=Runtime(tf32=given), parallel=Single(), amp=FULL, trainer=SimpleNamespace(profile=False)
            )
            set_environment(description, exact)
            found[given, exact] = os.environ.get("NVIDIA_TF32_OVERRIDE")
    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE", raising=False)
    assert found == {
        ("auto", False): None,
        ("auto", True): "0",
        (True, False): None,
        (True, True): None,
        (False, False): "0",
        (False, True): "0",
    }


def test_deterministic_kernels() -> None:
    environ: dict[str, str] = {}
    apply(Runtime(deterministic=True), environ=environ)
    assert environ["MXNET_ENFORCE_DETERMINISM"] == "1" and environ["MXNET_CUDNN_AUTOTUNE_DEFAULT"] == "0"
    assert "NVIDIA_TF32_OVERRIDE" not in environ
