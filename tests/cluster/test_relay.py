"""A relay as the supervisor's channel starts it, on this host: it ends what it started when nothing is heard."""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Iterator, Optional

import pytest
from tiers import rest_in_zoo

from mxtrain import __version__
from mxtrain.cluster.process import LaunchSpec
from mxtrain.cluster.relayed import Channel, RelayedProcess

SILENCE_S = 1.5
SLEEP = "import sys, time; print('begun', flush=True); time.sleep(60)"


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def relayed(
    stack: ExitStack,
    tmp_path: Path,
    program: str,
    log: Optional[Path] = Path("log"),
    **more: object,
):
    """A process behind a relay."""
    spec = {
        "command": ["", "-c", program],  # the Python of the relay
        "environment": {},
        "is_worker": True,
        "proof": None,
    }
    message = {
        "launch_specs": [spec],
        "environment": {"DMLC_LOCAL": "1"},
        "interface": None,
        "silence_s": SILENCE_S,
        "version": __version__,
        **more,
    }
    command = [sys.executable, "-m", "mxtrain.cluster.remote"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    channel = Channel(command, environment, message, 30.0, "relay")
    stack.callback(channel.close)
    process = RelayedProcess(
        LaunchSpec("worker 0", [], {}, log and tmp_path / log), channel, 0, ranked=False, is_first=False
    )
    stack.callback(process.close)
    return process


def wait(process: RelayedProcess, done, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, process.describe_end()
        process.listen()
        time.sleep(0.05)


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def begun(process: RelayedProcess, log: Path):
    return lambda: process.pid > 0 and log.exists() and "begun" in log.read_text()


@pytest.mark.slow
def test_output_exit_codes_and_signals_are_relayed(stack: ExitStack, tmp_path: Path) -> None:
    text = "".join(f"line {number}: \u00e4\u20ac\n" for number in range(2000))
    process = relayed(stack, tmp_path, f"print({text!r}, end='', flush=True); import time; time.sleep(60)")
    wait(process, lambda: (tmp_path / "log").read_bytes() == text.encode())
    process.signal(signal.SIGTERM)
    wait(process, lambda: process.exit_code is not None)
    assert process.exit_code == -signal.SIGTERM and "SIGTERM" in process.describe_end()


@pytest.mark.slow
def test_stopped_process_is_distinguished_from_a_silent_one(stack: ExitStack, tmp_path: Path) -> None:
    process = relayed(stack, tmp_path, SLEEP)
    wait(process, begun(process, tmp_path / "log"))
    assert process.describe_silence(0.01) is None  # it may be busy: the relay lives
    process.signal(signal.SIGSTOP)
    wait(process, lambda: "stopped" in (process.describe_silence(0.01) or ""))


@pytest.mark.slow
@pytest.mark.parametrize("how", rest_in_zoo(["silent", "closed"], "silent"))
def test_processes_end_without_heartbeats_of_the_supervisor(stack: ExitStack, tmp_path: Path, how: str) -> None:
    process = relayed(stack, tmp_path, SLEEP)
    wait(process, begun(process, tmp_path / "log"))
    heard_until = time.monotonic() + 2 * SILENCE_S
    wait(process, lambda: time.monotonic() > heard_until)
    assert lives(process.pid)
    if how == "closed":
        process.kill()
    quiet_at = time.monotonic()
    while lives(process.pid):
        assert time.monotonic() - quiet_at < SILENCE_S + 1.5
        time.sleep(0.02)
    if how == "closed":
        assert time.monotonic() - quiet_at < SILENCE_S
    wait(process, lambda: process.describe_silence(5.0) is not None)
    assert "relay ended" in (process.describe_silence(5.0) or "")


def test_wrong_settings_are_refused(stack: ExitStack, tmp_path: Path) -> None:
    process = relayed(stack, tmp_path, SLEEP, version="0.0.1")
    wait(process, lambda: process.exit_code is not None)
    assert process.exit_code == 2 and "not 0.0.1" in process.describe_end() and __version__ in process.describe_end()


CHATTY = "import sys; print('x' * 300_000); sys.exit(5)"


@pytest.mark.slow
def test_a_full_disk_under_a_log_does_not_end_the_run(stack: ExitStack, tmp_path: Path) -> None:
    process = relayed(stack, tmp_path, CHATTY, log=Path("/dev/full"))
    wait(process, lambda: process.exit_code is not None)
    assert process.exit_code == 5


@pytest.mark.slow
def test_unread_output_does_not_block_a_process(
    stack: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = os.pipe()
    stack.callback(os.close, reader)
    monkeypatch.setattr(sys, "stdout", stack.enter_context(os.fdopen(writer, "w")))
    process = relayed(stack, tmp_path, CHATTY, log=None)
    wait(process, lambda: process.exit_code is not None)
    assert process.exit_code == 5
    count = 0
    while count < 300_001:
        count += len(os.read(reader, 1 << 16))


def test_first_and_last_lines_of_the_output_are_kept(stack: ExitStack) -> None:
    says = "print('-' * 40); print('the cause'); [print('line', n) for n in range(50)]; print('the end')"
    channel = Channel([sys.executable, "-c", says], dict(os.environ), {}, 30.0, "starter")
    stack.callback(channel.close)
    while channel.end is None:
        channel.exchange_messages()
        time.sleep(0.02)
    assert channel.end.endswith("exit code 0: the cause; line 0; line 49; the end")
