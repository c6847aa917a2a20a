"""Documents and their summaries in tables, or in two text files with a document and its summary per line."""

from __future__ import annotations

from typing import ClassVar, Literal, Optional, Tuple

from mxtrain.data.recognition import Certainty, FileTree, Recognised
from mxtrain.data.table.text_rows import Column
from mxtrain.text.summarization.summaries import SummaryDataset
from mxtrain.text.translation.parallel_text import ParallelText
from mxtrain.types import OpenFraction, Positive

COLUMNS: Tuple[Tuple[str, str], ...] = (
    ("document", "summary"),
    ("article", "highlights"),
    ("article", "summary"),
    ("article", "abstract"),
    ("dialogue", "summary"),
    ("text", "summary"),
)
"""Columns of documents and summaries by which `data guess` recognises such tables: those of XSum, CNN/DailyMail,
arXiv, SAMSum and others."""


class SummaryText(SummaryDataset, ParallelText):
    """Documents and summaries in files.

    A split is a table with a column for each, or two text files with the same prefix, e.g. `cnn/train` for
    `cnn/train.document` and `cnn/train.summary`.
    """

    source: Column = "document"
    """Documents: name of their column in a table, or its number from 0; or the extension of their files."""
    target: Column = "summary"
    """Summaries: column or extension, like `source`."""
    val_fraction: OpenFraction = 0.05
    """Share of the training pairs held out for validation where there are no files of it."""
    batch_tokens: Optional[Positive] = 8192

    folds_by: ClassVar[Literal["", "samples", "columns"]] = "samples"

    @property
    def document_column(self) -> Tuple[Column, bool]:  # type: ignore[override]  # of this dataset's settings
        """Returns the column of documents, and `header`."""
        return self.source, self.header

    @classmethod
    def recognise(cls, files: FileTree) -> Optional[Recognised]:
        """See `Recognising`."""
        tables = files.find(".csv", ".tsv", ".jsonl", ".parquet")
        splits = files.typed_splits(tables, shards=True)
        if not splits:
            return None
        names = set(files.columns(tables[0]))
        for source, target in COLUMNS:
            if {source, target} <= names:
                settings = {**splits, "source": source, "target": target}
                return Recognised("documents with summaries", settings, "summarization", Certainty.LIKELY)
        return None
