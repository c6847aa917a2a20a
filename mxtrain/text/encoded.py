"""Tokenized texts, and samples of them, built when a batch is read: special tokens, truncation, padding.

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


def run_starts(number_N: np.ndarray) -> np.ndarray:
    """Returns a mask of numbers that differ from the previous one; the first is True."""
    is_new_N = np.ones(len(number_N), bool)
    np.not_equal(number_N[1:], number_N[:-1], out=is_new_N[1:])
    return is_new_N


def _in_blocks(count: int) -> Iterator[slice]:
    """Yields the slices that divide `count` rows into blocks of `_AT_ONCE`."""
    for begin in range(0, count, _AT_ONCE):
        yield slice(begin, min(begin + _AT_ONCE, count))


def encode_texts(tokenizer: BaseTokenizer, texts: Sequence[str]) -> Ragged:
    """Tokenizes texts in memory."""
    token, length = tokenizer.encode(texts)
    return Ragged(token, np.concatenate([np.zeros(1, np.int64), np.cumsum(length)]))


class EncodedSamples(Protocol):
    """Tokenized samples.

    Attributes:
        length_N: number of tokens of each sample after truncation, including special tokens.
        label_N: class indices, numbers to predict, or -1 each.
    """

    length_N: np.ndarray
    label_N: np.ndarray

    def padded(self, index_B: np.ndarray, length: int) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns samples, padded to `length` tokens.

        Args:
            index_B: indices of the samples.
            length: T.

        Returns:
            Tokens (B, T) and token types (B, T), both int32, and lengths (B,).
        """


class EncodedPairs:
    """Samples `[CLS] text [SEP]` or `[CLS] text [SEP] text [SEP]`, truncated to `max_length` tokens.

    Args:
        texts: tokens of the first texts and, for pairs, of the second texts.
        label_N: label of each sample.
        config: tokenizer, which has the special tokens, and maximum length.
        row_N: row of `texts` of each sample; None = all rows in order.
    """

    def __init__(
        self, texts: Sequence[Ragged], label_N: np.ndarray, config: TokenizerConfig, row_N: Optional[np.ndarray] = None
    ) -> None:
        self._texts, self._row_N, self.label_N = texts, row_N, label_N
        special = config.tokenizer.special
        self._first, self._last, self._pad = special.first, special.last, special.pad or 0
        self._room = config.max_length - self._num_special
        counts = [rows.length if row_N is None else rows.begin[row_N + 1] - rows.begin[row_N] for rows in texts]
        # Texts are cut when a batch is read, so tokens on the disk serve every length and task.
        self._counts = [count.astype(np.int32) for count in cut_longest_first(counts, self._room)]
        self.length_N = np.asarray(sum(self._counts) + self._num_special, np.int32)

    @property
    def _num_special(self) -> int:
        return (self._first is not None) + len(self._texts) * (self._last is not None)

    def padded(self, index_B: np.ndarray, length: int) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
        """See `EncodedSamples`."""
        position_T = np.arange(length)
        token_BT = np.full((len(index_B), length), self._pad, np.int32)
        type_BT = np.zeros_like(token_BT)
        row_B = index_B if self._row_N is None else self._row_N[index_B]
        begin_B1 = np.zeros((len(index_B), 1), np.int64)
        if self._first is not None:
            token_BT[:, 0] = self._first
            begin_B1 = begin_B1 + 1
        for number, (rows, count_N) in enumerate(zip(self._texts, self._counts)):
            end_B1 = begin_B1 + count_N[index_B][:, None]
            inside_BT = (position_T >= begin_B1) & (position_T < end_B1)
            where_BT = np.where(inside_BT, rows.begin[row_B][:, None] + position_T - begin_B1, 0)
            if len(rows.value):
                token_BT = np.where(inside_BT, rows.value[where_BT], token_BT).astype(np.int32)
            if self._last is not None:
                token_BT[position_T == end_B1] = self._last
                end_B1 = end_B1 + 1
            type_BT[(position_T >= begin_B1) & (position_T < end_B1)] = number
            begin_B1 = end_B1
        return token_BT, type_BT, self.length_N[index_B]


def cut_longest_first(counts: Sequence[np.ndarray], room: int) -> Sequence[np.ndarray]:
    """Returns the number of tokens kept of each text, at most `room` in total.

    The longer text of a pair is truncated first, then both to half of the room, as in the published BERT.
    """
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
    """Documents, divided into samples `[CLS] tokens [SEP]` of `max_length` tokens.

    A sample may span paragraphs, but not documents.

    Args:
        tokens: tokens of paragraphs, one row each.
        row_P: rows that belong to these samples, ascending; None = all.
        document_P: document number of each of these rows, ascending.
        config: tokenizer, which has the special tokens, and maximum length.
    """

    def __init__(
        self, tokens: Ragged, row_P: Optional[np.ndarray], document_P: np.ndarray, config: TokenizerConfig
    ) -> None:
        special = config.tokenizer.special
        self._first, self._last, self._pad = special.first, special.last, special.pad or 0
        self._tokens, self._row_P = tokens, row_P
        # Offsets of the paragraphs of these samples in their concatenation, without the other paragraphs.
        self._begin_P1 = np.zeros(len(document_P) + 1, np.int64)
        for block in _in_blocks(len(document_P)):
            row = np.arange(block.start, block.stop) if row_P is None else row_P[block]
            self._begin_P1[block.start + 1 : block.stop + 1] = tokens.begin[row + 1] - tokens.begin[row]
        np.cumsum(self._begin_P1, out=self._begin_P1)
        room = config.max_length - (self._first is not None) - (self._last is not None)
        begin_D1 = self._begin_P1[np.append(np.flatnonzero(run_starts(document_P)), len(document_P))]
        pieces_D = np.empty(len(begin_D1) - 1, np.int32)
        for block in _in_blocks(len(pieces_D)):
            pieces_D[block] = -(-np.diff(begin_D1[block.start : block.stop + 1]) // room)
        self._begin_N = np.empty(pieces_D.sum(), np.int64)
        self.length_N = np.empty(len(self._begin_N), np.int32)
        first = 0
        for block in _in_blocks(len(pieces_D)):
            count_D, end_D = pieces_D[block].astype(np.int64), begin_D1[block.start + 1 : block.stop + 1]
            samples = slice(first, first + count_D.sum())
            number = np.arange(samples.stop - first) - np.repeat(np.cumsum(count_D) - count_D, count_D)
            self._begin_N[samples] = np.repeat(begin_D1[block], count_D) + number * room
            count = np.minimum(np.repeat(end_D, count_D) - self._begin_N[samples], room)
            self.length_N[samples] = count + config.max_length - room
            first = samples.stop
        self.label_N = np.broadcast_to(np.int32(-1), len(self.length_N))

    def padded(self, index_B: np.ndarray, length: int) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
        """See `EncodedSamples`."""
        begin = int(self._first is not None)
        length_B = self.length_N[index_B]
        position_T = np.arange(length)
        end_B1 = (length_B - (self._last is not None))[:, None]
        inside_BT = (position_T >= begin) & (position_T < end_B1)
        where = (self._begin_N[index_B][:, None] + position_T - begin)[inside_BT]
        paragraph = np.searchsorted(self._begin_P1, where, side="right") - 1
        row = paragraph if self._row_P is None else self._row_P[paragraph]
        where += self._tokens.begin[row] - self._begin_P1[paragraph]
        token_BT = np.full((len(index_B), length), self._pad, np.int32)
        token_BT[inside_BT] = self._tokens.value[where]
        if self._first is not None:
            token_BT[:, 0] = self._first
        if self._last is not None:
            token_BT[position_T == end_B1] = self._last
        return token_BT, np.zeros_like(token_BT), length_B
