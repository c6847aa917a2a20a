"""Loads batches of a source to a device in a background thread: order, reading, augmentation, placing.

An epoch's order, and everything random in a sample, is a function of (seed, epoch, sample index). So batch `i` of an
epoch is the same whether the epoch began at 0 or at `i`, with any number of threads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import (
    TYPE_CHECKING,
    Callable,
    Generator,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Protocol,
    Sequence,
    Tuple,
    Union,
)

import numpy as np

from mxtrain.data.loading.prefetch import prefetch as run_ahead
from mxtrain.data.loading.randomness import permutation
from mxtrain.data.loading.samples import Encode
from mxtrain.data.loading.sampling import EverySample, Sampler
from mxtrain.errors import LoaderError
from mxtrain.kvstore.world import ALONE, World, bounds
from mxtrain.runtime.cores import usable_cores
from mxtrain.types import Batch, Stateful

if TYPE_CHECKING:
    from mxnet import Context

    from mxtrain.data.loading.placing import HostArrays
    from mxtrain.data.loading.samples import Source
    from mxtrain.kvstore.chunk_client import ChunkClient
    from mxtrain.kvstore.store import Store
    from mxtrain.parallel.base import Strategy

Collate = Callable[[Batch, int], Batch]
"""Function of the task: (batch, epoch) -> changed batch. Depends only on (seed, epoch, sample index), so every worker
computes the same."""


def count_workers(num_workers: Union[str, int]) -> int:
    """Returns the number of threads; "auto" is the number of cores that this process may use."""
    return usable_cores() if num_workers == "auto" else int(num_workers)


class Scale(NamedTuple):
    """The samples of a loader in one of the input sizes of multi-scale training."""

    source: Source
    """Source of the samples in this size."""
    encode: Optional[Encode]
    """Function of the task that computes all targets from labels, on the host; None = labels are the only target."""


@dataclass(frozen=True)
class LoaderOptions:
    """Settings of all loaders. A loader ignores settings that do not apply to its samples."""

    batch_size: int
    """Samples per batch; the last may be smaller."""
    device: Union[str, Context] = "cpu:0"
    """Device of the batches: a context or its name."""
    seed: int = 0
    """Seed of the run."""
    train: bool = False
    """Shuffle and augment the samples; otherwise they keep their order and are not augmented."""
    in_order: bool = False
    """Keep the order of the samples in evaluation, even if another order would be faster."""
    prefetch: int = 2
    """Number of batches that a background thread prepares in advance; 0 = no thread."""
    limit_batches: Optional[int] = None
    """Maximum number of batches per epoch; None = all."""
    world: World = ALONE
    """Workers that share every batch; `BatchLoader.world` can be changed later."""
    num_classes: int = 0
    """K, the width of mixed labels."""
    sampler: Optional[Sampler] = None
    """Sampler of the training epochs; None = each sample once."""
    collate: Optional[Collate] = None
    """Function of the task that changes the finished batch; None = no change."""
    encode: Optional[Encode] = None
    """Function of the task that computes targets from labels, in the reading threads; None = labels are the only
    target."""
    scales: Sequence[Scale] = ()
    """Input sizes of multi-scale training. The size is a function of (seed, epoch, batch number). Empty = the size of
    the source."""


@dataclass(frozen=True)
class Consumer:
    """The strategies and workers that use the batches of an epoch; needed by samples that depend on the weights."""

    strategies: Sequence[Strategy] = ()
    """Strategies that hold the network with its current weights, for samples that the network creates. All have the
    same weights; the first one predicts."""
    workers: Optional[Store] = None
    """Store that connects this worker with the workers that create the other shares of such samples."""
    look_ahead: Optional[Callable[[Batch], Batch]] = None
    """Prepares each finished batch in the reading thread, so that the training step does not have to."""
    chunks: Optional[ChunkClient] = None
    """Connection by which this worker takes chunks of the epoch; None if it has its share of every batch."""


NO_CONSUMER = Consumer()
"""Default for loaders whose batches do not depend on the network."""


class Share(NamedTuple):
    """The samples of a global batch that this worker reads."""

    number: int
    """Number of the batch in its epoch."""
    index_B: np.ndarray
    """Samples of the global batch."""
    share_B: np.ndarray
    """Samples of this worker."""


class EpochLoader(Protocol):
    """A loader of a split, as evaluation uses it."""

    def epoch(self, epoch: int = 0, start: int = 0, consumer: Consumer = NO_CONSUMER) -> Generator[Batch, None, None]:
        """See `BatchLoader`."""


class BatchLoader:
    """Base class of loaders. Divides the samples of an epoch into batches, and loads this worker's share of each.

    It starts no thread and reads nothing before `epoch`.

    Args:
        num_samples: number of samples of the whole split.
        options: settings of the loader.
    """

    def __init__(self, num_samples: int, options: LoaderOptions) -> None:
        from mxtrain.data.loading.placing import as_device

        self._collate = options.collate
        self.total = num_samples
        self.batch_size = options.batch_size
        self.seed = options.seed
        self.train = options.train
        self.prefetch = options.prefetch
        self._limit_batches(math.ceil(num_samples / options.batch_size), options.limit_batches)
        self.world = options.world
        self.sampler = options.sampler or EverySample(num_samples)
        self._device = as_device(options.device)

    def _limit_batches(self, total_batches: int, limit_batches: Optional[int]) -> None:
        self.num_batches = total_batches if limit_batches is None else min(total_batches, limit_batches)
        # The part of the split that an epoch reads, for messages; empty for all of it.
        self.coverage = "" if self.num_batches == total_batches else f"{self.num_batches} of {total_batches} batches"

    @property
    def states(self) -> Mapping[str, Stateful]:
        """Returns the states of the loader by name, which checkpoints save. Most loaders have none: their batches are
        functions of seed, epoch and batch number."""
        return {}

    def __len__(self) -> int:
        """Returns the number of batches per epoch, including a partial last one."""
        return self.num_batches

    @property
    def num_samples(self) -> int:
        """Returns the number of samples per epoch."""
        return min(self.total, self.num_batches * self.batch_size)

    def epoch(self, epoch: int = 0, start: int = 0, consumer: Consumer = NO_CONSUMER) -> Generator[Batch, None, None]:
        """Yields the batches of an epoch. A thread, which ends with this generator, loads them ahead.

        Args:
            epoch: number of the epoch, from 0.
            start: number of the first batch to yield; earlier batches are not read.
            consumer: users of the batches. A loader whose samples depend on the weights does not load ahead.

        Yields:
            This worker's share of each batch on the device, also if it is empty. Copies may still be in progress.

        Raises:
            LoaderError: a sample cannot be read; the message names the file.
        """
        return run_ahead(lambda: self._collated(epoch, start, consumer), self.prefetch)

    def _collated(self, epoch: int, start: int, consumer: Consumer) -> Iterator[Batch]:
        for number, batch in enumerate(self._make_batches(epoch, start, consumer), start=start):
            if consumer.chunks is not None:
                if not consumer.chunks.taken:
                    raise LoaderError(
                        f"cluster.balance=dynamic: {type(self).__name__} divides batches among workers by itself, and "
                        "takes no chunks. Type cluster.balance=equal."
                    )
                chunk = consumer.chunks.taken.popleft()
                number = chunk // consumer.chunks.shares
                batch = replace(batch, number=number, chunk=chunk)
            # A worker whose share is empty has no arrays, but must still take part in what the step exchanges.
            if self._collate is not None and batch.size:
                batch = self._collate(replace(batch, number=number), epoch)
            yield batch if consumer.look_ahead is None else consumer.look_ahead(batch)

    def _order(self, epoch: int) -> np.ndarray:
        """Returns the samples of an epoch in the order of use, (N,), numbered as in `Sampler.draw`: a sample that is
        drawn again has its index plus a multiple of `total`."""
        if not self.train:
            return self._evaluation_order()
        sampled = self.sampler.draw(epoch)
        if self.sampler.is_ordered:
            return sampled
        if self.sampler.takes_all:  # `sampled` is 0, 1, ...: indexing it would copy an array of possibly millions
            return self._shuffle(sampled, epoch)
        return sampled[self._shuffle(sampled % self.total, epoch)]

    def _evaluation_order(self) -> np.ndarray:
        """Returns the order of the samples in an evaluation."""
        return np.arange(self.total)

    def _shuffle(self, index_N: np.ndarray, epoch: int) -> np.ndarray:
        """Returns the training order of the samples `index_N`, as positions in `index_N`."""
        return permutation(self.seed, epoch, len(index_N))

    def _batches_of(self, order: np.ndarray, start: int) -> List[np.ndarray]:
        """Splits the order into the samples of each global batch from `start` on."""
        return [order[i * self.batch_size : (i + 1) * self.batch_size] for i in range(start, self.num_batches)]

    def _indices(self, epoch: int, start: int) -> List[np.ndarray]:
        """Returns the indices of the samples of each global batch from `start` on."""
        order = self._order(epoch)
        return self._batches_of(order if self.sampler.takes_all else order % self.total, start)

    def _shares(self, batches: Sequence[np.ndarray], start: int, consumer: Consumer) -> Iterator[Share]:
        """Yields this worker's share of each global batch, or each chunk that it takes.

        Args:
            batches: samples of each global batch.
            start: number of the first batch in the epoch.
            consumer: users of the batches.
        """
        if consumer.chunks is None:
            for number, index_B in enumerate(batches, start=start):
                # The share follows from the rank alone, so workers need not communicate.
                yield Share(number, index_B, index_B[slice(*self.world.share(len(index_B)))])
            return
        for chunk in consumer.chunks.chunks():
            number, share = divmod(chunk, consumer.chunks.shares)
            index_B = batches[number - start]
            yield Share(number, index_B, index_B[slice(*bounds(len(index_B), consumer.chunks.shares, share))])

    def _make_batches(self, epoch: int, start: int, consumer: Consumer) -> Iterator[Batch]:
        from mxtrain.data.loading.placing import place

        for _, index_B, share_B in self._shares(self._indices(epoch, start), start, consumer):
            read = self._read_share(share_B, index_B, epoch) if len(share_B) else ((), ())
            inputs, targets = place(self._device, *read)
            yield Batch(inputs, targets, len(share_B), len(index_B), share_B, self._meta(share_B))

    def _meta(self, index_B: np.ndarray) -> Optional[np.ndarray]:
        """Returns the host data of samples; see `Batch.meta`."""
        return None

    def _read_share(self, share_B: np.ndarray, index_B: np.ndarray, epoch: int) -> Tuple[HostArrays, HostArrays]:
        """Reads inputs and targets of this worker's samples `share_B` of the global batch `index_B`.

        An array that is an input and a target is copied to the device only once.
        """
        raise NotImplementedError
