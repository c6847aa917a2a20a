"""The supervisor's relay on another host. It starts processes there, forwards their output and heartbeats, and kills
them if the supervisor or the connection to it is lost.

    python -m mxtrain.cluster.remote            reads specs, heartbeats and signals from stdin
    python -m mxtrain.cluster.remote --check    describes this host and ends

Launch specs are not passed on the command line, since other users of the host can read it. If several relays get the
same specs, each starts the processes of its rank. In messages, "of" is the index of a process in the launch specs. Does
not import MXNet.
"""

from __future__ import annotations

import argparse
import errno
import os
import select
import signal
import socket
import sys
import time
from collections import deque
from contextlib import suppress
from typing import Deque, Dict, Mapping, Optional, Sequence

import mxtrain
from mxtrain.cluster.frames import Message, decode, encode, pieces, split
from mxtrain.cluster.hosts import interface_address
from mxtrain.cluster.launched import OWN_GPUS, local_rank_variables, own_address, rank_of
from mxtrain.cluster.process import LaunchSpec, LocalProcess, signal_parents_death
from mxtrain.cluster.stopping import WARNINGS
from mxtrain.errors import EXIT_CRASHED, EXIT_FINISHED, ConfigError, run_dir_setting

BEAT_S = 0.5
MAX_WAITING = 1 << 16
"""Number of unsent bytes from which the relay stops reading the output of its processes."""
MAX_ERROR_CHARS = 600
"""Number of characters of an error in a message."""
_CONNECTION = (0, 1)
"""Open files of messages from the supervisor and to it."""
_FORWARDED = (signal.SIGTERM, *WARNINGS)
"""Signals from srun or Slurm that are sent to the workers."""
GPU_VARIABLES = ("CUDA_VISIBLE_DEVICES", OWN_GPUS)
"""Variables that srun, or a script started by it, sets for each process; the supervisor's values are not forwarded."""


class Child:
    """A process of the relay, with a pipe for its output.

    Args:
        index: index of the process in the launch specs.
        spec: its launch spec, with the command and the role.
        environment: the complete environment of the process.
    """

    def __init__(self, index: int, spec: Message, environment: Mapping[str, str]):
        self.index, self.is_worker = index, spec["is_worker"]
        self.output, writer = os.pipe()
        os.set_blocking(self.output, False)
        try:
            python, *arguments = spec["command"]  # no Python is named where that of the relay counts
            launch = LaunchSpec(f"process {index}", [python or sys.executable, *arguments], environment)
            self.process = LocalProcess(launch, is_standby=spec.get("is_standby", False), output=writer)
        finally:
            os.close(writer)
        self.heartbeat_at = self.process.heartbeat_at
        """Time of the last heartbeat that was forwarded."""
        self.has_output = True
        """False after the end of its output."""


class Relay:
    """Runs the processes of one host, or of one rank.

    One thread serves all pipes. No write to the supervisor blocks, because the relay must notice when the supervisor is
    gone.

    Args:
        rank: rank of this relay if several get the same message; None: all specs are for this relay.
    """

    def __init__(self, rank: Optional[int]):
        self._rank, self._has_started = rank, False
        self._unsent: Deque[bytes] = deque()
        self._children: Dict[int, Child] = {}
        self._read = b""
        self._message_at = self._beat_at = time.monotonic()
        self._silence_s: Optional[float] = None
        self._signals, writer = os.pipe()
        for end in (self._signals, writer, *_CONNECTION):
            os.set_blocking(end, False)
        # The handlers do nothing: `run` reads the numbers of signals from this pipe.
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in (*_FORWARDED, signal.SIGHUP):
            signal.signal(number, lambda *_: None)

    def run(self) -> int:
        """Runs until all processes have ended or the supervisor is gone; returns the exit code."""
        stdin, stdout = _CONNECTION
        try:
            self._send({"hello": socket.gethostname(), "rank": self._rank})
            while not self._has_started or self._children or self._unsent:
                outputs = [child.output for child in self._children.values() if child.has_output]
                readers = [stdin, self._signals, *([] if self._is_behind else outputs)]
                select.select(readers, [stdout] if self._unsent else [], [], 0.1)
                self._take_messages()
                self._take_signals()
                for child in list(self._children.values()):
                    self._serve(child)
                self._flush()
                now = time.monotonic()
                # TCP reports a dead link only after a quarter of an hour, and workers must not run on without a
                # supervisor.
                if self._silence_s is not None and now - self._message_at > self._silence_s:
                    raise _ConnectionClosed
                if now - self._beat_at > BEAT_S and not self._unsent:
                    self._beat_at = now
                    self._send({"states": {str(index): c.process.state for index, c in self._children.items()}})
        except _ConnectionClosed:
            return EXIT_CRASHED
        finally:
            # Without a supervisor, a worker would wait for its peers forever.
            for child in self._children.values():
                child.process.kill()
        return EXIT_FINISHED

    # To the supervisor.

    def _send(self, message: Message) -> None:
        self._unsent.append(encode(message))
        self._flush()

    def _flush(self) -> None:
        """Sends waiting messages as far as possible without blocking.

        Raises:
            _ConnectionClosed: the connection to the supervisor is closed.
        """
        while self._unsent:
            try:
                count = os.write(_CONNECTION[1], self._unsent[0])
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno in (errno.EPIPE, errno.EIO, errno.ECONNRESET):
                    raise _ConnectionClosed from None
                raise
            unsent = self._unsent.popleft()[count:]
            if unsent:
                self._unsent.appendleft(unsent)

    @property
    def _is_behind(self) -> bool:
        """Returns True if the supervisor reads slowly. Then output waits in its pipe, and heartbeats get through."""
        return sum(map(len, self._unsent)) > MAX_WAITING

    # From the supervisor.

    def _take_messages(self) -> None:
        with suppress(BlockingIOError):
            read = os.read(_CONNECTION[0], 1 << 16)
            if not read:
                raise _ConnectionClosed
            self._message_at = time.monotonic()
            lines, self._read = split(self._read + read)
            for message in filter(None, map(decode, lines)):
                if "launch_specs" in message:
                    self._start(message)
                elif "signal" in message:
                    self._signal(message["signal"], message["of"])
                elif "begin" in message and message["of"] in self._children:
                    with suppress(BrokenPipeError):  # it has ended, which its exit code says
                        self._children[message["of"]].process.order(message["begin"])

    def _take_signals(self) -> None:
        for number in _read(self._signals) or b"":
            if number == signal.SIGHUP:
                raise _ConnectionClosed
            if number in _FORWARDED:
                self._signal(number)

    def _signal(self, number: int, index: Optional[int] = None) -> None:
        """Sends a signal to the process with this index; None: to all workers."""
        for child in self._children.values():
            if child.is_worker if index is None else child.index == index:
                child.process.signal(number)

    # Processes.

    def _start(self, message: Message) -> None:
        self._has_started = True
        self._silence_s, self._message_at = message["silence_s"], time.monotonic()
        for index, spec in enumerate(message["launch_specs"]):
            if spec is None or self._rank not in (None, index):
                continue
            try:
                environment = self._environment(message, spec)
                _require_run_directory(spec)
                self._children[index] = Child(index, spec, environment)
            except (ConfigError, OSError) as error:
                self._send({"of": index, "refused": f"{socket.gethostname()}: {error}"[:MAX_ERROR_CHARS]})
                continue
            self._send({"of": index, "pid": self._children[index].process.pid})

    def _environment(self, message: Message, spec: Message) -> Dict[str, str]:
        """Builds the environment of a process on this host. Later sources replace earlier ones.

        Raises:
            ConfigError: this host has another version of mxtrain, or lacks the network interface.
        """
        if message["version"] != mxtrain.__version__:
            raise ConfigError(f"has mxtrain {mxtrain.__version__}, not {message['version']} as the supervisor.")
        environment = {**os.environ, **message["environment"], **spec["environment"]}
        if "DMLC_LOCAL" not in environment:
            environment["DMLC_NODE_HOST"] = own_address(message["interface"], environment["DMLC_PS_ROOT_URI"])
        if self._rank is not None:  # only srun knows which workers share this host and its GPUs
            environment.update(local_rank_variables(range(int(environment["DMLC_NUM_WORKER"])), os.environ))
            # srun assigns GPUs to each task; with the supervisor's values all workers would take the same GPUs.
            environment.update({name: os.environ[name] for name in GPU_VARIABLES if name in os.environ})
        return environment

    def _serve(self, child: Child) -> None:
        """Forwards what a process has sent, and its exit code if it has ended and everything else was forwarded."""
        code = child.process.exit_code
        if code is not None:
            child.process.kill()  # processes that it has started, e.g. loader workers
        child.process.listen()
        # Only the newest heartbeat matters; older ones would only fill the connection.
        if child.process.heartbeat_at != child.heartbeat_at:
            child.heartbeat_at = child.process.heartbeat_at
            self._send({"of": child.index, "heartbeat": child.process.last_heartbeat})
        while not self._is_behind:
            read = _read(child.output)
            for piece in pieces(read or b""):
                self._send({"of": child.index, "output": piece})
            child.has_output = read != b""
            if not read or code is None:  # other pipes wait, too
                break
        if code is not None and not self._is_behind:
            child.process.close()
            os.close(child.output)
            self._send({"of": child.index, "exit": code})
            del self._children[child.index]


class _ConnectionClosed(Exception):
    """The supervisor, or the connection to it, was lost."""


def _require_run_directory(spec: Message) -> None:
    """Rejects worker 0 on a host without the run directory, into which it writes and from which the supervisor reads.

    `spec["proof"]` is a file that the supervisor has written there, and its content.

    Raises:
        ConfigError: this host does not see the file.
    """
    if not spec["proof"]:
        return
    path, text = spec["proof"]
    try:
        with open(path, encoding="utf-8") as file:
            is_visible = file.read() == text
    except OSError:
        is_visible = False
    if not is_visible:
        raise ConfigError(
            f"worker 0 was started here, but the supervisor's run directory is not here ({path}). Let "
            f"{run_dir_setting()} lie in a file system that both see, or start the command on the first host."
        )


def _read(fd: int) -> Optional[bytes]:
    """Reads from a non-blocking pipe. Returns b"" at its end, and None if it is empty now."""
    try:
        return os.read(fd, 1 << 14)
    except BlockingIOError:
        return None


def describe_host(interface: Optional[str]) -> Message:
    """Describes this host to a supervisor before it starts processes.

    Args:
        interface: network interface whose address is looked up; None: none.
    """
    server = os.environ.get("SSH_CONNECTION", "").split()
    description: Message = {"version": mxtrain.__version__, "name": socket.gethostname(), "supervisor": server[:1]}
    if interface is not None:
        try:
            description["address"] = interface_address(interface)
        except ConfigError as error:
            description["refused"] = str(error)[:MAX_ERROR_CHARS]
    return description


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser("python -m mxtrain.cluster.remote")
    parser.add_argument("--ranked", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--interface")
    options = parser.parse_args(arguments)
    if options.check:
        sys.stdout.buffer.write(encode({"check": describe_host(options.interface)}))
        return EXIT_FINISHED
    relay = Relay(rank_of(os.environ) if options.ranked else None)
    # Not SIGKILL, because the relay must kill its own processes first.
    return relay.run() if signal_parents_death(signal.SIGHUP) else EXIT_CRASHED


if __name__ == "__main__":
    sys.exit(main())
