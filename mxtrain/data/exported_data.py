"""Facts and arrays of a dataset in an exported folder."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Mapping

if TYPE_CHECKING:
    import numpy as np

    from mxtrain.types.annotations import Json


@dataclass(frozen=True)
class DatasetExport:
    """Facts and arrays of a dataset that the reader of an exported folder needs.

    Attributes:
        reader: module whose `predict` reads samples of files; empty: none, see `Signature.exported_reader`.
        facts: name -> JSON value that the reader needs.
        arrays: name of an .npz file in the folder -> name -> array.
    """

    reader: str
    facts: Mapping[str, Json] = field(default_factory=dict)
    arrays: Mapping[str, Mapping[str, np.ndarray]] = field(default_factory=dict)

    def with_facts(self, facts: Mapping[str, Json]) -> DatasetExport:
        """Returns this export with further facts."""
        return DatasetExport(self.reader, {**self.facts, **facts}, self.arrays)
