"""Criteo's click logs: is an advertisement clicked?

    label, 13 counts and 26 categories (hexadecimal), separated by tabs, without a header; an empty cell is missing.

Source: https://ailab.criteo.com/ressources; the Display Advertising Challenge (dac/train.txt) and the Terabyte logs
(day_0.gz to day_23.gz).
"""

from __future__ import annotations

from typing import ClassVar, Literal, Optional, Sequence, Tuple

from mxtrain.data.features.feature_columns import Kind
from mxtrain.data.features.feature_statistics import ColumnSettings
from mxtrain.data.features.feature_store import FeatureLayout, ReadColumn
from mxtrain.data.loading.text_stream import open_text
from mxtrain.data.recognition import Certainty, FileTree, Recognised
from mxtrain.data.table.cells import number_of
from mxtrain.errors import DataError
from mxtrain.tables.feature_files import FeatureFiles
from mxtrain.types import BatchSize, Positive

COUNTS = tuple(f"I{number}" for number in range(1, 14))
CATEGORIES = tuple(f"C{number}" for number in range(1, 27))
NAMES = (*COUNTS, *CATEGORIES)


class Criteo(FeatureFiles):
    """Criteo's click logs. Counts enter as log(1 + x), standardised; a missing one is the mean, and a further number
    says that it is missing."""

    categories: Literal["hashed", "category"] = "hashed"
    """hashed = each of the 26 columns has `buckets` ids; category = a vocabulary of the values that come min_count
    times, which are counted in memory."""
    buckets: Positive = 100_000
    min_count: Positive = 10
    largest_batch: ClassVar[int] = 2048
    batch_size: BatchSize = "auto"
    """Samples per optimizer step, over all devices and workers together; auto = 2048, or fewer where there are few
    samples."""
    eval_batch_size: Positive = 8192

    @classmethod
    def recognise(cls, files: FileTree) -> Optional[Recognised]:
        """See `Recognising`."""
        names = [name for name in files.names if all(line.count("\t") == 39 for line in files.lines(name, 5) or [""])]
        settings = files.typed_splits(names)
        return (
            Recognised("Criteo's click logs", {"train": settings["train"]}, "tabular", Certainty.SURE)
            if settings
            else None
        )

    def column_settings(self, path: str) -> Sequence[ColumnSettings]:
        counts = [ColumnSettings(name, "count") for name in COUNTS]
        return [*counts, *(ColumnSettings(name, self.categories, self.buckets, self.min_count) for name in CATEGORIES)]

    def layout(self, path: str, columns: Sequence[Tuple[str, Kind]], with_target: bool) -> FeatureLayout:
        """See `FeatureFiles.layout`; files to predict for may have no label, as the challenge's test.txt."""
        begin = 1
        with open_text(path, "\n") as lines:
            cells = next(lines, "").rstrip("\r\n").split("\t")
        # NaN differs from itself: none of these cells is a number.
        if len(cells) >= len(NAMES) and all(cell and number_of(cell) != number_of(cell) for cell in cells[:5]):
            raise DataError(
                f"{path}, line 1 holds names, {', '.join(cells[:3])} ...: Criteo's files have no header. Remove it: "
                "tail -n +2 FILE > NEW."
            )
        if not with_target:
            # Files to predict for may lack the label, and then all columns begin one earlier.
            begin = len(cells) - len(NAMES)
        # Empty cells at the end of a line are missing values, and not further columns.
        is_long = len("\t".join(cells).rstrip("\t").split("\t")) > 1 + len(NAMES)
        if begin not in (0, 1) or is_long or (len(cells) == 1 and cells[0]):
            raise DataError(
                f"{path}, line 1 has {len(cells)} columns; a line of Criteo's has {len(NAMES)}, or {1 + len(NAMES)} "
                "with the label in front, separated by tabs."
            )
        read = tuple(ReadColumn(name, kind, begin + NAMES.index(name)) for name, kind in columns)
        return FeatureLayout(read, 0 if with_target else None, self.class_names(), ("",), False, ".tsv")
