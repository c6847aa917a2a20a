"""Messages by which workers take chunks of an epoch from a server (`cluster.balance=dynamic`), in the frames of
`mxtrain.kvstore.table_wire`.

| kind | payload | answer |
| --- | --- | --- |
| TAKE | JSON: `Take` | JSON: `Taken` |
| END | JSON: `Take` | JSON: `Ended`, when the interval has ended or has chunks to take again |
| EXCHANGE | JSON: `Exchange`, then bytes | JSON: `Exchanged`, then the bytes of these workers |
| HOLDS | none | JSON: `HeldGroup` |

A chunk is one worker's share of a global batch: chunk `c` of an epoch is share `c % shares` of batch `c // shares`.
"""

from __future__ import annotations

from typing import List, Optional, Tuple

import pydantic

from mxtrain.kvstore.table_wire import Connection, Header
from mxtrain.types import Spec

TAKE, END, EXCHANGE, HOLDS = range(64, 68)
MAX_EXCHANGED_BYTES = 1 << 32
"""Largest message of a worker in an exchange: arrays that workers average, such as moving averages of all weights."""


class Interval(Spec):
    """Steps of an epoch that all workers finish before they do anything together: validate, save or stop."""

    serial: int = pydantic.Field(ge=0)
    """Number of the interval in this process group, from 0, which tells intervals over the same steps apart."""
    epoch: int = pydantic.Field(ge=0)
    begin: int = pydantic.Field(ge=0)
    """First step of the interval in the epoch, from 0."""
    end: int = pydantic.Field(ge=0)
    """Step after the last one."""


class Take(Spec):
    """Request of a worker for its next chunk, or for the end of the interval."""

    interval: Interval
    pause: bool = False
    """True to end the interval after the last step of which a chunk was given away."""


class Taken(Spec):
    """A chunk to compute; None if there is none at present."""

    chunk: Optional[int] = None
    has_ended: bool = True
    """False if the worker should ask again: a chunk is kept back until the worker has finished its earlier ones."""


class Ended(Spec):
    """End of an interval."""

    end: Optional[int] = None
    """Step after the last one; None if a lost worker's chunks can be taken."""
    live: List[int] = []
    """Workers that have not been lost."""


class Exchange(Spec):
    """Bytes that a worker gives to the others."""

    num_bytes: int = pydantic.Field(ge=0, le=MAX_EXCHANGED_BYTES)
    ranks: Optional[List[int]] = None
    """Workers whose bytes are returned; None: all."""


class Exchanged(Spec):
    """Result of an exchange."""

    ranks: List[int]
    """Workers that took part in the exchange."""
    sizes: List[Tuple[int, int]]
    """(rank, number of bytes) of each requested worker, in the order of the bytes that follow."""


class HeldGroup(Spec):
    """Answer of a server that is asked for the first group of parameters, whose updates finish chunks."""

    first_group: bool
    """True if the server holds this group."""


def send_json(connection: Connection, kind: int, message: Spec, *payload: bytes) -> None:
    """Sends a document, and bytes after it."""
    text = message.model_dump_json().encode()
    connection.send(Header(kind, count=len(text)), text, *payload)
