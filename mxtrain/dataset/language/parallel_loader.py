"""Loads batches of pairs of texts: of as many pairs, or of as many tokens.

Legend: N pairs, B batch, S tokens of a source, T tokens of a target.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List, Optional, Sequence, Tuple, Union

import numpy as np

from mxtrain.dataset.language.parallel import AnyPairs
from mxtrain.dataset.language.sources import order_by_length
from mxtrain.dataset.loading.loader import BatchLoader
from mxtrain.dataset.loading.randomness import Draw, bits
from mxtrain.errors import DataError

if TYPE_CHECKING:
    from mxnet import Context
    from mxnet.ndarray import NDArray

    from mxtrain.dataset.language.tokenizing.config import TokenizerConfig


class PairLoader(BatchLoader):
    """Batches of one split. Each is as long as its longest source and its longest target, whoever computes which part
    of it.

    With `batch_tokens` pairs are sorted by the length of their longer side, in each epoch with those of the same length
    in another order, and cut into batches of as many as fit. Where the cuts are follows from the lengths alone, so each
    epoch has as many batches; their order is drawn anew. An epoch has each pair once.

    Args:
        source: pairs.
        configs: how sources and targets become tokens.
        batch_tokens: in training, rows times tokens of the longest side at most; None = `batch_size` pairs.
        batches_per_pool: without it, how many batches' pairs are sorted by length together in training; 1 = none.
        in_order: without training, keep the order of the pairs; else they are sorted by length.
        device: a context or its name.
        options: of `BatchLoader`.

    Raises:
        DataError: all pairs are too long to train on.
    """

    def __init__(
        self, source: AnyPairs, configs: Sequence[TokenizerConfig], *, batch_tokens: Optional[int] = None,
        batches_per_pool: int = 1, in_order: bool = False, device: Union[str, Context] = "cpu:0",
        limit_batches: Optional[int] = None, train: bool = False, **options: Any,
    ) -> None:  # fmt: skip
        from mxtrain.dataset.loading.placing import as_device

        self._tokens, self._pairs = source.tokens(configs), None if train else source.pairs
        self._kept_N = np.flatnonzero(self._tokens.fits_N) if train else np.arange(len(self._tokens))
        if train and not len(self._kept_N):
            raise DataError(
                f"no training pair has at most {configs[0].max_length} tokens on each side. Type a larger "
                "dataset.max_length."
            )
        super().__init__(len(self._kept_N), limit_batches=limit_batches, train=train, **options)
        self._size_N = self._tokens.size_N[self._kept_N]
        self._batches_per_pool, self._in_order, self._device = batches_per_pool, in_order, as_device(device)
        self._begin: Optional[np.ndarray] = None
        if train and batch_tokens is not None:
            self._begin = cut_by_tokens(np.sort(self._size_N), batch_tokens)
            whole = len(self._begin) - 1
            self.num_batches = whole if limit_batches is None else min(whole, limit_batches)
            self.coverage = "" if self.num_batches == whole else f"{self.num_batches} of {whole} batches"
        # Of samples that are shown together; else each batch is as long as its own targets.
        self._target_length = self._tokens.longest(1, self._kept_N) if in_order and self.total else None

    @property
    def num_samples(self) -> int:
        """Samples per epoch; those of a part of its batches where these differ are those of the first epoch."""
        if self._begin is None or not self.coverage:
            return super().num_samples if self._begin is None else self.total
        return sum(map(len, self._indices(0, 0)))

    def _shuffle(self, index_N: np.ndarray, epoch: int) -> np.ndarray:
        return order_by_length(
            self._size_N[index_N], self.batch_size, seed=self.seed, epoch=epoch, batches_per_pool=self._batches_per_pool
        )

    def _still_order(self) -> np.ndarray:
        return super()._still_order() if self._in_order else np.argsort(self._size_N, kind="stable")

    def _indices(self, epoch: int, start: int) -> List[np.ndarray]:
        if self._begin is None:
            found = super()._indices(epoch, start)
        else:
            random_N = bits(self.seed, epoch, np.arange(self.total), Draw.ORDER)
            order = np.lexsort((random_N, self._size_N))
            count = len(self._begin) - 1
            turn = np.argsort(bits(self.seed, epoch, np.arange(count), Draw.BATCH_ORDER), kind="stable")
            found = [order[self._begin[one] : self._begin[one + 1]] for one in turn[start : self.num_batches].tolist()]
        return [self._kept_N[index_B] for index_B in found]

    def _meta(self, index_B: np.ndarray) -> Optional[np.ndarray]:
        """The right translation of each pair, where it is measured."""
        if self._pairs is None:
            return None
        return np.array([self._pairs[index][1] or "" for index in index_B.tolist()], object)

    def _read_share(
        self, share_B: np.ndarray, index_B: np.ndarray, epoch: int
    ) -> Tuple[Tuple[NDArray, ...], Tuple[NDArray, ...]]:  # fmt: skip
        from mxtrain.dataset.loading.placing import copy_to

        tokens = self._tokens
        source_BS, length_B = tokens.source(share_B, tokens.longest(0, index_B))
        token_BT, label_BT = tokens.target(share_B, self._target_length or tokens.longest(1, index_B))
        label, size = copy_to(label_BT, self._device), copy_to(tokens.bytes_N[share_B].astype(np.float32), self._device)
        inputs = (source_BS, length_B.astype(np.float32), token_BT)
        return (*(copy_to(array, self._device) for array in inputs), label), (label, size)


def cut_by_tokens(size_N: np.ndarray, batch_tokens: int) -> np.ndarray:
    """Where batches begin in ascending sizes, and the end of the last: each has as many as fit, that is rows times the
    largest size is at most `batch_tokens`, which no size is above."""
    begin, end = [0], len(size_N)
    while begin[-1] < end:
        first = begin[-1]
        some = size_N[first : first + batch_tokens // int(size_N[first])]
        begin.append(first + int(np.searchsorted(some * np.arange(1, len(some) + 1), batch_tokens, side="right")))
    return np.array(begin)
