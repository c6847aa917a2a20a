"""Processes of other launchers: host names, missing schedulers, limits of waits."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Dict, List

import pytest
from running import ROOT, SMALL, status
from waiting import free_port

from mxtrain.cluster import joining
from mxtrain.cluster.joining import JoinWatch, NotJoined, Wait, connect_store, count_connections, find_scheduler
from mxtrain.cluster.member import Member, find_member
from mxtrain.errors import ConfigError
from mxtrain.kvstore.world import World

WORKER, SCHEDULER, SERVER = Member("worker", World(1, 2)), Member("scheduler"), Member("server")


def environment(port: int, host: str = "localhost", **more: str) -> Dict[str, str]:
    return {"DMLC_PS_ROOT_URI": host, "DMLC_PS_ROOT_PORT": str(port), **more}


@pytest.fixture
def listener():
    with socket.create_server(("127.0.0.1", 0)) as opened:
        yield opened


def test_names_become_addresses(listener: socket.socket) -> None:
    environ = environment(listener.getsockname()[1], DMLC_NODE_HOST="localhost")
    find_scheduler(WORKER, 5, environ)
    assert (environ["DMLC_PS_ROOT_URI"], environ["DMLC_NODE_HOST"]) == ("127.0.0.1", "127.0.0.1")


@pytest.mark.parametrize("member", [WORKER, SCHEDULER], ids=["worker", "scheduler"])
def test_name_of_an_earlier_pod_is_resolved_again(
    member: Member, listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    addresses = iter(["192.0.2.1", "192.0.2.1", "127.0.0.1"])
    monkeypatch.setattr(joining, "ipv4_of", lambda host: next(addresses, "127.0.0.1"))
    monkeypatch.setattr(joining, "_PROBE_S", 0.02)
    monkeypatch.setattr(joining, "POLL_S", 0.01)
    port = listener.getsockname()[1] if member is WORKER else free_port()
    environ = environment(port, "mxtrain-node-0-0.mxtrain")
    find_scheduler(member, 5, environ)
    assert environ["DMLC_PS_ROOT_URI"] == "127.0.0.1"


def test_name_of_another_machine_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "ipv4_of", lambda host: "192.0.2.1")
    with pytest.raises(NotJoined, match=r"until elsewhere is an address of this machine \(192.0.2.1\): given up"):
        find_scheduler(SCHEDULER, 0.1, environment(9091, "elsewhere"))


@pytest.mark.parametrize(
    "host, port, said",
    [
        ("", "9091", "DMLC_PS_ROOT_URI= and DMLC_PS_ROOT_PORT=9091"),
        ("localhost", "", "DMLC_PS_ROOT_PORT= "),
        ("localhost", "0", "DMLC_PS_ROOT_PORT=0 "),
        ("localhost", "65536", "host and port"),
        ("localhost", "http", "host and port"),
        ("::1", "9091", "needs an IPv4 address"),
    ],
)
def test_wrong_variables_are_refused(host: str, port: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        find_scheduler(WORKER, 0, {"DMLC_PS_ROOT_URI": host, "DMLC_PS_ROOT_PORT": port})


def test_a_single_worker_needs_no_number() -> None:
    environ = {"DMLC_ROLE": "worker", "DMLC_NUM_WORKER": "1"}
    assert find_member(environ) == Member("worker", World(0, 1))
    with pytest.raises(ConfigError, match="no variable says which: set MXTRAIN_WORKER"):
        find_member({**environ, "DMLC_NUM_WORKER": "2"})


def test_the_largest_port_is_taken() -> None:
    environ = environment(65535)
    find_scheduler(SCHEDULER, 0, environ)
    assert environ["DMLC_PS_ROOT_PORT"] == "65535"


def test_scheduler_that_cannot_listen_reports_the_reason(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    with pytest.raises(ConfigError, match=f"127.0.0.1:{port}: another program listens there. Set DMLC_PS_ROOT_PORT"):
        find_scheduler(SCHEDULER, 0, environment(port))
    with pytest.raises(ConfigError, match="192.0.2.1: it is no address of this machine"):
        find_scheduler(SCHEDULER, 0, environment(port, "192.0.2.1"))
    # The address that it binds to counts.
    with pytest.raises(ConfigError, match="another program listens there"):
        find_scheduler(SCHEDULER, 0, environment(port, "192.0.2.1", DMLC_NODE_HOST="127.0.0.1"))


@pytest.mark.slow
@pytest.mark.parametrize("member, name", [(WORKER, "worker 1"), (SERVER, "this server")])
def test_missing_scheduler_is_reported_until_the_timeout(
    member: Member, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(joining, "FIRST_LINE_S", 0.05)
    monkeypatch.setattr(joining, "POLL_S", 0.02)
    port = free_port()
    with pytest.raises(NotJoined, match="cluster.start_timeout=0.3 s"):
        find_scheduler(member, 0.3, environment(port))
    assert capsys.readouterr().err == (
        f"{name} waits for the scheduler at localhost:{port}, for at most 0.3 s (cluster.start_timeout)\n"
    )
    with pytest.raises(NotJoined, match=r"IPv4 address of the scheduler's host nowhere.invalid \(.*\): given up after"):
        find_scheduler(member, 0.1, environment(port, "nowhere.invalid"))


def test_waiting_is_reported_every_half_minute(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    wait = Wait("it waits", 100)
    said: List[float] = []
    for at in range(0, 101):
        now[0] = at
        wait.check("2 of 3")
        said += [at] * len(capsys.readouterr().err.splitlines())
    assert said == [4, 35, 66, 97]
    now[0] = 100.5
    with pytest.raises(NotJoined, match=r"^it waits \(2 of 3\): given up after cluster.start_timeout=100 s$"):
        wait.check("2 of 3")


@pytest.mark.parametrize("name, value", [("DMLC_LOCAL", "1"), ("supervised", "")])
def test_sockets_and_supervised_processes_need_no_wait(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "supervised":
        monkeypatch.setattr(joining, "HEARTBEAT", SimpleNamespace(has_listener=True))
    find_scheduler(WORKER, 0, {name: value})
    assert JoinWatch("server", 0, {name: value}).has_joined()


@pytest.mark.slow
def test_a_store_that_does_not_connect_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "POLL_S", 0.02)
    monkeypatch.setenv("DMLC_NUM_WORKER", "2")
    slow = SimpleNamespace(distributed=True, build=lambda world: time.sleep(0.5))
    with pytest.raises(NotJoined, match=r"worker 1 waits for the other processes of the run \(2 workers, \? servers"):
        connect_store(slow, World(1, 2), 0.1)  # type: ignore[arg-type]

    def refuse(world: World) -> None:
        raise ConfigError("no")

    with pytest.raises(ConfigError, match="no"):
        connect_store(SimpleNamespace(distributed=True, build=refuse), World(1, 2), 5)  # type: ignore[arg-type]
    for distributed in (True, False):
        store = SimpleNamespace(distributed=distributed, build=lambda world: world)
        assert connect_store(store, World(1, 2), 5) == World(1, 2)  # type: ignore[arg-type]


def test_connection_counts_show_missing_processes(listener: socket.socket) -> None:
    environ = {"DMLC_NUM_WORKER": "2", "DMLC_NUM_SERVER": "1"}
    before = count_connections()
    watches = {role: JoinWatch(role, 1, environ) for role in ("scheduler", "server")}
    for watch in watches.values():
        watch._needed += before  # connections of other tests
    with ExitStack() as stack:
        stack.enter_context(socket.create_connection(listener.getsockname()))
        stack.enter_context(listener.accept()[0])  # both ends are this process's
        assert count_connections() == before + 2
        assert not any(watch.has_joined() for watch in watches.values())
        stack.enter_context(socket.create_connection(listener.getsockname()))
        assert watches["server"].has_joined()  # the scheduler and 2 workers
        stack.enter_context(listener.accept()[0])
        assert not watches["scheduler"].has_joined()
        stack.enter_context(socket.create_connection(listener.getsockname()))
        assert watches["scheduler"].has_joined()  # both ends of its own, 2 workers and a server
    assert all(watch.has_joined() for watch in watches.values())


def launched(run_dir: Path, role: str, port: int, *overrides: str, host: str = "localhost") -> subprocess.Popen:
    variables = {
        **environment(port, host),
        "DMLC_ROLE": role,
        "DMLC_NUM_WORKER": "1",
        "DMLC_NUM_SERVER": "1",
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "3" if role == "scheduler" else "1",  # threads that take signals, or none
    }
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "mxtrain",
            f"hydra.run.dir={run_dir}",
            *SMALL,
            "trainer.max_epochs=1",
            "kvstore=dist_sync",
            "cluster.workers=1",
            "cluster.servers=1",
            *overrides,
        ],
        env={**os.environ, **variables},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


@pytest.mark.slow
def test_a_run_is_started_with_the_name_of_the_schedulers_host(tmp_path: Path) -> None:
    port = free_port()
    started = [launched(tmp_path / "run", role, port) for role in ("worker", "server", "scheduler")]
    said = [process.communicate(timeout=120)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0, 0], said
    assert status(tmp_path / "run")["state"] == "finished"


@pytest.mark.slow
@pytest.mark.parametrize("role", ["worker", "server", "scheduler"])
def test_process_of_an_incomplete_run_reports_it_and_ends_on_sigterm(tmp_path: Path, role: str) -> None:
    """The worker meets a socket that listens but is no scheduler."""
    with ExitStack() as stack:
        port = free_port()
        if role != "scheduler":
            port = stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
        process = launched(tmp_path / "run", role, port)
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if "waits for the other processes of the run (1 workers, 1 servers, a scheduler)" in line:
                    break
            else:
                pytest.fail(f"it ended with {process.wait()}")
            if role != "worker":
                process.send_signal(signal.SIGUSR1)  # a warning of the scheduler of a cluster, which is for workers
                time.sleep(0.3)
            process.send_signal(signal.SIGTERM)
            begun = time.monotonic()
            assert process.wait(20) == 143 and time.monotonic() - begun < 10
        finally:
            process.kill()
            process.communicate()
