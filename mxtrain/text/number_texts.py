"""Texts with a number to predict each, and the splits of texts without classes.

Legend: V distinct labels of a table, N rows.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, List, Optional, Sequence, Tuple

import numpy as np

from mxtrain.data.checking.problems import NOT_A_NUMBER, DataLocations, Findings, Problem
from mxtrain.data.loading.splitting import refuse_empty
from mxtrain.data.spec import Splits
from mxtrain.data.table.cells import MISSING_CELLS
from mxtrain.data.table.groups import SETTING, read_groups
from mxtrain.data.table.number_columns import parse_column
from mxtrain.errors import DataError
from mxtrain.text.signature import TextSplits

if TYPE_CHECKING:
    from mxtrain.text.base import TextDataset
    from mxtrain.text.text_files import AnyTexts, TextTable

log = logging.getLogger(__name__)


def build_number_texts(table: TextTable, column: str, decimal: str, findings: Findings) -> AnyTexts:
    """Builds texts with their numbers, which are the labels of a table.

    Args:
        table: texts of a file.
        column: name of the column of the numbers.
        decimal: decimal sign.
        findings: collects rows without a number.
    """
    assert table.locations is not None
    parsed = parse_column(column, table.names, MISSING_CELLS, decimal)
    problems: List[Tuple[int, Problem]] = []
    for value, fact, remedy in parsed.faults:
        for row in np.flatnonzero(table.name_N == value).tolist():
            location = table.locations[row]
            problems.append((row, Problem(NOT_A_NUMBER, location, f"{location}: {fact}", remedy)))
    findings.refuse(*(problem for _, problem in sorted(problems, key=lambda pair: pair[0])))
    for sentence in parsed.sentences:
        log.info("%s: %s", table.locations[0].file, sentence)
    kept = np.flatnonzero(~parsed.is_wrong_R[table.name_N])
    return table.build(parsed.number_R[table.name_N[kept]].astype(np.float32), kept)


def divide_texts(
    dataset: TextDataset,
    name: str,
    train: AnyTexts,
    val: Optional[AnyTexts] = None,
    test: Optional[AnyTexts] = None,
    class_names: Sequence[str] = (),
) -> Splits:
    """Returns the splits of texts that have no single class each. Missing ones are held out of the training texts.

    Args:
        dataset: its settings of splits, folds and the tokenizer are used.
        name: name of the data, for messages.
        train, val, test: texts of files; None = no file.
        class_names: names of the classes; empty if there are none.

    Raises:
        DataError: no texts are left for training or validation.
    """
    division = dataset.division
    groups = fold_groups(dataset, train.locations)
    # There is no single class whose shares the parts should keep.
    parts = division.divide(np.zeros(len(train), np.int32), val is not None, test is not None, groups)
    own_val: Optional[AnyTexts] = division.own_validation(val)  # type: ignore[assignment]  # mypy joins the classes
    if own_val is None:
        own_val = train.take(parts[1].tolist())
    if test is None and len(parts[2]):
        test = train.take(parts[2].tolist())
    train = train.take(parts[0].tolist())
    refuse_empty(name, len(train), len(own_val), dataset.val_fraction)
    training_texts = train.training_texts()
    return TextSplits(
        train,
        own_val,
        test,
        list(class_names),
        build_tokenizer_config=lambda: dataset.tokenizer_config(training_texts),
    )


def fold_groups(dataset: TextDataset, locations: Optional[DataLocations]) -> Optional[np.ndarray]:
    """Returns the group of each text, if folds keep groups together; otherwise None.

    Args:
        dataset: its folds are used.
        locations: source locations of the texts; None = they come from no file.

    Raises:
        DataError: there is no column of groups.
    """
    fold = dataset.division.fold
    if fold is None or fold.groups is None:
        return None
    if locations is None:
        raise DataError(f"{SETTING}={fold.groups}: these texts come from no file with such a column.")
    return read_groups(fold.groups, [locations], dataset.table_form)
