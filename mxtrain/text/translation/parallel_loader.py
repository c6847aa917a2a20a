"""Loads batches of pairs of texts: of as many pairs, or of as many tokens.

Legend: N pairs, B batch, S tokens of a source, T tokens of a target.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, List, Optional, Sequence, Tuple

import numpy as np

from mxtrain.data.loading.sized import SizedLoader
from mxtrain.errors import DataError
from mxtrain.text.translation.parallel import SOURCE, TARGET, AnyPairs

if TYPE_CHECKING:
    from mxtrain.data.loading.loader import LoaderOptions
    from mxtrain.data.loading.placing import HostArrays
    from mxtrain.text.tokenizing.config import TokenizerConfig


class PairLoader(SizedLoader):
    """Batches of one split. Each is as long as its longest source and its longest target, in every process.
    The size of a pair is the length of its longer side.

    Args:
        source: pairs.
        configs: how sources and targets become tokens.
        options: options of all loaders.
        batch_tokens: in training, rows times tokens of the longest side at most; None = `batch_size` pairs.
        batches_per_pool: see `SizedLoader`.
        cuts_long: True to cut long texts in training; False to leave these pairs out.

    Raises:
        DataError: all pairs are too long to train on.
    """

    def __init__(
        self,
        source: AnyPairs,
        configs: Sequence[TokenizerConfig],
        options: LoaderOptions,
        *,
        batch_tokens: Optional[int] = None,
        batches_per_pool: int = 1,
        cuts_long: bool = False,
    ) -> None:
        train = options.train
        self._tokens, self._pairs = source.tokens(configs), None if train else source.pairs
        # Long pairs are left out of training, as in Moses and fairseq. In validation they are cut for the loss.
        leaves_out = train and not cuts_long
        self._kept_N = np.flatnonzero(self._tokens.fits_N) if leaves_out else np.arange(len(self._tokens))
        if train and not len(self._kept_N):
            raise DataError(
                f"no training pair has at most {configs[0].max_length} tokens on each side. Type a larger "
                "dataset.max_length."
            )
        super().__init__(
            self._tokens.size_N[self._kept_N], options, batch_budget=batch_tokens, batches_per_pool=batches_per_pool
        )
        # Of samples that are shown together; else each batch is as long as its own targets.
        self._target_length = self._tokens.longest(TARGET, self._kept_N) if options.in_order and self.total else None

    def _indices(self, epoch: int, start: int) -> List[np.ndarray]:
        return [self._kept_N[index_B] for index_B in super()._indices(epoch, start)]

    def _meta(self, index_B: np.ndarray) -> Optional[np.ndarray]:
        """Returns the right translation of each pair, where it is measured."""
        if self._pairs is None:
            return None
        return np.array([self._pairs[index][1] or "" for index in index_B.tolist()], object)

    def _read_share(self, share_B: np.ndarray, index_B: np.ndarray, epoch: int) -> Tuple[HostArrays, HostArrays]:
        tokens = self._tokens
        source_BS, length_B = tokens.source(share_B, tokens.longest(SOURCE, index_B))
        token_BT, label_BT = tokens.target(share_B, self._target_length or tokens.longest(TARGET, index_B))
        inputs = (source_BS, length_B.astype(np.float32), token_BT, label_BT)
        return inputs, (label_BT, tokens.bytes_N[share_B].astype(np.float32))
