"""Forecasts without a network, which a network should beat: seasonal naive and Holt-Winters.

Legend: T past steps, H steps to predict, Q quantiles, G settings that are compared, S steps of a season.
"""

from __future__ import annotations

import itertools
import math
from statistics import NormalDist
from typing import NamedTuple, Sequence, Tuple

import numpy as np

MAX_PAST = 2000
"""Largest number of past steps that Holt-Winters is fitted to."""
LEVEL_RATES, TREND_RATES, SEASON_RATES = (0.05, 0.1, 0.2, 0.4, 0.7), (0.0, 0.02, 0.1), (0.05, 0.15, 0.4)
"""Smoothing rates that are compared by their squared errors in the past."""


class Baseline(NamedTuple):
    """A forecast with normally distributed errors.

    Attributes:
        mean_H: means.
        deviation_H: standard deviations.
    """

    mean_H: np.ndarray
    deviation_H: np.ndarray

    def quantiles(self, levels: Sequence[float]) -> np.ndarray:
        """Returns the quantiles, (H, Q)."""
        points_Q = np.array([NormalDist().inv_cdf(level) for level in levels])
        return self.mean_H[:, None] + self.deviation_H[:, None] * points_Q


def filled(past_T: np.ndarray, season: int) -> np.ndarray:
    """Returns the past with missing values replaced by those one season before, or by the last known one."""
    value_T = past_T.copy()
    known = np.flatnonzero(~np.isnan(past_T))
    last = float(past_T[known[0]]) if len(known) else 0.0
    for step in np.flatnonzero(np.isnan(past_T)).tolist():
        before = value_T[step - season] if step >= season else value_T[step - 1] if step else last
        value_T[step] = last if math.isnan(before) else before
    return value_T


def seasonal_naive(past_T: np.ndarray, horizon: int, season: int) -> Baseline:
    """Repeats the last season. The variance of the k-th season is k times that of differences of neighbouring seasons.

    Source: Hyndman and Athanasopoulos, "Forecasting: Principles and Practice", section 5.5.

    Args:
        past_T: values; NaN = missing.
        horizon: H.
        season: steps of a season; a shorter past repeats its last value.
    """
    value_T = filled(past_T, season)
    season = season if len(value_T) >= season else 1
    number_H = np.arange(horizon)
    mean_H = value_T[len(value_T) - season + number_H % season]
    error_T = past_T[season:] - past_T[:-season]
    error_T = error_T[~np.isnan(error_T)]
    deviation = float(np.sqrt(np.mean(error_T**2))) if len(error_T) else 0.0
    return Baseline(mean_H, deviation * np.sqrt(number_H // season + 1))


def holt_winters(past_T: np.ndarray, horizon: int, season: int) -> Baseline:
    """Additive exponential smoothing of level, trend and season, with the smoothing rates of a grid that have the
    smallest squared errors of one step in the past. A past of less than two seasons has none.

    Source: Hyndman and Athanasopoulos, "Forecasting: Principles and Practice", sections 8.3 and 8.7 (ETS(A,A,A)).

    Args:
        past_T: values; NaN = missing, which leave the state as it is.
        horizon: H.
        season: steps of a season.
    """
    past_T = past_T[-MAX_PAST:]
    season = season if season > 1 and len(past_T) >= 2 * season else 1
    seasonal_rates = SEASON_RATES if season > 1 else (0.0,)
    rates = np.array(list(itertools.product(LEVEL_RATES, TREND_RATES, seasonal_rates))).T
    level_G, trend_G, season_GS = _first_state(filled(past_T, season), season, rates.shape[1])
    alpha_G, beta_G, gamma_G = rates
    squares_G, count = np.zeros(rates.shape[1]), 0
    for step, value in enumerate(past_T.tolist()):
        place = step % season
        expected_G = level_G + trend_G + season_GS[:, place]
        error_G = np.zeros_like(level_G) if math.isnan(value) else value - expected_G
        level_G = level_G + trend_G + alpha_G * error_G
        trend_G = trend_G + alpha_G * beta_G * error_G
        season_GS[:, place] += gamma_G * (1 - alpha_G) * error_G
        if step >= season and not math.isnan(value):
            squares_G, count = squares_G + error_G**2, count + 1
    best = int(np.argmin(squares_G))
    number_H = np.arange(1, horizon + 1)
    place_H = (len(past_T) + number_H - 1) % season
    mean_H = level_G[best] + number_H * trend_G[best] + season_GS[best, place_H]
    sigma = math.sqrt(float(squares_G[best]) / count) if count else 0.0
    alpha, beta, gamma = rates[:, best]
    # The variance of h steps is that of the sum of the errors between, each as far as it enters level and season.
    lag_H = np.arange(horizon)
    weight_H = alpha * (1 + lag_H * beta) + gamma * (1 - alpha) * ((lag_H % season == 0) & (season > 1))
    variance_H = 1 + np.concatenate([[0.0], np.cumsum(weight_H[1:] ** 2)])
    return Baseline(mean_H, sigma * np.sqrt(variance_H))


def _first_state(value_T: np.ndarray, season: int, count: int) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the first level, trend (0) and season of each setting: those of the first season, or the first value."""
    first_S = value_T[:season] if season > 1 else np.zeros(1)
    level = float(first_S.mean()) if season > 1 else float(value_T[0])
    season_S = first_S - level if season > 1 else first_S
    return np.full(count, level), np.zeros(count), np.tile(season_S, (count, 1))
