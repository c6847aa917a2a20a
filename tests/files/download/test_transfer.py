"""Downloads from servers that break off, lie, stall and send wrong bytes."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Callable, Iterator, List, Sequence

import pytest
from http_server import FaultyServer, serving

from mxtrain.errors import DownloadError
from mxtrain.files.download.transfer import CHUNK_BYTES, DownloadLimits, WrongContent, fetch, verify_checksum

ROOT = Path(__file__).resolve().parents[3]
CONTENT = bytes(range(256)) * 4000
SHA1 = hashlib.sha1(CONTENT).hexdigest()
FAST = DownloadLimits(attempts=3, pause_s=0.0)

SCRIPT = f"""
import os, sys
from pathlib import Path
from mxtrain.files.download.transfer import fetch, verify_checksum
from mxtrain.errors import DownloadError

url, target, limit = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
if limit:
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

def use(part):
    verify_checksum(part, {SHA1!r})
    os.replace(part, target)

try:
    fetch(url, target, target.exists, use)
except DownloadError as error:
    sys.exit(str(error))
"""


@pytest.fixture
def server() -> Iterator[FaultyServer]:
    with serving() as server:
        server.files["/file"] = CONTENT
        yield server


def download(url: str, target: Path, limits: DownloadLimits = FAST) -> None:
    def use(part: Path) -> None:
        verify_checksum(part, SHA1)
        os.replace(part, target)

    fetch(url, target, target.exists, use, limits)


def start(url: str, target: Path, limit: int = 0) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, url, str(target), str(limit)],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def left_in(folder: Path) -> List[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    "faults, num_requests",
    [
        ([], 1),
        (["redirect"], 2),
        (["no_length"], 1),
        (["break"] * 5, 6),
        (["500", "429"], 3),
        (["silent"], 2),
        (["break", "ignore_range"], 2),
        (["break", "other_piece"], 3),
        (["lie_long"], 2),
        (["break", "wrong"], 3),
        (["break", "500", "500", "break", "500", "500"], 7),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, list) else "",
)
def test_download_succeeds_after_faults(
    server: FaultyServer, tmp_path: Path, faults: Sequence[str], num_requests: int
) -> None:
    server.faults["/file"] += faults
    download(f"{server.url}/file", tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert left_in(tmp_path) == ["file", "file.lock"]
    assert len(server.requests) == num_requests


def test_broken_download_continues_at_its_byte_and_existing_files_are_kept(
    server: FaultyServer, tmp_path: Path
) -> None:
    server.faults["/file"].append("break")
    download(f"{server.url}/file", tmp_path / "file")
    whole_chunks = len(CONTENT) // 2 // CHUNK_BYTES * CHUNK_BYTES
    assert server.requests == [("/file", ""), ("/file", f"bytes={whole_chunks}-")]
    download(f"{server.url}/file", tmp_path / "file")
    assert len(server.requests) == 2


def test_a_stalled_download_is_continued(server: FaultyServer, tmp_path: Path) -> None:
    server.faults["/file"].append("stall")
    download(f"{server.url}/file", tmp_path / "file", DownloadLimits(attempts=99, pause_s=0.0, timeout_s=0.1))
    assert (tmp_path / "file").read_bytes() == CONTENT and len(server.requests) >= 2


@pytest.mark.parametrize(
    "fault, path, said",
    [
        ("", "/none", r"answered 404 Not Found$"),
        ("403!", "/file", r"answered 403 Forbidden$"),
        ("500!", "/file", r"answered 500 Internal Server Error, 3 times in a row$"),
        ("silent!", "/file", r"closed the connection without an answer, 3 times in a row$"),
        ("wrong!", "/file", rf"the file has the sha1 \w+, the published one {SHA1}\. It was removed$"),
        ("lie_short!", "/file", r"the published one \w+\. It was removed$"),
    ],
)
def test_failed_download_is_explained(server: FaultyServer, tmp_path: Path, fault: str, path: str, said: str) -> None:
    server.faults[path] += [fault] if fault else []
    with pytest.raises(DownloadError, match=said):
        download(server.url + path, tmp_path / "file")
    assert left_in(tmp_path) == ["file.lock"]


def test_missing_network_fails_without_waiting(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # it does not listen
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/file"
        with pytest.raises(DownloadError, match=r"no connection \(Connection refused\)$"):
            download(url, tmp_path / "file", DownloadLimits(pause_s=1000))
    with pytest.raises(DownloadError, match="no connection"):
        download("nowhere/file", tmp_path / "file")


def test_pieces_of_another_version_are_downloaded_once_more(server: FaultyServer, tmp_path: Path) -> None:
    (tmp_path / "file.part").write_bytes(b"\1" * 1000)
    download(f"{server.url}/file", tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert server.requests == [("/file", "bytes=1000-"), ("/file", "")]


def test_complete_part_is_not_requested_again(server: FaultyServer, tmp_path: Path) -> None:
    """A process killed while it unpacks leaves a complete part."""
    (tmp_path / "file.part").write_bytes(CONTENT)
    download(f"{server.url}/file", tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT and len(server.requests) == 1


def test_a_file_that_is_too_large_is_refused_before_and_while_it_arrives(server: FaultyServer, tmp_path: Path) -> None:
    server.faults["/file"] += ["", "no_length"]
    for _ in range(2):
        with pytest.raises(DownloadError, match="more than 1,000 bytes"):
            download(f"{server.url}/file", tmp_path / "file", DownloadLimits(at_most=1000))
    assert left_in(tmp_path) == ["file.lock"]


def test_a_link_is_not_written_through(server: FaultyServer, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "file.part").symlink_to(tmp_path / "mine")
    with pytest.raises(DownloadError, match="link"):
        download(f"{server.url}/file", tmp_path / "file")
    assert (tmp_path / "mine").read_text() == "mine"


@pytest.mark.parametrize("algorithm", [hashlib.md5, hashlib.sha1, hashlib.sha256])
def test_checksums_of_each_kind(tmp_path: Path, algorithm: Callable) -> None:
    (tmp_path / "file").write_bytes(b"content")
    verify_checksum(tmp_path / "file", algorithm(b"content").hexdigest())
    with pytest.raises(WrongContent, match=algorithm().name):
        verify_checksum(tmp_path / "file", algorithm(b"other").hexdigest())


@pytest.mark.slow
def test_two_processes_download_once(server: FaultyServer, tmp_path: Path) -> None:
    server.faults["/file"].append("stall")
    first = start(f"{server.url}/file", tmp_path / "file")
    assert server.stalled.wait(30)
    second = start(f"{server.url}/file", tmp_path / "file")
    with pytest.raises(subprocess.TimeoutExpired):
        second.wait(3)  # it waits for the lock
    server.released.set()
    for process in (first, second):
        assert process.communicate(timeout=60)[1].count("Traceback") == 0 and process.returncode == 0
    assert [path for path, _ in server.requests] == ["/file"] * 2  # the stalled one, and its rest
    assert server.requests[1][1] and (tmp_path / "file").read_bytes() == CONTENT


@pytest.mark.slow
def test_a_killed_download_is_continued(server: FaultyServer, tmp_path: Path) -> None:
    server.faults["/file"].append("stall")
    process = start(f"{server.url}/file", tmp_path / "file")
    assert server.stalled.wait(30)
    part = tmp_path / "file.part"
    for _ in range(600):
        if part.exists() and part.stat().st_size > len(CONTENT) // 4:
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    arrived = part.stat().st_size
    download(f"{server.url}/file", tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert server.requests[1:] == [("/file", f"bytes={arrived}-")]


@pytest.mark.slow
def test_full_disk_is_reported_and_partial_files_are_removed(server: FaultyServer, tmp_path: Path) -> None:
    process = start(f"{server.url}/file", tmp_path / "file", limit=10_000)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 1 and "Traceback" not in said
    assert "cannot be written: File too large" in said
    assert left_in(tmp_path) == ["file.lock"]
