"""Finds the addresses of this machine, and the one by which another host reaches it."""

from __future__ import annotations

import fcntl
import socket
import struct
from contextlib import suppress
from typing import Optional

LOOPBACK = "127.0.0.1"
_SIOCGIFADDR = 0x8915
"""ioctl request for the address of an interface, on Linux."""


def address_of(interface: str) -> Optional[str]:
    """Returns the IPv4 address of a network interface; None if there is none."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
        return socket.inet_ntoa(request[20:24])
    return None


def address_towards(address: str) -> Optional[str]:
    """Returns this machine's IPv4 address on the route to another one; None if there is no route. Sends nothing."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # Connecting a datagram socket only asks the routing table; port 9 (discard) is as good as any.
        probe.connect((address, 9))
        return str(probe.getsockname()[0])
    return None


def ipv4_of(host: str) -> str:
    """Returns the IPv4 address of a host.

    Raises:
        OSError: it has none.
    """
    return str(socket.getaddrinfo(host, None, socket.AF_INET)[0][4][0])


def interface_towards(address: str) -> Optional[str]:
    """Returns the name of the network interface on the route to another machine; None if there is no route."""
    own_address = address_towards(address)
    if own_address is None:
        return None
    return next((name for _, name in socket.if_nameindex() if address_of(name) == own_address), None)
