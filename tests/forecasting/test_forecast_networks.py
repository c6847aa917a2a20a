"""Networks of forecasts: their scale, what they see, losses against NumPy and SciPy, and sampled paths."""

from __future__ import annotations

import math
from typing import Any, List

import numpy as np
import pytest
from scipy import stats

from mxtrain.engine.backend import autograd, mx, nd
from mxtrain.errors import ConfigError
from mxtrain.forecasting.forecasters import DeepAR, NBeats, TemporalConvolution
from mxtrain.forecasting.losses import Likelihood, Pinball
from mxtrain.forecasting.n_beats import around_middle, season_basis
from mxtrain.forecasting.networks import layers_for, scale_window
from mxtrain.forecasting.sampled_paths import (
    NUM_RAW,
    PathSettings,
    PathStart,
    draw,
    draw_counts,
    forecast_paths,
    lags_of,
    softplus,
)
from mxtrain.forecasting.signature import SeriesSizes

LEVELS = [0.1, 0.5, 0.9]
PAST, HORIZON, SEASON = 12, 5, 4
SIZES = SeriesSizes(PAST, HORIZON, SEASON, 3, 2, (4, 3))


def make_inputs(past: int = PAST, seed: int = 0) -> List[Any]:
    draws = np.random.RandomState(seed)
    observed = (draws.rand(2, past) > 0.2).astype(np.float32)
    value = (50 + 10 * draws.randn(2, past)).astype(np.float32) * observed
    known = draws.randn(2, past + HORIZON, 3).astype(np.float32)
    arrays = [value, observed, known, draws.randn(2, 2).astype(np.float32), np.array([[1, 2], [3, 0]], np.int32)]
    return [nd.array(array, dtype=array.dtype) for array in arrays]


def build(model: Any, sizes: SeriesSizes = SIZES) -> Any:
    mx.random.seed(1)
    network = model.build_quantiles(len(LEVELS), sizes)
    network.initialize(mx.init.Xavier())
    return network


def test_windows_are_scaled_by_known_values() -> None:
    value = nd.array([[2, 0, 6, 0], [5, 5, 5, 5], [0, 0, 0, 0], [0, 0, 0, 0]])
    observed = nd.array([[1, 0, 1, 0], [1, 1, 1, 1], [1, 1, 1, 1], [0, 0, 0, 0]])
    scaled, centre, scale = scale_window(nd, value, observed, by_mean=False)
    assert centre.asnumpy().ravel().tolist() == [4, 5, 0, 0]
    assert scale.asnumpy().ravel().tolist() == [2, 5, 1, 1], "a constant window has the size of its values, or 1"
    assert scaled.asnumpy()[0].tolist() == [-1, 0, 1, 0]
    scaled, centre, scale = scale_window(nd, value, observed, by_mean=True)
    assert scale.asnumpy().ravel().tolist() == [4, 5, 1, 1] and not centre.asnumpy().any()
    assert scaled.asnumpy()[0].tolist() == [0.5, 0, 1.5, 0]


@pytest.mark.parametrize("unit", [1e-30, 1e25])
def test_values_whose_squares_do_not_fit_are_scaled(unit: float) -> None:
    value = unit * nd.array([[1, 2, 3]])
    scaled, _, scale = scale_window(nd, value, nd.ones((1, 3)), by_mean=False)
    np.testing.assert_allclose(scale.asnumpy(), [[unit * np.sqrt(2 / 3)]], rtol=1e-5)
    np.testing.assert_allclose(scaled.asnumpy(), [[-np.sqrt(1.5), 0, np.sqrt(1.5)]], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("num_layers", [1, 2])
def test_deepar_drops_outputs_between_its_layers_only(num_layers: int) -> None:
    model = DeepAR(units=8, num_layers=num_layers, dropout=0.5)
    past = model.past_steps(4, SEASON)
    network = build(model, SIZES._replace(past=past))
    inputs = [*make_inputs(past), nd.ones((2, HORIZON)), nd.ones((2, HORIZON))]
    predicted = network(*inputs)[0].asnumpy()
    with autograd.record(train_mode=True):
        trained = network(*inputs)[0].asnumpy()
    # The operators of training round differently.
    assert np.allclose(predicted, trained, rtol=1e-3, atol=1e-4) == (num_layers == 1)


@pytest.mark.parametrize("scaling", ["std", "mean"])
@pytest.mark.parametrize(
    "kind, settings",
    [(TemporalConvolution, {}), (NBeats, {"stacks": "generic"}), (NBeats, {"stacks": "interpretable"})],
)
def test_forecasts_have_the_unit_of_the_values(kind: Any, settings: Any, scaling: Any) -> None:
    network = build(kind(units=8, scaling=scaling, **settings))
    value, *rest = make_inputs()
    quantile, scale = (array.asnumpy() for array in network(value, *rest))
    assert quantile.shape == (2, HORIZON, 3) and (np.diff(quantile, axis=2) > 0).all()
    times, scale_times = (array.asnumpy() for array in network(value * 1000, *rest))
    np.testing.assert_allclose(times, quantile * 1000, rtol=1e-3)
    np.testing.assert_allclose(scale_times, scale * 1000, rtol=1e-5)
    if scaling == "std":
        moved = network((value + 100) * rest[0], *rest)[0].asnumpy()
        np.testing.assert_allclose(moved, quantile + 100, rtol=1e-3)


@pytest.mark.parametrize("kind", [TemporalConvolution, NBeats])
def test_unknown_values_are_not_read(kind: Any) -> None:
    network = build(kind(units=8))
    value, observed, *rest = make_inputs()
    other = value + 1000 * (1 - observed)
    first = network(value, observed, *rest)[0].asnumpy()
    scaled = scale_window(nd, value, observed, by_mean=False).value_BP.asnumpy()
    np.testing.assert_array_equal(scaled, scale_window(nd, other, observed, by_mean=False).value_BP.asnumpy())
    np.testing.assert_allclose(network(other, observed, *rest)[0].asnumpy(), first, rtol=1e-6)


@pytest.mark.parametrize("kind", [TemporalConvolution, NBeats])
def test_facts_of_steps_and_items_are_read(kind: Any) -> None:
    network = build(kind(units=8))
    inputs = make_inputs()
    first = network(*inputs)[0].asnumpy()
    for number in range(len(inputs)):
        changed = [array.copy() for array in inputs]
        own = changed[number][:, 0]
        changed[number][:, 0] = {1: 1 - own, 4: 3 - own}.get(number, own + 1)
        assert not np.allclose(network(*changed)[0].asnumpy(), first), number
    last = [array.copy() for array in inputs]
    last[2][:, -1] += 1
    difference = np.abs(network(*last)[0].asnumpy() - first).max(axis=(0, 2))
    assert difference[-1] > 0 and not difference[:-1].any(), "facts of a step to predict count for that step alone"


@pytest.mark.parametrize("stacks", ["generic", "interpretable"])
def test_blocks_of_n_beats_equal_a_computation_in_numpy(stacks: Any) -> None:
    network = build(NBeats(units=8, num_blocks=2, num_layers=2, degree=2, stacks=stacks))
    inputs = make_inputs()
    for parameter in network.collect_params(".*bias").values():
        parameter.set_data(nd.random.uniform(shape=parameter.shape))
    value, observed, known = (array.asnumpy() for array in inputs[:3])
    items = network.items(*inputs[3:]).asnumpy()
    scaled, centre, scale = (array.asnumpy() for array in scale_window(nd, *inputs[:2], by_mean=False))
    past, future = np.arange(PAST), np.arange(HORIZON)
    time = np.concatenate([past / PAST, future / HORIZON])
    angle = 2 * np.pi / SEASON * np.arange(-PAST, HORIZON)
    bases = {
        "trend": np.stack([time**0, time, time**2], axis=1),
        "seasonality": np.stack([angle**0, np.cos(angle), np.cos(2 * angle), np.sin(angle), np.sin(2 * angle)], axis=1),
    }

    def dense(layer: Any, array: np.ndarray) -> np.ndarray:
        return array @ layer.weight.data().asnumpy().T + layer.bias.data().asnumpy()

    residual, total = scaled, np.zeros((2, HORIZON, len(LEVELS)))
    for number, block in enumerate(network.blocks):
        hidden = np.concatenate([residual, items], axis=1)
        for layer in block.layers:
            hidden = np.maximum(dense(layer, hidden), 0)
        if hasattr(block, "forecast"):
            backcast = dense(block.backcast, hidden)
            forecast = dense(block.forecast, hidden).reshape(2, HORIZON, len(LEVELS))
        else:
            kind = ["trend", "seasonality", "covariates"][number // 2]
            basis = np.stack([bases[kind]] * 2) if kind in bases else known
            factors = dense(block.factors, hidden).reshape(2, 1 + len(LEVELS), -1)
            both = np.einsum("bck,bfk->bcf", factors, basis)
            backcast, forecast = both[:, 0, :PAST], both[:, 1:, PAST:].transpose(0, 2, 1)
        residual, total = (residual - backcast) * observed, total + forecast
    low, middle, high = np.moveaxis(total, 2, 0)
    expected = np.stack([middle - np.log1p(np.exp(low - 2)), middle, middle + np.log1p(np.exp(high - 2))], axis=2)
    expected = centre[:, :, None] + scale[:, :, None] * expected
    np.testing.assert_allclose(network(*inputs)[0].asnumpy(), expected, rtol=1e-4)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_quantiles_keep_the_middle_output_and_add_distances(count: int) -> None:
    raw = np.array([3.0, -1.0, 2.0, 0.5, 4.0])[:count]
    distance, middle = np.log1p(np.exp(raw - 2)), count // 2
    expected = [
        raw[middle] - distance[number:middle].sum() + distance[middle + 1 : number + 1].sum() for number in range(count)
    ]
    found = around_middle(nd, nd.array(raw[None, None]), count).asnumpy()[0, 0]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_cycles_of_the_season_begin_at_the_first_step_to_predict() -> None:
    """Also if the context is no multiple of the season."""
    expected = [[1, 1, 0], [1, 0, 1], [1, -1, 0], [1, 0, -1]]
    np.testing.assert_allclose(season_basis(3, 4, 4)[3:, [0, 1, 3]], expected, atol=1e-12)


def test_a_season_of_one_step_has_no_cycles() -> None:
    assert season_basis(3, 2, 1).tolist() == [[1.0]] * 5
    assert season_basis(3, 2, 500).shape == (5, 1 + 2 * 32)


def test_a_new_network_repeats_the_last_season() -> None:
    network = build(TemporalConvolution(units=8))
    for name, parameter in network.collect_params().items():
        if name.startswith("dense") or "output" in name:
            parameter.set_data(nd.zeros_like(parameter.data()))
    value, observed, *rest = make_inputs()
    observed[:] = 1
    value = nd.array(np.arange(2 * PAST).reshape(2, PAST) ** 2)
    quantile, scale = (array.asnumpy() for array in network(value, observed, *rest))
    last = value.asnumpy()[:, -SEASON:]
    expected = np.concatenate([last, last[:, : HORIZON - SEASON]], axis=1)
    np.testing.assert_allclose(quantile[:, :, 0], expected - 0.5 * scale, rtol=1e-4)


def test_blocks_see_the_whole_context() -> None:
    assert [layers_for(past, 3) for past in (1, 3, 4, 7, 8, 15, 168)] == [1, 1, 2, 2, 3, 3, 7]


def test_the_pinball_loss_equals_a_loop() -> None:
    draws = np.random.RandomState(0)
    quantile, value = np.sort(draws.randn(2, HORIZON, 3), axis=2), draws.randn(2, HORIZON)
    scale, observed = np.array([[2.0], [0.5]]), (draws.rand(2, HORIZON) > 0.3).astype(float)
    loss = Pinball().build_for(LEVELS, TemporalConvolution())
    assert loss.weighted
    found = [array.asnumpy() for array in loss(*(nd.array(one) for one in (quantile, scale, value, observed)))]
    for row in range(2):
        total = 0.0
        for step in range(HORIZON):
            for number, level in enumerate(LEVELS):
                error = value[row, step] - quantile[row, step, number]
                total += observed[row, step] * (level * error if error > 0 else (level - 1) * error)
        assert found[0][row] == pytest.approx(2 * total / 3 / scale[row, 0], rel=1e-5)
        assert found[1][row] == observed[row].sum()


def expected_likelihood(raw: np.ndarray, value: np.ndarray, scale: float, distribution: str) -> np.ndarray:
    spread = softplus(raw[:, 1]) + 1e-3
    if distribution == "gaussian":
        return stats.norm.logpdf(value / scale, raw[:, 0], spread)
    if distribution == "student_t":
        return stats.t.logpdf(value / scale, 2 + softplus(raw[:, 2]), raw[:, 0], spread)
    mean = (softplus(raw[:, 0]) + 1e-10) * scale
    return stats.nbinom.logpmf(value, 1 / spread, 1 / (1 + spread * mean))


@pytest.mark.parametrize("distribution", NUM_RAW)
def test_the_likelihood_is_that_of_scipy(distribution: Any) -> None:
    draws = np.random.RandomState(0)
    context = 3
    raw = draws.randn(2, context + HORIZON, NUM_RAW[distribution])
    scale = np.array([[4.0], [0.5]])
    past, value = draws.poisson(3, (2, context)) * 1.0, draws.poisson(3, (2, HORIZON)) * 1.0
    past_observed, observed = np.array([[1.0, 0, 1], [1, 1, 1]]), (draws.rand(2, HORIZON) > 0.3).astype(float)
    loss = Likelihood().build_for(LEVELS, DeepAR(distribution=distribution))
    arrays = (raw, scale, past / scale, past_observed, value, observed)
    found = [array.asnumpy() for array in loss(*(nd.array(one, dtype="float64") for one in arrays))]
    for row in range(2):
        values, flags = np.append(past[row], value[row]), np.append(past_observed[row], observed[row])
        single = expected_likelihood(raw[row], values, scale[row, 0], distribution)
        assert found[0][row] == pytest.approx(-(single * flags).sum(), rel=1e-6)
        assert found[1][row] == flags.sum()


def test_a_loss_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="loss=likelihood is for model=deepar. Type loss=quantile."):
        Likelihood().build_for(LEVELS, TemporalConvolution())


@pytest.mark.parametrize("distribution", ["gaussian", "student_t"])
def test_drawn_values_have_the_distribution_of_the_likelihood(distribution: str) -> None:
    raw = np.tile(np.array([0.3, -0.2, 1.0][: NUM_RAW[distribution]]), (20000, 1))
    value = draw(raw, np.full(20000, 7.0), np.random.RandomState(0).rand(20000, 2), distribution)
    spread = softplus(np.array(-0.2)) + 1e-3
    law = stats.norm(0.3, spread) if distribution == "gaussian" else stats.t(2 + softplus(np.array(1.0)), 0.3, spread)
    assert stats.kstest(value, law.cdf).pvalue > 0.01


def test_drawn_counts_invert_the_distribution_function() -> None:
    draws = np.random.RandomState(0)
    mean, shape, uniform = draws.gamma(1, 20, 500), draws.gamma(1, 1, 500) + 1e-3, draws.rand(500, 2)
    expected = stats.nbinom.ppf(uniform[:, 0], 1 / shape, 1 / (1 + shape * mean))
    np.testing.assert_array_equal(draw_counts(mean, shape, uniform), expected)
    large = draw_counts(np.full(20000, 4000.0), np.full(20000, 0.01), draws.rand(20000, 2))
    assert large.mean() == pytest.approx(4000, rel=0.01) and large.std() == pytest.approx(404.97, rel=0.03)
    scaled = draw(np.array([[1.0, 0.0]]), np.array([8.0]), np.array([[0.9, 0.5]]), "negative_binomial")
    mean_1, shape_1 = softplus(np.array(1.0)) * 8, softplus(np.array(0.0)) + 1e-3
    assert scaled[0] * 8 == stats.nbinom.ppf(0.9, 1 / shape_1, 1 / (1 + shape_1 * mean_1))


@pytest.mark.parametrize("mean, shape", [(600.0, 0.7), (20000.0, 0.1)])
def test_large_counts_are_skewed_as_well(mean: float, shape: float) -> None:
    uniform = np.random.RandomState(0).rand(5000, 2)
    counts = draw_counts(np.full(5000, mean), np.full(5000, shape), uniform)
    law = stats.nbinom(1 / shape, 1 / (1 + shape * mean))
    assert stats.kstest(counts, law.cdf).pvalue > 0.01
    np.testing.assert_array_equal(counts, np.round(counts))
    assert len(np.unique(counts)) > 700, "counts between the multiples of a unit"


def test_tails_of_counts_are_reached() -> None:
    drawn = draw_counts(np.ones(1), np.full(1, 30.0), np.array([[1 - 1e-5, 0.5]]))
    assert drawn[0] == stats.nbinom.ppf(1 - 1e-5, 1 / 30, 1 / 31) > 1 + 20 * np.sqrt(31) + 20


def test_lags_are_near_steps_and_seasons() -> None:
    assert lags_of(1) == [1, 2, 3, 4, 5, 6, 7]
    assert (lags_of(96)[-1], lags_of(52)[-1], lags_of(86400)[-1]) == (673, 365, 86401)
    assert lags_of(24)[:13] == [*range(1, 8), 23, 24, 25, 47, 48, 49] and lags_of(24)[-6:] == [
        167,
        168,
        169,
        335,
        336,
        337,
    ]


RECURRENT = SeriesSizes(6 + lags_of(SEASON)[-1], HORIZON, SEASON, 3, 2, (4, 3))


def test_steps_of_deepar_equal_the_unrolled_network() -> None:
    """A network that is told its own forecasts predicts the same, step by step."""
    network = build(DeepAR(units=6), RECURRENT)
    inputs = make_inputs(RECURRENT.past)
    draws = np.random.RandomState(1)
    future = nd.array(50 + draws.randn(2, HORIZON))
    with autograd.pause(train_mode=False):
        raw, scale, past, past_observed = network(*inputs, future, nd.ones_like(future))
        assert raw.shape == (2, 6 + HORIZON, 3) and past.shape == past_observed.shape == (2, 6)
        scaled, item, start_scale, *states = network.start(nd, *inputs)
        np.testing.assert_array_equal(scale.asnumpy(), start_scale.asnumpy())
        all_values = np.concatenate([scaled.asnumpy(), future.asnumpy() / scale.asnumpy()], axis=1)
        flags = np.concatenate([inputs[1].asnumpy(), np.ones((2, HORIZON))], axis=1)
        for number in range(HORIZON):
            step = RECURRENT.past + number
            lagged = all_values[:, step - np.array(lags_of(SEASON))]
            x = np.concatenate(
                [lagged, flags[:, step - 1 : step], inputs[2].asnumpy()[:, step], item.asnumpy()], axis=1
            )
            one, *states = network.step(nd, nd.array(x), states)
            np.testing.assert_allclose(one.asnumpy(), raw.asnumpy()[:, 6 + number], rtol=1e-4, atol=1e-5)


def test_the_future_is_not_seen_before_it_happens() -> None:
    network = build(DeepAR(units=6), RECURRENT)
    inputs = make_inputs(RECURRENT.past)
    future = nd.array(np.full((2, HORIZON), 50.0))
    with autograd.pause(train_mode=False):
        first = network(*inputs, future, nd.ones_like(future))[0].asnumpy()
        future[:, 2] = 500
        other = network(*inputs, future, nd.ones_like(future))[0].asnumpy()
    changed = np.abs(other - first).max(axis=(0, 2)) > 0
    assert changed.tolist() == [False] * (6 + 3) + [True] * (HORIZON - 3)


def test_paths_are_the_quantiles_of_the_steps() -> None:
    """A step whose distribution is known: the mean is the last value plus one, and nothing else is random."""
    settings = PathSettings(1, 3, "gaussian", 400, 0, LEVELS)
    past = np.arange(8.0, dtype=np.float32)[None] / 2
    start = PathStart(past, np.ones((1, 8)), np.zeros((1, 3, 2)), np.zeros((1, 1)), np.array([[2.0]], np.float32), [])

    def step(x: np.ndarray, states: Any) -> Any:
        return np.stack([x[:, 0] + 1, np.full(len(x), -50.0)], axis=1), states

    found = forecast_paths(start, step, settings)[0]
    np.testing.assert_allclose(found[:, 0], [9, 11, 13], atol=1e-2)
    # Least deviation 1e-3 in units of the scale 2: a walk, whose deviations grow with the root of the step.
    spread = (found[:, 3] - found[:, 1]) / (2 * 1.2816)
    np.testing.assert_allclose(spread, 2e-3 * np.sqrt([1, 2, 3]), rtol=0.15)


def test_the_flag_of_the_last_value_is_that_of_the_cut() -> None:
    """The first step sees whether the last value before the cut is known; later ones see sampled values."""
    flags: List[Any] = []
    observed = np.array([[1.0] * 7 + [0], [0] + [1.0] * 7])
    start = PathStart(np.ones((2, 8)), observed, np.zeros((2, 3, 2)), np.zeros((2, 1)), np.ones((2, 1)), [])

    def step(x: np.ndarray, states: Any) -> Any:
        flags.append(x[:, len(lags_of(1))].tolist())
        return np.zeros((len(x), 2)), states

    forecast_paths(start, step, PathSettings(1, 3, "gaussian", 2, 0, LEVELS))
    assert flags == [[0, 0, 1, 1], [1] * 4, [1] * 4]


def test_a_forecast_does_not_depend_on_other_series() -> None:
    settings = PathSettings(1, 3, "student_t", 50, 4, LEVELS)
    draws = np.random.RandomState(0)
    arrays = [draws.rand(3, 8), np.ones((3, 8)), draws.rand(3, 3, 2), draws.rand(3, 1), 1 + draws.rand(3, 1)]

    def step(x: np.ndarray, states: Any) -> Any:
        return x[:, :3] + states[0], [states[0] + 0.1]

    def run(rows: List[int], seed: int = 4) -> np.ndarray:
        own: Any = [array[rows].astype(np.float32) for array in arrays]
        start = PathStart(*own, [np.array(rows, float)[:, None]])
        return forecast_paths(start, step, settings._replace(seed=seed))

    everything = run([0, 1, 2])
    assert everything.shape == (3, 3, 4) and np.isfinite(everything).all()
    np.testing.assert_array_equal(run([2])[0], everything[2])
    assert not np.array_equal(run([2], seed=5)[0], everything[2])
    assert (np.diff(everything[:, :, 1:], axis=2) >= 0).all()


def test_output_shapes_are_those_of_the_networks() -> None:
    for model, sizes, more in ((TemporalConvolution(units=8), SIZES, 0), (DeepAR(units=6), RECURRENT, 2)):
        network = build(model, sizes)
        outputs = network(*make_inputs(sizes.past), *([nd.ones((2, HORIZON))] * more))
        assert [array.shape[1:] for array in outputs] == model.output_shapes(len(LEVELS), sizes)
        assert math.isfinite(float(outputs[0].sum().asscalar()))
    assert DeepAR().past_steps(10, 24) == 347 and TemporalConvolution().past_steps(10, 24) == 10
