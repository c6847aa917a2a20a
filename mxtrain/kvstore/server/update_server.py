"""Parameter server of `kvstore=dist_async`, which applies the gradient of each worker on arrival.

The server builds the optimizer from its own description, composed from the same command line as the workers'. Nothing
executable is received: messages contain only numbers, and one JSON document that lists the parameters.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from typing import Dict, List, Optional, Sequence, Tuple

import numpy as np

from mxtrain.config.groups import Description
from mxtrain.config.specs import shown
from mxtrain.engine.backend import mx, nd
from mxtrain.errors import ConfigError
from mxtrain.kvstore import wire
from mxtrain.kvstore.compressed_message import CompressedReplies
from mxtrain.kvstore.compression import Build
from mxtrain.kvstore.message import Message, header_of
from mxtrain.kvstore.server.chunk_queue import ChunkQueue
from mxtrain.kvstore.server.chunk_server import ChunkServer
from mxtrain.kvstore.wire import LOOK, READ, UPDATE, WRITE, Group, Reply, Request, SetUp
from mxtrain.optimizer.updater import Updater


class UpdateServer:
    """Holds the parameters of one server.

    Args:
        description: description of the run.
    """

    def __init__(self, description: Description):
        self._description = description
        self._groups: Dict[int, GroupServer] = {}
        self._compressed: Dict[int, GroupServer] = {}
        self._known: Dict[int, Group] = {}
        self._first: Optional[GroupServer] = None
        self._num_workers = 0

    def set_up(self, given: SetUp) -> None:
        """Creates groups of parameters. Groups that already exist keep their values.

        Raises:
            ConfigError: worker 0 was started with another optimizer, or a key exists with other parameters.
        """
        optimizer, config = self._description.optimizer, self._description.config
        for option, theirs in (("optimizer", given.optimizer), ("kvstore", given.kvstore)):
            own = dict(config[option])
            odd = sorted(name for name in {*own, *theirs} if own.get(name) != theirs.get(name))
            if odd:
                raise ConfigError(
                    f"{option}.{odd[0]} is {shown(own.get(odd[0]))} here and {shown(theirs.get(odd[0]))} at worker 0. "
                    "Start servers and workers with the same overrides."
                )
        # All groups are checked before the first one is created, so that an error leaves no group behind.
        for group in given.groups:
            if self._known.get(group.key, group) != group:
                raise ConfigError(f"the key {group.key} was set up twice, with different parameters.")
        updates_per_epoch = given.steps_per_epoch * given.workers
        self._num_workers = given.workers
        for number, group in enumerate(given.groups):
            if group.key not in self._known:
                num_voters = given.workers if number == 0 else 0
                seed = (self._description.trainer.seed, group.key) if optimizer.draws_random else None
                self._known[group.key] = group
                server = GroupServer(group, optimizer.build(updates_per_epoch), seed, num_voters)
                self._groups[group.key] = server
                self._first = self._first or server
                # Only stores whose servers update parameters have this method, and only they start this server.
                compressors = self._description.kvstore.build_compressor_pair()  # type: ignore[attr-defined]
                if group.compressed_key is not None and compressors is not None:
                    server.accept_compressed(compressors, given.workers)
                    self._compressed[group.compressed_key] = server

    def build_chunk_server(self) -> ChunkServer:
        """Builds the server that gives chunks of data to workers; call it after `set_up`."""
        first = self._first
        assert first is not None
        first.chunks = ChunkQueue(self._num_workers)
        return ChunkServer(first.chunks, lambda: first.has_answered)

    def update(self, key: int, received: nd.NDArray, stored: nd.NDArray) -> None:
        """Updater function for MXNet's kvstore.

        Args:
            key: key of the message.
            received: message of a worker.
            stored: array that MXNet sends back; it is overwritten with the answer.
        """
        if key < wire.FIRST_KEY:
            received.copyto(stored)  # a mailbox key, which only stores a value
        elif key in self._compressed:
            self._compressed[key].answer_compressed(received, stored)
        else:
            self._groups[key].answer(received, stored)
        stored.wait_to_read()  # ps-lite frees the memory of `received` when this returns


class GroupServer:
    """Parameters that are updated together, their optimizer, and the staleness of gradients.

    Args:
        group: the parameters.
        optimizer: an mxnet.optimizer.Optimizer that only this group uses.
        seed: seed of the optimizer's random numbers; None if it draws none.
        num_voters: number of workers whose common decisions (see `Poll`) this group coordinates; 0 if another group
            does.
    """

    def __init__(
        self, group: Group, optimizer: mx.optimizer.Optimizer, seed: Optional[Tuple[int, int]], num_voters: int
    ):
        shapes = self._shapes = [parameter.shape for parameter in group.parameters]
        names = [parameter.name for parameter in group.parameters]
        self._inbox, self._outbox = (Message(shapes, group.dtype, mx.cpu()) for _ in range(2))
        self._weights = dict(zip(names, self._outbox.arrays))
        multipliers = {p.name: (p.lr_mult, p.wd_mult) for p in group.parameters}
        self._updater = Updater(optimizer, self._weights, multipliers)
        self._seed = seed
        self._num_bytes = 4 * self._outbox.words
        self._poll: Optional[Poll] = Poll(num_voters) if num_voters else None
        self._reply = Reply()
        self._seen: Dict[int, int] = defaultdict(int)
        """Worker -> number of updates that were in the weights which it received last; gives the staleness."""
        self._snapshot = b""
        self._arriving: List[bytes] = []
        self.has_answered = False
        """True if workers send their messages about this group to this server."""
        self.chunks: Optional[ChunkQueue] = None
        """The chunks of data that updates of this group finish."""
        self._compressed_replies: Optional[CompressedReplies] = None

    def accept_compressed(self, compressors: Tuple[Build, Build], workers: int) -> None:
        """Accepts compressed gradients from now on.

        Args:
            compressors: compression of both directions, see `CompressedReplies`.
            workers: number of workers.
        """
        self._compressed_replies = CompressedReplies(compressors, self._shapes, self._outbox.flat, workers)

    def answer_compressed(self, received: nd.NDArray, stored: nd.NDArray) -> None:
        """Does the same as `answer` for a message with compressed gradients.

        Raises:
            ValueError: the message does not contain gradients.
        """
        assert self._compressed_replies is not None
        request = wire.decode(header_of(received).asnumpy(), Request)
        if request.kind != UPDATE:
            raise ValueError(f"a compressed message of kind {request.kind}")
        self._apply(self._compressed_replies.gradients(received), request)
        reply = dataclasses.replace(self._note(request), unit=self._compressed_replies.answer(request.rank))
        self._compressed_replies.seal(wire.encode(reply), stored)

    def answer(self, received: nd.NDArray, stored: nd.NDArray) -> None:
        """Handles a request of a worker and writes the answer into `stored`.

        Raises:
            ValueError: the kind of request does not exist.
        """
        request = wire.decode(header_of(received).asnumpy(), Request)
        self.has_answered = True
        counts = self.chunks is None or request.chunk < 0 or self.chunks.finish(request.rank, request.chunk)
        if request.kind == READ:
            self._answer_with(self._read(request.offset), stored)
            return
        if request.kind == UPDATE:
            if counts:
                received.copyto(self._inbox.flat)
                self._inbox.open()
                self._apply(self._inbox.arrays, request)
        elif request.kind == WRITE:
            self._write(received.asnumpy()[: -wire.HEADER].tobytes(), request)
        elif request.kind != LOOK:
            raise ValueError(f"a message of kind {request.kind}")
        self._outbox.seal(wire.encode(self._note(request)))
        self._outbox.flat.copyto(stored)
        if self._compressed_replies is not None:
            self._compressed_replies.knows(*([] if request.kind == WRITE else [request.rank]))

    def _note(self, request: Request) -> Reply:
        """Records that a worker receives the current weights; returns the header of the reply."""
        if self._poll is not None:
            self._reply.outcome, self._reply.outcome_at = self._poll.count(request)
        self._seen[request.rank] = self._reply.updates
        return self._reply

    def _answer_with(self, piece: np.ndarray, stored: nd.NDArray) -> None:
        # A kvstore value has a fixed length, so each answer is as long as a message with all weights.
        rest = np.zeros(self._outbox.words - len(piece), np.float32)
        nd.array(np.concatenate([piece, rest, wire.encode(self._reply)])).copyto(stored)

    def _apply(self, gradients: Sequence[nd.NDArray], request: Request) -> None:
        reply = self._reply
        staleness = reply.updates - self._seen[request.rank]
        reply.staleness_sum += staleness
        reply.staleness_max = max(reply.staleness_max, staleness)
        reply.updates += 1
        if self._seed is not None:
            # Seeded by seed, update and key, as in `TrainingStep.seed_random`, so that a resumed run draws the same.
            seed, key = self._seed
            mx.random.seed((seed * 2654435761 + self._updates_made() * 40503 + key * 69069) % (2**31))
        self._updater.update(gradients, request.lr)

    def _updates_made(self) -> int:
        """Returns the number of updates, including those before a resume."""
        return max(self._updater.numbers()["update_counts"].values())

    def _read(self, offset: int) -> np.ndarray:
        """Returns a piece of the state. The piece at offset 0 takes a snapshot; the others are from that snapshot."""
        if offset == 0:
            arrays = {f"weight/{name}": weight.asnumpy() for name, weight in self._weights.items()}
            arrays.update({f"state/{name}": array.asnumpy() for name, array in self._updater.arrays().items()})
            self._snapshot = wire.pack_state(arrays, self._updater.numbers())
        self._reply.size = len(self._snapshot)
        piece = wire.to_words(self._snapshot[offset : offset + self._num_bytes])
        if offset + self._num_bytes >= len(self._snapshot):
            # Freed after the last piece, since it is as large as weights and optimizer state together.
            self._snapshot = b""
        return piece

    def _write(self, piece: bytes, request: Request) -> None:
        """Receives a piece of the state; the last piece makes the state effective."""
        if request.offset == 0:
            self._arriving = []
        self._arriving.append(piece)
        if request.offset + len(piece) < request.size:
            return
        arrays, numbers = wire.unpack_state(b"".join(self._arriving)[: request.size])
        self._arriving = []
        for name, weight in self._weights.items():
            nd.array(arrays[f"weight/{name}"], dtype=weight.dtype).copyto(weight)
        if numbers is not None:
            states = {n[len("state/") :]: array for n, array in arrays.items() if n.startswith("state/")}
            self._updater.restore(states, numbers)


class Poll:
    """Lets all workers stop or save after the same number of their own updates, once one of them votes for it.

    A worker reads the answer to an update `lag` updates later. If the furthest worker has sent m updates when a
    decision is made, every worker therefore knows the decision before it sends update m + 1 + lag.

    Args:
        workers: number of workers.
    """

    def __init__(self, workers: int) -> None:
        self._counts = dict.fromkeys(range(workers), 0)
        self._outcome, self._at = 0, 0

    def count(self, request: Request) -> Tuple[int, int]:
        """Counts an update or vote. Returns (decision, number of the update after which it holds); 0, 0 if none."""
        if request.count:
            self._counts[request.rank] = request.count
        # A decision is kept until all workers have passed it, because the slowest one must still read it.
        if self._outcome and min(self._counts.values()) > self._at:
            self._outcome, self._at = 0, 0
        if request.vote and not self._outcome:
            self._outcome, self._at = request.vote, max(self._counts.values()) + 1 + request.lag
        return self._outcome, self._at
