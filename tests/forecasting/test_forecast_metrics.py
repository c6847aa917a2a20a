"""Metrics of forecasts: against loops in NumPy, and against GluonTS where it is installed; baselines."""

from __future__ import annotations

import math
from typing import Any, Dict, List

import numpy as np
import pytest

from mxtrain.forecasting.baselines import filled, holt_winters, seasonal_naive
from mxtrain.forecasting.metrics import (
    CRPS,
    MASE,
    Coverage,
    ForecastRMSE,
    ForecastRows,
    Forecasts,
    NormalizedDeviation,
    SymmetricMAPE,
    WeightedQuantileLoss,
)
from mxtrain.forecasting.quantile_rows import forecast_row, mean_weights

LEVELS = [0.1, 0.5, 0.8]
SEASON, HORIZON = 4, 5
DRAW = np.random.RandomState(3)
PAST = [10 * DRAW.gamma(2, size=length) for length in (20, 31, 9)]
VALUE = 10 * DRAW.gamma(2, size=(3, HORIZON))
VALUE[1, 2] = np.nan
QUANTILE = np.sort(10 * DRAW.gamma(2, size=(3, HORIZON, 3)), axis=2)
MEAN = QUANTILE.mean(axis=2) + 1
METRICS: Dict[str, Any] = {
    "mean_wQuantileLoss": CRPS(),
    "wQuantileLoss[0.8]": WeightedQuantileLoss(level=0.8),
    "MASE": MASE(),
    "sMAPE": SymmetricMAPE(),
    "ND": NormalizedDeviation(),
    "RMSE": ForecastRMSE(),
    "Coverage[0.8]": Coverage(level=0.8),
}


def seasonal_errors() -> np.ndarray:
    return np.array([np.abs(past[SEASON:] - past[:-SEASON]).mean() for past in PAST])


def collected(value: np.ndarray = VALUE, error: Any = None) -> ForecastRows:
    """What an evaluation collects, in two batches in another order, one sample twice."""
    error = seasonal_errors() if error is None else error
    rows = ForecastRows(LEVELS)
    prediction = np.concatenate([MEAN[:, :, None], QUANTILE], axis=2)
    for index in ([2, 0], [1, 0]):
        meta = np.concatenate([error[index, None], ~np.isnan(value[index])], axis=1)
        rows.update(np.array(index), prediction[index], np.nan_to_num(value[index]), meta)
    return rows


def expected() -> Dict[str, float]:
    """The metrics, value by value."""
    losses = {level: 0.0 for level in LEVELS}
    size = error_sum = 0.0
    mase: List[float] = []
    smape: List[float] = []
    squares: List[float] = []
    below: List[float] = []
    for series in range(3):
        own: Dict[str, List[float]] = {"error": [], "smape": [], "square": [], "below": []}
        for step in range(HORIZON):
            value = VALUE[series, step]
            if math.isnan(value):
                continue
            for number, level in enumerate(LEVELS):
                quantile = QUANTILE[series, step, number]
                losses[level] += 2 * (
                    (value - quantile) * level if value > quantile else (quantile - value) * (1 - level)
                )
            median = QUANTILE[series, step, 1]
            size += abs(value)
            error_sum += abs(value - median)
            own["error"].append(abs(value - median))
            own["smape"].append(2 * abs(value - median) / (abs(value) + abs(median)))
            own["square"].append((value - MEAN[series, step]) ** 2)
            own["below"].append(float(value <= QUANTILE[series, step, 2]))
        means = {name: sum(values) / len(values) for name, values in own.items()}
        past = PAST[series]
        scale = sum(abs(past[step] - past[step - SEASON]) for step in range(SEASON, len(past))) / (len(past) - SEASON)
        mase.append(means["error"] / scale)
        smape.append(means["smape"])
        squares.append(means["square"])
        below.append(means["below"])
    return {
        "mean_wQuantileLoss": sum(losses.values()) / size / len(LEVELS),
        "wQuantileLoss[0.8]": losses[0.8] / size,
        "MASE": sum(mase) / 3,
        "sMAPE": sum(smape) / 3,
        "ND": error_sum / size,
        "RMSE": math.sqrt(sum(squares) / 3),
        "Coverage[0.8]": sum(below) / 3,
    }


@pytest.mark.parametrize("name", METRICS)
def test_metrics_equal_a_loop(name: str) -> None:
    metric = METRICS[name].with_levels(LEVELS)
    own = metric.collects.from_metrics([metric])
    own.merge(collected().rows())
    assert metric.compute(own) == pytest.approx(expected()[name], rel=1e-12)


def test_metrics_equal_those_of_gluonts() -> None:
    evaluation = pytest.importorskip("gluonts.evaluation", reason="GluonTS is not installed")
    pandas = pytest.importorskip("pandas")
    from gluonts.model.forecast import QuantileForecast

    series, forecasts = [], []
    for number, past in enumerate(PAST):
        index = pandas.period_range("2024-01-01", periods=len(past) + HORIZON, freq="h")
        series.append(pandas.DataFrame(np.concatenate([past, VALUE[number]]), index=index))
        arrays = np.concatenate([QUANTILE[number].T, MEAN[number][None]])
        forecasts.append(QuantileForecast(arrays, index[len(past)], [*map(str, LEVELS), "mean"]))
    evaluator = evaluation.Evaluator(quantiles=LEVELS, seasonality=SEASON, num_workers=None)
    found, _ = evaluator(iter(series), iter(forecasts))
    for name, metric in METRICS.items():
        assert metric.compute(collected()) == pytest.approx(float(found[name]), rel=1e-6), name


def test_series_without_a_seasonal_error_do_not_count_in_mase() -> None:
    errors = seasonal_errors()
    own = [float(np.nanmean(np.abs(VALUE[one] - QUANTILE[one, :, 1])) / errors[one]) for one in range(3)]
    for unknown in (0.0, np.nan):
        found = MASE().compute(collected(error=np.array([unknown, *errors[1:]])))
        assert found == pytest.approx((own[1] + own[2]) / 2)
    assert math.isnan(MASE().compute(collected(error=np.zeros(3))))


def test_values_of_zero_have_no_weighted_loss_and_no_smape() -> None:
    zero = np.zeros((3, HORIZON))
    assert math.isnan(CRPS().compute(collected(zero))) and math.isnan(NormalizedDeviation().compute(collected(zero)))
    assert SymmetricMAPE().compute(collected(zero)) == 2
    forecasts = Forecasts(zero, np.zeros((3, HORIZON, 3)), zero, np.ones(3), LEVELS)
    assert SymmetricMAPE().of_forecasts(forecasts) == 0


def test_a_split_without_known_values_has_no_metrics() -> None:
    unknown = np.full((3, HORIZON), np.nan)
    for metric in METRICS.values():
        assert math.isnan(metric.compute(collected(unknown))) and math.isnan(metric.compute(ForecastRows(LEVELS)))


def test_the_mean_is_of_the_nearest_quantiles() -> None:
    np.testing.assert_allclose(mean_weights([0.1, 0.5, 0.8]), [0.3, 0.35, 0.35], rtol=1e-6)
    assert mean_weights([0.5]).tolist() == [1]
    row = forecast_row("a", "2024-01-01", np.array([1.23456789, 2, 3, 4]), LEVELS)
    assert row == {"item": "a", "time": "2024-01-01", "mean": 1.234568, "0.1": 2.0, "0.5": 3.0, "0.8": 4.0}


def test_seasonal_naive_repeats_the_last_season() -> None:
    past = np.array([0.0, 9, 1, 2, 3, 5])
    forecast = seasonal_naive(past, 4, 3)
    assert forecast.mean_H.tolist() == [2, 3, 5, 2]
    deviation = math.sqrt((4 + 36 + 16) / 3)
    np.testing.assert_allclose(forecast.deviation_H, deviation * np.sqrt([1, 1, 1, 2]))
    np.testing.assert_allclose(forecast.quantiles([0.1, 0.5])[0], [2 - 1.2815515655 * deviation, 2])
    assert seasonal_naive(np.array([1.0, 4]), 2, 3).mean_H.tolist() == [4, 4], "a short past repeats its last value"
    np.testing.assert_allclose(seasonal_naive(np.array([1.0, 4]), 2, 3).deviation_H, [3, 3 * math.sqrt(2)])


def test_missing_values_are_those_of_a_season_before() -> None:
    past = np.array([np.nan, 1, 2, np.nan, np.nan, 5])
    assert filled(past, 2).tolist() == [1, 1, 2, 1, 2, 5]
    assert seasonal_naive(past, 2, 2).mean_H.tolist() == [2, 5]


def test_holt_winters_continues_trend_and_season() -> None:
    step = np.arange(60)
    season = np.array([5.0, -1, 2, -6])
    past = 3 + 0.5 * step + season[step % 4]
    forecast = holt_winters(past, 8, 4)
    later = np.arange(60, 68)
    np.testing.assert_allclose(forecast.mean_H, 3 + 0.5 * later + season[later % 4], atol=0.3)
    assert (np.diff(forecast.deviation_H) >= 0).all()
    missing = past.copy()
    missing[[7, 30, 31]] = np.nan
    np.testing.assert_allclose(holt_winters(missing, 8, 4).mean_H, forecast.mean_H, atol=2)


def test_holt_winters_has_the_smallest_squared_errors_of_its_grid() -> None:
    """A random walk is predicted by its last value, noise around a level by the level."""
    draw = np.random.RandomState(0)
    walk, noise = np.cumsum(draw.normal(size=400)), draw.normal(size=400)
    near = holt_winters(walk, 1, 1).mean_H[0]
    assert abs(near - walk[-1]) < 1.0
    level = holt_winters(noise, 3, 1)
    assert abs(level.mean_H[0]) < 0.3 and 0.9 < level.deviation_H[0] < 1.15
    assert holt_winters(np.array([2.0]), 2, 4).mean_H.tolist() == [2, 2]
