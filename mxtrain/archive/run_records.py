"""Reads meta.json of a run and the rows of its metrics.jsonl.

Both may be untrusted or truncated, so the size of the file and of each line is limited.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Dict, Iterator, List

from mxtrain.archive.run_files import META_FILE, ROWS_FILE
from mxtrain.config.moved import with_current_paths
from mxtrain.files.json_text import parse_json, read_json
from mxtrain.files.regular_files import AnyPath, open_regular

if TYPE_CHECKING:
    from mxtrain.types.annotations import JsonObject

MAX_META_BYTES = 1 << 22
MAX_STATUS_BYTES = 1 << 20
MAX_ROW_BYTES = 1 << 20
_LAST_BYTES = 1 << 16


def read_meta_object(run_dir: AnyPath) -> JsonObject:
    """Returns the object in meta.json of a run directory as it is, with values of any type; see `meta.read_meta`.

    Raises:
        OSError: the file is missing, cannot be read or is too large.
        ValueError: it is not JSON, or not an object.
    """
    meta = read_json(os.path.join(run_dir, META_FILE), MAX_META_BYTES)
    if not isinstance(meta, dict):
        raise ValueError("is not a JSON object")
    updated: JsonObject = with_current_paths(meta)
    return updated


def read_rows(path: AnyPath, max_bytes: float = float("inf")) -> Iterator[Dict[str, Any]]:
    """Yields the rows of a metrics.jsonl. Lines that are not JSON objects are skipped, such as the incomplete last line
    of a run that is training or was killed.

    Args:
        path: path of the file.
        max_bytes: lines that begin after this position are skipped.

    Raises:
        OSError: the file cannot be read.
    """
    with open_regular(path) as (stream, _):
        position = 0
        while position < max_bytes:
            line = stream.readline(MAX_ROW_BYTES)
            if not line:
                return
            position += len(line)
            row = _row_of(line)
            if row:
                yield row


def last_step(run_dir: AnyPath) -> int:
    """Returns the step of the last row in metrics.jsonl of a run directory; 0 if there is none. Reads only the end of
    the file."""
    steps = (row.get("step") for row in last_rows(run_dir))
    return next((step for step in steps if isinstance(step, int) and step > 0), 0)


def last_rows(run_dir: AnyPath) -> List[Dict[str, Any]]:
    """Returns the last rows in metrics.jsonl of a run directory, newest first; none if there is no file. Reads only the
    end of the file."""
    try:
        with open_regular(os.path.join(run_dir, ROWS_FILE)) as (stream, size):
            # The first line after this position is cut off in most cases, and is then skipped as no JSON object.
            stream.seek(max(0, size - _LAST_BYTES))
            lines = [line + b"\n" for line in stream.read(_LAST_BYTES).split(b"\n")[:-1]]  # complete ones
    except OSError:
        return []
    return [row for row in map(_row_of, reversed(lines)) if row]


def _row_of(line: bytes) -> Dict[str, Any]:
    """Parses a line; returns an empty dict if it is not a complete JSON object."""
    if not line.endswith(b"\n"):
        return {}
    try:
        row = parse_json(line)
    except ValueError:
        return {}
    return row if isinstance(row, dict) else {}
