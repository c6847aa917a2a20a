"""The files of a folder, by which datasets recognise their own format for `data guess`; see `Recognising`."""

from __future__ import annotations

import csv
import functools
import itertools
import json
import os
import shlex
import zlib
from collections import Counter
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any, Dict, Iterable, List, Mapping, Optional, Protocol, Sequence, Set, Tuple, Union

from mxtrain.data.checking.problems import Findings, Problem
from mxtrain.data.loading.dataset_files import GZIP_MAGIC, open_regular, prefix_length, require_exists, walk
from mxtrain.data.loading.file_patterns import shard_pattern
from mxtrain.data.loading.split_folders import WORDS, parse_name
from mxtrain.data.table.cell_text import text_of
from mxtrain.errors import ConfigError, DataError, list_override, path_override
from mxtrain.files.json_text import JsonTextError, parse_json
from mxtrain.files.text_lines import split_lines
from mxtrain.files.text_numbers import parse_finite

HEAD_BYTES = 1 << 16
"""Bytes of the beginning of a file that are read to recognise its format."""
MAX_READ = 1000
"""Number of files of an extension whose beginnings are read: the ones nearest to the root. Others count as empty."""
MAX_JSON_BYTES = 64 << 20
"""Largest JSON file that is read as a whole to recognise its format."""
MAX_ROWS = 100
"""Number of the first lines, or rows of Parquet, that are looked at."""
MAX_CLASS_NUMBERS = 20
"""Largest number of distinct whole numbers in the first rows of a column that seem to be numbers of classes."""
VOLUMES = (".nii", ".nii.gz")
IMAGES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".dcm", *VOLUMES)
Setting = Union[str, int, bool, Sequence[str]]


class Certainty:
    """Certainty that files have a format. The guess with the highest certainty is listed first."""

    MAY_BE = 1
    """Such files may be of this format or of another one, e.g. a CSV file."""
    LIKELY = 2
    """Contents or names are those of the format."""
    SURE = 3
    """Files have marks of the format that others do not have."""


@dataclass(frozen=True)
class Recognised:
    """The way in which a dataset reads some files.

    Attributes:
        form: the format, e.g. "PASCAL VOC's XML files with boxes".
        settings: settings of the dataset, e.g. {"root": "pets"}; paths are relative to the current folder.
        task: option of conf/task; empty: the task that the dataset chooses.
        certainty: one of `Certainty`.
        asks: settings that only the user knows, with a placeholder in capitals, e.g. ("dataset.target=COLUMN",).
        remark: a sentence, such as the values that a placeholder can have.
        counts: numbers that are known without opening the dataset, e.g. {"rows": 100}.
        is_quick: False if opening takes long, as where a vocabulary is learned; `data guess` then opens nothing.
    """

    form: str
    settings: Mapping[str, Setting] = field(default_factory=dict)
    task: str = ""
    certainty: int = Certainty.LIKELY
    asks: Sequence[str] = ()
    remark: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)
    is_quick: bool = True

    def overrides(self, option: str) -> List[str]:
        """Returns the overrides of the command line, quoted for the shell, without values that the user must complete.

        Args:
            option: option of conf/dataset.
        """
        words = [f"task={self.task}"] if self.task else []
        return [*words, f"dataset={option}", *(_override(name, value) for name, value in self.settings.items())]


def _override(name: str, value: Setting) -> str:
    """Returns `dataset.name=value`."""
    setting = f"dataset.{name}"
    if isinstance(value, str):
        return path_override(setting, value) if value != "null" else f"{setting}=null"
    if isinstance(value, (bool, int)):
        return f"{setting}={str(value).lower()}"
    return list_override(setting, value)


def unquoted(overrides: Iterable[str]) -> List[str]:
    """Returns overrides as a program receives them from the shell."""
    return [word for override in overrides for word in shlex.split(override)]


class _SkippedPlaces(Findings):
    """Ignores names that lead to no regular file: they belong to no dataset."""

    def refuse(self, *problems: Problem, sentence: str = "") -> None:
        """See `Findings`."""


class FileTree:
    """All files of a folder and below, or one file. Listed once, and then asked by every dataset."""

    def __init__(self, path: Union[str, Path]) -> None:
        """Lists the files.

        Raises:
            DataError: the path does not exist, or cannot be read.
        """
        require_exists(path)
        self.path = "./" if str(path) == "." else str(path)
        """The path as typed."""
        self.is_file = not Path(path).is_dir()
        self.root = Path(path).parent if self.is_file else Path(path)
        start = prefix_length(self.root)
        listed = [] if self.is_file else [str(each) for each, _ in walk(self.root, ("",), findings=_SkippedPlaces())]
        self.names: Sequence[str] = [Path(path).name] if self.is_file else [name[start:] for name in listed]
        """Paths relative to `root`, sorted."""
        self.endings = Counter(ending_of(name) for name in self.names)
        """Number of files of each extension, in lower case."""
        self._texts: Dict[str, str] = {}

    @functools.cached_property
    def _known(self) -> Set[str]:
        return {*self.names, *self.folders}

    @functools.cached_property
    def _readable(self) -> Set[str]:
        by_ending: Dict[str, List[str]] = {}
        for name in self.names:
            by_ending.setdefault(ending_of(name), []).append(name)
        return {
            name for names in by_ending.values() for name in sorted(names, key=lambda name: name.count("/"))[:MAX_READ]
        }

    @functools.cached_property
    def folders(self) -> Set[str]:
        """Returns the relative paths of all folders with a file in them or below."""
        return {str(parent) for name in self.names for parent in PurePosixPath(name).parents if str(parent) != "."}

    @functools.cached_property
    def top(self) -> Set[str]:
        """Returns the names of files and folders in the root."""
        return {name.partition("/")[0] for name in self.names}

    def has(self, *names: str) -> bool:
        """Returns True if all these files or folders exist, by relative path."""
        return all(name in self._known for name in names)

    def find(self, *endings: str, below: str = "") -> List[str]:
        """Returns the files with one of these endings of names, in lower case, e.g. ".json" or "_mask.png"."""
        return [name for name in self.names if name.lower().endswith(endings) and name.startswith(below)]

    def named(self, name: str) -> List[str]:
        """Returns the files with a name, in any folder."""
        return [each for each in self.names if each.rpartition("/")[2] == name]

    @functools.cached_property
    def images(self) -> List[str]:
        """Returns the image files."""
        return self.find(*IMAGES)

    def typed(self, name: str = "") -> str:
        """Returns a file or folder as it is typed; by default the root, or the file that is all there is."""
        if self.is_file:
            return self.path
        return os.path.join(self.path, name) if name else self.path

    @property
    def folder(self) -> str:
        """Returns the folder as it is typed, also if there is one file only."""
        return str(self.root) if self.is_file else self.path

    def text(self, name: str) -> str:
        """Returns the beginning of a text file, which may be packed by gzip; empty if it cannot be read or is no text,
        or if there are `MAX_READ` files of its extension nearer to the root."""
        if name not in self._readable:
            return ""
        if name not in self._texts:
            try:
                with open_regular(self.root / name) as (file, _):
                    content = file.read(HEAD_BYTES)
                if content[:2] == GZIP_MAGIC:
                    content = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(content, HEAD_BYTES)
                self._texts[name] = "" if b"\0" in content else content.decode("utf-8-sig", "replace")
            except (DataError, zlib.error):
                self._texts[name] = ""
        return self._texts[name]

    def lines(self, name: str, count: int = MAX_ROWS) -> List[str]:
        """Returns the first lines of a text file that are not blank; the last one may be cut off."""
        return [line for line in split_lines(self.text(name)) if line.strip()][:count]

    def json(self, name: str) -> Any:
        """Returns the value in a JSON file, or of the first line of a `.jsonl` file; None if it is too large or no
        JSON."""
        if name.lower().endswith((".jsonl", ".ndjson")):
            lines = self.lines(name, 1)
            return _parsed(lines[0]) if lines else None
        try:
            with open_regular(self.root / name) as (file, size):
                return _parsed(file.read()) if size <= MAX_JSON_BYTES else None
        except DataError:
            return None

    def columns(self, name: str) -> List[str]:
        """Returns the names in the first row of a table in CSV or TSV, the keys of the first JSON line, or the columns
        of Parquet; empty if it has no such row, or pyarrow is not installed."""
        if name not in self._readable:
            return []
        if name.lower().endswith(".parquet"):
            from mxtrain.data.table.columns import names_of_columns

            try:
                return names_of_columns(self.root / name)
            except (DataError, ConfigError):
                return []
        if name.lower().endswith(".jsonl"):
            row = self.json(name)
            return list(row) if isinstance(row, dict) else []
        lines = self.lines(name, 1)
        separator = "\t" if name.lower().endswith(".tsv") else max(",;\t|", key=(lines or [""])[0].count)
        return [cell.strip(' "\r\n') for cell in lines[0].split(separator)] if lines else []

    def cells(self, name: str, column: str) -> List[str]:
        """Returns the first cells of a column of a table in CSV, TSV or JSON lines, with a header or keys, or of
        Parquet; empty for other files."""
        if name.lower().endswith(".parquet"):
            return [cell for (cell,) in self._parquet_rows(name, [column])]
        if name.lower().endswith(".jsonl"):
            rows = [_parsed(line) for line in self.lines(name)[:-1] or self.lines(name)]
            return [str(row[column]) for row in rows if isinstance(row, dict) and column in row]
        if column not in self.columns(name):
            return []
        index, separator = self.columns(name).index(column), "\t" if name.lower().endswith(".tsv") else ","
        try:
            rows = list(csv.reader(self.lines(name), delimiter=separator))[1:]
        except csv.Error:
            return []
        return [row[index].strip() for row in rows if len(row) > index]

    def first_row(self, name: str) -> Dict[str, str]:
        """Returns the cells of the first row of a table by name of the column, as in `cells`; empty if it has none."""
        names, ending = self.columns(name), ending_of(name)
        if ending == ".parquet":
            return next((dict(zip(names, row)) for row in self._parquet_rows(name, names)), {})
        if ending == ".jsonl":
            row = self.json(name)
            cells = {key: text_of(value) for key, value in row.items()} if isinstance(row, dict) else {}
            return {key: cell for key, cell in cells.items() if isinstance(cell, str)}
        parts = next(csv.reader(self.lines(name, 2)[1:], delimiter="\t" if ending == ".tsv" else ","), [])
        return dict(zip(names, parts)) if len(parts) == len(names) else {}

    def _parquet_rows(self, name: str, columns: Sequence[str]) -> List[Sequence[str]]:
        from mxtrain.data.table.columns import stream_rows

        try:
            rows = itertools.islice(stream_rows(self.root / name, columns, True, null=""), MAX_ROWS)
            return [[str(cell) for cell in row] for _, row in rows]
        except (DataError, ConfigError):  # as where pyarrow is not installed, or cells are lists
            return []

    def holds_numbers(self, name: str, column: str) -> bool:
        """Returns True if the first cells of a column of a table seem to be measured, and not to number classes."""
        numbers = [parse_finite(cell) for cell in self.cells(name, column)]
        if not numbers or None in numbers:
            return False
        are_whole = all(number == int(number) for number in numbers if number is not None)
        return not are_whole or len(set(numbers)) > MAX_CLASS_NUMBERS

    def holds_flags(self, name: str, column: str) -> bool:
        """Returns True if the first cells of a column of a table are all 0 or 1."""
        cells = self.cells(name, column)
        return bool(cells) and {*cells} <= {"0", "1"}

    def holds_lists(self, name: str, column: str) -> bool:
        """Returns True if some of the first cells of a column of JSON lines or Parquet are lists."""
        from mxtrain.data.table.columns import LIST_SEPARATOR, ListColumn, stream_rows

        if name not in self._readable or ending_of(name) not in (".jsonl", ".parquet"):
            return False
        try:
            rows = stream_rows(self.root / name, [ListColumn(column)], True, True, null="", names_classes=True)
            return any(cell.startswith(LIST_SEPARATOR) for _, (cell,) in itertools.islice(rows, MAX_ROWS))
        except (DataError, ConfigError):  # as where pyarrow is not installed, or a line is damaged
            return False

    def by_split(self, names: Sequence[str], shards: bool = False) -> Dict[str, str]:
        """Returns split -> file, by the names of files such as train.jsonl and dev.jsonl. A file alone is that of the
        training split; several of which none is are none.

        Args:
            names: relative paths.
            shards: True if the dataset reads patterns; train-*-of-00002.jsonl then stands for both shards.
        """
        splits: Dict[str, str] = {}
        for name in names:
            stem, file = (shard_pattern(name) if shards else None) or (name, name)
            parsed = parse_name(PurePosixPath(stem).name.partition(".")[0])
            if parsed is not None:
                splits.setdefault(parsed[1], file)
        if len(names) == 1:
            return {"train": names[0]}
        return {split: splits[split] for split in WORDS if split in splits} if "train" in splits else {}

    def typed_splits(self, names: Sequence[str], shards: bool = False) -> Dict[str, str]:
        """Returns the settings `train`, `val` and `test` with the files of `by_split` as they are typed."""
        return {split: self.typed(name) for split, name in self.by_split(names, shards).items()}

    def first_of(self, pattern: str) -> str:
        """Returns the first file of a pattern of `by_split`; a file is itself."""
        return next((name for name in self.names if fnmatchcase(name, pattern)), pattern)


def ending_of(name: str) -> str:
    """Returns the extension of a file's name in lower case, with the dot; empty if it has none."""
    return PurePosixPath(name).suffix.lower()


def _parsed(content: Union[str, bytes]) -> Any:
    try:
        return parse_json(content, allow_nan=True)
    except (JsonTextError, json.JSONDecodeError):
        return None


def best_first(guesses: Mapping[str, Recognised]) -> List[Tuple[str, Recognised]]:
    """Returns (option, guess) pairs by decreasing certainty, then by name."""
    return sorted(guesses.items(), key=lambda pair: (-pair[1].certainty, pair[0]))


class Recognising(Protocol):
    """A dataset that recognises its own files. Its class has this method itself: a subclass reads another format."""

    @classmethod
    def recognise(cls, files: FileTree) -> Optional[Recognised]:
        """Returns how this dataset reads some files; None if they are not of its format. It looks at names and at the
        beginning of few files.

        Args:
            files: the files of a folder, or one file.
        """


def recognise_all(classes: Mapping[str, type], files: FileTree) -> Dict[str, Recognised]:
    """Asks each dataset whether files are of its format.

    Args:
        classes: class of each option of conf/dataset.
        files: the files.
    """
    found: Dict[str, Optional[Recognised]] = {
        option: kind.recognise(files)  # type: ignore[attr-defined]  # see `Recognising`
        for option, kind in classes.items()
        if "recognise" in vars(kind)
    }
    return {option: guess for option, guess in found.items() if guess is not None}
