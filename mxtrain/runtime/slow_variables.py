"""Environment variables of the user that slow training down, with the remedy."""

from __future__ import annotations

import re
from typing import Dict, List, Mapping, NamedTuple


class SlowValue(NamedTuple):
    """Values of a variable that slow training down.

    Attributes:
        pattern: regular expression that matches these values, in upper case.
        effect: what they do, as the end of a sentence.
        devices: smallest number of CPU devices of this host for which this holds.
    """

    pattern: str
    effect: str
    devices: int = 1


_NO = "0|FALSE|OFF"
SLOW_VALUES: Dict[str, SlowValue] = {
    "MXNET_ENGINE_TYPE": SlowValue("NAIVEENGINE", "MXNet then finishes each operator before it begins the next one"),
    "MXNET_MKLDNN_ENABLED": SlowValue(_NO, "MXNet then computes without oneDNN, which is several times as slow"),
    "MXNET_ONEDNN_ENABLED": SlowValue(_NO, "MXNet then computes without oneDNN, which is several times as slow"),
    "MXNET_EXEC_BULK_EXEC_TRAIN": SlowValue(_NO, "MXNet then schedules every operator by itself"),
    "MXNET_EXEC_BULK_EXEC_MAX_NODE_TRAIN": SlowValue("0|1", "MXNet then schedules every operator by itself"),
    "MXNET_EXEC_ENABLE_INPLACE": SlowValue(_NO, "MXNet then allocates memory for every result"),
    "MXNET_BACKWARD_DO_MIRROR": SlowValue("1|TRUE|ON", "MXNet then computes activations twice, to save memory"),
    "MXNET_PROFILER_AUTOSTART": SlowValue("1", "MXNet then measures every operator"),
    "MXNET_CPU_TEMP_COPY": SlowValue("[1-4]", "CPU devices then wait for each other's work spaces", devices=2),
    "MXNET_GPU_MEM_POOL_TYPE": SlowValue("UNPOOLED", "MXNet then allocates memory from the driver for every array"),
    "OMP_WAIT_POLICY": SlowValue("ACTIVE", "threads that wait then keep the cores from other devices", devices=2),
    "OMP_DYNAMIC": SlowValue("1|TRUE", "OpenMP then takes fewer threads than there are cores"),
    **dict.fromkeys(
        ("MKLDNN_VERBOSE", "DNNL_VERBOSE", "ONEDNN_VERBOSE"), SlowValue("[12]", "oneDNN then prints every operator")
    ),
    **dict.fromkeys(
        ("DNNL_MAX_CPU_ISA", "ONEDNN_MAX_CPU_ISA"), SlowValue("SSE41|AVX", "oneDNN then uses old instructions only")
    ),
}
"""Variable of MXNet, OpenMP or oneDNN -> slow values."""
THREADS = "OMP_NUM_THREADS"


def slow_variables(users: Mapping[str, str], num_devices: int, cores: int) -> List[str]:
    """Returns a sentence for each variable that slows training down.

    Args:
        users: variables that the user has set in the environment.
        num_devices: number of CPU devices that share the cores.
        cores: number of usable cores.
    """
    found = []
    # More threads than cores wait for each other at every barrier of OpenMP.
    right = max(1, cores // num_devices)
    threads = users.get(THREADS, "")
    if threads.isdecimal() and int(threads) > right:
        devices = f"{num_devices} CPU devices" if num_devices > 1 else "one CPU device"
        found.append(
            f"{THREADS}={threads} in the environment is too much for {devices} on {cores} cores: "
            f"{int(threads) * num_devices} threads wait for each other, and training may be many times as slow. Type "
            f"runtime.threads={right}, or unset it (env -u {THREADS} ...)."
        )
    for name, slow in SLOW_VALUES.items():
        if num_devices >= slow.devices and re.fullmatch(slow.pattern, users.get(name, "").strip().upper()):
            found.append(
                f"{name}={users[name]} in the environment slows training down: {slow.effect}. Unset it (env -u {name} "
                "...), unless you want this."
            )
    return found
