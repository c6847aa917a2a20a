"""A wire between hosts on which each packet waits: in user space, for kernels without netem(8).

    python -m bench_parts.delayed_wire MILLISECONDS MBIT_PER_S ADDRESS=NAMESPACE...

makes a network device `slow0` in each namespace (network.py), prints a line when all are there, and hands each IPv4
packet to the device of the address that it is for, so much later. What a host sends and what it receives take their
time one after the other, at this rate (0: no time). It ends with its standard input.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import ipaddress
import os
import select
import struct
import sys
import time
from contextlib import suppress
from typing import Dict, List, Tuple

DEVICE = "slow0"
MTU = 65_000
"""Bytes: fewer and larger packets, because each takes this process its time."""
IFF_TUN, IFF_NO_PI, TUNSETIFF, CLONE_NEWNET = 0x0001, 0x1000, 0x400454CA, 0x40000000
"""Constants of linux/if_tun.h and linux/sched.h."""


def open_device(namespace: str) -> int:
    """A file descriptor of which each read is a packet that leaves the namespace; this thread is in it afterwards."""
    inside = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(inside, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), namespace)
    finally:
        os.close(inside)
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), IFF_TUN | IFF_NO_PI))
    return device


class Link:
    """One direction of a host's link, on which packets follow one another."""

    def __init__(self, bits_per_s: float):
        self._bits_per_s, self._free_at = bits_per_s, 0.0

    def pass_on(self, come_at: float, size: int) -> float:
        """Returns the time at which the last byte of a packet has passed, of so many bytes, whose first came then."""
        if not self._bits_per_s:
            return come_at
        self._free_at = max(come_at, self._free_at) + 8 * size / self._bits_per_s
        return self._free_at


def carry(devices: Dict[bytes, int], delay_s: float, bits_per_s: float = 0.0) -> None:
    """Until standard input ends. `devices`: of each address in its four bytes."""
    outgoing, incoming = ({device: Link(bits_per_s) for device in devices.values()} for _ in range(2))
    waiting: List[Tuple[float, int, int, bytes]] = []
    count = 0
    while True:
        timeout_s = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        ready, _, _ = select.select([sys.stdin, *devices.values()], [], [], timeout_s)
        if sys.stdin in ready:
            return
        now = time.monotonic()
        for device in ready:
            with suppress(BlockingIOError):
                while True:
                    packet = os.read(device, MTU)
                    to = devices.get(packet[16:20]) if packet[0] >> 4 == 4 else None
                    if to is not None:
                        count += 1
                        sent_at = outgoing[device].pass_on(now, len(packet))
                        # A packet takes its time once on a free way: it arrives while it is sent.
                        come_at = sent_at + delay_s - (8 * len(packet) / bits_per_s if bits_per_s else 0.0)
                        heapq.heappush(waiting, (incoming[to].pass_on(come_at, len(packet)), count, to, packet))
        while waiting and waiting[0][0] <= now:
            _, _, to, packet = heapq.heappop(waiting)
            with suppress(BlockingIOError):  # its queue is full: lost, as on a wire
                os.write(to, packet)


if __name__ == "__main__":
    os.nice(-10)  # else it would wait for a processor among those whose packets it carries
    named = dict(word.split("=") for word in sys.argv[3:])
    opened = {ipaddress.IPv4Address(address).packed: open_device(name) for address, name in named.items()}
    print("ready", flush=True)
    carry(opened, float(sys.argv[1]) / 1000, 1e6 * float(sys.argv[2]))
