"""Windows of series as samples, and their split by time.

Legend: N samples, B batch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from mxtrain.data.checking.checks import Checked, Checks, SourceChecks
from mxtrain.data.checking.problems import DataLocations
from mxtrain.data.loading.loader import BatchLoader, LoaderOptions
from mxtrain.forecasting.series_set import SeriesSet, SeriesWindows, WindowForm

if TYPE_CHECKING:
    from mxtrain.data.loading.placing import HostArrays


@dataclass(frozen=True)
class ForecastSamples:
    """Samples of a split: each is a series and a cut, before which values are known.

    Attributes:
        series_set: the series, with all of their values.
        series_N: index of the series of each sample.
        cut_N: number of values of the series before the cut.
        season: steps after which values repeat.
        locations: source location of each sample.
    """

    series_set: SeriesSet
    series_N: np.ndarray
    cut_N: np.ndarray
    season: int
    locations: Optional[DataLocations] = None

    def __len__(self) -> int:
        return len(self.series_N)

    def take(self, indices: Sequence[int]) -> ForecastSamples:
        """Returns the samples at these indices; indices beyond the end are ignored."""
        kept = np.array([index for index in indices if index < len(self)], np.int64)
        locations = self.locations and self.locations.take(kept)
        return replace(self, series_N=self.series_N[kept], cut_N=self.cut_N[kept], locations=locations)

    def checks(self) -> Checks:
        """Returns checks that find nothing more: reading has checked every row."""
        return ForecastChecks(self, self.locations)

    def name_of(self, index: int) -> str:
        """Returns the name of the item of a sample."""
        return self.series_set.series[int(self.series_N[index])].name

    def times_of(self, index: int, horizon: int) -> List[str]:
        """Returns the times that follow the cut of a sample."""
        one = self.series_set.series[int(self.series_N[index])]
        return self.series_set.grid.texts(one.first + int(self.cut_N[index]) + np.arange(horizon))

    def past_of(self, index: int) -> np.ndarray:
        """Returns all values before the cut of a sample; NaN = missing."""
        return self.series_set.series[int(self.series_N[index])].target_T[: int(self.cut_N[index])]

    def future_of(self, index: int, horizon: int) -> np.ndarray:
        """Returns the values that follow the cut of a sample, (H,); NaN = missing or not known yet."""
        value_H = np.full(horizon, np.nan)
        cut = int(self.cut_N[index])
        given_H = self.series_set.series[int(self.series_N[index])].target_T[cut : cut + horizon]
        value_H[: len(given_H)] = given_H
        return value_H


class ForecastChecks(SourceChecks):
    """Checks of `ForecastSamples`."""

    def check(self, index: int) -> Checked:
        """See `Checks`."""
        return Checked()


class Cuts(NamedTuple):
    """Settings of the division of series by time.

    Attributes:
        horizon: steps to predict, H.
        windows: cuts of each series for validation, and as many for testing, H steps apart.
        stride: distance of the cuts of training.
        least: smallest number of values before a cut of training.
    """

    horizon: int
    windows: int
    stride: int
    least: int

    @property
    def shortest(self) -> int:
        """Returns the number of values that a series needs."""
        return self.least + self.horizon * (1 + 2 * self.windows)

    def of_length(self, length: int) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns the cuts of training, validation and test of a series of this length."""
        step_W = np.arange(self.windows) * self.horizon
        test_begin = length - self.windows * self.horizon
        val_begin = test_begin - self.windows * self.horizon
        # Counted from the end: the latest window, which is most like those to predict, is always there.
        train = np.arange(val_begin - self.horizon, self.least - 1, -self.stride)[::-1]
        return train, val_begin + step_W, test_begin + step_W


def split_by_time(
    series_set: SeriesSet, cuts: Cuts, season: int, locations: Optional[DataLocations]
) -> Tuple[ForecastSamples, ForecastSamples, ForecastSamples]:
    """Splits series by time: the last values are for testing, those before them for validation.

    A window of training ends before the first value of validation. A cut whose H values are all missing is left out.

    Args:
        series_set: series that are long enough.
        cuts: how they are split.
        season: steps after which values repeat.
        locations: source location of each series.
    """
    parts: List[List[Tuple[int, int]]] = [[], [], []]
    for number, one in enumerate(series_set.series):
        is_known_T = ~np.isnan(one.target_T)
        count_T = np.concatenate([[0], np.cumsum(is_known_T)])
        for part, cut_C in zip(parts, cuts.of_length(len(one.target_T))):
            has_future_C = count_T[cut_C + cuts.horizon] > count_T[cut_C]
            has_past_C = count_T[cut_C] > 0
            part += [(number, int(cut)) for cut in cut_C[has_future_C & has_past_C]]
    samples = []
    for part in parts:
        pair_N2 = np.array(part, np.int64).reshape(-1, 2)
        place = None if locations is None else locations.take(pair_N2[:, 0])
        samples.append(ForecastSamples(series_set, pair_N2[:, 0], pair_N2[:, 1], season, place))
    return samples[0], samples[1], samples[2]


class ForecastLoader(BatchLoader):
    """Batches of windows. Targets are the values after the cut and flags of known ones, (B, H) each; networks with a
    likelihood get both as further inputs.

    Args:
        source: samples.
        form: form of the inputs.
        options: options of all loaders.
        reads_future: True if the network takes the values after the cut, which it only compares with its outputs.
    """

    def __init__(self, source: ForecastSamples, form: WindowForm, options: LoaderOptions, reads_future: bool) -> None:
        super().__init__(len(source), options)
        self._source, self._windows = source, SeriesWindows(source.series_set, form)
        self._horizon, self._reads_future = form.horizon, reads_future

    def _read_share(self, share_B: np.ndarray, index_B: np.ndarray, epoch: int) -> Tuple[HostArrays, HostArrays]:
        pairs = list(zip(self._source.series_N[share_B].tolist(), self._source.cut_N[share_B].tolist()))
        inputs = [np.stack(arrays) for arrays in zip(*(self._windows.inputs(*pair) for pair in pairs))]
        targets = tuple(np.stack(arrays) for arrays in zip(*(self._windows.future(*pair) for pair in pairs)))
        return (*inputs, *(targets if self._reads_future else ())), targets

    def _meta(self, index_B: np.ndarray) -> Optional[np.ndarray]:
        """Returns the seasonal error before the cut, then flags of known values, (B, 1 + H); None in training."""
        if self.train:
            return None
        future_BH = np.array([self._source.future_of(index, self._horizon) for index in index_B.tolist()])
        error_B = np.array([seasonal_error(self._source, index) for index in index_B.tolist()])
        return np.concatenate([error_B[:, None], ~np.isnan(future_BH.reshape(len(error_B), -1))], axis=1)


def seasonal_error(source: ForecastSamples, index: int) -> float:
    """Returns the mean absolute difference of values one season apart among all values before the cut of a sample; NaN
    if there are none."""
    past_T, season = source.past_of(index), source.season
    difference_T = np.abs(past_T[season:] - past_T[:-season])
    difference_T = difference_T[~np.isnan(difference_T)]
    return float(difference_T.mean()) if len(difference_T) else float("nan")
