"""A Slurm of its own: controller and two nodes on this machine, with munge."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Dict, List

from bench_parts.network import SEARCH

NODES = ("n1", "n2")
CPUS = 16


def free_ports(count: int) -> List[int]:
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


class Slurm:
    """Started when made; the stack ends it."""

    def __init__(self, stack: ExitStack):
        folder = self._folder = Path(
            tempfile.mkdtemp(prefix="mxtrain-slurm-", dir="/tmp")
        )  # munge wants short, safe paths
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        folder.chmod(0o755)
        controller, *nodes = free_ports(1 + len(NODES))
        (folder / "state").mkdir()
        key = folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        lines = [
            "ClusterName=test",
            f"SlurmctldHost={socket.gethostname()}(127.0.0.1)",
            f"SlurmctldPort={controller}",
            "SlurmUser=root",
            "SlurmdUser=root",
            "AuthType=auth/munge",
            f"AuthInfo=socket={folder}/munge.sock,cred_expire=10",  # a requeued job waits so long
            "CredType=cred/munge",
            f"StateSaveLocation={folder}/state",
            f"SlurmdSpoolDir={folder}/spool-%n",
            f"SlurmctldPidFile={folder}/slurmctld.pid",
            f"SlurmdPidFile={folder}/slurmd-%n.pid",
            f"SlurmctldLogFile={folder}/slurmctld.log",
            f"SlurmdLogFile={folder}/slurmd-%n.log",
            "ProctrackType=proctrack/linuxproc",
            "TaskPlugin=task/none",
            "SwitchType=switch/none",
            "MpiDefault=none",
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_CPU",
            "ReturnToService=2",
            "KillWait=2",
            "SlurmdParameters=config_overrides",
            "JobAcctGatherType=jobacct_gather/none",
            "AccountingStorageType=accounting_storage/none",
            *(
                f"NodeName={name} NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1 Port={port} CPUs={CPUS}"
                for name, port in zip(NODES, nodes)
            ),
            "PartitionName=all Nodes=ALL Default=YES State=UP",
        ]
        (folder / "slurm.conf").write_text("\n".join(lines) + "\n")
        self.environment: Dict[str, str] = {"SLURM_CONF": str(folder / "slurm.conf")}
        stack.callback(self._end)
        self._run(
            "munged",
            "--force",
            *(
                f"--{name}={folder}/munge.{end}"
                for name, end in [
                    ("key-file", "key"),
                    ("socket", "sock"),
                    ("pid-file", "pid"),
                    ("log-file", "log"),
                    ("seed-file", "seed"),
                ]
            ),
        )
        self._run("slurmctld", "-c")
        for name in NODES:
            self._run("slurmd", "-N", name)
        deadline = time.monotonic() + 20
        while self._run("sinfo", "-h", "-o", "%D%t").strip() != f"{len(NODES)}idle":
            assert time.monotonic() < deadline, self._run("sinfo")
            time.sleep(0.1)

    def _run(self, *command: str) -> str:
        environment = {**os.environ, **self.environment, "PATH": SEARCH}
        with tempfile.TemporaryFile("w+") as output:  # daemons would keep a pipe open
            done = subprocess.run(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, check=False
            )
            output.seek(0)
            text = output.read()
        assert done.returncode == 0 or command[0] == "sinfo", f"{command[0]}: {text}"
        return text

    def _end(self) -> None:
        pids = []
        for path in [*self._folder.glob("slurmd-*.pid"), self._folder / "slurmctld.pid", self._folder / "munge.pid"]:
            with suppress(OSError, ValueError):
                pids.append(int(path.read_text()))
                os.kill(pids[-1], signal.SIGTERM)
        deadline = time.monotonic() + 10
        while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < deadline:
            time.sleep(0.05)
