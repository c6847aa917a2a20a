"""Files with one vector for each word: GloVe's text, and the text and binary forms of word2vec, which fastText and
gensim write, too.

- GloVe: lines `word number number ...`. A word of glove.840B contains spaces.
- Text of word2vec (.vec of fastText): the same after a line with the number of words and of numbers.
- Binary word2vec: the same first line; then each word, a space and its numbers as little-endian float32. The program
  of word2vec adds a line end after each vector, gensim adds none.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from dataclasses import dataclass
from typing import BinaryIO, Iterator, Optional, Tuple

import numpy as np

from mxtrain.errors import DataError
from mxtrain.files.text_numbers import parse_integer
from mxtrain.text.word_vectors.vector_stream import MAX_LINE, VectorStream, read_until
from mxtrain.text.word_vectors.word_table import WordTable

MAX_WIDTH = 20_000
EXAMINED_LINES = 100
"""Lines by which the width of a file without a first line of sizes is determined: that of most of them, as words with
spaces are rare."""
FORMS = "GloVe's .txt, .vec and .bin of fastText, or the text and binary files of word2vec"
MAX_FLOAT = float(np.finfo(np.float32).max)
_NUMBER = re.compile(rb"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_NOT_IN_NUMBERS = re.compile(rb"[^0-9eE+. -]")
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1f]")
_PICKLE = b"\x80"


@dataclass(frozen=True)
class PlainVectors:
    """A file with one vector for each word.

    Attributes:
        stream: the file.
        width: numbers of a vector.
        count: number of words by the first line; None = there is no such line.
        is_binary: True for numbers in float32.
    """

    stream: VectorStream
    width: int
    count: Optional[int]
    is_binary: bool

    def fill(self, table: WordTable) -> None:
        """Reads the vectors of a vocabulary's words, in one pass over the file.

        Raises:
            DataError: the file is damaged.
        """
        with self.stream.open() as file:
            if self.is_binary:
                self._fill_from_binary(file, table)
            else:
                self._fill_from_text(file, table)

    def _fill_from_text(self, file: BinaryIO, table: WordTable) -> None:
        lines = _lines(self.stream, file)
        rows = 0
        for number, line in itertools.islice(lines, int(self.count is not None), None):
            rows += 1
            word, numbers = self._split(number, line)
            tokens = table.claim(word)
            if tokens:
                table.vector_VE[tokens] = self._parsed(number, numbers)
        if self.count is not None and rows != self.count:
            raise DataError(
                f"{self.stream} has {rows:,} vectors, and {self.count:,} by its first line. It is incomplete: copy or "
                "download it again."
            )

    def _split(self, number: int, line: bytes) -> Tuple[bytes, bytes]:
        """Returns the word of a line, and its numbers as text."""
        count = line.count(b" ")
        if count == self.width:
            word, _, numbers = line.partition(b" ")
            return word, numbers
        if count > self.width:
            # Only the numbers of words that are needed are parsed, so the beginning of the line decides.
            fields = line.rsplit(b" ", self.width)
            word = fields[0]
            last = word.rpartition(b" ")[2]
            if last.isdigit() or not _NUMBER.fullmatch(last):
                return word, line[len(word) + 1 :]
        raise DataError(
            f"{self.stream}, line {number:,} has {count} numbers, and the vectors before have {self.width}. The file "
            "is damaged: copy or download it again."
        )

    def _parsed(self, number: int, numbers: bytes) -> np.ndarray:
        values = _parse(numbers)
        if values is None:
            raise DataError(f"{self.stream}, line {number:,} has a value that is no finite number of float32.")
        return values

    def _fill_from_binary(self, file: BinaryIO, table: WordTable) -> None:
        file.readline(MAX_LINE)
        num_bytes = 4 * self.width
        assert self.count is not None, "binary files begin with the sizes"
        for row in range(self.count):
            word = read_until(file, b" ")
            content = file.read(num_bytes)
            if word is None or len(content) < num_bytes:
                raise DataError(
                    f"{self.stream} ends in vector {row + 1:,}, or is damaged there; by its first line it has "
                    f"{self.count:,}. Copy or download it again."
                )
            tokens = table.claim(word.lstrip(b"\n"))
            if tokens:
                vector_E = np.frombuffer(content, "<f4")
                if not np.isfinite(vector_E).all():
                    raise DataError(f"{self.stream}, vector {row + 1:,} has a value that is not finite.")
                table.vector_VE[tokens] = vector_E


def recognise_vectors(stream: VectorStream) -> PlainVectors:
    """Determines form and width of a file by its first lines.

    Raises:
        DataError: it is no file of word vectors.
    """
    with stream.open() as file:
        begin, second = file.readline(MAX_LINE), file.readline(MAX_LINE)
    sizes = _sizes(begin)
    # "1000 5" is no line of sizes, but a word and its number, if the next line has one number, too.
    if sizes is not None and (_is_binary(second) or second.rstrip(b" \r\n").count(b" ") != 1 or sizes[1] == 1):
        count, width = sizes
        if not 1 <= width <= MAX_WIDTH or count < 1:
            raise DataError(
                f"model.embeddings: {stream} has {count:,} vectors of {width:,} numbers by its first line; at least "
                f"one vector of 1 to {MAX_WIDTH:,} numbers is needed."
            )
        return PlainVectors(stream, width, count, _is_binary(second))
    with stream.open() as file:
        lines = [line for _, line in itertools.islice(_lines(stream, file), EXAMINED_LINES)]
    widths = Counter(line.count(b" ") for line in lines)
    width = max(widths, key=lambda one: (widths[one], -one), default=0)
    are_numbers = (_parse(line.partition(b" ")[2]) is not None for line in lines if line.count(b" ") == width)
    if not 1 <= width <= MAX_WIDTH or not any(are_numbers):
        raise _no_vectors(stream, begin)
    return PlainVectors(stream, width, None, False)


def _no_vectors(stream: VectorStream, begin: bytes) -> DataError:
    if begin[:1] == _PICKLE:
        return DataError(
            f"model.embeddings: {stream} is a pickle, as gensim saves its objects, and pickles are never loaded. Write "
            "it with gensim: model.wv.save_word2vec_format('vectors.txt')."
        )
    if not begin:
        return DataError(f"model.embeddings: {stream} is empty.")
    return DataError(f"model.embeddings: {stream} is no file of word vectors. It can be {FORMS}.")


def _sizes(line: bytes) -> Optional[Tuple[int, int]]:
    """Returns the number of words and of numbers, if a line consists of them."""
    fields = line.split()
    sizes = [parse_integer(field.decode("latin-1"), 0) for field in fields[:3]]
    if len(sizes) != 2 or sizes[0] is None or sizes[1] is None:
        return None
    return sizes[0], sizes[1]


def _is_binary(line: bytes) -> bool:
    """Returns True if a line is no text: a vector of float32 has bytes below 0x20, or no valid UTF-8."""
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return True
    return bool(_CONTROL.search(line))


def _lines(stream: VectorStream, file: BinaryIO) -> Iterator[Tuple[int, bytes]]:
    """Yields number and content of each line, without the space that fastText writes at its end."""
    for number in itertools.count(1):
        line = file.readline(MAX_LINE + 1)
        if not line:
            return
        if len(line) > MAX_LINE:
            raise DataError(f"{stream} has a line of more than {MAX_LINE:,} bytes.")
        yield number, line.rstrip(b" \r\n")


def _parse(numbers: bytes) -> Optional[np.ndarray]:
    """Returns the numbers of a line as float32, rounded once from float64; None if one is no finite number."""
    if _NOT_IN_NUMBERS.search(numbers):  # of nan and inf, and what float() takes besides numbers
        return None
    try:
        values = np.array([float(field) for field in numbers.split(b" ")])
    except ValueError:
        return None
    return values.astype(np.float32) if (np.abs(values) <= MAX_FLOAT).all() else None
