"""Choice of the devices to check."""

from __future__ import annotations

import re
from typing import List, NamedTuple, Sequence

from mxtrain.errors import ConfigError
from mxtrain.runtime.probing import run_probe
from mxtrain.workflows.doctor import remedy_for

STAND_IN = "scripts/gpu_check --devices cpu:0,cpu:1 lets CPU devices stand in."


class Device(NamedTuple):
    """One device, as `cpu:0` or `gpu:1`."""

    kind: str
    number: int

    def __str__(self) -> str:
        return f"{self.kind}:{self.number}"


def read_devices(text: str) -> List[Device]:
    """The devices that were asked for.

    Raises:
        ConfigError: they are not written as cpu:0,cpu:1 or gpu:0,gpu:1, are of two kinds, or one is named twice.
    """
    found = [Device(match[1], int(match[2])) for match in re.finditer(r"(cpu|gpu):(\d+)", text)]
    if ",".join(map(str, found)) != text or len(set(found)) != len(found) or len({one.kind for one in found}) != 1:
        raise ConfigError(
            f"--devices={text}: it must be different devices of one kind with commas between them, such as gpu:0,gpu:1."
        )
    return found


def find_gpus() -> List[Device]:
    """All that MXNet counts, looked for in a process of its own.

    Raises:
        ConfigError: there is none, or MXNet cannot be imported.
    """
    probe = run_probe(300.0)
    if "mxnet" not in probe.found:
        raise ConfigError(f"MXNet cannot be imported: {probe.cause}. {remedy_for(probe.cause)}.")
    if not probe.found.get("gpus"):
        why = probe.found.get("gpu_error", "this build is for CPUs" if not _has_cuda(probe.found) else "there is none")
        raise ConfigError(f"MXNet sees no GPU here: {why}. {STAND_IN}")
    return [Device("gpu", number) for number in range(int(probe.found["gpus"]))]


def _has_cuda(found: object) -> bool:
    features = found.get("features", {}) if isinstance(found, dict) else {}
    return bool(features.get("CUDA"))


def as_setting(devices: Sequence[Device]) -> str:
    """The value of `parallel.devices`: their number, counted from 0 (others are hidden by `visible`)."""
    return f"{devices[0].kind}:{len(devices)}"


def visible(devices: Sequence[Device]) -> str:
    """The value of CUDA_VISIBLE_DEVICES under which they are the only ones, numbered from 0."""
    return ",".join(str(device.number) for device in devices)
