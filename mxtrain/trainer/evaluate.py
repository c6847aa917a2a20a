"""One pass over a split in inference mode."""

from __future__ import annotations

import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import numpy as np

from mxtrain.engine.backend import nd
from mxtrain.kvstore.store import Store
from mxtrain.metric.meter import Meter, read_vectors
from mxtrain.parallel.base import Strategy
from mxtrain.trainer.stopping import BrokenOff
from mxtrain.types import Batch, Samples

# Sums are read in bulk: often enough that a wide metric (a confusion matrix) doesn't fill the memory.
VECTORS_PER_READ = 64
# Batches in the engine's queue before the host waits: bounds the memory of what is under way.
BATCHES_AHEAD = 3


class SampleLoader:
    """A few samples: as the network sees them, and as a person does.

    Args:
        loader: of these samples, in order.
        source: fetches the same samples unnormalised.
    """

    def __init__(self, loader: Any, source: Any):
        self.loader = loader
        self.source = source

    def images(self) -> Tuple[np.ndarray, np.ndarray]:
        """(B, H, W, C) uint8 and their labels (B,)."""
        index_B = np.arange(len(self.source))
        image_BCHW, label_B = self.source.fetch(index_B, seed=0, epoch=0, train=False)
        return np.clip(image_BCHW, 0, 255).astype(np.uint8).transpose(0, 2, 3, 1), label_B


class TextSamples(SampleLoader):
    """A few texts: as the network sees them, and as a person does."""

    def texts(self) -> List[str]:
        """As they are, pairs joined."""
        return [" | ".join(text for text in pair if text is not None) for pair in self.source.pairs]


class Evaluator:
    """Measures loss and metrics of a placed network.

    Args:
        strategy: predicts.
        loss: (scores, labels) -> loss (B,), unsmoothed.
        meter: sums of loss and metrics.
    """

    def __init__(self, strategy: Strategy, loss: Any, meter: Meter):
        self._strategy, self._loss, self._meter = strategy, loss, meter

    def measure(
        self, loader: Any, watch: Optional[Callable[[Batch, nd.NDArray], None]] = None, workers: Optional[Store] = None
    ) -> Dict[str, float]:
        """Loss, metrics and samples_per_s over all samples of `loader`, each counted once.

        Args:
            watch: is shown every batch with its scores (B, K), so that one pass serves whoever wants both.
            workers: who measure the other shares of each batch.

        Raises:
            BrokenOff: a signal came, here or at another worker.
        """
        started = time.monotonic()
        sums, count, broken_off = np.zeros(self._meter.width), 0, False
        vectors: List[nd.NDArray] = []
        try:
            for batch, logits in self.predict(loader):
                vectors.append(self._meter(logits, batch.label, self._loss(logits, batch.label)))
                count += batch.size
                if watch is not None:
                    watch(batch, logits)
                if len(vectors) == VECTORS_PER_READ:
                    sums += read_vectors(vectors).sum(axis=0)
                    vectors = []
        except BrokenOff:
            broken_off = True
        if vectors:
            sums += read_vectors(vectors).sum(axis=0)
        *sums, count, broken_off = (workers or Store()).total([*sums, count, broken_off])
        if broken_off:
            raise BrokenOff
        values = self._meter.values(np.array(sums), int(count))
        values["samples_per_s"] = count / (time.monotonic() - started)
        return values

    def predict(self, loader: Any) -> Iterator[Tuple[Any, nd.NDArray]]:
        """Batches with their scores, a few ahead of the device."""
        under_way: List[nd.NDArray] = []
        for batch in loader.epoch(0):
            if not batch.size:
                continue
            logits = self._strategy.predict(batch.data)
            under_way.append(logits)
            if len(under_way) > BATCHES_AHEAD:
                under_way.pop(0).wait_to_read()
            yield batch, logits

    def samples(self, samples: Optional[SampleLoader]) -> Optional[Samples]:
        """Class probabilities of a few samples."""
        if samples is None:
            return None
        probabilities = [nd.softmax(logits.astype("float32")).asnumpy() for _, logits in self.predict(samples.loader)]
        if isinstance(samples, TextSamples):
            return Samples(None, samples.source.label_N, np.concatenate(probabilities), samples.texts())
        image_BHWC, label_B = samples.images()
        return Samples(image_BHWC, label_B, np.concatenate(probabilities))
