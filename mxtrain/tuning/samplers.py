"""Samplers, which choose the values of the next trial.

Each trial gets a new sampler, seeded with the study's seed and the trial's number. So workers that join or restart
never draw the same values twice, and samplers need no stored state besides the trials.

CMA-ES is computed anew from the finished trials, because Optuna's keeps a pickle in the study.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from typing import TYPE_CHECKING, Any, Dict, Mapping, Optional, Sequence, Tuple

import numpy as np

from mxtrain.errors import ConfigError
from mxtrain.tuning.space import Space, TunedSetting, Value, Values
from mxtrain.tuning.spec import TuneSettings

if TYPE_CHECKING:
    import optuna

MIN_POPULATION = 4


def seed_of(settings: TuneSettings, number: int) -> int:
    """Returns the seed of a trial, below 2**31."""
    digest = hashlib.sha256(f"{settings.seed}/{number}".encode()).digest()
    # Hashed, since seed + number would give neighbouring seeds of a study mostly the same trials.
    return int.from_bytes(digest[:4], "big") >> 1


def check_sampler(settings: TuneSettings, space: Space, num_objectives: int) -> None:
    """Checks that sampler, pruner, space and objectives fit each other.

    Raises:
        ConfigError: they do not; the message names an alternative.
    """
    numeric = [setting.key for setting in space.parameters if setting.kind != "choice"]
    if num_objectives > 1 and settings.sampler == "pbt":
        raise ConfigError("sampler=pbt: it improves one objective. Type sampler=nsga2 or sampler=tpe.")
    if settings.sampler == "grid":
        space.grid()
    if settings.sampler == "cmaes" and len(numeric) < 2:
        raise ConfigError(
            "sampler=cmaes: CMA-ES adapts ranges of numbers, at least two, and the space has "
            f"{', '.join(numeric) or 'none'}. Type sampler=tpe, or give interval(...) or range(...)."
        )
    if num_objectives > 1 and settings.sampler == "cmaes":
        raise ConfigError("sampler=cmaes: it improves one objective. Type sampler=nsga2 or sampler=tpe.")
    if num_objectives > 1 and settings.pruner != "none":
        raise ConfigError(
            f"pruner={settings.pruner}: of several objectives none says which trial is bad. Type pruner=none, or give "
            "one objective."
        )
    if settings.pruner != "none" and settings.sampler == "nsga2":
        raise ConfigError(f"pruner={settings.pruner}: sampler=nsga2 compares finished trials. Type sampler=tpe.")


def build_sampler(settings: TuneSettings, space: Space, number: int) -> optuna.samplers.BaseSampler:
    """Builds Optuna's sampler for the trial with this number."""
    import optuna

    seed = seed_of(settings, number)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        if settings.sampler == "tpe":
            # constant_liar: workers that draw at the same time must not all draw near the same best value.
            return optuna.samplers.TPESampler(seed=seed, constant_liar=True)
        if settings.sampler == "nsga2":
            return optuna.samplers.NSGAIISampler(seed=seed, population_size=20)
        if settings.sampler == "gp":
            # PyTorch, which it needs, is an extra of its own: its wheels for Linux bring 2 GB of CUDA libraries.
            return optuna.samplers.GPSampler(seed=seed)
        if settings.sampler == "cmaes":
            return build_cmaes(space, seed)
        if settings.sampler == "grid":
            return build_grid(space, settings.seed)
        return optuna.samplers.RandomSampler(seed=seed)


def build_grid(space: Space, seed: int) -> optuna.samplers.BaseSampler:
    """Builds a sampler of all combinations, each once, in an order shuffled by the seed."""
    import optuna

    grid = space.grid()
    # RandomState takes seeds of 32 bits. Its stream is fixed, so all workers and versions of NumPy have the same order.
    order = np.random.RandomState(seed % 2**32).permutation(len(grid))

    class GridByNumber(optuna.samplers.BaseSampler):
        """Grid sampler that indexes the grid by trial number.

        Optuna's own grid sampler stops the study from inside, which does not work with ask and tell.
        """

        def infer_relative_search_space(self, study: Any, trial: Any) -> Dict[str, Any]:
            return {}

        def sample_relative(self, study: Any, trial: Any, search_space: Any) -> Dict[str, Any]:
            return {}

        def sample_independent(self, study: Any, trial: Any, name: str, distribution: Any) -> Any:
            return grid[order[trial.number % len(grid)]][name]

    return GridByNumber()


def build_cmaes(space: Space, seed: int) -> optuna.samplers.BaseSampler:
    """Builds a CMA-ES sampler of the numeric settings; choices are drawn at random.

    Optuna's own CMA-ES stores a pickle in the study, which could execute code of whoever wrote the file. This one
    replays the finished trials, generation by generation, for each new trial.
    """
    import optuna

    numbers = [setting for setting in space.parameters if setting.kind != "choice"]
    random_sampler = optuna.samplers.RandomSampler(seed=seed)

    class ReplayedCma(optuna.samplers.BaseSampler):
        """Draws from the CMA-ES distribution after all finished trials."""

        def infer_relative_search_space(self, study: Any, trial: Any) -> Dict[str, Any]:
            return {setting.key: distribution_of(setting) for setting in numbers}

        def sample_relative(self, study: Any, trial: Any, search_space: Any) -> Dict[str, Any]:
            # The package cmaes minimises.
            sign = -1.0 if study.direction == optuna.study.StudyDirection.MAXIMIZE else 1.0
            trials = [trial for trial in study.get_trials(deepcopy=False) if trial.state.is_finished()]
            pairs = ((trial.params, _value_of(trial)) for trial in trials)
            return cmaes_values(numbers, [(params, sign * value) for params, value in pairs if value is not None], seed)

        def sample_independent(self, study: Any, trial: Any, name: str, distribution: Any) -> Any:
            return random_sampler.sample_independent(study, trial, name, distribution)

    return ReplayedCma()


def _value_of(trial: Any) -> Optional[float]:
    """Returns the result of a finished trial, or the last reported value of a pruned one; None if there is none."""
    if trial.values:
        return float(trial.values[0])
    values = trial.intermediate_values
    last = values[max(values)] if values else None
    return None if last is None or math.isnan(last) else float(last)


def cmaes_values(
    numbers: Sequence[TunedSetting], finished: Sequence[Tuple[Mapping[str, Value], float]], seed: int
) -> Values:
    """Replays finished trials in complete generations and draws new values with CMA-ES.

    Args:
        numbers: settings that are ranges of numbers.
        finished: (values, result to minimise) of each finished trial, in order.
        seed: seed of this draw.
    """
    import cmaes

    size = len(numbers)
    population = max(MIN_POPULATION, 4 + int(3 * math.log(size)))
    usable = [(params, value) for params, value in finished if all(setting.key in params for setting in numbers)]
    optimizer = cmaes.CMA(
        mean=np.full(size, 0.5),
        sigma=0.3,
        bounds=np.tile([0.0, 1.0], (size, 1)),
        seed=seed,
        population_size=population,
    )
    # CMA-ES takes complete generations; the rest waits until enough trials have finished.
    for start in range(0, len(usable) - population + 1, population):
        generation = usable[start : start + population]
        optimizer.tell(
            [
                (np.array([_to_unit(setting, params[setting.key]) for setting in numbers]), value)
                for params, value in generation
            ]
        )
    return {setting.key: _from_unit(setting, float(unit)) for setting, unit in zip(numbers, optimizer.ask())}


def _to_unit(parameter: TunedSetting, value: Value) -> float:
    """Maps a number to its position in the range, from 0 to 1; logarithmic if the setting is."""
    low, high, number = parameter.low, parameter.high, float(value)
    if parameter.log:
        low, high, number = math.log(low), math.log(high), math.log(number)
    return 0.5 if high == low else (number - low) / (high - low)


def _from_unit(parameter: TunedSetting, unit: float) -> Value:
    unit = min(max(unit, 0.0), 1.0)
    low, high = parameter.low, parameter.high
    number = (
        math.exp(math.log(low) + unit * (math.log(high) - math.log(low)))
        if parameter.log
        else (low + unit * (high - low))
    )
    step = parameter.step or (1 if parameter.kind == "int" and not parameter.log else None)
    if step is not None:
        number = low + round((number - low) / step) * step
    number = min(max(number, low), high)
    return round(number) if parameter.kind == "int" else number


def distribution_of(parameter: TunedSetting) -> optuna.distributions.BaseDistribution:
    """Returns Optuna's distribution of a setting."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if parameter.kind == "choice":
        return CategoricalDistribution(parameter.choices)
    if parameter.kind == "int":
        step = int(parameter.step or 1)
        return IntDistribution(int(parameter.low), int(parameter.high), log=parameter.log, step=step)
    return FloatDistribution(parameter.low, parameter.high, log=parameter.log, step=parameter.step)


def draw(trial: optuna.trial.Trial, space: Space) -> Values:
    """Draws the values of a trial. Values that the trial already has are kept.

    Raises:
        ConfigError: a recorded value is not in its range. The storage may be untrusted, and values become overrides.
    """
    from optuna.distributions import CategoricalDistribution, IntDistribution

    values: Values = {}
    for parameter in space.parameters:
        if not parameter.exists_with(values):
            continue
        key, distribution = parameter.key, distribution_of(parameter)
        try:
            if isinstance(distribution, CategoricalDistribution):
                values[key] = trial.suggest_categorical(key, distribution.choices)
                continue
            suggest = trial.suggest_int if isinstance(distribution, IntDistribution) else trial.suggest_float
            values[key] = suggest(
                key, distribution.low, distribution.high, step=distribution.step, log=distribution.log
            )
        except ValueError as error:  # Optuna compares choices and types
            raise ConfigError(
                f"trial {trial.number} is recorded with other values of {key} than {parameter.range_text()}. Begin "
                "another study in another folder."
            ) from error
        _require_in_range(trial.number, parameter, values[key])
    return values


def _require_in_range(number: int, parameter: TunedSetting, value: Value) -> None:
    # Storages keep decimal text, and Optuna returns recorded numbers without checking them.
    rounding = 1e-9 * (abs(parameter.low) + abs(parameter.high))
    low, high = parameter.low - rounding, parameter.high + rounding
    if not isinstance(value, (int, float)) or not low <= value <= high:
        raise ConfigError(
            f"trial {number} is recorded with {parameter.key}={str(value)[:80]!r}, which is not in "
            f"{parameter.range_text()}. Begin another study in another folder."
        )
