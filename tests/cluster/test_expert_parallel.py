"""The example of experts on several workers, which compares itself with one worker."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from running import ROOT

PROGRAM = ROOT / "examples" / "experts" / "expert_parallel.py"


def run_program(workers: int) -> subprocess.CompletedProcess[str]:
    launcher = shutil.which("horovodrun", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if launcher is None:
        pytest.skip("horovodrun is not installed")
    command = [launcher, "-np", str(workers), "--gloo", sys.executable, str(PROGRAM)]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)


@pytest.mark.slow
def test_experts_on_two_workers_equal_one_worker() -> None:
    done = run_program(2)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.findall(r"worker (\d) of 2: experts (\d) to (\d), loss ([\d.]+) to ([\d.]+)", done.stdout)
    assert sorted(row[:3] for row in found) == [("0", "0", "3"), ("1", "4", "7")]
    assert all(float(last) < 0.8 * float(first) for *_, first, last in found)


@pytest.mark.zoo
def test_a_number_of_workers_that_does_not_divide_the_experts_is_refused() -> None:
    done = run_program(3)
    assert (
        done.returncode != 0 and "8 experts and 48 tokens cannot be divided by 3 workers" in done.stdout + done.stderr
    )
