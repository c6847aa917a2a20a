"""Metrics that were passed from Python as objects or functions.

Legend: N samples, B batch, D numbers of a prediction.
"""

from __future__ import annotations

import math
import numbers
from typing import Any, ClassVar, Dict, Literal, Optional, Tuple, Type

import numpy as np

from mxtrain.config.placeholders import Given
from mxtrain.errors import ConfigError
from mxtrain.metric.host import Collected, HostMetric, HostPredictions
from mxtrain.types.kinds import Takes

DIRECTIONS: Dict[Literal["max", "min"], Tuple[str, ...]] = {
    "min": ("MAE", "MSE", "RMSE", "CrossEntropy", "NegativeLogLikelihood", "Perplexity", "Loss"),
    "max": ("Accuracy", "TopKAccuracy", "F1", "MCC", "PearsonCorrelation", "PCC"),
}
"""Classes of mxnet.metric, and of metrics derived from them, by the direction in which they get better."""


class PredictionsAndTargets(Collected):
    """Collector of predictions and targets of any shape: a row holds the flattened prediction, then the target."""

    shapes: Tuple[Tuple[int, ...], ...] = ()
    """Shapes of one prediction and of one target, set by the first batch."""

    @property
    def width(self) -> int:  # type: ignore[override]  # depends on the instance
        return sum(math.prod(shape) for shape in self.shapes)

    def update(
        self, index_B: np.ndarray, prediction_B: HostPredictions, target_B: np.ndarray, meta_B: Optional[np.ndarray]
    ) -> None:
        if not isinstance(prediction_B, np.ndarray):
            raise ConfigError("metric: predictions of this task differ in their shapes, which no EvalMetric takes.")
        self.shapes = (prediction_B.shape[1:], target_B.shape[1:])
        columns = [array.reshape(len(index_B), -1) for array in (prediction_B, target_B)]
        indices_B2 = np.stack([index_B, np.zeros(len(index_B))], axis=1)
        self._parts.append(np.concatenate([indices_B2, *columns], axis=1).astype(np.float64))


class GivenMetric(Given, HostMetric):
    """Wraps an mxnet.metric.EvalMetric, or a function of (targets, predictions) -> float, of all samples of a split."""

    argument: ClassVar[str] = "metric"
    collects: ClassVar[Type[Collected]] = PredictionsAndTargets
    takes: ClassVar[Takes] = Takes()

    @classmethod
    def describe_object(cls, value: Any) -> Dict[str, Any]:
        """Returns what identifies a metric in addition to its class: the better direction, if its class has one.

        Raises:
            ConfigError: the object is not a metric.
        """
        from mxtrain.engine.backend import mx

        is_metric = isinstance(value, mx.metric.EvalMetric)
        if isinstance(value, type) or not (is_metric or callable(value)):
            raise ConfigError(
                f"metric={value!r:.60}: must be an mxnet.metric.EvalMetric, a function of (targets, predictions) -> "
                "float, or a dict of these by name. To choose metrics by their names, give an override: "
                '"metric=[accuracy,f1]". A direction is given as (METRIC, "min") or (METRIC, "max").'
            )
        for direction, names in DIRECTIONS.items():
            if isinstance(value, tuple(getattr(mx.metric, name) for name in names)):
                return {"better": direction}
        return {}

    def compute(self, collected: Collected) -> float:
        assert isinstance(collected, PredictionsAndTargets)
        rows = collected.samples()[:, 2:]
        if not len(rows):
            return math.nan
        shape, target_shape = collected.shapes
        count = math.prod(shape)
        prediction_N = rows[:, :count].reshape(-1, *shape).astype(np.float32)
        target_N = rows[:, count:].reshape(-1, *target_shape).astype(np.float32)
        metric = self.require()
        from mxtrain.engine.backend import mx, nd

        if not isinstance(metric, mx.metric.EvalMetric):
            return self._number(metric(target_N, prediction_N))
        # The user's object may hold the sums of another split.
        metric.reset()
        metric.update([nd.array(target_N)], [nd.array(prediction_N)])
        return self._number(metric.get()[1])

    def _number(self, value: Any) -> float:
        """Returns the result of a metric as a float.

        Raises:
            ConfigError: it is no number.
        """
        if getattr(value, "size", 0) == 1:  # an array of one element, of NumPy or MXNet
            value = np.asarray(value.asnumpy() if hasattr(value, "asnumpy") else value).item()
        if not isinstance(value, numbers.Real):
            raise ConfigError(
                f"{self.given_as}: {self.object} returned {value!r:.60} (of type {type(value).__name__}): a metric "
                "must return one number. NaN means that it is undefined."
            )
        return float(value)
