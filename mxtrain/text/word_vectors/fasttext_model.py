"""Models of fastText (.bin), with vectors for words and for subwords.

The vector of a word is the mean of its own vector and of those of its character n-grams, which are numbered by a hash.
So a model has a vector for words that it was not trained on, too.

Source: fastText 0.9.2, `Dictionary::computeSubwords`, `Dictionary::hash`, `FastText::saveModel`; and Bojanowski et al.,
"Enriching Word Vectors with Subword Information", https://arxiv.org/abs/1607.04606.

Legend: R rows of the matrix, E numbers of a vector.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import BinaryIO, Dict, Iterator, List, Tuple

import numpy as np

from mxtrain.errors import DataError
from mxtrain.text.word_vectors.plain_vectors import MAX_WIDTH
from mxtrain.text.word_vectors.vector_stream import VectorStream, read_until
from mxtrain.text.word_vectors.word_table import Match, WordTable

MAGIC = struct.pack("<i", 793712314)
_BEGINNING = "<4s13id"
"""Magic number, version, and the settings of training."""
NEWEST = 12
"""Version of the format. Since version 12, classifiers have subwords, too."""
SUPERVISED = 3
"""Number of the kind of model that classifies."""
MAX_NGRAM = 100
END_OF_TEXT = b"</s>"
"""This word has no subwords."""
_HASH_START, _HASH_FACTOR, _MASK = 2166136261, 16777619, 0xFFFFFFFF
_WRITE_TEXT = "Write the vectors of your words as text: fasttext print-word-vectors MODEL.bin < words.txt > words.vec"


@dataclass(frozen=True)
class FastTextModel:
    """A model of fastText.

    Attributes:
        stream: the file.
        width: E.
        min_ngram, max_ngram: characters of the shortest and longest subword; no subwords if the second is 0.
        buckets: number of vectors of subwords.
    """

    stream: VectorStream
    width: int
    min_ngram: int
    max_ngram: int
    buckets: int

    def fill(self, table: WordTable) -> None:
        """Reads the dictionary, then the rows of the matrix that words of the vocabulary need.

        Raises:
            DataError: the file is damaged, or quantised.
        """
        with self.stream.open() as file:
            try:
                _read(file, _BEGINNING)
                rows, num_words = self._read_dictionary(file, table)
                if _read(file, "<?")[0]:
                    raise self._refused("is quantised", _WRITE_TEXT)
                num_rows, width = _read(file, "<qq")
                if width != self.width or num_rows != num_words + self.buckets:
                    raise self._refused(
                        f"has a matrix of {num_rows:,} x {width:,} numbers for {num_words:,} words and "
                        f"{self.buckets:,} subwords of {self.width:,}",
                        "It is damaged: copy or download it again",
                    )
                self._average(file, table, rows)
            except _EndsEarly as error:
                raise self._refused("ends early", "Copy or download it again") from error

    def _refused(self, fact: str, remedy: str) -> DataError:
        return DataError(f"model.embeddings: {self.stream} {fact}. {remedy}.")

    def _read_dictionary(self, file: BinaryIO, table: WordTable) -> Tuple[Dict[int, List[int]], int]:
        """Returns the rows of each token that gets a vector, and the number of words of the model."""
        size, num_words, num_labels, _, num_pruned = _read(file, "<iiiqq")
        if min(size, num_words, num_labels) < 0 or num_words + num_labels != size:
            raise self._refused("has a damaged dictionary", "Copy or download it again")
        if num_pruned >= 0:
            raise self._refused("has been pruned by `quantize`", _WRITE_TEXT)
        found: Dict[int, Tuple[int, bytes]] = {}
        for number in range(size):
            word = read_until(file, b"\0")
            if word is None:
                raise _EndsEarly
            _read(file, "<qb")
            if number < num_words:  # labels of a classifier follow
                for token in table.claim(word):
                    found[token] = number, word
        rows = {token: [number, *self._subwords(word, num_words)] for token, (number, word) in found.items()}
        for token in table.missing():
            subwords = self._subwords(table.words[token].encode("utf-8", "surrogatepass"), num_words)
            if subwords:
                rows[token] = subwords
                table.match_V[token] = Match.COMPOSED
        return rows, num_words

    def _subwords(self, word: bytes, num_words: int) -> List[int]:
        """Returns the rows of the subwords of a word."""
        if word == END_OF_TEXT or not self.max_ngram or not self.buckets:
            return []
        return [num_words + code % self.buckets for code in ngram_hashes(word, self.min_ngram, self.max_ngram)]

    def _average(self, file: BinaryIO, table: WordTable, rows: Dict[int, List[int]]) -> None:
        """Sets vectors to the means of their rows, which are read in ascending order, each once."""
        tokens_of_row: Dict[int, List[int]] = {}
        for token, needed in rows.items():
            for row in needed:
                tokens_of_row.setdefault(row, []).append(token)
        begin, num_bytes = file.tell(), 4 * self.width
        # In float64, so that the order of the rows has no effect on float32.
        sum_VE = np.zeros(table.vector_VE.shape)
        for row in sorted(tokens_of_row):
            file.seek(begin + row * num_bytes)
            content = file.read(num_bytes)
            if len(content) < num_bytes:
                raise _EndsEarly
            vector_E = np.frombuffer(content, "<f4")
            if not np.isfinite(vector_E).all():
                raise self._refused(f"has a value that is not finite in row {row:,}", "Copy or download it again")
            for token in tokens_of_row[row]:
                sum_VE[token] += vector_E
        for token, needed in rows.items():
            table.vector_VE[token] = sum_VE[token] / len(needed)


class _EndsEarly(Exception):
    pass


def recognise_fasttext(stream: VectorStream) -> FastTextModel:
    """Reads the settings at the beginning of a model.

    Raises:
        DataError: another version, or sizes that cannot be.
    """
    with stream.open() as file:
        try:
            _, version, width, _, _, _, _, _, _, kind, buckets, low, high, _, _ = _read(file, _BEGINNING)
        except _EndsEarly:
            raise DataError(f"model.embeddings: {stream} ends early. Copy or download it again.") from None
    if not 1 <= version <= NEWEST:
        raise DataError(
            f"model.embeddings: {stream} has version {version} of fastText's format, and versions up to {NEWEST} are "
            f"read. {_WRITE_TEXT}."
        )
    if not (1 <= width <= MAX_WIDTH and buckets >= 0 and 0 <= low <= MAX_NGRAM and 0 <= high <= MAX_NGRAM):
        raise DataError(
            f"model.embeddings: {stream} has vectors of {width:,} numbers and {buckets:,} subwords of {low} to {high} "
            "characters: it is damaged. Copy or download it again."
        )
    if kind == SUPERVISED and version < NEWEST:
        high = 0
    return FastTextModel(stream, width, low, high, buckets)


def ngram_hashes(word: bytes, low: int, high: int) -> Iterator[int]:
    """Yields the hash of each character n-gram of `<word>`, in the order of fastText.

    The hash is FNV-1a in 32 bits, with bytes from 128 on as negative numbers. n-grams of one character leave `<` and
    `>` out.

    Args:
        word: the word in UTF-8.
        low, high: characters of the shortest and longest n-gram.
    """
    marked = b"<" + word + b">"
    starts = [index for index, byte in enumerate(marked) if byte & 0xC0 != 0x80] + [len(marked)]
    for first in range(len(starts) - 1):
        code = _HASH_START
        for count in range(1, min(high, len(starts) - 1 - first) + 1):
            for byte in marked[starts[first + count - 1] : starts[first + count]]:
                code = ((code ^ (byte | 0xFFFFFF00 if byte & 0x80 else byte)) * _HASH_FACTOR) & _MASK
            is_mark = count == 1 and first in (0, len(starts) - 2)
            if count >= low and not is_mark:
                yield code


def _read(file: BinaryIO, form: str) -> Tuple[int, ...]:
    size = struct.calcsize(form)
    content = file.read(size)
    if len(content) < size:
        raise _EndsEarly
    return struct.unpack(form, content)
