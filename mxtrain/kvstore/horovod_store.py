"""A store that sums gradients with Horovod's all-reduce, over an elastic ring of workers.

Horovod sums over a ring (Patarasuk and Yuan, Bandwidth optimal all-reduce, https://doi.org/10.1016/j.jpdc.2008.09.002;
Sergeev and Del Balso, https://arxiv.org/abs/1802.05799). Its tensor fusion is off: it merges arrays that happen to be
ready at the same time, so the order of the sums, and with it their last bits, would depend on timing. Our buckets take
its place.

    join: ask the supervisor for a place -> rank, size and the rendezvous server of Gloo -> init
    step: all-reduce -> confirm: wait until all gradients are summed -> update
    lost: confirm fails -> shutdown -> join the next generation -> broadcast rank 0's state -> repeat the step

Reasons: docs/decisions/0012-elastic-allreduce.md.
"""

from __future__ import annotations

import hashlib
import http.client
import importlib
import json
import os
import re
import socket
import threading
import time
import urllib.request
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from mxtrain.cluster.heartbeat import HEARTBEAT
from mxtrain.engine.backend import mx, nd
from mxtrain.errors import ConfigError, PeersLost
from mxtrain.kvstore.buckets import BUCKET_BYTES
from mxtrain.kvstore.compression import Build, Compressor
from mxtrain.kvstore.joined_store import JoinedStore
from mxtrain.kvstore.membership import Membership
from mxtrain.kvstore.world import JOINS, RING, WORKER, World
from mxtrain.runtime.network import interface_towards

if TYPE_CHECKING:
    from mxtrain.kvstore.reduction import Reduction

LOST = re.compile(r"horovod|gloo|connection|peer|timed? ?out|read error|write error|broken pipe|shut ?down", re.I)
"""Matches MXNet's errors after a failure of Horovod or Gloo: they contain its text, but have no type of their own."""
DIGEST_BYTES = 8
POLL_S = 0.05
DIRECTLY = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Opener without the proxies of the environment: the server is in this run's own network."""
WATCH_S = 0.5
"""Seconds between two checks of rank 0 whether a worker wants to join."""


def load_horovod() -> Any:
    """Imports Horovod for MXNet, after Pillow.

    Horovod makes the symbols of MXNet's library global, among them those of its libjpeg, which is not Pillow's version.
    A Pillow that is loaded later calls these, and cannot read a JPEG file.
    """
    importlib.import_module("PIL.Image")
    return importlib.import_module("horovod.mxnet")


class HorovodStore(JoinedStore):
    """A worker's sums over the ring. The constructor waits until all members have joined.

    Args:
        world: rank and size with which the worker was started; `self.world` has those of the current ring.
        compressor: builds the compressor of a bucket.
        hierarchical: True to sum within hosts first, if that sends less between them.
        bucket_bytes: size of a full bucket.
        elastic: False if no worker can go on without the others.
    """

    membership: RingMembership

    def __init__(
        self,
        world: World,
        compressor: Build = Compressor,
        hierarchical: bool = False,
        bucket_bytes: int = BUCKET_BYTES,
        elastic: bool = True,
    ):
        super().__init__(world, compressor, bucket_bytes)
        self._horovod = load_horovod()
        self.hierarchical = hierarchical
        self._hierarchy: Optional[HierarchicalAllReduce] = None
        self._number = 0
        self._names: Dict[int, Tuple[nd.NDArray, str]] = {}
        self.membership = RingMembership(self, elastic)
        self.membership.join()

    def sum_in_place(self, arrays: Sequence[nd.NDArray]) -> None:
        # Horovod's default is the average. Gradients are divided by the global batch size already, so sum them.
        for urgency, array in enumerate(arrays):
            name = self._name(array)
            if self._hierarchy is not None:
                self._hierarchy.sum_in_place(array, name, urgency)
            else:
                self._horovod.allreduce_(array, name=name, op=self._horovod.Sum, priority=urgency)

    def send_from(self, owners: Sequence[int], arrays: Sequence[nd.NDArray]) -> None:
        for urgency, (owner, array) in enumerate(zip(owners, arrays)):
            self._horovod.broadcast_(array, owner, name=f"{self._name(array)}.owner", priority=urgency)

    def begin_step(self, step: int, size: int) -> None:
        self._number = step
        super().begin_step(step, size)

    def reduce(self, reductions: Sequence[Reduction]) -> None:
        if self.membership.elastic:
            self.membership.keep_residuals(self._number, self.compressors_of(reductions))
        super().reduce(reductions)

    def wait_for(self, arrays: Sequence[nd.NDArray]) -> None:
        with translate_lost_peers():
            for array in arrays:
                array.wait_to_read()

    def wait_for_all(self) -> None:
        with translate_lost_peers():
            nd.waitall()

    def read(self, array: nd.NDArray) -> np.ndarray:
        with translate_lost_peers():
            return array.asnumpy()

    def start_ring(self, world: World) -> None:
        """Prepares sums in a new ring, in which this worker has the place `world`."""
        self.world = world
        self._names.clear()
        self.times = None
        if self.hierarchical:
            hosts = self._gather_hosts()
            if 1 < len(set(hosts)) < len(hosts):
                self._hierarchy = HierarchicalAllReduce(self._horovod, hosts, world.rank)

    def _gather_hosts(self) -> List[bytes]:
        """Returns a digest of the name of each worker's host. Collective; waits."""
        name = os.environ.get("HOROVOD_HOSTNAME") or socket.gethostname()
        rows = np.zeros((self.world.size, DIGEST_BYTES))
        rows[self.world.rank] = list(hashlib.sha256(name.encode()).digest()[:DIGEST_BYTES])
        return [bytes(row) for row in self.total(rows.ravel()).reshape(rows.shape).astype(np.uint8)]

    def renew_compressors(self) -> None:
        """Builds the compressors again, because their payloads depend on the number of workers. Keeps residuals."""
        previous, self._compressors = self._compressors, {}
        for key, compressors in previous.items():
            for old, new in zip(compressors, self.compressors_of(self._buckets[key][0])):
                if old.residual is not None:
                    old.residual.copyto(new.residual)  # type: ignore[arg-type]  # of the same length and kind

    @property
    def compressors(self) -> List[Compressor]:
        """Returns the compressors of all buckets."""
        return [compressor for group in self._compressors.values() for compressor in group]

    def _disconnect(self) -> None:
        self._horovod.shutdown()

    def _name(self, array: nd.NDArray) -> str:
        """Returns the name of an array for Horovod, which matches arrays of different workers by name.

        Arrays are numbered in the order of their first sum, which is the same on all members. Each ring starts at 0.
        """
        if id(array) not in self._names:
            self._names[id(array)] = (array, f"{len(self._names)}")
        return str(self._names[id(array)][1])


class HierarchicalAllReduce:
    """All-reduce in three steps: the sum of a host, the sum over hosts, and its broadcast within each host.

    Args:
        horovod: the module.
        hosts: for each rank, what identifies its host.
        rank: rank of this worker.
    """

    def __init__(self, horovod: Any, hosts: Sequence[bytes], rank: int):
        self._horovod = horovod
        members = {host: [rank for rank, other in enumerate(hosts) if other == host] for host in dict.fromkeys(hosts)}
        # All workers add all sets in the same order, those of other hosts, too. The set of a single worker would only
        # cost time.
        sets = {host: horovod.add_process_set(ranks) for host, ranks in members.items() if len(ranks) > 1}
        self._leaders = horovod.add_process_set([ranks[0] for ranks in members.values()])
        self._own, self._leader = sets.get(hosts[rank]), members[hosts[rank]][0]
        self._is_leader = self._leader == rank

    def sum_in_place(self, array: nd.NDArray, name: str, urgency: int) -> None:
        """Sums an array over all workers. Asynchronous: MXNet's engine keeps the order of the steps."""
        horovod = self._horovod
        if self._own is not None:
            # Horovod has no sum for a single member.
            horovod.allreduce_(array, name=f"{name}.host", op=horovod.Sum, priority=urgency, process_set=self._own)
        if self._is_leader:
            horovod.allreduce_(array, name=f"{name}.all", op=horovod.Sum, priority=urgency, process_set=self._leaders)
        if self._own is not None:
            horovod.broadcast_(array, self._leader, name=f"{name}.down", priority=urgency, process_set=self._own)


class RingMembership(Membership):
    """A worker's membership in the ring. Members join and leave if a supervisor forms new rings.

    Args:
        store: store of the worker.
        elastic: False if no worker can go on without the others.
    """

    def __init__(self, store: HorovodStore, elastic: bool = True):
        self._store, self._horovod, self._elastic = store, load_horovod(), elastic
        self._ring: Optional[str] = os.environ.get(RING)
        self._residuals: Dict[int, List[nd.NDArray]] = {}
        self._sockets: Dict[int, str] = {}
        self._generation = int(os.environ.get(JOINS, "0"))
        self.joined_late = self._generation > 0
        self._newest_request = 0

    @property
    def elastic(self) -> bool:
        """Returns True if a supervisor can form a new ring after members leave or join."""
        return self._elastic and self._ring is not None

    def confirm(self, arrays: Sequence[nd.NDArray]) -> None:
        """Waits for the sums, so that either all remaining members apply a step or none of them.

        This costs one wait per step. Without it a member could have updated half of its weights when another one dies.
        """
        self._store.wait_for(arrays)

    def drain(self) -> None:
        # Each failed operator raises its error at one later wait: call it until none is left.
        for _ in range(100):
            try:
                nd.waitall()
                return
            except mx.base.MXNetError:  # `confirm` has reported the failure
                continue

    def keep_residuals(self, step: int, compressors: Sequence[Compressor]) -> None:
        """Keeps the residuals from before this step and the last one: a lost peer makes this worker repeat one."""
        residuals = [c.residual.copy() for c in compressors if c.residual is not None]
        self._residuals = {step - 1: self._residuals.get(step - 1, []), step: residuals}

    def resume_from(self, step: int) -> None:
        residuals = [c.residual for c in self._store.compressors if c.residual is not None]
        # A worker that was one step ahead repeats that step, so it also restores the residuals from before it.
        for residual, saved in zip(residuals, self._residuals.get(step + 1, [])):
            saved.copyto(residual)
        self._residuals.clear()

    def wants_regroup(self) -> bool:
        """Returns True if a worker waits to join. Only rank 0 knows."""
        return self._newest_request > self._generation

    def regroup(self) -> None:
        """Leaves the ring and joins the next one. Waits for all remaining members.

        Each member keeps its compression residuals. Those of a lost worker are lost.
        """
        self.drain()
        self._horovod.shutdown()
        self._shut_down_sockets()
        self.join()
        self._store.renew_compressors()

    def join(self) -> None:
        """Joins a ring. Waits for all of its members.

        Raises:
            PeersLost: a member died before all had joined.
            ConfigError: Horovod was launched with another number of workers.
        """
        if self._ring is not None:
            self._wait_for_place()
        other_sockets = open_sockets()
        if self._store.hierarchical:
            os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"] = "1"  # read by `init`
        try:
            self._horovod.init()
        except ValueError as error:  # for instance, another member died before all had joined
            raise PeersLost(f"Horovod could not form a ring: {error}") from error
        self._sockets = {fd: name for fd, name in open_sockets().items() if other_sockets.get(fd) != name}
        started, world = self._store.world, World(self._horovod.rank(), self._horovod.size())
        if self._ring is None and world != started:
            raise ConfigError(
                f"worker {started.rank} of {started.size} was started, but Horovod sees {world.rank} of "
                f"{world.size}. Built without MPI it needs horovodrun, or cluster.launcher=ssh or slurm."
            )
        self._store.start_ring(world)
        # The thread serves all later rings of this process, so it is started only once.
        if self._ring is not None and world.rank == 0 and self._newest_request == 0:
            self._newest_request = self._generation
            threading.Thread(target=self._watch, name="mxtrain-ring", daemon=True).start()

    def _shut_down_sockets(self) -> None:
        """Shuts down the connections of the ring, which Horovod keeps open until its next `init`.

        Other members may be waiting for data of this worker, and would leave the ring only after Gloo's timeout.
        """
        # Without this, the other workers of a ring went on after 14 to 30 s; with it, after 0.6 s.
        current = open_sockets()
        for fd, name in self._sockets.items():
            if current.get(fd) == name:
                # dup: Python closes its own descriptor, Gloo later closes the other one.
                with suppress(OSError), socket.socket(fileno=os.dup(fd)) as connection:
                    connection.shutdown(socket.SHUT_RDWR)

    def _wait_for_place(self) -> None:
        """Asks the supervisor for a place in the next generation, waits for it, and sets Horovod's variables."""
        number = os.environ[WORKER]
        reply: Dict[str, Any] = {"generation": self._generation, "places": {}}
        while number not in reply["places"]:
            if reply["generation"] >= self._generation:  # at first, or if that ring was formed without this worker
                self._generation = reply["generation"] + 1
                HEARTBEAT.generation = self._generation
                HEARTBEAT.emit()
            time.sleep(POLL_S)
            reply = self._ask("next") or {"generation": 0, "places": {}}
            if reply["generation"] < self._generation:
                reply["places"] = {}
        self._generation = reply["generation"]
        host = str(self._ring).rpartition(":")[0]
        variables = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": host, "HOROVOD_GLOO_IFACE": interface_towards(host) or ""}
        variables.update({**reply["variables"], **reply["places"][number]})
        # A cycle of 3 ms made two workers of ResNet-20 1.08 times as fast, but any value crashes the second `init` of a
        # process that also sets HOROVOD_FUSION_THRESHOLD.
        os.environ.pop("HOROVOD_CYCLE_TIME", None)  # or the next ring ends in a segmentation fault: decision 12
        os.environ.update({name: value for name, value in variables.items() if name.startswith("HOROVOD_")})

    def _watch(self) -> None:
        while True:
            self._newest_request = self._ask("wanted") or self._newest_request
            time.sleep(WATCH_S)

    def _ask(self, key: str) -> Any:
        """Reads a value from the supervisor's server; None if it is not set or the server cannot be reached now."""
        url = f"http://{self._ring}/mxtrain/{key}"
        with suppress(OSError, http.client.HTTPException, ValueError), DIRECTLY.open(url, timeout=5) as answer:
            return json.loads(answer.read())
        return None


def open_sockets() -> Dict[int, str]:
    """Returns descriptor -> the kernel's name of the socket, for all open sockets of this process."""
    sockets = {}
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            name = os.readlink(path)
            if name.startswith("socket:"):
                sockets[int(path.name)] = name
    return sockets


@contextmanager
def translate_lost_peers() -> Iterator[None]:
    """Converts MXNet's error for a failure of Horovod into PeersLost."""
    try:
        yield
    except mx.base.MXNetError as error:
        if not LOST.search(str(error)):
            raise
        raise PeersLost("lost the connection to another worker") from None
