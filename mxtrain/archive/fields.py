"""Values of a run by name, for filters, orders and columns of tables."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Callable, Dict, List, Optional, Sequence, Tuple, Union

from mxtrain.archive.registry import CHOSEN, ListedRun
from mxtrain.config.specs import shown
from mxtrain.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from mxtrain.types.annotations import Json

Value = Union[str, float, None]

FIELDS: Dict[str, Callable[[ListedRun], Value]] = {
    "run": lambda run: run.path,
    "state": lambda run: run.state,
    "task": lambda run: run.choices.get("task"),
    "model": lambda run: run.choices.get("model"),
    "dataset": lambda run: run.choices.get("dataset"),
    "metric": lambda run: run.status.monitor or None,
    "best": lambda run: run.status.best,
    "best_step": lambda run: run.status.best_step,
    "step": lambda run: run.status.step,
    "epoch": lambda run: run.status.epoch,
    "speed": lambda run: run.status.samples_per_s,
    "wall": lambda run: run.status.wall_s,
    "size": lambda run: run.size,
    "age": lambda run: run.age_s,
    "exit_code": lambda run: run.status.exit_code,
    "cause": lambda run: run.status.cause or None,
}
WORDS = ("run", "state", *CHOSEN, "metric", "cause")
UNITS: Dict[str, Dict[str, float]] = {
    "size": {"b": 1, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12},
    "age": {"s": 1, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400},
    "wall": {"s": 1, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400},
}
"""Units that may follow a number, by field; without one it is in bytes or seconds."""
_OTHER_NAMES = {
    "path": "run",
    "name": "run",
    "steps": "step",
    "epochs": "epoch",
    "samples_per_s": "speed",
    "throughput": "speed",
    "time": "wall",
    "value": "best",
    "status": "state",
    "data": "dataset",
    "bytes": "size",
}


def check_field(name: str, where: str) -> str:
    """Checks that a name is a field, a metric (`val/loss`) or a setting (`optimizer.lr`).

    Raises:
        ConfigError: it is none of these.
    """
    if name in FIELDS or "/" in name or "." in name:
        return name
    meant = f" Did you mean '{_OTHER_NAMES[name]}'?" if name in _OTHER_NAMES else did_you_mean(name, FIELDS)
    raise ConfigError(
        f"{where}: runs have no '{name}'.{meant} There are {', '.join(FIELDS)}, metrics such as val/loss, and settings "
        "such as optimizer.lr."
    )


def value_of(run: ListedRun, name: str) -> Value:
    """Returns the value of a field, metric or setting; None if the run has none."""
    if name in FIELDS:
        return FIELDS[name](run)
    if "/" in name:
        return run.status.metrics.get(name)
    return plain_value(run.settings[name]) if name in run.settings else None


def plain_value(value: Json) -> Value:
    """Returns a number unchanged, and any other value of a setting as its text in an override."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number else shown(value)  # type: ignore[arg-type]


def needed_of(names: Sequence[str]) -> List[str]:
    """Returns the properties of `ListedRun` that reading these fields needs."""
    needed = {"choices" if name in CHOSEN else name for name in names if name in (*CHOSEN, "size")}
    needed |= {"settings" for name in names if name not in FIELDS and "/" not in name}
    return sorted(needed)


def require_known(names: Sequence[str], runs: Sequence[ListedRun], where: str) -> None:
    """Rejects metrics and settings that no run has, which would match nothing.

    Raises:
        ConfigError: there is one; names the nearest that a run has.
    """
    for name in names:
        if name in FIELDS or not runs or any(value_of(run, name) is not None for run in runs):
            continue
        is_metric = "/" in name
        # 50 runs are enough for a suggestion: reading the settings of thousands takes seconds.
        known = {key for run in runs[:50] for key in (run.status.metrics if is_metric else run.settings)}
        kind = "metric" if is_metric else "setting"
        raise ConfigError(f"{where}: none of {len(runs):,} runs has a {kind} '{name}'.{did_you_mean(name, known)}")


def read_order(text: str) -> Tuple[str, bool]:
    """Reads `sort=NAME` or `sort=-NAME`: the field and whether the order is reversed.

    Raises:
        ConfigError: there is no such field.
    """
    name = text[1:] if text.startswith("-") else text
    return check_field(name, f"sort={text}"), text.startswith("-")


def sort_runs(runs: Sequence[ListedRun], name: str, is_reversed: bool = False) -> List[ListedRun]:
    """Sorts runs by a field; those without a value are last. `best` puts the best first, all others the smallest."""
    valued = [(value_of(run, name), run) for run in runs]

    def key(pair: Tuple[Value, ListedRun]) -> Tuple[bool, float, str]:
        value, run = pair
        if isinstance(value, str):
            return True, 0.0, value
        number = float(value or 0.0)
        return False, -number if name == "best" and run.direction == "max" else number, ""

    # NaN compares as False with everything, and would leave the others in any order.
    present = sorted((pair for pair in valued if not _is_absent(pair[0])), key=key, reverse=is_reversed)
    return [run for _, run in present] + [run for value, run in valued if _is_absent(value)]


def _is_absent(value: Value) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def read_number(text: str, name: str) -> Optional[float]:
    """Reads a number with an optional unit of the field; None if the text is not a number."""
    units = UNITS.get(name, {})
    lower = text.lower()
    for unit in sorted(units, key=len, reverse=True):
        if lower.endswith(unit):
            number = _float(lower[: -len(unit)])
            return None if number is None else number * units[unit]
    return _float(lower)


def _float(text: str) -> Optional[float]:
    try:
        number = float(text)
    except ValueError:
        return None
    # Python's `float` reads 1_0 as 10, "nan" and "inf".
    return number if math.isfinite(number) and "_" not in text else None


def best_of(runs: Sequence[ListedRun]) -> Optional[ListedRun]:
    """Returns the run with the best value, if all monitor the same metric of the same task."""
    measured = [one for one in runs if one.status.best is not None]
    # Values of different metrics have no common order.
    if len(measured) < 2 or len({(one.status.monitor, one.direction) for one in measured}) > 1:
        return None
    return sort_runs(measured, "best")[0]
