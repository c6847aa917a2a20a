"""Default data: Python files as users, the names that they import as items.

The files are those of CPython 3.11.7 and of 25 packages that mxtrain needs; LICENSES.txt lists their versions.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
import pydantic
from typing_extensions import Annotated

from mxtrain.data.checking.problems import DataLocations, Findings
from mxtrain.files.bundled import read_bundled
from mxtrain.recommendation.base import InteractionDataset
from mxtrain.recommendation.catalog import Catalog
from mxtrain.recommendation.kinds import UserHistories
from mxtrain.recommendation.source import InteractionRows, filter_by_count
from mxtrain.types import BatchSize, Positive
from mxtrain.types.kinds import Gives, Preference

FILE = "recommendation/imported_names.json.gz"


class ImportedNames(InteractionDataset):
    """Files of Python's standard library and of 25 packages, and the names that they import."""

    gives: ClassVar[Gives] = Gives(UserHistories, Preference)

    feedback: Literal["implicit"] = "implicit"
    """Imports have no ratings."""
    negatives: Annotated[int, pydantic.Field(ge=1, le=999)] = 16
    batch_size: BatchSize = 256
    """Interactions per optimizer step, over all devices and workers together; their negatives come on top."""
    min_user_items: Positive = 5
    """Minimum number of imported names; files with fewer are left out."""
    min_item_users: Positive = 5
    """Minimum number of files that import a name; other names are left out."""

    @property
    def data_name(self) -> str:
        return "dataset=imported_names"

    def read(self, findings: Findings) -> InteractionRows:
        """See `InteractionDataset.read`."""
        names_of = {file: names.split(" ") if names else [] for file, names in read_bundled(FILE).items()}
        files = list(names_of)
        names = sorted({name for imported in names_of.values() for name in imported})
        number_of = {name: number for number, name in enumerate(names)}
        user_P = np.repeat(np.arange(len(files)), [len(names_of[file]) for file in files])
        item_P = np.array([number_of[name] for file in files for name in names_of[file]], np.int64)
        locations = DataLocations(files, np.zeros(len(user_P), np.int64), user_P, are_records=True)
        catalog = Catalog(tuple(files), tuple(names))
        pairs = InteractionRows(catalog, user_P, item_P, np.ones(len(user_P), np.float32), None, locations)
        return filter_by_count(pairs, self.min_user_items, self.min_item_users)
