"""Runs over ssh, mpirun and srun with real processes: several hosts are network namespaces with an sshd in each."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Dict, Iterator, List, Optional, Sequence

import pytest
import test_standby
import test_workers
from bench_parts.network import Network, hostfile
from bench_parts.network import unsupported_reason as reason_against_hosts
from running import ROOT, SMALL, Process, assert_same, checkpoints, has_steps, role_of, rows, running_processes, status
from waiting import wait_until

from mxtrain.kvstore.spec import has_horovod

DIST = ("kvstore=dist_sync", "cluster.workers=2", "cluster.backoff=0.1")
SLOW = (*SMALL, "model.hidden=[512,512]", "trainer.max_epochs=6", "checkpoint.every_steps=20", "early_stopping=off")
ENDED_S = 15.0


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run by the launcher of one machine."""
    run_dir = tmp_path_factory.mktemp("undisturbed") / "run"
    Process(run_dir, *DIST, *SLOW).end()
    return run_dir


def pids(run_dir: Path, role: str = "") -> List[int]:
    """The processes of a run, relays and all, or only those of a role: "scheduler", "server", "worker1"."""
    return [
        pid
        for pid, command, environment in running_processes()
        if environment.get("MXTRAIN_TEST") == str(run_dir)
        and (role_of(environment) == role if role else "mxtrain" in command)
    ]


def started(
    run_dir: Path, *overrides: str, command: Sequence[str] = (), env: Optional[Dict[str, str]] = None
) -> Process:
    """A run whose processes, wherever they are, carry its mark in their environment."""
    program = [*command, sys.executable, "-m", "mxtrain"]
    return Process(
        run_dir, *DIST, *SLOW, *overrides, command=program, env={"MXTRAIN_TEST": str(run_dir), **(env or {})}
    )


def nobody_is_left(run_dir: Path) -> None:
    wait_until(lambda: not pids(run_dir), ENDED_S)


# ssh.


def signals_save_and_a_dead_supervisor_leaves_nobody(
    run_dir: Path, launcher: Sequence[str], env: Dict[str, str]
) -> None:
    run = started(run_dir, *launcher, "checkpoint.every_steps=1000", env=env).wait_until(has_steps(run_dir, 30))
    run.kill(signal.SIGTERM).end(143)
    assert status(run_dir)["state"] == "interrupted"
    assert checkpoints(run_dir)[-1] == f"step-{status(run_dir)['step']:08d}"
    lines = len(rows(run_dir))
    run = started(run_dir, *launcher, env=env).wait_until(has_steps(run_dir, lines + 5))
    run.kill(signal.SIGKILL).end(-signal.SIGKILL)
    nobody_is_left(run_dir)


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    reason = reason_against_hosts()
    if reason:
        pytest.skip(reason)
    with ExitStack() as stack:
        yield Network(tmp_path_factory.mktemp("network"), stack, count=3)


def over_ssh(network: Network, tmp_path: Path, *overrides: str, hosts: int = 2) -> Process:
    """A run that the first host supervises."""
    file = hostfile(tmp_path / "hosts", network.addresses[:hosts])
    return started(
        tmp_path / "run",
        "cluster.launcher=ssh",
        f"cluster.hostfile={file}",
        f"cluster.launcher_options=[-F,{network.ssh_config}]",
        *overrides,
        command=network.on(1),
    )


@pytest.mark.zoo
def test_ssh_after_a_kill_on_another_host_the_run_ends_with_the_same_weights(
    network: Network, tmp_path: Path, undisturbed: Path
) -> None:
    run_dir = tmp_path / "run"
    run = over_ssh(network, tmp_path, "cluster.servers=3", hosts=3).wait_until(has_steps(run_dir, 45))
    listening = [
        line.split()[3]
        for number in (1, 2, 3)
        for line in subprocess.run(
            [*network.on(number), "ss", "-Hltn"], capture_output=True, text=True
        ).stdout.splitlines()
    ]
    own = [f"{address}:" for address in network.addresses]
    assert len(listening) >= 3 + 6 and all(address.startswith(tuple(own)) for address in listening), listening
    (victim,) = pids(run_dir, "worker1")
    where = os.readlink(f"/proc/{victim}/ns/net")
    assert where != os.readlink(f"/proc/{pids(run_dir, 'worker0')[0]}/ns/net")
    os.kill(victim, signal.SIGKILL)
    run.end()
    assert_same(run_dir, undisturbed)
    assert f"2 workers, 3 servers on 3 hosts ({', '.join(network.addresses)})" in run.output
    assert re.search(rf"worker 1 \(process {victim} on \S+\) was ended by SIGKILL.*restart 1 of 3", run.output), (
        run.output
    )
    assert sorted(path.name for path in (run_dir / "workers").iterdir()) == [
        ".lock",
        "scheduler.log",
        "server-0.log",
        "server-1.log",
        "server-2.log",
        "supervisor.log",
        "worker-1.log",
    ]
    assert "OMP_NUM_THREADS=1" in (run_dir / "workers" / "worker-1.log").read_text()
    nobody_is_left(run_dir)


@pytest.mark.zoo
@pytest.mark.skipif(not has_horovod(), reason="Horovod is not built here: scripts/horovod")
def test_ssh_ring_has_the_same_weights_and_restarts_after_a_loss(
    network: Network, tmp_path: Path, undisturbed: Path
) -> None:
    run = over_ssh(network, tmp_path, "kvstore=horovod").wait_until(has_steps(tmp_path / "run", 45))
    (pid,) = pids(tmp_path / "run", "worker1")
    os.kill(pid, signal.SIGKILL)
    run.end()
    assert_same(tmp_path / "run", undisturbed)
    assert f"worker 1 (process {pid} on" in run.output and "restart 1 of 3" in run.output
    nobody_is_left(tmp_path / "run")


@pytest.mark.zoo
@pytest.mark.skipif(not has_horovod(), reason="Horovod is not built here: scripts/horovod")
def test_a_hierarchy_restarts_after_the_loss_of_a_worker(network: Network, tmp_path: Path) -> None:
    """Two workers on each of two hosts; worker 1 is on the first one."""
    given = ("kvstore=horovod", "kvstore.hierarchical=true", "cluster.workers=4")
    for name in ("unbroken", "killed"):
        (tmp_path / name).mkdir()
    over_ssh(network, tmp_path / "unbroken", *given).end()
    run = over_ssh(network, tmp_path / "killed", *given).wait_until(has_steps(tmp_path / "killed" / "run", 45))
    (pid,) = pids(tmp_path / "killed" / "run", "worker1")
    os.kill(pid, signal.SIGKILL)
    run.end()
    assert_same(tmp_path / "killed" / "run", tmp_path / "unbroken" / "run")
    assert f"worker 1 (process {pid}) was ended by SIGKILL" in run.output and "restart 1 of 3" in run.output
    nobody_is_left(tmp_path)


@pytest.mark.zoo
def test_ssh_restarts_by_standbys_on_all_hosts(network: Network, tmp_path: Path) -> None:
    unbroken = test_standby.trained(
        tmp_path / "unbroken", *test_standby.PS, *test_workers.SLOW, "trainer.log_interval=1"
    )
    given = ["cluster.launcher=ssh", f"cluster.hostfile={hostfile(tmp_path / 'hosts', network.addresses[:2])}"]
    given += [f"cluster.launcher_options=[-F,{network.ssh_config}]", *test_standby.PS]
    command = [*network.on(1), sys.executable, "-m", "mxtrain"]
    run = test_standby.start_slowly(tmp_path / "run", *given, command=command)
    places = {os.readlink(f"/proc/{pid}/ns/net") for pid in test_workers.processes(run.run_dir)["worker1"]}
    assert len(places) == 1 and os.readlink("/proc/self/ns/net") not in places
    test_standby.restart_by_standbys(run, ["worker1", "worker0"], unbroken)


@pytest.mark.zoo
def test_ssh_run_resumes_after_a_network_partition(network: Network, tmp_path: Path, undisturbed: Path) -> None:
    run_dir = tmp_path / "run"
    run = over_ssh(network, tmp_path, "cluster.heartbeat_timeout=3").wait_until(has_steps(run_dir, 45))
    remote = pids(run_dir, "worker1") + pids(run_dir, "server")
    network.set_link(2, "down")
    try:
        cut_at = time.monotonic()
        while set(remote) & set(pids(run_dir)):  # the other side ends by itself
            assert time.monotonic() - cut_at < 10
            time.sleep(0.05)
        said = run_dir / "workers" / "supervisor.log"
        # Until the restart has found nobody there.
        run.wait_until(lambda: said.exists() and "waiting for at most" in said.read_text())
    finally:
        network.set_link(2, "up")
    run.end()
    assert_same(run_dir, undisturbed)
    silence = re.search(r"cannot be reached: nothing was heard from its host for (\d\.\d) s", run.output)
    assert silence and float(silence[1]) < 4, run.output
    assert f"{network.addresses[1]} cannot be reached" in run.output
    nobody_is_left(run_dir)


@pytest.mark.slow
def test_ssh_hosts_are_clean_after_the_supervisor_dies(network: Network, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run = over_ssh(network, tmp_path).wait_until(has_steps(run_dir, 10))
    assert len(pids(run_dir)) >= 6  # the supervisor, its ssh, the relay and four more
    run.kill(signal.SIGKILL).end(-signal.SIGKILL)
    nobody_is_left(run_dir)


@pytest.mark.zoo
def test_ssh_sigterm_saves_on_all_hosts(network: Network, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run = over_ssh(network, tmp_path, "checkpoint.every_steps=1000").wait_until(has_steps(run_dir, 30))
    run.kill(signal.SIGTERM).end(143)
    assert status(run_dir)["state"] == "interrupted"
    assert checkpoints(run_dir)[-1] == f"step-{status(run_dir)['step']:08d}"
    nobody_is_left(run_dir)


@pytest.mark.zoo_except("lines5-overrides5-words5")
@pytest.mark.slow
@pytest.mark.parametrize(
    "lines, overrides, words",
    [
        pytest.param(
            ["{1}", "no.such.host.invalid"],
            [],
            ["line 2", "no.such.host.invalid cannot be reached", "resolve"],
            marks=pytest.mark.zoo,
        ),
        pytest.param(
            ["{1}", "10.213.77.99"],
            ["cluster.heartbeat_timeout=1"],
            ["line 2", "10.213.77.99 cannot be reached"],
            marks=pytest.mark.zoo,
        ),
        pytest.param(
            ["{1}", "{2}"],
            ["cluster.python=/no/python"],
            ["line 2", "does not start on", "/no/python", "cluster.python"],
            marks=pytest.mark.zoo,
        ),
        pytest.param(
            ["{1}", "{2}"],
            ["cluster.directory=/no/folder"],
            ["line 2", "/no/folder", "cluster.directory"],
            marks=pytest.mark.zoo,
        ),
        (["{1}", "{2}"], ["cluster.interface=eth7"], ["cluster.interface=eth7", "net0"]),
        (["{2}", "{3}"], [], ["none of", "is this machine"]),
        (["{1} slots=1", "{2} slots=1"], ["cluster.workers=4"], ["cluster.workers=4", "2 slots"]),
    ],
)
def test_ssh_refuses_impossible_settings_without_output(
    network: Network, tmp_path: Path, lines: List[str], overrides: List[str], words: List[str]
) -> None:
    file = hostfile(tmp_path / "hosts", [line.format("", *network.addresses) for line in lines])
    begun = time.monotonic()
    run = started(
        tmp_path / "new" / "run",
        "cluster.launcher=ssh",
        f"cluster.hostfile={file}",
        f"cluster.launcher_options=[-F,{network.ssh_config}]",
        *overrides,
        command=network.on(1),
    ).end(2)
    assert all(word in run.output for word in words), run.output
    assert time.monotonic() - begun < 30 and [path.name for path in tmp_path.iterdir()] == ["hosts"]


# mpirun.

AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
needs_mpi = pytest.mark.skipif(
    shutil.which("mpirun") is None, reason="mpirun not installed (apt-get install openmpi-bin)"
)


@pytest.mark.zoo
@needs_mpi
def test_mpirun_on_several_hosts(network: Network, tmp_path: Path, undisturbed: Path) -> None:
    run_dir = tmp_path / "run"
    first, second = network.addresses[:2]
    options = ["--host", f"{first}:2,{second}:2", "--map-by", "node", "--bind-to", "none"]
    agent = ["--mca", "plm_rsh_agent", f"ssh -F {network.ssh_config}", "--mca", "oob_tcp_if_include", "net0"]
    variables = {"MXTRAIN_ROOT": f"{first}:7000", "MXTRAIN_TEST": str(run_dir), "PYTHONPATH": str(ROOT)}
    given = [word for name, text in variables.items() for word in ("-x", f"{name}={text}")]
    command = [*network.on(1), "mpirun", "-np", "4", *options, *agent, *given, "--wdir", os.getcwd()]
    run = started(run_dir, command=command, env=AS_ROOT).wait_until(has_steps(run_dir, 45))
    ranks = [
        pid
        for pid, _, environment in running_processes()
        if environment.get("MXTRAIN_TEST") == str(run_dir) and "OMPI_COMM_WORLD_RANK" in environment
    ]
    assert len({os.readlink(f"/proc/{pid}/ns/net") for pid in ranks}) == 2
    run.end()
    assert_same(run_dir, undisturbed)
    nobody_is_left(run_dir)


@pytest.mark.zoo
@needs_mpi
def test_mpirun_processes_find_their_roles(tmp_path: Path, undisturbed: Path) -> None:
    run_dir = tmp_path / "run"
    few = started(run_dir, command=["mpirun", "-np", "2", "--oversubscribe"], env=AS_ROOT).end(2)
    assert "Type mpirun -n 4" in few.output and not run_dir.exists()
    started(run_dir, command=["mpirun", "-np", "4", "--oversubscribe", "--bind-to", "none"], env=AS_ROOT).end()
    assert_same(run_dir, undisturbed)
    nobody_is_left(run_dir)


@pytest.mark.slow
def test_missing_srun_is_reported(tmp_path: Path) -> None:
    run = started(tmp_path / "run", "cluster.launcher=slurm", env={"PATH": "/nowhere"}).end(2)
    assert "srun is not on PATH" in run.output and not (tmp_path / "run").exists()


# srun.


SRUN = ("cluster.launcher=slurm", "cluster.interface=lo", "cluster.launcher_options=[-N2]")


@pytest.mark.zoo
def test_slurm_after_a_stop_the_run_ends_with_the_same_weights(
    slurm: Dict[str, str], tmp_path: Path, undisturbed: Path
) -> None:
    run_dir = tmp_path / "run"
    run = started(run_dir, *SRUN, "cluster.heartbeat_timeout=2", env=slurm).wait_until(has_steps(run_dir, 45))
    (victim,) = pids(run_dir, "worker1")
    os.kill(victim, signal.SIGSTOP)
    run.end()
    assert_same(run_dir, undisturbed)
    assert re.search(rf"worker 1 \(process {victim} on \S+\) was stopped .* 2\.\d s ago.*restart 1 of 3", run.output), (
        run.output
    )
    nobody_is_left(run_dir)


@pytest.mark.zoo
def test_slurm_signals_save_and_a_dead_supervisor_leaves_no_process(slurm: Dict[str, str], tmp_path: Path) -> None:
    signals_save_and_a_dead_supervisor_leaves_nobody(tmp_path / "run", SRUN, slurm)


@pytest.mark.zoo
def test_srun_processes_find_their_roles(slurm: Dict[str, str], tmp_path: Path, undisturbed: Path) -> None:
    run_dir = tmp_path / "run"
    started(
        run_dir,
        "cluster.launcher=slurm",
        "cluster.interface=lo",
        command=["srun", "-n4", "-N2", "--kill-on-bad-exit=1"],
        env={**slurm, "MXTRAIN_ROOT": "127.0.0.1:23456"},
    ).end()
    assert_same(run_dir, undisturbed)
    nobody_is_left(run_dir)


@pytest.mark.slow
def test_option_refused_by_srun_ends_the_start(slurm: Dict[str, str], tmp_path: Path) -> None:
    options = "cluster.launcher_options=[-pnone]"
    run = started(tmp_path / "run", "cluster.launcher=slurm", "cluster.interface=lo", options, env=slurm).end(2)
    assert "could not be started: srun ended" in run.output and "nvalid partition" in run.output, run.output
    assert not (tmp_path / "run").exists()


# Kubeflow.


@pytest.mark.zoo
def test_processes_of_kubeflows_mxjob(tmp_path: Path, undisturbed: Path) -> None:
    """Its variables, on one machine: a worker's rank stands in MX_CONFIG only."""
    common = {
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": "23457",
        "DMLC_NODE_HOST": "127.0.0.1",
        "DMLC_NUM_WORKER": "2",
        "DMLC_NUM_SERVER": "1",
        "DMLC_USE_KUBERNETES": "1",
    }
    parts = [("scheduler", 0), ("server", 0), ("worker", 0), ("worker", 1)]
    members = []
    for role, index in parts:
        config = {"cluster": {}, "labels": {}, "task": {"type": role, "index": index}}
        env = {**common, "DMLC_ROLE": role, "MX_CONFIG": json.dumps(config)}
        members.append(started(tmp_path / "run", env=env))
    for member in members:
        member.end()
    assert_same(tmp_path / "run", undisturbed)
