"""Variables of the user's environment that slow training down are named on the terminal, with a remedy."""

from __future__ import annotations

import logging
import sys
from types import SimpleNamespace
from typing import Any, Dict

import pytest

from mxtrain.cluster.launch import job
from mxtrain.runtime import Runtime, apply
from mxtrain.runtime.apply import RuntimeReport
from mxtrain.runtime.slow_variables import SLOW_VALUES, slow_variables


@pytest.mark.parametrize(
    "threads, devices, cores, right",
    [
        ("2", 4, 2, 1),
        ("3", 1, 2, 2),
        ("2", 1, 2, None),
        ("1", 4, 2, None),
        ("5", 2, 8, 4),
        ("4", 2, 8, None),
        ("", 2, 2, None),
    ],
)
def test_more_threads_than_cores_are_named_with_the_right_number(
    threads: str, devices: int, cores: int, right: Any
) -> None:
    found = slow_variables({"OMP_NUM_THREADS": threads}, devices, cores)
    assert len(found) == (right is not None)
    if right is not None:
        assert f"OMP_NUM_THREADS={threads} " in found[0] and f"Type runtime.threads={right}, or unset it" in found[0]
        assert f"{int(threads) * devices} threads" in found[0]
        assert f" is too much for {'one CPU device' if devices == 1 else f'{devices} CPU devices'} on " in found[0]


@pytest.mark.parametrize(
    "name, value, devices, is_slow",
    [
        ("MXNET_ENGINE_TYPE", "NaiveEngine", 1, True),
        ("MXNET_ENGINE_TYPE", "ThreadedEngine", 1, False),
        ("MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN", "1", 1, True),
        ("MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN", "15", 1, False),
        ("MXNET_CPU_TEMP_COPY", "4", 2, True),
        ("MXNET_CPU_TEMP_COPY", "4", 1, False),
        ("MXNET_CPU_TEMP_COPY", "16", 2, False),
        ("MXNET_MKLDNN_ENABLED", "0", 1, True),
        ("MXNET_MKLDNN_ENABLED", "1", 1, False),
        ("OMP_WAIT_POLICY", "active", 2, True),
        ("OMP_WAIT_POLICY", "active", 1, False),
        ("DNNL_MAX_CPU_ISA", "AVX2", 1, False),
        ("DNNL_VERBOSE", "1", 1, True),
        ("MXNET_BACKWARD_DO_MIRROR", "", 1, False),
        ("MXNET_BACKWARD_DO_MIRROR", "true", 1, True),
        ("MXNET_ONEDNN_ENABLED", " 0 ", 1, True),
        ("MXNET_EXEC_BULK_EXEC_TRAIN", "False", 1, True),
        ("MXNET_EXEC_ENABLE_INPLACE", "off", 1, True),
        ("MXNET_EXEC_ENABLE_INPLACE", "1", 1, False),
        ("MXNET_PROFILER_AUTOSTART", "1", 1, True),
        ("MXNET_PROFILER_AUTOSTART", "0", 1, False),
        ("MXNET_GPU_MEM_POOL_TYPE", "Unpooled", 1, True),
        ("OMP_DYNAMIC", "1", 1, True),
        ("OMP_DYNAMIC", "true", 1, True),
        ("ONEDNN_MAX_CPU_ISA", "sse41", 1, True),
        ("ONEDNN_MAX_CPU_ISA", "avx", 1, True),
        ("MKLDNN_VERBOSE", "2", 1, True),
        ("ONEDNN_VERBOSE", "0", 1, False),
    ],
)
def test_values_of_variables_that_slow(name: str, value: str, devices: int, is_slow: bool) -> None:
    found = slow_variables({name: value}, devices, 8)
    assert len(found) == is_slow and all(f"{name}={value} " in line and f"env -u {name}" in line for line in found)


def test_every_slow_value_is_compared_in_upper_case() -> None:
    assert all(slow.pattern == slow.pattern.upper() for slow in SLOW_VALUES.values())


@pytest.mark.parametrize(
    "runtime, environ, count",
    [
        ({}, {"OMP_NUM_THREADS": "64"}, 1),
        ({"threads": 64}, {"OMP_NUM_THREADS": "64"}, 0),
        ({}, {"OMP_NUM_THREADS": "64", "MXTRAIN_RUNTIME_SET": "OMP_NUM_THREADS=64"}, 0),
        ({"env": {"OMP_NUM_THREADS": 64}}, {"OMP_NUM_THREADS": "64"}, 0),
        ({"mode": "manual"}, {"OMP_NUM_THREADS": "64"}, 1),
    ],
)
def test_settings_of_the_run_are_not_warned_of(
    runtime: Dict[str, Any], environ: Dict[str, str], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["mxtrain.runtime.apply"], "usable_cores", lambda: 2)
    assert len(apply(Runtime(**runtime), num_devices=4, environ=dict(environ)).slow) == count


def test_slow_variables_are_reported_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mxnet", sys)
    monkeypatch.setattr(job, "_warned", set())
    report = RuntimeReport((), cores=2, threads="2", amx=False, fast_bfloat16=False, slow=("it is slow",))
    description: Any = SimpleNamespace(amp=SimpleNamespace(dtype="float32"))
    with caplog.at_level(logging.INFO):
        job.report_environment(report, description)
        job.report_environment(report, description)
    assert [(r.name, r.levelname, r.message) for r in caplog.records] == [
        ("mxtrain", "WARNING", "it is slow"),
        ("mxtrain.record", "WARNING", "it is slow"),
    ]
