"""Compares two runs by the files of their directories: settings, provenance, losses, weights and results.

Files of a run may be untrusted: their size is limited, and text of them is shortened. Does not import MXNet.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from mxtrain.archive.curves import rising_rows
from mxtrain.archive.meta import Meta, read_meta
from mxtrain.archive.registry import ListedRun
from mxtrain.archive.run_files import INTERRUPTED, PRUNED, ROWS_FILE
from mxtrain.archive.run_records import read_rows
from mxtrain.archive.status import read_status_object
from mxtrain.checkpoint.contents import Checkpoint
from mxtrain.checkpoint.folder import CHECKPOINTS, read_named, scan
from mxtrain.config.specs import flatten, shown
from mxtrain.errors import CheckpointError
from mxtrain.files.text_lines import printable_line
from mxtrain.parallel.differences import largest_difference

if TYPE_CHECKING:
    from mxtrain.types.annotations import Json, JsonObject

_VISIBLE_DIFFERENCE = 1e-2
"""Relative difference of losses from which curves differ visibly."""
ABSENT = "(none)"
"""Cell of a value that a run does not have."""


@dataclass(frozen=True)
class Different:
    """A value that differs between two runs; None if a run has no such value."""

    name: str
    first: Optional[str]
    second: Optional[str]


@dataclass(frozen=True)
class Parting:
    """The first step at which the training losses of two runs differ.

    Attributes:
        step: first step whose loss differs; None if all common steps are equal.
        losses: the two losses there; None where a loss is not finite.
        last_equal: last step before it that both have logged; None if there is none.
        visible_step: first step whose losses differ by more than one percent.
        num_common: number of steps that both have logged.
    """

    step: Optional[int]
    losses: Tuple[Optional[float], Optional[float]]
    last_equal: Optional[int]
    visible_step: Optional[int]
    num_common: int


@dataclass(frozen=True)
class WeightsDifference:
    """Weights of two checkpoints of one step.

    Attributes:
        step: the step.
        num_arrays: number of parameters that both have.
        different: names of parameters that differ, in the order of the file.
        only_in_one: names of parameters that only one has, or that have another shape.
        largest: largest absolute difference.
    """

    step: int
    num_arrays: int
    different: Sequence[str]
    only_in_one: Sequence[str]
    largest: float


def compare_mappings(first: Mapping[str, object], second: Mapping[str, object]) -> List[Different]:
    """Returns the entries that differ, sorted by name."""
    differing = []
    for name in sorted({*first, *second}):
        values = [shown(entries[name]) if name in entries else None for entries in (first, second)]
        if values[0] != values[1]:
            differing.append(Different(name, *values))
    return differing


def compare_origins(first: ListedRun, second: ListedRun) -> Dict[str, List[Different]]:
    """Returns differences of code, versions, data and machine, by section."""
    metas = read_meta(first.path), read_meta(second.path)

    def differing(name: str) -> List[Different]:
        return compare_mappings(*(_part_of(meta, name) for meta in metas))

    return {name: differing(name) for name in ("code", "versions", "data", "machine")}


def _part_of(meta: Meta, name: str) -> Mapping[str, str]:
    if name == "code":
        return meta.git
    if name == "versions":
        return meta.packages
    if name == "data":
        return meta.data
    return {**meta.host, **meta.runtime, "devices": ", ".join(meta.devices)}


def unrecorded(*runs: ListedRun) -> List[str]:
    """Returns the sections of `compare_origins` of which one of the runs has recorded nothing."""
    metas = [read_meta(run.path) for run in runs]
    return [name for name in ("code", "versions", "data") if not all(_part_of(meta, name) for meta in metas)]


def compare_metrics(first: ListedRun, second: ListedRun) -> List[Tuple[str, Optional[float], Optional[float]]]:
    """Returns (tag, value, value) of all last measured values, and of the best one."""
    statuses = first.status, second.status
    tags = sorted({*first.status.metrics, *second.status.metrics})
    rows = [(tag, statuses[0].metrics.get(tag), statuses[1].metrics.get(tag)) for tag in tags]
    if statuses[0].monitor and statuses[0].monitor == statuses[1].monitor:
        rows.insert(0, (f"best {statuses[0].monitor}", statuses[0].best, statuses[1].best))
    return [*rows, ("samples_per_s", statuses[0].samples_per_s, statuses[1].samples_per_s)]


def find_parting(first: str, second: str) -> Parting:
    """Compares the training losses of two run directories, step by step."""
    step: Optional[int] = None
    losses: Tuple[Optional[float], Optional[float]] = (None, None)
    last_equal: Optional[int] = None
    visible: Optional[int] = None
    num_common = 0
    for current, first_loss, second_loss in _common(_losses(first), _losses(second)):
        num_common += 1
        if first_loss != second_loss and step is None:
            step, losses = current, (first_loss, second_loss)
        elif step is None:
            last_equal = current
        # The last bits differ between machines; only a visible difference says that training took another course.
        if visible is None and _differ_visibly(first_loss, second_loss):
            visible = current
    return Parting(step, losses, last_equal, visible, num_common)


def _losses(run_dir: str) -> Iterator[Tuple[int, Optional[float]]]:
    for row in rising_rows(run_dir):
        step, loss = row["step"], row.get("loss")
        if row.get("split") == "train" and isinstance(step, int) and "loss" in row:
            yield step, float(loss) if isinstance(loss, (int, float)) and not isinstance(loss, bool) else None


def _common(
    first: Iterator[Tuple[int, Optional[float]]], second: Iterator[Tuple[int, Optional[float]]]
) -> Iterator[Tuple[int, Optional[float], Optional[float]]]:
    """Yields the steps that both have. Neither file is held in memory."""
    first_row, second_row = next(first, None), next(second, None)
    while first_row is not None and second_row is not None:
        steps = first_row[0], second_row[0]
        if steps[0] == steps[1]:
            yield steps[0], first_row[1], second_row[1]
        # One file may begin later or lack rows: the one that is behind is read on.
        first_row = next(first, None) if steps[0] <= steps[1] else first_row
        second_row = next(second, None) if steps[1] <= steps[0] else second_row


def _differ_visibly(first: Optional[float], second: Optional[float]) -> bool:
    if first is None or second is None:
        return first is not second
    return abs(first - second) > _VISIBLE_DIFFERENCE * max(abs(first), abs(second))


def checkpoint_steps(run_dir: str) -> Dict[int, Path]:
    """Returns the newest copy of the checkpoint of each step."""
    folder = os.path.join(run_dir, CHECKPOINTS)
    try:
        return {} if os.path.islink(folder) else {entry.step: entry.path for entry in scan(Path(folder))}
    except CheckpointError:
        return {}


def last_common_checkpoints(first: str, second: str, step: int) -> Optional[Tuple[Checkpoint, Checkpoint]]:
    """Returns the checkpoints of the last step up to `step` that both runs have; None if there is none.

    Raises:
        CheckpointError: one of them is damaged.
    """
    steps = checkpoint_steps(first), checkpoint_steps(second)
    common = [candidate for candidate in steps[0] if candidate in steps[1] and candidate <= step]
    return (read_named(steps[0][max(common)]), read_named(steps[1][max(common)])) if common else None


def compare_weights(first: Checkpoint, second: Checkpoint) -> WeightsDifference:
    """Compares the weights of two checkpoints of one step, which both fit into memory."""
    old, new = first.arrays("model"), second.arrays("model")
    common = [name for name in old if name in new and old[name].shape == new[name].shape]
    largest = {name: largest_difference(old[name], new[name]) for name in common}
    different = [name for name, difference in largest.items() if difference]
    only_in_one = sorted({*old, *new} - set(common))
    return WeightsDifference(first.step, len(common), different, only_in_one, max(largest.values(), default=0.0))


# Provenance and results of a run and of its repetition.

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


def compare_meta(then: Mapping[str, Json], now: Mapping[str, Json]) -> List[Different]:
    """Returns the fields of meta.json that may change a result and differ. The checkout of the working folder only
    counts if the run has code of its own."""
    old, new = (_fields(meta, has_code=bool(then.get("code"))) for meta in (then, now))
    names = [name for name in dict.fromkeys([*old, *new]) if old.get(name) != new.get(name)]
    return [Different(name, short_value(old.get(name)), short_value(new.get(name))) for name in names]


def _fields(meta: Mapping[str, Json], has_code: bool) -> Dict[str, object]:
    fields: Dict[str, object] = {}
    for name in COMPARED:
        value = meta.get(name)
        if name == "git" and not has_code:
            continue
        fields.update(flatten(value, f"{name}.") if isinstance(value, dict) and value else {name: value or None})
    return {name: value for name, value in fields.items() if name not in LEFT_OUT and value is not None}


def short_cell(value: object) -> str:
    """Returns `short_value` for a cell of a table, and `ABSENT` for None."""
    text = short_value(value)
    return ABSENT if text is None else text


def short_value(value: object) -> Optional[str]:
    """Returns a value, which may be untrusted, as text on one line, shortened if it is long or a hash."""
    if value is None:
        return None
    text = str(value)
    is_hash = len(text) in (40, 64) and all(letter in "0123456789abcdef" for letter in text)
    return text[:12] if is_hash else printable_line(text, 40)


@dataclass(frozen=True)
class ResultComparison:
    """Results of two runs.

    Attributes:
        same: True if weights, final metrics and all rows are equal to the bit.
        lines: what to print.
        differences: final values that differ.
        largest: largest relative difference of a final metric; None if one is missing in one of the runs.
    """

    same: bool
    lines: List[str]
    differences: List[Different]
    largest: Optional[float]


def compare_results(before: Path, after: Path) -> ResultComparison:
    """Compares two run directories: status.json, and the rows of metrics.jsonl without their speeds.

    Raises:
        OSError, ValueError: a file of `after` cannot be read.
    """
    old, new = read_status_object(before), read_status_object(after)
    lines, differences = [], []
    if old.get("weights_sha256") is None:
        lines.append(f"{before} has no final weights to compare (its state is {short_cell(old.get('state'))})")
    values = [_final(status) for status in (old, new)]
    for name in dict.fromkeys([*values[0], *values[1]]):
        before_value, after_value = (side.get(name) for side in values)
        if before_value != after_value:
            differences.append(Different(name, short_value(before_value), short_value(after_value)))
    count, difference = _compare_rows(before / ROWS_FILE, after / ROWS_FILE)
    lines.append(difference or f"all {count} rows of {ROWS_FILE} are equal to the bit")
    same = not differences and not difference and old.get("weights_sha256") is not None
    return ResultComparison(same, lines, differences, _largest(*values))


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
    # A missing metric is no difference of 0: without it there is no largest difference.
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
            at = f"{short_cell(row.get('split'))} row of step {short_cell(row.get('step'))}"
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
