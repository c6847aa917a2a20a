"""The updater of `dist_async`: sends gradients to the servers, which run the optimizer, and receives weights."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any, Callable, Deque, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np
from typing_extensions import Protocol

from mxtrain.engine.backend import mx, nd
from mxtrain.errors import CheckpointError
from mxtrain.kvstore import wire
from mxtrain.kvstore.buckets import in_buckets
from mxtrain.kvstore.compressed_message import CompressedExchange
from mxtrain.kvstore.compression import Build
from mxtrain.kvstore.message import Message, header_of
from mxtrain.kvstore.wire import LOOK, READ, UPDATE, WRITE, Group, Parameter, Reply, Request, SetUp
from mxtrain.kvstore.world import World

if TYPE_CHECKING:
    from mxtrain.types.annotations import Config, JsonObject

NOTHING = np.zeros(0, np.float32)
"""Empty payload of a message."""
REPLIES_KEPT = 4
"""Number of answers whose headers are kept. The oldest has usually arrived, so reading it hardly waits."""


class ServerConnection(Protocol):
    """A worker's connection to servers that update, such as `AsyncStore`, which documents these methods."""

    world: World
    compressors: Optional[Tuple[Build, Build]]

    def init(self, arrays: Sequence[nd.NDArray], first: int = 0) -> List[int]: ...

    def ask(self, keys: Sequence[int], messages: Sequence[nd.NDArray]) -> None: ...

    def command(self, text: str) -> None: ...

    def barrier(self) -> None: ...

    def average(self, arrays: Sequence[nd.NDArray]) -> None: ...


class RemoteUpdater:
    """Replaces `mxtrain.optimizer.updater.Updater` if servers update. Collective: all workers construct it.

    Args:
        store: the connection to the servers.
        settings: `optimizer` and `kvstore` of the description as plain values. The servers compose the description
            themselves, and compare it with these.
        weights: structural name -> array of the parameters to train.
        multipliers: structural name -> (lr_mult, wd_mult).
        steps_per_epoch: steps of an epoch on each worker.
    """

    def __init__(
        self,
        store: ServerConnection,
        settings: Config,
        weights: Mapping[str, nd.NDArray],
        multipliers: Mapping[str, Tuple[float, float]],
        steps_per_epoch: int,
    ):
        self.names = list(weights)
        self._store = store
        self._groups = [
            UpdateGroup([self.names[i] for i in run], weights) for run in in_buckets(list(weights.values()))
        ]
        if store.compressors is not None:
            for group in self._groups:
                group.compress(store.compressors)
        self._messages = [group.flat for group in self._groups]
        self._compressed = [group.compressed.flat for group in self._groups if group.compressed is not None]
        self._keys = store.init(self._messages, wire.FIRST_KEY)
        self._compressed_keys = store.init(self._compressed, wire.FIRST_KEY) if self._compressed else []
        if store.world.rank == 0:
            compressed_keys: Sequence[Optional[int]] = self._compressed_keys or [None] * len(self._groups)
            groups = [
                group.to_wire(key, compressed_key, multipliers)
                for key, compressed_key, group in zip(self._keys, compressed_keys, self._groups)
            ]
            set_up = SetUp(
                optimizer=dict(settings["optimizer"]),
                kvstore=dict(settings["kvstore"]),
                workers=store.world.size,
                steps_per_epoch=steps_per_epoch,
                groups=groups,
            )
            store.command(wire.write_command(set_up=set_up))
        self._count = 0
        self._vote, self._lag = 0, 0
        self.chunk = -1
        """Number of the chunk of data that the next update finishes; -1 = none."""
        self._replies: Deque[nd.NDArray] = collections.deque(maxlen=REPLIES_KEPT)
        self._reported = (0, 0)
        self._numbers: Dict[str, Any] = {}
        store.barrier()  # the servers must have allocated the groups before any worker writes
        self._load({}, None)

    # A step.

    accepts_factor = False
    """See `Updater.accepts_factor`."""

    def update(self, gradients: Sequence[nd.NDArray], lr: float) -> None:
        """Sends this worker's gradients for one update, and receives the servers' weights. Asynchronous.

        Args:
            gradients: gradients of the mean loss over this worker's share of the batch, in the order of `names`.
            lr: learning rate.
        """
        gradient_of = dict(zip(self.names, gradients))
        header = wire.encode(self._next_request(UPDATE, lr))
        for group in self._groups:
            group.send(gradient_of, header)
        if self._compressed:
            self._store.ask(self._compressed_keys, self._compressed)
            self._receive_weights()
        else:
            self._exchange()

    def skip(self) -> None:
        """Receives the servers' weights without an update. Asynchronous, unless compressed."""
        request = self._next_request(LOOK)
        if self._compressed:
            self.wait()  # compressed and plain messages have different keys, and the engine does not order them
        for group in self._groups:
            group.write(NOTHING, request)
        self._exchange()
        if self._compressed:
            self.wait()

    def _next_request(self, kind: int, lr: float = 0.0) -> Request:
        self._count += 1
        request = Request(kind, self._store.world.rank, self._count, self._vote, self._lag, lr, chunk=self.chunk)
        self._vote = 0
        return request

    def _exchange(self) -> None:
        self._store.ask(self._keys, self._messages)
        self._receive_weights()

    def _receive_weights(self) -> None:
        for group in self._groups:
            group.receive()
        # A copy, because the next answer overwrites the header in the message.
        self._replies.append(nd.concat(*[group.header.as_in_context(mx.cpu()) for group in self._groups], dim=0))

    def synchronize(self, own_arrays: Sequence[nd.NDArray] = ()) -> bool:
        """Waits for the updates of all workers and receives the resulting weights, which are equal on all workers.

        Collective: all workers must have sent the same number of updates. Returns False if the weights were current.

        Args:
            own_arrays: arrays that each worker has on its own, to be averaged in place: batch-norm statistics and
                moving averages.
        """
        if self._store.world.size == 1 and not self._compressed:
            return False  # the last answer contains the current weights
        self.wait()
        self._store.barrier()
        for group in self._groups:
            group.write(NOTHING, Request(LOOK, self._store.world.rank))
        self._ask(range(len(self._groups)))
        for group in self._groups:
            group.receive()
        self.wait()
        self._store.barrier()  # an update of a faster worker must not reach the servers before all have read
        self._store.average(own_arrays)
        return True

    def vote(self, votes: Sequence[float], lag: int) -> Callable[[], np.ndarray]:
        """See `Store.votes_later`."""
        self._vote = next((number for number, vote in enumerate(votes, start=1) if vote), 0)
        self._lag = lag
        count, header = self._count, self._replies[-1]

        def outcome() -> np.ndarray:
            reply = wire.decode(header.asnumpy()[: wire.HEADER], Reply)  # votes are counted at the first key only
            counts = np.zeros(len(votes))
            # A decision names the update after which it holds, so workers that are at different updates stop alike.
            if reply.outcome and reply.outcome_at == count + lag:
                counts[reply.outcome - 1] = 1
            return counts

        return outcome

    def scalars(self) -> Dict[str, float]:
        """Returns the staleness since the last call, for loggers."""
        return self._staleness()

    def summary(self) -> Dict[str, float]:
        """Returns the staleness over the lifetime of this process."""
        return self._staleness(of_all=True)

    def _staleness(self, of_all: bool = False) -> Dict[str, float]:
        """Returns the staleness of gradients: the number of updates of other workers that a server has applied between
        sending the weights and applying the gradient computed from them.

        Args:
            of_all: if True, the mean is over all updates since the start of this process; else since the last call.

        Returns:
            The mean and the largest staleness so far, by TensorBoard tag; {} if there was no update.
        """
        if not self._replies:
            return {}
        headers = self._replies[-1 if of_all else 0].asnumpy().reshape((-1, wire.HEADER))
        replies = [wire.decode(header, Reply) for header in headers]
        updates = sum(reply.updates for reply in replies)
        total = sum(reply.staleness_sum for reply in replies)
        reported = (0, 0) if of_all else self._reported
        if updates == reported[0]:
            return {}
        mean = (total - reported[1]) / (updates - reported[0])
        if not of_all:
            self._reported = (updates, total)
        return {
            "perf/staleness_mean": mean,
            "perf/staleness_max": float(max(reply.staleness_max for reply in replies)),
        }

    # The state.

    def residuals(self) -> Dict[str, np.ndarray]:
        """Returns the compression residuals of this worker by parameter, in the shapes of the parameters. Waits.

        Other state of the compressors has the names `<parameter>:<name>`.
        """
        arrays: Dict[str, np.ndarray] = {}
        for group in self._groups:
            if group.compressed is not None:
                arrays.update(group.split(group.compressed.residual.asnumpy()))
                for key, value in group.compressed.shared.items():
                    arrays.update({f"{name}:{key}": value.asnumpy() for name in group.names})
        return arrays

    def restore_residuals(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Restores the result of `residuals`, also if parameters are grouped into other buckets than before."""
        for group in self._groups:
            if group.compressed is not None:
                group.compressed.residual[:] = np.concatenate([arrays[name].reshape((-1,)) for name in group.names])
                for key, value in group.compressed.shared.items():
                    value[:] = np.min([arrays.get(f"{name}:{key}", np.ones(1)) for name in group.names])

    def arrays(self) -> Dict[str, np.ndarray]:
        """Returns the servers' optimizer state on rank 0, named as by `Updater.arrays`, and {} on other workers.

        Call `synchronize` first. All other workers wait until rank 0 has read the state.
        """
        state: Dict[str, np.ndarray] = {}
        if self._store.world.rank == 0:
            self.wait()
            parts = [wire.unpack_state(blob) for blob in self._read()]
            for arrays, _ in parts:
                state.update({n[len("state/") :]: array for n, array in arrays.items() if n.startswith("state/")})
            self._numbers = parts[0][1]
            for _, numbers in parts[1:]:
                for kind in ("update_counts", "cum_counts"):
                    self._numbers[kind].update(numbers[kind])
            self._numbers["update_counts"] = {name: self._numbers["update_counts"][name] for name in self.names}
        self._store.barrier()
        return state

    def numbers(self) -> JsonObject:
        """Returns the numbers that belong to the last result of `arrays`, named as by `Updater.numbers`."""
        return self._numbers

    def save_state(self) -> Tuple[Mapping[str, np.ndarray], JsonObject]:
        """See `Stateful`."""
        arrays = self.arrays()
        return arrays, self.numbers()

    def load_state(self, arrays: Mapping[str, np.ndarray], values: JsonObject, source: str) -> None:
        """See `Stateful`."""
        self.restore(arrays, values)

    def restore(self, arrays: Mapping[str, np.ndarray], numbers: JsonObject) -> None:
        """Writes an optimizer state, and the current weights of rank 0, to the servers. Collective.

        Raises:
            CheckpointError: the state belongs to another network.
        """
        odd = sorted({name.rpartition(":")[0] for name in arrays} - set(self.names))
        if odd or set(numbers["update_counts"]) != set(self.names):
            raise CheckpointError(f"the checkpoint's optimizer state is of another network: {', '.join(odd[:5])}")
        self._load(arrays, numbers)

    def _load(self, arrays: Mapping[str, np.ndarray], numbers: Optional[JsonObject]) -> None:
        """Sends the weights of rank 0, and the state unless `numbers` is None, to the servers. All workers wait."""
        if self._store.world.rank == 0:
            self.wait()
            self._write([group.pack(arrays, numbers) for group in self._groups])
            self.wait()  # a barrier does not include messages in flight
        self._store.barrier()

    def _write(self, blobs: Sequence[bytes]) -> None:
        offset = [0] * len(blobs)
        while True:
            open_parts = [i for i, blob in enumerate(blobs) if offset[i] < len(blob)]
            if not open_parts:
                return
            for i in open_parts:
                end = offset[i] + self._groups[i].num_bytes
                request = Request(WRITE, self._store.world.rank, offset=offset[i], size=len(blobs[i]))
                self._groups[i].write(wire.to_words(blobs[i][offset[i] : end]), request)
                offset[i] = end
            self._ask(open_parts)

    def _read(self) -> List[bytes]:
        """Reads the packed state of each group in pieces, as large as the group's message."""
        blobs = [bytearray() for _ in self._groups]
        sizes = [1] * len(self._groups)
        while True:
            open_parts = [i for i, blob in enumerate(blobs) if len(blob) < sizes[i]]
            if not open_parts:
                return [bytes(blob[:size]) for blob, size in zip(blobs, sizes)]
            for i in open_parts:
                request = Request(READ, self._store.world.rank, offset=len(blobs[i]))
                self._groups[i].write(NOTHING, request)
            self._ask(open_parts)
            for i in open_parts:
                words = self._messages[i].asnumpy()
                sizes[i] = wire.decode(words[-wire.HEADER :], Reply).size
                blobs[i] += words[: -wire.HEADER].tobytes()

    def _ask(self, parts: Sequence[int]) -> None:
        self._store.ask([self._keys[i] for i in parts], [self._messages[i] for i in parts])

    def wait(self) -> None:
        """Waits for the answers to all messages."""
        for message in (*self._messages, *self._compressed):
            message.wait_to_read()


class UpdateGroup:
    """A bucket of parameters whose gradients are sent in one message.

    Args:
        names: names of the parameters.
        weights: all weights by name. The weights of `names` are on one device and have one dtype.
    """

    def __init__(self, names: Sequence[str], weights: Mapping[str, nd.NDArray]):
        self.names = names
        self._weights = [weights[name] for name in names]
        first = self._weights[0]
        self._dtype = str(np.dtype(first.dtype))
        self._message = Message([weight.shape for weight in self._weights], self._dtype, first.context)
        self.flat = self._message.flat
        """The message that is sent, and then its answer: always the same array."""
        self.num_bytes = 4 * self._message.words
        """Bytes of the payload."""
        self.compressed: Optional[CompressedExchange] = None
        self._answer_is_compressed = False

    def compress(self, compressors: Tuple[Build, Build]) -> None:
        """Turns on compression of gradients and of answers, with builders of both compressors."""
        first = self._weights[0].context
        self.compressed = CompressedExchange(compressors, [weight.shape for weight in self._weights], first)

    def to_wire(self, key: int, compressed_key: Optional[int], multipliers: Mapping[str, Tuple[float, float]]) -> Group:
        """Returns the description of these parameters for the servers."""
        parameters = [
            Parameter(name=name, shape=weight.shape, lr_mult=multipliers[name][0], wd_mult=multipliers[name][1])
            for name, weight in zip(self.names, self._weights)
        ]
        return Group(key=key, compressed_key=compressed_key, dtype=self._dtype, parameters=parameters)  # type: ignore[arg-type]

    def send(self, gradients: Mapping[str, nd.NDArray], header: np.ndarray) -> None:
        """Writes the gradients and the header of a step into the message."""
        if self.compressed is not None:
            self.compressed.send([gradients[name] for name in self.names], header)
            self._answer_is_compressed = True
            return
        for name, array in zip(self.names, self._message.arrays):
            gradients[name].copyto(array)
        self._message.seal(header)

    def write(self, payload: np.ndarray, request: Request) -> None:
        """Writes any other message: a payload and a request."""
        self._message.fill(payload, wire.encode(request))
        self._answer_is_compressed = False

    def receive(self) -> None:
        """Copies the weights of the answer into the parameters."""
        if self.compressed is not None and self._answer_is_compressed:
            self.compressed.receive(self._weights)
            return
        self._message.open()
        for array, weight in zip(self._message.arrays, self._weights):
            array.copyto(weight)

    @property
    def header(self) -> nd.NDArray:
        """Returns the header of the last answer."""
        if self.compressed is not None and self._answer_is_compressed:
            return self.compressed.header
        return header_of(self.flat)

    def split(self, flat: np.ndarray) -> Dict[str, np.ndarray]:
        """Splits a flat array into the parts of its parameters, in their shapes."""
        ends = np.cumsum([weight.size for weight in self._weights])
        parts = zip(self.names, np.split(flat, ends[:-1]), self._weights)
        return {name: part.reshape(weight.shape) for name, part, weight in parts}

    def pack(self, arrays: Mapping[str, np.ndarray], numbers: Optional[JsonObject]) -> bytes:
        """Packs the weights of the group, and its part of an optimizer state unless `numbers` is None."""
        packed = {f"weight/{name}": weight.asnumpy() for name, weight in zip(self.names, self._weights)}
        if numbers is not None:
            names = set(self.names)
            packed.update({f"state/{n}": array for n, array in arrays.items() if n.rpartition(":")[0] in names})
            counts = ("update_counts", "cum_counts")
            numbers = {**numbers, **{kind: {n: v for n, v in numbers[kind].items() if n in names} for kind in counts}}
        return wire.pack_state(packed, numbers)
