"""Tokenizers without subwords: words between white space, as in PTB and WikiText, and characters."""

from __future__ import annotations

import re
from collections import Counter
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Iterable, Mapping, Sequence, Tuple

import numpy as np

from mxtrain.text.tokenizing.base import OWN_SPECIAL, ListedVocab, flat_of

if TYPE_CHECKING:
    from mxtrain.types.annotations import Json

_MAX_COUNTED = 1_000_000
"""Distinct words counted at a time; beyond that, words seen once are dropped."""


class PlainTokenizer(ListedVocab):
    """Base of tokenizers whose tokens are parts of the text as they are."""

    def to_json(self) -> Mapping[str, Json]:
        return {"kind": self.kind, "vocab": list(self.vocab), "lowercase": self.lowercase}

    def _lowered(self, text: str) -> str:
        return text.lower() if self.lowercase else text

    @cached_property
    def _unknown(self) -> int:
        return self.require("unknown", f"dataset.tokenizer={self.kind}")


class Words(PlainTokenizer):
    """Words between white space. `<unk>` and `<eos>` in a text are these tokens, as in the files of PTB."""

    kind: ClassVar[str] = "words"

    def encode(self, texts: Sequence[str]) -> Tuple[np.ndarray, np.ndarray]:
        get, unknown = self.index.get, self._unknown
        return flat_of([[get(word, unknown) for word in self._lowered(text).split()] for text in texts])

    def offsets(self, text: str) -> Tuple[np.ndarray, np.ndarray]:
        span_T2 = np.array([match.span() for match in re.finditer(r"\S+", text)], np.int64).reshape(-1, 2)
        return np.array(
            [self.index.get(self._lowered(text[begin:end]), self._unknown) for begin, end in span_T2], np.int32
        ), span_T2

    def decode(self, tokens: Iterable[int], with_special: bool = False) -> str:
        return " ".join(map(self.vocab.__getitem__, self.shown(tokens, with_special)))


class Characters(PlainTokenizer):
    """Characters, i.e. code points, white space included."""

    kind: ClassVar[str] = "characters"

    @cached_property
    def _table(self) -> np.ndarray:
        """Returns the id of each code point."""
        codes = {ord(token): number for number, token in enumerate(self.vocab) if len(token) == 1}
        table = np.full(max(codes, default=0) + 2, self._unknown, np.int32)
        table[list(codes)] = list(codes.values())
        return table

    def encode(self, texts: Sequence[str]) -> Tuple[np.ndarray, np.ndarray]:
        lowered = list(map(self._lowered, texts))
        # In UTF-32 each character has four bytes, so all texts are encoded by one look-up in a table.
        code_F = np.frombuffer("".join(lowered).encode("utf-32-le", "surrogatepass"), np.uint32)
        token_F = self._table[np.minimum(code_F, len(self._table) - 1)]
        return token_F, np.fromiter(map(len, lowered), np.int64, len(lowered))

    def offsets(self, text: str) -> Tuple[np.ndarray, np.ndarray]:
        # One by one: a few letters have two characters in lower case.
        token_F, length_N = self.encode(list(text))
        begin_F = np.repeat(np.arange(len(text)), length_N)
        return token_F, np.stack([begin_F, begin_F + 1], axis=1)

    def decode(self, tokens: Iterable[int], with_special: bool = False) -> str:
        return "".join(map(self.vocab.__getitem__, self.shown(tokens, with_special)))


def train_words(texts: Iterable[str], size: int, lowercase: bool) -> Words:
    """Builds a vocabulary of the most frequent words: `size` tokens, including special tokens."""
    return Words(_most_frequent((_lowered(text, lowercase).split() for text in texts), size), lowercase)


def train_characters(texts: Iterable[str], size: int, lowercase: bool) -> Characters:
    """Builds a vocabulary of the most frequent characters: `size` tokens, including special tokens."""
    return Characters(_most_frequent((_lowered(text, lowercase) for text in texts), size), lowercase)


def _lowered(text: str, lowercase: bool) -> str:
    return text.lower() if lowercase else text


def _most_frequent(parts: Iterable[Iterable[str]], size: int) -> Tuple[str, ...]:
    """Returns special tokens and the most frequent words; ties are broken by code points."""
    counts: Counter = Counter()
    max_counted = _MAX_COUNTED
    for parts_of_text in parts:
        counts.update(parts_of_text)
        if len(counts) > max_counted:
            # Forgetting what occurred once bounds the memory, at the price of inexact counts of rare parts.
            counts = Counter({part: count for part, count in counts.items() if count > 1})
            max_counted = max(_MAX_COUNTED, 2 * len(counts))
    for name in OWN_SPECIAL:
        counts.pop(name, None)
    # Equal counts are ordered by the text, not by where it stood in the corpus.
    frequent = sorted(counts, key=lambda part: (-counts[part], part))
    return (*OWN_SPECIAL, *frequent[: max(size - len(OWN_SPECIAL), 0)])
