"""Users and films of MovieLens: u.user and u.item (100K), users.dat and movies.dat (1M and 10M), movies.csv (later)."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from mxtrain.data.checking.problems import SHORT_ROW, STRICT, UNREADABLE_ROW, DataLocation, Findings, Problem
from mxtrain.data.loading.dataset_files import exists, read_bytes, refuse_non_text
from mxtrain.data.table.columns import stream_rows
from mxtrain.recommendation.given_features import SET, GivenColumn, GivenFeatures, read_features
from mxtrain.recommendation.rows import read_titles

log = logging.getLogger(__name__)

MAX_BYTES = 1 << 28
_YEAR = re.compile(r".*\(([12][0-9]{3})\)\s*", re.DOTALL)
GENRES = (
    "unknown|Action|Adventure|Animation|Children's|Comedy|Crime|Documentary|Drama|Fantasy|Film-Noir|Horror|Musical|Mystery|"
    "Romance|Sci-Fi|Thriller|War|Western"
).split("|")
"""Genres of the last 19 columns of u.item, in order. Source: u.genre of MovieLens 100K."""
Row = Sequence[str]


class FeatureFile(NamedTuple):
    """A file of users or films.

    Attributes:
        separator: separator of its columns.
        width: number of columns.
        columns: columns of the features.
        cells: function of the columns that returns the cells of the features. Raises a ValueError for a wrong column.
    """

    separator: str
    width: int
    columns: Tuple[GivenColumn, ...]
    cells: Callable[[Row], List[str]]


def _film_cells(title: str, genres: str) -> List[str]:
    year = _YEAR.fullmatch(title)
    return [year[1] if year else "", "" if genres == "(no genres listed)" else genres]


def _old_film_cells(row: Row) -> List[str]:
    for name, flag in zip(GENRES, row[5:]):
        if flag.strip() not in ("0", "1"):
            raise ValueError(f"the column of {name} holds {flag[:40]!r}, and 0 or 1 is needed")
    has = [name for name, flag in zip(GENRES, row[5:]) if flag.strip() == "1"]
    return _film_cells(row[1], "|".join(has))


_FILM = (GivenColumn("year", "number"), GivenColumn("genre", SET, "|"))
_USER = (GivenColumn("gender", "category"), GivenColumn("occupation", "category"), GivenColumn("zip", "hashed"))
FILES: Dict[str, Dict[str, FeatureFile]] = {
    "user": {
        "u.user": FeatureFile("|", 5, (GivenColumn("age", "number"), *_USER), lambda row: list(row[1:5])),
        # Ages are the codes of seven ranges.
        "users.dat": FeatureFile(
            "::", 5, (GivenColumn("age", "category"), *_USER), lambda row: [row[2], row[1], row[3], row[4]]
        ),
    },
    "item": {
        "u.item": FeatureFile("|", 24, _FILM, _old_film_cells),
        "movies.dat": FeatureFile("::", 3, _FILM, lambda row: _film_cells(row[1], row[2])),
        "movies.csv": FeatureFile(",", 3, _FILM, lambda row: _film_cells(row[1], row[2])),
    },
}
"""Files of users and of films by name. Their first column is the id."""
CSV_COLUMNS = ("movieId", "title", "genres")


def movielens_features(folder: Path, side: str, buckets: int, findings: Findings) -> Optional[GivenFeatures]:
    """Returns the features of users or films; None if the folder has no such file.

    Args:
        folder: folder of the ratings.
        side: "user" or "item".
        buckets: number of buckets of hashed columns.
        findings: collects rows that cannot be used.

    Raises:
        DataError: the file cannot be read.
    """
    found = _open(folder, side, findings)
    if found is None:
        return None
    path, file, rows = found
    features = _feature_rows(path, file, rows, findings)
    return read_features(side, str(path), file.columns, features, buckets, findings)


def _feature_rows(
    path: Path, file: FeatureFile, rows: Iterator[Tuple[int, Row]], findings: Findings
) -> Iterator[Tuple[int, str, Row]]:
    """Yields the line, the id and the cells of the features of each row."""
    for number, row in rows:
        try:
            yield number, row[0].strip(), file.cells(row)
        except ValueError as error:
            location = DataLocation(str(path), number)
            problem = Problem(UNREADABLE_ROW, location, f"{location}: {error}.", "Correct or remove the row.")
            findings.refuse(problem)


def film_titles(folder: Path) -> Dict[str, str]:
    """Returns the titles of films by id; empty if the folder has no file of films.

    Raises:
        DataError: the file cannot be read, or a film has two titles.
    """
    found = _open(folder, "item", STRICT)
    if found is None:
        return {}
    path, _, rows = found
    return read_titles(path, ((number, row[:2]) for number, row in rows))


def _open(folder: Path, side: str, findings: Findings) -> Optional[Tuple[Path, FeatureFile, Iterator[Tuple[int, Row]]]]:
    """Returns the file of users or films of a folder, its form, and its numbered rows; None if there is none."""
    for name, file in FILES[side].items():
        path = folder / name
        if exists(path):
            rows = _csv_rows(path, findings) if name.endswith(".csv") else _lines(path, file, findings)
            return path, file, rows
    return None


def _csv_rows(path: Path, findings: Findings) -> Iterator[Tuple[int, Row]]:
    yield from stream_rows(path, CSV_COLUMNS, True, findings=findings)


def _lines(path: Path, file: FeatureFile, findings: Findings) -> Iterator[Tuple[int, Row]]:
    for number, line in enumerate(_decoded(path).split("\n"), start=1):
        row = line.rstrip("\r").split(file.separator)
        if row == [""]:
            continue
        if len(row) != file.width:
            location = DataLocation(str(path), number)
            fact = f"{location}: it has {len(row)} columns between '{file.separator}', and {file.width} are needed."
            findings.refuse(Problem(SHORT_ROW, location, fact, "Correct or remove it."))
            continue
        yield number, row


def _decoded(path: Path) -> str:
    """Returns the text of a file, which is UTF-8, or Latin-1 as GroupLens publishes 100K and 1M."""
    content = read_bytes(path, MAX_BYTES)
    refuse_non_text(path, content[:4])
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        log.info("%s: it is no UTF-8 and read as Latin-1", path)
        return content.decode("latin-1")
