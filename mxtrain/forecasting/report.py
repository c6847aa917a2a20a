"""Report of `eval` for forecasts: the network beside baselines on the same windows, and drawn forecasts.

Legend: N windows, T past steps, H steps to predict, Q quantiles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, Dict, List, NamedTuple, Sequence, Tuple, Union

import numpy as np

from mxtrain.forecasting.baselines import Baseline, holt_winters, seasonal_naive
from mxtrain.forecasting.metrics import (
    CRPS,
    MASE,
    Coverage,
    ForecastRMSE,
    ForecastRows,
    Forecasts,
    NormalizedDeviation,
    SymmetricMAPE,
)
from mxtrain.forecasting.source import ForecastSamples
from mxtrain.task.collecting_report import CollectingReport
from mxtrain.types import Artifact, Figure, Table

if TYPE_CHECKING:
    from PIL import Image

MAX_BASELINE_WINDOWS = 500
"""Largest number of windows for which baselines are computed: fitting Holt-Winters takes about 30 ms for each."""
BASELINES: Dict[str, Callable[[np.ndarray, int, int], Baseline]] = {
    "seasonal naive": seasonal_naive,
    "Holt-Winters (ETS, additive)": holt_winters,
}
PAST_SEASONS = 3
"""Number of seasons before the cut in a figure, at least; and at least two horizons."""


class ForecastReport(CollectingReport):
    """Compares a network with seasonal naive and Holt-Winters.

    Args:
        source: evaluated split.
        levels: levels of the quantiles.
        horizon: H.
        with_baselines: True to compute baselines.
    """

    def __init__(self, source: ForecastSamples, levels: Sequence[float], horizon: int, with_baselines: bool) -> None:
        self._rows = ForecastRows(levels)
        super().__init__(None, self._rows)
        self._source, self._horizon, self._with_baselines = source, horizon, with_baselines

    def artifacts(self, title: str) -> List[Artifact]:
        """See `Report`."""
        self.finish()
        index_N, forecasts = self._rows.forecasts()
        if not len(index_N):
            return []
        found = [("this network", forecasts)]
        if self._with_baselines:
            found += self._baselines(index_N, forecasts)
        header, rows = compare(found)
        unscaled = int((~(forecasts.seasonal_error_N > 0)).sum())
        if unscaled:
            note = f"MASE without {unscaled:,} windows of constant or short pasts"
            rows.append((note, *([""] * (len(header) - 1))))
        windows = [
            DrawnForecast(
                self._source.name_of(index),
                self._source.past_of(index)[-past_steps(self._source.season, self._horizon) :],
                forecasts.value_NH[number],
                forecasts.mean_NH[number],
                forecasts.quantile_NHQ[number],
            )
            for number, index in enumerate(index_N[:64].tolist())
        ]
        return [
            Table("forecasters", header, rows),
            Figure("forecasts", lambda max_samples: draw_forecasts(windows[:max_samples], forecasts.levels, title)),
        ]

    def _baselines(self, index_N: np.ndarray, forecasts: Forecasts) -> List[Tuple[str, Forecasts]]:
        """Returns the forecasts of the baselines; with many windows, those of some of them beside the network's."""
        kept = np.arange(len(index_N))
        found = []
        if len(kept) > MAX_BASELINE_WINDOWS:
            kept = np.linspace(0, len(index_N) - 1, MAX_BASELINE_WINDOWS).astype(np.int64)
            some = forecasts._replace(
                mean_NH=forecasts.mean_NH[kept],
                quantile_NHQ=forecasts.quantile_NHQ[kept],
                value_NH=forecasts.value_NH[kept],
                seasonal_error_N=forecasts.seasonal_error_N[kept],
            )
            found.append((f"this network, {len(kept):,} windows", some))
        season = self._source.season
        for name, predict in BASELINES.items():
            made = [predict(self._source.past_of(index), self._horizon, season) for index in index_N[kept].tolist()]
            mean_NH = np.stack([one.mean_H for one in made])
            quantile_NHQ = np.stack([one.quantiles(forecasts.levels) for one in made])
            found.append(
                (
                    f"{name}, {len(kept):,} windows" if len(kept) < len(index_N) else name,
                    forecasts._replace(
                        mean_NH=mean_NH,
                        quantile_NHQ=quantile_NHQ,
                        value_NH=forecasts.value_NH[kept],
                        seasonal_error_N=forecasts.seasonal_error_N[kept],
                    ),
                )
            )
        return found


def compare(found: Sequence[Tuple[str, Forecasts]]) -> Tuple[Tuple[str, ...], List[Tuple[Union[str, float], ...]]]:
    """Returns header and rows of a table of forecasters: scores, and the coverage of the widest interval."""
    low, high = found[0][1].levels[0], found[0][1].levels[-1]
    metrics = {
        "CRPS": CRPS(),
        "MASE": MASE(),
        "sMAPE": SymmetricMAPE(),
        "ND": NormalizedDeviation(),
        "RMSE": ForecastRMSE(),
    }
    rows: List[Tuple[Union[str, float], ...]] = []
    for name, forecasts in found:
        inside = Coverage(level=high).of_forecasts(forecasts) - Coverage(level=low).of_forecasts(forecasts)
        scores = [metric.of_forecasts(forecasts) for metric in metrics.values()]
        rows.append((name, *(float(f"{score:.6g}") for score in (*scores, inside))))
    return ("model", *metrics, f"within {low:g} to {high:g}"), rows


def past_steps(season: int, horizon: int) -> int:
    """Returns the number of past steps in a figure."""
    return max(PAST_SEASONS * season, 2 * horizon)


class DrawnForecast(NamedTuple):
    """A forecast to draw.

    Attributes:
        name: name of the item.
        past_T: values before the cut.
        value_H: values after it; NaN = unknown.
        mean_H: means.
        quantile_HQ: quantiles.
    """

    name: str
    past_T: np.ndarray
    value_H: np.ndarray
    mean_H: np.ndarray
    quantile_HQ: np.ndarray


def draw_forecasts(windows: Sequence[DrawnForecast], levels: Sequence[float], title: str) -> Image.Image:
    """Draws the past, the true values and the forecast of each window, with bands between opposite quantiles."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas
    from PIL import Image

    from mxtrain.task.figure_fonts import drawable

    rows = -(-max(len(windows), 1) // 2)
    figure = Canvas(figsize=(9, 2.2 * rows + 0.4), dpi=100, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    figure.suptitle(title, fontsize=9)
    names = drawable([window.name for window in windows])
    for number, (window, name) in enumerate(zip(windows, names)):
        axes = figure.add_subplot(rows, 2, number + 1)
        step_H = np.arange(len(window.value_H))
        axes.plot(np.arange(-len(window.past_T), 0), window.past_T, color="black", linewidth=0.8)
        axes.plot(step_H, window.value_H, color="black", linewidth=0.8, linestyle=":")
        for low in range(len(levels) // 2):
            band = (window.quantile_HQ[:, low], window.quantile_HQ[:, -1 - low])
            axes.fill_between(step_H, *band, color="tab:blue", alpha=0.12, linewidth=0)
        axes.plot(step_H, window.mean_H, color="tab:blue", linewidth=1)
        axes.set_title(name[:60], fontsize=8, parse_math=False)
        axes.tick_params(labelsize=7)
    canvas.draw()
    return Image.fromarray(np.asarray(canvas.buffer_rgba())[:, :, :3])
