"""A Ray cluster of several raylets on this machine, in a process of its own, because Ray changes the one it runs in."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import List

from mxtrain.files.unused_folders import locked_folder

START = """
import json, sys
from ray.cluster_utils import Cluster

cluster = Cluster()
nodes = []
for number, count in enumerate(json.loads(sys.argv[1])):
    own = {"include_dashboard": False} if number == 0 else {}
    nodes.append(cluster.add_node(wait=False, num_cpus=count, object_store_memory=80 << 20, **own))
cluster.wait_for_nodes()
raylets = [node.all_processes["raylet"][0].process.pid for node in nodes]
head = cluster.head_node.all_processes["gcs_server"][0].process.pid
print(json.dumps({"address": cluster.address, "raylets": raylets, "head": head}), flush=True)
for line in sys.stdin:
    node = cluster.add_node(num_cpus=int(line), object_store_memory=80 << 20)
    print(node.all_processes["raylet"][0].process.pid, flush=True)
cluster.shutdown()
"""


class Raylets:
    """A cluster.

    Args:
        stack: ends it.
        cpus: number of CPUs of each node.
    """

    def __init__(self, stack: ExitStack, *cpus: int):
        # A short path, because it is that of Unix sockets.
        self.folder = stack.enter_context(locked_folder(Path("/tmp"), "ray-of-tests-"))
        (self.folder / "ray").mkdir()  # Ray writes the address there before it makes the folder
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        self._process = subprocess.Popen(
            [sys.executable, "-c", START, json.dumps(cpus)],
            env={
                **environment,
                "RAY_USAGE_STATS_ENABLED": "0",
                "RAY_TMPDIR": str(self.folder),
                # With Ray's 15, runs get almost no share of the cores beside other tests.
                "RAY_worker_niceness": "0",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        stack.callback(self.close)
        assert self._process.stdout is not None
        found = json.loads(next(line for line in self._process.stdout if line.startswith("{")))
        self.address: str = found["address"]
        self.raylets: List[int] = found["raylets"]
        self.head: int = found["head"]
        """The process of the head that knows all nodes."""

    def kill(self, number: int) -> None:
        """Kills a node's raylet, as the loss of the node does."""
        os.kill(self.raylets[number], signal.SIGKILL)

    def add(self, cpus: int) -> None:
        """Adds a node."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{cpus}\n")
        self._process.stdin.flush()
        self.raylets.append(int(self._process.stdout.readline()))

    def close(self) -> None:
        """Ends the cluster."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
