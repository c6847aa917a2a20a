"""Figures of a server in Prometheus' format."""

from __future__ import annotations

import threading
from typing import Any, Dict, List, Mapping, Sequence, Tuple

import numpy as np

from mxtrain.serving.models import ServedModel

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
DRIFT_NUMBERS = 4096
"""Numbers of an input that are looked at, of each batch."""
DRIFT_MEMORY = 0.99
"""Weight of what was seen before, for each batch: about the last hundred batches count."""
DRIFT_LIMIT = 10.0
"""Distance, in standard deviations of the proof's samples, to which a number is limited before it counts: otherwise a
single request with huge numbers would decide the figures of the next thousands."""
MAX_CLASSES = 100
"""Largest number of classes for which answers are counted by class."""


class ServerMetrics:
    """Prometheus metrics of a server.

    Args:
        models: served models.
    """

    def __init__(self, models: Sequence[ServedModel]) -> None:
        import prometheus_client as prometheus

        prometheus.disable_created_metrics()  # they would double the number of lines
        self.registry = prometheus.CollectorRegistry()
        prometheus.ProcessCollector(registry=self.registry)
        of_model = {"registry": self.registry, "labelnames": ["model"]}
        self.requests = prometheus.Counter(
            "mxtrain_requests", "Answered requests", ["model", "route", "status"], registry=self.registry
        )
        self.seconds = prometheus.Histogram(
            "mxtrain_request_seconds",
            "Time from the head of a request to its answer",
            ["model", "route"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self.rows = prometheus.Histogram("mxtrain_batch_rows", "Samples computed at once", buckets=ROWS, **of_model)
        self.waited = prometheus.Histogram(
            "mxtrain_queue_seconds", "Time that a request waits for its batch", buckets=SECONDS, **of_model
        )
        self.computed = prometheus.Histogram(
            "mxtrain_compute_seconds", "Time that the network takes for a batch", buckets=SECONDS, **of_model
        )
        self.queue = prometheus.Gauge("mxtrain_queue_requests", "Requests that wait or are computed", **of_model)
        self.predicted = prometheus.Counter(
            "mxtrain_predicted", "Answers of predict by class", ["model", "class_name"], registry=self.registry
        )
        self.unseen = prometheus.Counter(
            "mxtrain_unseen_values",
            "Cells of categories, and tokens of texts, that training has not seen",
            ["model", "column"],
            registry=self.registry,
        )
        self.tokens = prometheus.Counter("mxtrain_generated_tokens", "Tokens that generate has written", **of_model)
        self.first_token = prometheus.Histogram(
            "mxtrain_first_token_seconds",
            "Time from the complete body of generate to the first token",
            buckets=SECONDS,
            **of_model,
        )
        self.generations = prometheus.Gauge("mxtrain_generations", "Texts that are being written", **of_model)
        self.connections = prometheus.Gauge("mxtrain_connections", "Open connections", registry=self.registry)
        self.pending = prometheus.Gauge("mxtrain_pending_bytes", "Bodies in memory", registry=self.registry)
        self.ready = prometheus.Gauge("mxtrain_ready", "1 while requests are wanted", registry=self.registry)
        self.drift = InputDrift({model.name: model.statistics for model in models}, prometheus, of_model)
        for model in models:
            for metric in (self.queue, self.rows, self.waited, self.computed):
                metric.labels(model.name)  # creates the time series before the first request
            if model.generator is not None:
                for metric in (self.tokens, self.first_token, self.generations):
                    metric.labels(model.name)

    def text(self) -> Tuple[bytes, str]:
        """Returns the body and the media type of `/metrics`."""
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        return generate_latest(self.registry), CONTENT_TYPE_LATEST


class InputDrift:
    """Compares the inputs of requests with the samples of the proof.

    Args:
        expected: model -> input -> mean and standard deviation.
        prometheus: the library prometheus_client.
        of_model: arguments of metrics with the label `model`.
    """

    def __init__(
        self, expected: Mapping[str, Mapping[str, Tuple[float, float]]], prometheus: Any, of_model: Mapping[str, Any]
    ) -> None:
        self._expected = expected
        self._seen: Dict[Tuple[str, str], Tuple[float, float]] = {}
        self._gauges: Dict[Tuple[str, str], List[Any]] = {}
        self._lock = threading.Lock()
        labels = {**of_model, "labelnames": ["model", "input"]}
        self._mean = prometheus.Gauge("mxtrain_input_mean", "Mean of recent inputs", **labels)
        self._deviation = prometheus.Gauge("mxtrain_input_deviation", "Standard deviation of recent inputs", **labels)
        self._drift = prometheus.Gauge(
            "mxtrain_input_drift",
            "Distance of the mean of recent inputs from that of the proof's samples, in their standard deviations",
            **labels,
        )
        self._spread = prometheus.Gauge(
            "mxtrain_input_spread", "Standard deviation of recent inputs over that of the proof's samples", **labels
        )

    def observe(self, model: str, inputs: Mapping[str, np.ndarray]) -> None:
        """Adds a batch. Reads only a part of its elements, at most about `DRIFT_NUMBERS`."""
        for name, array in inputs.items():
            if name not in self._expected[model] or not array.size:
                continue
            step = max(array.size // DRIFT_NUMBERS, 1) | 1  # odd, so that not always the same column is read
            expected_mean, expected_deviation = self._expected[model][name]
            # An input that is constant in the proof has no deviation to divide by.
            scale = max(expected_deviation, 1e-6 * abs(expected_mean), 1e-12)
            lowest, highest = expected_mean - DRIFT_LIMIT * scale, expected_mean + DRIFT_LIMIT * scale
            some = np.clip(array.reshape(-1)[::step].astype(np.float64), lowest, highest)
            mean, square = float(some.mean()), float(np.square(some).mean())
            with self._lock:
                previous = self._seen.get((model, name), (mean, square))
                mean, square = (
                    DRIFT_MEMORY * old + (1 - DRIFT_MEMORY) * new for old, new in zip(previous, (mean, square))
                )
                self._seen[model, name] = (mean, square)
            deviation = max(square - mean * mean, 0.0) ** 0.5
            if (model, name) not in self._gauges:
                gauges = (self._mean, self._deviation, self._drift, self._spread)
                self._gauges[model, name] = [gauge.labels(model, name) for gauge in gauges]
            values = (mean, deviation, abs(mean - expected_mean) / scale, deviation / scale)
            for figure, value in zip(self._gauges[model, name], values):
                figure.set(value)
