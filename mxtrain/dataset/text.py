"""Text datasets: labelled texts or pairs of texts, and plain text for masked language modeling."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Dict, List, Optional, Sequence, Tuple, Union

import numpy as np
import pydantic

from mxtrain.dataset.base import Splits
from mxtrain.dataset.language import reference_text
from mxtrain.dataset.language.base import Row, TextDataset
from mxtrain.dataset.language.sources import PlainTexts
from mxtrain.dataset.language.wordpiece import require_tokenizers
from mxtrain.dataset.loading.randomness import Draw, bits
from mxtrain.dataset.loading.regular_files import FileId, exists, id_of, read_text, refuse_shared, walk
from mxtrain.dataset.loading.splitting import refuse_empty
from mxtrain.dataset.table.columns import Column, read_columns
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
        if self.train is None:
            return self._labelled_splits("Python's reference", reference_text.by_chapter(), None, None)
        named = {"train": self.train, "val": self.val, "test": self.test}
        given = [None if path is None else self._rows(path) for path in named.values()]
        refuse_shared({name: [path] for name, path in named.items() if path is not None})
        assert given[0] is not None
        return self._labelled_splits(self.train, given[0], given[1], given[2])

    def _rows(self, path: str) -> List[Row]:
        rows = read_columns(path, [*self.text_columns()[0], self.label], self.header)
        if not rows:
            raise DataError(f"{path} has no rows.")
        return rows


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
        require_tokenizers()
        documents = reference_text.documents() if self.train is None else _read_documents(self.train)
        val = _read_documents(self.val) if self.val is not None else None
        if self.train is not None and self.val is not None:
            refuse_shared({"train": _text_files(self.train), "val": _text_files(self.val)})
        if val is None:
            documents, val, test = self._hold_out(documents)
        else:
            test = []
        name = "Python's reference" if self.train is None else f"dataset.train={self.train}"
        refuse_empty(name, sum(map(len, documents)), sum(map(len, val)), self.val_fraction)
        texts = [text for document in documents for text in document]
        return Splits(
            PlainTexts(documents), PlainTexts(val), PlainTexts(test) if test else None, class_names=[],
            build_tokenizer_config=lambda: self.tokenizer_config(texts, self.mask_fraction),
        )  # fmt: skip

    def _hold_out(self, documents: Sequence[Sequence[str]]) -> List[List[List[str]]]:
        """[train, val, test], paragraph by paragraph."""
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
        return parts


def _text_files(given: Union[str, List[str]]) -> List[Path]:
    """Files as they are, folders as all .txt files in them; each real file once."""
    found: Dict[FileId, Path] = {}
    for path in map(Path, [given] if isinstance(given, str) else given):
        if not exists(path):
            raise DataError(f"'{path}': there is no such file or folder.")
        for file, number in walk(path, (".txt",)) if path.is_dir() else [(path, id_of(path))]:
            found.setdefault(number, file)
    return list(found.values())


def _read_documents(given: Union[str, List[str]]) -> List[List[str]]:
    """The paragraphs of each file.

    Raises:
        DataError: a file is missing or no UTF-8 text, or there is no text.
    """
    documents = []
    for file in _text_files(given):
        text = read_text(file).replace("\r\n", "\n").replace("\r", "\n")
        paragraphs = [" ".join(part.split()) for part in text.split("\n\n")]
        documents.append([part for part in paragraphs if part])
    if not any(documents):
        raise DataError(f"{given}: there is no text; give .txt files, or folders of them.")
    return documents
