"""Launches the processes of one node of a run on several nodes.

An engine (Kubernetes, Volcano, SkyPilot, SageMaker) runs the same command once on each node, and tells each its number.
Every node supervises its own processes and restarts none: the engine restarts all nodes, and the run continues from its
last checkpoint. Node 0 has the scheduler, worker 0 and the run directory.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import List, Mapping, Optional, Sequence, Tuple

from mxtrain.cluster.hosts import Host, interface_address, spread
from mxtrain.cluster.joining import ADDRESS, NODE, PORT, find_scheduler
from mxtrain.cluster.launch_spec import Root, launch_specs, name_of
from mxtrain.cluster.launched import own_address, scheduler_of
from mxtrain.cluster.launcher import Launcher
from mxtrain.cluster.member import Member
from mxtrain.cluster.process import Process
from mxtrain.cluster.spec import Cluster
from mxtrain.errors import ConfigError
from mxtrain.kvstore.world import World

NODE_RANK, NUM_NODES = "MXTRAIN_NODE_RANK", "MXTRAIN_NUM_NODES"
"""Environment variables with the number of this node, from 0, and the number of nodes."""


def find_node(environ: Mapping[str, str] = os.environ) -> Tuple[int, int]:
    """Returns the number of this node and the number of nodes, from the environment.

    Raises:
        ConfigError: a variable is missing or is no such number.
    """
    texts = [environ.get(name, "") for name in (NODE_RANK, NUM_NODES)]
    if not all(text.isdecimal() for text in texts) or int(texts[0]) >= int(texts[1]):
        raise ConfigError(
            f"cluster.launcher=nodes with {NODE_RANK}={texts[0]} and {NUM_NODES}={texts[1]} in the environment: the "
            "engine that starts each node must set the node's number, from 0, and the number of nodes. Files of "
            "`mxtrain launch` do."
        )
    return int(texts[0]), int(texts[1])


class NodeLauncher(Launcher):
    """The processes of this node. Waits for the scheduler's host, whose name may exist only when its node does.

    Raises:
        ConfigError: the environment does not describe the node, or there are more nodes than workers.
        NotJoined: node 0 has no address, or starts no scheduler.
    """

    def __init__(self, cluster: Cluster, van: Optional[str]):
        super().__init__(cluster.model_copy(update={"restarts": 0}), van)
        self.rank, self.num_nodes = find_node()
        if self.num_nodes > cluster.workers:
            raise ConfigError(
                f"{NUM_NODES}={self.num_nodes} and cluster.workers={cluster.workers}: each node needs a worker. Type "
                f"cluster.workers={self.num_nodes}, or start {cluster.workers} nodes."
            )
        hosts = [Host(str(number)) for number in range(self.num_nodes)]
        self._hosts = {name_of("scheduler", 0): hosts[0], **spread(cluster.workers, cluster.num_servers, hosts)}
        self.names = [name for name, host in self._hosts.items() if host == hosts[self.rank]]
        """Names of the processes of this node."""
        self._root, self.address = self._find_root()
        self.place = f"on {self.num_nodes} nodes, of which this is number {self.rank}"
        self.writes_logs = self.rank == 0

    def start(self, arguments: Sequence[str], logs: Path, attempt: int, stack: ExitStack) -> List[Process]:
        specs = launch_specs(self.cluster, self.van, arguments, logs, self._root, self._hosts)
        own = [spec for spec in specs if spec.name in self.names]
        if not self.writes_logs:  # an engine shows the output of a node, which has no run directory
            own = [replace(spec, log=None) for spec in own]
        return [self._start_here(spec, stack) for spec in own]

    def _find_root(self) -> Tuple[Root, str]:
        """Returns the address of the scheduler, and the one to which the processes of this node bind."""
        host, port = scheduler_of(os.environ)
        variables = {ADDRESS: host, PORT: str(port)}
        if self.cluster.interface is not None:
            variables[NODE] = interface_address(self.cluster.interface)
        first = next(rank for rank in range(self.cluster.workers) if name_of("worker", rank) in self.names)
        member = Member("scheduler") if self.rank == 0 else Member("worker", World(first))
        # Here, and not in `start`: a supervisor would not end the wait at a signal.
        find_scheduler(member, self.cluster.start_timeout, variables)
        root = Root(variables[ADDRESS], port)
        if NODE in variables:
            return root, variables[NODE]
        return root, root.address if self.rank == 0 else own_address(None, root.address)
