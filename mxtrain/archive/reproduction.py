"""Compares the provenance and the results of two runs. Reads only JSON files of limited size."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Tuple

from mxtrain.archive.provenance import DESCRIPTION
from mxtrain.archive.run_files import INTERRUPTED, META_FILE, PRUNED, ROWS_FILE, STATUS_FILE
from mxtrain.archive.run_records import MAX_STATUS_BYTES, read_meta, read_rows
from mxtrain.config.specs import flatten
from mxtrain.errors import ConfigError, reason_of
from mxtrain.files.json_text import read_json
from mxtrain.files.text_lines import printable_line

if TYPE_CHECKING:
    from mxtrain.types.annotations import Config, Json, JsonObject

SPEED = "samples_per_s"
"""Column of metrics.jsonl that differs between any two runs."""
COMPARED = (
    "packages",
    "python",
    "mxtrain_git",
    "git",
    "code",
    "own_operators",
    "host",
    "devices",
    "precision",
    "runtime",
    "data",
)
"""Fields of meta.json that may change a result, in the order of the table."""
LEFT_OUT = (
    "host.name",
    "host.system",
    "git.diff",
    "git.dirty",
    "git.diff_bytes",
    "mxtrain_git.diff",
    "mxtrain_git.dirty",
    "mxtrain_git.diff_bytes",
    "data.sha256",
)
"""Parts of these fields that do not change a result, or that another part contains."""
ABSENT = "(none)"


class ChangedFact(NamedTuple):
    """Row of the table of differences: a field, and its values in both runs."""

    field: str
    then: str
    now: str


@dataclass(frozen=True)
class RecordedRun:
    """A run directory with a meta.json that describes the run."""

    path: Path
    meta: JsonObject

    @property
    def description(self) -> Config:
        """Returns the configuration of the run, with all defaults."""
        config: Config = self.meta[DESCRIPTION]
        return config

    @property
    def choices(self) -> Mapping[str, str]:
        """Returns the chosen option of each group; empty if the run was started in another way."""
        choices = self.meta.get("choices")
        return {str(group): str(option) for group, option in choices.items()} if isinstance(choices, dict) else {}


def read_run(path: Path) -> RecordedRun:
    """Reads the meta.json of a run directory.

    Raises:
        ConfigError: there is none, or it is not what a run writes.
    """
    try:
        meta = read_meta(path)
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no {META_FILE}. reproduce takes the directory of a run.") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path / META_FILE} cannot be read: {reason_of(error)}.") from None
    if not isinstance(meta.get(DESCRIPTION), dict):
        raise ConfigError(
            f"{path / META_FILE} does not contain the description of the run. Only runs that a version with "
            "`reproduce` has started can be reproduced by it; the other runs by their command."
        )
    return RecordedRun(path, meta)


def compare_meta(then: Mapping[str, Json], now: Mapping[str, Json]) -> List[ChangedFact]:
    """Returns the fields of meta.json that may change a result and differ. The checkout of the working folder only
    counts if the run has code of its own."""
    old, new = (_fields(meta, has_code=bool(then.get("code"))) for meta in (then, now))
    names = [name for name in dict.fromkeys([*old, *new]) if old.get(name) != new.get(name)]
    return [ChangedFact(name, shown(old.get(name)), shown(new.get(name))) for name in names]


def _fields(meta: Mapping[str, Json], has_code: bool) -> Dict[str, object]:
    fields: Dict[str, object] = {}
    for name in COMPARED:
        value = meta.get(name)
        if name == "git" and not has_code:
            continue
        fields.update(flatten(value, f"{name}.") if isinstance(value, dict) and value else {name: value or None})
    return {name: value for name, value in fields.items() if name not in LEFT_OUT and value is not None}


def shown(value: object) -> str:
    """Returns a value for a cell of the table: untrusted text on one line, shortened if it is long or a hash."""
    text = ABSENT if value is None else str(value)
    is_hash = len(text) in (40, 64) and all(letter in "0123456789abcdef" for letter in text)
    return text[:12] if is_hash else printable_line(text, 40)


# Results.


@dataclass(frozen=True)
class Comparison:
    """Results of two runs.

    Attributes:
        same: True if weights, final metrics and all rows are equal to the bit.
        lines: what to print.
        differences: final values that differ.
        largest: largest relative difference of a final metric; None if one is missing in one of the runs.
    """

    same: bool
    lines: List[str]
    differences: List[ChangedFact]
    largest: Optional[float]


def compare_results(before: Path, after: Path) -> Comparison:
    """Compares two run directories: status.json, and the rows of metrics.jsonl without their speeds.

    Raises:
        OSError, ValueError: a file of `after` cannot be read.
    """
    old, new = _status(before), _status(after)
    lines, differences = [], []
    if old.get("weights_sha256") is None:
        lines.append(f"{before} has no final weights to compare (its state is {shown(old.get('state'))})")
    values = [_final(status) for status in (old, new)]
    for name in dict.fromkeys([*values[0], *values[1]]):
        before_value, after_value = (side.get(name) for side in values)
        if before_value != after_value:
            differences.append(ChangedFact(name, shown(before_value), shown(after_value)))
    count, difference = _compare_rows(before / ROWS_FILE, after / ROWS_FILE)
    lines.append(difference or f"all {count} rows of {ROWS_FILE} are equal to the bit")
    same = not differences and not difference and old.get("weights_sha256") is not None
    return Comparison(same, lines, differences, _largest(*values))


def _status(run_dir: Path) -> JsonObject:
    try:
        status = read_json(run_dir / STATUS_FILE, at_most=MAX_STATUS_BYTES)
    except (OSError, ValueError):
        return {}
    return status if isinstance(status, dict) else {}


def _final(status: JsonObject) -> Dict[str, object]:
    best, metrics = status.get("best"), status.get("metrics")
    state = status.get("state")
    return {
        **{name: status.get(name) for name in ("weights_sha256", "step")},
        "state": INTERRUPTED if state == PRUNED else state,  # `tune` renames the state of a trial afterwards
        **(flatten({"best": best}) if isinstance(best, dict) else {}),
        **(flatten(metrics) if isinstance(metrics, dict) else {}),
    }


def _largest(before: Mapping[str, object], after: Mapping[str, object]) -> Optional[float]:
    """Returns the largest relative difference of the numbers that both have."""
    names = [name for name, value in before.items() if isinstance(value, float)]
    pairs = [(before[name], after.get(name)) for name in names]
    if not pairs or not all(isinstance(new, (int, float)) for _, new in pairs):
        return None
    return max(_relative(float(old), float(new)) for old, new in pairs)  # type: ignore[arg-type]  # checked above


def _relative(old: float, new: float) -> float:
    return abs(old - new) / max(abs(old), abs(new), 1e-12)


def _compare_rows(before: Path, after: Path) -> Tuple[int, str]:
    """Returns the number of equal rows before the first difference, and a clause about it; "" if there is none."""
    count = 0
    for old_row, new_row in zip_longest(_rows(before), _rows(after)):
        if old_row != new_row:
            row = old_row or new_row or {}
            at = f"{shown(row.get('split'))} row of step {shown(row.get('step'))}"
            missing = "" if old_row and new_row else f", which only {before if old_row else after} has"
            return count, f"the rows differ from the {at} on{missing}; {count} before it are equal to the bit"
        count += 1
    return count, ""


def _rows(path: Path) -> Iterator[Dict[str, Any]]:
    """Yields the rows of a metrics.jsonl without their speeds; none if there is no file."""
    try:
        for row in read_rows(path):
            yield {name: value for name, value in row.items() if name != SPEED}
    except OSError:
        return
