"""Horovod's ring on this machine: the same numbers, and workers that come and go while training goes on."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Iterator

import pytest
from running import Process, assert_same, checkpoints, has_steps, rows, status, steps, verify
from test_workers import LENET, SLOW, nobody_is_left, processes

from mxtrain.checkpoint.contents import read_checkpoint
from mxtrain.cluster import ring as rings
from mxtrain.cluster.process import LaunchSpec
from mxtrain.cluster.process import Process as ClusterProcess
from mxtrain.cluster.ring import KeyValueServer, Ring, peer_user
from mxtrain.cluster.spec import Cluster
from mxtrain.cluster.supervisor import Supervisor
from mxtrain.kvstore import spec as kvstore
from mxtrain.kvstore.spec import has_horovod

pytestmark = pytest.mark.skipif(not has_horovod(), reason="Horovod is not built here: scripts/horovod")

RING = ("kvstore=horovod", "cluster.backoff=0.1")
WAITS = """
import os
import time
from pathlib import Path

from mxtrain.kvstore.world import JOINS
from mxtrain.callback.protocol import Callback

WENT_ON = Path(__file__).parent / "went_on"
while int(os.environ.get(JOINS, "0")) > 0 and not WENT_ON.exists():  # who takes a place comes after the others went on
    time.sleep(0.1)

class Waits(Callback):
    '''Training does not end before the lost worker has come back.'''
    awaits = False

    def on_message(self, text):
        if "lost the connection" in text:
            WENT_ON.touch()
        self.awaits = "lost the connection" in text or (self.awaits and "wants to join" not in text)

    def on_steps(self, rows, progress):
        if self.awaits:
            time.sleep(0.7)
"""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("undisturbed") / "run"
    Process(run_dir, *RING, "cluster.workers=3", *SLOW).end()
    return run_dir


def test_a_ring_resolves_no_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server that does not answer would hold the supervisor up."""
    monkeypatch.setattr(socket, "getfqdn", lambda *_: pytest.fail("asked for a name"))
    with closing(KeyValueServer("127.0.0.1")) as server:
        assert server.port


class Worker(ClusterProcess):
    """A worker as a supervisor sees it, without a process."""

    def __init__(self, number: int):
        super().__init__(LaunchSpec(f"worker {number}", [], {}, number=number))
        self.pid, self.gone = 1000 + number, None
        self.begun = time.monotonic()

    host = "localhost"
    exit_code = property(lambda self: self.gone)  # type: ignore[assignment]
    started_at = property(lambda self: self.begun)  # type: ignore[assignment]

    def asks_for(self, generation: int) -> None:
        self.last_heartbeat = {**self.last_heartbeat, "generation": generation}


def test_worker_that_died_after_joining_is_not_in_the_ring() -> None:
    workers = [Worker(number) for number in range(3)]
    with closing(Ring()) as ring:
        workers[2].asks_for(1)
        workers[2].gone = -9
        for worker in workers[:2]:
            worker.asks_for(1)
        ring.update(workers)
        assert ring.generation == 1 and ring.is_newcomer(workers[2]) and not ring.is_newcomer(workers[1])


@pytest.mark.parametrize(
    "consequence, cause",
    [(-signal.SIGABRT, -signal.SIGKILL), (1, -signal.SIGKILL), (-signal.SIGKILL, 2), (-signal.SIGSEGV, 1)],
)
def test_the_cause_of_the_end_of_several_workers(consequence: int, cause: int) -> None:
    for order in ((0, 1), (1, 0)):
        workers = [Worker(number) for number in range(3)]
        supervisor = Supervisor(Cluster(workers=3), lambda *_: [], list, print)
        workers[order[0]].gone, workers[order[1]].gone = consequence, cause
        failure = supervisor._first_failure(workers, workers)
        assert failure is not None and failure.process == f"worker {order[1]}"


def test_new_worker_that_never_joins_is_given_up() -> None:
    workers = [Worker(number) for number in range(3)]
    with closing(Ring()) as ring:
        for worker in workers[:2]:
            worker.asks_for(1)
        ring.update(workers[:2])
        supervisor = Supervisor(Cluster(workers=3, start_timeout=5), lambda *_: [], list, print, ring=ring)
        assert supervisor._late_newcomer(workers) is None
        workers[2].begun -= 6
        failure = supervisor._late_newcomer(workers)
        assert failure is not None and failure.process == "worker 2" and "start_timeout=5" in failure.cause
        workers[2].asks_for(2)
        assert supervisor._late_newcomer(workers) is None


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("replicas") / "run"
    Process(run_dir, "parallel=data", "parallel.devices=cpu:2", *LENET).end()
    return run_dir


JPEG_AFTER_HOROVOD = """
import io
from mxtrain.kvstore.horovod_store import load_horovod

load_horovod()
from PIL import Image

content = io.BytesIO()
Image.new("RGB", (8, 8), (200, 0, 0)).save(content, "JPEG")
print(Image.open(content).getpixel((0, 0)))
"""


@pytest.mark.slow
def test_jpeg_files_are_read_beside_horovod() -> None:
    """In a process of its own, because Horovod's libraries stay loaded."""
    ended = subprocess.run([sys.executable, "-c", JPEG_AFTER_HOROVOD], capture_output=True, text=True, check=True)
    assert ended.stdout == "(200, 0, 0)\n"


@pytest.mark.slow
def test_two_workers_equal_two_replicas(tmp_path: Path, replicas: Path) -> None:
    done = Process(tmp_path / "ring", *RING, "cluster.workers=2", *LENET).end()
    assert [row for row in rows(tmp_path / "ring") if row["split"] == "train"] == [
        row for row in rows(replicas) if row["split"] == "train"
    ]
    assert status(tmp_path / "ring")["weights_sha256"] == status(replicas)["weights_sha256"]
    assert "2 workers on this machine" in done.output
    nobody_is_left(tmp_path)


@pytest.mark.zoo
def test_verify_finds_the_numbers_of_one_device() -> None:
    done = verify(
        "tolerance=1e-10", *RING, "cluster.workers=3", "model=lenet", "parallel=data", "parallel.devices=cpu:2"
    )
    assert done.returncode == 0 and "the same as on one device" in done.stdout, done.stdout + done.stderr


@pytest.mark.zoo
@pytest.mark.parametrize("number, workers", [(signal.SIGSTOP, 3)])  # SIGKILL: where it is given up, below
def test_remaining_workers_continue_until_a_lost_one_is_replaced(
    tmp_path: Path, undisturbed: Path, number: int, workers: int
) -> None:
    (tmp_path / "waits.py").write_text(WAITS)
    run_dir = tmp_path / "run"
    run = Process(
        run_dir,
        *RING,
        f"cluster.workers={workers}",
        *SLOW,
        "+callback.waits._target_=waits.Waits",
        "cluster.heartbeat_timeout=2",
        "trainer.log_interval=1",
        env={"PYTHONPATH": f"{Path(__file__).parents[2]}:{tmp_path}"},
    ).wait_until(has_steps(run_dir, 45))
    (first,) = processes(run_dir)["worker0"]
    (pid,) = processes(run_dir)["worker1"]
    os.kill(pid, number)
    run.wait_until(lambda: processes(run_dir).get("worker1", [pid]) != [pid])
    assert processes(run_dir)["worker0"] == [first]  # nothing was restarted
    run.end()
    assert re.search(rf"worker 1 \(process {pid}\) was .*; {workers - 1} of {workers} workers go on", run.output)
    gone = re.search(rf"{workers - 1} workers? \(before: {workers}\) go on after step (\d+)", run.output)
    back = re.search(rf"{workers} workers \(before: {workers - 1}\) go on after step (\d+)", run.output)
    assert gone and back and 40 <= int(gone[1]) < int(back[1]), run.output
    assert "No step is lost or repeated, but shares of batches change" in run.output
    assert steps(run_dir) == steps(undisturbed)
    for row, expected in zip(rows(run_dir), rows(undisturbed)):
        assert row["loss"] == pytest.approx(expected["loss"], rel=1e-3)
    nobody_is_left(tmp_path)


@pytest.mark.zoo
def test_loss_of_worker_0_restarts_all_from_the_checkpoint_with_the_same_bits(
    tmp_path: Path, undisturbed: Path
) -> None:
    """Horovod's own fusion would put together what is ready at the same time, and so sum in another order each time."""
    run = Process(tmp_path / "run", *RING, "cluster.workers=3", *SLOW).wait_until(has_steps(tmp_path / "run", 45))
    (pid,) = processes(tmp_path / "run")["worker0"]
    os.kill(pid, signal.SIGKILL)
    run.end()
    assert_same(tmp_path / "run", undisturbed)
    assert "all processes are ended. Going on from the last checkpoint" in run.output
    nobody_is_left(tmp_path)


@pytest.mark.zoo
def test_compressed_gradients_on_a_ring_that_loses_a_worker(tmp_path: Path) -> None:
    """Everybody keeps its own residual. That all have theirs again from a checkpoint: test_compressed_workers.py."""
    given = (
        *RING,
        "cluster.workers=3",
        *SLOW,
        "kvstore.compression=2bit",
        "kvstore.threshold=0.01",
        "optimizer=sgd",
        "optimizer.lr=0.1",
    )
    run = Process(tmp_path / "run", *given).wait_until(has_steps(tmp_path / "run", 45))
    os.kill(processes(tmp_path / "run")["worker1"][0], signal.SIGKILL)
    run.end()
    assert status(tmp_path / "run")["best"]["value"] > 0.85
    assert "2 workers (before: 3) go on" in run.output


@pytest.mark.zoo
def test_repeatedly_lost_worker_is_given_up(tmp_path: Path) -> None:
    """HOROVOD_CYCLE_TIME, where it is set, does not end the others: Horovod would, by a segmentation fault."""
    run_dir = tmp_path / "run"
    run = Process(run_dir, *RING, "cluster.workers=2", *SLOW, "cluster.restarts=0", env={"HOROVOD_CYCLE_TIME": "3"})
    run.wait_until(has_steps(run_dir, 30))
    os.kill(processes(run_dir)["worker1"][0], signal.SIGKILL)
    run.end()
    assert "1 of 2 workers go on without it. cluster.restarts=0" in run.output
    assert status(run_dir)["state"] == "finished" and "Another takes its place" not in run.output


@pytest.mark.zoo
def test_sigterm_saves_and_exits_143(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run = Process(run_dir, *RING, "cluster.workers=2", *SLOW).wait_until(has_steps(run_dir, 30))
    os.kill(processes(run_dir)["worker1"][0], signal.SIGTERM)
    run.end(143)
    assert status(run_dir)["state"] == "interrupted"
    Process(run_dir, *SLOW).end()
    nobody_is_left(tmp_path)


def test_gloo_store_keeps_values_and_refuses_foreign_users() -> None:
    with closing(KeyValueServer("127.0.0.1")) as server:
        url = f"http://127.0.0.1:{server.port}/global/0"

        def put(value: bytes) -> int:
            try:
                request = urllib.request.Request(url, data=value, method="PUT")
                return int(urllib.request.urlopen(request, timeout=5).status)
            except urllib.error.HTTPError as error:
                return error.code

        assert put(b"address") == 200 and put(b"another") == 409 and put(b"x" * 70_000) == 403
        assert urllib.request.urlopen(url, timeout=5).read() == b"address"
    with closing(KeyValueServer("127.0.0.1", writable=False)) as server:
        url = f"http://127.0.0.1:{server.port}/mxtrain/next"
        assert put(json.dumps({"generation": 9}).encode()) == 403


def test_another_user_cannot_connect_to_the_ring() -> None:
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    with closing(KeyValueServer("127.0.0.1")) as server:
        server.values["/global/0"] = b"address"
        code = (
            "import http.client, os, socket, urllib.request; socket.getaddrinfo('127.0.0.1', 1); os.setuid(65534); "
            f"print(urllib.request.urlopen('http://127.0.0.1:{server.port}/global/0', timeout=5).read())"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 1 and "address" not in done.stdout
        assert "RemoteDisconnected" in done.stderr or "ConnectionResetError" in done.stderr


@contextmanager
def connection_of(user: int, is_open: bool) -> Iterator[socket.socket]:
    """Accepts a connection of a process of a user, which keeps it open or has ended."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        code = (
            "import os, socket, sys; socket.getaddrinfo('127.0.0.1', 1); "
            f"os.getuid() == {user} or os.setuid({user}); s = socket.socket(); "
            f"s.connect(('127.0.0.1', {listener.getsockname()[1]})); s.sendall(b'PUT /a HTTP/1.1'); sys.stdin.read()"
        )
        stdin = subprocess.PIPE if is_open else subprocess.DEVNULL
        with (
            subprocess.Popen([sys.executable, "-S", "-c", code], stdin=stdin) as process,
            closing(listener.accept()[0]) as connection,
        ):
            if not is_open:
                process.wait()
            yield connection
            process.communicate()


USERS = (os.getuid(), 65534) if os.getuid() == 0 else (os.getuid(),)
"""Users that a test can become."""


@pytest.mark.parametrize("answers", [True, False], ids=["kernel", "table"])
def test_user_at_the_other_end_of_a_connection(answers: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if answers:
        monkeypatch.setattr(rings, "_read_table", lambda *_: None)
    else:
        monkeypatch.setattr(rings, "_ask_kernel", lambda *_: None)
    for user in USERS:
        with connection_of(user, is_open=True) as connection:
            assert peer_user(connection) == user
        # The kernel would say that it is root's.
        with connection_of(user, is_open=False) as connection:
            assert peer_user(connection) is None


def test_ports_below_4096_are_found_in_the_table() -> None:
    """The table pads ports to four hexadecimal digits."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as client:
        for port in range(2000, 4096):
            with suppress(OSError):  # another process has it
                client.bind(("127.0.0.1", port))
                break
        client.connect(listener.getsockname())
        assert rings._read_table(client.getsockname(), listener.getsockname()) == os.getuid()


def test_a_server_at_the_port_of_a_client_is_not_that_client() -> None:
    """The kernel answers with it if the connection is gone."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert rings._ask_kernel(listener.getsockname(), ("127.0.0.1", 1)) is None


def test_kernel_without_socket_diagnosis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rings, "_NETLINK_SOCK_DIAG", 99)
    with connection_of(os.getuid(), is_open=True) as connection:
        assert peer_user(connection) == os.getuid()


def test_machine_that_tells_no_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The connection is refused, and the server goes on."""
    monkeypatch.setattr(rings, "_ask_kernel", lambda *_: None)
    monkeypatch.setattr(rings, "Path", lambda _: tmp_path / "missing")
    with closing(KeyValueServer("127.0.0.1")) as server:
        for _ in range(2):
            with pytest.raises(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{server.port}/a", timeout=5)
        monkeypatch.setattr(rings, "peer_user", lambda _: os.getuid())
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{server.port}/a", timeout=5)


def test_many_workers_connect_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    is_released = threading.Event()

    def wait(connection: socket.socket) -> None:
        is_released.wait(10)

    monkeypatch.setattr(rings, "peer_user", wait)
    with closing(KeyValueServer("127.0.0.1")) as server, ExitStack() as stack:
        for _ in range(64):
            stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=0.5))
        is_released.set()


def test_missing_horovod_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kvstore, "has_horovod", lambda: False)
    assert "scripts/horovod" in kvstore.Horovod().unsupported_reason("cpu:1")


DIES = """
import os

def network(num_classes, at=10):
    from mxnet import autograd, gluon

    class Dies(gluon.Block):
        '''Worker 1 is gone in the middle of a step, once.'''
        calls = 0

        def __init__(self):
            super().__init__()
            self.features = gluon.nn.Dense(32)
            self.norm = gluon.nn.BatchNorm()
            self.output = gluon.nn.Dense(num_classes)

        def forward(self, x):
            self.calls += autograd.is_training()
            if self.calls == at and os.environ.get("MXTRAIN_WORKER") == "1" and "MXTRAIN_JOINS" not in os.environ:
                os._exit(9)
            return self.output(self.norm(self.features(x.reshape((x.shape[0], -1)))))

    return Dies()
"""


@pytest.mark.zoo
def test_interrupted_step_keeps_moving_statistics(tmp_path: Path) -> None:
    """Step 10 is timed: then the loss is noticed elsewhere."""
    (tmp_path / "dies.py").write_text(DIES)
    (tmp_path / "conf" / "model").mkdir(parents=True)
    (tmp_path / "conf" / "model" / "dies.yaml").write_text("_target_: dies.network\nat: -1\n")
    env = {"PYTHONPATH": f"{Path(__file__).parents[2]}:{tmp_path}"}
    given = (
        *RING,
        "cluster.workers=3",
        "cluster.restarts=0",
        "--config-dir",
        str(tmp_path / "conf"),
        "model=dies",
        "dataset.batch_size=300",
        "trainer.max_steps=12",
    )
    found = {}
    runs = {}
    for name, step in (("undisturbed", -1), ("10", 10), ("11", 11)):
        runs[name] = Process(tmp_path / name, *given, f"model.at={step}", env=env).end(75)
        checkpoint = checkpoints(tmp_path / name)[-1]
        found[name] = read_checkpoint(tmp_path / name / "checkpoints" / checkpoint).arrays("model")
    moving = [name for name in found["undisturbed"] if "running" in name]
    assert len(moving) == 2
    for at in (10, 11):
        assert f"2 workers (before: 3) go on after step {at - 1}" in runs[f"{at}"].output
        assert steps(tmp_path / f"{at}") == list(range(1, 13))
        for name in moving:
            off = found[f"{at}"][name] - found["undisturbed"][name]
            assert (off**2).sum() < 0.05**2 * (found["undisturbed"][name] ** 2).sum()


@pytest.mark.zoo
def test_horovodrun_starts_members(tmp_path: Path, replicas: Path) -> None:
    launcher = shutil.which("horovodrun", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if launcher is None:
        pytest.skip("horovodrun is not installed")
    given = ("kvstore=horovod", "cluster.workers=2", *LENET)
    command = [launcher, "-np", "2", "--gloo", sys.executable, "-m", "mxtrain"]
    Process(tmp_path / "run", *given, command=command).end()
    assert status(tmp_path / "run")["weights_sha256"] == status(replicas)["weights_sha256"]
