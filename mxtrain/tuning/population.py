"""Population-based training: at the end of each rung the worst members take over a checkpoint of the best, with changed
settings (Jaderberg et al., "Population Based Training of Neural Networks", 2017, truncation selection).

Who takes over what follows from the values that all members have reported and from the study's seed: nothing else is
kept, so the result is the same for any number of workers, and whichever of them die.
"""

from __future__ import annotations

import math
import os
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence

import numpy as np

from mxtrain.checkpoint import open_checkpoint
from mxtrain.config.override_text import quote
from mxtrain.errors import ConfigError
from mxtrain.tuning.folder import StudyDescription, StudyFolder
from mxtrain.tuning.samplers import seed_of
from mxtrain.tuning.settings import TuneSettings
from mxtrain.tuning.space import Space, TunedSetting, Value, Values

SEEDS = ".seeds"
"""Folder of the checkpoints that members have taken over."""
CHANGEABLE = ("optimizer.", "lr_scheduler.", "loss.", "dataset.augment.", "trainer.clip_global_norm")
"""Beginnings of settings with which a checkpoint of other values can be continued."""
QUARTER = 4
FACTORS = (0.8, 1.25)
RESAMPLED = 0.25
"""Probability with which a choice is drawn anew."""


@dataclass(frozen=True)
class PopulationMember:
    """A member of the population at the beginning of a rung.

    Attributes:
        number: of its trial.
        values: settings with which it trains.
        run: name of its run directory: the number, and the rung at which it last took over a checkpoint.
        source: the member whose checkpoint it takes over for this rung, or None.
    """

    number: int
    values: Mapping[str, Value]
    run: str
    source: Optional[int] = None


def check_population(settings: TuneSettings, space: Space) -> None:
    """Raises: ConfigError: the settings cannot be changed while training, or the population is too small."""
    wrong = [one.key for one in space.parameters if not one.key.lstrip("+").startswith(CHANGEABLE)]
    if wrong:
        raise ConfigError(
            f"sampler=pbt: {', '.join(wrong)} cannot change while a network is trained. Such settings begin with "
            f"{', '.join(CHANGEABLE)}."
        )
    if settings.pruner != "none":
        raise ConfigError(f"pruner={settings.pruner}: sampler=pbt replaces bad members itself. Type pruner=none.")
    if settings.n_trials is not None and settings.n_trials < QUARTER:
        raise ConfigError(f"n_trials={settings.n_trials}: a population has at least {QUARTER} members.")


def members_at(
    description: StudyDescription, first: Sequence[Values], reported: Sequence[Mapping[int, float]], rung: int
) -> List[PopulationMember]:
    """The population at the beginning of a rung.

    Args:
        description: of the study.
        first: values with which each member began.
        reported: by member: budget of a rung -> value at its end; all rungs before this one.
        rung: from 0 on.
    """
    members = [PopulationMember(number, values, str(number)) for number, values in enumerate(first)]
    for before in range(rung):
        budget = description.budget(before)
        assert budget is not None
        ranked = sorted(range(len(members)), key=lambda one: _badness(reported[one][budget], description, one))
        count = max(1, len(members) // QUARTER)
        best, worst = ranked[:count], ranked[-count:]
        before_members = [replace(member, source=None) for member in members]
        members = list(before_members)
        for number in worst:
            random = np.random.RandomState(seed_of(description.settings, 1_000_000 * (before + 1) + number))
            source = best[random.randint(len(best))]
            values = mutate(description.space, before_members[source].values, random)
            members[number] = PopulationMember(number, values, f"{number}.{budget}", source)
    return members


def _badness(value: float, description: StudyDescription, number: int) -> tuple:
    sign = -1.0 if description.directions[0] == "max" else 1.0
    return (1, 0.0, number) if math.isnan(value) else (0, sign * value, number)


def mutate(space: Space, values: Mapping[str, Value], random: np.random.RandomState) -> Values:
    """Changes settings: numbers by a fifth, or one step, up or down; some choices are drawn anew."""
    return {one.key: _mutated(one, values[one.key], random) for one in space.parameters if one.key in values}


def _mutated(parameter: TunedSetting, value: Value, random: np.random.RandomState) -> Value:
    if parameter.kind == "choice":
        drawn = parameter.choices[random.randint(len(parameter.choices))]
        return drawn if random.random_sample() < RESAMPLED else value
    up = int(random.randint(2))
    number = float(value)
    if parameter.step is not None:
        changed = number + (parameter.step if up else -parameter.step)
    else:
        changed = number * FACTORS[up]
        if parameter.kind == "int" and round(changed) == number:
            changed = number + (1 if up else -1)
    changed = min(max(changed, parameter.low), parameter.high)
    return round(changed) if parameter.kind == "int" else changed


def take_over(folder: StudyFolder, members: Sequence[PopulationMember], before: Sequence[PopulationMember]) -> None:
    """Copies the checkpoints that members take over, before any of the sources trains on. The caller holds the study's
    lock; what an earlier caller had copied is kept.

    Args:
        folder: of the study.
        members: at the beginning of a rung.
        before: the same at the beginning of the rung before.
    """
    for member in members:
        target = folder.path / SEEDS / member.run
        if member.source is None or target.exists():
            continue
        checkpoint = open_checkpoint(folder.path / before[member.source].run, which="last")
        partial = target.with_name(f"{target.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        target.parent.mkdir(exist_ok=True)
        shutil.copytree(checkpoint.path, partial)
        os.replace(partial, target)


def words_of(folder: StudyFolder, member: PopulationMember) -> List[str]:
    """The overrides with which a member's run begins with the checkpoint that it took over."""
    if member.run == str(member.number):
        return []
    seed = Path(os.path.abspath(folder.path / SEEDS / member.run))
    changes = ",".join(key.lstrip("+") for key in member.values)
    return [f"checkpoint.resume={quote(str(seed))}", f"checkpoint.changes=[{changes}]"]


def next_rung(description: StudyDescription, reported: Sequence[Mapping[int, float]]) -> Dict[int, int]:
    """The rung that each member trains next; only members of the lowest rung may begin it."""
    rungs: Dict[int, int] = {}
    for number, values in enumerate(reported):
        rung = 0
        while (budget := description.budget(rung)) is not None and budget in values:
            rung += 1
        rungs[number] = rung
    return rungs


def values_by_budget(description: StudyDescription, trial: Any) -> Mapping[int, float]:
    """The values that a member has reported by the rungs' budgets; one that failed is the worst from then on."""
    found: Dict[int, float] = dict(trial.intermediate_values)
    rung = 0
    while trial.state.name == "FAIL" and (budget := description.budget(rung)) is not None:
        found.setdefault(budget, math.nan)
        rung += 1
    return found
