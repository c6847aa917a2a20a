"""Fork servers: runs that share nothing but imports, and nothing that is left after any kill."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional

import pytest
from waiting import wait_for_ends, wait_until

from mxtrain.cluster import fork_server
from mxtrain.cluster.fork_server import ForkedProcess, ForkServer, can_fork, receive
from mxtrain.cluster.process import state_of

pytestmark = pytest.mark.skipif(not can_fork(), reason="the C library has no _Fork")

SERVER = """
import json, logging, os, random, signal, sys, threading, time
from mxtrain.cluster.fork_server import serve, take_connection

if "thread" in sys.argv:
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
if "broken" in sys.argv:
    sys.exit(2)
order = serve(take_connection())
os.environ.clear()
os.environ.update(order.environment)
exec(order.arguments[0])
"""
SAYS = (
    "print(json.dumps([os.getpid(), os.getppid(), os.getsid(0), os.getcwd(), sys.argv[1:], os.environ.get('OWN'), "
    "logging.root.level, signal.getsignal(signal.SIGUSR1).name, sys.path.count('/leaked'), threading.active_count()]))"
)
CHANGES = (
    "os.environ['OWN'] = 'leaked'; os.chdir('/'); logging.root.setLevel(7); sys.path.append('/leaked'); "
    "signal.signal(signal.SIGTERM, signal.SIG_IGN); threading.Thread(target=time.sleep, args=(9,), daemon=True).start()"
)
SLEEPS = "print('runs', flush=True); time.sleep(60)"
BECOMES_SLEEP = "print('runs', flush=True); os.execvp('sleep', ['sleep', '60'])"


class Client:
    """A fork server with a script in place of mxtrain, and the output of its runs."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.server = folder, ForkServer(folder)
        self.log = folder / "log"

    def start(self, code: str, *more: str, kept: int = 0, **variables: str) -> Optional[ForkedProcess]:
        environment = {"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": os.environ["PATH"]}
        with self.log.open("wb") as log:
            return self.server.start([code, *more], environment, variables, log.fileno(), kept)

    def begin(self, code: str, **options: Any) -> ForkedProcess:
        run = self.start(code, **options)
        assert run is not None
        return run

    def sleep(self, code: str = SLEEPS, **options: Any) -> ForkedProcess:
        run = self.begin(code, **options)
        wait_until(lambda: b"runs" in self.log.read_bytes())
        return run

    @property
    def server_pid(self) -> int:
        assert self.server._process is not None
        return self.server._process.pid


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    script = tmp_path / "server.py"
    script.write_text(SERVER)
    monkeypatch.setattr(fork_server, "module_command", lambda _: [sys.executable, str(script)])
    made = Client(tmp_path)
    yield made
    made.server.close()


def test_runs_share_nothing_of_what_another_has_changed(client: Client) -> None:
    first = client.begin(SAYS, OWN="1")
    assert first.wait() == 0
    says = json.loads(client.log.read_text())
    assert says[0] == first.pid and says[1] == client.server_pid and says[2] == first.pid
    assert says[3:] == [str(client.folder), [SAYS], "1", 30, "SIG_DFL", 0, 1]
    assert client.begin(CHANGES, OWN="2").wait() == 0
    third = client.start(SAYS, "other")
    assert third is not None and third.wait() == 0
    assert json.loads(client.log.read_text())[1:] == [says[1], third.pid, says[3], [SAYS, "other"], None, *says[6:]]


def test_runs_start_with_the_modules_that_earlier_runs_have_imported(client: Client) -> None:
    """Only with mxtrain's own, as the user may change his modules between two runs; and nothing hinders the end."""
    (client.folder / "of_user.py").touch()
    names = ("mxtrain.errors", "mxtrain.cluster.ring", "mxtrain.cluster.hosts", "of_user")
    says = f"print([name in sys.modules for name in {names}])"
    imports = "sys.path.append('.'); import mxtrain.cluster.{}, of_user"
    leaves = "child = os.fork(); child or time.sleep(60); print(child)"
    assert client.begin(says).wait(20) == 0
    open_files = len(os.listdir(f"/proc/{client.server_pid}/fd"))
    for code, expected, exit_code in (
        (says, [True, False, False, False], 0),
        (imports.format("ring") + "; sys.modules['mxtrain.missing'] = None", None, 0),
        (imports.format("hosts") + "; os.kill(os.getpid(), 9)", None, -9),
        (says, [True, True, False, False], 0),
        ("sys.modules.update(dict.fromkeys(f'mxtrain.{number}' for number in range(10000)))", None, 0),
    ):
        assert client.begin(code).wait(20) == exit_code
        assert expected is None or client.log.read_text() == f"{expected}\n"
    # The server closes the pipe of the last run after it has answered.
    wait_until(lambda: len(os.listdir(f"/proc/{client.server_pid}/fd")) <= open_files)
    assert client.begin(leaves).wait() == 0
    left = int(client.log.read_text())
    try:
        assert client.begin(says).wait(20) == 0 and state_of(left) == "S"
    finally:
        os.kill(left, signal.SIGKILL)


def test_exit_codes(client: Client) -> None:
    for code, expected in (("sys.exit(3)", 3), ("os.kill(os.getpid(), 9)", -9), ("raise KeyError", 1)):
        run = client.begin(code)
        assert run.wait() == expected and run.wait() == expected
        run.terminate()  # nobody is there
    ended = run.pid
    assert client.begin("sys.exit(0)").wait() == 0 and state_of(ended) == ""


def test_killed_run_does_not_end_the_server(client: Client) -> None:
    run = client.sleep()
    before = client.server_pid
    with pytest.raises(subprocess.TimeoutExpired):
        run.wait(0.05)
    run.send_signal(signal.SIGKILL)
    assert run.wait() == -signal.SIGKILL
    assert client.begin("sys.exit(0)").wait(20) == 0 and client.server_pid == before
    client.server.close()
    assert state_of(before) == ""


def test_run_outlives_its_server(client: Client) -> None:
    run = client.sleep()
    os.kill(client.server_pid, signal.SIGKILL)
    waiting = threading.Thread(target=run.wait)
    waiting.start()
    waiting.join(0.15)
    assert waiting.is_alive() and state_of(run.pid) in ("R", "S")
    with pytest.raises(subprocess.TimeoutExpired):
        run.wait(0.05)
    run.terminate()
    waiting.join(20)
    assert run.wait() == -signal.SIGKILL  # its exit code is unknown
    assert client.start("sys.exit(0)") is None  # noticed only now
    assert client.begin("sys.exit(4)").wait() == 4  # another server


def test_server_ends_with_its_client_and_the_run_goes_on(client: Client) -> None:
    code = f"""
import os, signal, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from mxtrain.cluster import fork_server
fork_server.module_command = lambda _: [sys.executable, {str(client.folder / "server.py")!r}]
server = fork_server.ForkServer()
run = server.start(["time.sleep(60)"], dict(os.environ), {{}}, os.open(os.devnull, os.O_WRONLY), 0)
print(run.pid, server._process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    run, server = map(int, done.stdout.split())
    wait_until(lambda: state_of(server) in ("", "Z"))
    assert state_of(run) in ("R", "S")
    os.kill(run, signal.SIGKILL)


def test_a_run_reports_the_modules_of_mxtrain_that_it_has_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    before = frozenset(sys.modules)
    for name in ("mxtrain.new", "of_user"):
        monkeypatch.setitem(sys.modules, name, None)
    read, written = os.pipe()
    try:
        fork_server._report_modules(written, before)
        assert os.read(read, 1 << 16) == b"mxtrain.new"
    finally:
        os.close(read)
        os.close(written)


def test_a_run_whose_server_was_killed_ends_without_an_error(client: Client) -> None:
    """It has modules to report, and nobody reads."""
    waits = "[time.sleep(0.01) for _ in iter(lambda: os.path.exists('go'), True)]"
    code = f"import mxtrain.cluster.ring; open('runs', 'w'); {waits}; print('ended', file=sys.stderr)"
    run = client.begin(code)
    wait_until((client.folder / "runs").exists)
    os.kill(client.server_pid, signal.SIGKILL)
    (client.folder / "go").touch()
    wait_until(lambda: state_of(run.pid) in ("", "Z"))
    assert client.log.read_text() == "ended\n"


@pytest.mark.parametrize("reason", ["thread", "broken"])
def test_useless_server_is_not_started_again(client: Client, reason: str) -> None:
    assert client.start("sys.exit(0)", reason) is None
    assert client.server._process is None and client.start("sys.exit(0)") is None and not client.log.read_bytes()


def test_message_that_is_too_long_starts_a_new_process(client: Client) -> None:
    assert client.begin("sys.exit(0)").wait() == 0
    assert client.start("x" * (1 << 22)) is None


def test_interruption_ends_the_server_and_a_run_that_has_begun(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    assert client.begin("sys.exit(0)").wait() == 0
    before = client.server_pid
    received: List[Dict[str, Any]] = []

    def noted(connection: Any) -> Any:
        received.append(receive(connection))
        return received[-1]

    def interrupted(connection: Any) -> Any:
        monkeypatch.setattr(fork_server, "receive", noted)
        wait_until(lambda: b"runs" in client.log.read_bytes())
        raise KeyboardInterrupt

    monkeypatch.setattr(fork_server, "receive", interrupted)
    with pytest.raises(KeyboardInterrupt):
        client.start(SLEEPS)
    assert state_of(before) == ""
    wait_for_ends([received[0]["pid"]])


def test_run_alone_keeps_the_lock_that_it_is_given(client: Client) -> None:
    path = client.folder / "lock"

    def is_free() -> bool:
        with path.open("w") as other:
            try:
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True

    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        run = client.sleep(BECOMES_SLEEP, kept=file.fileno())
    assert not is_free()
    run.terminate()
    assert run.wait() == -signal.SIGTERM and is_free()


def test_a_libc_without_the_fork(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_server.ctypes, "CDLL", lambda _: object())
    assert not can_fork() and ForkServer().start([], {}, {}, 1, 0) is None
