"""Histories to predict for, from lines of JSON and from Python objects."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple

import numpy as np

from mxtrain.data.exported_folder import json_lines_of
from mxtrain.data.loading.dataset_files import exists
from mxtrain.errors import DataError, reason_of
from mxtrain.files.regular_files import read_regular
from mxtrain.recommendation.catalog import Catalog
from mxtrain.recommendation.exported_sequences import HISTORY as HISTORY
from mxtrain.recommendation.exported_sequences import HistoryRequest, parse_history
from mxtrain.recommendation.exported_users import ExportedCatalog
from mxtrain.recommendation.sequences import SequenceSamples, rows_in_order, samples_of_histories
from mxtrain.recommendation.source import InteractionRows

JSON_LINES = ".jsonl"
MAX_BYTES = 1 << 30
"""Largest size of a file of histories."""


def open_histories(
    names: Sequence[str], catalog: Catalog, skip_unreadable: bool, unreadable: Dict[int, str]
) -> Tuple[SequenceSamples, List[str]]:
    """Opens files with a history per line; see `BaseDataset.open_inputs`."""
    items = _items(catalog)
    requests: List[HistoryRequest] = []
    locations: List[str] = []
    for name in names:
        if not exists(name):
            raise DataError(f"{name}: there is no such file. Name a file with a history per line.")
        try:
            rows = list(json_lines_of(read_regular(name, MAX_BYTES), name))
        except OSError as error:
            raise DataError(f"'{name}' cannot be read: {reason_of(error)}.") from error
        except ValueError as error:
            raise DataError(f"{error}.") from error
        for line, row in rows:
            try:
                request = parse_history(row, items, f"{name}:{line}", str(line))
            except ValueError as error:
                _refuse_unless_skipped(error, skip_unreadable, "lines")
                unreadable[len(requests)] = str(error)
                request = HistoryRequest(str(line), np.zeros(1, np.int32))
            requests.append(request)
            locations.append(f"{name}:{line}")
    if not requests:
        raise DataError(f"{', '.join(names)}: there is no history in it.")
    return _samples(requests, catalog), locations


def histories_of_tables(
    names: Sequence[str],
    tables: Sequence[InteractionRows],
    catalog: Catalog,
    skip_unreadable: bool,
    unreadable: Dict[int, str],
) -> Tuple[SequenceSamples, List[str]]:
    """Returns one sample per user of tables of interactions, whose history are all items of the user in the table.

    Args:
        names: paths of the tables; a user of two tables is a sample of each.
        tables: their interactions, with times.
        catalog: users and items of the network; the users of the tables need not be in it.
        skip_unreadable, unreadable: see `BaseDataset.open_inputs`.

    Returns:
        The samples, and the place of the first row of each user.

    Raises:
        DataError: an item is unknown.
    """
    items = _items(catalog)
    requests: List[HistoryRequest] = []
    locations: List[str] = []
    for name, pairs in zip(names, tables):
        row_P = rows_in_order(pairs)
        parts = np.split(row_P, np.flatnonzero(np.diff(pairs.user_P[row_P])) + 1)
        for row_H in sorted(parts, key=min):
            location = pairs.locations[int(row_H.min())]
            user = pairs.catalog.users[pairs.user_P[row_H[0]]]
            try:
                history = [
                    items.number("item", pairs.catalog.items[pairs.item_P[row]], str(pairs.locations[int(row)]))
                    for row in row_H
                ]
            except ValueError as error:
                _refuse_unless_skipped(error, skip_unreadable, "users")
                unreadable[len(requests)] = str(error)
                history = [0]
            requests.append(HistoryRequest(user, np.array(history, np.int32)))
            locations.append(f"{name}:{location.record if location.line is None else location.line}")
    return _samples(requests, catalog), locations


def histories_from(values: Sequence[Any], catalog: Catalog) -> SequenceSamples:
    """Returns samples of Python dicts with a "history"; see `BaseDataset.samples_from`.

    Raises:
        DataError: a history is empty, or an item is unknown.
    """
    items = _items(catalog)
    try:
        requests = [
            parse_history(value, items, f"predict: input {number}", str(number)) for number, value in enumerate(values)
        ]
    except ValueError as error:
        raise DataError(_sentence(error)) from error
    return _samples(requests, catalog)


def _items(catalog: Catalog) -> ExportedCatalog:
    return ExportedCatalog({"users": [], "items": list(catalog.items)})


def _samples(requests: Sequence[HistoryRequest], catalog: Catalog) -> SequenceSamples:
    return samples_of_histories([one.item_H for one in requests], [one.name for one in requests], catalog.items)


def _refuse_unless_skipped(error: ValueError, skip_unreadable: bool, what: str) -> None:
    """Raises a `DataError` with the message of an error in a history, unless such histories are skipped.

    Args:
        error: the error.
        skip_unreadable: see `BaseDataset.open_inputs`.
        what: name of the parts of the input that are skipped, in the plural.
    """
    if not skip_unreadable:
        raise DataError(f"{_sentence(error)} Or type skip_unreadable=true to go on without such {what}.") from error


def _sentence(error: ValueError) -> str:
    """Returns the message of an error with a full stop, unless it ends with a question."""
    text = str(error)
    return text if text.endswith("?") else f"{text}."
