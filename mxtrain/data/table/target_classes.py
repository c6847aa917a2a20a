"""Finds the two classes of a yes/no target in the rows of a table."""

from __future__ import annotations

import logging
from collections import Counter
from itertools import islice
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from mxtrain.data.table.cells import number_of
from mxtrain.data.table.column_kinds import GUESSED_ROWS, silent_rows
from mxtrain.errors import DataError, typed_list

MOST_NAMED = 6
SHARE_OF_CLASSES = 0.9
"""Share of rows that two values must have, so that rows with others are refused one by one."""
UNKNOWN = 255
"""The target of a row whose target is not known."""

log = logging.getLogger(__name__)


def find_classes(
    path: str, target: str, missing: Sequence[str], class_names: Optional[Tuple[str, str]] = None
) -> Tuple[str, str]:  # fmt: skip
    """Returns the classes of a target, the positive one last, from the first rows of a file; logs them if they are not
    0 and 1.

    Args:
        path: path of the file.
        target: the column.
        missing: cells that mean that there is no value.
        class_names: the classes, where the description names them.

    Raises:
        DataError: the target does not have two values, or none of the given ones.
    """
    cells = (cell for _, (text,) in silent_rows(path, [target], missing) if (cell := text.strip()) not in missing)
    counts = Counter(islice(cells, GUESSED_ROWS))
    total = sum(counts.values())

    def share(names: Sequence[str]) -> float:
        label_of = {name: number for number, name in enumerate(names)}
        num_known = sum(count for text, count in counts.items() if label_of_text(text, label_of) != UNKNOWN)
        return num_known / max(total, 1)

    spellings: Dict[str, str] = {}  # of texts that differ in case alone: the most frequent one
    for text, _ in counts.most_common():
        spellings.setdefault(text.casefold(), text)
    if class_names is not None:
        names = list(spellings.values())
        if total and not share(class_names):
            advice = f" Type {typed_list('dataset.classes', _in_order(names))}." if len(names) == 2 else ""
            raise DataError(
                f"{path}: no row has the target '{class_names[0]}' or '{class_names[1]}', as dataset.classes says. "
                f"'{target}' has {_named(names)}.{advice}"
            )
        return class_names
    if not total or share(("0", "1")) >= SHARE_OF_CLASSES:
        return ("0", "1")
    if len(spellings) == 1:  # rows can be sorted by their target
        other = next((cell for cell in cells if cell.casefold() not in spellings), None)
        spellings.update({} if other is None else {other.casefold(): other})
    names = list(spellings.values())
    if len(names) < 2 or (len(names) > 2 and share(names[:2]) < SHARE_OF_CLASSES):
        numeric = all(number_of(name) == number_of(name) for name in names)
        advice = " A number is predicted by task=regression dataset=number_table." if numeric and len(names) > 2 else ""
        raise DataError(
            f"{path}: '{target}' has {len(names)} value{'s' * (len(names) != 1)} in the first rows: "
            f"{_named(_in_order(names))}. A target has two: name them by dataset.classes=[NO,YES], and remove rows "
            f"with others.{advice}"
        )
    names = _in_order(names[:2])
    log.info(
        "%s, by the first rows of %s: '%s' is the positive class, whose probability is predicted. Type %s for the "
        "other one.", typed_list("dataset.classes", names), path, names[1], typed_list("dataset.classes", names[::-1]),
    )  # fmt: skip
    return (names[0], names[1])


def _in_order(names: List[str]) -> List[str]:
    numbers = [number_of(name) for name in names]
    if all(number == number for number in numbers):  # none is a NaN
        return sorted(names, key=number_of)
    return sorted(names, key=str.casefold)


def _named(names: Sequence[str]) -> str:
    listed = ", ".join(f"'{name}'" for name in names[:MOST_NAMED])
    return f"{listed}, ..." if len(names) > MOST_NAMED else listed or "no value"


def label_of_text(text: str, label_of: Mapping[str, int]) -> int:
    """Returns the target that is the same otherwise written: Yes for yes, 1.0 for 1; and true for 1, or 1 for true,
    where the other is 0 or false. `UNKNOWN` for another text."""
    value_of = _truth_of if {_truth_of(name) for name in label_of} == {0.0, 1.0} else number_of
    value, folded = value_of(text), text.casefold()
    for name, label in label_of.items():
        if text == name:
            return label
    matching = [label for name, label in label_of.items() if name.casefold() == folded or value_of(name) == value]
    return matching[0] if len(matching) == 1 else UNKNOWN


def _truth_of(text: str) -> float:
    """Converts a cell: 0 for false, 1 for true, in any case; else its number."""
    return {"false": 0.0, "true": 1.0}.get(text.lower(), number_of(text))
