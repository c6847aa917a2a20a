"""Messages between a supervisor and its relays on other hosts: lines of text, in between whatever else ssh or srun
print.

A message is JSON behind a mark and a checksum: srun mixes the lines of many processes, and what it damages must not be
taken for something else. A line is at most LONGEST bytes where it goes to the supervisor: that much srun keeps in one
piece.
"""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any, Dict, Iterator, Optional, Tuple

MARK = b"@mxtrain "
# srun keeps lines of up to 1,024 bytes in one piece.
LONGEST = 1000
# 600 bytes are 800 in base64, which leaves room for mark, checksum and JSON.
PIECE = 600
"""Number of output bytes in a message."""

Message = Dict[str, Any]


def encode(message: Message) -> bytes:
    """Returns the line of a message."""
    body = json.dumps(message, separators=(",", ":")).encode()
    return b"%s%08x %s\n" % (MARK, zlib.crc32(body), body)


def decode(line: bytes) -> Optional[Message]:
    """Returns the message of a line; None if the line is no message or is damaged."""
    prefix, mark, payload = line.rpartition(MARK)
    checksum, _, body = payload.rstrip(b"\r\n").partition(b" ")
    if not mark or checksum != b"%08x" % zlib.crc32(body):
        return None
    message = json.loads(body)
    return message if isinstance(message, dict) else None


def split(data: bytes) -> Tuple[Iterator[bytes], bytes]:
    """Splits received bytes into (complete lines, incomplete rest)."""
    *lines, rest = data.split(b"\n")
    return iter(lines), rest


def pieces(output: bytes) -> Iterator[str]:
    """Yields the output of a process as pieces of text that fit into messages."""
    for begin in range(0, len(output), PIECE):
        yield base64.b64encode(output[begin : begin + PIECE]).decode()


def decode_piece(piece: str) -> bytes:
    """Decodes a piece that `pieces` yielded."""
    return base64.b64decode(piece)
