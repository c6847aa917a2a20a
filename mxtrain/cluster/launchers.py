"""What starts the processes of a run: this process, ssh, mpirun or srun.

Scheduler, worker 0 and the supervisor share a host where the launcher leaves a choice: the scheduler's address is known
before anything starts, and only worker 0 needs the run directory.
"""

from __future__ import annotations

import math
import os
import secrets
import shlex
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import mxtrain
from mxtrain.cluster.frames import Message, decode, encode
from mxtrain.cluster.hosts import (
    NOWHERE,
    Host,
    address_towards,
    free_port,
    interface_address,
    is_own_address,
    read_hosts,
    spread,
)
from mxtrain.cluster.local import remove_stale_sockets
from mxtrain.cluster.orders import Root, group_orders, inherited, local_root, passed, roles
from mxtrain.cluster.process import LocalProcess, Order, Process
from mxtrain.cluster.relayed import MIN_SILENCE_S, Beacon, Channel, RelayedProcess
from mxtrain.cluster.spec import Cluster
from mxtrain.errors import ConfigError

ORDERS = "MXTRAIN_ORDERS"
"""Where mpirun's relays find their orders."""
CHECK_S = 30.0
"""How long a host that was reached may take to say what it has."""


class Launcher:
    """Starts all processes on this machine.

    Args:
        cluster: the description.
        van: ps-lite's transport, where gradients meet on servers; None where they don't.
    """

    def __init__(self, cluster: Cluster, van: Optional[str]):
        self.cluster, self.van = cluster, van

    @property
    def place(self) -> str:
        """For people."""
        return "on this machine"

    def obstacle(self) -> str:
        """Why nothing can be started now, though it may be later, or ""."""
        return ""

    def start(self, arguments: Sequence[str], logs: Path, attempt: int, stack: ExitStack) -> List[Process]:
        """Starts all processes; the stack closes them.

        Args:
            arguments: of the workers' command line.
            logs: folder for the output of all but worker 0.
            attempt: from 0.
            stack: of what must be closed.
        """
        remove_stale_sockets()
        root = local_root(len(roles(self.cluster, self.van)))
        orders = group_orders(self.cluster, self.van, arguments, logs, root, inherited())
        return [started_here(order, stack) for order in orders]


def started_here(order: Order, stack: ExitStack) -> Process:
    """A process on this machine, which the stack closes."""
    process = LocalProcess(order)
    stack.callback(process.close)
    return process


def relayed(
    channel: Channel, orders: Sequence[Optional[Order]], ranked: bool, attempt: int, stack: ExitStack
) -> List[Process]:
    """The processes of a channel, which the stack closes; None stands for a process elsewhere."""
    stack.callback(channel.close)
    processes: List[Process] = []
    for of, order in enumerate(orders):
        if order is not None:
            processes.append(RelayedProcess(order, channel, of, ranked, attempt == 0))
            stack.callback(processes[-1].close)
    return processes


class SSHLauncher(Launcher):
    """One connection to each other host of a file; what runs here is started directly.

    Raises:
        ConfigError: a host cannot be reached, or cannot take part.
    """

    def __init__(self, cluster: Cluster, van: Optional[str]):
        super().__init__(cluster, van)
        assert cluster.hostfile is not None
        self.hosts = read_hosts(cluster.hostfile)
        self._where = {"scheduler": self.hosts[0], **spread(cluster.workers, cluster.num_servers, self.hosts)}
        self._others = [host for host in self.hosts if not host.is_here and host in self._where.values()]
        if self._others and cluster.interface is not None:
            interface_address(cluster.interface)
        found, problems = check_hosts(self._others, self._ssh, cluster.interface, self._patience_s)
        if problems:
            raise ConfigError("\n".join(problems))
        self._address = self._own_address([str(message["supervisor"][0]) for message in found if message["supervisor"]])

    @property
    def _patience_s(self) -> int:
        return max(1, math.ceil(self.cluster.heartbeat_timeout))

    @property
    def place(self) -> str:
        if not self._others:
            return super().place
        return f"on {1 + len(self._others)} hosts ({', '.join(h.name for h in [self.hosts[0], *self._others])})"

    def obstacle(self) -> str:
        return "; ".join(check_hosts(self._others, self._ssh, self.cluster.interface, self._patience_s)[1])

    def start(self, arguments: Sequence[str], logs: Path, attempt: int, stack: ExitStack) -> List[Process]:
        if not self._others:
            return super().start(arguments, logs, attempt, stack)
        root = Root(self._address, free_port(self._address))
        here, there = inherited(), passed(self.cluster.environment)
        processes = []
        for host in [self.hosts[0], *self._others]:
            count = sum(who.startswith("worker") and place == host for who, place in self._where.items())
            told = {**here, "DMLC_NODE_HOST": root.address} if host.is_here else there
            orders = group_orders(self.cluster, self.van, arguments, logs, root, told, max(count, 1))
            mine = [order if self._where[order.name] == host else None for order in orders]
            if host.is_here:
                processes += [started_here(order, stack) for order in mine if order is not None]
                continue
            message = orders_message(self.cluster, mine, there, python_of(self.cluster))
            channel = Channel(
                self._ssh(host, []), os.environ, message, 3 * self._patience_s + CHECK_S, f"ssh to {host.name}"
            )
            processes += relayed(channel, mine, ranked=False, attempt=attempt, stack=stack)
        names = [order.name for order in orders]
        return sorted(processes, key=lambda process: names.index(process.order.name))

    def _ssh(self, host: Host, arguments: Sequence[str]) -> List[str]:
        """The command that runs a relay on a host."""
        alive = max(1, self._patience_s // 3)
        options = {
            "BatchMode": "yes", "ConnectTimeout": self._patience_s, "ServerAliveInterval": alive,
            "ServerAliveCountMax": max(1, self._patience_s // alive), "ControlPath": "none", "RequestTTY": "no",
        }  # fmt: skip
        python_path = os.environ.get("PYTHONPATH")
        relay = [python_of(self.cluster), "-m", "mxtrain.cluster.remote", *arguments]
        told = ["env", f"PYTHONPATH={python_path}"] if python_path else []
        command = f"cd {shlex.quote(directory_of(self.cluster))} && exec {shlex.join([*told, *relay])}"
        return [
            "ssh", *self.cluster.launcher_options, *(f"-o{name}={value}" for name, value in options.items()), "--",
            host.name, command,
        ]  # fmt: skip

    def _own_address(self, seen: Sequence[str]) -> str:
        """By which the other hosts reach this one; `seen` is where they see it."""
        if self.cluster.interface is not None:
            return interface_address(self.cluster.interface)
        fitting = [address for address in seen if ":" not in address and is_own_address(address)]
        if fitting or not self._others:
            return fitting[0] if fitting else ""
        raise ConfigError(
            f"{self._others[0].name} sees this machine as {', '.join(seen) or 'nobody'}, which is no IPv4 address of "
            "it: set cluster.interface to the network interface by which the hosts reach each other."
        )


def check_hosts(
    hosts: Sequence[Host], ssh: Any, interface: Optional[str], patience_s: float
) -> Tuple[List[Message], List[str]]:
    """(what the hosts say of themselves, one line for each that cannot take part); asks all at once.

    Args:
        hosts: other machines.
        ssh: (host, arguments of the relay) -> command.
        interface: that each must have, or None.
        patience_s: for reaching one.
    """
    arguments = ["--check", *(["--interface", interface] if interface is not None else [])]
    deadline = time.monotonic() + patience_s + CHECK_S
    found, problems = [], []
    with ExitStack() as stack:
        asked = []
        for host in hosts:
            popen = subprocess.Popen(
                ssh(host, arguments), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                start_new_session=True,
            )  # fmt: skip
            stack.callback(popen.kill)
            asked.append((host, popen))
        for host, popen in asked:
            try:
                output, errors = popen.communicate(timeout=max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                problems.append(f"{host.line}: {host.name} did not answer in {patience_s + CHECK_S:.0f} s")
                continue
            answers = [message for message in map(decode, output.splitlines()) if message and "check" in message]
            words = errors.decode(errors="replace").strip().splitlines()[-2:]
            answer = answers[0]["check"] if answers else None
            problem = _problem(host, popen.returncode, answer, "; ".join(words))
            if problem:
                problems.append(problem)
            elif answer is not None:
                found.append(answer)
    return found, problems


def _problem(host: Host, code: int, answer: Optional[Message], words: str) -> str:
    if answer is None and code == 255:
        return f"{host.line}: {host.name} cannot be reached: {words or 'ssh gave no reason'}"
    if answer is None:
        return (
            f"{host.line}: mxtrain does not start on {host.name} ({words or f'exit code {code}'}). Python, mxtrain and "
            "the working directory must lie there as here, or set cluster.python and cluster.directory."
        )
    if answer["version"] != mxtrain.__version__:
        return f"{host.line}: {host.name} has mxtrain {answer['version']}, this machine {mxtrain.__version__}"
    return f"{host.line}: {answer['refused']}" if "refused" in answer else ""


class RankedLauncher(Launcher):
    """One command that starts as many relays as there are workers and servers, the workers first. The scheduler runs
    here."""

    program = ""
    what = ""

    def __init__(self, cluster: Cluster, van: Optional[str]):
        super().__init__(cluster, van)
        if shutil.which(self.program) is None:
            raise ConfigError(f"cluster.launcher={cluster.launcher}: {self.program} is not on PATH. {self.what}")
        self.is_local = self._stays_here()
        self._address = "" if self.is_local else self._own_address()

    @property
    def place(self) -> str:
        return f"through {self.program}"

    def _stays_here(self) -> bool:
        """Whether all processes surely run on this machine."""
        return False

    def _channel(self, message: Message, count: int, address: str, stack: ExitStack) -> Channel:
        """The command, started.

        Args:
            message: orders for its relays.
            count: how many they are.
            address: of this machine, as they reach it.
            stack: of what must be closed.
        """
        raise NotImplementedError

    def _own_address(self) -> str:
        if self.cluster.interface is not None:
            return interface_address(self.cluster.interface)
        address = address_towards(NOWHERE)
        if address is None:
            raise ConfigError("this machine has no default route: set cluster.interface to the network of the hosts.")
        return address

    def start(self, arguments: Sequence[str], logs: Path, attempt: int, stack: ExitStack) -> List[Process]:
        if self.is_local:
            remove_stale_sockets()
            root = local_root(len(roles(self.cluster, self.van)))
        else:
            root = Root(self._address, free_port(self._address))
        told = passed(self.cluster.environment)
        orders = group_orders(self.cluster, self.van, arguments, logs, root, told)
        processes = []
        if orders[0].name == "scheduler":
            own = {**inherited(), **orders[0].environment, "DMLC_NODE_HOST": root.address}
            scheduler = orders.pop(0)
            processes.append(
                started_here(Order(scheduler.name, scheduler.command, own, scheduler.log, scheduler.socket), stack)
            )
        orders.sort(key=lambda order: not order.name.startswith("worker"))  # ranks keep their order
        proof = logs / ".here"
        proof.write_text(secrets.token_hex(16))
        stack.callback(proof.unlink)
        message = orders_message(self.cluster, orders, told, python_of(self.cluster), proof)
        channel = self._channel(message, len(orders), root.address, stack)
        return [*processes, *relayed(channel, orders, ranked=True, attempt=attempt, stack=stack)]


class MPILauncher(RankedLauncher):
    """Open MPI's mpirun. It reaches the stdin of one rank only: orders go through the environment, signals through
    mpirun. Its daemons don't notice within minutes that a link is down, so relays listen to a beacon."""

    program = "mpirun"
    what = "Install Open MPI (Debian: openmpi-bin)."

    def __init__(self, cluster: Cluster, van: Optional[str]):
        self._hosts = read_hosts(cluster.hostfile) if cluster.hostfile is not None else []
        super().__init__(cluster, van)
        version = subprocess.run([self.program, "--version"], capture_output=True, text=True, check=False).stdout
        if "Open MPI" not in version:
            first = version.splitlines()[0] if version else "no version"
            raise ConfigError(f"cluster.launcher=mpi: mpirun is not Open MPI's ({first}). {self.what}")

    def _stays_here(self) -> bool:
        managed = ("SLURM_JOB_ID", "PBS_NODEFILE", "LSB_HOSTS", "PE_HOSTFILE")  # mpirun asks them for hosts
        chosen = any(option in ("-H", "-host", "--host", "-hostfile", "--hostfile", "-machinefile", "--machinefile")
                     for option in self.cluster.launcher_options)  # fmt: skip
        if self._hosts:
            return len(self._hosts) == 1
        return not chosen and not any(name in os.environ for name in managed)

    def _own_address(self) -> str:
        if self.cluster.interface is None and self._hosts:
            others = [host.name.rpartition("@")[2] for host in self._hosts if not host.is_here]
            address = address_towards(others[0])
            if address is not None:
                return address
        return super()._own_address()

    def _command(self, count: int) -> List[str]:
        settings = {}
        if self.cluster.interface is not None and not self.is_local:
            settings["oob_tcp_if_include"] = self.cluster.interface
        if not any("plm_rsh" in option for option in self.cluster.launcher_options):
            alive = max(1, math.ceil(self.cluster.heartbeat_timeout))
            settings["plm_rsh_args"] = f"-oBatchMode=yes -oConnectTimeout={alive} -oServerAliveInterval={alive}"
        command = [self.program, "-np", str(count), "--bind-to", "none", "-x", ORDERS, "--wdir",
                   directory_of(self.cluster)]  # fmt: skip
        if self.cluster.hostfile is not None:
            command += ["--hostfile", self.cluster.hostfile]
        if "PYTHONPATH" in os.environ:
            command += ["-x", "PYTHONPATH"]
        for name, value in settings.items():
            command += ["--mca", name, value]
        return [*command, *self.cluster.launcher_options]

    def _channel(self, message: Message, count: int, address: str, stack: ExitStack) -> Channel:
        relay = [python_of(self.cluster), "-m", "mxtrain.cluster.remote", "--ranked", "--from", ORDERS]
        beacon = Beacon(address, limit=4 * count)
        stack.callback(beacon.close)
        orders = encode({**message, "beacon": [beacon.address, beacon.port]}).decode()
        return Channel(
            [*self._command(count), *relay], {**os.environ, ORDERS: orders}, None, self.cluster.start_timeout, "mpirun",
            beacon,
        )  # fmt: skip


class SlurmLauncher(RankedLauncher):
    """Slurm's srun, in the allocation that there is, or in one that it asks for; it hands on stdin to all tasks."""

    program = "srun"
    what = "Start the command where Slurm's clients are."

    def _channel(self, message: Message, count: int, address: str, stack: ExitStack) -> Channel:
        command = [
            self.program, f"--ntasks={count}", "--kill-on-bad-exit=1", "--cpu-bind=none", "--chdir",
            directory_of(self.cluster), *self.cluster.launcher_options, python_of(self.cluster), "-m",
            "mxtrain.cluster.remote", "--ranked",
        ]  # fmt: skip
        return Channel(command, os.environ, message, None, "srun")


def orders_message(
    cluster: Cluster, orders: Sequence[Optional[Order]], environment: Mapping[str, str], python: str,
    proof: Optional[Path] = None,
) -> Message:  # fmt: skip
    """What relays are sent: each starts the orders that are meant for it.

    Args:
        cluster: the description.
        orders: by number; None: of no concern to the receiver.
        environment: what all of them are told; not repeated in each.
        python: on the hosts.
        proof: a file that lies beside the run directory, which worker 0 must see.
    """
    return {
        "orders": [
            order and {
                "command": [python, *order.command[1:]],
                "environment": {k: v for k, v in order.environment.items() if environment.get(k) != v},
                "is_worker": order.name.startswith("worker"),
                "proof": [str(proof), proof.read_text()] if proof is not None and order.name == "worker 0" else None,
            }
            for order in orders
        ],
        "environment": dict(environment),
        "interface": cluster.interface,
        "silence_s": max(cluster.heartbeat_timeout, MIN_SILENCE_S),
        "version": mxtrain.__version__,
    }  # fmt: skip


def python_of(cluster: Cluster) -> str:
    """Python on the other hosts."""
    return sys.executable if cluster.python == "auto" else cluster.python


def directory_of(cluster: Cluster) -> str:
    """The working directory on the other hosts."""
    return os.getcwd() if cluster.directory == "auto" else cluster.directory


LAUNCHERS: Dict[str, Any] = {"local": Launcher, "ssh": SSHLauncher, "mpi": MPILauncher, "slurm": SlurmLauncher}


def build_launcher(cluster: Cluster, van: Optional[str]) -> Launcher:
    """What `cluster.launcher` says.

    Raises:
        ConfigError: it cannot work here; nothing was started.
    """
    launcher: Launcher = LAUNCHERS[cluster.launcher](cluster, van)
    return launcher
