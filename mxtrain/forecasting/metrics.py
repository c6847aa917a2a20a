"""Metrics of forecasts, as GluonTS computes them: a window of a series is an item.

Errors are those of the median (ND, MASE, sMAPE) or of the mean (RMSE). Missing values count nowhere. Differences from
GluonTS 0.17: a series without a seasonal error, because it is constant or shorter than a season, does not count in
MASE (there one makes the mean infinite, or is measured with a season of 1); a value and a forecast of 0 have the
sMAPE 0 (there NaN).

Legend: N windows, H steps, Q quantiles, R rows.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal, NamedTuple, Optional, Sequence, Tuple, Type

import numpy as np

from mxtrain.forecasting.kinds import FutureValues
from mxtrain.metric.host import Collected, HostMetric, HostPredictions
from mxtrain.types import ProperFraction
from mxtrain.types.kinds import Takes


class Forecasts(NamedTuple):
    """Forecasts of windows and the true values.

    Attributes:
        mean_NH: means.
        quantile_NHQ: quantiles.
        value_NH: true values; NaN = missing.
        seasonal_error_N: see `source.seasonal_error`; NaN = unknown.
        levels: levels of the quantiles.
    """

    mean_NH: np.ndarray
    quantile_NHQ: np.ndarray
    value_NH: np.ndarray
    seasonal_error_N: np.ndarray
    levels: Sequence[float]

    @property
    def median_NH(self) -> np.ndarray:
        """Returns the quantiles of the level 0.5."""
        return self.quantile_NHQ[:, :, list(self.levels).index(0.5)]


class ForecastRows(Collected):
    """Collects a row for each step: mean, quantiles, value, whether it is known, and the seasonal error.

    Args:
        levels: levels of the quantiles.
    """

    width: ClassVar[int]

    def __init__(self, levels: Sequence[float]) -> None:
        self.levels = levels
        self.width = 4 + len(levels)  # type: ignore[misc]  # follows from the task
        super().__init__()

    @classmethod
    def from_metrics(cls, metrics: Sequence[HostMetric]) -> ForecastRows:
        """Builds an empty collector that `metrics` share."""
        first = metrics[0]
        assert isinstance(first, ForecastMetric)
        return cls(first._levels)

    def update(
        self, index_B: np.ndarray, prediction_B: HostPredictions, target_B: np.ndarray, meta_B: Optional[np.ndarray]
    ) -> None:
        """Adds a batch.

        Args:
            index_B: indices of the samples in their split.
            prediction_B: means and quantiles (B, H, 1 + Q).
            target_B: values (B, H).
            meta_B: seasonal error, then flags of known values, (B, 1 + H).
        """
        assert meta_B is not None
        prediction_BHC = np.asarray(prediction_B, np.float64)
        batch, horizon = target_B.shape
        columns = [
            np.repeat(index_B, horizon),
            np.tile(np.arange(horizon), batch),
            *prediction_BHC.reshape(batch * horizon, -1).T,
            target_B.reshape(-1),
            meta_B[:, 1:].reshape(-1),
            np.repeat(meta_B[:, 0], horizon),
        ]
        self._parts.append(np.stack(columns, axis=1).astype(np.float64))

    def forecasts(self) -> Tuple[np.ndarray, Forecasts]:
        """Returns the indices of the windows and their forecasts."""
        rows = self.samples()
        count = len(np.unique(rows[:, 0]))
        row_NHC = rows.reshape(count, -1, rows.shape[1]) if count else rows.reshape(0, 1, self.width + 2)
        value_NH = np.where(row_NHC[:, :, -2] > 0, row_NHC[:, :, -3], np.nan)
        found = Forecasts(
            row_NHC[:, :, 2], row_NHC[:, :, 3:-3], value_NH, row_NHC[:, 0, -1] if count else np.zeros(0), self.levels
        )
        return row_NHC[:, 0, 0].astype(np.int64) if count else np.zeros(0, np.int64), found


class ForecastMetric(HostMetric):
    """Base class of metrics of forecasts. Subclasses implement `of_forecasts`."""

    direction: ClassVar[Literal["max", "min"]] = "min"
    takes: ClassVar[Takes] = Takes(FutureValues)
    collects: ClassVar[Type[Collected]] = ForecastRows

    _levels: Sequence[float] = ()

    def with_levels(self, levels: Sequence[float]) -> ForecastMetric:
        """Returns this metric for forecasts with these quantiles."""
        copy = self.model_copy()
        copy._levels = levels
        return copy

    def compute(self, collected: Collected) -> float:
        assert isinstance(collected, ForecastRows)
        return self.of_forecasts(collected.forecasts()[1])

    def of_forecasts(self, forecasts: Forecasts) -> float:
        """Computes the metric; NaN if it is undefined for these values."""
        raise NotImplementedError


class CRPS(ForecastMetric):
    """Mean over the levels of the weighted quantile loss, which approximates the continuous ranked probability score
    divided by the mean absolute value; `mean_wQuantileLoss` of GluonTS."""

    def of_forecasts(self, forecasts: Forecasts) -> float:
        """See `ForecastMetric`."""
        return float(np.mean([weighted_quantile_loss(forecasts, level) for level in forecasts.levels]))


class WeightedQuantileLoss(ForecastMetric):
    """Twice the quantile loss of a level, summed over all values, divided by the sum of their absolute values."""

    level: ProperFraction = 0.9
    """Level of the quantile, one of task.quantiles."""

    @property
    def signature(self) -> str:
        return f"level={self.level:g}"

    def of_forecasts(self, forecasts: Forecasts) -> float:
        """See `ForecastMetric`."""
        return weighted_quantile_loss(forecasts, self.level)


class MASE(ForecastMetric):
    """Mean absolute scaled error: that of the median divided by the seasonal error of the past, the mean over series.

    Source: Hyndman and Koehler, "Another look at measures of forecast accuracy" (2006).
    """

    def of_forecasts(self, forecasts: Forecasts) -> float:
        """See `ForecastMetric`."""
        error_N = row_means(np.abs(forecasts.value_NH - forecasts.median_NH))
        has_error_N = forecasts.seasonal_error_N > 0  # NaN is not
        return nan_mean(error_N[has_error_N] / forecasts.seasonal_error_N[has_error_N])


class SymmetricMAPE(ForecastMetric):
    """Symmetric mean absolute percentage error of the median, from 0 to 2: 2 |y - f| / (|y| + |f|), 0 if both are 0."""

    def of_forecasts(self, forecasts: Forecasts) -> float:
        """See `ForecastMetric`."""
        value_NH, median_NH = forecasts.value_NH, forecasts.median_NH
        size_NH = np.abs(value_NH) + np.abs(median_NH)
        error_NH = 2 * np.abs(value_NH - median_NH) / np.where(size_NH > 0, size_NH, 1)
        return nan_mean(row_means(np.where(np.isnan(value_NH), np.nan, error_NH)))


class NormalizedDeviation(ForecastMetric):
    """Sum of the absolute errors of the median divided by the sum of the absolute values."""

    def of_forecasts(self, forecasts: Forecasts) -> float:
        """See `ForecastMetric`."""
        error = np.nansum(np.abs(forecasts.value_NH - forecasts.median_NH))
        return divided(float(error), float(np.nansum(np.abs(forecasts.value_NH))))


class ForecastRMSE(ForecastMetric):
    """Root of the mean squared error of the mean, each series with the same weight."""

    def of_forecasts(self, forecasts: Forecasts) -> float:
        """See `ForecastMetric`."""
        return math.sqrt(nan_mean(row_means((forecasts.value_NH - forecasts.mean_NH) ** 2)))


class Coverage(ForecastMetric):
    """Share of the values that are not above the quantile of a level, each series with the same weight; the best value
    is the level."""

    direction: ClassVar[Literal["max", "min", "unknown"]] = "unknown"  # type: ignore[assignment]  # neither is better

    level: ProperFraction = 0.9
    """Level of the quantile, one of task.quantiles."""

    @property
    def signature(self) -> str:
        return f"level={self.level:g}"

    def of_forecasts(self, forecasts: Forecasts) -> float:
        """See `ForecastMetric`."""
        below_NH = (forecasts.value_NH <= quantile_of(forecasts, self.level)).astype(np.float64)
        return nan_mean(row_means(np.where(np.isnan(forecasts.value_NH), np.nan, below_NH)))


def quantile_of(forecasts: Forecasts, level: float) -> np.ndarray:
    """Returns the quantiles of a level, (N, H)."""
    return forecasts.quantile_NHQ[:, :, list(forecasts.levels).index(level)]


def weighted_quantile_loss(forecasts: Forecasts, level: float) -> float:
    """Returns the weighted quantile loss of a level."""
    error_NH = forecasts.value_NH - quantile_of(forecasts, level)
    loss = 2 * np.nansum(np.maximum(level * error_NH, (level - 1) * error_NH))
    return divided(float(loss), float(np.nansum(np.abs(forecasts.value_NH))))


def divided(total: float, size: float) -> float:
    """Returns a ratio; NaN for a size of 0, so that values of 0 alone are neither best nor worst."""
    return total / size if size > 0 else math.nan


def row_means(value_NH: np.ndarray) -> np.ndarray:
    """Returns the mean of the known values of each row; NaN where there are none."""
    count_N = (~np.isnan(value_NH)).sum(axis=1)
    return np.where(count_N > 0, np.nansum(value_NH, axis=1) / np.maximum(count_N, 1), np.nan)


def nan_mean(value_N: np.ndarray) -> float:
    """Returns the mean of the known values; NaN if there are none."""
    known_N = value_N[~np.isnan(value_N)]
    return float(known_N.mean()) if len(known_N) else math.nan
