"""Compares two runs by the files of their directories. Does not import MXNet."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from mxtrain.archive.curves import rising_rows
from mxtrain.archive.meta import Meta, read_meta
from mxtrain.archive.registry import ListedRun
from mxtrain.checkpoint.contents import Checkpoint
from mxtrain.checkpoint.folder import CHECKPOINTS, read_named, scan
from mxtrain.config.specs import shown
from mxtrain.errors import CheckpointError

_PRECISE = 1e-2
"""Relative difference of losses from which curves differ visibly."""


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
        first_row = next(first, None) if steps[0] <= steps[1] else first_row
        second_row = next(second, None) if steps[1] <= steps[0] else second_row


def _differ_visibly(first: Optional[float], second: Optional[float]) -> bool:
    if first is None or second is None:
        return first is not second
    return abs(first - second) > _PRECISE * max(abs(first), abs(second))


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
    different, largest = [], 0.0
    for name in common:
        if not np.array_equal(old[name], new[name], equal_nan=old[name].dtype.kind == "f"):
            different.append(name)
            largest = max(largest, float(np.max(np.abs(old[name].astype(np.float64) - new[name]))))
    largest = largest if not math.isnan(largest) else math.inf
    only_in_one = sorted({*old, *new} - set(common))
    return WeightsDifference(first.step, len(common), different, only_in_one, largest)
