"""Sockets that only their user can reach: the folder, and what is replaced in libraries so that they use it."""

from __future__ import annotations

import _ctypes
import _socket
import atexit
import errno
import fcntl
import os
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Iterator, List, Tuple
from unittest.mock import Mock

import pytest

from mxtrain.engine.backend import mx
from mxtrain.errors import ConfigError
from mxtrain.private_sockets import folder, gloo, slow_link
from mxtrain.private_sockets.calls import find_calls
from mxtrain.private_sockets.zeromq import move_ps_lite

STAND_IN = "127.88.84.82"


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A short folder for temporary files: the path of a socket has 107 bytes at most."""
    import shutil
    import tempfile

    made = Path(tempfile.mkdtemp(prefix="place-", dir="/tmp"))
    monkeypatch.setattr(tempfile, "tempdir", str(made))
    monkeypatch.setenv("DMLC_LOCAL", "1")
    yield made
    shutil.rmtree(made)


def test_the_folder_is_private_and_has_a_random_name(place: Path) -> None:
    with folder.socket_folder() as one, folder.socket_folder() as other:
        assert one.parent == other.parent == place and one.name[-16:] != other.name[-16:]
        found = one.lstat()
        assert stat.S_IMODE(found.st_mode) == 0o700 and found.st_uid == os.getuid()
        (one / "1").touch()
    assert list(place.iterdir()) == []


def test_held_back_bytes_arrive_later_and_in_order(place: Path) -> None:
    """A link through `SlowLinks` has the same bytes in both directions; what another worker sends does not wait."""

    def linked(rank: int) -> Tuple[socket.socket, socket.socket]:
        near = socket.socket(socket.AF_UNIX)
        near.connect(str(slow_link.link_through(links.control, rank, place / "target")))
        far, _ = server.accept()
        return near, far

    with folder.socket_folder() as own, socket.socket(socket.AF_UNIX) as server:
        links = slow_link.SlowLinks(own)
        early = socket.socket(socket.AF_UNIX)
        early.connect(str(slow_link.link_through(links.control, 0, place / "target")))
        assert early.recv(1) == b""  # nobody listens yet, so the library tries again
        server.bind(str(place / "target"))
        server.listen()
        (near, far), (other_near, other_far) = linked(0), linked(1)
        near.sendall(b"a" * 100_000)
        assert far.recv(100_000, socket.MSG_WAITALL) == b"a" * 100_000
        with links.hold(0) as num_bytes:
            near.sendall(b"bc")
            while not num_bytes():
                time.sleep(0.001)
            far.setblocking(False)
            with pytest.raises(BlockingIOError):
                far.recv(1)
            far.setblocking(True)
            other_near.sendall(b"other")
            assert other_far.recv(5) == b"other"
            far.sendall(b"answer")
            assert near.recv(6) == b"answer"  # only what the worker sends waits
        assert far.recv(2, socket.MSG_WAITALL) == b"bc" and num_bytes() == 2
        ring_near, ring_far = linked(slow_link.RING_LINKS)
        with links.hold(slow_link.RING_LINKS) as num_bytes:
            ring_near.sendall(b"12")
            ring_far.sendall(b"345")
            while num_bytes() < 5:
                time.sleep(0.001)
            for end in (ring_near, ring_far):  # either end may be the one that connected
                end.setblocking(False)
                with pytest.raises(BlockingIOError):
                    end.recv(1)
                end.setblocking(True)
        assert ring_far.recv(2, socket.MSG_WAITALL) == b"12" and ring_near.recv(3, socket.MSG_WAITALL) == b"345"
        near.close()
        assert far.recv(1) == b""  # an end is passed on
        links.close()
        for one in (early, far, other_near, other_far, ring_near, ring_far):
            one.close()


def test_what_a_killed_supervisor_left_goes_at_the_next_start_and_what_lives_stays(place: Path) -> None:
    abandoned = place / f"{folder.PREFIX}abandoned"
    abandoned.mkdir()
    (abandoned / "1").touch()
    others = place / "others"
    others.mkdir()
    (place / f"{folder.PREFIX}link").symlink_to(others)
    with folder.socket_folder() as living:
        with folder.socket_folder():
            assert living.is_dir() and not abandoned.exists()
        assert others.is_dir()


def test_a_folder_that_another_process_clears_away_before_it_is_locked_is_made_again(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: List[Path] = []

    def make(wanted: Path) -> None:
        wanted.mkdir(mode=0o700)
        made.append(wanted)
        if len(made) == 1:
            folder.remove_abandoned(place)
        assert wanted.is_dir() == (len(made) > 1)

    monkeypatch.setattr(folder, "_make", make)
    monkeypatch.setattr(atexit, "register", lambda *_: None)
    joined = folder.join_folder("job")
    assert made == [joined, joined] and joined.is_dir()
    folder._leave(joined)
    assert not joined.exists()


def test_processes_of_a_job_meet_in_one_folder_and_the_last_one_removes_it(place: Path) -> None:
    code = (
        f"import sys, tempfile; tempfile.tempdir = {str(place)!r}; from mxtrain.private_sockets.folder import *\n"
        "print(join_folder('job'), flush=True); sys.stdin.read()"
    )
    both = [
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = {process.stdout.readline().strip() for process in both if process.stdout is not None}
    assert len(said) == 1 and Path(said.pop()).parent == place
    both[0].communicate()
    assert len(list(place.iterdir())) == 1
    both[1].communicate()
    assert list(place.iterdir()) == []


def test_a_folder_that_is_remade_while_it_is_looked_at_stays(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of a job start together, and each removes what looks abandoned to it."""
    abandoned = place / f"{folder.PREFIX}{os.getuid()}-job"
    abandoned.mkdir(mode=0o700)
    lock = fcntl.flock

    def late(opened: int, kind: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        abandoned.rename(place / "removed")
        assert folder.join_folder("job") == abandoned
        lock(opened, kind)

    monkeypatch.setattr(atexit, "register", lambda *_: None)
    monkeypatch.setattr(fcntl, "flock", late)
    folder.remove_abandoned(place)
    assert abandoned.is_dir()
    folder._leave(abandoned)
    assert not abandoned.exists()


JOIN = {"socket_folder": lambda: folder.socket_folder().__enter__(), "join_folder": lambda: folder.join_folder("job")}


@pytest.mark.parametrize("join", JOIN)
@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_is_named_with_the_remedy(
    place: Path, monkeypatch: pytest.MonkeyPatch, join: str, number: int
) -> None:
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(number, os.strerror(number))))
    opened = len(os.listdir("/proc/self/fd"))
    with pytest.raises(ConfigError, match=f"^{place}, .* no locks .{os.strerror(number)}.* Set TMPDIR"):
        JOIN[join]()
    assert list(place.iterdir()) == [] and len(os.listdir("/proc/self/fd")) == opened


@pytest.mark.parametrize("join", JOIN)
def test_a_full_disk_is_named_with_the_remedy(place: Path, monkeypatch: pytest.MonkeyPatch, join: str) -> None:
    monkeypatch.setattr(Path, "mkdir", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(ConfigError, match=f"in {place} .*: No space left on device. Set TMPDIR"):
        JOIN[join]()


def test_a_folder_that_others_have_taken_or_can_enter_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = place / f"{folder.PREFIX}{os.getuid()}-job"
    taken.mkdir(mode=0o755)
    lock = os.open(taken, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_SH)  # it is used: or it would be removed as abandoned
    with pytest.raises(ConfigError, match="can be entered by others"):
        folder.join_folder("job")
    os.close(lock)
    target = place / "mine"
    target.mkdir(mode=0o700)
    link = place / "link"
    link.symlink_to(target)
    monkeypatch.setenv(folder.VARIABLE, str(link))
    with pytest.raises(ConfigError, match="belongs to user"):
        folder.given_folder()
    monkeypatch.setenv(folder.VARIABLE, str(place / "gone"))
    with pytest.raises(ConfigError, match="is gone"):
        folder.given_folder()
    if os.getuid() == 0:
        os.chown(target, 65534, 65534)
        monkeypatch.setenv(folder.VARIABLE, str(target))
        with pytest.raises(ConfigError, match="belongs to user 65534"):
            folder.given_folder()


def test_no_folder_is_made_where_others_can_replace_it(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place.chmod(0o777)
    with folder.socket_folder() as made:
        assert made.parent == Path("/tmp")  # which has the sticky bit
    monkeypatch.setattr(folder, "_is_safe", lambda _: False)
    with pytest.raises(ConfigError, match="Set TMPDIR to a folder of your own"):
        with folder.socket_folder():
            pass


def test_what_libmxnet_calls_of_zeromq_is_found() -> None:
    assert set(find_calls(Path(mx.base._LIB._name), ["zmq_bind", "zmq_connect"])) == {"zmq_bind", "zmq_connect"}
    assert find_calls(Path(mx.base._LIB._name), ["no_such_function"]) == {}


def test_a_library_that_cannot_be_redirected_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with folder.socket_folder() as made:
        monkeypatch.setenv(folder.VARIABLE, str(made))
        with pytest.raises(ConfigError, match="built in a way that does not let mxtrain choose"):
            move_ps_lite(_ctypes.__file__)
        monkeypatch.setattr(gloo, "find_calls", lambda *_: {})
        gloo.move_gloo(sys.executable)  # without Gloo nothing listens
        monkeypatch.setattr(gloo, "find_calls", lambda *_: {"bind": [1]})
        monkeypatch.setattr(gloo, "replace_calls", lambda *_: False)
        with pytest.raises(ConfigError, match="built in a way that does not let mxtrain choose"):
            gloo.move_gloo(sys.executable)


# In a process of its own, whose sockets stand for Gloo's.
AS_GLOO = """
import _socket, os, socket, sys, threading
from mxtrain.private_sockets.gloo import move_gloo
move_gloo(_socket.__file__)
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(("127.0.0.1", 0))
listener.listen(8)
address = listener.getsockname()
folder = os.environ["MXTRAIN_SOCKETS"]
assert address[0] == "127.88.84.82" and os.listdir(folder) == [str(address[1])], (address, os.listdir(folder))
client = socket.socket()
client.setblocking(False)
client.connect(address)
assert not client.getblocking()
client.setblocking(True)
fd, _ = listener._accept()
server = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, fileno=fd)
for end in (client, server):
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    assert os.readlink(f"/proc/self/fd/{end.fileno()}").startswith("socket:")
assert client.getpeername() == address and server.getsockname() == address
assert server.getpeername() == ("127.88.84.82", 0)
client.sendall(b"sum")
assert server.recv(3) == b"sum"
try:
    socket.socket().connect((address[0], address[1] % 65535 + 1))
except FileNotFoundError:
    print("nobody there")
elsewhere = socket.socket()
elsewhere.bind(("0.0.0.0", 0))
assert elsewhere.getsockname()[0] == "0.0.0.0"
elsewhere.listen()
socket.create_connection(("127.0.0.1", elsewhere.getsockname()[1])).close()
tcp = open("/proc/net/tcp").read().splitlines()[1:]
assert not any(f"{address[1]:04X}" == line.split()[1].partition(":")[2] and line.split()[3] == "0A" for line in tcp)
move_gloo(_socket.__file__)
assert os.listdir(folder) == []
"""


@pytest.mark.skipif(not hasattr(_socket, "__file__"), reason="this Python has no library of its own for sockets")
def test_connections_over_loopback_go_through_the_folder(place: Path) -> None:
    """All that Gloo asks of its sockets, asked by Python's own library, in which the same calls are replaced."""
    with folder.socket_folder() as made:
        done = subprocess.run(
            [sys.executable, "-c", AS_GLOO],
            env={**os.environ, folder.VARIABLE: str(made)},
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0 and done.stdout == "nobody there\n", done.stdout + done.stderr


def test_whoever_listens_is_asked_for_the_user(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(place / "1")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        loopback = gloo.Loopback(place)
        monkeypatch.setattr(gloo, "_peer_user", lambda _: os.getuid() + 1)
        monkeypatch.setattr(gloo, "_read", lambda *_: (socket.inet_aton(STAND_IN), 1))
        with pytest.raises(PermissionError, match="another user"):
            loopback.connect(None)(0, 0, 0)
