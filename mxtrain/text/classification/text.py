"""Text datasets: texts or pairs of texts with a class, several classes or a number each, and plain text for masked
language modeling."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar, Dict, List, Literal, Mapping, Optional, Sequence, Tuple, Type, Union

import numpy as np
import pydantic
from typing_extensions import Annotated

from mxtrain.data.checking.problems import DataLocation, Findings, NoUsableSamples, call_or_report
from mxtrain.data.loading.dataset_files import refuse_shared
from mxtrain.data.loading.file_patterns import expand_files
from mxtrain.data.loading.number_targets import NumberTargets
from mxtrain.data.loading.randomness import Draw, bits
from mxtrain.data.loading.splitting import count_held_out, refuse_empty
from mxtrain.data.loading.text_stream import ending_of
from mxtrain.data.recognition import Certainty, FileTree, Recognised, Setting
from mxtrain.data.sample_weights import WeightedDataset, require_other_column
from mxtrain.data.spec import BaseDataset, Splits
from mxtrain.data.table.cells import Decimal
from mxtrain.data.table.class_sets import AUTO, DELIMITERS, USUAL_COLUMNS
from mxtrain.data.table.column_kinds import is_row_id
from mxtrain.data.table.columns import TABLES, names_of_columns, read_columns, require_column, require_same_columns
from mxtrain.data.table.target_classes import refuse_named_classes
from mxtrain.data.table.target_columns import TargetColumns, class_set_columns, number_columns
from mxtrain.data.table.text_rows import Column
from mxtrain.data.table.weights import WeightedRows
from mxtrain.errors import ConfigError, DataError
from mxtrain.text.base import TextDataset
from mxtrain.text.kinds import MaskedTokens, Texts
from mxtrain.text.number_texts import build_number_texts, divide_texts
from mxtrain.text.number_words import words_of_numbers
from mxtrain.text.signature import TextSplits
from mxtrain.text.sources import LabelledTexts, PlainTexts
from mxtrain.text.stored_sources import StoredDocuments, StoredTexts
from mxtrain.text.text_files import (
    AnyTexts,
    TextTable,
    list_text_files,
    name_of,
    read_documents,
    read_table,
    table_in_memory,
)
from mxtrain.text.translation import reference_text
from mxtrain.types import BatchSize, Files, Names, OpenFraction, ProperFraction
from mxtrain.types.kinds import ClassIndex, ClassSet, Gives, Number, TargetKind

if TYPE_CHECKING:
    from mxtrain.loss.spec import Loss
    from mxtrain.model.spec import Model

AnyDocuments = Union[PlainTexts, StoredDocuments]
TEXT_ENDINGS = (".txt", ".txt.gz")
"""Extensions of the files that are read from a folder."""

NUM_NUMBERS = 4000
"""Numbers in words that are used if there is no file."""
_PAIR_COLUMNS = (
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("question", "sentence"),
)
"""Names of columns by which `data guess` recognises pairs of texts: those of the tasks of GLUE, SNLI and XNLI."""
_TEXT_COLUMNS = {"sentence", "text", "review", "comment", "comment_text", "sentence1", "content"}
"""Names of columns by which `data guess` recognises a table of texts."""

_PLURALS = ("labels", "classes", "tags")
"""Names of columns that may hold several names of classes in a text."""
_LABEL_COLUMNS = ("label", "class", "category", "target", "sentiment", "score", "similarity", "rating", "stars")
"""Names of columns by which `data guess` finds the class or the number of a text."""


class Text(WeightedRows, TextDataset, WeightedDataset):
    """Texts or pairs of texts with a class each: from files, or passages of Python's language reference by chapter."""

    folds_by: ClassVar[Literal["", "samples", "columns"]] = "columns"

    has_text_columns: ClassVar[bool] = True
    gives: ClassVar[Gives] = Gives(Texts, ClassIndex, ClassSet, Number)

    train: Files = None
    """File of training texts: .tsv, .csv, .jsonl or .parquet, or a list of files or a pattern (train-*.parquet), which
    are one split; null = passages of Python's language reference, by chapter, or with task=regression numbers from 0 to
    9,999 in English words."""
    val: Files = None
    """Files of validation texts; null = val_fraction of the training texts."""
    test: Files = None
    """Files of test texts; null = test_fraction of the training texts."""
    sentence: Column = "sentence"
    """Column of the text: its name, or its number from 0."""
    sentence2: Optional[Column] = None
    """Column of the second text, to classify pairs of texts."""
    label: Annotated[Union[Column, Names], pydantic.Field(union_mode="left_to_right")] = "label"
    """Column of the class; with task=multi_label that of the names of all classes, or a list of columns of 0 and 1, one
    for each class; with task=regression that of the number to predict."""
    decimal: Decimal = "."
    """Decimal sign of the numbers to predict, with task=regression: "." or ","; the other one groups digits."""
    delimiter: str = AUTO
    """Text between two names of classes, with task=multi_label; auto = the one of | ; , that occurs."""
    header: bool = True
    """If true, the first row of a TSV or CSV file names the columns."""
    test_fraction: OpenFraction = 0.15
    """Share of the training samples held out for testing where there is no file of them."""

    @classmethod
    def recognise(cls, files: FileTree) -> Optional[Recognised]:
        """See `Recognising`."""
        tables = [name for name in files.find(*TABLES) if _texts_in(files.columns(name))]
        settings = files.typed_splits(tables, shards=True)
        if not settings:
            return None
        train = files.first_of(files.by_split(tables, shards=True)["train"])
        columns = files.columns(train)
        texts = _texts_in(columns)
        chosen: Dict[str, Setting] = {**settings, **dict(zip(("sentence", "sentence2"), texts))}
        if texts == ["sentence"]:  # the default
            del chosen["sentence"]
        others = [name for name in columns if name not in texts]
        sets = next((name for name in others if _holds_sets(files, train, name)), "")
        label = next((name for name in _LABEL_COLUMNS if name in columns), "")
        flags = [name for name in others if not is_row_id(name)]
        is_flagged = len(flags) > 1 and all(files.holds_flags(train, name) for name in flags)
        if sets or is_flagged and not label:
            chosen.update({} if sets == "label" else {"label": sets or flags})
            return Recognised("a table of texts with any number of classes", chosen, "multi_label")
        chosen.update({} if label in ("", "label") else {"label": label})
        asks = () if label else ("dataset.label=COLUMN",)
        remark = "" if label else f"COLUMN has the classes: {', '.join(others)}."
        are_numbers = label != "" and files.holds_numbers(train, label)
        form, task = ("numbers", "regression") if are_numbers else ("classes", "classification")
        return Recognised(f"a table of texts with {form}", chosen, task, Certainty.LIKELY, asks, remark)

    @pydantic.model_validator(mode="after")
    def _check_files(self) -> Text:
        if self.train is None and (self.val or self.test or self.sentence2 is not None):
            raise ValueError("val, test and sentence2 need train: the file of the training texts")
        if self.weight is not None and not self.header:
            raise ValueError(f"weight={self.weight} is the name of a column, and header=false says that there are none")
        return self

    def for_run(
        self, target: Type[TargetKind], model: Optional[Model] = None, loss: Optional[Loss] = None
    ) -> BaseDataset:
        """See `BaseDataset.for_run`.

        Raises:
            ConfigError: the settings are for another task, or name a column twice.
        """
        for setting, column in self._columns.items():
            require_other_column(self, f"dataset.{setting}", column if isinstance(column, list) else [str(column)])
        if issubclass(target, ClassSet):
            if not self.header:
                raise ConfigError("dataset.header=false: task=multi_label reads tables with names of columns.")
            return self.as_class(ClassSetTexts)
        if issubclass(target, Number):
            if isinstance(self.label, list) and not self.header:
                raise ConfigError("dataset.header=false: the columns of dataset.label have no names.")
            return self.as_class(NumberTexts)
        if isinstance(self.label, list):
            raise ConfigError(
                "dataset.label is a list of columns, which task=multi_label and task=regression read. Type one of "
                "these, or one column."
            )
        return self

    def text_columns(self) -> Tuple[List[Column], bool]:
        return [column for column in (self.sentence, self.sentence2) if column is not None], self.header

    def examine(self, findings: Findings) -> Splits:
        """See `BaseDataset.examine`."""
        splits = self.open_splits(findings)
        if self.weight is not None:
            of_splits = {"training": splits.train, "validation": splits.val, "test": splits.test}
            for texts in of_splits.values():
                if texts is not None:
                    assert isinstance(texts, (LabelledTexts, StoredTexts))
                    texts.weight_N = self.read_weights(texts.locations, self.decimal, findings)
            if not findings.keeps_going:
                self.require_some_weights(of_splits)
        return splits

    def open_splits(self, findings: Findings) -> Splits:
        """Returns the splits, without weights; see `examine`."""
        if self.train is None:
            table = table_in_memory(reference_text.by_chapter())
            return self._labelled_splits("Python's reference", table, None, None)
        files = self._files()
        return self._labelled_splits(name_of(files["train"]), *self._tables(files, findings), findings=findings)

    def _tables(
        self, files: Mapping[str, List[str]], findings: Findings
    ) -> Tuple[TextTable, Optional[TextTable], Optional[TextTable]]:
        """Reads the files of the training, validation and test texts; None where there is no file."""
        tables = {
            name: call_or_report(findings, DataLocation(paths[0]), partial(self._rows, paths, findings))
            for name, paths in files.items()
        }
        train = tables["train"]
        if train is None or None in tables.values():
            raise NoUsableSamples(f"{name_of(files['train'])}: a table cannot be read.")
        refuse_shared(files, findings)
        return train, tables.get("val"), tables.get("test")

    def _files(self) -> Dict[str, List[str]]:
        """Returns the files of each split that has any."""
        settings = {"train": self.train, "val": self.val, "test": self.test}
        return {name: expand_files(paths) for name, paths in settings.items() if paths is not None}

    def _rows(self, paths: List[str], findings: Findings) -> TextTable:
        assert not isinstance(self.label, list)
        columns = [*self.text_columns()[0], self.label]
        self._require_columns(paths)
        table = read_table(paths, columns, self.header, findings=findings, decimal=self.decimal)
        if not len(table.name_N):
            raise DataError(f"{name_of(paths)} {'has' if len(paths) == 1 else 'have'} no rows.")
        return table

    @property
    def _columns(self) -> Dict[str, Union[None, Column, List[str]]]:
        """Returns the columns by the names of their settings."""
        return {"sentence": self.sentence, "sentence2": self.sentence2, "label": self.label}

    @property
    def other_columns(self) -> List[str]:
        """Returns the columns that hold no targets."""
        return [*map(str, self.text_columns()[0]), *([] if self.weight is None else [self.weight])]

    def _read_files(
        self, files: Mapping[str, List[str]], found: TargetColumns, findings: Findings
    ) -> Dict[str, Optional[LabelledTexts]]:
        """Reads texts with several targets each, by split.

        Raises:
            DataError: a file has no usable row.
        """
        refuse_shared(files, findings)
        tables = {
            name: call_or_report(findings, DataLocation(paths[0]), partial(self._read, paths, found, findings))
            for name, paths in files.items()
        }
        if any(table is None or not len(table) for table in tables.values()):
            raise NoUsableSamples(f"{name_of(files['train'])}: a table has no usable row.")
        return tables

    def _read(self, paths: List[str], found: TargetColumns, findings: Findings) -> LabelledTexts:
        """Returns the texts of tables that have known targets."""
        columns, _ = self.text_columns()
        require_same_columns(paths)
        # Without a text for nulls: a text that is null is an error, and not empty.
        rows, locations = read_columns(
            paths,
            [*columns, *found.columns],
            header=True,
            findings=findings,
            decimal_in=found.decimal_in,
            names_classes=found.names_classes,
        )
        assert locations is not None
        target_R, kept_R = found.parse([row[len(columns) :] for row in rows], locations, findings)
        pairs = [(rows[row][0], rows[row][1] if len(columns) > 1 else None) for row in kept_R.tolist()]
        return LabelledTexts(pairs, target_R, locations.take(kept_R))

    def _require_columns(self, paths: List[str]) -> None:
        """Raises a `DataError` if the tables of a split differ in their columns, or the header of the first lacks a
        column that a setting names."""
        path = paths[0]
        require_same_columns(paths, [*self.text_columns()[0], self.label], self.header)
        if not self.header or ending_of(path) not in (".tsv", ".csv"):
            return
        try:
            names = names_of_columns(path)
        except DataError:
            return  # reading the rows reports the error
        for setting, column in self._columns.items():
            if isinstance(column, str):
                require_column(f"dataset.{setting}", column, path, names)


class ClassSetTexts(Text):
    """The texts of `Text` with any number of classes each, for task=multi_label."""

    gives: ClassVar[Gives] = Gives(Texts, ClassSet)

    def open_splits(self, findings: Findings) -> Splits:
        """See `Text.open_splits`."""
        if self.train is None:
            raise DataError(
                "dataset.train: Python's reference has one class for each text. Name the table of the training texts, "
                "e.g. dataset.train=train.csv."
            )
        self.require_libraries()
        files = self._files()
        first, *further = files["train"]
        self._require_columns([first, *further])
        labels = self.label if isinstance(self.label, list) else str(self.label)
        # With the names of classes in the metadata of Parquet.
        found = class_set_columns(first, labels, self.delimiter, self.other_columns, further, names_classes=True)
        tables = self._read_files(files, found, findings)
        train = tables["train"]
        assert train is not None
        return divide_texts(
            self, name_of(files["train"]), train, tables.get("val"), tables.get("test"), found.class_names
        )


class NumberTexts(NumberTargets, Text):
    """The texts of `Text` with a number to predict each, for task=regression."""

    gives: ClassVar[Gives] = Gives(Texts, Number)

    def open_splits(self, findings: Findings) -> Splits:
        """See `Text.open_splits`."""
        self.require_libraries()
        if self.train is None:
            texts, number_N = words_of_numbers(NUM_NUMBERS)
            return divide_texts(self, "Numbers in words", LabelledTexts([(text, None) for text in texts], number_N))
        files = self._files()
        parts: Sequence[Optional[AnyTexts]]
        if isinstance(self.label, list):
            paths = files["train"]
            self._require_columns(paths)
            found = number_columns(paths[0], self.label, self.decimal, self.other_columns)
            tables = self._read_files(files, found, findings)
            parts = [tables.get(name) for name in ("train", "val", "test")]
        else:
            refuse_named_classes("dataset.label", files["train"][0], [str(self.label)])
            parts = [
                None if table is None else build_number_texts(table, str(self.label), self.decimal, findings)
                for table in self._tables(files, findings)
            ]
        if any(part is not None and not len(part) for part in parts):
            raise NoUsableSamples(f"{name_of(files['train'])}: a table has no usable row.")
        train, val, test = parts
        assert train is not None
        return divide_texts(self, name_of(files["train"]), train, val, test)

    @property
    def target_names(self) -> Sequence[str]:
        return self.label if isinstance(self.label, list) else ()

    @property
    def target_column(self) -> str:
        """See `NamedTarget`."""
        return self.label if isinstance(self.label, str) else ""


def _texts_in(columns: Sequence[str]) -> Sequence[str]:
    """Returns the one or two columns that hold the texts, by their usual names; empty if there are none."""
    pair = next((pair for pair in _PAIR_COLUMNS if {*pair} <= {*columns}), ())
    return pair or [name for name in columns if name in _TEXT_COLUMNS][:1]


def _holds_sets(files: FileTree, table: str, column: str) -> bool:
    """Returns True if the first cells of a column hold several names of classes each."""
    if column not in USUAL_COLUMNS:
        return False
    has_delimiter = any(sign in cell for sign in DELIMITERS for cell in files.cells(table, column))
    return files.holds_lists(table, column) or column in _PLURALS and has_delimiter


class MaskedText(TextDataset):
    """Masked language modeling: plain text in which some tokens are masked, different ones in each epoch. The network
    predicts them."""

    gives: ClassVar[Gives] = Gives(Texts, MaskedTokens)

    train: Files = None
    """Text files, or folders of .txt files: an empty line ends a paragraph, a file a document; or JSON lines or Parquet
    with a paragraph per row; one, a list, or a pattern (train-*.parquet); null = Python's language reference."""
    val: Files = None
    """The same for validation; null = val_fraction of the paragraphs."""
    column: str = "text"
    """Column of the text in JSON lines and Parquet."""
    batch_size: BatchSize = 32
    mask_fraction: ProperFraction = 0.15
    """Share of a sample's tokens that are masked and must be predicted."""

    def examine(self, findings: Findings) -> Splits:
        """See `BaseDataset.examine`."""
        self.require_libraries()
        documents: AnyDocuments = (
            PlainTexts(reference_text.documents()) if self.train is None else _read(self.train, findings, self.column)
        )
        val = _read(self.val, findings, self.column) if self.val is not None else None
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


def _read(paths: Union[str, List[str]], findings: Findings, column: str) -> StoredDocuments:
    """Returns the paragraphs of each file.

    Raises:
        DataError: a file is missing or no UTF-8 text, or there is no text.
    """
    documents = read_documents(list_text_files(paths, TEXT_ENDINGS, findings), findings, column)
    if not documents.num_paragraphs:
        raise DataError(f"{paths}: there is no text; give .txt files, or folders of them.")
    return documents
