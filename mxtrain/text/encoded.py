"""Texts as tokens, and the samples that are made of them when a batch is read: special tokens, cut, padded.

Legend: N samples, B batch, T tokens of a sample, P paragraphs, D documents, R records of a store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Iterator, Optional, Protocol, Sequence, Tuple

import numpy as np

from mxtrain.data.corpus.shards import Ragged

if TYPE_CHECKING:
    from mxtrain.text.tokenizing.base import BaseTokenizer
    from mxtrain.text.tokenizing.config import TokenizerConfig

_AT_ONCE = 1 << 16
"""Paragraphs or documents processed at a time: there may be millions, so arrays over all are allocated for results
only."""


def begins_anew(number_N: np.ndarray) -> np.ndarray:
    """Returns a mask of numbers that differ from the previous one; the first is True."""
    is_new_N = np.ones(len(number_N), bool)
    np.not_equal(number_N[1:], number_N[:-1], out=is_new_N[1:])
    return is_new_N


def _in_blocks(count: int) -> Iterator[slice]:
    """So many numbers, block by block."""
    for begin in range(0, count, _AT_ONCE):
        yield slice(begin, min(begin + _AT_ONCE, count))


def encode_texts(tokenizer: BaseTokenizer, texts: Sequence[str]) -> Ragged:
    """Texts in memory as tokens."""
    token, length = tokenizer.encode(texts)
    return Ragged(token, np.concatenate([np.zeros(1, np.int64), np.cumsum(length)]))


class EncodedSamples(Protocol):
    """Samples as tokens.

    Attributes:
        length_N: tokens of each, special ones included, after the cut.
        label_N: class indices, numbers to predict, or -1 each.
    """

    length_N: np.ndarray
    label_N: np.ndarray

    def padded(self, index_B: np.ndarray, length: int) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
        """tokens (B, T), token types (B, T), both int32, and lengths (B,) of some samples, padded to `length`."""


class EncodedPairs:
    """Samples of one text or two: `[CLS] text [SEP]` or `[CLS] text [SEP] text [SEP]`, cut to `max_length` where the
    longer text is long.

    Args:
        texts: tokens of the first texts, and of the second ones where there are pairs.
        label_N: of each sample.
        config: special tokens and the length.
        row_N: which row of `texts` each sample is; None = all of them in order.
    """

    def __init__(
        self, texts: Sequence[Ragged], label_N: np.ndarray, config: TokenizerConfig, row_N: Optional[np.ndarray] = None
    ) -> None:  # fmt: skip
        self._texts, self._row_N, self.label_N = texts, row_N, label_N
        special = config.tokenizer.special
        self._first, self._last, self._pad = special.first, special.last, special.pad or 0
        self._room = config.max_length - self._num_special
        counts = [rows.length if row_N is None else rows.begin[row_N + 1] - rows.begin[row_N] for rows in texts]
        self._counts = [count.astype(np.int32) for count in cut_longest_first(counts, self._room)]
        self.length_N = np.asarray(sum(self._counts) + self._num_special, np.int32)

    @property
    def _num_special(self) -> int:
        return (self._first is not None) + len(self._texts) * (self._last is not None)

    def padded(self, index_B: np.ndarray, length: int) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
        """See `EncodedSamples`."""
        place_T = np.arange(length)
        token_BT = np.full((len(index_B), length), self._pad, np.int32)
        kind_BT = np.zeros_like(token_BT)
        row_B = index_B if self._row_N is None else self._row_N[index_B]
        begin_B1 = np.zeros((len(index_B), 1), np.int64)
        if self._first is not None:
            token_BT[:, 0] = self._first
            begin_B1 = begin_B1 + 1
        for number, (rows, count_N) in enumerate(zip(self._texts, self._counts)):
            end_B1 = begin_B1 + count_N[index_B][:, None]
            inside_BT = (place_T >= begin_B1) & (place_T < end_B1)
            where_BT = np.where(inside_BT, rows.begin[row_B][:, None] + place_T - begin_B1, 0)
            if len(rows.value):
                token_BT = np.where(inside_BT, rows.value[where_BT], token_BT).astype(np.int32)
            if self._last is not None:
                token_BT[place_T == end_B1] = self._last
                end_B1 = end_B1 + 1
            kind_BT[(place_T >= begin_B1) & (place_T < end_B1)] = number
            begin_B1 = end_B1
        return token_BT, kind_BT, self.length_N[index_B]


def cut_longest_first(counts: Sequence[np.ndarray], room: int) -> Sequence[np.ndarray]:
    """Returns the number of tokens kept of each text, at most `room` in total. The longer text of a pair is cut first,
    then both to half of the room, as in the published BERT."""
    if len(counts) == 1:
        return [np.minimum(counts[0], room)]
    first_N, second_N = counts
    short_N, long_N = np.minimum(first_N, second_N), np.maximum(first_N, second_N)
    long_N = np.minimum(long_N, np.maximum(short_N, room - short_N))
    is_above = short_N + long_N > room
    short_N = np.where(is_above, room // 2, short_N)
    long_N = np.where(is_above, room - room // 2, long_N)
    is_swapped = first_N > second_N
    return [np.where(is_swapped, long_N, short_N), np.where(is_swapped, short_N, long_N)]


class EncodedPieces:
    """Documents, cut into samples `[CLS] tokens [SEP]` of as many tokens as fit. A sample may span paragraphs, never
    documents.

    Args:
        tokens: of paragraphs, one row each.
        row_P: which of the rows belong to these samples, ascending; None = all.
        document_P: the number of the document of each of these, ascending.
        config: special tokens and the length.
    """

    def __init__(
        self, tokens: Ragged, row_P: Optional[np.ndarray], document_P: np.ndarray, config: TokenizerConfig
    ) -> None:  # fmt: skip
        special = config.tokenizer.special
        self._first, self._last, self._pad = special.first, special.last, special.pad or 0
        self._tokens, self._row_P = tokens, row_P
        # The paragraphs of these samples, one after the other, as if no others stood between them.
        self._begin_P1 = np.zeros(len(document_P) + 1, np.int64)
        for some in _in_blocks(len(document_P)):
            row = np.arange(some.start, some.stop) if row_P is None else row_P[some]
            self._begin_P1[some.start + 1 : some.stop + 1] = tokens.begin[row + 1] - tokens.begin[row]
        np.cumsum(self._begin_P1, out=self._begin_P1)
        room = config.max_length - (self._first is not None) - (self._last is not None)
        begin_D1 = self._begin_P1[np.append(np.flatnonzero(begins_anew(document_P)), len(document_P))]
        pieces_D = np.empty(len(begin_D1) - 1, np.int32)
        for some in _in_blocks(len(pieces_D)):
            pieces_D[some] = -(-np.diff(begin_D1[some.start : some.stop + 1]) // room)
        self._begin_N = np.empty(pieces_D.sum(), np.int64)
        self.length_N = np.empty(len(self._begin_N), np.int32)
        first = 0
        for some in _in_blocks(len(pieces_D)):
            count_D, end_D = pieces_D[some].astype(np.int64), begin_D1[some.start + 1 : some.stop + 1]
            own = slice(first, first + count_D.sum())
            number = np.arange(own.stop - first) - np.repeat(np.cumsum(count_D) - count_D, count_D)
            self._begin_N[own] = np.repeat(begin_D1[some], count_D) + number * room
            count = np.minimum(np.repeat(end_D, count_D) - self._begin_N[own], room)
            self.length_N[own] = count + config.max_length - room
            first = own.stop
        self.label_N = np.broadcast_to(np.int32(-1), len(self.length_N))

    def padded(self, index_B: np.ndarray, length: int) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
        """See `EncodedSamples`."""
        begin = int(self._first is not None)
        length_B = self.length_N[index_B]
        place_T = np.arange(length)
        end_B1 = (length_B - (self._last is not None))[:, None]
        inside_BT = (place_T >= begin) & (place_T < end_B1)
        where = (self._begin_N[index_B][:, None] + place_T - begin)[inside_BT]
        paragraph = np.searchsorted(self._begin_P1, where, side="right") - 1
        row = paragraph if self._row_P is None else self._row_P[paragraph]
        where += self._tokens.begin[row] - self._begin_P1[paragraph]
        token_BT = np.full((len(index_B), length), self._pad, np.int32)
        token_BT[inside_BT] = self._tokens.value[where]
        if self._first is not None:
            token_BT[:, 0] = self._first
        if self._last is not None:
            token_BT[place_T == end_B1] = self._last
        return token_BT, np.zeros_like(token_BT), length_B
