"""Jobs of srun that wait in Slurm's queue, with programs in place of Slurm's commands."""

from __future__ import annotations

import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Callable, Iterator, List

import pytest

from mxtrain.cluster import launcher as launchers
from mxtrain.cluster import slurm as slurm_launcher
from mxtrain.cluster.frames import encode
from mxtrain.cluster.launcher import QueueDisplay
from mxtrain.cluster.relayed import RelayedProcess
from mxtrain.cluster.slurm import SlurmChannel, SlurmLauncher
from mxtrain.cluster.spec import Cluster

QUEUED = "echo 'srun: job 41 queued and waiting for resources'"


class Slurm:
    """Programs that note how they are called, and the channel of an srun."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self._stack = folder, stack
        self.write("scancel", f'echo "$@" >> {folder}/cancelled')
        self.write("squeue", f'echo "$@" >> {folder}/asked; echo "PENDING, reason Resources, expected start N/A"')

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (self.folder / name).chmod(0o755)

    def start(self, text: str) -> SlurmChannel:
        self.write("srun", text)
        channel = SlurmChannel([str(self.folder / "srun")], os.environ, {}, None, "srun")
        self._stack.callback(channel.close)
        return channel

    def calls(self, name: str) -> List[str]:
        file = self.folder / name
        return file.read_text().splitlines() if file.exists() else []


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Slurm]:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(launchers, "FIRST_S", 0.0)
    with ExitStack() as stack:
        yield Slurm(tmp_path, stack)


def exchange(channel: SlurmChannel, until: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 20
    while not until():
        assert time.monotonic() < deadline, channel.last_lines
        channel.exchange_messages()
        time.sleep(0.01)


def test_a_waiting_job_is_shown_and_cancelled(slurm: Slurm, capsys: pytest.CaptureFixture[str]) -> None:
    wait = f"while [ ! -e {slurm.folder}/go ]; do sleep 0.02; done"
    channel = slurm.start(f"echo one; echo two; {QUEUED}; {wait}; echo four; echo five; exec cat > /dev/null")
    exchange(channel, lambda: slurm.calls("asked"))
    line = "Slurm's job 41: PENDING, reason Resources, expected start N/A (Ctrl-C cancels it)\n"
    assert capsys.readouterr().err == line and slurm.calls("asked")[0].startswith("-h -j 41 -o ")
    (slurm.folder / "go").touch()
    exchange(channel, lambda: "five" in channel.last_lines)  # the line about the job is not among the last ones
    assert channel.job == "41" and len(slurm.calls("asked")) == 1
    channel.close()
    channel.close()
    assert slurm.calls("cancelled") == ["41"]
    assert capsys.readouterr().err == "job 41 was taken out of Slurm's queue\n"


def test_the_launcher_watches_the_queue(slurm: Slurm) -> None:
    slurm.write("srun", f'echo "$@" > {slurm.folder}/given; exec cat > /dev/null')
    launcher = SlurmLauncher(Cluster(workers=2, launcher="slurm", interface="lo", launcher_options=["-N2"]), None)
    with ExitStack() as stack:
        first, _ = launcher.start([], slurm.folder, 0, stack)
        assert isinstance(first, RelayedProcess) and isinstance(first._channel, SlurmChannel)
        exchange(first._channel, lambda: slurm.calls("given"))
    assert slurm.calls("given")[0].startswith("--ntasks=2 ") and " -N2 " in slurm.calls("given")[0]


@pytest.mark.parametrize(
    "text",
    [
        f"{QUEUED}; sleep 0.1; cat {{folder}}/hello; exec cat > /dev/null",
        f"{QUEUED}; sleep 0.1; exit 1",
        "echo 'srun: job 41 has been allocated resources'; exec cat > /dev/null",
    ],
    ids=["begun", "ended", "never waited"],
)
def test_a_job_that_does_not_wait_is_not_cancelled(slurm: Slurm, capsys: pytest.CaptureFixture[str], text: str) -> None:
    (slurm.folder / "hello").write_bytes(encode({"hello": "host", "rank": 0}))
    channel = slurm.start(text.replace("{folder}", str(slurm.folder)))
    exchange(channel, lambda: channel.last_lines)
    if "queued" in text:
        exchange(channel, lambda: channel.job or not channel.last_lines)
        exchange(channel, lambda: not channel.job)
    channel.exchange_messages()
    channel.close()
    assert slurm.calls("cancelled") == [] and "taken out" not in capsys.readouterr().err


@pytest.mark.parametrize("text", ["exit 1", "exec sleep 60", ""], ids=["fail", "hang", "missing"])
def test_failing_slurm_commands_do_not_end_the_run(
    slurm: Slurm, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(slurm_launcher, "TIMEOUT_S", 0.1)
    for name in ("squeue", "scancel"):
        slurm.write(name, text) if text else (slurm.folder / name).unlink()
    channel = slurm.start(f"{QUEUED}; exec cat > /dev/null")
    exchange(channel, lambda: channel.job)
    assert channel._state() == ""
    channel.close()
    assert capsys.readouterr().err == "job 41 was taken out of Slurm's queue\n"


@pytest.mark.parametrize(
    "is_terminal, expected",
    [
        (False, "A\nB\n"),
        (True, "\r\x1b[KA\r\x1b[KB\n"),
    ],
)
def test_a_state_is_shown_when_it_changes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, is_terminal: bool, expected: str
) -> None:
    now, asked = [0.0], []
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal, raising=False)

    def state() -> str:
        asked.append(now[0])
        return ("", "A", "A", "B")[len(asked) - 1]

    display = QueueDisplay(state)
    for now[0] in (0.99, 1.0, 5.0, 10.99, 11.0, 21.0, 31.0):
        display.update()
    display.close()
    now[0] = 100.0
    display.update()
    display.close()
    assert capsys.readouterr().err == expected and asked == [1.0, 11.0, 21.0, 31.0]
    QueueDisplay(lambda: "").close()
    assert capsys.readouterr().err == ""
