"""Seconds in which processes on several hosts sum arrays with Horovod, in one ring or in several at the same time.

    python -m bench_parts.rings ARRAYS LENGTH TIMES

is one member of a ring: it prints a line when it is ready, and another one with its seconds after each sum that
standard input asks for.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, List

if TYPE_CHECKING:
    from bench_parts.network import Network


def seconds_of_a_sum(hosts: Network, rings: int, arrays: int, length: int, times: int) -> float:
    """Returns the median of the seconds in which all arrays are summed.

    Args:
        hosts: each has one member of each ring.
        rings: number of rings that sum at the same time; each has its part of the arrays.
        arrays: number of arrays.
        length: numbers of an array, float32.
        times: number of sums, after a first one that is not counted.
    """
    with ExitStack() as stack:
        members = [member for _ in range(rings) for member in _start_ring(hosts, arrays // rings, length, stack)]
        for member in members:
            _read(member)
        seconds = []
        for _ in range(1 + times):
            began = time.monotonic()
            for member in members:
                assert member.stdin is not None
                member.stdin.write("sum\n")
                member.stdin.flush()
            for member in members:
                _read(member)
            seconds.append(time.monotonic() - began)
        return statistics.median(seconds[1:])


def _start_ring(hosts: Network, arrays: int, length: int, stack: ExitStack) -> List[subprocess.Popen[str]]:
    server = subprocess.Popen(
        [*hosts.on(1), sys.executable, "-m", "bench_parts.rings", "serve", hosts.addresses[0]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).resolve().parents[1],
    )
    stack.callback(server.communicate)
    port = _read(server)
    members = []
    for rank, address in enumerate(hosts.addresses):
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "HOROVOD_RANK": str(rank),
            "HOROVOD_SIZE": str(len(hosts.addresses)),
            "HOROVOD_HOSTNAME": address,
            "HOROVOD_LOCAL_RANK": "0",
            "HOROVOD_LOCAL_SIZE": "1",
            "HOROVOD_CROSS_RANK": str(rank),
            "HOROVOD_CROSS_SIZE": str(len(hosts.addresses)),
            "HOROVOD_GLOO_RENDEZVOUS_ADDR": hosts.addresses[0],
            "HOROVOD_GLOO_RENDEZVOUS_PORT": port,
            "HOROVOD_GLOO_IFACE": "net0",
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
            "HOROVOD_FUSION_THRESHOLD": "0",
        }
        environment.pop("MXTRAIN_RING", None)
        member = subprocess.Popen(
            [*hosts.on(rank + 1), sys.executable, "-m", "bench_parts.rings", str(arrays), str(length)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=Path(__file__).resolve().parents[1],
        )
        stack.callback(member.kill)
        members.append(member)
    return members


def _read(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, "a member of a ring ended"
    return line.strip()


def _serve(address: str) -> None:
    from contextlib import closing

    from mxtrain.cluster.ring import KeyValueServer

    with closing(KeyValueServer(address)) as server:
        print(server.port, flush=True)
        sys.stdin.read()


def _take_part(arrays: int, length: int) -> None:
    from mxtrain.engine.backend import nd
    from mxtrain.kvstore.horovod_store import load_horovod

    horovod = load_horovod()
    horovod.init()
    values = [nd.zeros((length,)) for _ in range(arrays)]
    print("ready", flush=True)
    for _ in sys.stdin:
        for number, value in enumerate(values):
            horovod.allreduce_(value, name=str(number), op=horovod.Sum, priority=number)
        nd.waitall()
        print("done", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        _serve(sys.argv[2])
    else:
        _take_part(*map(int, sys.argv[1:]))
