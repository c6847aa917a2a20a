"""Several processes that train in turns: one block of steps each, again and again, the others standing still.

A machine drifts within seconds; two processes measured one after the other meet different machines, two that take turns
meet the same one. A block ends when all of its work is done, on all sides.

    parent                      child
    in_turns: "go"         ->   Turns.next: begins a block
              seconds      <-   Turns.next: the block is done
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence

from bench_parts.measured import say
from bench_parts.processes import ProcessFailed
from bench_parts.turn import SOCKET, Turns
from mxtrain.types import Callback, Progress

REST_S = 0.3
"""PyTorch's and plain MXNet's threads spin for 0.2 s after their work; the next side must not meet that."""
FIRST_BLOCK_S, BLOCK_S = 300, 300


class TurnsCallback(Callback):
    """Ends a block after so many steps, whenever else the runner looks at the device."""

    def __init__(self, block_steps: int) -> None:
        self._block_steps = self._end = block_steps
        self._turns = Turns()

    @staticmethod
    def overrides(block_steps: int) -> List[str]:
        """What takes turns in a run, every so many steps."""
        target = "+callback.turns._target_=bench_parts.turns.TurnsCallback"
        return [target, f"+callback.turns.block_steps={block_steps}", f"trainer.log_interval={block_steps}"]

    def on_steps(self, rows: Sequence[Mapping[str, Any]], progress: Progress) -> None:
        from mxtrain.engine.backend import nd
        from mxtrain.trainer.recorder import STEPS_AHEAD

        if rows[-1]["step"] < self._end - STEPS_AHEAD:  # rows are so much behind what was put to work
            return
        nd.waitall()
        self._end += self._block_steps
        self._turns.next()


@dataclass(frozen=True)
class Side:
    """A process that trains and calls `Turns.next` between blocks: `python ARGUMENTS`."""

    arguments: Sequence[str]
    environment: Mapping[str, str]
    copies: int = 1
    """Processes that do the same at the same time; a block ends when all have done theirs."""
    python: str = sys.executable
    stopped_between: bool = False
    """Its processes, workers too, stand still by SIGSTOP while others have their turn: nothing is loaded ahead in
    time that nobody measures."""


def in_turns(
    sides: Mapping[str, Side], blocks: int, folder: Path, peak_MiB: Optional[Dict[str, float]] = None
) -> Dict[str, List[float]]:
    """Seconds of each block of each side; two more are made first, and not counted.

    Args:
        sides: by name.
        blocks: how many of each.
        folder: for what they write.
        peak_MiB: is told the most memory that each side had (its processes together, see `_Player.peak_MiB`).

    Raises:
        ProcessFailed: one ended early; the message holds the end of what it printed.
    """
    found: Dict[str, List[float]] = {name: [] for name in sides}
    with ExitStack() as stack:
        players = {}
        # One after the other: who starts beside others waits for cores, and its threads would sleep for seconds after.
        for name, side in sides.items():
            players[name] = [stack.enter_context(_Player(name, side, folder)) for _ in range(side.copies)]
            for player in players[name]:
                player.wait(FIRST_BLOCK_S)
        for number in range(-1, blocks):
            for name in list(players) if number % 2 == 0 else reversed(list(players)):
                time.sleep(REST_S)
                for player in players[name]:
                    player.begin()
                seconds = max(float(player.wait(BLOCK_S)) for player in players[name])
                if number >= 0:
                    found[name].append(seconds)
        for name, processes in players.items() if peak_MiB is not None else ():
            peak_MiB[name] = sum(player.peak_MiB for player in processes)
        for name, values in found.items():
            say(f"  {name}: {' '.join(f'{value:.3f}' for value in values)} s a block")
    return found


class _Player:
    """A running side."""

    def __init__(self, name: str, side: Side, folder: Path):
        self._name, self._side = name, side
        self._folder = Path(tempfile.mkdtemp(prefix="side-", dir=folder))

    def __enter__(self) -> _Player:
        # A socket's path must be short.
        self._socket_folder = tempfile.TemporaryDirectory(prefix="turns-")
        path = os.path.join(self._socket_folder.name, "s")
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(path)
        self._server.listen(1)
        self._log = open(self._folder / "log", "w+b")
        self._process = subprocess.Popen(
            [self._side.python, *self._side.arguments], env={**self._side.environment, SOCKET: path}, cwd=self._folder,
            stdin=subprocess.DEVNULL, stdout=self._log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        self._stream: Any = None
        self._others_MiB = 0.0
        return self

    def __exit__(self, *exception: Any) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._stream is not None:
            self._stream.close()
            self._connection.close()
        self._server.close()
        self._log.close()
        self._socket_folder.cleanup()

    @property
    def peak_MiB(self) -> float:
        """The most memory that it had so far (VmHWM), and the most that its further processes had for themselves alone
        at the end of a block: what they share with it counts once."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return _sum_MiB(status, "VmHWM") + self._others_MiB

    def _note_memory(self) -> None:
        """Looks at the further processes of its group, a loader's workers."""
        found = 0.0
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it may have ended
                if int(path.name) != self._process.pid and os.getpgid(int(path.name)) == self._process.pid:
                    found += _sum_MiB((path / "smaps_rollup").read_text(), "Private_")
        self._others_MiB = max(self._others_MiB, found)

    def wait(self, timeout_s: float) -> str:
        """The child's next word."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                if self._stream is None:
                    self._server.settimeout(1.0)
                    self._connection, _ = self._server.accept()
                    self._connection.settimeout(timeout_s)
                    self._stream = self._connection.makefile("r")
                word = self._stream.readline()
                if word:
                    self._signal(signal.SIGSTOP)
                    self._note_memory()
                    return word
            except socket.timeout:
                continue
            except OSError:
                break
        self._log.seek(0)
        tail = "\n".join(self._log.read().decode(errors="replace").splitlines()[-15:])
        raise ProcessFailed(f"{self._name}: exit code {self._process.poll()}\n{tail}")

    def _signal(self, number: int) -> None:
        if self._side.stopped_between:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def begin(self) -> None:
        """Lets it train one block."""
        self._signal(signal.SIGCONT)
        with suppress(OSError):  # it died: `wait` says how
            self._connection.sendall(b"g")


def _sum_MiB(text: str, begin: str) -> float:
    """The sum of the lines of a file in /proc whose names begin so."""
    return sum(int(line.split()[1]) / 1024 for line in text.splitlines() if line.startswith(begin))
