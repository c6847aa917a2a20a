"""What a part of the benchmark finds: repeated measurements, and how they stand to the targets."""

from __future__ import annotations

import math
import statistics
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence


@dataclass(frozen=True)
class Options:
    """How to measure.

    Attributes:
        quick: tiny versions that only show that the part works.
        work: an empty folder for what runs write.
        gluoncv_script: GluonCV's train_cifar10.py, or empty.
        torch_python: a Python with PyTorch, or empty.
        records: where a part that takes hours writes each run, and finds those it need not repeat; None: nowhere.
        before: another checkout to compare with, or empty.
        minutes: after which such a part begins no further run.
        turns: blocks of each side, where a part lets that be chosen; 0: its own number.
        steps: of a block, likewise.
        only: a part of the names of the networks that are measured, where a part lets that be chosen.
    """

    quick: bool
    work: Path
    gluoncv_script: str = ""
    torch_python: str = ""
    records: Optional[Path] = None
    minutes: float = math.inf
    before: str = ""
    turns: int = 0
    steps: int = 0
    only: str = ""


@dataclass(frozen=True)
class Series:
    """The same thing measured several times."""

    name: str
    unit: str
    values: Sequence[float]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def quartiles(self) -> List[float]:
        """The first and the third; with fewer than two values the value itself."""
        if len(self.values) < 2:
            return [self.median, self.median]
        first, _, third = statistics.quantiles(self.values, n=4, method="inclusive")
        return [first, third]

    def to_json(self) -> Dict[str, Any]:
        return {
            "name": self.name, "unit": self.unit, "median": self.median, "quartiles": self.quartiles(),
            "min": min(self.values), "max": max(self.values), "values": list(self.values),
        }  # fmt: skip


@dataclass(frozen=True)
class Target:
    """One number that had to be reached."""

    name: str
    value: float
    limit: float
    at_least: bool
    """True: the value must be the limit or more; False: the limit or less."""

    @property
    def met(self) -> bool:
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def to_json(self) -> Dict[str, Any]:
        return {
            "name": self.name, "value": self.value, "limit": self.limit, "at_least": self.at_least, "met": self.met,
        }  # fmt: skip


@dataclass
class Measured:
    """All that one part found."""

    series: List[Series] = field(default_factory=list)
    targets: List[Target] = field(default_factory=list)
    notes: List[str] = field(default_factory=list)
    """How it was measured, a sentence each."""
    details: Dict[str, Any] = field(default_factory=dict)
    table: List[List[str]] = field(default_factory=list)
    """What is no series, as it is to be shown: a row of titles and further rows."""

    def compare(self, name: str, above: Sequence[float], below: Sequence[float], limit: float) -> None:
        """Notes how many times `below` `above` is: one ratio for each repetition, whose two measurements were taken
        next to each other, so that drift meets both; their median has to reach `limit`."""
        shares = Series(f"{name}, pair by pair", "ratio", ratios(above, below))
        self.series.append(shares)
        self.targets.append(Target(f"{name}, median of pairs", shares.median, limit, at_least=True))

    def to_json(self) -> Dict[str, Any]:
        return {
            "series": [series.to_json() for series in self.series],
            "targets": [target.to_json() for target in self.targets],
            "notes": self.notes,
            "details": self.details,
            "table": self.table,
        }


def in_turn(sides: Mapping[str, Callable[[int], Any]], repetitions: int) -> Dict[str, List[Any]]:
    """Measures the sides one after the other, again and again: what drifts on the machine meets all of them.

    The order is turned round each time, so that no side always goes first.

    Args:
        sides: name -> measurement; it is given the number of the repetition.
        repetitions: measurements of each side.

    Returns:
        name -> what the measurements returned.
    """
    found: Dict[str, List[Any]] = {name: [] for name in sides}
    for number in range(repetitions):
        for name in list(sides) if number % 2 == 0 else reversed(list(sides)):
            found[name].append(sides[name](number))
            say(f"  {number + 1}/{repetitions} {name}: {_short(found[name][-1])}")
    return found


def ratios(above: Sequence[float], below: Sequence[float]) -> List[float]:
    """One ratio for each repetition: its two measurements were taken next to each other."""
    return [a / b for a, b in zip(above, below)]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
