"""Pairs of a source text and its translation, and their tokens.

The input of the encoder is `tokens <eos>` of the source. The input of the decoder is `<bos> tokens` of the target, and
its label `tokens <eos>`.

Legend: N pairs, B batch, S tokens of a source, T tokens of a target.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Callable, Dict, List, Optional, Sequence, Tuple, Union

import numpy as np

from mxtrain.data.checking.checks import Checked
from mxtrain.data.checking.problems import LONG_TEXT, DataLocations, Problem
from mxtrain.data.corpus.shards import Ragged, Shards
from mxtrain.text.encoded import encode_texts
from mxtrain.text.sources import LabelledTexts, Pair
from mxtrain.text.stored import JoinedTexts, StoredColumn, column_name, prepare_tokens
from mxtrain.text.stored_sources import StoredTexts
from mxtrain.text.text_checks import TextChecks
from mxtrain.text.tokenizing.kinds import TextsInMemory, TrainingTexts

if TYPE_CHECKING:
    from mxtrain.data.checking.checks import Checks
    from mxtrain.text.tokenizing.base import BaseTokenizer
    from mxtrain.text.tokenizing.config import TokenizerConfig

IGNORED_LABEL = -1
"""Label of positions without a token to predict."""
Tokenizers = Tuple["BaseTokenizer", "BaseTokenizer"]
"""Tokenizers of sources and of targets."""
SOURCE, TARGET = 0, 1
"""Numbers of the sides of a pair."""


@dataclass(frozen=True)
class LengthLimit:
    """Maximum length of one side of a pair.

    Attributes:
        max_length: tokens, including one special token.
        setting: setting of the dataset.
        remedy: what happens to longer texts, for messages.
    """

    max_length: int
    setting: str
    remedy: str


class ParallelTokens:
    """Tokenized pairs, possibly memory-mapped.

    Attributes:
        source_fits_N: True if the source of a pair has at most the `max_length` of its settings.
        fits_N: True if both sides have at most the `max_length` of theirs.
        size_N: number of tokens of the longer side of each pair after truncation, including special tokens.
        bytes_N: number of UTF-8 bytes of each target; for truncated targets in proportion to the remaining tokens.

    Args:
        sides: tokens of sources, and of targets if known.
        bytes_N: number of UTF-8 bytes of each target.
        configs: tokenizer settings of source and target.
        row_N: row of each pair; None = all rows in order.
    """

    def __init__(
        self,
        sides: Sequence[Ragged],
        bytes_N: np.ndarray,
        configs: Sequence[TokenizerConfig],
        row_N: Optional[np.ndarray] = None,
    ) -> None:
        self._sides, self._configs, self._row_N = sides, configs, row_N
        rooms = [config.max_length - 1 for config in configs]
        lengths = [side.length if row_N is None else side.begin[row_N + 1] - side.begin[row_N] for side in sides]
        self.source_fits_N = lengths[0] <= rooms[0]
        self.fits_N = np.logical_and.reduce([length_N <= room for length_N, room in zip(lengths, rooms)])
        self._counts = [np.minimum(length_N, room).astype(np.int32) for length_N, room in zip(lengths, rooms)]
        self.size_N = np.max(self._counts, axis=0) + 1
        self.bytes_N = bytes_N * (self._counts[-1] / np.maximum(lengths[-1], 1))

    def __len__(self) -> int:
        return len(self.size_N)

    def source(self, index_B: np.ndarray, length: int) -> Tuple[np.ndarray, np.ndarray]:
        """Returns source tokens (B, S), int32, padded, and their lengths (B,)."""
        special = self._configs[0].tokenizer.special
        token_BS = self._padded(SOURCE, index_B, length, special.pad or 0, first=0)
        count_B = self._counts[SOURCE][index_B]
        token_BS[np.arange(len(index_B)), count_B] = special.eos
        return token_BS, count_B + 1

    def target(self, index_B: np.ndarray, length: int) -> Tuple[np.ndarray, np.ndarray]:
        """Returns tokens (B, T) int32, padded, and the next tokens (B, T) float32, -1 = none; if targets are unknown, a
        <bos> and -1."""
        special = self._configs[1].tokenizer.special
        if len(self._sides) == 1:
            shape = (len(index_B), 1)
            return np.full(shape, special.bos, np.int32), np.full(shape, IGNORED_LABEL, np.float32)
        token_BT = self._padded(TARGET, index_B, length, special.pad or 0, first=1)
        token_BT[:, 0] = special.bos
        label_BT = self._padded(TARGET, index_B, length, IGNORED_LABEL, first=0).astype(np.float32)
        label_BT[np.arange(len(index_B)), self._counts[TARGET][index_B]] = special.eos
        return token_BT, label_BT

    def longest(self, side: int, index_B: np.ndarray) -> int:
        """Returns the length of the longest source (`SOURCE`) or target (`TARGET`) of a batch, including one special
        token."""
        return int(self._counts[side][index_B].max()) + 1 if side < len(self._counts) else 1

    def _padded(self, side: int, index_B: np.ndarray, length: int, padding: int, first: int) -> np.ndarray:
        """Returns the tokens of a side from position `first` on, (B, length) int32; other positions have `padding`."""
        rows, count_B1 = self._sides[side], self._counts[side][index_B][:, None]
        row_B = index_B if self._row_N is None else self._row_N[index_B]
        position_T = np.arange(length) - first
        inside_BT = (position_T >= 0) & (position_T < count_B1)
        token_BT = np.full(inside_BT.shape, padding, np.int32)
        token_BT[inside_BT] = rows.value[(rows.begin[row_B][:, None] + position_T)[inside_BT]]
        return token_BT


class InMemoryPairs(LabelledTexts):
    """Pairs in memory. Texts to translate have no target.

    Args:
        pairs: source and target of each pair.
    """

    def __init__(self, pairs: Sequence[Pair]) -> None:
        super().__init__(pairs, np.zeros(len(pairs), np.float32))
        self._encoded: Dict[str, ParallelTokens] = {}

    def take(self, indices: Sequence[int]) -> InMemoryPairs:
        """See `LabelledTexts`."""
        kept = [index for index in indices if index < len(self)]
        return InMemoryPairs([self.pairs[index] for index in kept])

    def side(self, number: int) -> TrainingTexts:
        """Returns all sources (`SOURCE`) or all targets (`TARGET`)."""
        return TextsInMemory([pair[number] or "" for pair in self.pairs])

    def tokens(self, configs: Sequence[TokenizerConfig]) -> ParallelTokens:
        """Returns all pairs as tokens."""
        key = _key_of(configs)
        if key not in self._encoded:
            count = 1 if len(self.pairs) and self.pairs[0][1] is None else 2
            sides = [
                encode_texts(config.tokenizer, list(self.side(number).texts()))
                for number, config in enumerate(configs[:count])
            ]
            self._encoded[key] = ParallelTokens(sides, self.side(TARGET).num_bytes(), configs)
        return self._encoded[key]


class StoredParallel(StoredTexts):
    """Pairs in a store on disk, with the interface of `InMemoryPairs`.

    Args:
        shards: store with two columns.
        what: name of the data, for progress messages.
        row_N: record of each pair; None = all in order.
        record_locations: source location of each record of the store.
        tokenizers: function that builds the tokenizers with which `data check` counts tokens; None = no count.
        limits: maximum number of tokens of sources and targets; see `LengthLimit`.
    """

    def __init__(
        self,
        shards: Shards,
        what: str,
        row_N: Optional[np.ndarray],
        record_locations: DataLocations,
        tokenizers: Optional[Callable[[], Tokenizers]] = None,
        limits: Sequence[LengthLimit] = (),
    ) -> None:
        count = len(shards) if row_N is None else len(row_N)
        super().__init__(shards, 2, what, np.broadcast_to(np.float32(0), count), row_N, record_locations)
        self._tokenizers, self._limits = tokenizers, limits
        self._encoded: Dict[str, ParallelTokens] = {}

    def take(self, indices: Union[Sequence[int], np.ndarray]) -> StoredParallel:
        """See `StoredTexts`."""
        kept = np.asarray(indices, np.int64)
        kept = kept[kept < len(self)]
        row_N = kept if self._row_N is None else self._row_N[kept]
        return StoredParallel(self.shards, self._what, row_N, self._record_locations, self._tokenizers, self._limits)

    def with_token_counts(self, tokenizers: Callable[[], Tokenizers], limits: Sequence[LengthLimit]) -> StoredParallel:
        """Returns the same pairs, with the tokenizers by which `data check` counts their tokens."""
        return StoredParallel(self.shards, self._what, self._row_N, self._record_locations, tokenizers, limits)

    def checks(self) -> Checks:
        """Returns the checks that `data check` runs on each pair."""
        return ParallelChecks(self, self.locations, self._tokenizers, self._limits)

    def side(self, number: int) -> StoredColumn:
        """Returns all sources (`SOURCE`) or all targets (`TARGET`)."""
        return StoredColumn(self.shards, column_name(number), self._row_N)

    def tokens(self, configs: Sequence[TokenizerConfig]) -> ParallelTokens:
        """Returns all pairs as tokens, which are stored on disk."""
        key = _key_of(configs)
        if key not in self._encoded:
            self._encoded[key] = ParallelTokens(
                self._sides(configs), self.side(TARGET).num_bytes(), configs, self._row_N
            )
        return self._encoded[key]

    def _sides(self, configs: Sequence[TokenizerConfig]) -> List[Ragged]:
        source, target = (config.tokenizer for config in configs)
        if source == target:
            shards = prepare_tokens(self.shards, 2, source, self._what)
            return [shards.ragged(column_name(number)) for number in range(2)]
        return [
            prepare_tokens(self.shards, 1, tokenizer, self._what, first_column=number).ragged(column_name(number))
            for number, tokenizer in enumerate((source, target))
        ]


AnyPairs = Union[InMemoryPairs, StoredParallel]


def _key_of(configs: Sequence[TokenizerConfig]) -> str:
    return " ".join(f"{config.tokenizer.digest} {config.max_length}" for config in configs)


def both_sides(pairs: AnyPairs) -> TrainingTexts:
    """Returns all sources and all targets, one after the other."""
    return JoinedTexts([pairs.side(SOURCE), pairs.side(TARGET)])


class ParallelChecks(TextChecks):
    """Checks of pairs: empty sides, and sides of more tokens than fit."""

    def __init__(
        self,
        source: StoredParallel,
        locations: Optional[DataLocations],
        tokenizers: Optional[Callable[[], Tokenizers]],
        limits: Sequence[LengthLimit],
    ) -> None:
        super().__init__(source, locations)
        self._build, self._limits = tokenizers, limits

    @cached_property
    def _tokenizers(self) -> Sequence[BaseTokenizer]:
        return self._build() if self._build is not None else ()

    def check(self, index: int) -> Checked:
        """See `Checks`."""
        checked = super().check(index)
        problems, location = list(checked.problems), self.location(index)
        for name, text, tokenizer, limit in zip(
            ("source", "target"), self._pairs[index], self._tokenizers, self._limits
        ):
            count = len(tokenizer.tokens(text)) + 1
            if count > limit.max_length:
                fact = f"{location}: the {name} has {count} tokens, and dataset.{limit.setting}={limit.max_length}."
                problems.append(Problem(LONG_TEXT, location, fact, limit.remedy))
        return Checked(problems, checked.digest, checked.classes)
