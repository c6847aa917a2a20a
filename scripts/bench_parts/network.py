"""Several hosts on one machine: network namespaces on a bridge, with a real sshd in each."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from itertools import count as numbers
from pathlib import Path
from typing import List, Sequence

from bench_parts.delayed_wire import DEVICE, MTU

SUBNET = "10.213.77"
_serial = numbers()


def unsupported_reason() -> str:
    """Why there can be no such hosts here, or ""."""
    if os.getuid() != 0:
        return "network namespaces need root"
    missing = [name for name in ("ip", "tc", "ssh", "sshd", "ssh-keygen") if shutil.which(name, path=SEARCH) is None]
    if missing:
        return f"{', '.join(missing)} not installed (apt-get install iproute2 openssh-server)"
    if subprocess.run(["ip", "netns", "list"], capture_output=True, check=False).returncode:
        return "the kernel grants no network namespaces"
    return ""


SEARCH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, "PATH": SEARCH})


class Network:
    """Hosts 1 to `count`, numbered from 1; every one sees the same files and processes.

    Args:
        folder: for keys, configuration and logs.
        stack: takes everything back.
        count: of hosts.
    """

    def __init__(self, folder: Path, stack: ExitStack, count: int = 3):
        self.addresses = [f"{SUBNET}.{number}" for number in range(1, count + 1)]
        self._name = f"mxt{os.getpid()}x{next(_serial)}"
        self._daemons: List[subprocess.Popen] = []
        self._stack = stack
        stack.callback(self._remove)
        hub = self._hub = f"{self._name}h"
        run("ip", "netns", "add", hub)
        run("ip", "-n", hub, "link", "add", "br0", "type", "bridge")
        run("ip", "-n", hub, "link", "set", "br0", "up")
        for number, address in enumerate(self.addresses, 1):
            name = self.space(number)
            run("ip", "netns", "add", name)
            run("ip", "-n", name, "link", "add", "net0", "type", "veth", "peer", "name", f"p{number}", "netns", hub)
            run("ip", "-n", hub, "link", "set", f"p{number}", "master", "br0", "up")
            run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", "net0")
            for device in ("lo", "net0"):
                run("ip", "-n", name, "link", "set", device, "up")
        self._start_sshd(folder, stack)

    def space(self, number: int) -> str:
        return f"{self._name}n{number}"

    def on(self, number: int) -> List[str]:
        """Before a command: runs it on this host."""
        return ["ip", "netns", "exec", self.space(number)]

    def set_link(self, number: int, state: str) -> None:
        """Cuts a host off (down), or not (up)."""
        run("ip", "-n", self._hub, "link", "set", f"p{number}", state)

    def throttle(self, number: int, rate: str) -> None:
        """Slows a host's link down in both directions (token bucket filter, tc-tbf(8)); `rate` in tc's words."""
        for space, device in ((self.space(number), "net0"), (self._hub, f"p{number}")):
            run(
                "tc",
                "-n",
                space,
                "qdisc",
                "replace",
                "dev",
                device,
                "root",
                "tbf",
                "rate",
                rate,
                "burst",
                "256kb",
                "latency",
                "100ms",
            )

    def delay(self, milliseconds: float, mbit_per_s: float = 0) -> None:
        """Packets between any two hosts are so long on their way, each way, and each host's link has this rate, each
        way (delayed_wire.py); 0: any."""
        spaces = {address: self.space(number) for number, address in enumerate(self.addresses, 1)}
        command = [sys.executable, "-m", "bench_parts.delayed_wire", str(milliseconds), str(mbit_per_s)]
        wire = subprocess.Popen(
            [*command, *(f"{address}={space}" for address, space in spaces.items())],
            cwd=Path(__file__).resolve().parents[1],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._stack.callback(wire.communicate)  # which ends its standard input
        assert wire.stdout is not None and wire.stdout.readline() == b"ready\n", "no TUN devices here (/dev/net/tun)"
        for own, space in spaces.items():
            run("ip", "-n", space, "link", "set", DEVICE, "mtu", str(MTU), "txqueuelen", "10000", "up")
            for other in self.addresses:
                if other != own:
                    run("ip", "-n", space, "route", "add", f"{other}/32", "dev", DEVICE, "src", own)

    def over_ssh(self, folder: Path) -> List[str]:
        """Overrides of a run over all hosts that starts on the first one."""
        file = hostfile(folder / "hosts", self.addresses)
        return ["cluster.launcher=ssh", f"cluster.hostfile={file}", f"cluster.launcher_options=[-F,{self.ssh_config}]"]

    def drop(self, number: int, percent: int) -> None:
        """Loses so many of the packets that come to a host, by chance."""
        rules = (
            "add table ip lossy\nadd chain ip lossy incoming { type filter hook input priority 0; }\n"
            f"add rule ip lossy incoming iifname net0 numgen random mod 100 < {percent} counter drop\n"
        )
        run(*self.on(number), "nft", rules)

    def keep(self, number: int) -> int:
        """Ends that; how many were lost."""
        command = [*self.on(number), "nft", "-j", "list", "table", "ip", "lossy"]
        found = subprocess.run(command, check=True, capture_output=True, env={**os.environ, "PATH": SEARCH}).stdout
        run(*self.on(number), "nft", "delete table ip lossy")
        (rule,) = [each["rule"]["expr"] for each in json.loads(found)["nftables"] if "rule" in each]
        return next(int(part["counter"]["packets"]) for part in rule if "counter" in part)

    def strangers(self) -> List[str]:
        """Returns processes and listeners on the hosts, except for each host's sshd."""
        found = []
        for number, daemon in enumerate(self._daemons, 1):
            text = subprocess.run(
                ["ip", "netns", "pids", self.space(number)], check=True, capture_output=True, text=True
            ).stdout
            found += [f"process {pid}" for pid in text.split() if int(pid) != daemon.pid]
            text = subprocess.run([*self.on(number), "ss", "-Hltn"], check=True, capture_output=True, text=True).stdout
            ports = [line.split()[3].rpartition(":")[2] for line in text.splitlines()]
            found += [f"port {port}" for port in ports if port != "22"]
        return found

    def _start_sshd(self, folder: Path, stack: ExitStack) -> None:
        sshd = shutil.which("sshd", path=SEARCH) or ""
        for name in ("host_key", "user_key"):
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name))
        Path("/run/sshd").mkdir(exist_ok=True)
        public = (folder / "host_key.pub").read_text()
        (folder / "known_hosts").write_text("".join(f"{address} {public}" for address in self.addresses))
        (folder / "sshd_config").write_text(
            f"HostKey {folder}/host_key\nAuthorizedKeysFile {folder}/user_key.pub\nStrictModes no\nUsePAM no\n"
            "PermitRootLogin prohibit-password\nPasswordAuthentication no\n"
        )
        self.ssh_config = folder / "ssh_config"
        self.ssh_config.write_text(
            f"Host *\n  User root\n  IdentityFile {folder}/user_key\n  IdentitiesOnly yes\n"
            f"  UserKnownHostsFile {folder}/known_hosts\n"
        )
        for number, address in enumerate(self.addresses, 1):
            command = [
                sshd,
                "-D",
                "-f",
                str(folder / "sshd_config"),
                "-E",
                str(folder / f"sshd{number}.log"),
                "-o",
                f"ListenAddress={address}",
                "-o",
                "PidFile=none",
            ]
            self._daemons.append(subprocess.Popen([*self.on(number), *command], stdin=subprocess.DEVNULL))
        for number in range(1, len(self.addresses) + 1):
            self._wait_for_sshd(number)

    def _wait_for_sshd(self, number: int) -> None:
        deadline = time.monotonic() + 10
        probe = [*self.on(1), "ssh", "-F", str(self.ssh_config), "-oBatchMode=yes", self.addresses[number - 1], "true"]
        while subprocess.run(probe, capture_output=True, check=False).returncode:
            assert time.monotonic() < deadline, "sshd does not answer"
            time.sleep(0.1)

    def _remove(self) -> None:
        for daemon in self._daemons:
            daemon.send_signal(signal.SIGTERM)
            daemon.wait()
        found = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout
        for line in found.splitlines():
            if line.split()[0].startswith(self._name):
                run("ip", "netns", "delete", line.split()[0])


def hostfile(path: Path, lines: Sequence[str]) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path
