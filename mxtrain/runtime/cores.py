"""Counts the cores that this process may use, from its CPU affinity and the CPU quota of its control groups."""

from __future__ import annotations

import math
import os
import platform
from pathlib import Path
from typing import Iterator, Optional

ROOT = Path("/")


def usable_cores(root: Path = ROOT) -> int:
    """Returns the number of cores that the process can keep busy, at least 1.

    This is the smaller of the affinity mask's size and the control group's quota, rounded up.

    Args:
        root: folder that contains `proc` and `sys`.
    """
    affinity = len(os.sched_getaffinity(0))
    quota = cgroup_quota(root)
    # A quota of 1.5 cores gets two threads: rounding down would leave half a core idle.
    return affinity if quota is None else max(1, min(affinity, math.ceil(quota)))


def cgroup_quota(root: Path = ROOT) -> Optional[float]:
    """Returns the smallest CPU quota of the process's control groups (versions 1 and 2) and their parents.

    Args:
        root: folder that contains `proc` and `sys`.

    Returns:
        Number of cores, possibly fractional; None if there is no limit.

    Source: Linux, Documentation/admin-guide/cgroup-v2.rst (cpu.max) and scheduler/sched-bwc.rst (cpu.cfs_quota_us).
    """
    quotas = [quota for folder in _group_folders(root) if (quota := _quota_of(folder)) is not None]
    return min(quotas, default=None)


def _group_folders(root: Path) -> Iterator[Path]:
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        names = controllers.split(",")
        if controllers == "":
            mounts = ["sys/fs/cgroup", "sys/fs/cgroup/unified"]
        elif "cpu" in names:
            mounts = [f"sys/fs/cgroup/{controllers}", "sys/fs/cgroup/cpu"]
        else:
            continue
        for mount in mounts:
            # In a container the path may be one of the host, which does not exist here. Then only the mount is read.
            folder = root / mount / path.lstrip("/")
            yield from (parent for parent in (folder, *folder.parents) if (root / mount) in (parent, *parent.parents))


def _quota_of(folder: Path) -> Optional[float]:
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text().strip()
            period = (folder / "cpu.cfs_period_us").read_text().strip()
        # "max" is version 2's word for no limit, -1 version 1's.
        return None if quota in ("max", "-1") else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def processor_name() -> str:
    """Returns the model name of the CPU, which `platform.processor` does not have on Linux."""
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()
