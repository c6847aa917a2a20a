"""A wire between hosts on which each packet waits: in user space, for kernels without netem(8).

    python -m bench_parts.delayed_wire MILLISECONDS ADDRESS=NAMESPACE...

makes a network device `slow0` in each namespace (network.py), prints a line when all are there, and hands each IPv4
packet to the device of the address that it is for, so much later. It ends with its standard input.
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


def carry(devices: Dict[bytes, int], delay_s: float) -> None:
    """Until standard input ends. `devices`: of each address in its four bytes."""
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
                        heapq.heappush(waiting, (now + delay_s, count, to, packet))
        while waiting and waiting[0][0] <= now:
            _, _, to, packet = heapq.heappop(waiting)
            with suppress(BlockingIOError):  # its queue is full: lost, as on a wire
                os.write(to, packet)


if __name__ == "__main__":
    os.nice(-10)  # else it would wait for a processor among those whose packets it carries
    named = dict(word.split("=") for word in sys.argv[2:])
    opened = {ipaddress.IPv4Address(address).packed: open_device(name) for address, name in named.items()}
    print("ready", flush=True)
    carry(opened, float(sys.argv[1]) / 1000)
