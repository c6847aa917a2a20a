"""Loads batches of images: threads fetch and augment them; the device normalises them."""

from __future__ import annotations

import collections
import functools
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Callable, Deque, Iterator, List, Sequence, Tuple, Union

import numpy as np

from mxtrain.data.loading.loader import BatchLoader, Consumer, LoaderOptions, Scale, Share, count_workers
from mxtrain.data.loading.randomness import integers
from mxtrain.data.loading.samples import prefetch
from mxtrain.data.sample_weights import weights_of
from mxtrain.types import Batch, Shape
from mxtrain.vision.draws import VisionDraw
from mxtrain.vision.images.fitting import fill_of
from mxtrain.vision.images.sample_reader import ReadBatch, SampleReader, join
from mxtrain.vision.images.settings import Augment
from mxtrain.vision.images.transforms.chain import TransformChain

if TYPE_CHECKING:
    from mxtrain.data.spec import Source


ReadTask = Tuple[np.ndarray, Callable[[np.ndarray], ReadBatch]]
"""Positions of samples, and the function that reads them."""
_BATCHES_IN_POOL = 2
"""Number of batches that are submitted to the worker threads ahead, so that none idles at the end of a batch."""


@dataclass(frozen=True)
class ImageSettings:
    """Settings of image loaders, in addition to `LoaderOptions`."""

    input_shape: Shape
    """(C, H, W) of the network's input."""
    mean: Sequence[float]
    """Mean per channel that is subtracted; white is 1."""
    std: Sequence[float]
    """Standard deviation per channel; white is 1."""
    augment: Augment = field(default_factory=Augment)
    """Augmentation of training images."""
    chain: TransformChain = field(default_factory=TransformChain)
    """Transforms of training images, applied after `augment`."""
    num_workers: Union[str, int] = "auto"
    """Number of decoding threads, or `auto`."""
    keeps_size: bool = False
    """If True, images keep the size that the source returns, regardless of `input_shape`."""
    scale_interval: int = 1
    """Number of consecutive batches with the same one of `LoaderOptions.scales`."""


class Loader(BatchLoader):
    """Loads batches of images onto one device.

    Args:
        source: source of the samples.
        settings: settings of images.
        options: settings that all loaders have.
    """

    def __init__(self, source: Source, settings: ImageSettings, options: LoaderOptions) -> None:
        from mxtrain.vision.images.placer import Placer

        super().__init__(len(source), options)
        self.source = source
        self.num_workers = count_workers(settings.num_workers)
        self._scale_interval = settings.scale_interval
        self._weight_N = weights_of(source)
        self._readers = [
            SampleReader(
                scale.source,
                scale.encode,
                augment=settings.augment if options.train else Augment(),
                chain=settings.chain if options.train else TransformChain(),
                fill_C=fill_of(settings.mean, source.shape[0]),
                num_classes=options.num_classes,
                seed=options.seed,
                train=options.train,
            )
            for scale in options.scales or (Scale(source, options.encode),)
        ]
        self._placer = Placer(
            source.shape[0], settings.input_shape, settings.mean, settings.std, self._device, settings.keeps_size
        )

    def _make_batches(self, epoch: int, start: int, consumer: Consumer) -> Iterator[Batch]:
        order = self._order(epoch)
        batches = self._batches_of(order, start)
        partner_N = None if self.sampler.takes_all else order % self.total
        readers = self._readers_of(epoch, range(start, start + len(batches)))
        # Threads read several shares ahead.
        shares: Deque[Share] = collections.deque()

        def tasks() -> Iterator[ReadTask]:
            for share in self._shares(batches, start, consumer):
                shares.append(share)
                read = functools.partial(readers[share.number - start].read, epoch=epoch, partner_N=partner_N)
                yield share.share_B, read

        for read in self._read_batches(tasks()):
            _, position_B, share_B = shares.popleft()
            size = len(read.image_BCHW)
            index_B = share_B % self.total
            weights = () if self._weight_N is None else (self._weight_N[index_B],)
            inputs, targets = self._placer(read.image_BCHW, *read.targets, *weights) if size else ((), ())
            yield Batch(inputs, targets, size, len(position_B), index_B, read.meta)

    def _readers_of(self, epoch: int, numbers: Sequence[int]) -> List[SampleReader]:
        """Returns the reader of each batch, which determines the image size. The choice depends only on the number of
        the batch, so that all workers read their parts of a batch in the same size.

        Args:
            epoch: number of the epoch, from 0.
            numbers: numbers of the batches in the epoch, N.
        """
        interval_N = np.asarray(numbers, np.int64) // self._scale_interval
        # The number of the batch decides on its size: workers that read parts of one batch must agree.
        index_N = integers(self.seed, epoch, interval_N, VisionDraw.IMAGE_SIZE, len(self._readers))
        return [self._readers[index] for index in index_N.tolist()]

    def _read_batches(self, tasks: Iterator[ReadTask]) -> Iterator[ReadBatch]:
        """Yields the samples of batches, in order. Sources that decode are read by several threads."""
        if not self.source.samples_per_task:
            yield from (read(position_B) for position_B, read in tasks)
            return
        # Threads, because decoders release Python's lock. Forked processes would inherit MXNet's engine, and batches
        # would travel through /dev/shm, which containers limit to 64 MB.
        pool = ThreadPoolExecutor(self.num_workers, thread_name_prefix="mxtrain-decode")
        pending: Deque[List[Future]] = collections.deque()
        try:
            for position_B, read in tasks:
                step = self.source.samples_per_task
                parts = [position_B[i : i + step] for i in range(0, len(position_B), step)]
                prefetch(self.source, position_B % self.total)
                pending.append([pool.submit(read, part) for part in parts])
                if len(pending) > _BATCHES_IN_POOL:
                    yield join([future.result() for future in pending.popleft()])
            while pending:
                yield join([future.result() for future in pending.popleft()])
        finally:
            # A consumer that stops early must not wait for images that nobody reads.
            for futures in pending:
                for future in futures:
                    future.cancel()
            pool.shutdown(wait=True)
