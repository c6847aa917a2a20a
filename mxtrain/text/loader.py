"""Loads batches of texts of similar length, padded to the longest text of the batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional, Tuple

import numpy as np

from mxtrain.data.loading.sized import SizedLoader
from mxtrain.data.sample_weights import WeightedSamples
from mxtrain.text.sources import TextSource, mask_tokens

if TYPE_CHECKING:
    from mxtrain.data.loading.loader import LoaderOptions
    from mxtrain.data.loading.placing import HostArrays
    from mxtrain.text.tokenizing.config import TokenizerConfig

LENGTH_STEP = 8
"""Batch lengths are multiples of this (or `max_length`), so that few shapes occur."""


class TextLoader(SizedLoader):
    """Loads the batches of one split.

    The length of a batch is that of the longest text in the global batch, so that every placement sees the same shapes.

    Args:
        source: texts.
        tokenizer_config: tokenizer and maximum length.
        options: options of all loaders.
        batches_per_pool: see `SizedLoader`.
    """

    def __init__(
        self, source: TextSource, tokenizer_config: TokenizerConfig, options: LoaderOptions, batches_per_pool: int = 1
    ) -> None:
        self._encoded = source.encode(tokenizer_config)
        self._weight_N = source.read_weights() if isinstance(source, WeightedSamples) else None
        super().__init__(self._encoded.length_N, options, batches_per_pool=batches_per_pool)
        self.tokenizer_config = tokenizer_config

    def _read_share(self, share_B: np.ndarray, index_B: np.ndarray, epoch: int) -> Tuple[HostArrays, HostArrays]:
        arrays = self._read(share_B, self._length(index_B), epoch)
        *inputs, label = [array for array in arrays if array is not None]
        return tuple(inputs), (label, *([] if self._weight_N is None else [self._weight_N[share_B]]))

    def _length(self, index_B: np.ndarray) -> int:
        longest = int(self._encoded.length_N[index_B].max())
        # Few different lengths, because a batch of another length than the one before costs a small BERT 15 ms of 90.
        return min(-(-longest // LENGTH_STEP) * LENGTH_STEP, self.tokenizer_config.max_length)

    def _read(
        self, index_B: np.ndarray, length: int, epoch: int
    ) -> Tuple[np.ndarray, np.ndarray, np.ndarray, Optional[np.ndarray], np.ndarray]:
        """Returns tokens, token types, lengths, masked positions or None, and labels."""
        token_BT, kind_BT, length_B = self._encoded.padded(index_B, length)
        position_BM, label = None, self._encoded.label_N[index_B].astype(np.float32)
        if self.tokenizer_config.mask_fraction:
            # Validations must be comparable, so they mask the same tokens each time.
            token_BT, position_BM, label = mask_tokens(
                token_BT, length_B, index_B, self.tokenizer_config, seed=self.seed, epoch=epoch if self.train else -1
            )
        return token_BT, kind_BT, length_B.astype(np.float32), position_BM, label
