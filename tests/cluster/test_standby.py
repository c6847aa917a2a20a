"""Standbys, and states in memory: what they replace, the same bits as unbroken, and nothing that is left."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import signal
import sys
import time
from contextlib import ExitStack, closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, List, Optional, Sequence

import pytest
from running import Process, assert_same, has_steps, running_processes
from test_horovod import RING, Worker
from test_workers import SLOW, nobody_is_left, processes
from waiting import wait_for_ends, wait_until

from mxtrain.checkpoint.memory import MEMORY
from mxtrain.cluster.launch import preload
from mxtrain.cluster.launcher import Launcher, launch_message
from mxtrain.cluster.member import HEARTBEAT_FD, STANDBY_FD, is_standby, wait_until_needed
from mxtrain.cluster.process import LaunchSpec
from mxtrain.cluster.ray_launcher import RayLauncher
from mxtrain.cluster.relayed import Channel, RelayedProcess
from mxtrain.cluster.ring import Ring
from mxtrain.cluster.spec import Cluster
from mxtrain.cluster.supervisor import Supervisor
from mxtrain.config.search_path import module_command
from mxtrain.errors import ConfigError, PeersLost
from mxtrain.kvstore.spec import has_horovod
from mxtrain.kvstore.world import World
from mxtrain.training import build, elastic

PS = ("kvstore=dist_sync", "cluster.workers=2", "cluster.backoff=0.1")
WARM = ("cluster.standby=true", "cluster.memory_steps=3", "trainer.log_interval=1")

BECOMES = """
import json, os, sys
sys.argv[1:] = ["--"]
from mxtrain.cluster.member import is_standby, wait_until_needed
was = is_standby()
arguments = wait_until_needed()
print(json.dumps([was, is_standby(), arguments, os.environ.get("KEPT"), os.environ.get("NEW"), os.environ.get("OLD")]))
"""
WAITS = f"""
echo '{{"step": 7, "batches": 7, "waits": false, "generation": 0}}' > /dev/fd/${HEARTBEAT_FD}
if [ -n "${STANDBY_FD}" ]; then head -n1 /dev/fd/${STANDBY_FD}; fi
exec sleep 60
"""
"""A process that prints the order that it gets as a standby."""


def spec_of(tmp_path: Path, command: Sequence[str], *arguments: str, **variables: str) -> LaunchSpec:
    path = {"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": os.environ["PATH"]}
    return LaunchSpec("worker 1", [*command, "mxtrain", *arguments], {**path, **variables}, tmp_path / "log")


def waiting(tmp_path: Path, *arguments: str, **variables: str) -> LaunchSpec:
    return spec_of(tmp_path, ["sh", "-c", WAITS], *arguments, **variables)


def becoming(tmp_path: Path, *arguments: str, **variables: str) -> LaunchSpec:
    return spec_of(tmp_path, [sys.executable, "-c", BECOMES], *arguments, **variables)


def test_a_process_that_is_no_standby_does_not_wait() -> None:
    assert not is_standby() and wait_until_needed() is None


def test_an_order_replaces_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    environment = {STANDBY_FD: str(reader), "KEPT": "1", "OLD": "1", "CHANGED": "1"}
    monkeypatch.setattr(os, "environ", environment)
    order = {"environment": {"CHANGED": "2", "NEW": "3", "OLD": None, "MISSING": None}, "arguments": ["b", "c=d"]}
    os.write(writer, json.dumps(order).encode() + b"\n")
    os.close(writer)
    assert is_standby()
    assert wait_until_needed() == ["b", "c=d"]
    assert not is_standby() and wait_until_needed() is None
    assert environment == {"KEPT": "1", "CHANGED": "2", "NEW": "3"}


def test_a_standby_ends_with_its_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    monkeypatch.setenv(STANDBY_FD, str(reader))
    os.close(writer)
    with pytest.raises(SystemExit) as caught:
        wait_until_needed()
    assert caught.value.code == 0


@pytest.mark.slow
def test_a_standby_becomes_the_process_that_it_replaces(tmp_path: Path) -> None:
    launcher = Launcher(Cluster(standby=True), None)
    with closing(launcher), ExitStack() as stack:
        first = launcher._start_one(becoming(tmp_path, "a", KEPT="1", OLD="1"))
        stack.callback(first.close)
        launcher.prepare([first])
        second = first.start_replacement(becoming(tmp_path, "b", "c=d", KEPT="1", NEW="2"))
        stack.callback(second.close)
        wait_until(lambda: None not in (first.exit_code, second.exit_code))
    expected = [[False, False, None, "1", None, "1"], [True, False, ["b", "c=d"], "1", "2", None]]
    assert sorted(map(json.loads, (tmp_path / "log").read_text().splitlines())) == expected


def test_a_launcher_has_one_standby_for_each_process(tmp_path: Path) -> None:
    launcher = Launcher(Cluster(standby=True), None)
    with closing(launcher), ExitStack() as stack:
        first = launcher._start_one(waiting(tmp_path, "a", KEPT="1", OLD="1"))
        stack.callback(first.close)
        launcher.prepare([first])
        (standby,) = launcher._standbys.values()
        wait_until(lambda: launcher.prepare([first]) or standby.last_heartbeat["step"] == 7)
        assert list(launcher._standbys.values()) == [standby] and standby.exit_code is None
        assert not (tmp_path / "log").read_text()
        began = time.monotonic()
        second = first.start_replacement(waiting(tmp_path, "b", "c=d", KEPT="1", NEW="2"))
        stack.callback(second.close)
        assert second is standby and not launcher._standbys and second.spec.environment["NEW"] == "2"
        assert (second.started_at or 0) >= began
        wait_until(lambda: (tmp_path / "log").read_text().endswith("\n"))
        order = {"environment": {"NEW": "2", "OLD": None}, "arguments": ["b", "c=d"]}
        assert json.loads((tmp_path / "log").read_text()) == order
        third = first.start_replacement(waiting(tmp_path))
        stack.callback(third.close)
        assert third is not standby and not launcher._standbys


def test_a_standby_that_was_killed_is_replaced_by_a_new_process(tmp_path: Path) -> None:
    files_before = len(os.listdir("/proc/self/fd"))
    launcher = Launcher(Cluster(standby=True), None)
    with closing(launcher), ExitStack() as stack:
        first = launcher._start_one(waiting(tmp_path))
        stack.callback(first.close)
        launcher.prepare([first])
        (standby,) = launcher._standbys.values()
        os.kill(standby.pid, signal.SIGKILL)
        wait_for_ends([standby.pid])
        second = launcher._start_one(waiting(tmp_path))
        stack.callback(second.close)
        assert second is not standby and second.exit_code is None
        launcher.prepare([second])
        left = next(iter(launcher._standbys.values())).pid
    wait_for_ends([left])
    assert not launcher._standbys and len(os.listdir("/proc/self/fd")) == files_before


def test_a_launcher_kills_all_standbys_before_it_waits_for_one() -> None:
    class Standby(Worker):
        def kill(self) -> None:
            calls.append("kill")

        def close(self) -> None:
            calls.append("close")

    calls: List[str] = []
    launcher = Launcher(Cluster(standby=True), None)
    launcher._standbys = {str(number): Standby(number) for number in range(2)}
    launcher.close()
    assert calls == ["kill", "kill", "close", "close"]


@pytest.mark.parametrize("ends", [False, True], ids=["lives", "ended"])
def test_a_standby_behind_a_relay_begins(tmp_path: Path, ends: bool) -> None:
    launcher = Launcher(Cluster(standby=True), None)
    spec = waiting(tmp_path, "a", OLD="1", DMLC_LOCAL="1")
    message = launch_message(Cluster(python="sh"), [spec], is_standby=True)
    channel = Channel(module_command("mxtrain.cluster.remote"), os.environ, message, 30.0, "relay")
    with closing(channel), closing(RelayedProcess(spec, channel, 0, ranked=False, is_first=False)) as standby:
        launcher._standbys = {"worker 1": standby}
        wait_until(lambda: standby.listen() or standby.last_heartbeat["step"] == 7)
        if ends:
            os.kill(standby.pid, signal.SIGKILL)
            wait_for_ends([standby.pid])
            wait_until(lambda: standby.listen() or standby.exit_code is not None)
            assert launcher._begin_standby(waiting(tmp_path, "b")) is None
            return
        new = waiting(tmp_path, "b", DMLC_LOCAL="1", NEW="2")
        assert launcher._begin_standby(new) is standby and standby.spec is new
        wait_until(lambda: standby.listen() or (tmp_path / "log").read_text().endswith("\n"))
    order = {"environment": {"NEW": "2", "OLD": None}, "arguments": ["b"]}
    assert json.loads((tmp_path / "log").read_text()) == order


@pytest.mark.parametrize(
    "batch_size, kind, opened", [("64", "cpu", True), ("auto", "cpu", False), ("64", "gpu", False)]
)
def test_a_standby_opens_data_and_network(
    describe_run: Any, monkeypatch: pytest.MonkeyPatch, batch_size: str, kind: str, opened: bool
) -> None:
    worlds: List[World] = []
    monkeypatch.setattr(build, "open_inputs", lambda description, world: worlds.append(world))
    description = describe_run(f"dataset.batch_size={batch_size}")
    devices = [[SimpleNamespace(device_type="cpu"), SimpleNamespace(device_type=kind)]]
    monkeypatch.setattr(type(description.parallel), "resolve_devices", lambda self: devices)
    monkeypatch.setattr(preload, "prepare_environment", lambda description: None)
    assert preload.stand_by(description) is None
    assert worlds == [World(1, 2)] * opened


def test_errors_of_a_standby_are_left_to_the_process_that_it_becomes(
    describe_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        logging.getLogger("mxtrain").critical("not shown")
        raise ConfigError("no such file")

    monkeypatch.setattr(build, "open_inputs", fail)
    monkeypatch.setattr(preload, "prepare_environment", lambda description: None)
    assert preload.stand_by(describe_run()) is None
    assert logging.getLogger("mxtrain").isEnabledFor(logging.CRITICAL)


def test_standbys_are_off_by_default(tmp_path: Path) -> None:
    launcher = Launcher(Cluster(), None)
    launcher.prepare([Worker(0)])
    assert not launcher._standbys


def test_with_standbys_the_first_restart_does_not_wait() -> None:
    for standby, expected in ((True, [0.0, 2.0, 4.0]), (False, [1.0, 2.0, 4.0])):
        supervisor = Supervisor(Cluster(standby=standby), lambda *_: [], list, print)
        assert [supervisor._use_restart() for _ in range(3)] == expected


@pytest.mark.parametrize("launcher", ["local", "ssh", "nodes", "slurm", "ray"])
def test_launchers_with_standbys_and_states_in_memory(launcher: str, tmp_path: Path) -> None:
    hostfile = str(tmp_path / "hosts") if launcher == "ssh" else None
    memory = Cluster(launcher=launcher, hostfile=hostfile, memory_steps=5).unsupported_reason()
    refused = f"cluster.memory_steps=5 with cluster.launcher={launcher}: copies in memory"
    assert memory.startswith(refused) if launcher not in ("local", "ssh") else not memory
    standby = Cluster(launcher=launcher, hostfile=hostfile, standby=True).unsupported_reason()
    refused = f"cluster.standby=true with cluster.launcher={launcher}: only"
    assert standby.startswith(refused) if launcher not in ("local", "ssh", "ray") else not standby


def test_standbys_on_ray_with_gpus_are_refused() -> None:
    cluster = Cluster(launcher="ray", standby=True, launcher_options=["gpus=0.5"])
    with pytest.raises(ConfigError, match="cluster.standby=true with cluster.launcher=ray and GPUs"):
        RayLauncher(cluster, None)


def test_the_ring_waits_for_a_replacement() -> None:
    workers = [Worker(number) for number in range(3)]
    with closing(Ring()) as ring:
        for worker in workers:
            worker.asks_for(1)
        ring.update(workers)
        supervisor = Supervisor(Cluster(workers=3, standby=True), lambda *_: [], list, print, ring=ring)
        assert not supervisor._awaits_newcomer(workers)
        workers[1].gone = -9  # the others ask before the supervisor has handled it
        assert supervisor._awaits_newcomer(workers)
        newcomer = Worker(1)
        remaining = [workers[0], newcomer, workers[2]]
        for worker in (workers[0], workers[2]):
            worker.asks_for(2)
        assert supervisor._awaits_newcomer(remaining)
        ring.update(remaining, waits=True)
        assert ring.generation == 1
        newcomer.asks_for(2)
        assert not supervisor._awaits_newcomer(remaining)
        ring.update(remaining, waits=False)
        assert ring.generation == 2 and not ring.is_newcomer(newcomer)


def test_a_ring_of_the_same_size_says_so() -> None:
    assert "3 workers go on after step 7, one of them started anew" in elastic.remark(PeersLost("lost"), 3, 3, 7)
    assert "3 workers (before: 2) go on after step 7" in elastic.remark(PeersLost("lost"), 2, 3, 7)


# Real processes.

SLOWLY = """
import time
from pathlib import Path
from mxtrain.callback.protocol import Callback

class Slowly(Callback):
    # Lets a run last until standbys have loaded everything and the test has done its part.

    def on_steps(self, rows, progress):
        if not (Path(__file__).parent / "go").exists():
            time.sleep(0.1 if progress.step < 60 else 1.0)
"""


def start_slowly(run_dir: Path, *overrides: str, command: Optional[Sequence[str]] = None) -> Process:
    """Starts a run with standbys, and waits until it trains and all of them are there."""
    (run_dir.parent / "slowly.py").write_text(SLOWLY)
    environment = {"PYTHONPATH": f"{Path(__file__).parents[2]}:{run_dir.parent}"}
    given = (*SLOW, *WARM, "+callback.slowly._target_=slowly.Slowly", *overrides)
    run = Process(run_dir, *given, env=environment, command=command)
    return run.wait_until(has_steps(run_dir, 5)).wait_until(
        lambda: {len(pids) for pids in processes(run_dir).values()} == {2}
    )


def end_quickly(run: Process) -> Process:
    (run.run_dir.parent / "go").touch()
    return run.end()


def trained(run_dir: Path, *overrides: str) -> Path:
    Process(run_dir, *overrides).end()
    return run_dir


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("unbroken") / "run", *PS, *SLOW, "trainer.log_interval=1")


@pytest.fixture(scope="module")
def unbroken_ring(tmp_path_factory: pytest.TempPathFactory) -> Path:
    given = (*RING, "cluster.workers=3", *SLOW, "trainer.log_interval=1")
    return trained(tmp_path_factory.mktemp("unbroken_ring") / "run", *given)


def memory_of(run_dir: Path) -> Path:
    """Returns the folder of a run in memory."""
    found = (e[MEMORY] for _, command, e in running_processes() if str(run_dir) in command and MEMORY in e)
    return Path(next(found))


@pytest.mark.slow
@pytest.mark.zoo_cases("victims1")
@pytest.mark.parametrize("victims", [["worker1", "server"], ["worker0", "scheduler"]])
def test_a_restart_by_standbys_gives_the_bits_of_an_unbroken_run(
    tmp_path: Path, unbroken: Path, victims: List[str]
) -> None:
    restart_by_standbys(start_slowly(tmp_path / "run", *PS), victims, unbroken)


def restart_by_standbys(run: Process, victims: Sequence[str], unbroken: Path, has_memory: bool = True) -> None:
    """Kills processes of a run one after the other, and compares its end with an unbroken run."""
    run_dir = run.run_dir
    folder = memory_of(run_dir) if has_memory else None
    for victim in victims:
        run.wait_until(lambda: {len(pids) for pids in processes(run_dir).values()} == {2})
        before = {role: pids[0] for role, pids in processes(run_dir).items()}
        waiting = {role: pids[-1] for role, pids in processes(run_dir).items()}
        rows_before = len((run_dir / "metrics.jsonl").read_text().splitlines())
        os.kill(before[victim], signal.SIGKILL)
        wait_for_ends(before.values())
        run.wait_until(has_steps(run_dir, rows_before + 3))
        assert all(waiting[role] in pids for role, pids in processes(run_dir).items()), "started anew"
    end_quickly(run)
    assert len(re.findall("Going on from the last checkpoint in 0", run.output)) >= 1
    assert_same(run_dir, unbroken)
    nobody_is_left(run_dir)
    assert folder is None or not folder.exists()


@pytest.mark.zoo
@pytest.mark.skipif(not has_horovod(), reason="Horovod is not built here: scripts/horovod")
@pytest.mark.parametrize("victim", ["worker1", "worker0"])
def test_a_ring_keeps_its_other_workers_and_the_bits_of_an_unbroken_run(
    tmp_path: Path, unbroken_ring: Path, victim: str
) -> None:
    replace_in_ring(start_slowly(tmp_path / "run", *RING, "cluster.workers=3"), victim, unbroken_ring)


def replace_in_ring(run: Process, victim: str, unbroken: Path, has_memory: bool = True) -> None:
    """Kills a worker of a ring of three, and compares the end of the run with an unbroken run."""
    run_dir = run.run_dir
    folder = memory_of(run_dir) if has_memory else None
    before = {role: pids[0] for role, pids in processes(run_dir).items()}
    waiting = {role: pids[-1] for role, pids in processes(run_dir).items()}
    rows_before = len((run_dir / "metrics.jsonl").read_text().splitlines())
    os.kill(before[victim], signal.SIGKILL)
    wait_for_ends([before[victim]])
    run.wait_until(has_steps(run_dir, rows_before + 3))
    now = processes(run_dir)
    assert all((before[role] in pids) is (role != victim) and waiting[role] in pids for role, pids in now.items())
    end_quickly(run)
    assert "2 of 3 workers wait for another" in run.output and "all processes are ended" not in run.output
    assert_same(run_dir, unbroken)
    nobody_is_left(run_dir)
    assert folder is None or not folder.exists()


@pytest.mark.zoo
def test_nothing_is_left_of_a_supervisor_that_was_killed_and_another_run_goes_on(
    tmp_path: Path, unbroken: Path
) -> None:
    run, other = (start_slowly(tmp_path / name, *PS) for name in ("run", "other"))
    folder, others_folder = memory_of(tmp_path / "run"), memory_of(tmp_path / "other")
    assert folder != others_folder
    run.kill(signal.SIGKILL).end(-9)
    wait_until(lambda: not folder.exists() and not processes(tmp_path / "run"), 10)
    end_quickly(other)
    assert_same(tmp_path / "other", unbroken)
    assert not others_folder.exists()
    again = Process(tmp_path / "run", *PS, *SLOW, *WARM).end()
    assert "resumed at step" in " ".join(again.output.split())
    assert_same(tmp_path / "run", unbroken)


@pytest.mark.zoo
@pytest.mark.parametrize("store", ["dist_sync", "horovod"])
def test_a_standby_that_is_killed_while_it_takes_over_is_replaced(
    tmp_path: Path, unbroken: Path, unbroken_ring: Path, store: str
) -> None:
    """The second loss comes before the run has trained again, so that no standby is there."""
    if store == "horovod" and not has_horovod():
        pytest.skip("Horovod is not built here: scripts/horovod")
    run_dir = tmp_path / "run"
    run = start_slowly(run_dir, *(PS if store == "dist_sync" else (*RING, "cluster.workers=3")))
    folder = memory_of(run_dir)
    before, waiting = processes(run_dir)["worker1"]
    os.kill(before, signal.SIGKILL)
    wait_for_ends([before])
    os.kill(waiting, signal.SIGKILL)
    rows_before = len((run_dir / "metrics.jsonl").read_text().splitlines())
    run.wait_until(has_steps(run_dir, rows_before + 3))
    end_quickly(run)
    assert_same(run_dir, unbroken if store == "dist_sync" else unbroken_ring)
    nobody_is_left(run_dir)
    assert not folder.exists()


@pytest.mark.zoo
def test_kills_while_the_state_is_written_to_memory(tmp_path: Path, unbroken: Path) -> None:
    run_dir = tmp_path / "run"
    run = start_slowly(run_dir, *PS)
    folder = memory_of(run_dir)
    for _ in range(2):
        first = processes(run_dir)["worker0"][0]
        run.wait_until(lambda: any((folder / "states").glob(".tmp-step*")))
        os.kill(first, signal.SIGKILL)
        wait_for_ends([first])
        rows_before = len((run_dir / "metrics.jsonl").read_text().splitlines())
        run.wait_until(has_steps(run_dir, rows_before + 3))
    end_quickly(run)
    assert_same(run_dir, unbroken)
    nobody_is_left(run_dir)
    assert not folder.exists()


@pytest.mark.zoo
def test_states_of_killed_processes_are_removed_by_the_next_run(tmp_path: Path, unbroken: Path) -> None:
    run_dir = tmp_path / "run"
    run = start_slowly(run_dir, *PS)
    folder = memory_of(run_dir)
    guards = [pid for pid, command, _ in running_processes() if str(folder) in command]
    assert len(guards) == 1
    for pid in (*guards, run.popen.pid):
        os.kill(pid, signal.SIGKILL)
    run.end(-9)
    nobody_is_left(run_dir)
    assert folder.exists()
    (run_dir.parent / "go").touch()
    Process(run_dir, *PS, *SLOW, *WARM).end()
    assert_same(run_dir, unbroken)
    assert not folder.exists()


@pytest.mark.zoo
@pytest.mark.skipif(os.getuid() != 0 or shutil.which("unshare") is None, reason="a small /dev/shm needs root")
def test_a_dev_shm_that_is_too_small_leaves_the_checkpoints(tmp_path: Path, unbroken: Path) -> None:
    run_dir = tmp_path / "run"
    mount = 'mount -t tmpfs -o size=1100k tmpfs /dev/shm && exec "$@"'
    command = ["unshare", "-m", "sh", "-c", mount, "sh", sys.executable, "-m", "mxtrain"]
    run = Process(run_dir, *PS, *SLOW, "cluster.memory_steps=3", "trainer.log_interval=1", command=command)
    run.wait_until(has_steps(run_dir, 30))
    os.kill(processes(run_dir)["worker1"][0], signal.SIGKILL)
    run.end()
    printed = " ".join(run.output.split())
    assert "is not kept in memory: it takes" in printed and "Going on from the last checkpoint" in printed
    assert_same(run_dir, unbroken)
