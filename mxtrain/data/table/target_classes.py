"""Finds the classes of a target in the rows of a table.

All rows are read, because the first ones may lack rare classes. If the other values have 90 % of the rows, values with
fewer than five rows are errors that name the line: they may be misspelled. The message never advises to remove rows.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Callable, Dict, Iterable, List, Mapping, Optional, Sequence

from mxtrain.data.corpus.content import contents_of
from mxtrain.data.corpus.preparing import Advance, prepare
from mxtrain.data.corpus.shards import ShardWriter
from mxtrain.data.loading.text_stream import ending_of
from mxtrain.data.table.cells import number_of
from mxtrain.data.table.column_kinds import GUESSED_ROWS, silent_rows
from mxtrain.data.table.columns import classes_in
from mxtrain.errors import DataError, list_override

if TYPE_CHECKING:
    from mxtrain.types.annotations import Json, JsonObject

MAX_NAMED = 6
SHARE_OF_CLASSES = 0.9
"""If frequent values make up this share of the rows, rows with rarer values are errors."""
MIN_ROWS_OF_CLASS = 5
"""Smallest number of rows of a frequent value; a rarer value may be a misspelling."""
MAX_CLASSES = 100
"""Largest number of classes that are taken from the data; a target with more values is probably not a class."""
MAX_VALUES = 10 * MAX_CLASSES
"""Largest number of distinct values that are counted; each class may have several spellings."""
UNKNOWN = -1
"""Label of a row without a known target."""

log = logging.getLogger(__name__)


def find_classes(
    path: str, target: str, missing: Sequence[str], class_names: Optional[Sequence[str]] = None
) -> List[str]:
    """Returns the classes of a target from the rows of a file; logs them if they are not 0 and 1.

    Of two classes, the positive one is last. All rows are read, once for each file: a class may be rare, and the file
    may be sorted by its target.

    Args:
        path: path of the file.
        target: the column.
        missing: texts of missing cells.
        class_names: classes of the description; empty to take them from the data.

    Raises:
        DataError: the target has a single value, too many values, or none of the given ones.
    """
    if class_names is not None:
        _require_known(path, target, _count(path, target, missing, GUESSED_ROWS), class_names)
        return list(class_names)
    return choose_classes(_count_all(path, target, missing), path, f"'{target}'")


def choose_classes(counts: Counter, path: str, target: str) -> List[str]:
    """Returns the classes of a target from the number of rows of each value; logs them if they are not 0 and 1.

    Args:
        counts: number of rows of each value.
        path: path of the file, for messages.
        target: the target, for messages.

    Raises:
        DataError: the target has a single value or too many values.
    """
    if not counts or _share(counts, ("0", "1")) == 1.0:
        return ["0", "1"]
    count_of = _by_class(counts)
    names = _classes_of(count_of)
    total = sum(count_of.values())
    described = ", ".join(f"'{name}' {count_of[name]:,}" for name in names[:MAX_NAMED])
    described += ", ..." if len(names) > MAX_NAMED else ""
    # Fractions are measured, and are no names of classes.
    numbers = [number_of(name) for name in names]
    is_numeric = all(number == number for number in numbers)
    is_measured = is_numeric and any(not float(number).is_integer() for number in numbers)
    if len(names) < 2 or len(names) > MAX_CLASSES or (len(names) > 2 and is_measured):
        few = f"{len(names):,}" if len(counts) <= MAX_VALUES else f"more than {MAX_VALUES:,}"
        raise DataError(
            f"{path}: {target} has {few} value{'s' * (len(names) != 1)}: {_named(names)}. {_advice(names, is_numeric)}"
        )
    if names == ["0", "1"]:
        return names
    if len(names) == 2:
        log.info(
            "%s, by %s: '%s' is the positive class, whose probability is predicted. Type %s for the other class.",
            list_override("dataset.classes", names),
            path,
            names[1],
            list_override("dataset.classes", names[::-1]),
        )
    else:
        log.info("%s: %s has %s classes, by number of rows: %s", path, target, len(names), described)
    if sum(count_of[name] for name in names) < total:
        rare = [name for name in count_of if name not in names]
        log.warning(
            "%s: the values %s of %s have fewer than %s rows each and are not taken for classes.",
            path,
            _named(rare),
            target,
            MIN_ROWS_OF_CLASS,
        )
    return names


def _count(path: str, target: str, missing: Sequence[str], most_rows: Optional[int]) -> Counter:
    """Counts the values of a target in the first rows; all rows if `most_rows` is None, up to too many values."""
    counts: Counter = Counter()
    cells = (cell for _, (text,) in silent_rows(path, [target], missing) if (cell := text.strip()) not in missing)
    for cell in islice(cells, most_rows):
        counts[cell] += 1
        if most_rows is None and len(counts) > MAX_VALUES:
            break
    return counts


def _count_all(path: str, target: str, missing: Sequence[str]) -> Counter:
    """Counts the values of a target, or reads the counts from the cache."""
    settings = [ending_of(path), target, list(missing), *classes_in(path).get(target, [])]
    return count_once(path, settings, lambda: _count(path, target, missing, None))


def count_once(path: str, settings: Sequence[Json], count: Callable[[], Counter]) -> Counter:
    """Returns the number of rows of each value of a target, counted once for each content of a file.

    Args:
        path: path of the file.
        settings: what the counts depend on besides the content.
        count: counts the values.
    """

    def write(writer: ShardWriter, advance: Advance) -> JsonObject:
        return {"counts": list(map(list, count().items()))}

    (content,) = contents_of([path], f"content of {path}")
    cache_key = [content.sha256, *settings]
    prepared = prepare("target_counts", cache_key, {}, write, what=f"classes of {path}", is_shown=False)
    return Counter({text: number for text, number in prepared.facts["counts"]})


def _advice(names: Sequence[str], is_numeric: bool) -> str:
    if len(names) < 2:
        return "There is nothing to tell apart: name another column in dataset.target, or a file with all classes."
    if is_numeric:
        return "Type task=regression to predict a number, or list the values in dataset.classes if they are classes."
    return f"At most {MAX_CLASSES} are taken for classes. List them in dataset.classes if each of them is a class."


def _require_known(path: str, target: str, counts: Counter, class_names: Sequence[str]) -> None:
    """Raises a `DataError` if no row has one of the given classes."""
    if not counts or _share(counts, class_names):
        return
    names = _in_order(list(_by_spelling(counts)))
    advice = f" Type {list_override('dataset.classes', names)}." if len(names) <= MAX_NAMED else ""
    given = " or ".join(f"'{name}'" for name in class_names[:MAX_NAMED])
    raise DataError(
        f"{path}: no row has the target {given}, as dataset.classes says. '{target}' has {_named(names)}.{advice}"
    )


def _share(counts: Counter, names: Sequence[str]) -> float:
    """Returns the share of the rows whose target is one of the names, also if it is spelled otherwise."""
    label_of = {name: number for number, name in enumerate(names)}
    num_known = sum(count for text, count in counts.items() if label_of_text(text, label_of) != UNKNOWN)
    return num_known / max(sum(counts.values()), 1)


def _by_spelling(counts: Counter) -> Dict[str, int]:
    """Returns the number of rows of each value by its most frequent spelling."""
    spellings: Dict[str, str] = {}
    count_of: Dict[str, int] = {}
    for text, count in counts.most_common():
        number = number_of(text)
        name = spellings.setdefault(text.casefold() if number != number else str(number), text)
        count_of[name] = count_of.get(name, 0) + count
    return count_of


def _by_class(counts: Counter) -> Dict[str, int]:
    """Returns the number of rows of each value by its name: 0 and 1 for false and true if these are the classes,
    otherwise the most frequent spelling."""
    count_of = _by_spelling(counts)
    label_of = {"0": 0, "1": 1}
    if {label_of_text(name, label_of) for name in _frequent(count_of)} == {0, 1}:
        merged = {"0": 0, "1": 0}
        for name, count in count_of.items():
            label = label_of_text(name, label_of)
            key = name if label == UNKNOWN else str(label)
            merged[key] = merged.get(key, 0) + count
        return merged
    return count_of


def _frequent(count_of: Mapping[str, int]) -> List[str]:
    """Returns the values that are classes; all of them unless a few are so rare that they may be misspelled."""
    kept = [name for name, count in count_of.items() if count >= MIN_ROWS_OF_CLASS]
    if len(kept) > 1 and sum(count_of[name] for name in kept) >= SHARE_OF_CLASSES * sum(count_of.values()):
        return kept
    return list(count_of)


def _classes_of(count_of: Mapping[str, int]) -> List[str]:
    return _in_order(_frequent(count_of))


def _in_order(names: List[str]) -> List[str]:
    numbers = [number_of(name) for name in names]
    if all(number == number for number in numbers):  # none is a NaN
        return sorted(names, key=number_of)
    return sorted(names, key=str.casefold)


def _named(names: Sequence[str]) -> str:
    listed = ", ".join(f"'{name}'" for name in names[:MAX_NAMED])
    return f"{listed}, ..." if len(names) > MAX_NAMED else listed or "no value"


def named_choices(names: Iterable[str]) -> str:
    """Returns the classes as a part of a sentence: 'a', 'b' and 'c'."""
    quoted = [f"'{name}'" for name in names]
    if len(quoted) > MAX_NAMED:
        return f"{', '.join(quoted[:MAX_NAMED])}, ... ({len(quoted)} in all)"
    return " and ".join([", ".join(quoted[:-1]), *quoted[-1:]] if len(quoted) > 1 else quoted)


def numbered_classes(name: str, classes: Sequence[str]) -> str:
    """Returns a sentence on a column of numbers that stand for classes with names."""
    return f"'{name}' holds numbers of the classes {named_choices(classes)}, which are read as numbers."


def refuse_named_classes(setting: str, path: str, columns: Sequence[str]) -> None:
    """Checks that columns of numbers to predict hold no numbers of classes with names, as Hugging Face's datasets
    writes them.

    Classes whose names are numbers, such as 1 to 5 stars, are allowed: readers take the names.

    Args:
        setting: setting that names the columns, for messages.
        path: path of the table.
        columns: their names.

    Raises:
        DataError: a column holds numbers of classes.
    """
    for name, classes in classes_in(path).items():
        if name in columns and not all(math.isfinite(number_of(text)) for text in classes):
            raise DataError(
                f"{setting}={name}: {path} holds numbers of the classes {named_choices(classes)} there, which measure "
                "nothing. Predict the class with another task, such as task=tabular of a table and "
                "task=classification of texts, or write the column as numbers."
            )


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
