"""The samples of a dataset: the protocols by which they are read, and the splits of an opened dataset.

Shapes are suffixes: B batch, C channels, H height, W width.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Callable, Dict, Optional, Protocol, Sequence, Tuple, runtime_checkable

import numpy as np
from typing_extensions import Self

from mxtrain.types import Shape

REQUIRED: Any = object()
"""Default of required arguments: before Python 3.10 a dataclass cannot have them behind optional ones."""


def refuse_missing(instance: Any) -> None:
    """Checks that a dataclass was given the fields whose default is `REQUIRED`.

    Raises:
        TypeError: one is missing.
    """
    missing = [field.name for field in fields(instance) if getattr(instance, field.name) is REQUIRED]
    if missing:
        raise TypeError(f"{type(instance).__name__} needs {', '.join(missing)}")


class Samples(Protocol):
    """The samples of a split. Further methods are agreed between a dataset, its loader and its task: `Source` defines
    them for images, a class of their field for other samples."""

    def __len__(self) -> int:
        """Returns the number of samples."""


@runtime_checkable
class SelectableSamples(Protocol):
    """Samples of which a subset can be selected, if they are no `Source`."""

    def take(self, indices: Sequence[int]) -> Samples:
        """Returns the samples at these indices; indices beyond the end are ignored."""


@runtime_checkable
class Labelled(Protocol):
    """Samples that each have a class."""

    def read_labels(self) -> np.ndarray:
        """Returns the class of each sample, int32."""


@runtime_checkable
class Wrapper(Protocol):
    """Samples backed by another source."""

    source: Any

    def index_in_source(self, index: int) -> int:
        """Returns the index in that source of the sample at `index`."""


@runtime_checkable
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
        """Returns the number of samples."""

    def fetch(self, index_B: np.ndarray, *, seed: int, epoch: int, train: bool) -> Tuple[np.ndarray, ...]:
        """Returns the samples at these indices; the same arguments always give the same result.

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


@runtime_checkable
class SupportsPrefetch(Protocol):
    """Samples in files that may be in an object store: files that are requested together cost its latency only once."""

    def prefetch(self, index_N: np.ndarray) -> None:
        """Requests samples that will be read soon, without waiting for them."""


def prefetch(samples: object, index_N: np.ndarray) -> None:
    """Prefetches samples, if they support it."""
    if isinstance(samples, SupportsPrefetch):
        samples.prefetch(index_N)


@runtime_checkable
class TextPairs(Protocol):
    """Samples that are texts, alone or in pairs."""

    pairs: Sequence[Tuple[str, Optional[str]]]


@dataclass(frozen=True)
class Splits:
    """An opened dataset. A field whose signatures need more has a subclass.

    Attributes:
        train: training samples.
        val: validation samples, by which checkpoints are chosen; disjoint from `train`.
        test: test samples; None if the dataset has none.
        class_names: name of each class, indexed by labels.
        shape: shape of one sample, such as (C, H, W) of an image; empty if it is not known yet.
        mean: mean of each channel of images, in units where white is 1, or of each column.
        std: standard deviation of each channel or column, in the same units.
    """

    train: Samples
    val: Samples
    test: Optional[Samples]
    class_names: Sequence[str]
    shape: Shape = ()
    mean: Sequence[float] = ()
    std: Sequence[float] = ()

    def __post_init__(self) -> None:
        refuse_missing(self)

    def counts(self) -> Dict[str, int]:
        """Returns numbers of what the splits contain, in the words of the field, for `data guess`."""
        counts = {"samples": sum(len(part) for part in (self.train, self.val, self.test) if part is not None)}
        return {**counts, "classes": len(self.class_names)} if self.class_names else counts

    @classmethod
    def cast(cls, splits: Splits) -> Self:
        """Returns splits of this class.

        Raises:
            TypeError: they are splits of other samples.
        """
        if not isinstance(splits, cls):
            raise TypeError(f"the dataset's `open` gives {type(splits).__name__}, and this needs {cls.__name__}")
        return splits


Encode = Callable[[np.ndarray], Tuple[np.ndarray, ...]]
"""A function of a task: labels (B, ...) of a source -> targets, each (B, ...). It runs on the host."""
