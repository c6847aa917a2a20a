"""Base class of datasets of series.

Legend: T steps of a series, C covariates, S numbers of an item.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar, Collection, Dict, List, NamedTuple, Optional, Sequence, Tuple, Type

import numpy as np

from mxtrain.data.checking.data_checks import DataChecks
from mxtrain.data.checking.problems import STRICT, DataLocation, DataLocations, Findings, NoUsableSamples, Problem
from mxtrain.data.loading.dataset_files import exists
from mxtrain.data.loading.input_files import read_each
from mxtrain.data.signature import REQUIRED, Signature
from mxtrain.data.spec import BaseDataset, Samples, Splits
from mxtrain.errors import CheckpointError, ConfigError, DataError, run_dir_setting
from mxtrain.forecasting.kinds import FutureValues, SeriesPasts
from mxtrain.forecasting.model import ForecastModel
from mxtrain.forecasting.series_set import (
    SERIES_PROBLEMS,
    SHORT_SERIES,
    OneSeries,
    SeriesSet,
    WindowForm,
    missing_covariates,
)
from mxtrain.forecasting.signature import SeriesSignature
from mxtrain.forecasting.source import Cuts, ForecastLoader, ForecastSamples, split_by_time
from mxtrain.forecasting.time_grid import DAY, SECONDS, TimeGrid, describe_grid
from mxtrain.types import BatchSize, Positive, Shape
from mxtrain.types.kinds import Gives

if TYPE_CHECKING:
    from mxtrain.data.loading.loader import BatchLoader, LoaderOptions
    from mxtrain.model.spec import Model

log = logging.getLogger(__name__)

ALL = "all"
"""Argument of `predict` that stands for the series of the dataset, instead of a file of series."""
USUAL_WINDOWS = 8192
"""Largest number of training windows for which `stride=null` is 1: windows one step apart are nearly the same."""
WEEK_STEPS = 336
"""Longest week, in steps, that is the default context of series with several values a day."""


class ReadSeries(NamedTuple):
    """Series of files.

    Attributes:
        series_set: the series.
        locations: source location of each series.
        known, static_numbers, static_texts: names of covariates, and of numbers and texts of items.
        num_observed: number of covariates, the last ones, that are known for the past alone.
    """

    series_set: SeriesSet
    locations: Optional[DataLocations] = None
    known: Sequence[str] = ()
    static_numbers: Sequence[str] = ()
    static_texts: Sequence[str] = ()
    num_observed: int = 0


class SeriesDataset(BaseDataset):
    """Series of numbers over time, split by time: the last values of each are for testing, those before them for
    validation."""

    signature_class: ClassVar[Type[Signature]] = SeriesSignature
    gives: ClassVar[Gives] = Gives(SeriesPasts, FutureValues)
    data_checks: ClassVar[DataChecks] = DataChecks(SERIES_PROBLEMS)

    horizon: Optional[Positive] = None
    """Number of steps to predict; null = one season."""
    context: Optional[Positive] = None
    """Number of steps before the cut that a network sees; null = two seasons, at least two horizons, and a week if
    there are several values a day and up to 336 a week."""
    season: Optional[Positive] = None
    """Number of steps after which values repeat, of the seasonal naive forecast and MASE; null = of the frequency: a
    day of hours or minutes, a week of days (7) or business days (5), a year of weeks (52), months (12) or quarters
    (4), 1 if that is no whole number."""
    windows: Optional[Positive] = None
    """Number of cuts of each series for testing, each a horizon after the one before (a backtest), and as many before
    them for validation; null = 1, for the generated series 7."""
    stride: Optional[Positive] = None
    """Distance of the cuts of training windows in steps; null = 1, or more for more than 8,192 windows, without a
    common divisor with the season."""
    batch_size: BatchSize = 64

    @property
    def data_name(self) -> str:
        """Returns the name of the data, for messages."""
        raise NotImplementedError

    def read(self, findings: Findings) -> ReadSeries:
        """Reads all series.

        Args:
            findings: collects problems of the data.

        Raises:
            DataError: the data cannot be read.
        """
        raise NotImplementedError

    def read_inputs(self, path: str, signature: SeriesSignature) -> ReadSeries:
        """Reads series of a file to predict for; raises as `read`."""
        raise NotImplementedError

    @property
    def num_windows(self) -> int:
        """Returns the number of cuts of each series for testing."""
        return self.windows or 1

    def season_of(self, grid: TimeGrid) -> int:
        """Returns the number of steps after which values repeat."""
        return self.season or grid.season

    def horizon_of(self, grid: TimeGrid) -> int:
        """Returns the number of steps to predict.

        Raises:
            DataError: it follows neither from the settings nor from a season.
        """
        horizon = self.horizon or self.season_of(grid)
        if horizon == 1 and self.horizon is None:
            raise DataError(
                f"{self.data_name}: values that are one {describe_grid(grid.name)} apart have no usual season, so say "
                "how many steps to predict: dataset.horizon=N."
            )
        return horizon

    def context_of(self, grid: TimeGrid) -> int:
        """Returns the number of steps that a network sees."""
        if self.context is not None:
            return self.context
        season = self.season_of(grid)
        has_hours = grid.unit in ("s", "min", "h") and grid.count * SECONDS[grid.unit] < DAY
        is_daily = has_hours and season > 1 and 7 * season <= WEEK_STEPS
        return max(2 * self.horizon_of(grid), 7 * season if is_daily else 2 * season)

    def examine(self, findings: Findings) -> Splits:
        """See `BaseDataset.examine`."""
        found = self.read(findings)
        grid = found.series_set.grid
        horizon = self.horizon_of(grid)
        cuts = Cuts(horizon, self.num_windows, self.stride or 1, horizon)
        kept = [number for number, one in enumerate(found.series_set.series) if len(one.target_T) >= cuts.shortest]
        self._say_short(found, cuts, kept, findings)
        if not kept:
            raise (
                NoUsableSamples(f"{self.data_name}: no series is long enough.")
                if findings.keeps_going
                else DataError(
                    f"{self.data_name}: no series has {cuts.shortest:,} values, which {_needs(cuts)}. Type a smaller "
                    "dataset.horizon or dataset.windows."
                )
            )
        series_set = SeriesSet(grid, [found.series_set.series[number] for number in kept])
        locations = None if found.locations is None else found.locations.take(kept)
        if self.stride is None:
            lengths = [len(found.series_set.series[number].target_T) for number in kept]
            cuts = cuts._replace(stride=choose_stride(lengths, cuts, self.season_of(grid)))
        train, val, test = split_by_time(series_set, cuts, self.season_of(grid), locations)
        if not len(train) or not len(val) or not len(test):
            raise DataError(f"{self.data_name}: all values of validation, test or training windows are missing.")
        return SeriesSplits(train, val, test, class_names=[], found=found._replace(series_set=series_set))

    def _say_short(self, found: ReadSeries, cuts: Cuts, kept: Sequence[int], findings: Findings) -> None:
        all_series = found.series_set.series
        short = sorted(set(range(len(all_series))) - set(kept))
        for number in short if findings.keeps_going else short[:1]:
            one = all_series[number]
            location = DataLocation(record=number) if found.locations is None else found.locations[number]
            others = f", and so are {len(short) - 1:,} others" if len(short) > 1 and not findings.keeps_going else ""
            fact = (
                f"{location}: the series '{one.name:.60}' has {len(one.target_T):,} values and is left out{others}: "
                f"{_needs(cuts)} {cuts.shortest:,}."
            )
            findings.warn(Problem(SHORT_SERIES, location, fact))

    def infer_signature(self, splits: Splits, model: Model) -> Signature:
        found = SeriesSplits.cast(splits).found
        train: ForecastSamples = splits.train  # type: ignore[assignment]  # of its own samples
        grid = found.series_set.grid
        horizon, season, context = self.horizon_of(grid), self.season_of(grid), self.context_of(grid)
        past = context
        if isinstance(model, ForecastModel):
            past = model.past_steps(context, season)
            for one in found.series_set.series:
                if reason := model.unfit_values(one.target_T):
                    raise DataError(
                        f"{self.data_name}: {reason} in the series '{one.name:.60}'. Type model.distribution=student_t."
                    )
        known_mean, known_std = _scale_known(train, horizon, len(found.known))
        static_NS = np.stack([one.static_S for one in found.series_set.series]).astype(np.float64)
        static_mean, static_std = _moments_of(static_NS)
        vocabularies = [
            sorted({one.categories[number] for one in found.series_set.series})
            for number in range(len(found.static_texts))
        ]
        if found.num_observed and isinstance(model, ForecastModel) and model.outputs == "likelihood":
            names = ", ".join(found.known[-found.num_observed :])
            raise ConfigError(
                f"dataset.observed: {type(model).__name__} reads covariates of the step that it predicts, for which "
                f"{names} is not known. Type model=tcn or model=n_beats, or leave it out."
            )
        observed = found.num_observed
        window = WindowForm(past, horizon, known_mean, known_std, static_mean, static_std, vocabularies, observed)
        num_known = grid.num_features + len(found.known)
        shape: List[Shape] = [(past,), (past,), (past + horizon, num_known)]
        shape += [(len(static_mean),)] if static_mean else []
        shape += [(len(vocabularies),)] if vocabularies else []
        if isinstance(model, ForecastModel) and model.outputs == "likelihood":
            shape += [(horizon,), (horizon,)]
        return SeriesSignature(
            tuple(shape),
            frequency=grid.name,
            season=season,
            window=window,
            known_columns=list(found.known),
            static_numbers=list(found.static_numbers),
            static_texts=list(found.static_texts),
        )

    def restored(self, signature: Signature, overrides: Collection[str], source: str) -> Tuple[BaseDataset, Signature]:
        """See `BaseDataset.restored`: windows are those of the trained network."""
        signature = SeriesSignature.cast(signature)
        for name in ("context", "horizon", "season"):
            if f"dataset.{name}" in overrides:
                raise ConfigError(
                    f"dataset.{name}: the length of windows is part of what was trained, and {source} holds it. Leave "
                    "it out."
                )
        # Other windows of the same data would have been trained on.
        if "dataset.windows" in overrides and "dataset.path" not in overrides:
            raise ConfigError(
                f"dataset.windows: {source} was trained on all values before its windows, so more of them would be "
                "measured on values of the training. Leave it out, or name other data by dataset.path."
            )
        changes = {"horizon": signature.window.horizon, "season": signature.season}
        return self.model_copy(update=changes), signature

    def check_compatible(self, signature: Signature, before: Signature, source: str) -> None:
        before, signature = SeriesSignature.cast(before), SeriesSignature.cast(signature)
        for name in ("frequency", "season", "known_columns", "static_numbers", "static_texts"):
            if getattr(before, name) != getattr(signature, name):
                raise CheckpointError(
                    f"{source} was trained with the {name.replace('_', ' ')} {getattr(before, name)}, and now there is "
                    f"{getattr(signature, name)}. Name the data that it was trained with, or choose another "
                    f"{run_dir_setting()}."
                )
        if before.window != signature.window:
            names = [each.name for each in fields(WindowForm)]
            changed = [name for name in names if getattr(before.window, name) != getattr(signature.window, name)]
            raise CheckpointError(
                f"{source} was trained with other windows than there are now, or with other values in the columns of "
                f"dataset.known or dataset.static: {', '.join(changed)}. Give it the data and the settings of dataset "
                f"that it was trained with, or choose another {run_dir_setting()}: means, deviations and vocabularies "
                "are measured anew."
            )

    def remark(self, signature: Signature, splits: Splits) -> str:
        signature, found = SeriesSignature.cast(signature), SeriesSplits.cast(splits).found
        series = found.series_set.series
        lengths = [len(one.target_T) for one in series]
        missing = sum(int(np.isnan(one.target_T).sum()) for one in series)
        length = f"{min(lengths):,}" if min(lengths) == max(lengths) else f"{min(lengths):,} to {max(lengths):,}"
        further = [*found.known, *found.static_numbers, *found.static_texts]
        return (
            f"{len(series):,} series of {length} values, one {describe_grid(signature.frequency)} apart"
            f"{f', {missing:,} of them missing' if missing else ''}; season {signature.season}, "
            f"{signature.window.horizon} values are predicted from {self.context_of(found.series_set.grid)}"
            f"{'; further columns: ' + ', '.join(further) if further else ''}"
        )

    def build_loader(  # type: ignore[override]  # of its own samples
        self, source: ForecastSamples, signature: Signature, options: LoaderOptions
    ) -> BatchLoader:
        signature = SeriesSignature.cast(signature)
        self._require_same_form(source.series_set, signature)
        reads_future = signature.shape[-1] == (signature.window.horizon,) == signature.shape[-2]
        return ForecastLoader(source, signature.window, options, reads_future)

    def _require_same_form(self, series_set: SeriesSet, signature: SeriesSignature) -> None:
        if series_set.grid.name != signature.frequency:
            raise DataError(
                f"{self.data_name}: values are one {describe_grid(series_set.grid.name)} apart, and the network was "
                f"trained for {describe_grid(signature.frequency)}."
            )
        window = signature.window
        expected = (len(window.known_mean), len(window.static_mean), len(window.vocabularies))
        for one in series_set.series:
            given = (one.known_NC.shape[1], len(one.static_S), len(one.categories))
            if given != expected:
                raise DataError(
                    f"{self.data_name}: the series '{one.name:.60}' has {given[0]} covariates, {given[1]} numbers and "
                    f"{given[2]} categories of the item, and the network was trained with {expected[0]}, "
                    f"{expected[1]} and {expected[2]}."
                )

    def open_inputs(
        self, names: Sequence[str], signature: Signature, skip_unreadable: bool, unreadable: Dict[int, str]
    ) -> Tuple[Samples, Sequence[str]]:
        """Opens the series of files, or all of the dataset, whose next values are predicted; a source location is
        `file:line`."""
        signature = SeriesSignature.cast(signature)
        series: List[OneSeries] = []
        locations: List[str] = []
        grids: List[TimeGrid] = []

        def read(path: str) -> ReadSeries:
            is_own = path == ALL and not exists(path)
            found = self.read(STRICT) if is_own else self.read_inputs(path, signature)
            self._require_same_form(found.series_set, signature)
            lacking = missing_covariates(found.series_set, signature.future_columns, signature.window.horizon)
            if lacking is not None:
                raise DataError(f"{path}: {lacking[1]}.")
            # The grids of two files may begin at different times: series are counted on the first one.
            grids.append(found.series_set.grid)
            moved = [on_grid(one, grids[-1], grids[0], path) for one in found.series_set.series]
            return found._replace(series_set=SeriesSet(grids[0], moved))

        for name, found in read_each(names, read, skip_unreadable, unreadable):
            series += found.series_set.series
            numbers = range(len(found.series_set.series)) if found.locations is None else found.locations.number_N
            locations += [f"{name}:{number}" for number in numbers]
        if not series:
            raise DataError("No series is left to predict for.")
        return inputs_of(SeriesSet(grids[0], series), signature.season), locations


@dataclass(frozen=True)
class SeriesSplits(Splits):
    """Windows of series.

    Attributes:
        found: the series of all splits.
    """

    found: ReadSeries = REQUIRED


def inputs_of(series_set: SeriesSet, season: int) -> ForecastSamples:
    """Returns samples whose cut is behind the last value of each series."""
    count = len(series_set.series)
    cut_N = np.array([len(one.target_T) for one in series_set.series], np.int64)
    return ForecastSamples(series_set, np.arange(count), cut_N, season)


def on_grid(one: OneSeries, its: TimeGrid, grid: TimeGrid, path: str) -> OneSeries:
    """Returns a series of one grid as one of another.

    Raises:
        DataError: its times are not on that grid.
    """
    # All of its times, because February 28 is on the grid of the 28th and on that of the last days of months.
    number_T = one.first + np.arange(len(one.target_T) + 1)
    index_T, is_on_T = grid.index(its.times(number_T))
    if not is_on_T.all():
        raise DataError(
            f"{path}: the series '{one.name:.60}' has the time {its.texts(number_T[~is_on_T])[0]}, which is not on "
            "the grid of the series of other files. Predict for them separately."
        )
    return OneSeries(one.name, int(index_T[0]), one.target_T, one.known_NC, one.static_S, one.categories, one.row)


def choose_stride(lengths: Sequence[int], cuts: Cuts, season: int) -> int:
    """Returns the distance of the cuts of training for about `USUAL_WINDOWS` windows.

    Args:
        lengths: number of values of each series.
        cuts: how series are split.
        season: steps of a season; all of its places are visited.
    """
    count = sum(max(length - cuts.shortest + 1, 0) for length in lengths)
    stride = max(-(-count // USUAL_WINDOWS), 1)
    while math.gcd(stride, season) > 1:
        stride += 1
    return stride


def _needs(cuts: Cuts) -> str:
    return (
        f"dataset.horizon={cuts.horizon} with {cuts.windows} window{'s' * (cuts.windows > 1)} each for validation and "
        "testing needs"
    )


def _scale_known(train: ForecastSamples, horizon: int, count: int) -> Tuple[List[float], List[float]]:
    """Returns mean and deviation of each covariate over the steps before the values of validation."""
    if not count:
        return [], []
    last = {int(number): int(cut) for number, cut in zip(train.series_N, train.cut_N)}
    known_NC = np.concatenate(
        [train.series_set.series[number].known_NC[: cut + horizon] for number, cut in last.items()]
    )
    return _moments_of(known_NC.astype(np.float64))


def _moments_of(value_NC: np.ndarray) -> Tuple[List[float], List[float]]:
    """Returns mean and deviation of columns; the deviation of a constant one is 1."""
    if not value_NC.shape[1]:
        return [], []
    std_C = np.nanstd(value_NC, axis=0)
    return np.nanmean(value_NC, axis=0).tolist(), np.where(std_C > 0, std_C, 1.0).tolist()
