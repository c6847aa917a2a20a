"""Loads windows of running text, as continuous rows or in random order, and prompts.

Legend: B rows of a batch, T tokens of a window, P tokens to predict of a split, R prompts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Iterator, Tuple

import numpy as np

from mxtrain.data.corpus.shards import Ragged
from mxtrain.data.loading.loader import BatchLoader, Consumer, LoaderOptions
from mxtrain.data.loading.randomness import integers
from mxtrain.errors import DataError
from mxtrain.text.draws import TextDraw
from mxtrain.text.language_modeling.running_text import RunningText
from mxtrain.types import Batch

if TYPE_CHECKING:
    from mxtrain.data.loading.placing import HostArrays

IGNORED_LABEL = -1
"""The label where no token is to be predicted."""


class RunningLoader(BatchLoader):
    """Loads windows of T tokens, with the next tokens as labels.

    In an epoch, each token of a split but the first is a label once. With `continues_previous`, the text is divided
    into as many streams as a batch has rows, and row r of a batch continues row r of the previous batch; otherwise
    windows are in random order. In training, the text is rotated by a random number of tokens in each epoch, so that
    windows begin at other tokens.

    Args:
        text: tokens of the split.
        options: options of all loaders.
        length: T.
        continues_previous: True if rows continue those of the previous batch.
    """

    def __init__(self, text: RunningText, options: LoaderOptions, *, length: int, continues_previous: bool) -> None:
        batch_size = options.batch_size
        self._token_N, self._length, self._continues_previous = text.token_N, length, continues_previous
        self._num_targets = len(text.token_N) - 1
        if self._num_targets < 1:
            raise DataError(f"a split has {len(text.token_N)} tokens: at least 2 are needed. Give more text.")
        self._bytes_per_target = text.num_bytes / self._num_targets
        self._stream_length = -(-self._num_targets // batch_size) if continues_previous else self._num_targets
        windows = -(-self._stream_length // length)
        super().__init__(windows * batch_size if continues_previous else windows, options)

    def _shuffle(self, index_N: np.ndarray, epoch: int) -> np.ndarray:
        return np.arange(len(index_N)) if self._continues_previous else super()._shuffle(index_N, epoch)

    def _make_batches(self, epoch: int, start: int, consumer: Consumer) -> Iterator[Batch]:
        for number, batch in enumerate(super()._make_batches(epoch, start, consumer), start=start):
            # The first batch of an epoch does not continue another one, so recurrent states are reset.
            yield replace(batch, continues_previous=True) if self._continues_previous and number else batch

    def windows(self, index_B: np.ndarray, epoch: int) -> Tuple[np.ndarray, np.ndarray]:
        """Returns the tokens (B, T), int32, and the labels (B, T), float32, of windows."""
        stream_B, window_B = np.zeros_like(index_B), index_B
        if self._continues_previous:
            window_B, stream_B = np.divmod(index_B, self.batch_size)
        inside_BT = window_B[:, None] * self._length + np.arange(self._length)
        position_BT = np.reshape(stream_B, (-1, 1)) * self._stream_length + inside_BT
        is_target_BT = (inside_BT < self._stream_length) & (position_BT < self._num_targets)
        rotation = 0
        if self.train:
            # Rotating the text changes the bounds of windows in each epoch, but keeps the order of tokens, on which the
            # recurrent state depends.
            rotation = int(integers(self.seed, epoch, np.zeros(1, np.int64), TextDraw.TEXT_BEGIN, self._num_targets)[0])
        position_BT = (position_BT + rotation) % self._num_targets
        label_BT = np.where(is_target_BT, self._token_N[position_BT + 1].astype(np.float32), np.float32(IGNORED_LABEL))
        return self._token_N[position_BT].astype(np.int32), label_BT

    def _read_share(self, share_B: np.ndarray, index_B: np.ndarray, epoch: int) -> Tuple[HostArrays, HostArrays]:
        token_BT, label_BT = self.windows(share_B, epoch)
        bytes_B = ((label_BT != IGNORED_LABEL).sum(axis=1) * self._bytes_per_target).astype(np.float32)
        return (token_BT, label_BT), (label_BT, bytes_B)


class PromptLoader(BatchLoader):
    """Loads prompts in order, one per row: the last T tokens of each. `Batch.meta` has the prompt lengths (B, 1).

    Args:
        prompts: tokens of each prompt.
        options: options of all loaders.
        length: T.
    """

    def __init__(self, prompts: Ragged, options: LoaderOptions, *, length: int) -> None:
        super().__init__(len(prompts.begin) - 1, options)
        self._prompts, self._length = prompts, length

    def _make_batches(self, epoch: int, start: int, consumer: Consumer) -> Iterator[Batch]:
        for batch in super()._make_batches(epoch, start, consumer):
            assert batch.index_B is not None
            count_B = np.minimum(self._prompts.length[batch.index_B], self._length)
            yield replace(batch, meta=count_B[:, None])

    def _read_share(self, share_B: np.ndarray, index_B: np.ndarray, epoch: int) -> Tuple[HostArrays, HostArrays]:
        token_BT = np.zeros((len(share_B), self._length), np.int32)
        for row, index in zip(token_BT, share_B):
            begin, end = self._prompts.begin[index : index + 2]
            # The end of a long prompt is kept, because the next token follows it.
            prompt = self._prompts.value[max(begin, end - self._length) : end]
            row[: len(prompt)] = prompt
        label_BT = np.full(token_BT.shape, IGNORED_LABEL, np.float32)
        return (token_BT, label_BT), (label_BT, np.zeros(len(share_B), np.float32))
