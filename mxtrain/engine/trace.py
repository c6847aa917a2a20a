"""Records which operators MXNet's engine runs, and when, with MXNet's profiler.

The profiler can be used repeatedly in a process only if every dump passes `finished=False`. Each dump then contains the
events since the previous one. Only the first one starts a JSON document; the next ones continue its list of events, and
none closes it (see `parse_dump`).
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Dict, List, Sequence, Tuple

from mxtrain.engine.backend import mx, nd
from mxtrain.files.temporary import temporary_root

if TYPE_CHECKING:
    from mxtrain.types.annotations import JsonObject

# Bookkeeping of the engine, which takes microseconds and is no part of a step.
IGNORED = {"DeleteVariable", "WaitForVar"}

_first_gpu: List[int] = []
"""Process number of gpu(0) in MXNet's dumps, once it is known; empty before. CPU devices have the numbers 0, 1, ...,
and the first GPU the number of cores. Only the first dump of a process contains that count."""


@dataclass(frozen=True)
class Operation:
    """One operation that the engine ran: an operator, or a bulk of several.

    Attributes:
        device: e.g. "cpu(1)".
        name: MXNet's name, e.g. "ImperativeBulk" or "CopyCPU2CPU".
        begin_s, end_s: times in seconds on the profiler's own clock.
    """

    device: str
    name: str
    begin_s: float
    end_s: float


class EngineTrace:
    """Records the operations between `start` and `stop`. Both wait until the engine is idle."""

    def start(self) -> None:
        """Starts recording operations, after waiting for pending ones, which are not recorded."""
        nd.waitall()
        self._folder = tempfile.TemporaryDirectory(prefix="mxtrain-trace-", dir=temporary_root())
        self._file = Path(self._folder.name) / "trace.json"
        mx.profiler.set_config(
            profile_symbolic=True,
            profile_imperative=True,
            profile_api=False,
            profile_memory=False,
            aggregate_stats=False,
            filename=str(self._file),
        )
        mx.profiler.set_state("run")

    def stop(self, devices: Sequence[mx.Context]) -> List[Operation]:
        """Ends the trace; returns the operations that ran on `devices`, ordered by their begin.

        Raises:
            ValueError: the dump cannot be read, for example because the disk for temporary files is full.
        """
        try:
            try:
                nd.waitall()
            finally:
                mx.profiler.set_state("stop")
            mx.profiler.dump(finished=False)
            text = self._file.read_text(encoding="utf-8")
        except (OSError, mx.MXNetError) as error:
            raise ValueError(f"MXNet's profile cannot be read: {error}") from error
        finally:
            self._folder.cleanup()
        events = parse_dump(text)
        if not _first_gpu:
            # Only the first dump of a process names the devices. If other code has taken it, count the cores as MXNet
            # does.
            _first_gpu.append(sum(_is_cpu(event) for event in events) or os.cpu_count() or 1)
        return operations(events, {_number(device): str(device) for device in devices})


def parse_dump(text: str) -> List[JsonObject]:
    """Parses the events of a dump, the first or a later one.

    Raises:
        ValueError: the dump is truncated.
    """
    _, header, rest = text.partition('"traceEvents": [')
    rest = rest if header else text
    try:
        return json.loads(f"[{rest.strip().strip(',')}]")
    except json.JSONDecodeError as error:
        raise ValueError(f"MXNet's profile is not readable: {error}") from error


def operations(events: Sequence[JsonObject], names: Dict[int, str]) -> List[Operation]:
    """Pairs the begin and end events of operations.

    Args:
        events: events in MXNet's order, in which the end of an operation follows its begin.
        names: process number in the dump -> device; events of other devices are ignored.
    """
    open_begins: Dict[Tuple[int, int, str], List[float]] = {}
    finished = []
    for event in events:
        if event.get("ph") not in ("B", "E") or event["pid"] not in names or event["name"] in IGNORED:
            continue
        begins = open_begins.setdefault((event["pid"], event["tid"], event["name"]), [])
        if event["ph"] == "B":
            begins.append(event["ts"])
        elif begins:
            finished.append(Operation(names[event["pid"]], event["name"], begins.pop() / 1e6, event["ts"] / 1e6))
    return sorted(finished, key=lambda operation: (operation.begin_s, operation.end_s))


def _is_cpu(event: JsonObject) -> bool:
    return event.get("name") == "process_name" and event["args"]["name"].startswith("cpu/")


def _number(device: mx.Context) -> int:
    return device.device_id if device.device_type == "cpu" else _first_gpu[0] + device.device_id
