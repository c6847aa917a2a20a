"""Stores of texts on disk: files are read as a stream, kept as UTF-8 records, and tokenized once for each tokenizer.

Legend: N samples, R records of a store, F tokens of several records, concatenated.
"""

from __future__ import annotations

import hashlib
import itertools
from typing import (
    TYPE_CHECKING,
    Any,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

import numpy as np

from mxtrain.data.corpus.preparing import Advance, prepare
from mxtrain.data.corpus.shards import ArrayForm, Shards, ShardWriter
from mxtrain.data.corpus.threads import map_in_order
from mxtrain.runtime.cores import usable_cores

if TYPE_CHECKING:
    from mxtrain.text.tokenizing.base import BaseTokenizer
    from mxtrain.types.annotations import Json, JsonObject

TEXT = "text"
ROWS_AT_ONCE = 2048
BYTES_AT_ONCE = 1 << 19
"""Bytes of text that a thread encodes at a time."""
BYTES_PER_BLOCK = 32 << 20
"""Bytes of text per commit; an interrupted preparation continues after the last commit."""

Piece = Tuple[int, List[str], int]
"""Index of the first record, texts of the records, and their number of bytes."""


class StoredColumn:
    """Texts of one column of a store as `TrainingTexts`.

    Args:
        shards: store of texts.
        name: name of the array.
        row_N: indices of the records, ascending; None = all.
    """

    def __init__(self, shards: Shards, name: str = TEXT, row_N: Optional[np.ndarray] = None) -> None:
        self._shards, self._name, self._row_N = shards, name, row_N
        self._rows = shards.ragged(name)

    def __len__(self) -> int:
        return len(self._shards) if self._row_N is None else len(self._row_N)

    def __getitem__(self, index: int) -> str:
        row = index if self._row_N is None else self._row_N[index]
        return self._rows.value[self._rows.begin[row] : self._rows.begin[row + 1]].tobytes().decode()

    def num_bytes(self) -> np.ndarray:
        """See `TrainingTexts`."""
        size_R = self._rows.length
        return size_R if self._row_N is None else size_R[self._row_N]

    def texts(self, index_N: Optional[np.ndarray] = None) -> Iterator[str]:
        """See `TrainingTexts`. Reads the store sequentially instead of mapping it, so memory use stays small."""
        row_N = self._row_N if index_N is None else index_N if self._row_N is None else self._row_N[index_N]
        for first, texts, _ in _pieces(self._shards, self._name, 0):
            if row_N is None:
                yield from texts
            else:
                # searchsorted needs rows in ascending order.
                inside = slice(*np.searchsorted(row_N, [first, first + len(texts)]))
                yield from (texts[row - first] for row in row_N[inside].tolist())

    def digest(self) -> str:
        """See `TrainingTexts`."""
        sha256 = hashlib.sha256(f"{self._shards.key} {self._name}".encode())
        sha256.update(b"" if self._row_N is None else np.ascontiguousarray(self._row_N, np.int64).tobytes())
        return sha256.hexdigest()


class JoinedTexts:
    """Concatenation of several `TrainingTexts`."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self._parts = parts

    def num_bytes(self) -> np.ndarray:
        """See `TrainingTexts`."""
        return np.concatenate([part.num_bytes() for part in self._parts])

    def texts(self, index_N: Optional[np.ndarray] = None) -> Iterator[str]:
        """See `TrainingTexts`."""
        begin = 0
        for part in self._parts:
            size = len(part.num_bytes())
            inside = None if index_N is None else index_N[(index_N >= begin) & (index_N < begin + size)] - begin
            yield from part.texts(inside)
            begin += size

    def digest(self) -> str:
        """See `TrainingTexts`."""
        return hashlib.sha256(" ".join(part.digest() for part in self._parts).encode()).hexdigest()


class TextRecord(NamedTuple):
    """A record of a text store.

    Attributes:
        texts: one text per column.
        number: line or record number.
        group: number of the class, file or document of the record, depending on the dataset.
    """

    texts: Sequence[str]
    number: int
    group: int


def text_forms(num_columns: int) -> Mapping[str, ArrayForm]:
    """Returns the arrays of a store of texts: `text`, `text2`, ..., `number` and `group`."""
    texts = {column_name(number): ArrayForm("uint8", (), True) for number in range(num_columns)}
    return {**texts, "number": ArrayForm("int64"), "group": ArrayForm("int32")}


def column_name(number: int) -> str:
    """Returns the name of the array of a column of texts."""
    return TEXT if number == 0 else f"{TEXT}{number + 1}"


def write_texts(records: Iterable[TextRecord], num_columns: int, writer: ShardWriter, advance: Advance) -> None:
    """Appends records of texts to a store; skips those that an interrupted preparation has already written."""
    # `writer.records` counts the records that were committed before an interruption.
    rest = itertools.islice(records, writer.records, None)
    done = _in_blocks(writer, advance)
    while batch := list(itertools.islice(rest, ROWS_AT_ONCE)):
        values, lengths = {}, {}
        for number in range(num_columns):
            encoded = [record.texts[number].encode() for record in batch]
            values[column_name(number)] = np.frombuffer(b"".join(encoded), np.uint8)
            lengths[column_name(number)] = np.fromiter(map(len, encoded), np.int64, len(encoded))
        values["number"] = np.array([record.number for record in batch], np.int64)
        values["group"] = np.array([record.group for record in batch], np.int32)
        writer.append(len(batch), values, lengths)
        done(int(sum(length_N.sum() for length_N in lengths.values())))


def _in_blocks(writer: ShardWriter, advance: Advance) -> Advance:
    """Returns a function to call with the number of bytes after each append; it commits in blocks."""
    pending = 0

    def done(size: int) -> None:
        nonlocal pending
        advance(size)
        pending += size
        if pending > BYTES_PER_BLOCK:
            writer.commit()
            pending = 0

    return done


def prepare_tokens(
    texts: Shards,
    num_columns: int,
    tokenizer: BaseTokenizer,
    what: str,
    ending: Sequence[int] = (),
    ends_groups: bool = False,
    first_column: int = 0,
) -> Shards:
    """Tokenizes a store of texts into a store with the same records and array names. Cached.

    Args:
        texts: store written by `write_texts`.
        num_columns: number of columns to tokenize.
        tokenizer: tokenizer; special tokens are not added.
        what: name of the data, for progress messages, e.g. train.csv.
        ending: tokens appended to each record, e.g. for the end of a line.
        ends_groups: True to append them only to the last record of each group, e.g. of a file.
        first_column: index of the first column to tokenize.
    """
    names = [column_name(first_column + number) for number in range(num_columns)]
    dtype = "uint16" if tokenizer.size <= 1 << 16 else "int32"  # halves the size on the disk for most vocabularies
    key_parts: List[Json] = [texts.key, names, tokenizer.digest, _version_of(tokenizer), list(ending)]
    if ends_groups:
        key_parts.append("groups")
    total = sum(int(texts.offsets(name)[-1]) for name in names)

    def write(writer: ShardWriter, advance: Advance) -> JsonObject:
        suffix = Suffix(np.array(ending, np.int32), texts.array("group") if ends_groups else None)
        _write_tokens(texts, names, tokenizer, suffix, writer, advance)
        return {}

    forms = {name: ArrayForm(dtype, (), True) for name in names}
    return prepare("tokens", key_parts, forms, write, what=f"tokens of {what}", total=total)


class Suffix(NamedTuple):
    """Tokens that are appended to records.

    Attributes:
        token: token ids.
        group_R: group of each record, to append the tokens only to the last record of a group; None = to all records.
    """

    token: np.ndarray
    group_R: Optional[np.ndarray]

    def append_to(self, first: int, token_F: np.ndarray, length_N: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
        """Appends the tokens to consecutive records.

        Args:
            first: index of the first record.
            token_F: tokens of the records, concatenated.
            length_N: number of tokens of each record.

        Returns:
            The new `token_F` and `length_N`.
        """
        if not len(self.token):
            return token_F, length_N
        is_last_N = np.ones(len(length_N), bool)
        if self.group_R is not None:
            next_groups = self.group_R[first : first + len(length_N) + 1]
            is_last_N[: len(next_groups) - 1] = np.diff(next_groups) != 0
        where = np.repeat(np.cumsum(length_N)[is_last_N], len(self.token))
        extended_F = np.insert(token_F, where, np.tile(self.token, int(is_last_N.sum())))
        return extended_F, length_N + is_last_N * len(self.token)


def _version_of(tokenizer: BaseTokenizer) -> str:
    """Returns the kind of a tokenizer and the version of its library, which may change the tokens."""
    from importlib.metadata import version

    library = {"wordpiece": "tokenizers", "tokenizers": "tokenizers", "sentencepiece": "sentencepiece"}
    package = library.get(tokenizer.kind)
    return f"{tokenizer.kind} {version(package) if package else ''}"


def _write_tokens(
    texts: Shards, names: Sequence[str], tokenizer: BaseTokenizer, suffix: Suffix, writer: ShardWriter, advance: Advance
) -> None:
    def encode(pieces: Tuple[Piece, ...]) -> Tuple[int, int, List[Tuple[np.ndarray, np.ndarray]]]:
        encoded = [suffix.append_to(first, *tokenizer.encode(texts_of_piece)) for first, texts_of_piece, _ in pieces]
        size = sum(num_bytes for *_, num_bytes in pieces)
        return len(pieces[0][1]), size, encoded

    work = zip(*(_pieces(texts, name, writer.records, names) for name in names))
    done = _in_blocks(writer, advance)
    # Threads suffice, because `tokenizers` releases the GIL. Pieces are returned in order, so the content of the store
    # does not depend on the number of threads.
    for count, size, encoded in map_in_order(encode, work, usable_cores()):
        writer.append(
            count,
            {name: token_F for name, (token_F, _) in zip(names, encoded)},
            {name: length_N for name, (_, length_N) in zip(names, encoded)},
        )
        done(size)


def _pieces(texts: Shards, name: str, first: int, names: Optional[Sequence[str]] = None) -> Iterator[Piece]:
    """Yields the texts of a column in pieces of about `BYTES_AT_ONCE` bytes, from record `first` on.

    Args:
        texts: store of texts.
        name: array of the column.
        first: index of the first record.
        names: arrays of all columns that are read together; their pieces have the same records.
    """
    offset_R1 = texts.offsets(name)
    other_names = [] if names is None else [column for column in names if column != name]
    # With a single column, the memory-mapped offsets are not copied.
    sizes_R1 = np.sum([offset_R1, *map(texts.offsets, other_names)], axis=0) if other_names else offset_R1
    while first < len(texts):
        last = int(np.searchsorted(sizes_R1, sizes_R1[first] + BYTES_AT_ONCE))
        last = min(max(last, first + 1), len(texts))
        # The texts are read and not mapped, so memory does not grow while a corpus is prepared.
        content = texts.read(name, int(offset_R1[first]), int(offset_R1[last]))
        ends = (offset_R1[first : last + 1] - offset_R1[first]).tolist()
        yield first, [content[begin:end].decode() for begin, end in zip(ends, ends[1:])], len(content)
        first = last
