"""Columns of a table that hold the targets of its rows, where they are no single classes.

Legend: R rows, K classes, T targets.
"""

from __future__ import annotations

from functools import partial
from typing import Callable, Collection, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from mxtrain.data.checking.problems import DataLocations, Findings
from mxtrain.data.table.cells import MISSING_CELLS
from mxtrain.data.table.class_sets import Labels, find_set_columns, parse_sets
from mxtrain.data.table.columns import ListColumn, names_of_columns
from mxtrain.data.table.number_columns import find_number_columns, parse_numbers
from mxtrain.data.table.target_classes import refuse_named_classes


class TargetColumns(NamedTuple):
    """Columns of a table that hold the targets.

    Attributes:
        columns: their names.
        class_names: names of the classes; empty if there are none.
        parse: function (cells of the columns of each row, source locations, findings) -> targets, and their rows.
        null: text for nulls of JSON or Parquet, see `stream_rows`.
        decimal_in: decimal sign of columns of numbers, see `stream_rows`.
    """

    columns: Sequence[str]
    class_names: Sequence[str]
    parse: Callable[[Sequence[Sequence[str]], DataLocations, Findings], Tuple[np.ndarray, np.ndarray]]
    null: Optional[str] = None
    decimal_in: Mapping[Union[str, int], str] = {}

    @property
    def names_classes(self) -> bool:
        """Returns True if numbers of classes are read as their names, see `stream_rows`; columns of 0 and 1 keep
        theirs."""
        return len(self.columns) == 1 or not self.class_names


def class_set_columns(
    path: str,
    labels: Labels,
    delimiter: str,
    others: Collection[str],
    further: Sequence[str] = (),
    names_classes: bool = False,
) -> TargetColumns:
    """Returns the columns of any number of classes for each row, whose targets are (R, K) of 0 and 1; arguments and
    errors as those of `find_set_columns`."""
    found = find_set_columns(path, labels, delimiter, others, further=further, names_classes=names_classes)
    return TargetColumns(list(map(ListColumn, found.columns)), found.class_names, partial(parse_sets, found))


def number_columns(
    path: str, label: Union[None, str, List[str]], decimal: str, others: Collection[str]
) -> TargetColumns:
    """Returns the columns of numbers, whose targets are (R,), or (R, T) if `label` is a list; arguments and errors as
    those of `find_number_columns`.

    Args:
        path: table of the training samples.
        label: setting dataset.label.
        decimal: decimal sign.
        others: columns that are inputs.
    """
    names = find_number_columns(path, label, names_of_columns(path), others)
    refuse_named_classes("dataset.label", path, names)

    def parse(
        rows: Sequence[Sequence[str]], locations: DataLocations, findings: Findings
    ) -> Tuple[np.ndarray, np.ndarray]:
        number_RT, kept_R = parse_numbers(names, rows, decimal, locations, findings)
        return number_RT if isinstance(label, list) else number_RT[:, 0], kept_R

    return TargetColumns(names, (), parse, MISSING_CELLS[0], dict.fromkeys(names, decimal))
