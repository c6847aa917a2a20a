"""Reads the samples of a batch from a source: fetches, augments and mixes them, and encodes labels for the task."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from mxtrain.data.loading.randomness import seed_of_repeat
from mxtrain.data.loading.samples import Encode
from mxtrain.errors import LoaderError, MxtrainError
from mxtrain.vision.images.augment import augment_batch, mix_batch

if TYPE_CHECKING:
    from mxtrain.data.spec import Source
    from mxtrain.vision.images.settings import Augment
    from mxtrain.vision.images.transforms.chain import TransformChain

Arrays = Tuple[np.ndarray, ...]
"""Arrays of a batch from a source: images, labels and, if the source has any, metadata that stays on the host."""


class ReadBatch(NamedTuple):
    """Samples of a batch on the host."""

    image_BCHW: np.ndarray
    targets: Tuple[np.ndarray, ...]
    meta: Optional[np.ndarray]
    """Metadata that stays on the host; None if the source has none."""


EMPTY_BATCH = ReadBatch(np.empty(0), (), None)
"""Result for a batch of which this worker reads no samples."""


class SampleReader:
    """Reads samples of one source. Safe to call from several threads at once."""

    def __init__(
        self,
        source: Source,
        encode: Optional[Encode],
        *,
        augment: Augment,
        chain: TransformChain,
        fill_C: np.ndarray,
        num_classes: int,
        seed: int,
        train: bool,
    ) -> None:
        """Stores the source and the settings.

        Args:
            source: source of the samples.
            encode: encodes labels into the targets of the task; None: labels are the only target.
            augment: augmentation of images.
            chain: transforms that are applied after the augmentation.
            fill_C: colour outside of a transformed image.
            num_classes: number of classes, K of mixed labels (B, K).
            seed: seed of the run.
            train: if False, nothing is random.
        """
        self._source, self._encode, self._augment = source, encode, augment
        self._chain, self._fill_C = chain, fill_C
        self._num_classes, self._seed, self._train = num_classes, seed, train

    def read(self, position_B: np.ndarray, *, epoch: int, partner_N: Optional[np.ndarray]) -> ReadBatch:
        """Reads and augments samples, and encodes their labels for the task.

        Args:
            position_B: positions from `Sampler`: index + repeat * length of the source.
            epoch: number of the epoch, from 0.
            partner_N: indices of the samples that may be mixed in; None: all.

        Raises:
            LoaderError: a sample cannot be read.
        """
        if not len(position_B):
            return EMPTY_BATCH
        try:
            image_BCHW, label, *meta = self._fetch_repeats(position_B, epoch, partner_N)
            targets = (label,) if self._encode is None else self._encode(label)
            return ReadBatch(image_BCHW, targets, meta[0] if meta else None)
        except MxtrainError:
            raise
        except Exception as error:
            index_B = position_B % len(self._source)
            raise LoaderError(
                f"Reading samples {index_B[0]} to {index_B[-1]} (in the order of the dataset's files) failed: "
                f"{type(error).__name__}: {error}"
            ) from error

    def _fetch_repeats(self, position_B: np.ndarray, epoch: int, partner_N: Optional[np.ndarray]) -> Arrays:
        """Returns images and labels: classes (B,), mixed labels (B, K), or the annotations of the source.

        A sample that occurs several times in an epoch is augmented with another seed each time.
        """
        repeat_B, index_B = np.divmod(position_B, len(self._source))
        if not repeat_B.any():
            return self._fetch_mixed(index_B, epoch, self._seed, partner_N)
        repeats = np.unique(repeat_B).tolist()
        rows = [np.flatnonzero(repeat_B == repeat) for repeat in repeats]  # rows of the batch, by repeat
        parts = [
            self._fetch_mixed(index_B[row_b], epoch, seed_of_repeat(self._seed, repeat), partner_N)
            for repeat, row_b in zip(repeats, rows)
        ]
        order_B = np.argsort(np.concatenate(rows))
        return tuple(np.concatenate(arrays)[order_B] for arrays in zip(*parts))

    def _fetch_mixed(self, index_B: np.ndarray, epoch: int, seed: int, partner_N: Optional[np.ndarray]) -> Arrays:
        """Fetches samples, mixed with others if the augmentation says so."""
        if not self._augment.mixes:
            return self._fetch(index_B, epoch, seed)
        return mix_batch(
            lambda index: self._fetch(index, epoch, seed),
            index_B,
            self._augment,
            num_samples=len(self._source),
            num_classes=self._num_classes,
            seed=seed,
            epoch=epoch,
            partner_N=partner_N,
        )

    def _fetch(self, index_B: np.ndarray, epoch: int, seed: int) -> Arrays:
        """Fetches samples, and augments them in training."""
        image_BCHW, label, *meta = self._source.fetch(index_B, seed=seed, epoch=epoch, train=self._train)
        if self._train:
            image_BCHW = augment_batch(image_BCHW, index_B, self._augment, seed=seed, epoch=epoch)
            image_BCHW, label = self._chain.apply(image_BCHW, label, index_B, self._fill_C, seed=seed, epoch=epoch)
        return (image_BCHW, label, *meta)


def join(parts: Sequence[ReadBatch]) -> ReadBatch:
    """Concatenates parts of a batch."""
    if len(parts) < 2:
        return parts[0] if parts else EMPTY_BATCH
    targets = tuple(map(np.concatenate, zip(*(part.targets for part in parts))))
    meta = None if parts[0].meta is None else np.concatenate([part.meta for part in parts])
    return ReadBatch(np.concatenate([part.image_BCHW for part in parts]), targets, meta)
