"""The samples of a dataset: the protocols by which they are read, and the splits of an opened dataset.

Shapes are suffixes: B batch, C channels, H height, W width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable, Optional, Protocol, Sequence, Tuple

from mxtrain.dataset.image.settings import Decoding
from mxtrain.types import Shape

if TYPE_CHECKING:
    import numpy as np

    from mxtrain.dataset.image.key_points import KeyPointSet
    from mxtrain.dataset.language.tokenizing.config import TokenizerConfig
    from mxtrain.dataset.table.feature_columns import FeatureColumns


class Samples(Protocol):
    """The samples of a split. What else can be asked of them is between a dataset, its loader and its task: of images
    `Source` says it, of texts `mxtrain.dataset.language.sources.TextSource`."""

    def __len__(self) -> int:
        """The number of samples."""


class Source(Protocol):
    """Images by index. Must be safe to call from several threads at once.

    Attributes:
        shape: (C, H, W) of every image.
        samples_per_task: how many samples a worker thread fetches at a time; 0 = the whole batch at once, which is best
            where fetching is a copy of memory.
    """

    shape: Shape
    samples_per_task: int

    def __len__(self) -> int:
        """The number of samples."""

    def fetch(self, index_B: np.ndarray, *, seed: int, epoch: int, train: bool) -> Tuple[np.ndarray, ...]:
        """The samples at these indices; the same arguments always give the same result.

        Args:
            index_B: int64 indices from 0 to len - 1.
            seed: Seed of the run; used where reading itself is random (a random crop before resizing).
            epoch: Counts from 0.
            train: Whether reading may be random at all.

        Returns:
            image_BCHW, uint8 or float32 from 0 to 255, which the caller may write to, and label_B, int32.

        Raises:
            LoaderError: A sample cannot be read; the message names it.
        """


@dataclass(frozen=True)
class Splits:
    """An opened dataset.

    Attributes:
        train: Samples to train on.
        val: Samples to choose by; disjoint from train.
        test: Samples to report on, or None where the dataset has none.
        class_names: One name per class; labels index it.
        shape: Native (C, H, W); for decoded images the shape after resizing.
        mean: Per channel, in units where white is 1.
        std: Per channel, in units where white is 1.
        decoding: For images: how files are read as its samples are; None = whole, in `shape`.
        mask_values: For masks: the value of each class in a mask's file; empty where there are no masks.
        category_ids: For things in pictures: the number of each class in the dataset's own files; else empty.
        key_points: For things with key points, whose names are `class_names`: what these have to do with each other.
        build_tokenizer_config: For text: makes the vocabulary, which may take a while. Its splits are
            `language.sources.TextSource`s, and it has no classes but its tokens where these are to be predicted.
        build_columns: For features of a table: counts values and measures numbers of the training rows.
    """

    train: Samples
    val: Samples
    test: Optional[Samples]
    class_names: Sequence[str]
    shape: Shape = ()
    mean: Sequence[float] = ()
    std: Sequence[float] = ()
    decoding: Optional[Decoding] = None
    mask_values: Sequence[int] = ()
    category_ids: Sequence[int] = ()
    key_points: Optional[KeyPointSet] = None
    build_tokenizer_config: Optional[Callable[[], TokenizerConfig]] = None
    build_columns: Optional[Callable[[], FeatureColumns]] = None
