"""Wire protocol between workers and servers of embedding tables: a fixed header and raw arrays.

    message = header (KIND, group, array, count, version, lr, factor) + payload

| kind | payload | answer |
| --- | --- | --- |
| SET_UP | JSON: `TableSetUp` | OK |
| PULL | ids | rows as of `version` of the answer |
| REFRESH | ids of rows that were pulled as of `version` | rows that changed since then: positions, rows |
| PUSH | ids, gradients | none |
| READ, WRITE | none; rows `[version, version + count)` of the shard | rows; none |
| NOTE, COUNT, LAST | none; JSON of update counts; none | JSON; OK; ids, gradients |

Ids are local to a server's shard, int32. A server answers only clients that know the run's token, and checks every
length. Nothing is pickled. Servers that give chunks of data use the same frames (`mxtrain.kvstore.chunk_wire`).

Legend: K ids of a message, U units of all tables of a group together.
"""

from __future__ import annotations

import contextlib
import hmac
import socket
import struct
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Dict, List, Literal, Optional, Sequence, Tuple

import pydantic

from mxtrain.errors import MxtrainError
from mxtrain.types import Positive, PositiveFloat, Spec

if TYPE_CHECKING:
    import numpy as np

SET_UP, PULL, REFRESH, PUSH, READ, WRITE, NOTE, COUNT, LAST, OK = range(1, 11)
MAX_JSON_BYTES = 1 << 20
TOKEN_BYTES = 32
HELLO_TIMEOUT_S = 5.0
"""Timeout of a connected client that has not sent the token yet."""
LOST_AFTER_S = 10
"""Seconds of silence of a host after which its connections end, where `keep_alive` was called."""
_HEADER = struct.Struct("<4sBBHqqqdd")
_HELLO = struct.Struct(f"<{TOKEN_BYTES}sq")
_MAGIC = b"mxT1"


class TableServerLost(MxtrainError):
    """The connection to a server of tables or chunks is lost, or the peer does not use this protocol."""


@dataclass
class Header:
    """Header of a message.

    Attributes:
        kind: one of the kinds above.
        group: number of the group of tables, which share an id column.
        array: for READ and WRITE, number of an array of the group; for NOTE, 1 to also check for non-finite values.
        count: number of ids, of rows, or of bytes of JSON.
        version: number of updates that the rows include; for READ and WRITE the first row.
        least: minimum number of updates that the server must have applied before it answers.
        lr: learning rate of an update.
        factor: factor of the sum of all workers' gradients before the update.
    """

    kind: int
    group: int = 0
    array: int = 0
    count: int = 0
    version: int = 0
    least: int = 0
    lr: float = 0.0
    factor: float = 1.0

    def pack(self) -> bytes:
        return _HEADER.pack(
            _MAGIC, self.kind, self.group, self.array, self.count, self.version, self.least, self.lr, self.factor
        )


class TableCall(Spec):
    """Command to a server to hold tables, and the address to connect to."""

    address: str
    """Address at which worker 0 waits for the server's address."""
    token: str = pydantic.Field(pattern=f"^[0-9a-f]{{{2 * TOKEN_BYTES}}}$")


class TableShare(Spec):
    """Settings of one table of a group for a server."""

    name: str
    units: Positive
    scale: PositiveFloat
    """Standard deviation of the initial values."""
    seed: int
    """Seed of the initial values."""
    lr_mult: float = pydantic.Field(allow_inf_nan=False)
    wd_mult: float = pydantic.Field(allow_inf_nan=False)


class TableGroup(Spec):
    """Tables in which the same ids are looked up."""

    num_rows: Positive
    tables: List[TableShare] = pydantic.Field(min_length=1)


class TableSetUp(Spec):
    """Set-up of a server, sent by worker 0 in addition to the server's description. Replaces earlier tables."""

    optimizer: Dict[str, Any]
    """Settings of the optimizer, which must equal those of the server's own description."""
    number: int = pydantic.Field(ge=0)
    """Number of the server, from 0. It holds the rows r with r % servers == number."""
    servers: Positive
    workers: Positive
    waits: bool
    """True if an update waits for the gradients of all workers and applies their sum."""
    steps_per_epoch: Positive
    dtype: Literal["float32", "float64"]
    groups: List[TableGroup] = pydantic.Field(min_length=1, max_length=255)


class Connection:
    """A socket that carries messages. Not thread-safe.

    Attributes:
        sent, received: number of bytes so far.
    """

    def __init__(self, connected: socket.socket):
        self._socket = connected
        self.sent = self.received = 0
        if connected.family == socket.AF_INET:
            # Nagle's algorithm would delay small messages until the data before them is acknowledged.
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, header: Header, *payload: Any) -> None:
        """Sends a message; arrays are sent as they are in memory.

        Raises:
            TableServerLost: the connection was lost.
        """
        views = [memoryview(header.pack()), *(memoryview(part).cast("B") for part in payload if len(part))]
        self.sent += sum(view.nbytes for view in views)
        try:
            while views:
                # One system call sends header and arrays without joining them in memory; it may send only a part.
                num_sent = self._socket.sendmsg(views)
                while views and num_sent >= views[0].nbytes:
                    num_sent -= views.pop(0).nbytes
                if num_sent:
                    views[0] = views[0][num_sent:]
        except OSError as error:
            raise TableServerLost(str(error)) from error

    def receive(self) -> Header:
        """Returns the header of the next message.

        Raises:
            TableServerLost: the connection was lost, or the data is not a message.
        """
        magic, *fields = _HEADER.unpack(self.read(_HEADER.size))
        if magic != _MAGIC or fields[3] < 0:
            raise TableServerLost("the received data is no message of this protocol")
        return Header(*fields)

    def read(self, num_bytes: int) -> bytearray:
        """Reads `num_bytes` bytes."""
        buffer = bytearray(num_bytes)
        self.read_into(memoryview(buffer))
        return buffer

    def read_array(self, shape: Tuple[int, ...], dtype: str) -> np.ndarray:
        """Reads an array of this shape and dtype."""
        import numpy as np

        array = np.empty(shape, dtype)
        if array.size:
            self.read_into(array.data.cast("B"))
        return array

    def read_into(self, view: memoryview) -> None:
        """Reads as many bytes as `view` holds into it.

        Raises:
            TableServerLost: the connection was lost.
        """
        self.received += view.nbytes
        while view.nbytes:
            try:
                count = self._socket.recv_into(view)
            except OSError as error:
                raise TableServerLost(str(error)) from error
            if not count:
                raise TableServerLost("the connection was closed")
            view = view[count:]

    def greet(self, token: bytes, rank: int) -> None:
        """Sends the token and the rank of this worker."""
        try:
            self._socket.sendall(_HELLO.pack(token, rank))
        except OSError as error:
            raise TableServerLost(str(error)) from error

    def receive_greeting(self, token: bytes) -> Optional[int]:
        """Receives `greet`; returns the rank of the worker, or None if the token is wrong or nothing arrives."""
        self._socket.settimeout(HELLO_TIMEOUT_S)
        try:
            received_token, rank = _HELLO.unpack(self.read(_HELLO.size))
        except TableServerLost:
            return None
        self._socket.settimeout(None)
        # The time of == would depend on the number of equal leading bytes.
        return int(rank) if hmac.compare_digest(received_token, token) else None

    def keep_alive(self) -> None:
        """Lets the kernel end the connection `LOST_AFTER_S` after the other host has stopped answering."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (("IDLE", LOST_AFTER_S // 2), ("INTVL", 1), ("CNT", LOST_AFTER_S // 2)):
            self._socket.setsockopt(socket.IPPROTO_TCP, getattr(socket, f"TCP_KEEP{option}"), value)

    @property
    def is_closed(self) -> bool:
        """Returns True if the other side has closed the connection. Does not wait."""
        try:
            return not self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        """Closes the connection; pending reads on both sides fail."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def read_json(connection: Connection, header: Header) -> bytes:
    """Reads a JSON document.

    Raises:
        ValueError: it is too long.
    """
    if header.count > MAX_JSON_BYTES:
        raise ValueError(f"{header.count} bytes of JSON")
    return bytes(connection.read(header.count))


def columns_of(units: Sequence[int]) -> List[Tuple[int, int]]:
    """Returns (begin, end) of the columns of each table in the rows of a message. `units`: units of each table."""
    ends = list(accumulate(units))
    return list(zip([0, *ends], ends))
