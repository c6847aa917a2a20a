"""Evaluates a network: one pass over a split in inference mode."""

from __future__ import annotations

import copy
import time
from contextlib import closing
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Callable,
    ClassVar,
    Dict,
    Generator,
    Iterator,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
)

import numpy as np

from mxtrain.cluster.heartbeat import HEARTBEAT
from mxtrain.cluster.stopping import PassInterrupted, SignalStop
from mxtrain.data.loading.loader import NO_CONSUMER, Consumer
from mxtrain.engine.backend import mx, nd
from mxtrain.engine.predictions import BATCHES_AHEAD, DecodedOnce, to_host
from mxtrain.errors import ConfigError
from mxtrain.kvstore.store import Store
from mxtrain.metric.host import HostMetric, SampleWeights, all_gather
from mxtrain.metric.meter import Meter, read_vectors
from mxtrain.parallel.base import Strategy
from mxtrain.parallel.recurrent_state import RecurrentState
from mxtrain.parallel.stage import as_list
from mxtrain.types import Artifact, Batch

if TYPE_CHECKING:
    from mxtrain.data.loading.loader import EpochLoader
    from mxtrain.data.passes import Variant
    from mxtrain.engine.predictions import Decode, Predictions
    from mxtrain.task.merging import MergeOutputs
    from mxtrain.types.annotations import LossBlock

Outputs = Tuple[nd.NDArray, ...]
# Read sums in bulk to save round trips, but often enough that a metric with many numbers does not fill the memory.
VECTORS_PER_READ = 64
LARGE_BATCH_BYTES = 1 << 22
"""Bytes of inputs from which one batch in the queue is enough: the device is busy with it for longer than the host."""


class BreakableLoader:
    """A loader that raises `PassInterrupted` after a signal, because a validation may take longer than the grace time.

    Args:
        loader: loader of the validation split.
        signals: signals of the run.
    """

    def __init__(self, loader: EpochLoader, signals: SignalStop):
        self._loader, self._signals = loader, signals

    def epoch(self, epoch: int = 0, start: int = 0, consumer: Consumer = NO_CONSUMER) -> Generator[Batch, None, None]:
        with closing(self._loader.epoch(epoch, start, consumer)) as batches:
            for batch in batches:
                if self._signals.stop is not None:
                    raise PassInterrupted
                # Batches of a validation count as progress, because cluster.step_timeout applies to them, too.
                HEARTBEAT.begin_batch()
                yield batch


class Evaluator:
    """Measures loss and metrics of a placed network.

    Args:
        strategy: strategy with the network.
        loss: block (*outputs, *targets) -> loss (B,), or loss (B,) and weight (B,), as in validation.
        meter: meter of loss and metrics.
        on_host: name -> further metric, computed on the host.
        decode: function (outputs, batch) -> predictions, on the device; needed for `on_host`.
        has_weights: True if the last target of a batch is the weight of each sample.
    """

    measures_outputs: ClassVar[bool] = True
    """False if loss and metrics of outputs are unknown, because only predictions are."""

    def __init__(
        self,
        strategy: Strategy,
        loss: LossBlock,
        meter: Meter,
        on_host: Optional[Mapping[str, HostMetric]] = None,
        decode: Optional[Decode] = None,
        has_weights: bool = False,
    ):
        self._has_weights = has_weights
        self._strategy, self._loss, self._meter = strategy, loss, meter
        self._on_host = dict(on_host or {})
        self._predict: Callable[[Sequence[nd.NDArray]], Outputs] = strategy.predict
        self.decode = None if decode is None else DecodedOnce(decode)

    def measure(
        self,
        loader: EpochLoader,
        on_batch: Optional[Callable[[Batch, Outputs], None]] = None,
        workers: Optional[Store] = None,
    ) -> Dict[str, float]:
        """Measures loss, metrics and samples_per_s over all samples of a loader, each counted once.

        Args:
            loader: loader of the split.
            on_batch: called with each batch and its outputs, so that a single pass serves several purposes.
            workers: store that connects the workers, which measure the other shares of each batch.

        Raises:
            PassInterrupted: this or another worker received a signal.
        """
        started = time.monotonic()
        sums, count, interrupted = np.zeros(self._meter.width), 0, False
        vectors: List[nd.NDArray] = []
        collector = Collector(self._on_host, self.decode, self._has_weights)
        try:
            for batch, outputs in self.predict(loader):
                if self.measures_outputs:
                    losses = self.losses(batch, outputs)
                    vectors.append(self._meter.require_width(self._meter(*losses, *outputs, *batch.targets)))
                count += batch.size
                collector.add(batch, outputs)
                if on_batch is not None:
                    on_batch(batch, outputs)
                if len(vectors) == VECTORS_PER_READ:
                    sums += read_vectors(vectors).sum(axis=0)
                    vectors = []
        except PassInterrupted:
            interrupted = True
        finally:
            if self.decode is not None:
                self.decode.forget()
        if vectors:
            sums += read_vectors(vectors).sum(axis=0)
        # Required even after a signal: the other workers wait in this sum, and learn that the pass is incomplete.
        *totals, count, interrupted = (workers or Store()).total([*sums, count, interrupted])
        if interrupted:
            raise PassInterrupted
        measured = self._meter.values(np.array(totals), int(count)) if self.measures_outputs else {}
        values = {**measured, **collector.compute(workers or Store())}
        values["samples_per_s"] = count / (time.monotonic() - started)
        return values

    def merging(self, variants: Sequence[Variant], merge: MergeOutputs) -> Evaluator:
        """Returns an evaluator of the same network that predicts for several variants of each batch.

        Args:
            variants: the variants, the unchanged one first.
            merge: merges the outputs for the variants.
        """
        evaluator = copy.copy(self)
        predict = self._predict

        def predict_variants(inputs: Sequence[nd.NDArray]) -> Outputs:
            return merge([_predict_variant(predict, variant, inputs) for variant in variants])

        evaluator._predict = predict_variants
        return evaluator

    def direction(self, name: str) -> str:
        """Returns "max" or "min": the better direction of "loss" or of a metric, by name."""
        return self._meter.direction(name)

    @property
    def weighted(self) -> bool:
        """Returns True if the second array of `losses` is the weight of each sample."""
        return self._meter.weighted

    def losses(self, batch: Batch, outputs: Outputs) -> List[nd.NDArray]:
        """Returns the loss (B,) of each sample, its weight (B,) if the loss is weighted, and its parts.

        Asynchronous.
        """
        return as_list(self._loss(*outputs, *batch.targets))

    def predict(self, loader: EpochLoader) -> Iterator[Tuple[Batch, Outputs]]:
        """Yields batches with their outputs; queues at most `BATCHES_AHEAD` batches ahead of the device, of large
        batches one."""
        pending: List[nd.NDArray] = []
        objective = self._strategy.objective
        count, state = len(objective.state_shapes), RecurrentState(objective.state_shapes, objective.network)
        for batch in loader.epoch(consumer=Consumer([self._strategy])):
            # The share of a worker may be empty; the worker still takes part in the sums of `measure`.
            if not batch.size:
                continue
            outputs = self._predict(state.enter(batch).inputs)
            if count:
                state.leave([outputs[-count:]])
                outputs = outputs[:-count]
            # Without this limit, the outputs of the whole split could be in memory at once.
            pending.append(outputs[0])
            if len(pending) > (1 if _num_bytes(batch.inputs) >= LARGE_BATCH_BYTES else BATCHES_AHEAD):
                pending.pop(0).wait_to_read()  # waits for an old batch, while newer ones keep the device busy
            yield batch, outputs


def _num_bytes(arrays: Sequence[nd.NDArray]) -> int:
    return sum(array.size * np.dtype(array.dtype).itemsize for array in arrays)


def _predict_variant(
    predict: Callable[[Sequence[nd.NDArray]], Outputs], variant: Variant, inputs: Sequence[nd.NDArray]
) -> Outputs:
    """Returns the outputs for a variant of a batch.

    Raises:
        ConfigError: the network does not take inputs of the size of the variant.
    """
    changed = variant.apply(tuple(inputs))
    try:
        return predict(changed)
    except mx.MXNetError as error:
        if changed[0].shape == inputs[0].shape:
            raise
        size = "x".join(map(str, changed[0].shape[1:]))
        raise ConfigError(
            f"augment=scales: the network does not take inputs of {size} ({variant.name}). Type augment=flip, or "
            "choose other factors with augment_scales=[...]."
        ) from error


class Collector:
    """Passes predictions to metrics on the host, a few batches late, so that the device does not wait for the host.

    Args:
        metrics: name -> metric.
        decode: function (outputs, batch) -> predictions.
        has_weights: True if the last target of a batch is the weight of each sample.
    """

    def __init__(self, metrics: Mapping[str, HostMetric], decode: Optional[Decode], has_weights: bool = False):
        self._metrics = metrics
        all_metrics = list(metrics.values())
        # Metrics with the same class of collector share one, so predictions are stored once.
        collectors = dict.fromkeys(metric.collects for metric in all_metrics)
        self._collected = {
            collector: collector.from_metrics([metric for metric in all_metrics if metric.collects is collector])
            for collector in collectors
        }
        self._weights: Optional[SampleWeights] = None
        if has_weights and any(metric.takes_weights for metric in all_metrics):
            self._weights = SampleWeights()
        self._decode = decode
        self._pending: List[Tuple[Batch, Predictions]] = []

    def add(self, batch: Batch, outputs: Outputs) -> None:
        """Adds a batch."""
        if self._collected:
            assert self._decode is not None
            self._pending.append((batch.without_inputs(), self._decode(outputs, batch)))
            if len(self._pending) > BATCHES_AHEAD:
                self._update(*self._pending.pop(0))

    def _update(self, batch: Batch, predictions: Predictions) -> None:
        assert batch.index_B is not None
        prediction_B, target_B = to_host(predictions), batch.targets[0].asnumpy()
        for collected in self._collected.values():
            collected.update(batch.index_B, prediction_B, target_B, batch.meta)
        if self._weights is not None:
            self._weights.update(batch.index_B, prediction_B, batch.targets[-1].asnumpy(), batch.meta)

    def compute(self, workers: Store) -> Dict[str, float]:
        """Returns the metrics over the samples of all workers. Collective."""
        for entry in self._pending:
            self._update(*entry)
        for collected in self._collected.values():
            all_gather(collected, workers)
        if self._weights is None:
            return {name: metric.compute(self._collected[metric.collects]) for name, metric in self._metrics.items()}
        all_gather(self._weights, workers)
        weight_N = self._weights.weights()
        return {
            name: metric.compute_weighted(self._collected[metric.collects], weight_N)
            if metric.takes_weights
            else metric.compute(self._collected[metric.collects])
            for name, metric in self._metrics.items()
        }


@dataclass(frozen=True)
class ShownSamples:
    """A few validation samples that are shown with their predictions.

    Attributes:
        loader: loader of the samples, in order.
        show: function (predictions, targets), on the host, -> artifacts.
    """

    loader: EpochLoader
    show: Callable[[Sequence[np.ndarray], Sequence[np.ndarray]], List[Artifact]]

    def artifacts(self, evaluator: Evaluator) -> List[Artifact]:
        """Predicts the samples and returns the artifacts. Waits for the device."""
        assert evaluator.decode is not None
        batches = evaluator.predict(self.loader)
        decoded_with_targets = [(evaluator.decode(outputs, batch), batch.targets) for batch, outputs in batches]
        predictions = [prediction for decoded, _ in decoded_with_targets for prediction in to_host(decoded)]
        by_target = zip(*(targets for _, targets in decoded_with_targets))
        targets = [joined([array.asnumpy() for array in arrays]) for arrays in by_target]
        return self.show(predictions, targets)


def joined(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Concatenates arrays (B, ...); shorter samples are padded with -1, which is no valid target."""
    longest_shape = np.max([array.shape[1:] for array in arrays], axis=0).astype(int)
    padded = np.full((sum(map(len, arrays)), *longest_shape), -1, arrays[0].dtype)
    begin = 0
    for array in arrays:
        padded[(slice(begin, begin + len(array)), *map(slice, array.shape[1:]))] = array
        begin += len(array)
    return padded
