"""Running text as one flat array of tokens: concatenated texts, with `<eos>` after each line or document.

Legend: N tokens of a split, R records of a store.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from mxtrain.data.checking.problems import DataLocations, Findings
from mxtrain.data.corpus.shards import Ragged, Shards
from mxtrain.data.loading.text_stream import ending_of, open_text
from mxtrain.data.table.columns import PARQUET, stream_rows
from mxtrain.errors import DataError
from mxtrain.files.text_lines import split_lines
from mxtrain.text.encoded import encode_texts
from mxtrain.text.stored import TEXT, StoredColumn, Suffix, TextRecord, prepare_tokens
from mxtrain.text.text_checks import ParagraphChecks
from mxtrain.text.text_files import ROW_ENDINGS, name_of, prepare_texts, readable_records
from mxtrain.text.tokenizing.kinds import TextsInMemory, TrainingTexts

if TYPE_CHECKING:
    from mxtrain.data.checking.checks import Checks
    from mxtrain.text.tokenizing.config import TokenizerConfig
    from mxtrain.types.annotations import Json

PIECE_CHARACTERS = 1 << 11
"""After this number of characters, the next empty line ends a record."""
SHOWN_TOKENS = 16
"""Length of the prompts whose continuations are shown."""
MAX_PIECE = 1 << 14
"""Number of characters after which the next line ends a record, in a document without empty lines."""
MIN_PIECES = 50
"""Minimum number of records: short texts have smaller records, so that some can be held out."""


class TextLayout(NamedTuple):
    """The unit of running text that an `<eos>` token ends.

    Attributes:
        by_line: True for each line, as in the files of PTB and WikiText; False for each document.
        keeps_empty: True if an empty line is a unit, too.
    """

    by_line: bool = False
    keeps_empty: bool = False


class RunningText(NamedTuple):
    """The tokens of a split.

    Attributes:
        token_N: all tokens in order; may be a memory map.
        num_bytes: number of UTF-8 bytes of the text.
    """

    token_N: np.ndarray
    num_bytes: int


class InMemoryTexts:
    """Running text in memory; each text ends in `<eos>`.

    Args:
        texts: the texts, in order.
        prompt_tokens: number of tokens at the beginning of each text that form its prompt; None = all.
    """

    def __init__(self, texts: Sequence[str], prompt_tokens: Optional[int] = None) -> None:
        self.texts = list(texts)
        self._prompt_tokens = prompt_tokens

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, indices: Sequence[int]) -> InMemoryTexts:
        """Returns the texts with these indices; indices beyond the end are ignored."""
        return InMemoryTexts([self.texts[index] for index in indices if index < len(self)], SHOWN_TOKENS)

    def checks(self) -> Checks:
        """Returns the checks that `data check` runs on each text."""
        return ParagraphChecks(self.texts, None)

    def training_texts(self) -> TrainingTexts:
        """Returns the texts from which a vocabulary is built."""
        return TextsInMemory(self.texts)

    def prompts(self, config: TokenizerConfig) -> Ragged:
        """Returns the tokens of each text separately, without `<eos>`."""
        encoded = encode_texts(config.tokenizer, self.texts)
        if self._prompt_tokens is None:
            return encoded
        length_N = np.minimum(encoded.length, self._prompt_tokens)
        rows = [encoded.value[begin : begin + length] for begin, length in zip(encoded.begin, length_N)]
        return Ragged(np.concatenate(rows), np.concatenate([np.zeros(1, np.int64), np.cumsum(length_N)]))

    def encode(self, config: TokenizerConfig) -> RunningText:
        """Returns the tokens of the whole text."""
        eos = config.tokenizer.require("eos", "running text")
        token_F, length_N = config.tokenizer.encode(self.texts)
        token_N, _ = Suffix(np.array([eos], np.int32), None).append_to(0, token_F, length_N)
        return RunningText(token_N, int(TextsInMemory(self.texts).num_bytes().sum()))


class StoredText:
    """Running text of files.

    Args:
        shards: store of lines or pieces of documents; `group` is the index of the file.
        layout: unit that `<eos>` ends.
        what: name of the data, for progress messages.
        files: file names by `group`.
        record_range: range [first, end) of records; None = all.
    """

    def __init__(
        self,
        shards: Shards,
        layout: TextLayout,
        what: str,
        files: Sequence[str],
        record_range: Optional[Tuple[int, int]] = None,
    ) -> None:
        self._shards, self._layout, self._what, self._files = shards, layout, what, files
        self._first, self._end = record_range or (0, len(shards))

    def __len__(self) -> int:
        return self._end - self._first

    def part(self, first: int, end: int) -> StoredText:
        """Returns the records from `first` up to `end`."""
        record_range = (self._first + first, self._first + end)
        return StoredText(self._shards, self._layout, self._what, self._files, record_range)

    @property
    def column(self) -> StoredColumn:
        """Returns the texts themselves."""
        is_all = len(self) == len(self._shards)
        return StoredColumn(self._shards, TEXT, None if is_all else np.arange(self._first, self._end))

    def take(self, indices: Sequence[int]) -> InMemoryTexts:
        """Returns the records with these indices, in memory; indices beyond the end are ignored."""
        column = self.column
        return InMemoryTexts([column[index] for index in indices if index < len(self)], SHOWN_TOKENS)

    def checks(self) -> Checks:
        """Returns the checks that `data check` runs on each record."""
        record_range = slice(self._first, self._end)
        locations = DataLocations(
            list(self._files),
            self._shards.array("number")[record_range],
            self._shards.array("group")[record_range],
            ending_of(self._files[0]) == PARQUET,
        )
        return ParagraphChecks(self.column, locations)

    def training_texts(self) -> TrainingTexts:
        """Returns the texts from which a vocabulary is built."""
        return self.column

    def prompts(self, config: TokenizerConfig) -> Ragged:
        """Returns the tokens of each record separately, without `<eos>`."""
        return self.take(range(len(self))).prompts(config)

    def encode(self, config: TokenizerConfig) -> RunningText:
        """Returns the tokens of the whole text."""
        eos = config.tokenizer.require("eos", "running text")
        shards = prepare_tokens(
            self._shards, 1, config.tokenizer, self._what, [eos], ends_groups=not self._layout.by_line
        )
        (first, end), begin_R1 = (self._first, self._end), self._shards.offsets(TEXT)
        tokens = shards.ragged(TEXT)
        return RunningText(tokens.value[tokens.begin[first] : tokens.begin[end]], int(begin_R1[end] - begin_R1[first]))


def read_running_text(
    files: Sequence[Path], layout: TextLayout, findings: Findings, column: str = "text"
) -> StoredText:
    """Reads the text of files in order, including white space, into a store that is reused.

    Each row of a `.jsonl` or `.parquet` file is a document.

    Args:
        files: paths of text files, or of files with rows.
        layout: unit that `<eos>` ends.
        findings: collects lines and rows that cannot be read.
        column: column of the text in files with rows.

    Raises:
        DataError: a file is missing, no UTF-8, or there is no text.
    """
    have_rows = [ending_of(file) in ROW_ENDINGS for file in files]
    if all(have_rows):
        return _read_rows(files, layout, findings, column)
    if any(have_rows):
        table, text = files[have_rows.index(True)], files[have_rows.index(False)]
        raise DataError(f"{table} has a document per row, and {text} is one document: give files of one kind.")
    longest = max(min(MAX_PIECE, sum(map(_size_of, files)) // MIN_PIECES), 1)
    usual = min(PIECE_CHARACTERS, longest)

    def records() -> Iterator[TextRecord]:
        for number, file in enumerate(files):
            for line, text in readable_records(file, _records_of(file, layout, usual, longest, findings), findings):
                yield TextRecord([text], line, number)

    # The lengths of pieces belong to the key, because they decide where texts are cut.
    shards = prepare_texts("running", files, [*layout, usual, longest], 1, records, findings)
    if not len(shards):
        raise DataError(f"{name_of(files)}: there is no text; give .txt or .tokens files, or folders of them.")
    return StoredText(shards, layout, name_of(files), list(map(str, files)))


def _read_rows(files: Sequence[Path], layout: TextLayout, findings: Findings, column: str) -> StoredText:
    def texts_of(file: Path) -> Iterator[Tuple[int, str]]:
        for number, (text,) in stream_rows(file, [column], header=True, findings=findings):
            for unit in split_lines(text) if layout.by_line else [text]:
                if layout.keeps_empty or unit.strip():
                    yield number, unit

    def records() -> Iterator[TextRecord]:
        for number, file in enumerate(files):
            for row, text in readable_records(file, texts_of(file), findings):
                yield TextRecord([text], row, number)

    key: Json = ["rows", column, *layout, [ending_of(file) for file in files]]
    shards = prepare_texts("running", files, key, 1, records, findings)
    if not len(shards):
        raise DataError(f"{name_of(files)}: there is no text in '{column}'.")
    # Each record is a document, or a line of one, which `<eos>` ends.
    return StoredText(shards, layout._replace(by_line=True), name_of(files), list(map(str, files)))


def _size_of(file: Path) -> int:
    return file.stat().st_size if file.is_file() else 0


def _records_of(
    file: Path, layout: TextLayout, usual: int, longest: int, findings: Findings
) -> Iterator[Tuple[int, str]]:
    """Yields the number of the first line and the text of each record of a file.

    Args:
        file: path of the file.
        layout: unit that `<eos>` ends; lines are records themselves, documents are cut into pieces.
        usual: number of characters after which the next empty line ends a piece.
        longest: number of characters after which any line ends a piece.
        findings: collects lines that cannot be decoded.
    """
    with open_text(file, None, findings) as lines:
        yield from _lines(lines, layout) if layout.by_line else _pieces(lines, usual, longest)


def _lines(lines: Iterator[str], layout: TextLayout) -> Iterator[Tuple[int, str]]:
    for number, line in enumerate(lines, start=1):
        if layout.keeps_empty or line.strip():
            yield number, line


def _pieces(lines: Iterator[str], usual: int, longest: int) -> Iterator[Tuple[int, str]]:
    pending: List[str] = []
    begin, size = 1, 0
    for number, line in enumerate(lines, start=1):
        pending.append(line)
        size += len(line)
        is_cut = size > longest or (size > usual and line == "\n")
        if is_cut and any(map(str.strip, pending)):
            yield begin, "".join(pending)
            pending, begin, size = [], number + 1, 0
    if "".join(pending).strip():
        yield begin, "".join(pending)


def texts_by_split(documents: Dict[str, List[str]], part_of: Sequence[int]) -> List[InMemoryTexts]:
    """Returns the training, validation and test texts.

    Args:
        documents: texts of each document.
        part_of: index of the split of each document: 0, 1 or 2.
    """
    splits: List[List[str]] = [[], [], []]
    for texts, part in zip(documents.values(), part_of):
        splits[part] += texts
    return [InMemoryTexts(texts) for texts in splits]
