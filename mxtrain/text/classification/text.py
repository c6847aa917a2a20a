"""Text datasets: labelled texts or pairs of texts, and plain text for masked language modeling."""

from __future__ import annotations

from functools import partial
from typing import ClassVar, List, Literal, Optional, Sequence, Tuple, Union

import numpy as np
import pydantic

from mxtrain.data.checking.problems import DataLocation, Findings, NoUsableSamples, call_or_report
from mxtrain.data.loading.dataset_files import refuse_shared
from mxtrain.data.loading.randomness import Draw, bits
from mxtrain.data.loading.splitting import count_held_out, refuse_empty
from mxtrain.data.loading.text_stream import ending_of
from mxtrain.data.recognition import Certainty, FileTree, Recognised
from mxtrain.data.spec import Splits
from mxtrain.data.table.columns import names_of_columns, require_column
from mxtrain.data.table.text_rows import Column
from mxtrain.errors import DataError
from mxtrain.text.base import TextDataset
from mxtrain.text.kinds import MaskedTokens, Texts
from mxtrain.text.signature import TextSplits
from mxtrain.text.sources import PlainTexts
from mxtrain.text.stored_sources import StoredDocuments
from mxtrain.text.text_files import (
    TextTable,
    list_text_files,
    read_documents,
    read_table,
    table_in_memory,
)
from mxtrain.text.translation import reference_text
from mxtrain.types import BatchSize, OpenFraction, PathText, ProperFraction
from mxtrain.types.kinds import Gives

AnyDocuments = Union[PlainTexts, StoredDocuments]
TEXT_ENDINGS = (".txt", ".txt.gz")
"""Extensions of the files that are read from a folder."""

_TEXT_COLUMNS = {"sentence", "text", "review", "comment", "sentence1", "content"}
"""Names of columns by which `data guess` recognises a table of texts."""


class Text(TextDataset):
    """Classification of texts or pairs of texts: from files, or passages of Python's language reference by chapter."""

    folds_by: ClassVar[Literal["", "samples", "columns"]] = "columns"

    has_text_columns: ClassVar[bool] = True

    train: Optional[PathText] = None
    """File of training texts: .tsv, .csv or .jsonl; null = passages of Python's language reference, by chapter."""
    val: Optional[PathText] = None
    """File of validation texts; null = val_fraction of the training texts."""
    test: Optional[PathText] = None
    """File of test texts; null = test_fraction of the training texts."""
    sentence: Column = "sentence"
    """Column of the text: its name, or its number from 0."""
    sentence2: Optional[Column] = None
    """Column of the second text, to classify pairs of texts."""
    label: Column = "label"
    """Column of the class."""
    header: bool = True
    """If true, the first row of a TSV or CSV file names the columns."""
    test_fraction: OpenFraction = 0.15
    """Share of the training samples held out for testing where there is no file of them."""

    @classmethod
    def recognise(cls, files: FileTree) -> Optional[Recognised]:
        """See `Recognising`."""
        tables = [name for name in files.find(".csv", ".tsv", ".jsonl") if _TEXT_COLUMNS & set(files.columns(name))]
        settings = files.typed_splits(tables)
        if not settings:
            return None
        columns = files.columns(files.by_split(tables)["train"])
        text = next(name for name in columns if name in _TEXT_COLUMNS)
        label = next((name for name in ("label", "class", "category", "target", "sentiment") if name in columns), "")
        chosen = {
            **({} if text == "sentence" else {"sentence": text}),
            **({} if label in ("", "label") else {"label": label}),
        }
        asks = () if label else ("dataset.label=COLUMN",)
        remark = "" if label else f"COLUMN has the classes: {', '.join(columns)}."
        form = "a table of texts with classes"
        return Recognised(form, {**settings, **chosen}, "classification", Certainty.LIKELY, asks, remark)

    @pydantic.model_validator(mode="after")
    def _check_files(self) -> Text:
        if self.train is None and (self.val or self.test or self.sentence2 is not None):
            raise ValueError("val, test and sentence2 need train: the file of the training texts")
        return self

    def text_columns(self) -> Tuple[List[Column], bool]:
        return [column for column in (self.sentence, self.sentence2) if column is not None], self.header

    def examine(self, findings: Findings) -> Splits:
        """See `BaseDataset.examine`."""
        if self.train is None:
            table = table_in_memory(reference_text.by_chapter())
            return self._labelled_splits("Python's reference", table, None, None)
        settings = {"train": self.train, "val": self.val, "test": self.test}
        paths = {name: path for name, path in settings.items() if path is not None}
        tables = {
            name: call_or_report(findings, DataLocation(path), partial(self._rows, path, findings))
            for name, path in paths.items()
        }
        if tables["train"] is None or None in tables.values():
            raise NoUsableSamples(f"{self.train}: a table cannot be read.")
        refuse_shared({name: [path] for name, path in paths.items()}, findings)
        return self._labelled_splits(
            self.train, tables["train"], tables.get("val"), tables.get("test"), findings=findings
        )

    def _rows(self, path: str, findings: Findings) -> TextTable:
        self._require_columns(path)
        table = read_table(path, [*self.text_columns()[0], self.label], self.header, findings=findings)
        if not len(table.name_N):
            raise DataError(f"{path} has no rows.")
        return table

    def _require_columns(self, path: str) -> None:
        """Raises a `DataError` if the header of a table lacks a column that a setting names."""
        if not self.header or ending_of(path) not in (".tsv", ".csv"):
            return
        try:
            names = names_of_columns(path)
        except DataError:
            return  # reading the rows reports the error
        for setting, column in (("sentence", self.sentence), ("sentence2", self.sentence2), ("label", self.label)):
            if isinstance(column, str):
                require_column(f"dataset.{setting}", column, path, names)


class MaskedText(TextDataset):
    """Masked language modeling: plain text in which some tokens are masked, different ones in each epoch. The network
    predicts them."""

    gives: ClassVar[Gives] = Gives(Texts, MaskedTokens)

    train: Union[None, PathText, List[PathText]] = None
    """Text files, or folders of .txt files: an empty line ends a paragraph, a file a document; null = Python's
    language reference."""
    val: Union[None, PathText, List[PathText]] = None
    """The same for validation; null = val_fraction of the paragraphs."""
    batch_size: BatchSize = 32
    mask_fraction: ProperFraction = 0.15
    """Share of a sample's tokens that are masked and must be predicted."""

    def examine(self, findings: Findings) -> Splits:
        """See `BaseDataset.examine`."""
        self.require_libraries()
        documents: AnyDocuments = (
            PlainTexts(reference_text.documents()) if self.train is None else _read(self.train, findings)
        )
        val = _read(self.val, findings) if self.val is not None else None
        if self.train is not None and self.val is not None:
            settings = {"train": self.train, "val": self.val}
            refuse_shared({name: list_text_files(files, TEXT_ENDINGS) for name, files in settings.items()}, findings)
        parts: Sequence[AnyDocuments] = self._hold_out(documents) if val is None else [documents, val]
        name = "Python's reference" if self.train is None else f"dataset.train={self.train}"
        if val is None and documents.num_paragraphs == 1:
            raise DataError(
                f"{name} is a single paragraph, so none can be held out. An empty line ends a paragraph: put one "
                "between texts, or name a text for validation by dataset.val=FILE."
            )
        refuse_empty(name, parts[0].num_paragraphs, parts[1].num_paragraphs, self.val_fraction)
        test = parts[2] if len(parts) > 2 and len(parts[2]) else None
        return TextSplits(
            parts[0],
            parts[1],
            test,
            class_names=[],
            build_tokenizer_config=lambda: self.tokenizer_config(parts[0].training_texts(), self.mask_fraction),
        )

    def _hold_out(self, documents: AnyDocuments) -> List[AnyDocuments]:
        """Returns the training, validation and test split, divided by paragraph."""
        count = documents.num_paragraphs
        order = np.argsort(bits(self.split_seed, 0, np.arange(count), Draw.SPLIT), kind="stable")
        part_P = np.zeros(count, np.int8)
        num_val, num_test = count_held_out(count, self.val_fraction, self.test_fraction, count - 1)
        part_P[order[:num_val]] = 1
        part_P[order[num_val : num_val + num_test]] = 2
        return [documents.part(np.flatnonzero(part_P == number)) for number in range(3)]


def _read(paths: Union[str, List[str]], findings: Findings) -> StoredDocuments:
    """Returns the paragraphs of each file.

    Raises:
        DataError: a file is missing or no UTF-8 text, or there is no text.
    """
    documents = read_documents(list_text_files(paths, TEXT_ENDINGS, findings), findings)
    if not documents.num_paragraphs:
        raise DataError(f"{paths}: there is no text; give .txt files, or folders of them.")
    return documents
