"""Finds the addresses of this machine, and the one by which another host reaches it."""

from __future__ import annotations

import fcntl
import socket
import struct
from contextlib import suppress
from typing import Optional

LOOPBACK = "127.0.0.1"
_SIOCGIFADDR = 0x8915
"""Linux: the address of an interface."""


def address_of(interface: str) -> Optional[str]:
    """Returns the IPv4 address of a network interface; None if there is none."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        found = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
        return socket.inet_ntoa(found[20:24])
    return None


def address_towards(address: str) -> Optional[str]:
    """This machine's IPv4 address on the way to another, or None if there is no way. Sends nothing."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))
        return str(probe.getsockname()[0])
    return None


def interface_towards(address: str) -> Optional[str]:
    """Returns the name of the network interface on the way to another machine; None if there is no way."""
    own = address_towards(address)
    return next((name for _, name in socket.if_nameindex() if own is not None and address_of(name) == own), None)
