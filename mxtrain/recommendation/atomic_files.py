"""RecBole's atomic files: NAME.inter with interactions, and perhaps NAME.user and NAME.item with features."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from mxtrain.data.checking.problems import SHORT_ROW, STRICT, DataLocation, Findings, Problem
from mxtrain.data.loading.dataset_files import exists, suggest_existing
from mxtrain.data.loading.text_stream import open_text
from mxtrain.data.recognition import Certainty, FileTree, Recognised
from mxtrain.errors import DataError, did_you_mean
from mxtrain.recommendation.base import InteractionDataset
from mxtrain.recommendation.given_features import SET, GivenColumn, GivenFeatures, read_features
from mxtrain.recommendation.interaction_cache import cached_interactions
from mxtrain.recommendation.rows import Columns, read_pairs, read_titles
from mxtrain.recommendation.source import InteractionRows
from mxtrain.types import PathText

INTERACTIONS = ".inter"
KINDS = {"token": "category", "float": "number", "token_seq": SET, "float_seq": ""}
"""Kind of a feature by the type of its field; lists of numbers are left out."""


class AtomicFiles(InteractionDataset):
    """RecBole's atomic files, whose first line names fields with their types, such as `user_id:token`."""

    root: PathText = "data/recbole"
    """The folder with a .inter file, or that file."""
    user: str = "user_id"
    """Field of the users."""
    item: str = "item_id"
    """Field of the items."""
    rating: str = "rating"
    """Field of the ratings; there need be none."""
    timestamp: str = "timestamp"
    """Field of the times; there need be none."""
    min_rating: Optional[float] = None
    """Minimum rating; lower ratings are ignored; null = all rows count."""
    title: Optional[str] = None
    """Field of the .item file with the titles of items, which predictions repeat; null = the one whose name ends with
    title, if there is one."""
    features: bool = False
    """If true, the .user and .item files of the same name are read, for networks for features
    (model=factorization_machine, wide_deep, deepfm)."""

    @classmethod
    def recognise(cls, files: FileTree) -> Optional[Recognised]:
        """See `Recognising`."""
        names = files.find(INTERACTIONS)
        if len(names) != 1:
            return None
        return Recognised("RecBole's atomic files", {"root": files.typed(names[0])}, "recommendation", Certainty.SURE)

    @property
    def data_name(self) -> str:
        return f"dataset.root={self.root}"

    @property
    def feature_setting(self) -> str:
        """See `InteractionDataset.feature_setting`."""
        return "features" if self.features else ""

    @property
    def missing_order(self) -> str:
        """See `InteractionDataset.missing_order`."""
        return ""  # known when the file is read

    def read(self, findings: Findings) -> InteractionRows:
        """See `InteractionDataset.read`."""
        path = self._file()
        fields = read_fields(path)
        for setting, name in (("user", self.user), ("item", self.item)):
            if name not in fields:
                raise DataError(
                    f"dataset.{setting}={name}: {path} has no such field.{did_you_mean(name, list(fields))} Its fields "
                    f"are {', '.join(fields)}."
                )
        has_rating, has_time = self.rating in fields, self.timestamp in fields
        needed = [self.rating] * (self.feedback == "explicit" or self.min_rating is not None)
        needed += [self.timestamp] * self._is_ordered
        for name in needed:
            if name not in fields:
                raise DataError(f"{path}: it lacks the field '{name}' that this run needs. It has {', '.join(fields)}.")
        names = [self.user, self.item, *[self.rating] * has_rating, *[self.timestamp] * has_time]
        positions = [list(fields).index(name) for name in names]
        columns = Columns(has_rating, has_time, self.min_rating)

        def read() -> InteractionRows:
            rows = ((number, [cells[place] for place in positions]) for number, cells in read_rows(path, findings))
            return read_pairs(path, rows, columns, findings)

        return cached_interactions(path, ["atomic", *positions], columns, read, findings)

    def side_file(self, side: str) -> Optional[GivenFeatures]:
        """See `InteractionDataset.side_file`."""
        path = self._file().with_suffix(f".{side}")
        if not self.features or not exists(path):
            return None
        fields, id_ = read_fields(path), self.user if side == "user" else self.item
        if id_ not in fields:
            raise DataError(f"{path}: it has no field '{id_}'. Its fields are {', '.join(fields)}.")
        names, own = list(fields), list(fields).index(id_)
        kept = [place for place, name in enumerate(names) if place != own and KINDS[fields[name]]]
        rows = (
            (number, cells[own].strip(), [cells[place] for place in kept]) for number, cells in read_rows(path, STRICT)
        )
        columns = [GivenColumn(names[place], KINDS[fields[names[place]]]) for place in kept]
        return read_features(side, str(path), columns, rows, 1, STRICT)

    def item_titles(self) -> Mapping[str, str]:
        """See `InteractionDataset.item_titles`."""
        path = self._file().with_suffix(".item")
        if not exists(path):
            if self.title is None:
                return {}
            raise DataError(f"dataset.title={self.title}: there is no file {path} with the titles of items.")
        fields = list(read_fields(path))
        titles = [name for name in fields if name == self.title or self.title is None and name.endswith("title")]
        if self.title is not None and not titles:
            raise DataError(
                f"dataset.title={self.title}: {path} has no such field.{did_you_mean(self.title, fields)} Its fields "
                f"are {', '.join(fields)}."
            )
        if self.title is not None and self.item not in fields:
            raise DataError(
                f"dataset.title={self.title}: {path} has no field '{self.item}' with the ids of items."
                f"{did_you_mean(self.item, fields)} Its fields are {', '.join(fields)}."
            )
        if not titles or self.item not in fields:
            return {}
        own, title = fields.index(self.item), fields.index(titles[0])
        return read_titles(path, ((number, (cells[own], cells[title])) for number, cells in read_rows(path, STRICT)))

    def for_file(self, path: str) -> Optional[InteractionDataset]:
        """See `InteractionDataset.for_file`."""
        return self.model_copy(update={"root": path}) if path.endswith(INTERACTIONS) else None

    def _file(self) -> Path:
        root = Path(self.root)
        if root.suffix == INTERACTIONS:
            if exists(root):
                return root
            raise DataError(f"{self.data_name}: there is no such file.{suggest_existing(root)}")
        if not exists(root):
            raise DataError(f"{self.data_name}: there is no such folder.{suggest_existing(root)}")
        files = sorted(root.glob(f"*{INTERACTIONS}"))
        if len(files) != 1:
            found = ", ".join(file.name for file in files[:5]) or "none"
            raise DataError(f"{self.data_name}: one {INTERACTIONS} file is needed, not {found}. Name the file.")
        return files[0]


def read_fields(path: Path) -> Dict[str, str]:
    """Returns the types of the fields of an atomic file by name, in order.

    Raises:
        DataError: the first line does not name fields with their types.
    """
    with open_text(path, "\n") as lines:
        header = next(iter(lines), "").rstrip("\r\n")
    fields: Dict[str, str] = {}
    for cell in header.split("\t"):
        name, _, kind = cell.rpartition(":")
        if not name or kind not in KINDS:
            types = ", ".join(KINDS)
            raise DataError(f"{path}, line 1: '{cell:.100}' is no NAME:TYPE, such as user_id:token. Types are {types}.")
        if name in fields:
            raise DataError(f"{path}, line 1: the field '{name:.100}' is there twice.")
        fields[name] = kind
    return fields


def read_rows(path: Path, findings: Findings) -> Iterator[Tuple[int, List[str]]]:
    """Yields the number of each line after the first one, and its cells.

    Args:
        path: path of the file.
        findings: collects lines that have another number of cells than the first one.
    """
    with open_text(path, "\n", findings) as lines:
        numbered = enumerate(lines, start=1)
        width = sum(len(line.rstrip("\r\n").split("\t")) for _, line in islice(numbered, 1))
        for number, line in numbered:
            cells: Sequence[str] = line.rstrip("\r\n").split("\t")
            if list(cells) == [""]:
                continue
            if len(cells) != width:
                location = DataLocation(str(path), number)
                fact = f"{location}: it has {len(cells)} columns between tabs, and {width} are needed."
                findings.refuse(Problem(SHORT_ROW, location, fact, "Correct or remove it."))
                continue
            yield number, list(cells)
