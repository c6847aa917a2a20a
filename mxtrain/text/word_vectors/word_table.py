"""The vectors that a file has for the words of a vocabulary.

Legend: V tokens of the vocabulary, E numbers of a vector.
"""

from __future__ import annotations

from collections import defaultdict
from enum import IntEnum
from typing import Dict, List, Mapping

import numpy as np

from mxtrain.errors import DataError

SHOWN_WORDS = 4


class Match(IntEnum):
    """Ways in which a word can be found, the better the greater."""

    NONE = 0
    COMPOSED = 1
    LOWER = 2
    EXACT = 3


class WordTable:
    """Collects a vector for each word of a vocabulary while a file is read. Only these vectors are in memory.

    A word takes the first vector of the same spelling. If the file has none, it takes the first vector whose word is
    the same in lower case.

    Attributes:
        words: token -> word, without special tokens that are no words.
        vector_VE: vectors, float32; 0 for words without one.
        match_V: a `Match` for each token.

    Args:
        words: token -> word.
        size: V.
        width: E.
    """

    def __init__(self, words: Mapping[int, str], size: int, width: int) -> None:
        self.words = words
        self.vector_VE = np.zeros((size, width), np.float32)
        self.match_V = np.zeros(size, np.int8)
        self._exact: Dict[bytes, int] = {}
        self._lower: Dict[bytes, List[int]] = defaultdict(list)
        for token, word in words.items():
            self._exact[_encoded(word)] = token
            self._lower[_encoded(word.lower())].append(token)

    def claim(self, word: bytes) -> List[int]:
        """Returns the tokens that take the vector of a word of the file, and marks them as found."""
        tokens = []
        token = self._exact.get(word)
        if token is not None and self.match_V[token] < Match.EXACT:
            self.match_V[token] = Match.EXACT
            tokens.append(token)
        for other in self._lower.get(_lowered(word), ()):
            if self.match_V[other] < Match.LOWER:
                self.match_V[other] = Match.LOWER
                tokens.append(other)
        return tokens

    def missing(self) -> List[int]:
        """Returns the tokens of words without a vector."""
        return [token for token in self.words if self.match_V[token] == Match.NONE]

    def describe(self, name: str) -> str:
        """Returns a sentence on the coverage of the vocabulary.

        Args:
            name: the file, for the message.

        Raises:
            DataError: no word has a vector.
        """
        total = len(self.words)
        match_N = self.match_V[list(self.words)]
        count = int((match_N != Match.NONE).sum())
        missing = [self.words[token] for token in self.missing()]
        examples = ", ".join(repr(word[:60]) for word in missing[:SHOWN_WORDS])
        if not count:
            raise DataError(
                f"model.embeddings: {name} has a vector for none of the {total:,} words of the vocabulary, such as "
                f"{examples}. Give a file of the same language, whose words are divided alike."
            )
        parts = [
            f"{int((match_N == match).sum()):,} {text}"
            for match, text in ((Match.LOWER, "by lower case"), (Match.COMPOSED, "made of subwords"))
            if (match_N == match).any()
        ]
        ways = f", of which {' and '.join(parts)}" if parts else ""
        others = f"; the other {len(missing):,} start from random values, such as {examples}" if missing else ""
        return f"word vectors: {count:,} of {total:,} words ({count / total:.1%}) are in {name}{ways}{others}"


def _encoded(word: str) -> bytes:
    return word.encode("utf-8", "surrogatepass")


def _lowered(word: bytes) -> bytes:
    return word.lower() if word.isascii() else _encoded(word.decode("utf-8", "ignore").lower())
