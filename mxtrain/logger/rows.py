"""Reads values from rows of metrics.jsonl, for loggers."""

from __future__ import annotations

import numbers
from typing import TYPE_CHECKING, Dict, Iterable, List

if TYPE_CHECKING:
    from mxtrain.types.annotations import MetricRow

NOT_METRICS = frozenset(("step", "epoch", "split", "samples_per_s"))


def mean_of_rows(rows: Iterable[MetricRow]) -> Dict[str, float]:
    """Returns the mean of the loss and of every metric over the rows, by name.

    A NaN makes its mean NaN, so that it shows; a missing value is left out.
    """
    values: Dict[str, List[float]] = {}
    for row in rows:
        for name, value in row.items():
            if name not in NOT_METRICS and isinstance(value, numbers.Real):
                values.setdefault(name, []).append(float(value))
    return {name: sum(items) / len(items) for name, items in values.items()}
