"""Draws future paths of series step by step, from the distributions that a network predicts. Exported folders have a
copy of this module.

Random numbers are functions of seed, path and step, the same for all series: a forecast depends neither on the other
series of a file nor on batches.

Legend: B series, S paths, N = B S rows, P past steps, H steps to predict, K facts of a step, E facts of an item, R raw
outputs of a step, Q quantiles.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Tuple

import numpy as np

from mxtrain.data.loading.uniform_hash import uniform_rows

STUDENT_T, GAUSSIAN, NEGATIVE_BINOMIAL = "student_t", "gaussian", "negative_binomial"
NUM_RAW = {STUDENT_T: 3, GAUSSIAN: 2, NEGATIVE_BINOMIAL: 2}
"""Distribution -> number of raw outputs, R."""
LEAST_SPREAD = 1e-3
"""Lower bound of deviations in the scale of a window, and of the shape of counts."""
LEAST_FREEDOM = 2.0
"""Lower bound of the degrees of freedom of Student's t, above which it has a variance."""
PATHS = 60
"""Random stream of `uniform_rows`."""
LARGE_COUNT = 500.0
"""Counts with a larger mean are drawn in a coarser unit, with the same mean and variance."""
COARSE_COUNT = 200.0
"""Mean of a large count in its unit."""
LEAST_SHAPE = 0.01
"""Large counts whose shape in their unit is smaller are hardly skewed, and drawn from the normal distribution."""
NEAR_LAGS, SEASONS = 7, (1, 2, 3, 4, 5, 6, 7, 14)
"""Lags are the last 7 steps, and one step around one to seven and fourteen seasons before."""
MAX_LAG = 700
"""Largest lag, unless a season is longer: a week of quarters of an hour, and not fourteen years of weeks."""
States = Sequence[Any]
Step = Callable[[np.ndarray, States], Tuple[np.ndarray, States]]
"""Function of inputs (N, I) and states that returns raw outputs (N, R) and the next states."""


class PathSettings(NamedTuple):
    """Settings of the sampling of paths.

    Attributes:
        season: steps after which values repeat.
        horizon: H.
        distribution: one of `NUM_RAW`.
        num_paths: S.
        seed: seed of the random numbers.
        levels: levels of the quantiles.
    """

    season: int
    horizon: int
    distribution: str
    num_paths: int
    seed: int
    levels: Sequence[float]


class PathStart(NamedTuple):
    """State of series at the cut.

    Attributes:
        scaled_BP: past values in the scale of each window, 0 where unknown.
        observed_BP: flags of known values.
        known_BHK: facts of the steps to predict.
        item_BE: facts of the items, scale included.
        scale_B1: scale of each window.
        states: states of the network, (B, U) each.
    """

    scaled_BP: np.ndarray
    observed_BP: np.ndarray
    known_BHK: np.ndarray
    item_BE: np.ndarray
    scale_B1: np.ndarray
    states: States


def lags_of(season: int) -> List[int]:
    """Returns the distances of the earlier values that enter each step, ascending."""
    lags = set(range(1, NEAR_LAGS + 1))
    if season > 1:
        lags |= {number * season + around for number in SEASONS for around in (-1, 0, 1)}
    return sorted(lag for lag in lags if 0 < lag <= max(season + 1, MAX_LAG))


def forecast_paths(
    start: PathStart,
    step: Step,
    settings: PathSettings,
    repeat: Callable[[Any, int], Any] = lambda state, count: np.repeat(state, count, axis=0),
) -> np.ndarray:
    """Returns mean and quantiles of each step, (B, H, 1 + Q) float32.

    Args:
        start: state of the series at the cut.
        step: step of the network.
        settings: how paths are drawn.
        repeat: repeats the rows of a state.
    """
    paths, lags = settings.num_paths, np.array(lags_of(settings.season))
    batch, past = start.scaled_BP.shape
    uniform_SH2 = uniform_rows(settings.seed, 0, np.arange(paths), PATHS, 2 * settings.horizon)
    uniform_SH2 = np.clip(uniform_SH2.reshape(paths, settings.horizon, 2), 1e-12, 1 - 1e-12)
    value_NT = np.zeros((batch * paths, past + settings.horizon), np.float32)
    value_NT[:, :past] = np.repeat(start.scaled_BP, paths, axis=0)
    item_NE, scale_N1 = (np.repeat(array, paths, axis=0) for array in (start.item_BE, start.scale_B1))
    observed_N1 = np.repeat(start.observed_BP[:, -1:], paths, axis=0).astype(np.float32)
    states: States = [repeat(state, paths) for state in start.states]
    for number in range(settings.horizon):
        known_NK = np.repeat(start.known_BHK[:, number], paths, axis=0)
        x_NI = np.concatenate([value_NT[:, past + number - lags], observed_N1, known_NK, item_NE], axis=1)
        raw_NR, states = step(x_NI.astype(np.float32), states)
        uniform_N2 = np.tile(uniform_SH2[:, number], (batch, 1))
        value_NT[:, past + number] = draw(raw_NR.astype(np.float64), scale_N1[:, 0], uniform_N2, settings.distribution)
        observed_N1 = np.ones_like(observed_N1)
    path_BSH = (value_NT[:, past:] * scale_N1).reshape(batch, paths, -1).astype(np.float64)
    quantile_QBH = np.quantile(path_BSH, settings.levels, axis=1)
    return np.concatenate([path_BSH.mean(axis=1)[None], quantile_QBH]).transpose(1, 2, 0).astype(np.float32)


START = ("scaled", "item", "scale")
"""Outputs of the part `encoder` of an exported network, before its states."""
STEP_INPUT, RAW = "x", "raw"
"""First input and first output of the part `step`."""


def input_name(number: int) -> str:
    """Returns the name of an input of an exported network and of its encoder."""
    return f"input{number}"


def state_name(number: int) -> str:
    """Returns the name of a state: an output of the encoder, an input of the step, and behind next_ an output of it."""
    return f"state{number}"


def forecast_with_parts(
    run: Callable[[Dict[str, np.ndarray], str], Dict[str, np.ndarray]],
    arrays: Sequence[np.ndarray],
    settings: PathSettings,
) -> np.ndarray:
    """Returns what `forecast_paths` does, with the encoder and the step of an exported network.

    Args:
        run: runs a part of the network: (inputs, name of the part) -> outputs.
        arrays: values, flags of known values, facts of steps, and perhaps facts of items, (B, ...) each.
        settings: how paths are drawn.
    """
    found = run({input_name(number): array for number, array in enumerate(arrays)}, "encoder")
    scaled_BP, item_BE, scale_B1 = (found[name] for name in START)
    past = scaled_BP.shape[1]
    states = [found[state_name(number)] for number in range(len(found) - len(START))]

    def step(x_NI: np.ndarray, states: States) -> Tuple[np.ndarray, States]:
        inputs = {STEP_INPUT: x_NI, **{state_name(number): state for number, state in enumerate(states)}}
        after = run(inputs, "step")
        return after[RAW], [after[f"next_{state_name(number)}"] for number in range(len(states))]

    start = PathStart(scaled_BP, arrays[1], arrays[2][:, past:], item_BE, scale_B1, states)
    return forecast_paths(start, step, settings)


def softplus(value: np.ndarray) -> np.ndarray:
    """Returns log(1 + exp(x))."""
    return np.logaddexp(0.0, value)


def draw(raw_NR: np.ndarray, scale_N: np.ndarray, uniform_N2: np.ndarray, distribution: str) -> np.ndarray:
    """Draws a value of each row in the scale of its window, (N,).

    Sources: Bailey, "Polar Generation of Random Variates with the t-Distribution" (1994), without the rejection; Box
    and Muller (1958).

    Args:
        raw_NR: raw outputs of the network.
        scale_N: scales.
        uniform_N2: uniform numbers.
        distribution: one of `NUM_RAW`.
    """
    radius_N, angle_N = uniform_N2[:, 0], 2 * math.pi * uniform_N2[:, 1]
    if distribution == NEGATIVE_BINOMIAL:
        mean_N = softplus(raw_NR[:, 0]) * scale_N
        return draw_counts(mean_N, softplus(raw_NR[:, 1]) + LEAST_SPREAD, uniform_N2) / scale_N
    spread_N = softplus(raw_NR[:, 1]) + LEAST_SPREAD
    if distribution == GAUSSIAN:
        return raw_NR[:, 0] + spread_N * np.sqrt(-2 * np.log(radius_N)) * np.cos(angle_N)
    freedom_N = LEAST_FREEDOM + softplus(raw_NR[:, 2])
    return raw_NR[:, 0] + spread_N * np.sqrt(freedom_N * np.expm1(-2 / freedom_N * np.log(radius_N))) * np.cos(angle_N)


def draw_counts(mean_N: np.ndarray, shape_N: np.ndarray, uniform_N2: np.ndarray) -> np.ndarray:
    """Draws counts of the negative binomial distribution with variance mean + shape mean^2, (N,), by its distribution
    function; see `LARGE_COUNT`."""
    is_large_N = mean_N > LARGE_COUNT
    unit_N = np.where(is_large_N, mean_N / COARSE_COUNT, 1.0)
    coarse_N = np.where(is_large_N, shape_N + 1 / np.maximum(mean_N, 1.0) - 1 / COARSE_COUNT, shape_N)
    is_normal_N = is_large_N & (coarse_N < LEAST_SHAPE)
    normal_N = np.sqrt(-2 * np.log(uniform_N2[:, 0])) * np.cos(2 * math.pi * uniform_N2[:, 1])
    spread_N = np.sqrt(mean_N + shape_N * mean_N**2)
    found_N = np.maximum(np.round(mean_N + spread_N * normal_N), 0.0)
    mean_M, shape_M, uniform_M2 = (mean_N / unit_N)[~is_normal_N], coarse_N[~is_normal_N], uniform_N2[~is_normal_N]
    count_M = np.zeros(len(mean_M))
    ratio_M = shape_M * mean_M / (1 + shape_M * mean_M)
    share_M = np.exp(-np.log1p(shape_M * mean_M) / shape_M)
    total_M = share_M.copy()
    # The tail falls by e in 1 + shape mean counts, and no uniform number of 53 bits is beyond 37 of them.
    end_M = mean_M + 20 * np.sqrt(mean_M + shape_M * mean_M**2) + 37 * (1 + shape_M * mean_M)
    for count in range(int(end_M.max(initial=0)) + 20):
        is_above_M = uniform_M2[:, 0] > total_M
        if not is_above_M.any():
            break
        count_M += is_above_M
        share_M = share_M * ratio_M * (count + 1 / shape_M) / (count + 1)
        total_M = total_M + share_M
    # Uniform within a unit; units of 1 are the counts themselves.
    unit_M = unit_N[~is_normal_N]
    count_M = np.where(unit_M > 1, np.round((count_M + uniform_M2[:, 1] - 0.5) * unit_M), count_M)
    found_N[~is_normal_N] = np.maximum(count_M, 0.0)
    return found_N
