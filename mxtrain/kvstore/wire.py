"""Messages between workers and servers that update parameters: arrays of numbers, and one JSON document. Nothing is
pickled.

    message = payload (float32 words) + header (NUMBERS float64 numbers, each as the sum of three float32)

ps-lite's push-and-pull answers each message with one of the same length.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Dict, List, Literal, Mapping, Optional, Sequence, Tuple, Type, TypeVar, Union

import numpy as np
import pydantic

from mxtrain.kvstore.table_wire import TableCall
from mxtrain.types import Positive, Shape, Spec

if TYPE_CHECKING:
    from mxtrain.types.annotations import JsonObject

FIRST_KEY = 1 << 20
"""First key of parameters. Smaller keys are mailboxes: they return the message that was last sent to them."""
NUMBERS = 9
"""Maximum number of fields of a header."""
HEADER = 3 * NUMBERS
"""Length of a header in float32 words."""
MIN_PAYLOAD = 1 << 12
"""Minimum length of a payload in float32 words, so that the state of a small network needs few messages."""

# Requests of a worker.
UPDATE, LOOK, READ, WRITE = range(1, 5)

_LENGTH = struct.Struct("<Q")
_DTYPES = ("float16", "float32", "float64", "int32", "int64")


@dataclass
class Request:
    """Header of a message of a worker.

    Attributes:
        kind: UPDATE: apply the gradients in the payload; LOOK: only return the weights; READ, WRITE: read or write a
            piece of the state, as bytes.
        rank: rank of the worker.
        count: number of updates that the worker has sent, including this one.
        vote: number, from 1, of the action that all workers should take after the same update, see
            `Store.votes_later`; 0 = none.
        lag: number of updates that a worker may send before it reads the answer to an earlier one.
        lr: learning rate of this update.
        offset: for READ and WRITE: position of the piece in the state.
        size: for READ and WRITE: length of the whole state.
        chunk: for UPDATE and LOOK: number of the chunk (see `chunk_wire`) that this message finishes; -1 = none.
    """

    kind: int
    rank: int
    count: int = 0
    vote: int = 0
    lag: int = 0
    lr: float = 0.0
    offset: int = 0
    size: int = 0
    chunk: int = -1


@dataclass
class Reply:
    """Header of an answer.

    Attributes:
        outcome: number of the action that all workers take after their update `outcome_at`; 0 = none.
        outcome_at: number of that update, counted by each worker.
        updates: number of applied updates of all workers.
        staleness_sum, staleness_max: sum and maximum of the staleness of these updates. The staleness is the number of
            other updates that were applied after the worker got its weights and before its own update.
        size: size of the state in bytes, in answers to READ.
        unit: power of two by which compressed changes of weights were divided.
    """

    outcome: int = 0
    outcome_at: int = 0
    updates: int = 0
    staleness_sum: int = 0
    staleness_max: int = 0
    size: int = 0
    unit: float = 1.0


UNIT = [item.name for item in fields(Reply)].index("unit")
"""Index of `unit` among the numbers of a header."""


Header = TypeVar("Header", Request, Reply)


def encode(header: Union[Request, Reply]) -> np.ndarray:
    """Returns a header as (HEADER,) float32, exactly: 3 x 24 bits hold the 53 of a float64."""
    numbers = [float(getattr(header, item.name)) for item in fields(header)]
    remainder = np.array(numbers + [0.0] * (NUMBERS - len(numbers)), np.float64)
    parts = []
    # Messages are float32, so a float64 travels as three numbers whose sum is exact.
    for _ in range(3):
        parts.append(remainder.astype(np.float32))
        remainder = remainder - parts[-1]
    return np.concatenate(parts)


def decode(words: np.ndarray, kind: Type[Header]) -> Header:
    """Decodes the result of `encode`.

    Raises:
        ValueError: the array contains no valid header.
    """
    numbers = words.astype(np.float64).reshape((3, NUMBERS)).sum(axis=0)
    values: Dict[str, Any] = {}
    for item, number in zip(fields(kind), numbers):
        if item.type == "int" and number != int(number):
            raise ValueError(f"{item.name} of a message is {number}")
        values[item.name] = int(number) if item.type == "int" else float(number)
    return kind(**values)


class Parameter(Spec):
    """One parameter that a server updates."""

    name: str
    shape: Shape
    lr_mult: float = pydantic.Field(allow_inf_nan=False)
    wd_mult: float = pydantic.Field(allow_inf_nan=False)


class Group(Spec):
    """Parameters whose gradients travel in one message."""

    key: int = pydantic.Field(ge=FIRST_KEY)
    compressed_key: Optional[int] = pydantic.Field(default=None, ge=FIRST_KEY)
    """Key of messages with compressed gradients; None without compression."""
    dtype: Literal["float32", "float64"]
    parameters: List[Parameter] = pydantic.Field(min_length=1)


class SetUp(Spec):
    """Set-up of a server, sent by worker 0 in addition to the server's own description."""

    optimizer: Dict[str, Any]
    """Settings of the optimizer, which must equal those of the server's own description."""
    kvstore: Dict[str, Any]
    """Settings of the store, which must equal those of the server's own description."""
    workers: Positive
    steps_per_epoch: Positive
    """Steps of each worker."""
    groups: List[Group]


class ServerCommand(Spec):
    """A command to a server.

    A server that updates parameters gets `begin`, then `set_up` for new keys; a server that holds tables gets `tables`.
    One that updates parameters may also get `chunks`, after `set_up`: it then gives chunks of data to workers. `end`
    ends the server with the run.
    """

    mxtrain: Literal["command"]
    begin: bool = False
    end: bool = False
    set_up: Optional[SetUp] = None
    tables: Optional[TableCall] = None
    chunks: Optional[TableCall] = None


def read_command(body: bytes) -> Optional[ServerCommand]:
    """Returns the command, or None for anything else."""
    try:
        return ServerCommand.model_validate_json(body)
    except (pydantic.ValidationError, ValueError):
        return None


def write_command(**fields: Any) -> str:
    """Encodes a command for `read_command`."""
    return ServerCommand(mxtrain="command", **fields).model_dump_json()


def pack_state(arrays: Mapping[str, np.ndarray], numbers: Optional[JsonObject]) -> bytes:
    """Packs named arrays and JSON values into bytes."""
    contents = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    table = [[name, str(array.dtype), list(array.shape)] for name, array in contents.items()]
    header = json.dumps({"arrays": table, "numbers": numbers}).encode()
    return b"".join([_LENGTH.pack(len(header)), header, *(array.tobytes() for array in contents.values())])


def unpack_state(blob: bytes) -> Tuple[Dict[str, np.ndarray], Any]:
    """Unpacks the result of `pack_state`.

    Raises:
        ValueError: the bytes are not a packed state.
    """
    if len(blob) < _LENGTH.size:
        raise ValueError("a state is cut off")
    begin = _LENGTH.size + _LENGTH.unpack_from(blob)[0]
    header = json.loads(blob[_LENGTH.size : begin])
    arrays: Dict[str, np.ndarray] = {}
    for name, dtype, shape in header["arrays"]:
        # A received name of a dtype could mean an object array, whose elements are pointers.
        if dtype not in _DTYPES or not all(isinstance(size, int) and size >= 0 for size in shape):
            raise ValueError(f"a state holds '{name}' as {dtype} {shape}")
        count = num_elements([shape])
        end = begin + count * np.dtype(dtype).itemsize
        if end > len(blob):
            raise ValueError("a state is cut off")
        arrays[name] = np.frombuffer(blob, dtype, count, begin).reshape(shape)
        begin = end
    return arrays, header["numbers"]


def to_words(blob: bytes) -> np.ndarray:
    """Returns bytes, padded with zeros, as an array of float32 words; their values have no meaning."""
    return np.frombuffer(blob + b"\0" * (-len(blob) % 4), np.float32)


def payload_words(shapes: Sequence[Shape], dtype: str) -> int:
    """Returns the number of 4-byte words in the payload of a message with arrays of these shapes."""
    return max(num_elements(shapes) * np.dtype(dtype).itemsize // 4, MIN_PAYLOAD)


def num_elements(shapes: Sequence[Shape]) -> int:
    """Returns the total number of elements of arrays of these shapes."""
    return sum(int(np.prod(shape, dtype=np.int64)) for shape in shapes)
