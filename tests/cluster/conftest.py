"""Starts the Slurm for tests of srun and sbatch."""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack
from typing import Dict, Iterator

import pytest
from bench_parts.network import SEARCH


def slurm_reason() -> str:
    """Returns the reason why no Slurm can be started; empty if one can."""
    if os.getuid() != 0:
        return "an own Slurm needs root"
    missing = [name for name in ("munged", "slurmctld", "slurmd", "srun") if shutil.which(name, path=SEARCH) is None]
    return f"{', '.join(missing)} not installed (apt-get install slurm-wlm munge)" if missing else ""


@pytest.fixture(scope="module")
def slurm() -> Iterator[Dict[str, str]]:
    """Starts a Slurm with two nodes on this machine, and yields the environment in which srun finds it."""
    reason = slurm_reason()
    if reason:
        pytest.skip(reason)
    from slurm import Slurm

    with ExitStack() as stack:
        yield Slurm(stack).environment
