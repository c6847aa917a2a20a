"""Words and tags as two lists of each row: JSON lines and Parquet, as Hugging Face has token classification."""

from __future__ import annotations

from typing import Any, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Union

from mxtrain.data.checking.problems import EMPTY_TEXT, STRICT, UNREADABLE_ROW, Findings, Problem
from mxtrain.data.loading.text_stream import ending_of
from mxtrain.data.table.columns import PARQUET, location_of, names_of_columns, stream_objects, why_no_text
from mxtrain.errors import DataError, did_you_mean
from mxtrain.text.token_classification.conll_file import TaggedWords

_ROWS = (".jsonl", PARQUET)
_WORDS = ("tokens", "words")
_TAGS = ("tags", "labels")
"""Usual names of columns; also behind another word, as in ner_tags."""
_ANY = (0, -1)
"""Columns by number that are the defaults of the settings, and stand for the usual names."""


class ListColumns(NamedTuple):
    """Columns of lists.

    Attributes:
        word: column of the words; a number = the one with a usual name.
        tag: column of the tags, likewise; None = only words are read.
    """

    word: Union[int, str] = 0
    tag: Union[None, int, str] = -1


def has_rows(path: str) -> bool:
    """Returns True if a file has a row for each sentence, by its extension."""
    return ending_of(path) in _ROWS


def has_lists(names: Sequence[str]) -> bool:
    """Returns True if a table has columns with usual names for words and tags."""
    return bool(_usual(names, _WORDS)) and bool(tag_columns(names))


def tag_columns(names: Sequence[str]) -> List[str]:
    """Returns the columns with usual names for tags."""
    return _usual(names, _TAGS)


def _usual(names: Sequence[str], usual: Sequence[str]) -> List[str]:
    return [name for name in names if name in usual or name.endswith(tuple(f"_{end}" for end in usual))]


def read_tagged_rows(path: str, columns: ListColumns, findings: Findings = STRICT) -> TaggedWords:
    """Returns the sentences of a file with a row each; `lines` are numbers of rows as in `stream_rows`.

    Raises:
        DataError: it cannot be read, or does not say which columns have words and tags.
    """
    chosen = [str(column) for column in choose_columns(path, columns) if column is not None]
    words = TaggedWords()
    for number, row in stream_objects(path, chosen, findings):
        problems = list(_problems(path, number, chosen, row))
        findings.refuse(*problems)
        if problems:
            continue
        if not row[chosen[0]]:
            location = location_of(path, number)
            findings.remark(Problem(EMPTY_TEXT, location, f"{location} holds no words, and is left out."))
            continue
        words.sentences.append(row[chosen[0]])
        words.tags.append(row[chosen[1]] if columns.tag is not None else [])
        words.lines.append([number] * len(row[chosen[0]]))
        words.files.append(path)
    return words


def choose_columns(path: str, columns: ListColumns) -> ListColumns:
    """Returns the names of columns of a file.

    Raises:
        DataError: it cannot be read, or does not say which columns have words and tags.
    """
    names = [name for name in names_of_columns(path) if "." not in name]
    word = _choose(path, "word", columns.word, names, _WORDS)
    return ListColumns(word, None if columns.tag is None else _choose(path, "tag", columns.tag, names, _TAGS))


def _choose(path: str, setting: str, given: Union[int, str], names: Sequence[str], usual: Sequence[str]) -> str:
    """Returns the column of a setting, or the only one with a usual name."""
    listed = f"Columns: {', '.join(names)}."
    if isinstance(given, str) or given not in _ANY:
        if given in names:
            return str(given)
        raise DataError(
            f"dataset.{setting}={given}: {path} has no such column.{did_you_mean(str(given), names)} {listed}"
        )
    found = _usual(names, usual)
    if len(found) == 1:
        return found[0]
    fact = f"{' and '.join(found)} may be that of the {setting}s" if found else f"none is called {' or '.join(usual)}"
    raise DataError(f"{path}: {fact}. Type dataset.{setting}=NAME. {listed}")


def _problems(path: str, number: int, columns: Sequence[str], row: Mapping[str, Any]) -> Iterator[Problem]:
    """Yields the first problem of a row whose columns are not equally long lists of texts."""
    location = location_of(path, number)
    reason: Optional[str] = None
    for column in columns:
        values = row.get(column)
        if not isinstance(values, list):
            reason = f"'{column}' is no list of texts" if column in row else f"there is no '{column}'"
            break
        wrong = next((value for value in values if why_no_text(value)), None)
        if wrong is not None or None in values:
            advice = "; write the name of each tag" if isinstance(wrong, int) else ""
            reason = f"'{column}' holds {wrong!r:.40}, which is no text{advice}"
            break
        if not all(map(str.strip, values)):
            reason = f"'{column}' holds an empty text"
            break
    if reason is None and len(columns) > 1 and len(row[columns[0]]) != len(row[columns[1]]):
        reason = f"it has {len(row[columns[0]])} words and {len(row[columns[1]])} tags"
    if reason is not None:
        yield Problem(UNREADABLE_ROW, location, f"{location}: {reason}.")
