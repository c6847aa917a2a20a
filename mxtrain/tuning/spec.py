"""Settings of a study."""

from __future__ import annotations

from typing import Literal, Optional

import pydantic
from typing_extensions import Annotated

from mxtrain.types import NonNegative, Positive, Spec

Sampler = Literal["tpe", "cmaes", "random", "grid", "gp", "nsga2", "pbt"]
Pruner = Literal["none", "asha", "hyperband", "median"]


class TuneSettings(Spec):
    """Settings of `tune`, besides overrides and ranges."""

    n_trials: Optional[Positive] = None
    """Trials of the study in all, whoever trains them; a larger number later adds some. null = 20, or a whole grid."""
    sampler: Sampler = "tpe"
    """Chooses the values: tpe, gp (Gaussian process), cmaes (numbers only), random, grid (every combination), nsga2
    (several objectives), pbt (population-based training: n_trials members exchange checkpoints every min_epochs and
    change settings)."""
    pruner: Pruner = "none"
    """Stops bad trials early: asha (successive halving), hyperband, median; none = every trial runs to its end."""
    reduction: Annotated[int, pydantic.Field(ge=2)] = 3
    """With asha and hyperband: each rung is this many times longer, and the best of this many trials goes on."""
    min_epochs: Optional[Positive] = None
    """Epochs of the first rung, and of each with pruner=median and sampler=pbt; null = such that there are three rungs
    in all, or ten of equal length."""
    min_steps: Optional[Positive] = None
    """Steps of the first rung in place of epochs, for long epochs."""
    objectives: Optional[str] = None
    """Values to improve, with commas between them, e.g. val/accuracy,samples_per_s; null = trainer.monitor."""
    seed: NonNegative = 0
    """Seed of the sampler; each trial draws with this and its number."""
    space: Optional[str] = None
    """YAML file with ranges and conditions, besides those of the command line."""
    storage: Optional[str] = None
    """Database, e.g. postgresql://host/study or sqlite:////path/study.db; null = journal.log in the folder."""


def first_rung(settings: TuneSettings, max_epochs: Optional[int], val_interval: int = 1) -> int:
    """Returns the length of the first rung, in epochs, or in steps with `min_steps`.

    It is rounded up to a multiple of `val_interval`, and so are all rungs: before the first validation there is no
    value by which a trial could be judged.

    Args:
        settings: settings of the study.
        max_epochs: number of epochs of a whole trial.
        val_interval: validations are this many epochs, or steps with `min_steps`, apart; 1 if they use another unit.
    """
    parts = 10 if has_even_rungs(settings) else settings.reduction**2
    # Without a length, the last of three rungs of successive halving is the whole run.
    length = settings.min_steps or settings.min_epochs or max(1, (max_epochs or 1) // parts)
    return -(-length // val_interval) * val_interval


def has_even_rungs(settings: TuneSettings) -> bool:
    """Returns True if all rungs are of the same length."""
    return settings.pruner == "median" or settings.sampler == "pbt"


def rung_budget(settings: TuneSettings, max_epochs: Optional[int], rung: int, val_interval: int = 1) -> Optional[int]:
    """Returns the length of a rung in epochs, or in steps with `min_steps`; None for the last one, which has no limit.

    Args:
        settings: settings of the study.
        max_epochs: number of epochs of a whole trial.
        rung: number of the rung, from 0.
        val_interval: see `first_rung`.
    """
    if settings.pruner == "none" and settings.sampler != "pbt":
        return None
    first = first_rung(settings, max_epochs, val_interval)
    length = first * (rung + 1) if has_even_rungs(settings) else first * settings.reduction**rung
    if settings.min_steps is None and max_epochs is not None and length >= max_epochs:
        return None
    return length


def budget_text(settings: TuneSettings, budget: Optional[int]) -> str:
    """Returns the override that limits a trial to the budget of a rung; empty for the last rung."""
    if budget is None:
        return ""
    return f"trainer.{'max_steps' if settings.min_steps else 'epoch_budget'}={budget}"
