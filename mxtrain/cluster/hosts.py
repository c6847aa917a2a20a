"""The hosts of a run: reads them from a file and assigns processes to them."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from typing import Dict, List, Optional, Sequence

from mxtrain.errors import ConfigError, reason_of
from mxtrain.files.regular_files import read_regular_text
from mxtrain.files.text_lines import split_lines
from mxtrain.runtime.network import address_of

_NAME = re.compile(r"(?:[A-Za-z0-9_.-]+@)?[A-Za-z0-9_.:-]+\Z")
NOWHERE = "192.0.2.1"
"""An address of no host (RFC 5737): what the default route leads to. Nothing is sent there."""


@dataclass(frozen=True)
class Host:
    """A line of a host file.

    Attributes:
        name: name for ssh.
        slots: maximum number of workers; None = no limit.
        line: source location for messages, e.g. "hosts, line 2".
        is_here: True if it is this machine.
    """

    name: str
    slots: Optional[int] = None
    line: str = ""
    is_here: bool = False


def read_hosts(file: str) -> List[Host]:
    """Returns the hosts of a file, this machine first.

    Raises:
        ConfigError: the file cannot be read, has another format, or does not list this machine.
    """
    try:
        lines = split_lines(read_regular_text(file))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cluster.hostfile={file}: cannot be read ({reason_of(error)}). It must be a text "
            "file with a line 'HOST [slots=N]' for each host."
        ) from None
    hosts: Dict[str, Host] = {}
    for number, text in enumerate(lines, 1):
        words = text.split("#")[0].split()
        if not words:
            continue
        host = _read_line(words, f"{file}, line {number}")
        if host.name in hosts:
            raise ConfigError(f"{host.line}: '{host.name}' is already listed in {hosts[host.name].line}. Type slots=N.")
        hosts[host.name] = host
    if not hosts:
        raise ConfigError(f"cluster.hostfile={file}: holds no host. Write a line 'HOST [slots=N]' for each.")
    local_hosts = [host for host in hosts.values() if host.is_here]
    if not local_hosts:
        raise ConfigError(
            f"cluster.hostfile={file}: none of {', '.join(hosts)} is this machine ({socket.gethostname()}). Worker 0 "
            "runs where this command does, beside the run directory: add a line with this machine's name, or start the "
            "command on one of the hosts."
        )
    if len(local_hosts) > 1:
        first, second = local_hosts[:2]
        raise ConfigError(f"{second.line}: '{second.name}' is this machine, as '{first.name}' is ({first.line}).")
    return [*local_hosts, *(host for host in hosts.values() if not host.is_here)]


def _read_line(words: Sequence[str], line: str) -> Host:
    name, slots = words[0], None
    short = re.fullmatch(r"([^:]+):([1-9][0-9]*)", name)
    if short is not None:  # as horovodrun and Intel MPI take it; an IPv6 address has more colons
        raise ConfigError(f"{line}: '{name}' is no host. Write '{short[1]} slots={short[2]}'.")
    # ssh would take a name that begins with a dash as an option.
    if not _NAME.match(name) or name.startswith("-"):
        raise ConfigError(f"{line}: '{name}' is no host. Write 'HOST [slots=N]'.")
    for word in words[1:]:
        key, _, value = word.partition("=")
        if key != "slots" or not value.isdecimal() or int(value) < 1:
            raise ConfigError(f"{line}: '{word}': only slots=N is known, with N from 1, e.g. '{name} slots=2'.")
        slots = int(value)
    return Host(name, slots, line, is_this_machine(name.rpartition("@")[2]))


def is_this_machine(name: str) -> bool:
    """Returns True if a name or an address leads here. A name that only ssh's configuration knows does not."""
    try:
        addresses = socket.getaddrinfo(name, None, type=socket.SOCK_DGRAM)
    except OSError:
        return name in (socket.gethostname(), socket.gethostname().partition(".")[0])
    return any(is_own_address(str(address[0])) for _, _, _, _, address in addresses)


def is_own_address(address: str) -> bool:
    """Returns True if a socket of this machine can have this address."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # The kernel refuses to bind a socket to an address of another machine.
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def interface_address(name: str) -> str:
    """Returns the IPv4 address of a network interface of this machine.

    Raises:
        ConfigError: there is no such interface, or it has none.
    """
    address = address_of(name)
    if address is None:
        names = ", ".join(name for _, name in socket.if_nameindex())
        raise ConfigError(
            f"cluster.interface={name}: {socket.gethostname()} has no such interface with an IPv4 address. It has: "
            f"{names}."
        )
    return address


def free_port(address: str) -> int:
    """Returns a port at which nothing listens now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def spread(num_workers: int, num_servers: int, hosts: Sequence[Host]) -> Dict[str, Host]:
    """Assigns processes to hosts: "worker 0", "server 0", ... -> host.

    Workers are dealt out evenly to hosts with free slots; ranks on a host are consecutive, beginning with this machine.
    Servers are assigned in turn.

    Raises:
        ConfigError: there are too few slots.
    """
    counts = [0] * len(hosts)
    while sum(counts) < num_workers:
        free = [at for at, host in enumerate(hosts) if host.slots is None or counts[at] < host.slots]
        if not free:
            slots = sum(host.slots or 0 for host in hosts)
            raise ConfigError(
                f"cluster.workers={num_workers}: the hosts have {slots} slots. Type cluster.workers={slots}, or more "
                f"slots in {hosts[0].line.rpartition(',')[0]}."
            )
        for at in free[: num_workers - sum(counts)]:
            counts[at] += 1
    host_of_worker = [host for host, count in zip(hosts, counts) for _ in range(count)]
    host_of = {f"worker {rank}": host for rank, host in enumerate(host_of_worker)}
    host_of.update({f"server {number}": hosts[number % len(hosts)] for number in range(num_servers)})
    return host_of
