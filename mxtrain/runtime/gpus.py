"""Lists the GPUs that the driver reports, and which of them the published builds of MXNet can run on."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from importlib import metadata
from typing import List, Mapping, NamedTuple, Optional, Sequence, Tuple

FIRST_UNSUPPORTED = (9, 0)
"""First unsupported compute capability. The published wheels of MXNet 1.9.1 contain machine code for 3.0 to 8.6, which
8.7 and 8.9 run too, but no PTX that a driver could compile for later GPUs."""
PUBLISHED = re.compile(r"mxnet-cu(102|11[02-7]) 1\.9\.1")
QUERY = ("nvidia-smi", "--query-gpu=index,compute_cap,name", "--format=csv,noheader")
REMEDY = (
    "train on the CPU (parallel.devices=cpu:1); take NVIDIA's MXNet container 24.05 or 24.06, whose MXNet 1.9.1 was "
    "built for 9.0 (examples/container/Dockerfile.ngc); or build MXNet 1.9.1 for that architecture (-DMXNET_CUDA_ARCH, "
    "a CUDA toolkit that knows it) under a version of its own, such as 1.9.1+sm90, and install it in place of the wheel"
)


class Gpu(NamedTuple):
    """One GPU of this machine."""

    index: int  # type: ignore[assignment]  # `tuple.index` is not needed
    """The driver's number."""
    name: str
    capability: Tuple[int, int]
    """Compute capability, e.g. (8, 6)."""

    @property
    def is_too_new(self) -> bool:
        """Returns True if no published wheel of MXNet runs on it."""
        return self.capability >= FIRST_UNSUPPORTED

    def __str__(self) -> str:
        return f"GPU {self.index} ({self.name}, compute capability {self.capability[0]}.{self.capability[1]})"


def find_gpus(environ: Mapping[str, str] = os.environ) -> List[Gpu]:
    """Lists the GPUs of nvidia-smi without those hidden by CUDA_VISIBLE_DEVICES; empty without a driver. The first call
    may take seconds."""
    gpus = _query_driver(environ.get("PATH", os.defpath))
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    # UUIDs and MIG names cannot be matched with nvidia-smi's numbers, so all GPUs are listed then.
    if visible is None or not re.fullmatch(r"[\d,\s]*", visible):
        return list(gpus)
    numbers = {int(number) for number in visible.split(",") if number.strip()}
    return [gpu for gpu in gpus if gpu.index in numbers]


@functools.cache
def _query_driver(path: str) -> Tuple[Gpu, ...]:
    program = shutil.which(QUERY[0], path=path)
    if program is None:
        return ()
    try:
        result = subprocess.run(
            [program, *QUERY[1:]], capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(gpu for gpu in map(_parse_gpu, result.stdout.splitlines()) if gpu is not None)


def _parse_gpu(line: str) -> Optional[Gpu]:
    match = re.fullmatch(r"\s*(\d+)\s*,\s*(\d+)\.(\d+)\s*,\s*(.*?)\s*", line)
    return Gpu(int(match[1]), match[4], (int(match[2]), int(match[3]))) if match else None


def unsupported_reason(gpus: Sequence[Gpu]) -> str:
    """Returns why MXNet cannot compute on these GPUs; "" if it can, as far as the driver reports."""
    too_new = [gpu for gpu in gpus if gpu.is_too_new]
    if not too_new:
        return ""
    names = ", ".join(map(str, too_new))
    return f"{names}: every published wheel of MXNet 1.9.1 holds machine code up to 8.6 and no PTX, and can't run there"


def is_published_build() -> bool:
    """Returns True if the installed MXNet is one of the published wheels with CUDA, and no build of the user's own."""
    installed = (f"{item.metadata['Name']} {item.version}" for item in metadata.distributions())
    return any(PUBLISHED.fullmatch(package) for package in installed)
