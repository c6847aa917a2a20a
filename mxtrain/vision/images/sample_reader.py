"""Reads the samples of a batch from a source, changed, mixed, and with what a task makes of their labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from mxtrain.data.loading.randomness import seed_of_repeat
from mxtrain.data.loading.samples import Encode
from mxtrain.errors import LoaderError, MxtrainError
from mxtrain.vision.images.augment import augment_batch, mix_batch

if TYPE_CHECKING:
    from mxtrain.data.base import Source
    from mxtrain.vision.images.settings import Augment
    from mxtrain.vision.images.transforms.chain import TransformChain

Arrays = Tuple[np.ndarray, ...]
"""The arrays of a batch from a source: images, labels, and facts that stay on the host where there are any."""


class ReadBatch(NamedTuple):
    """Samples of a batch as they were read, on the host."""

    image_BCHW: np.ndarray
    targets: Tuple[np.ndarray, ...]
    meta: Optional[np.ndarray]
    """Facts that stay on the host, where the source has some."""


NOTHING = ReadBatch(np.empty(0), (), None)
"""A batch in which this worker has no share."""


class SampleReader:
    """Reads samples of one source. Safe to call from several threads at once."""

    def __init__(
        self, source: Source, encode: Optional[Encode], *, augment: Augment, chain: TransformChain, fill_C: np.ndarray,
        num_classes: int, seed: int, train: bool,
    ) -> None:  # fmt: skip
        """Prepare.

        Args:
            source: Where samples come from.
            encode: What the task makes of labels; None = they are the only target.
            augment: What to change in images.
            chain: Transforms of what came out of that.
            fill_C: their colour outside of the image.
            num_classes: The width of mixed labels.
            seed: Of the run.
            train: Whether anything may be random.
        """
        self._source, self._encode, self._augment = source, encode, augment
        self._chain, self._fill_C = chain, fill_C
        self._num_classes, self._seed, self._train = num_classes, seed, train

    def read(self, drawn_B: np.ndarray, *, epoch: int, partner_N: Optional[np.ndarray]) -> ReadBatch:
        """Fetched and augmented samples with what the task makes of their labels.

        Args:
            drawn_B: As `Sampler` names them.
            epoch: Counts from 0.
            partner_N: The samples to mix with; None = any.

        Raises:
            LoaderError: One cannot be read.
        """
        if not len(drawn_B):
            return NOTHING
        try:
            image_BCHW, label, *meta = self._fetch_drawn(drawn_B, epoch, partner_N)
            targets = (label,) if self._encode is None else self._encode(label)
            return ReadBatch(image_BCHW, targets, meta[0] if meta else None)
        except MxtrainError:
            raise
        except Exception as error:
            index_B = drawn_B % len(self._source)
            raise LoaderError(
                f"Reading samples {index_B[0]} to {index_B[-1]} (in the order of the dataset's files) failed: "
                f"{type(error).__name__}: {error}"
            ) from error

    def _fetch_drawn(self, drawn_B: np.ndarray, epoch: int, partner_N: Optional[np.ndarray]) -> Arrays:
        """Images and labels, (B,), mixed ones (B, K), or whatever the source has of each sample.

        A sample that the epoch has several times is changed in another way each time, by another seed.
        """
        repeat_B, index_B = np.divmod(drawn_B, len(self._source))
        if not repeat_B.any():
            return self._fetch_mixed(index_B, epoch, self._seed, partner_N)
        repeats = np.unique(repeat_B).tolist()
        rows = [np.flatnonzero(repeat_B == repeat) for repeat in repeats]
        parts = [
            self._fetch_mixed(index_B[rows_b], epoch, seed_of_repeat(self._seed, repeat), partner_N)
            for repeat, rows_b in zip(repeats, rows)
        ]
        back_B = np.argsort(np.concatenate(rows))
        return tuple(np.concatenate(arrays)[back_B] for arrays in zip(*parts))

    def _fetch_mixed(self, index_B: np.ndarray, epoch: int, seed: int, partner_N: Optional[np.ndarray]) -> Arrays:
        if not self._augment.mixes:
            return self._fetch(index_B, epoch, seed)
        return mix_batch(
            lambda index: self._fetch(index, epoch, seed), index_B, self._augment, num_samples=len(self._source),
            num_classes=self._num_classes, seed=seed, epoch=epoch, partner_N=partner_N,
        )  # fmt: skip

    def _fetch(self, index_B: np.ndarray, epoch: int, seed: int) -> Arrays:
        image_BCHW, label, *others = self._source.fetch(index_B, seed=seed, epoch=epoch, train=self._train)
        if self._train:
            image_BCHW = augment_batch(image_BCHW, index_B, self._augment, seed=seed, epoch=epoch)
            image_BCHW, label = self._chain.apply(
                image_BCHW, label, index_B, self._fill_C, seed=seed, epoch=epoch
            )  # fmt: skip
        return (image_BCHW, label, *others)


def join(parts: Sequence[ReadBatch]) -> ReadBatch:
    """Parts of a batch as one."""
    if len(parts) < 2:
        return parts[0] if parts else NOTHING
    targets = tuple(map(np.concatenate, zip(*(part.targets for part in parts))))
    meta = None if parts[0].meta is None else np.concatenate([part.meta for part in parts])
    return ReadBatch(np.concatenate([part.image_BCHW for part in parts]), targets, meta)
