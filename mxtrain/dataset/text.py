"""Text datasets: labelled texts or pairs of texts, and plain text for masked language modeling."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import ClassVar, Dict, List, Optional, Tuple, Union

import numpy as np
import pydantic

from mxtrain.dataset.base import Splits
from mxtrain.dataset.checking.problems import (
    EMPTY_TEXT,
    LISTED_TWICE,
    STRICT,
    UNREADABLE_FILE,
    DataPlace,
    DataPlaces,
    Findings,
    NothingLeft,
    Problem,
    attempt,
)
from mxtrain.dataset.language import reference_text
from mxtrain.dataset.language.base import TextDataset
from mxtrain.dataset.language.sources import PlainTexts
from mxtrain.dataset.language.tokenizing.kinds import TextsInMemory
from mxtrain.dataset.loading.randomness import Draw, bits
from mxtrain.dataset.loading.regular_files import FileId, exists, id_of, read_text, refuse_shared, walk
from mxtrain.dataset.loading.splitting import refuse_empty
from mxtrain.dataset.table.columns import Column, RowsOfText, read_columns
from mxtrain.errors import DataError
from mxtrain.types import OpenFraction, PathText, ProperFraction


class Text(TextDataset):
    """Texts, or pairs of them, and their classes: from files, or passages of Python's reference by chapter."""

    train: Optional[PathText] = None
    """File of training texts: .tsv, .csv or .jsonl; null = passages of Python's language reference, by chapter."""
    val: Optional[PathText] = None
    """File of validation texts; null = val_fraction of the training texts."""
    test: Optional[PathText] = None
    """File of test texts; null = test_fraction of the training texts."""
    sentence: Column = "sentence"
    """Column of the text: its name, or its number from 0."""
    sentence2: Optional[Column] = None
    """Column of a second text, where pairs are classified."""
    label: Column = "label"
    """Column of the class."""
    header: bool = True
    """Whether the first row of a TSV or CSV names the columns."""
    test_fraction: OpenFraction = 0.15

    @pydantic.model_validator(mode="after")
    def _check_files(self) -> Text:
        if self.train is None and (self.val or self.test or self.sentence2 is not None):
            raise ValueError("val, test and sentence2 need train: the file of the training texts")
        return self

    def text_columns(self) -> Tuple[List[Column], bool]:
        return [column for column in (self.sentence, self.sentence2) if column is not None], self.header

    def open(self) -> Splits:
        """See `BaseDataset.open`."""
        return self.examine(STRICT)

    def examine(self, findings: Findings) -> Splits:
        """See `BaseDataset.examine`."""
        if self.train is None:
            given = RowsOfText(list(reference_text.by_chapter()))
            return self._labelled_splits("Python's reference", given, None, None)
        named = {"train": self.train, "val": self.val, "test": self.test}
        paths = {name: path for name, path in named.items() if path is not None}
        tables = {name: attempt(findings, DataPlace(path), partial(self._rows, path, findings))
                  for name, path in paths.items()}  # fmt: skip
        if tables["train"] is None or None in tables.values():
            raise NothingLeft(f"{self.train}: a table cannot be read.")
        refuse_shared({name: [path] for name, path in paths.items()}, findings)
        return self._labelled_splits(
            self.train, tables["train"], tables.get("val"), tables.get("test"), findings=findings
        )

    def _rows(self, path: str, findings: Findings) -> RowsOfText:
        found = read_columns(path, [*self.text_columns()[0], self.label], self.header, findings=findings)
        if not found.rows:
            raise DataError(f"{path} has no rows.")
        return found


class MaskedText(TextDataset):
    """Plain text of which some tokens are hidden, others in each epoch, to be found by the network."""

    serves: ClassVar[Tuple[str, ...]] = ("masked_language_modeling",)

    train: Union[None, PathText, List[PathText]] = None
    """Text files, or folders of .txt files: an empty line ends a paragraph, a file a document; null = Python's
    language reference."""
    val: Union[None, PathText, List[PathText]] = None
    """The same for validation; null = val_fraction of the paragraphs."""
    mask_fraction: ProperFraction = 0.15
    """Share of a sample's tokens to find."""

    def open(self) -> Splits:
        """See `BaseDataset.open`."""
        return self.examine(STRICT)

    def examine(self, findings: Findings) -> Splits:
        """See `BaseDataset.examine`."""
        self.require_libraries()
        given = PlainTexts(reference_text.documents()) if self.train is None else _read_documents(self.train, findings)
        val = _read_documents(self.val, findings) if self.val is not None else None
        if self.train is not None and self.val is not None:
            refuse_shared({"train": _text_files(self.train), "val": _text_files(self.val)}, findings)
        parts = self._hold_out(given) if val is None else [given, val, PlainTexts([])]
        name = "Python's reference" if self.train is None else f"dataset.train={self.train}"
        num_train, num_val = (sum(map(len, part.documents)) for part in parts[:2])
        refuse_empty(name, num_train, num_val, self.val_fraction)
        texts = [text for document in parts[0].documents for text in document]
        return Splits(
            parts[0], parts[1], parts[2] if len(parts[2]) else None, class_names=[],
            build_tokenizer_config=lambda: self.tokenizer_config(TextsInMemory(texts), self.mask_fraction),
        )  # fmt: skip

    def _hold_out(self, given: PlainTexts) -> List[PlainTexts]:
        """[train, val, test], paragraph by paragraph."""
        documents = given.documents
        count = sum(map(len, documents))
        order = np.argsort(bits(self.split_seed, 0, np.arange(count), Draw.SPLIT), kind="stable")
        part_N = np.zeros(count, np.int8)
        num_val, num_test = (int(round(count * share)) for share in (self.val_fraction, self.test_fraction))
        part_N[order[:num_val]] = 1
        part_N[order[num_val : num_val + num_test]] = 2
        parts: List[List[List[str]]] = [[], [], []]
        position = 0
        for document in documents:
            own = part_N[position : position + len(document)]
            position += len(document)
            for number in range(3):
                kept = [text for text, part in zip(document, own) if part == number]
                if kept:
                    parts[number].append(kept)
        return [PlainTexts(part, given.places and given.places.take(np.flatnonzero(part_N == number)))
                for number, part in enumerate(parts)]  # fmt: skip


def _text_files(given: Union[str, List[str]], findings: Findings = STRICT) -> List[Path]:
    """Files as they are, folders as all .txt files in them; each real file once."""
    found: Dict[FileId, Path] = {}
    for path in map(Path, [given] if isinstance(given, str) else given):
        if not exists(path):
            raise DataError(f"'{path}': there is no such file or folder.")
        listed = walk(path, (".txt",), findings=findings) if path.is_dir() else [(path, id_of(path))]
        for file, number in listed:
            before = found.setdefault(number, file)
            if before is not file:
                is_one = str(file) == str(before)
                named = f"'{file}' is named twice" if is_one else f"'{file}' and '{before}' are the same file"
                fact = f"{named}, and counts once."
                findings.remark(Problem(LISTED_TWICE, DataPlace(str(file)), fact, "Name it once."))
    return list(found.values())


def _read_documents(given: Union[str, List[str]], findings: Findings) -> PlainTexts:
    """The paragraphs of each file.

    Raises:
        DataError: a file is missing or no UTF-8 text, or there is no text.
    """
    documents: List[List[str]] = []
    line_N: List[int] = []
    file_N: List[int] = []
    files = _text_files(given, findings)
    for number, file in enumerate(files):
        found = attempt(findings, DataPlace(str(file)), partial(read_text, file, findings), UNREADABLE_FILE)
        paragraphs = [] if found is None else _paragraphs(found.replace("\r\n", "\n").replace("\r", "\n"))
        if found is not None and not paragraphs:
            place = DataPlace(str(file))
            findings.remark(Problem(EMPTY_TEXT, place, f"{place} holds no text.", "Remove it."))
        documents.append([text for _, text in paragraphs])
        line_N += [line for line, _ in paragraphs]
        file_N += [number] * len(paragraphs)
    if not any(documents):
        raise DataError(f"{given}: there is no text; give .txt files, or folders of them.")
    return PlainTexts(documents, DataPlaces(list(map(str, files)), line_N, file_N))


def _paragraphs(text: str) -> List[Tuple[int, str]]:
    """The line in which each paragraph begins, and its words."""
    found, line = [], 1
    for part in text.split("\n\n"):
        words = " ".join(part.split())
        if words:
            found.append((line + part[: len(part) - len(part.lstrip())].count("\n"), words))
        line += part.count("\n") + 2
    return found
