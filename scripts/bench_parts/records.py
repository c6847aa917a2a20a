"""Files of `--records`: measurements that are kept as they end, so that a part can be taken in pieces."""

from __future__ import annotations

import json
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Optional, Sequence, Union

from bench_parts.harness import say

if TYPE_CHECKING:
    from bench_parts.harness import Measured, Options

Key = Union[str, Sequence[Union[str, int]]]


def read_records(path: Optional[Path]) -> List[Any]:
    """Returns the JSON values of all lines of a file; none if it is not there yet."""
    lines = path.read_text().splitlines() if path is not None and path.exists() else []
    return [json.loads(line) for line in lines]


def append_record(path: Optional[Path], record: Any) -> None:
    """Appends a line of JSON to a file; None: nothing is written."""
    if path is not None:
        with open(path, "a") as file:
            file.write(json.dumps(record) + "\n")


class NotMeasured(Exception):
    """No time was left for a measurement."""


class Records:
    """Measurements of a part by their names: those in the file of `--records`, and new ones, which are appended to it.

    Args:
        options: `minutes` after the start no further measurement begins.
    """

    def __init__(self, options: Options):
        self._path, self._end_s = options.records, time.monotonic() + 60 * options.minutes
        self._found: Dict[str, Any] = {json.dumps(key): values for key, values in read_records(self._path)}

    def __contains__(self, key: Key) -> bool:
        return json.dumps(key) in self._found

    def get(self, key: Key, measure: Optional[Callable[[], Any]] = None) -> Any:
        """Returns the JSON values of a measurement, which is taken if it is missing and there is time.

        Args:
            key: its name.
            measure: takes it; None: only what is recorded.

        Returns:
            The values; None if they are missing.
        """
        if key not in self and measure is not None and time.monotonic() < self._end_s:
            self.add(key, measure())
        return self._found.get(json.dumps(key))

    def require(self, key: Sequence[Union[str, int]], measure: Callable[..., float], *arguments: Any) -> float:
        """Returns the number of a measurement, which is `measure(*arguments)`; prints it if it is new.

        Raises:
            NotMeasured: it is missing, and the time is up.
        """
        name, is_new = ", ".join(map(str, key)), key not in self
        value = self.get(key, partial(measure, *arguments))
        if value is None:
            raise NotMeasured(f"Not measured: {name}.")
        if is_new:
            say(f"  {name}: {value:.4g}")
        return float(value)

    def add(self, key: Key, values: Any) -> None:
        """Records a measurement."""
        self._found[json.dumps(key)] = values
        append_record(self._path, [key, values])


@contextmanager
def noting_gaps(found: Measured) -> Iterator[None]:
    """Notes what was not measured, and goes on after the block."""
    try:
        yield
    except NotMeasured as error:
        say(f"  {error}")
        found.notes.append(str(error))
