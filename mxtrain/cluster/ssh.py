"""Launches processes on other hosts over ssh."""

from __future__ import annotations

import math
import os
import shlex
import shutil
import subprocess
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Callable, Dict, List, Optional, Sequence, Tuple

import mxtrain
from mxtrain.cluster.frames import Message, decode
from mxtrain.cluster.hosts import Host, free_port, interface_address, is_own_address, read_hosts, spread
from mxtrain.cluster.launch_spec import Root, launch_specs
from mxtrain.cluster.launcher import Launcher, directory_of, launch_message, python_of, relayed
from mxtrain.cluster.process import LaunchSpec, Process, start_child
from mxtrain.cluster.relayed import Channel, RelayedProcess
from mxtrain.cluster.spec import Cluster
from mxtrain.config.search_path import module_command
from mxtrain.errors import ConfigError

CHECK_S = 30.0
"""Seconds that a host has to answer after the connection is made."""


class SSHLauncher(Launcher):
    """One ssh connection to each other host of a host file; processes of this host are started directly.

    Raises:
        ConfigError: a host cannot be reached, or cannot take part.
    """

    def __init__(self, cluster: Cluster, van: Optional[str]):
        super().__init__(cluster, van)
        assert cluster.hostfile is not None
        self.hosts = read_hosts(cluster.hostfile)
        self._where = {"scheduler": self.hosts[0], **spread(cluster.workers, cluster.num_servers, self.hosts)}
        self._others = [host for host in self.hosts if not host.is_here and host in self._where.values()]
        if self._others and shutil.which("ssh") is None:
            raise ConfigError("cluster.launcher=ssh: ssh is not on PATH. Install OpenSSH's client.")
        if self._others and cluster.interface is not None:
            interface_address(cluster.interface)
        answers, problems = check_hosts(self._others, self._ssh, cluster.interface, self._patience_s)
        if problems:
            raise ConfigError("\n".join(problems))
        callers = [str(message["supervisor"][0]) for message in answers if message["supervisor"]]
        if self._others:
            self.address = self._own_address(callers)
            names = ", ".join(host.name for host in [self.hosts[0], *self._others])
            self.place = f"on {1 + len(self._others)} hosts ({names})"

    @property
    def _patience_s(self) -> int:
        return max(1, math.ceil(self.cluster.heartbeat_timeout))

    def obstacle(self) -> str:
        return "; ".join(check_hosts(self._others, self._ssh, self.cluster.interface, self._patience_s)[1])

    def start(self, arguments: Sequence[str], logs: Path, attempt: int, stack: ExitStack) -> List[Process]:
        if not self._others:
            return super().start(arguments, logs, attempt, stack)
        root = Root(self.address, free_port(self.address))
        specs = launch_specs(self.cluster, self.van, arguments, logs, root, self._where)
        started: Dict[str, Process] = {}
        for spec in specs:
            if self._where[spec.name].is_here:
                started[spec.name] = self._start_here(spec, stack)
                continue
            standby = self._begin_standby(spec)
            if standby is not None:
                started[spec.name] = stack.enter_context(closing(standby))
        for host in self._others:
            rest = [None if spec.name in started or self._where[spec.name] != host else spec for spec in specs]
            if any(rest):
                channel = self._open_channel(host, rest)
                processes = relayed(channel, rest, ranked=False, attempt=attempt, stack=stack)
                started.update({process.spec.name: process for process in processes})
        return [started[spec.name] for spec in specs]

    def _start_standby(self, process: Process) -> Process:
        host = self._where[process.spec.name]
        if host.is_here:
            return super()._start_standby(process)
        # A connection of its own, because that of the process ends with the other processes of its host.
        channel = self._open_channel(host, [process.spec], is_standby=True)
        return RelayedProcess(process.spec, channel, 0, ranked=False, is_first=False)

    def _open_channel(self, host: Host, specs: Sequence[Optional[LaunchSpec]], is_standby: bool = False) -> Channel:
        """Connects to a host, where a relay starts the processes."""
        message = launch_message(self.cluster, specs, is_standby=is_standby)
        start_timeout_s = 3 * self._patience_s + CHECK_S
        return Channel(self._ssh(host, []), os.environ, message, start_timeout_s, f"ssh to {host.name}")

    def _ssh(self, host: Host, arguments: Sequence[str]) -> List[str]:
        """Returns the command that runs a relay on a host."""
        alive = max(1, self._patience_s // 3)
        options = {
            # No prompts: a question for a password would wait forever.
            "BatchMode": "yes",
            "ConnectTimeout": self._patience_s,
            "ServerAliveInterval": alive,
            "ServerAliveCountMax": max(1, self._patience_s // alive),
            # A shared master connection has timeouts of its own instead of these.
            "ControlPath": "none",
            # A terminal would echo input and change the lines of messages.
            "RequestTTY": "no",
        }
        python_path = os.environ.get("PYTHONPATH")
        relay = [*module_command("mxtrain.cluster.remote", python_of(self.cluster)), *arguments]
        # sshd accepts only a few environment variables from the client.
        prefix = ["env", f"PYTHONPATH={python_path}"] if python_path else []
        # exec leaves no shell between ssh and the relay.
        command = f"cd {shlex.quote(directory_of(self.cluster))} && exec {shlex.join([*prefix, *relay])}"
        return [
            "ssh",
            *self.cluster.launcher_options,
            *(f"-o{name}={value}" for name, value in options.items()),
            "--",
            host.name,
            command,
        ]

    def _own_address(self, callers: Sequence[str]) -> str:
        """Returns the address by which the other hosts reach this one.

        Args:
            callers: addresses from which the other hosts see this one connect.
        """
        if self.cluster.interface is not None:
            return interface_address(self.cluster.interface)
        fitting = [address for address in callers if ":" not in address and is_own_address(address)]
        if fitting:
            return fitting[0]
        raise ConfigError(
            f"{self._others[0].name} sees this machine as {', '.join(callers) or 'an unknown host'}, which is no IPv4 "
            "address of it: set cluster.interface to the network interface by which the hosts reach each other."
        )


def check_hosts(
    hosts: Sequence[Host],
    ssh: Callable[[Host, Sequence[str]], Sequence[str]],
    interface: Optional[str],
    patience_s: float,
) -> Tuple[List[Message], List[str]]:
    """Asks all hosts at once; returns (the description of each usable host, a line for each other host).

    Args:
        hosts: other machines.
        ssh: function (host, arguments of the relay) -> command.
        interface: network interface that each host must have; None = any.
        patience_s: timeout of a connection, in seconds.
    """
    arguments = ["--check", *(["--interface", interface] if interface is not None else [])]
    deadline = time.monotonic() + patience_s + CHECK_S
    descriptions, problems = [], []
    with ExitStack() as stack:
        pending = []
        for host in hosts:
            popen = start_child(
                ssh(host, arguments), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            stack.callback(popen.kill)
            pending.append((host, popen))
        for host, popen in pending:
            try:
                # One deadline for all hosts, which were asked at the same time.
                output, errors = popen.communicate(timeout=max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                problems.append(f"{host.line}: {host.name} did not answer in {patience_s + CHECK_S:.0f} s")
                continue
            answers = [message for message in map(decode, output.splitlines()) if message and "check" in message]
            stderr_text = errors.decode(errors="replace").strip().splitlines()[-2:]
            answer = answers[0]["check"] if answers else None
            problem = _problem(host, popen.returncode, answer, "; ".join(stderr_text))
            if problem:
                problems.append(problem)
            elif answer is not None:
                descriptions.append(answer)
    return descriptions, problems


def _problem(host: Host, code: int, answer: Optional[Message], stderr_text: str) -> str:
    if answer is None and code == 255:
        return f"{host.line}: {host.name} cannot be reached: {stderr_text or 'ssh gave no reason'}"
    if answer is None:
        return (
            f"{host.line}: mxtrain does not start on {host.name} ({stderr_text or f'exit code {code}'}). Python, "
            "mxtrain and the working directory must lie there as here, or set cluster.python and cluster.directory."
        )
    if answer["version"] != mxtrain.__version__:
        return f"{host.line}: {host.name} has mxtrain {answer['version']}, this machine {mxtrain.__version__}"
    return f"{host.line}: {answer['refused']}" if "refused" in answer else ""
