"""Turns a source into batches on a device: order, fetching, augmentation, placing, ahead of their use.

An epoch's order, and everything random in a sample, is a function of (seed, epoch, sample index). So batch `i` of an
epoch is the same whether the epoch began at 0 or at `i`, with any number of threads.
"""

from __future__ import annotations

import collections
import functools
import math
from concurrent.futures import Future, ThreadPoolExecutor
from typing import (
    TYPE_CHECKING,
    Callable,
    Deque,
    Generator,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    Union,
)

import numpy as np

from mxtrain.dataset.image.settings import Augment
from mxtrain.dataset.loading.prefetch import prefetch as run_ahead
from mxtrain.dataset.loading.randomness import Draw, integers, permutation
from mxtrain.dataset.loading.sample_reader import Encode, ReadBatch, SampleReader, join
from mxtrain.dataset.loading.sampling import EverySample, Sampler
from mxtrain.kvstore.world import ALONE, World
from mxtrain.runtime.cores import usable_cores
from mxtrain.types import Batch, Shape, Stateful

if TYPE_CHECKING:
    from mxnet import Context

    from mxtrain.dataset.base import Source
    from mxtrain.dataset.loading.placing import HostArrays
    from mxtrain.kvstore.store import Store
    from mxtrain.parallel.base import Strategy

Collate = Callable[[Batch, int], Batch]
"""(batch, epoch) -> the batch that a task makes of it: a function of (seed, epoch, sample index), on any worker."""
_BATCHES_IN_POOL = 2
"""Batches whose samples worker threads read at a time, so that none idles at the end of a batch."""


def count_workers(num_workers: Union[str, int]) -> int:
    """The number of threads; `auto` is the number of cores that this process may use."""
    return usable_cores() if num_workers == "auto" else int(num_workers)


class Scale(NamedTuple):
    """What a loader reads where samples enter the network in another size."""

    source: Source
    """The same samples in that size."""
    encode: Optional[Encode]
    """See `Loader`."""


class BatchLoader:
    """Base of loaders: divides the samples of an epoch into batches, and gives this worker its share of each."""

    def __init__(
        self, num_samples: int, *, batch_size: int, seed: int = 0, train: bool = False, prefetch: int = 2,
        limit_batches: Optional[int] = None, world: World = ALONE, collate: Optional[Collate] = None,
        sampler: Optional[Sampler] = None, device: Union[str, Context] = "cpu:0",
    ) -> None:  # fmt: skip
        """Prepare; no thread runs and nothing is read before `epoch`.

        Args:
            num_samples: Of the whole split.
            batch_size: Samples per batch; the last may be smaller.
            seed: Seed of the run.
            train: Shuffle and change at random; else in order and as they are.
            prefetch: Batches ready ahead; 0 = none, no thread.
            limit_batches: The epoch ends after this many; None = all.
            world: Of which this worker gets its share of every batch.
            collate: The task's last word on a batch; None = it stays what it is.
            sampler: Which samples an epoch of training has; None = each once.
            device: Where batches go, a context or its name, e.g. `cpu:0`.
        """
        from mxtrain.dataset.loading.placing import as_device

        self._collate = collate
        self.total = num_samples
        self.batch_size = batch_size
        self.seed = seed
        self.train = train
        self.prefetch = prefetch
        whole = math.ceil(num_samples / batch_size)
        self.num_batches = whole if limit_batches is None else min(whole, limit_batches)
        self.coverage = "" if self.num_batches == whole else f"{self.num_batches} of {whole} batches"
        """How much of the split an epoch is; empty for all of it."""
        self.world = world
        self.look_ahead: Optional[Callable[[Batch], Batch]] = None
        """What is done to each batch last, by the thread that reads: work that would otherwise be the step's."""
        self.sampler = sampler or EverySample(num_samples)
        self._device = as_device(device)

    @property
    def states(self) -> Mapping[str, Stateful]:
        """By name, what changes in a loader while its batches are trained on; checkpoints hold it. Most have nothing:
        their batches are functions of seed, epoch and number."""
        return {}

    def follow(self, strategies: Sequence[Strategy], workers: Optional[Store] = None) -> None:
        """Gives it the network, with its weights as they are at any time, before the first epoch: for samples that come
        from the weights. Such a loader makes no batch before it is asked for it.

        Args:
            strategies: the first one predicts; several have the same weights.
            workers: who make the other shares.
        """

    def __len__(self) -> int:
        """Batches per epoch, a partial last one included."""
        return self.num_batches

    @property
    def num_samples(self) -> int:
        """Samples per epoch."""
        return min(self.total, self.num_batches * self.batch_size)

    def epoch(self, epoch: int = 0, start: int = 0) -> Generator[Batch, None, None]:
        """The batches of an epoch, made ahead by a thread that ends with this generator.

        Args:
            epoch: Counts from 0.
            start: The first batch to yield; those before it are not read.

        Yields:
            Batches on the device, or this worker's shares of them, empty ones too. Their data may still be under way.

        Raises:
            LoaderError: A sample cannot be read; the message names the file.
        """
        return run_ahead(lambda: self._collated(epoch, start), self.prefetch)

    def _collated(self, epoch: int, start: int) -> Iterator[Batch]:
        for batch in self._make_batches(epoch, start):
            if self._collate is not None and batch.size:
                batch = self._collate(batch, epoch)
            yield batch if self.look_ahead is None else self.look_ahead(batch)

    def _order(self, epoch: int) -> np.ndarray:
        """The samples of an epoch, as `Sampler` names them; each `batch_size` of them are a batch."""
        if not self.train:
            return self._still_order()
        drawn = self.sampler.draw(epoch)
        if self.sampler.takes_all:  # in order; of millions of samples, each array would be felt
            return self._shuffle(drawn, epoch)
        return drawn[self._shuffle(drawn % self.total, epoch)]

    def _still_order(self) -> np.ndarray:
        """The order without training."""
        return np.arange(self.total)

    def _shuffle(self, index_N: np.ndarray, epoch: int) -> np.ndarray:
        """The order in which training visits the samples at these indices, as places in `index_N`."""
        return permutation(self.seed, epoch, len(index_N))

    def _batches_of(self, order: np.ndarray, start: int) -> List[np.ndarray]:
        """The samples of each whole batch from `start` on."""
        return [order[i * self.batch_size : (i + 1) * self.batch_size] for i in range(start, self.num_batches)]

    def _indices(self, epoch: int, start: int) -> List[np.ndarray]:
        """The indices of the samples of each whole batch from `start` on."""
        order = self._order(epoch)
        return self._batches_of(order if self.sampler.takes_all else order % self.total, start)

    def _make_batches(self, epoch: int, start: int) -> Iterator[Batch]:
        from mxtrain.dataset.loading.placing import place

        for index_B in self._indices(epoch, start):
            share_B = index_B[slice(*self.world.share(len(index_B)))]
            read = self._read_share(share_B, index_B, epoch) if len(share_B) else ((), ())
            inputs, targets = place(self._device, *read)
            yield Batch(inputs, targets, len(share_B), len(index_B), share_B, self._meta(share_B))

    def _meta(self, index_B: np.ndarray) -> Optional[np.ndarray]:
        """What stays on the host of samples, see `Batch.meta`."""
        return None

    def _read_share(
        self, share_B: np.ndarray, index_B: np.ndarray, epoch: int
    ) -> Tuple[HostArrays, HostArrays]:  # fmt: skip
        """Inputs and targets of this worker's samples `share_B` in the batch of `index_B`. An array that is both is
        copied to the device once."""
        raise NotImplementedError


class Loader(BatchLoader):
    """Batches of images on one device."""

    def __init__(
        self,
        source: Source,
        *,
        batch_size: int,
        input_shape: Shape,
        mean: Sequence[float],
        std: Sequence[float],
        num_classes: int,
        device: Union[str, Context] = "cpu:0",
        seed: int = 0,
        train: bool = False,
        augment: Optional[Augment] = None,
        prefetch: int = 2,
        num_workers: Union[str, int] = "auto",
        limit_batches: Optional[int] = None,
        world: World = ALONE,
        collate: Optional[Collate] = None,
        encode: Optional[Encode] = None,
        keeps_size: bool = False,
        sampler: Optional[Sampler] = None,
        scales: Sequence[Scale] = (),
        scale_interval: int = 1,
    ) -> None:
        """Prepare; no thread runs and nothing is read before `epoch`.

        Args:
            source: Where samples come from.
            batch_size: Samples per batch; the last may be smaller.
            input_shape: (C, H, W) of what enters the network.
            mean: Per channel, white is 1.
            std: Per channel, white is 1.
            num_classes: K, the width of mixed labels.
            device: A context or its name, e.g. `cpu:0`.
            seed: Seed of the run.
            train: Shuffle and augment; else in order and as they are.
            augment: What to change in training images.
            prefetch: Batches ready ahead; 0 = none, no thread.
            num_workers: Threads that decode, or `auto`.
            limit_batches: The epoch ends after this many; None = all.
            world: Of which this worker gets its share of every batch.
            collate: See `BatchLoader`.
            encode: What the task makes of labels, in the threads that read; None = they are the only target.
            keeps_size: Images stay as large as they come, whatever `input_shape` says.
            sampler: See `BatchLoader`.
            scales: The sizes that training draws from, a function of (seed, epoch, number of the batch); none = all
                samples are as `source` gives them.
            scale_interval: So many batches that follow each other have the same.
        """
        from mxtrain.dataset.loading.placing import Placer

        super().__init__(
            len(source), batch_size=batch_size, seed=seed, train=train, prefetch=prefetch, limit_batches=limit_batches,
            world=world, collate=collate, sampler=sampler, device=device,
        )  # fmt: skip
        self.source = source
        self.num_classes = num_classes
        self.num_workers = count_workers(num_workers)
        self._scale_interval = scale_interval
        self._readers = [
            SampleReader(
                one.source, one.encode, augment=(augment if train else None) or Augment(), num_classes=num_classes,
                seed=seed, train=train,
            ) for one in scales or (Scale(source, encode),)
        ]  # fmt: skip
        self._placer = Placer(source.shape[0], input_shape, mean, std, self._device, keeps_size)

    def _make_batches(self, epoch: int, start: int) -> Iterator[Batch]:
        order = self._order(epoch)
        batches = self._batches_of(order, start)
        shares = [drawn_B[slice(*self.world.share(len(drawn_B)))] for drawn_B in batches]
        partner_N = None if self.sampler.takes_all else order % self.total
        reads = [
            functools.partial(reader.read, epoch=epoch, partner_N=partner_N)
            for reader in self._readers_of(epoch, range(start, start + len(batches)))
        ]
        for read, drawn_B, share_B in zip(self._read_batches(shares, reads), batches, shares):
            size = len(read.image_BCHW)
            inputs, targets = self._placer(read.image_BCHW, *read.targets) if size else ((), ())
            yield Batch(inputs, targets, size, len(drawn_B), share_B % self.total, read.meta)

    def _readers_of(self, epoch: int, numbers: Sequence[int]) -> List[SampleReader]:
        """What reads the batches of these numbers: each part of a batch is read in the same size, by whomever."""
        turn_N = np.asarray(numbers, np.int64) // self._scale_interval
        chosen_N = integers(self.seed, epoch, turn_N, Draw.IMAGE_SIZE, len(self._readers))
        return [self._readers[chosen] for chosen in chosen_N.tolist()]

    def _read_batches(
        self, batches: Sequence[np.ndarray], reads: Sequence[Callable[[np.ndarray], ReadBatch]]
    ) -> Iterator[ReadBatch]:  # fmt: skip
        if not self.source.samples_per_task:
            yield from (read(drawn_B) for drawn_B, read in zip(batches, reads))
            return
        pool = ThreadPoolExecutor(self.num_workers, thread_name_prefix="mxtrain-decode")
        under_way: Deque[List[Future]] = collections.deque()
        try:
            for drawn_B, read in zip(batches, reads):
                step = self.source.samples_per_task
                parts = [drawn_B[i : i + step] for i in range(0, len(drawn_B), step)]
                under_way.append([pool.submit(read, part) for part in parts])
                if len(under_way) > _BATCHES_IN_POOL:
                    yield join([future.result() for future in under_way.popleft()])
            while under_way:
                yield join([future.result() for future in under_way.popleft()])
        finally:
            for futures in under_way:
                for future in futures:
                    future.cancel()
            pool.shutdown(wait=True)
