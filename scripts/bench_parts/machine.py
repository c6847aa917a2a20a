"""What the figures were taken on."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any, Dict

from bench_parts.processes import ROOT, tuned_environment, tuning_of

PACKAGES = ("mxnet", "gluoncv", "numpy", "hydra-core", "tensorboardX")
FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")


def describe_machine() -> Dict[str, Any]:
    """CPU, cores, memory, versions, commit and load; no name of the machine, no path."""
    from mxtrain import __version__
    from mxtrain.runtime.cores import usable_cores

    cpu = _cpu()
    packages = {package: _version(package) for package in PACKAGES}
    return {
        "cpu": cpu.get("model name", platform.processor()),
        "cores": usable_cores(),
        "instructions": [flag for flag in FLAGS if flag in cpu.get("flags", "").split()],
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": {"mxtrain": __version__, **packages},
        "commit": _commit(),
        "environment": tuning_of(tuned_environment()),
        "load_1min": round(os.getloadavg()[0], 2),
    }


def _cpu() -> Dict[str, str]:
    try:
        first = Path("/proc/cpuinfo").read_text().split("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _commit() -> str:
    def git(*arguments: str) -> str:
        return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", "mxtrain", "conf", "scripts")
        return git("rev-parse", "--short=10", "HEAD") + (" with changes" if changed else "")
    except OSError:
        return ""
