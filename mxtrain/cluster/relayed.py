"""Controls processes on other hosts through relays there (`mxtrain.cluster.remote`).

Reasons for the choice of launchers: docs/decisions/0152-launchers.md.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from queue import SimpleQueue
from typing import Dict, List, Mapping, Optional, Sequence

from mxtrain.cluster.frames import Message, decode, decode_piece, encode, split
from mxtrain.cluster.process import LaunchSpec, Process, kill_group, order_of, start_child
from mxtrain.errors import EXIT_BAD_INPUT
from mxtrain.files.durable import append_to

BEAT_S = 0.5
MIN_SILENCE_S = 2.0
"""Shortest silence after which a connection counts as lost; heartbeats arrive every half second."""
SHUTDOWN_TIMEOUT_S = 3.0
"""Seconds in which the command must exit after its processes were told to end."""
KEPT_LINES = 2
"""Number of first and of last output lines of ssh or srun in a message."""


class Channel:
    """A command (ssh, srun, a driver of Ray) that runs relays, and the connection to their processes.

    Args:
        command: the command with its arguments.
        environment: environment of the command.
        specs: message with the launch specs, sent on stdin.
        start_timeout_s: seconds within which each relay must send its first message; None: no limit, for jobs that wait
            in a queue.
        name: name for messages.
    """

    shutdown_timeout_s = SHUTDOWN_TIMEOUT_S

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        specs: Message,
        start_timeout_s: Optional[float],
        name: str,
    ):
        self.name = name
        self.processes: Dict[int, RelayedProcess] = {}
        self.last_lines: List[str] = []
        """Output of the command itself: its first and last lines."""
        self.heartbeat_at: Dict[Optional[int], float] = {}
        """Rank of a relay (None if there is only one) -> time of its last message."""
        self.hosts: Dict[Optional[int], str] = {}
        self._start_timeout_s, self._started_at = start_timeout_s, time.monotonic()
        self._beat_at = self._started_at
        self._out, self._rest = encode(specs), b""
        self._at_end = False
        self._killed_at: Optional[float] = None
        self._popen = start_child(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert self._popen.stdin is not None and self._popen.stdout is not None
        self._writer, self._reader = self._popen.stdin, self._popen.stdout.fileno()
        for end in (self._writer.fileno(), self._reader):
            os.set_blocking(end, False)

    @property
    def end(self) -> Optional[str]:
        """Returns the end of the command as part of a sentence, after all of its output is read; None while it runs."""
        code = self._popen.poll()
        if code is None or not self._at_end:
            return None
        last_lines = "; ".join(self.last_lines)
        return f"{self.name} ended with exit code {code}" + (f": {last_lines}" if last_lines else "")

    def exchange_messages(self) -> None:
        """Reads all messages that have arrived, and sends a heartbeat if one is due."""
        has_ended = self._popen.poll() is not None  # before reading: then nothing can arrive after the last read
        self._at_end = self._receive() or has_ended
        now = time.monotonic()
        # No beat while bytes are unsent: a command that does not read would let them pile up.
        if now - self._beat_at > BEAT_S and not self._out and self._killed_at is None:
            self._beat_at = now
            self._out = encode({"beat": 1})
        self._send()

    def send(self, message: Message) -> None:
        """Sends a message on stdin, without blocking."""
        self._out += encode(message)
        self._send()

    def missing(self) -> Optional[str]:
        """Returns why a relay without any message counts as lost; None if it may still start."""
        if self._start_timeout_s is None:
            return None
        waited = time.monotonic() - self._started_at
        return f"was not started within {waited:.0f} s by {self.name}" if waited > self._start_timeout_s else None

    def kill(self) -> None:
        """Starts to end all processes at once. Does not wait for them."""
        if self._killed_at is not None:
            return
        self._killed_at = time.monotonic()
        self._out = b""
        with suppress(OSError):
            self._writer.close()  # relays kill their processes at the end of stdin

    def close(self) -> None:
        """Ends the relays and waits until the command has ended, for at most `shutdown_timeout_s`."""
        self.kill()
        assert self._killed_at is not None
        deadline = self._killed_at + self.shutdown_timeout_s
        while self._popen.poll() is None and time.monotonic() < deadline:
            self._receive()  # a command that waits for a full pipe cannot end
            time.sleep(0.02)
        # The command may have children, so its whole group is killed.
        kill_group(self._popen.pid)
        self._popen.wait()
        assert self._popen.stdout is not None
        self._popen.stdout.close()

    def _receive(self) -> bool:
        """Reads the output of the command without blocking. Returns True at its end."""
        with suppress(BlockingIOError):
            while True:
                read = os.read(self._reader, 1 << 16)
                if not read:
                    return True
                lines, self._rest = split(self._rest + read)
                for line in lines:
                    message = decode(line)
                    if message is not None:
                        self._handle(message)
                    else:
                        self._remember(line.decode(errors="replace").strip())
        return False

    def _remember(self, line: str) -> None:
        if any(letter.isalnum() for letter in line):
            self.last_lines.append(line)
        if len(self.last_lines) > 2 * KEPT_LINES:
            del self.last_lines[KEPT_LINES]

    def _handle(self, message: Message) -> None:
        if "hello" in message:
            self.hosts[message["rank"]] = message["hello"]
        index = message.get("of")
        # A message with states is also the heartbeat of the relay for all of its processes.
        indices = [int(name) for name in message.get("states", {})] if index is None else [index]
        for one in indices:
            process = self.processes.get(one)
            if process is not None:
                self.heartbeat_at[process.rank] = time.monotonic()
                process.take(message)
        if "rank" in message:
            self.heartbeat_at[message["rank"]] = time.monotonic()

    def _send(self) -> None:
        if not self._out or self._writer.closed:
            return
        with suppress(BlockingIOError, BrokenPipeError):
            self._out = self._out[os.write(self._writer.fileno(), self._out) :]


class Printer:
    """Writes to stdout in a background thread.

    The reader of stdout may pause (Ctrl-S, a pager), and heartbeats must not wait for it.
    """

    def __init__(self) -> None:
        self._waiting: SimpleQueue[bytes] = SimpleQueue()
        self._thread = threading.Thread(target=self._print, name="mxtrain-printer", daemon=True)
        self._thread.start()

    def write(self, output: bytes) -> None:
        """Queues output and returns at once."""
        self._waiting.put(output)

    def close(self) -> None:
        """Waits for pending output, with a timeout."""
        self._waiting.put(b"")
        self._thread.join(SHUTDOWN_TIMEOUT_S)

    def _print(self) -> None:
        with suppress(OSError, ValueError):  # stdout was closed
            while True:
                output = self._waiting.get()
                if not output:
                    return
                sys.stdout.buffer.write(output)
                sys.stdout.buffer.flush()


class RelayedProcess(Process):
    """A process on another host.

    Args:
        spec: its launch spec; the environment is added to that of its host.
        channel: connection to the relay that starts it.
        index: its index in the launch specs.
        ranked: True if its relay is one of several with the same specs.
        is_first: True in the first attempt of the run. If the command fails there, the input is at fault.
    """

    def __init__(self, spec: LaunchSpec, channel: Channel, index: int, ranked: bool, is_first: bool):
        super().__init__(spec)
        self.pid = 0
        self.rank = index if ranked else None
        self._channel, self._index, self._is_first = channel, index, is_first
        self._exit_code: Optional[int] = None
        self._refusal = ""
        self._state = ""
        self._log = None if spec.log is None else append_to(spec.log, "ab", buffering=0)
        self._printer = Printer() if spec.log is None else None
        channel.processes[index] = self

    def begin(self, spec: LaunchSpec) -> None:
        self.listen()
        # An order for an actor of Ray that has not started is lost if the actor is started again.
        if not self.pid or self.exit_code is not None or self.describe_silence(MIN_SILENCE_S):
            raise ProcessLookupError(f"{self.spec.name} ({self.location}) does not run")
        self._channel.send({"of": self._index, "begin": order_of(self.spec, spec)})
        self.spec = spec
        self.started_at = self.progress_at = time.monotonic()

    def take(self, message: Message) -> None:
        """Handles a message of the relay about this process."""
        if "pid" in message:
            self.pid = message["pid"]
            self.started_at = self.heartbeat_at = time.monotonic()
        elif "heartbeat" in message:
            self.receive(message["heartbeat"])
        elif "output" in message:
            self._write(decode_piece(message["output"]))
        elif "states" in message:
            self._state = message["states"][str(self._index)]
        elif "exit" in message:
            self._exit_code = message["exit"]
        elif "refused" in message:
            # As bad input it is final: another start on this host would be refused again.
            self._exit_code, self._refusal = EXIT_BAD_INPUT, message["refused"]

    def _write(self, output: bytes) -> None:
        if self._printer is not None:
            self._printer.write(output)
        elif self._log is not None:
            with suppress(OSError):  # a full disk must not end the run because of its log
                self._log.write(output)

    @property
    def exit_code(self) -> Optional[int]:
        # In the first attempt a wrong option is likely; in later ones the host is lost, and a restart waits for it.
        if self._exit_code is None and self._is_first and self._never_started():
            return EXIT_BAD_INPUT
        return self._exit_code

    def _never_started(self) -> bool:
        return not self._channel.heartbeat_at and self._channel.end is not None

    @property
    def state(self) -> str:
        return self._state

    @property
    def host(self) -> str:
        return self._channel.hosts.get(self.rank, self._channel.name).replace(" ", "-")

    @property
    def location(self) -> str:
        host = self._channel.hosts.get(self.rank, self._channel.name)
        return f"process {self.pid} on {host}" if self.pid else f"on {host}"

    def listen(self) -> None:
        self._channel.exchange_messages()

    def signal(self, number: int) -> None:
        if self.exit_code is None:
            self._channel.send({"of": self._index, "signal": number})

    def kill(self) -> None:
        self._channel.kill()

    def close(self) -> None:
        self._channel.close()
        self._close_output()

    def _close_output(self) -> None:
        if self._log is not None:
            self._log.close()
        if self._printer is not None:
            self._printer.close()

    def describe_silence(self, timeout_s: float) -> Optional[str]:
        if self._channel.end is not None:
            return f"was lost: {self._channel.end}"
        heartbeat_at = self._channel.heartbeat_at.get(self.rank)
        if heartbeat_at is None:
            return self._channel.missing()
        silence = time.monotonic() - heartbeat_at
        # TCP reports a dead link only after a quarter of an hour, so silence decides.
        if silence > max(timeout_s, MIN_SILENCE_S):
            return f"cannot be reached: nothing was heard from its host for {silence:.1f} s"
        return super().describe_silence(timeout_s) if self.started_at is not None else None

    def describe_end(self) -> str:
        if self._refusal:
            return f"could not be started: {self._refusal}"
        if self._exit_code is None and self._never_started():
            return f"could not be started: {self._channel.end}"
        return super().describe_end()
