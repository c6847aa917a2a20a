"""Population-based training: after each rung, the worst members continue from checkpoints of the best, with changed
settings.

The selection is a function of the values that all members have reported and of the study's seed. No other state is
stored, so the result does not depend on the number of workers or on workers that die.

The price is a barrier: no member begins a rung before all have ended the rung before. The asynchronous variant of the
paper depends on who was first.

Source: Jaderberg et al., "Population Based Training of Neural Networks", 2017, with truncation selection.
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
from mxtrain.tuning.folder import SEEDS, StudyDescription, StudyFolder
from mxtrain.tuning.samplers import seed_of
from mxtrain.tuning.space import Space, TunedSetting, Value, Values, setting_of
from mxtrain.tuning.spec import TuneSettings

CHANGEABLE = ("optimizer.", "lr_scheduler.", "loss.", "dataset.augment.", "trainer.clip_global_norm")
"""Prefixes of settings that may change when a run continues from a checkpoint."""
NUM_QUARTERS = 4
"""The best and the worst quarter of the members exchange checkpoints."""
FACTORS = (0.8, 1.25)
RESAMPLE_PROBABILITY = 0.25
"""Probability with which a choice is drawn anew."""


@dataclass(frozen=True)
class PopulationMember:
    """A member of the population at the beginning of a rung.

    Attributes:
        number: number of its trial.
        values: current values of the tuned settings.
        run: name of its run directory: the number, and the budget at which it last took over a checkpoint.
        source: member whose checkpoint it takes over for this rung; None if it continues its own.
    """

    number: int
    values: Mapping[str, Value]
    run: str
    source: Optional[int] = None


def check_population(settings: TuneSettings, space: Space) -> None:
    """Raises a `ConfigError` if a setting cannot change during training, or the population is too small."""
    wrong = [setting.key for setting in space.parameters if not setting.key.lstrip("+").startswith(CHANGEABLE)]
    if wrong:
        raise ConfigError(
            f"sampler=pbt: {', '.join(wrong)} cannot change while a network is trained. Such settings begin with "
            f"{', '.join(CHANGEABLE)}."
        )
    if settings.pruner != "none":
        raise ConfigError(f"pruner={settings.pruner}: sampler=pbt replaces bad members itself. Type pruner=none.")
    if settings.n_trials is not None and settings.n_trials < NUM_QUARTERS:
        raise ConfigError(f"n_trials={settings.n_trials}: a population has at least {NUM_QUARTERS} members.")


def members_at(
    description: StudyDescription, first: Sequence[Values], reported: Sequence[Mapping[int, float]], rung: int
) -> List[PopulationMember]:
    """Returns the population at the beginning of a rung, replayed from its first rung.

    Args:
        description: description of the study.
        first: initial values of each member.
        reported: for each member, budget of a rung -> value at its end, for all rungs before this one.
        rung: number of the rung, from 0.
    """
    members = [PopulationMember(number, values, str(number)) for number, values in enumerate(first)]
    for earlier_rung in range(rung):
        budget = description.budget(earlier_rung)
        assert budget is not None
        ranked = sorted(range(len(members)), key=lambda i: _sort_key(reported[i][budget], description, i))
        count = max(1, len(members) // NUM_QUARTERS)
        best, worst = ranked[:count], ranked[-count:]
        # A source counts for one rung: members that continue their own checkpoint must not take one over again.
        before_members = [replace(member, source=None) for member in members]
        members = list(before_members)
        for number in worst:
            # The offset keeps these seeds apart from those of the trials' samplers, which are small numbers.
            random = np.random.RandomState(seed_of(description.settings, 1_000_000 * (earlier_rung + 1) + number))
            source = best[random.randint(len(best))]
            values = mutate(description.space, before_members[source].values, random)
            members[number] = PopulationMember(number, values, f"{number}.{budget}", source)
    return members


def _sort_key(value: float, description: StudyDescription, number: int) -> tuple:
    sign = -1.0 if description.directions[0] == "max" else 1.0
    # NaN has no order, so failed members come last by a flag; the number makes ties the same for every worker.
    return (1, 0.0, number) if math.isnan(value) else (0, sign * value, number)


def mutate(space: Space, values: Mapping[str, Value], random: np.random.RandomState) -> Values:
    """Perturbs settings: numbers by a factor of `FACTORS` or by one step; choices are redrawn with a probability."""
    existing = [setting for setting in space.parameters if setting.key in values]
    return {setting.key: _mutated(setting, values[setting.key], random) for setting in existing}


def _mutated(parameter: TunedSetting, value: Value, random: np.random.RandomState) -> Value:
    if parameter.kind == "choice":
        choice = parameter.choices[random.randint(len(parameter.choices))]
        return choice if random.random_sample() < RESAMPLE_PROBABILITY else value
    up = int(random.randint(2))
    number = float(value)
    if parameter.step is not None:
        changed = number + (parameter.step if up else -parameter.step)
    else:
        changed = number * FACTORS[up]
        # Small integers times 1.25 round to themselves, and would never change.
        if parameter.kind == "int" and round(changed) == number:
            changed = number + (1 if up else -1)
    changed = min(max(changed, parameter.low), parameter.high)
    return round(changed) if parameter.kind == "int" else changed


def take_over(folder: StudyFolder, members: Sequence[PopulationMember], previous: Sequence[PopulationMember]) -> None:
    """Copies the checkpoints that members take over; existing copies are kept.

    This must happen before any source member trains on and overwrites its checkpoint. The caller must hold the study's
    lock.

    Args:
        folder: folder of the study.
        members: members at the beginning of a rung.
        previous: members at the beginning of the previous rung.
    """
    for member in members:
        target = folder.path / SEEDS / member.run
        if member.source is None or target.exists():
            continue
        checkpoint = open_checkpoint(folder.path / previous[member.source].run, which="last")
        # Copy and rename, so that a worker that dies never leaves an incomplete checkpoint under the final name.
        partial = target.with_name(f"{target.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        target.parent.mkdir(exist_ok=True)
        shutil.copytree(checkpoint.path, partial)
        os.replace(partial, target)


def overrides_of(folder: StudyFolder, member: PopulationMember) -> List[str]:
    """Returns the overrides that start a member's run from the checkpoint that it took over; empty if it took none."""
    if member.run == str(member.number):
        return []
    seed = Path(os.path.abspath(folder.path / SEEDS / member.run))
    changes = ",".join(setting_of(key).lstrip("+") for key in member.values)
    return [f"checkpoint.resume={quote(str(seed))}", f"checkpoint.changes=[{changes}]"]


def next_rung(description: StudyDescription, reported: Sequence[Mapping[int, float]]) -> Dict[int, int]:
    """Returns the next rung of each member. Only members of the lowest rung may start."""
    rungs: Dict[int, int] = {}
    for number, values in enumerate(reported):
        rung = 0
        while (budget := description.budget(rung)) is not None and budget in values:
            rung += 1
        # A barrier follows from these numbers: the result must not depend on which member was first.
        rungs[number] = rung
    return rungs


def values_by_budget(description: StudyDescription, trial: Any) -> Mapping[int, float]:
    """Returns budget of a rung -> value that a member reported. A failed member has NaN, the worst, from then on."""
    values: Dict[int, float] = dict(trial.intermediate_values)
    rung = 0
    while trial.state.name == "FAIL" and (budget := description.budget(rung)) is not None:
        values.setdefault(budget, math.nan)
        rung += 1
    return values
