"""Batch scripts of `mxtrain launch` and of examples/slurm, as docs/distributed/slurm.md describes them, in a Slurm of
the test's own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Callable, Dict, List, Sequence

import pytest
from running import ROOT, SMALL, Process, checkpoints, has_steps, status, steps

import mxtrain

FILES = ROOT / "examples" / "slurm"
LONG = (*SMALL, "model.hidden=[512,512]", "trainer.max_epochs=100000", "early_stopping=off")
TIMEOUT_S = 180


class Jobs:
    """Submits jobs and asks for their state."""

    def __init__(self, folder: Path, environment: Dict[str, str]) -> None:
        self.folder = folder
        self._environment = {
            **os.environ,
            **environment,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }

    def run(self, *command: str) -> str:
        done = subprocess.run(
            command, cwd=self.folder, env=self._environment, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    def submit(self, file: Path, *words: str, options: Sequence[str] = ()) -> str:
        return self.run("sbatch", "--parsable", "--output=log-%j", *options, str(file), *words)

    def facts(self, job: str) -> str:
        return self.run("scontrol", "show", "job", job)

    def wait(self, condition: Callable[[], object], job: str) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            assert time.monotonic() < deadline, (self.facts(job), [p.read_text() for p in self.folder.glob("log-*")])
            time.sleep(0.2)


@pytest.fixture
def jobs(slurm: Dict[str, str], tmp_path: Path) -> Jobs:
    return Jobs(tmp_path, slurm)


@pytest.mark.zoo
@pytest.mark.parametrize(
    "overrides, words",
    [([], []), (["kvstore=dist_sync", "cluster.workers=2"], ["cluster.interface=lo"])],
    ids=["one_node", "several_nodes"],
)
def test_warned_job_saves_is_requeued_and_resumes(jobs: Jobs, overrides: List[str], words: List[str]) -> None:
    written = mxtrain.launch(*LONG, *overrides, for_="slurm", out=jobs.folder / "job", cpus=2).folder
    job = jobs.submit(written / "job.sbatch", *words)
    run_dir = jobs.folder / f"outputs/mxtrain-{job}"
    jobs.wait(has_steps(run_dir, 30), job)
    jobs.run("scancel", "--signal=USR1", job)  # as --signal=USR1@120 does: to the steps, not to the batch shell
    jobs.wait(lambda: "Restarts=1" in jobs.facts(job), job)
    ended = status(run_dir)
    assert (ended["state"], ended["exit_code"]) == ("interrupted", 75) and ended["cause"].startswith("SIGUSR1 ")
    assert checkpoints(run_dir)[-1] == f"step-{ended['step']:08d}"
    jobs.wait(has_steps(run_dir, len(steps(run_dir)) + 60), job)  # it continues
    jobs.run("scancel", "--signal=TERM", job)
    jobs.wait(lambda: "JobState=FAILED" in jobs.facts(job), job)
    assert "ExitCode=143:0" in jobs.facts(job)
    assert steps(run_dir) == list(range(1, status(run_dir)["step"] + 1))


@pytest.mark.zoo
def test_spent_budget_is_not_requeued(jobs: Jobs) -> None:
    written = mxtrain.launch(*LONG, for_="slurm", out=jobs.folder / "job").folder
    job = jobs.submit(written / "job.sbatch", "trainer.max_steps=20", "hydra.run.dir=mine")
    jobs.wait(lambda: "JobState=FAILED" in jobs.facts(job), job)
    assert "ExitCode=75:0" in jobs.facts(job) and "Restarts=0" in jobs.facts(job)
    assert status(jobs.folder / "mine")["step"] == 20


@pytest.mark.zoo
def test_the_tasks_of_an_array_share_a_study(jobs: Jobs) -> None:
    job = jobs.submit(
        FILES / "tune_array.sbatch",
        "study",
        *SMALL,
        "trainer.max_epochs=1",
        "optimizer.lr=choice(0.1,0.01)",
        "n_trials=4",
        options=["--array=0-1", "--cpus-per-task=1"],
    )
    jobs.wait(lambda: jobs.run("squeue", "-h", "-j", job) == "", job)
    logs = "\n".join(path.read_text() for path in jobs.folder.glob("log-*"))
    assert len(list(jobs.folder.glob("study/**/metrics.jsonl"))) == 4, logs
    assert jobs.facts(job).count("ExitCode=0:0") == 2


@pytest.mark.zoo
def test_ctrl_c_takes_a_waiting_job_out_of_the_queue(jobs: Jobs) -> None:
    options = "cluster.launcher_options=['--begin=now+1hour']"
    run = Process(
        jobs.folder / "run",
        *LONG,
        "kvstore=dist_sync",
        "cluster.workers=2",
        "cluster.launcher=slurm",
        "cluster.interface=lo",
        options,
        env=jobs._environment,
    )
    run.wait_until(lambda: "PENDING" in jobs.run("squeue", "-h", "-o", "%T"))
    time.sleep(3)
    run.kill(signal.SIGINT).end(130)
    assert re.search(r"Slurm's job \d+: PENDING, reason BeginTime, expected start \S+ \(Ctrl-C", run.output)
    assert re.search(r"job \d+ was taken out of Slurm's queue", run.output)
    assert jobs.run("squeue", "-h") == ""


def test_the_page_names_every_file() -> None:
    page = (ROOT / "docs/distributed/slurm.md").read_text()
    named = re.findall(r"\]\(../../examples/slurm/(\S+)\)", page)
    assert sorted(named) == sorted(path.name for path in FILES.iterdir())
    assert all("--signal=USR1@120" in path.read_text() for path in FILES.iterdir())
