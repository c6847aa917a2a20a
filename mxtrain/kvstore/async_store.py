"""A store for MXNet's asynchronous parameter server (`dist_async`): servers apply each gradient when it arrives.

Collective operations (sums of a validation, a checkpoint, the decision to stop) use mailboxes: keys into which only one
worker writes. Each worker fills its mailbox, all wait at the scheduler's barrier, and then read those of the others.
Each worker has two mailboxes, used alternately, so that it never writes to one that is still being read.

With compression, a server returns the difference between its weights and those that it has sent to this worker, in the
compressed form (Yan et al., Dual-Way Gradient Sparsification, 2020). What is left out of an answer remains part of the
next difference, so this direction needs no residual.
"""

from __future__ import annotations

import dataclasses
import os
import time
from typing import TYPE_CHECKING, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from mxtrain.engine.backend import mx, nd
from mxtrain.errors import ConfigError
from mxtrain.kvstore import wire
from mxtrain.kvstore.chunk_client import ChunkClient, holds_first_group
from mxtrain.kvstore.compression import Build, other_parameters, redistribute_residual
from mxtrain.kvstore.dist_store import create, join_servers, stop_servers
from mxtrain.kvstore.mxnet_store import MXNetStore
from mxtrain.kvstore.reduction import Reduction
from mxtrain.kvstore.remote_updater import RemoteUpdater
from mxtrain.kvstore.store import Numbers, Store
from mxtrain.kvstore.table_link import invite
from mxtrain.kvstore.table_wire import TableCall
from mxtrain.kvstore.times import WorkerTimes
from mxtrain.kvstore.world import World

if TYPE_CHECKING:
    from mxtrain.kvstore.table_client import TableClient
    from mxtrain.types.annotations import Config

PIECE_BYTES = 4 << 20
"""Bytes that a broadcast sends at once."""


class AsyncStore(Store):
    """A worker's connection to servers that run the optimizer. The constructor waits for all processes.

    Args:
        world: rank and number of workers.
        compressors: builders of the compressors of gradients and of changes of weights; None: no compression.
    """

    servers_update = independent_steps = True

    def __init__(self, world: World, compressors: Optional[Tuple[Build, Build]] = None):
        self.world, self.compressors = world, compressors
        # Do not split a parameter between servers, since an optimizer may need its norm. MXNet reads the variable when
        # the store is created.
        os.environ["MXNET_KVSTORE_BIGARRAY_BOUND"] = str(2**31 - 1)
        self._store = create("dist_async")
        if world.rank == 0:  # before keys are initialised, so before any worker can push
            self._store._send_command_to_servers(0, wire.write_command(begin=True))
        self._num_keys = {0: 0, wire.FIRST_KEY: 0}
        self._mailboxes: Dict[int, Mailboxes] = {}
        self._replica_store = MXNetStore("local")
        self._updater: Optional[RemoteUpdater] = None
        self._tables: Optional[TableClient] = None
        self._began: Optional[Tuple[float, int]] = None
        self._pace = np.zeros(2)  # seconds and samples of this worker's steps since `share_pace`

    # Within a step.

    def begin_step(self, step: int, size: int) -> None:
        now = time.monotonic()
        if self._began is not None:
            began, samples = self._began
            self._pace += now - began, samples
        self._began = now, size

    def share_pace(self, step: int) -> Optional[WorkerTimes]:
        if self.world.size == 1:
            return None
        rows = np.zeros((self.world.size, 2))
        rows[self.world.rank], self._pace = self._pace, np.zeros(2)
        seconds, samples = self.total(rows.ravel()).reshape((-1, 2)).T
        return WorkerTimes(step, seconds.tolist(), samples.astype(int).tolist(), 0.0) if seconds.all() else None

    def reduce(self, reductions: Sequence[Reduction]) -> None:
        """Sums over this worker's replicas only."""
        self._replica_store.reduce(reductions)

    def build_updater(
        self,
        settings: Config,
        weights: Mapping[str, nd.NDArray],
        multipliers: Mapping[str, Tuple[float, float]],
        steps_per_epoch: int,
    ) -> RemoteUpdater:
        self._updater = RemoteUpdater(self, settings, weights, multipliers, steps_per_epoch)
        if self.divides_data and self.world.size > 1:
            self.chunks = self._connect_chunks()
        return self._updater

    def _connect_chunks(self) -> ChunkClient:
        """Connects to the server that holds the first group of parameters, where updates finish chunks."""

        def command(call: TableCall) -> None:
            self._store._send_command_to_servers(0, wire.write_command(chunks=call))

        connected, addresses = invite(self.world.rank, self.broadcast, command)
        for address in addresses:
            connection = connected(address)
            if holds_first_group(connection):
                return ChunkClient(connection, self.world.size)
            connection.close()
        raise ConfigError("none of the servers has the parameters. Start servers and workers with the same overrides.")

    def begin_chunk(self, chunk: int) -> None:
        assert self._updater is not None
        self._updater.chunk = chunk

    def finish_interval(self) -> Optional[int]:
        assert self.chunks is not None and self._updater is not None
        self._updater.chunk = -1
        self._updater.wait()
        end = self.chunks.finish()
        if len(self.chunks.live) < self.world.size:
            # Ranks stay as they are, since servers know workers by them; a lost worker has no share of validations.
            speeds = tuple(float(rank in self.chunks.live) for rank in range(self.world.size))
            self.world = dataclasses.replace(self.world, speeds=speeds)
        return end

    def votes_later(self, votes: Sequence[float], lag: int) -> Callable[[], np.ndarray]:
        if self.chunks is not None:  # workers are at the end of an interval, and so after the same step
            return super().votes_later(votes, lag)
        assert self._updater is not None
        return self._updater.vote(votes, lag)

    # Collective operations.

    def total(self, values: Numbers) -> np.ndarray:
        numbers = np.array(values, np.float64)
        if self.world.size == 1:
            return numbers
        # float64 travels as its bits in two float32 words; mailboxes only store them, so no server adds them.
        return np.sum([words.view(np.float64) for words in self._exchange(numbers.view(np.float32))], axis=0)

    def average(self, arrays: Sequence[nd.NDArray]) -> None:
        """Averages arrays that each worker has on its own (batch-norm statistics, EMA weights) in place."""
        if self.world.size == 1 or not arrays:
            return
        flat = np.concatenate([array.asnumpy().astype(np.float32).reshape(-1) for array in arrays])
        first, *others = (words.astype(np.float64) for words in self._exchange(flat))
        # As a mean of differences: if all workers have the same number, the result is exactly that number.
        mean = first + sum(other - first for other in others) / (1 + len(others))
        begin = 0
        for array in arrays:
            part = mean[begin : begin + array.size].reshape(array.shape)
            nd.array(part, ctx=array.context, dtype=array.dtype).copyto(array)
            begin += array.size

    def broadcast(self, blob: Optional[bytes]) -> bytes:
        if self.world.size == 1:
            return super().broadcast(blob)
        return self._broadcast_from(blob or b"", 0)

    def _broadcast_from(self, blob: bytes, rank: int) -> bytes:
        """Returns on all workers the bytes of worker `rank`; the bytes of all others are ignored. Collective; waits."""
        data = blob if self.world.rank == rank else b""
        (size,) = self.total([len(data)]).astype(int)
        pieces: List[bytes] = []
        for begin in range(0, size, PIECE_BYTES):
            length = min(PIECE_BYTES, size - begin)
            # All pieces of a long blob have one length, because each length needs keys, and keys cannot be deleted.
            words = np.zeros(PIECE_BYTES // 4 if size > PIECE_BYTES else -(-size // 4), np.float32)
            if self.world.rank == rank:
                piece = wire.to_words(data[begin : begin + length])
                words[: len(piece)] = piece
            (received,) = self._exchange(words, ranks=[rank])
            pieces.append(received.tobytes()[:length])
        return b"".join(pieces)

    def residuals(self, reductions: Sequence[Reduction]) -> Dict[str, np.ndarray]:
        if self.compressors is None:
            return {}
        assert self._updater is not None
        local, by_rank = self._updater.residuals(), {}
        for rank in range(self.world.size):
            arrays = local
            if self.world.size > 1:
                blob = self._broadcast_from(wire.pack_state(local, None) if rank == self.world.rank else b"", rank)
                arrays = wire.unpack_state(blob)[0] if self.world.rank == 0 else {}
            by_rank.update({f"{name}:{rank}": array for name, array in arrays.items()})
        return by_rank

    def restore_residuals(self, reductions: Sequence[Reduction], arrays: Mapping[str, np.ndarray]) -> None:
        if not arrays or self.compressors is None:
            return
        assert self._updater is not None
        end = f":{self.world.rank}"
        local = {name[: -len(end)]: array for name, array in arrays.items() if name.endswith(end)}
        try:
            local.update({name: redistribute_residual(arrays, name, self.world) for name in self._updater.names})
            self._updater.restore_residuals(local)
        except (KeyError, ValueError) as error:
            raise other_parameters(error) from error

    def connect_tables(self) -> TableClient:
        if self._tables is None:
            self._tables = join_servers(self, self._store)
        return self._tables

    def _disconnect(self) -> None:
        if self._tables is not None:
            self._tables.close()
        if self.chunks is not None:
            self.chunks.close()
        self._updater = None
        self._mailboxes.clear()
        stop_servers(self._store, self.world)
        del self._store

    # The connection.

    def init(self, arrays: Sequence[nd.NDArray], first: int = 0) -> List[int]:
        """Creates keys for arrays, from `first` on, with the contents of rank 0. Collective; waits.

        ps-lite assigns a key to server key % servers. Each call starts at a multiple of the number of servers, so
        arrays with the same position in two calls are on the same server.
        """
        servers = int(os.environ["DMLC_NUM_SERVER"])
        begin = first + -(-self._num_keys[first] // servers) * servers
        self._num_keys[first] = begin - first + len(arrays)
        keys = list(range(begin, begin + len(arrays)))
        self._store.init(keys, list(arrays))
        return keys

    def ask(self, keys: Sequence[int], messages: Sequence[nd.NDArray]) -> None:
        """Sends messages; the answers overwrite the arrays of the messages. Asynchronous.

        Args:
            keys: keys of the messages.
            messages: arrays of the messages. Use the same array for a key in every call: MXNet's engine orders messages
                by their array.
        """
        lists = [[message] for message in messages]
        self._store.pushpull(list(keys), lists, out=lists)

    def command(self, text: str) -> None:
        """Sends a command to all servers, and waits until they have executed it."""
        self._store._send_command_to_servers(0, text)

    def barrier(self) -> None:
        """Waits for all workers. Wait for the answers to all messages first: a barrier does not include them."""
        if self.chunks is not None:
            self.chunks.exchange(b"")  # ps-lite's barrier would wait for lost workers
        elif self.world.size > 1:
            self._store._barrier()

    def _exchange(self, words: np.ndarray, ranks: Optional[Sequence[int]] = None) -> List[np.ndarray]:
        """Returns the words of the workers `ranks` (default: all) in this order. Collective; waits.

        Args:
            words: words of this worker, (N,) float32, with the same N on all workers. Any bits are allowed.
            ranks: workers whose words are returned.
        """
        self._began = None  # the wait for other workers is no time of a step
        if self.chunks is not None:
            return [np.frombuffer(blob, np.float32) for blob in self.chunks.exchange(words.tobytes(), ranks)]
        # ps-lite cannot delete keys, so lengths are rounded up to powers of two to need few of them.
        length = 1 << max(len(words) - 1, 0).bit_length()
        if length not in self._mailboxes:
            self._mailboxes[length] = Mailboxes(self, length)
        ranks = range(self.world.size) if ranks is None else ranks
        mailboxes = self._mailboxes[length]
        keys, arrays = mailboxes.next()
        mailbox = arrays[self.world.rank]
        if self.world.rank in ranks:
            nd.array(np.pad(words, (0, length - len(words))), ctx=mx.cpu()).copyto(mailbox)
            self.ask([keys[self.world.rank]], [mailbox])
            mailbox.wait_to_read()
        # The scheduler's barrier does not cover messages, so the wait above must precede it.
        self.barrier()
        others = [rank for rank in ranks if rank != self.world.rank]
        if others:
            self._store.pull([keys[rank] for rank in others], out=[[arrays[rank]] for rank in others])
        return [arrays[rank].asnumpy()[: len(words)] for rank in ranks]


class Mailboxes:
    """Two mailboxes per worker, used alternately, for messages of the same length.

    Args:
        store: the connection.
        size: number of float32 words of a message.
    """

    def __init__(self, store: AsyncStore, size: int):
        self._arrays = [[nd.zeros((size,), ctx=mx.cpu()) for _ in range(store.world.size)] for _ in range(2)]
        keys = store.init([array for arrays in self._arrays for array in arrays])
        self._keys = [keys[: store.world.size], keys[store.world.size :]]
        self._turn = 0

    def next(self) -> Tuple[List[int], List[nd.NDArray]]:
        """Returns (keys, arrays) of the next mailboxes, by rank."""
        self._turn = 1 - self._turn
        return self._keys[self._turn], self._arrays[self._turn]
