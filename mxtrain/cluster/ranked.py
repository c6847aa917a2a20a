"""Launches processes through one mpirun or srun, each of which knows its rank."""

from __future__ import annotations

import math
import os
import secrets
import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import List, Optional, Sequence

from mxtrain.cluster.frames import Message, encode
from mxtrain.cluster.hosts import NOWHERE, free_port, interface_address, read_hosts
from mxtrain.cluster.launch_spec import Root, inherited, launch_specs, local_root, passed
from mxtrain.cluster.launcher import Launcher, directory_of, launch_message, python_of, relayed, started_here
from mxtrain.cluster.process import LaunchSpec, Process
from mxtrain.cluster.relayed import Channel, HeartbeatServer
from mxtrain.cluster.slurm_queue import SlurmChannel
from mxtrain.cluster.spec import Cluster
from mxtrain.config.search_path import module_command
from mxtrain.errors import ConfigError
from mxtrain.files.durable import replace_file
from mxtrain.runtime.network import address_towards

LAUNCH_SPECS = "MXTRAIN_LAUNCH_SPECS"
"""The environment variable in which mpirun's relays find their specs."""


AS_ROOT = "--allow-run-as-root"
ROOT_ALLOWED = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
"""An option of mpirun, and two environment variables that must both be 1 instead."""


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
    def address(self) -> str:
        return self._address or super().address

    @property
    def place(self) -> str:
        return f"through {self.program}"

    def _stays_here(self) -> bool:
        """Returns True if all processes surely run on this machine."""
        return False

    def _channel(self, message: Message, count: int, address: str, stack: ExitStack) -> Channel:
        """Starts the command and returns the connection to its relays.

        Args:
            message: launch specs for the relays.
            count: number of relays.
            address: address of this machine, as the relays reach it.
            stack: closes the connection.
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
            root = local_root(self.van)
        else:
            root = Root(self._address, free_port(self._address))
        environment = passed(self.cluster.environment)
        specs = launch_specs(self.cluster, self.van, arguments, logs, root, environment)
        if root.is_local:
            stack.callback(root.remove_sockets, len(specs))
        processes = []
        if specs[0].name == "scheduler":
            variables = {**inherited(), **specs[0].environment, "DMLC_NODE_HOST": root.address}
            scheduler = specs.pop(0)
            spec = LaunchSpec(scheduler.name, scheduler.command, variables, scheduler.log)
            processes.append(started_here(spec, stack))
        specs.sort(key=lambda spec: not spec.name.startswith("worker"))  # ranks keep their order
        # srun may place worker 0 on another host. Only a host that sees this file's random content has the run
        # directory.
        proof = logs / ".here"
        replace_file(proof, secrets.token_hex(16).encode())
        stack.callback(proof.unlink)
        message = launch_message(self.cluster, specs, environment, python_of(self.cluster), proof)
        channel = self._channel(message, len(specs), root.address, stack)
        return [*processes, *relayed(channel, specs, ranked=True, attempt=attempt, stack=stack)]


class MPILauncher(RankedLauncher):
    """Open MPI's mpirun. It reaches the stdin of one rank only: specs go through the environment, signals through
    mpirun. Its daemons take minutes to notice that a link is down, so relays listen to a `HeartbeatServer`."""

    program = "mpirun"
    what = "Install Open MPI (Debian: openmpi-bin)."

    def __init__(self, cluster: Cluster, van: Optional[str]):
        self._hosts = read_hosts(cluster.hostfile) if cluster.hostfile is not None else []
        super().__init__(cluster, van)
        version = subprocess.run([self.program, "--version"], capture_output=True, text=True, check=False).stdout
        if "Open MPI" not in version:
            first = version.splitlines()[0] if version else "no version"
            raise ConfigError(f"cluster.launcher=mpi: mpirun is not Open MPI's ({first}). {self.what}")
        allows_root = AS_ROOT in cluster.launcher_options or all(os.environ.get(name) == "1" for name in ROOT_ALLOWED)
        if os.geteuid() == 0 and not allows_root:
            raise ConfigError(
                f"cluster.launcher=mpi: Open MPI does not run as root unless it is told to. Run as another user, type "
                f"cluster.launcher_options=[{AS_ROOT}], or set {'=1 '.join(ROOT_ALLOWED)}=1."
            )

    def _stays_here(self) -> bool:
        managed = ("SLURM_JOB_ID", "PBS_NODEFILE", "LSB_HOSTS", "PE_HOSTFILE")  # mpirun asks them for hosts
        chosen = any(
            option in ("-H", "-host", "--host", "-hostfile", "--hostfile", "-machinefile", "--machinefile")
            for option in self.cluster.launcher_options
        )
        if self._hosts:
            return len(self._hosts) == 1
        return not chosen and not any(name in os.environ for name in managed)

    def _own_address(self) -> str:
        if self.cluster.interface is None and self._hosts:
            other_hosts = [host.name.rpartition("@")[2] for host in self._hosts if not host.is_here]
            address = address_towards(other_hosts[0])
            if address is not None:
                return address
        return super()._own_address()

    def _command(self, count: int) -> List[str]:
        settings = {}
        if self.cluster.interface is not None and not self.is_local:
            settings["oob_tcp_if_include"] = self.cluster.interface
        if not any("plm_rsh" in option for option in self.cluster.launcher_options):
            alive = max(1, math.ceil(self.cluster.heartbeat_timeout))
            # A host that does not answer must fail, not wait or ask for a password.
            settings["plm_rsh_args"] = f"-oBatchMode=yes -oConnectTimeout={alive} -oServerAliveInterval={alive}"
        command = [
            self.program,
            "-np",
            str(count),
            # Open MPI binds processes to cores or sockets by default, which would confine all threads of a worker.
            "--bind-to",
            "none",
            "-x",
            LAUNCH_SPECS,
            "--wdir",
            directory_of(self.cluster),
        ]
        if self.cluster.hostfile is not None:
            command += ["--hostfile", self.cluster.hostfile]
        if "PYTHONPATH" in os.environ:
            command += ["-x", "PYTHONPATH"]
        for name, value in settings.items():
            command += ["--mca", name, value]
        return [*command, *self.cluster.launcher_options]

    def _channel(self, message: Message, count: int, address: str, stack: ExitStack) -> Channel:
        relay = [*module_command("mxtrain.cluster.remote", python_of(self.cluster)), "--ranked", "--from", LAUNCH_SPECS]
        # mpirun 4.1.4 forwards stdin to one rank only (`--stdin all` reached none), so relays connect to a port.
        heartbeats = HeartbeatServer(address, limit=4 * count)
        stack.callback(heartbeats.close)
        specs = encode({**message, "heartbeats": [heartbeats.address, heartbeats.port]}).decode()
        return Channel(
            [*self._command(count), *relay],
            {**os.environ, LAUNCH_SPECS: specs},
            None,
            self.cluster.start_timeout,
            "mpirun",
            heartbeats,
        )


class SlurmLauncher(RankedLauncher):
    """Slurm's srun, in the allocation that there is, or in one that it asks for; it hands on stdin to all tasks."""

    program = "srun"
    what = "Start the command where Slurm's clients are."

    def _channel(self, message: Message, count: int, address: str, stack: ExitStack) -> Channel:
        command = [
            self.program,
            f"--ntasks={count}",
            "--kill-on-bad-exit=1",
            # A task that is bound to some cores could not use the others for its threads.
            "--cpu-bind=none",
            "--chdir",
            directory_of(self.cluster),
            *self.cluster.launcher_options,
            *module_command("mxtrain.cluster.remote", python_of(self.cluster)),
            "--ranked",
        ]
        return SlurmChannel(command, os.environ, message, None, "srun")
