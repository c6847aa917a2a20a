"""Averages weights: of the last checkpoints of a run, or of several runs (a model soup).

Source of soups: Wortsman et al., "Model soups" (2022), recipe 1.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Dict, List, Literal, Mapping, Optional, Sequence

import pydantic
from typing_extensions import Annotated

from mxtrain.checkpoint import Checkpoint, open_checkpoint, refuse_links, require_run_state
from mxtrain.checkpoint.average import last_checkpoints, write_average
from mxtrain.checkpoint.folder import AVERAGED, CHECKPOINTS, run_dir_of
from mxtrain.checkpoint.ranking import VAL_LOSS
from mxtrain.checkpoint.soup import Measure, Soup, build_soup, require_same_validation, write_soup
from mxtrain.config.rules import require_direction
from mxtrain.data.spec import choose_split, open_splits
from mxtrain.errors import CheckpointError, ConfigError, DataError, LoaderError, MxtrainError
from mxtrain.task.threshold import ChoosingTask, choices_of, saved_choices
from mxtrain.types import Spec
from mxtrain.workflows.output_file import OutputFolder, not_written, require_writable

if TYPE_CHECKING:
    import numpy as np

    from mxtrain.training.restored_run import RestoredRun
    from mxtrain.types.annotations import JsonObject

VALIDATED = "val/"


class AverageSettings(Spec):
    """Settings of `average`."""

    last: Annotated[int, pydantic.Field(ge=2)] = 5
    """Number of the newest checkpoints of one run to average; they must have been kept (`checkpoint.keep_last`)."""
    soup: Optional[Literal["greedy", "uniform"]] = None
    """How to average several runs: greedy = only the runs that improve the validation metric; uniform = all runs;
    null = the last checkpoints of one run."""
    which: Literal["best", "last"] = "best"
    """For a soup: the checkpoint of each run to use, its best or its last one."""
    out: Optional[OutputFolder] = None
    """Folder of the new checkpoint of a soup; null = averaged/greedy-soup or uniform-soup of the first run."""


@dataclass(frozen=True)
class AverageResult:
    """Result of `average_last`.

    Attributes:
        path: the checkpoint that was written.
        steps: steps of the averaged checkpoints.
    """

    path: Path
    steps: Sequence[int]


@dataclass(frozen=True)
class SoupMember:
    """A run of a soup.

    Attributes:
        run: path of the run, as it was given.
        step: step of its checkpoint.
        value: its monitored metric on the validation split.
        kept: True if it is in the soup.
    """

    run: str
    step: int
    value: float
    kept: bool


@dataclass(frozen=True)
class SoupResult:
    """Result of `average_runs`.

    Attributes:
        path: the checkpoint that was written.
        method: "greedy" or "uniform".
        monitor: name of the metric that compares the runs.
        members: the runs, best first.
        values: loss and metrics of the soup on the validation split, with names such as val/loss.
    """

    path: Path
    method: str
    monitor: str
    members: Sequence[SoupMember]
    values: Mapping[str, float]


def average_last(
    run_dir: Path, last: int, restore: Callable[[str], RestoredRun], warn: Callable[[str], None]
) -> AverageResult:
    """Averages the last checkpoints of one run, and writes the mean into its folder `averaged`.

    If the checkpoints keep thresholds or margins, those of the mean are chosen on the validation data.

    Args:
        run_dir: the run directory.
        last: number of checkpoints.
        restore: opens the checkpoint at a path; called only if something is to be chosen.
        warn: gets a sentence if nothing could be chosen.

    Raises:
        CheckpointError: the run has fewer checkpoints, or the average cannot be written.
    """
    if not os.path.isdir(run_dir / CHECKPOINTS):
        raise CheckpointError(f"There is no run directory at {run_dir}: it would hold a folder '{CHECKPOINTS}'.")
    refuse_links(run_dir, (CHECKPOINTS, AVERAGED, f"{AVERAGED}/last-{last}"))
    checkpoints = last_checkpoints(run_dir, last)
    newest = checkpoints[-1]
    names = list(choices_of(newest.state))

    def choose(weights: Mapping[str, np.ndarray]) -> Mapping[str, JsonObject]:
        if not names:
            return {}
        try:
            return choose_for(weights, newest, restore(str(newest.path)).choosing())
        except MxtrainError as error:
            warn(f"The average has no {' and '.join(names)}, because the validation data cannot be used: {error}")
            return {}

    try:
        path = write_average(run_dir, checkpoints, choose)
    except OSError as error:
        raise not_written("The average", run_dir / AVERAGED, error) from error
    return AverageResult(path, [checkpoint.step for checkpoint in checkpoints])


def choose_for(weights: Mapping[str, np.ndarray], checkpoint: Checkpoint, run: RestoredRun) -> Mapping[str, JsonObject]:
    """Validates weights and returns the values that are chosen, such as thresholds, by name of state.

    Raises:
        DataError: the validation data cannot be read.
    """
    try:
        build_measure(checkpoint, run)(weights, "the average")
    except LoaderError as error:
        raise DataError(str(error)) from error
    return saved_choices(run.description.task)


def average_runs(
    paths: Sequence[str],
    settings: AverageSettings,
    restore: Callable[[str], RestoredRun],
    warn: Callable[[str], None],
) -> SoupResult:
    """Averages the weights of several runs, as far as they improve the validation split, and writes the checkpoint.

    Args:
        paths: runs or checkpoints, two at least.
        settings: settings with a method, `soup`.
        restore: opens the run at a path; called for the first one, whose data measure all.
        warn: gets sentences about damaged checkpoints that are passed over.

    Raises:
        ConfigError: a setting is wrong, or the runs do not go together.
        CheckpointError: a run has no usable checkpoint, or the average cannot be written.
        DataError: the validation data cannot be read.
    """
    assert settings.soup is not None
    if "last" in settings.model_fields_set:
        raise ConfigError("last=N averages checkpoints of one run, and soup=... several runs. Leave one of them out.")
    if len(paths) < 2:
        raise ConfigError(f"soup={settings.soup}: name two runs at least: average RUN RUN soup={settings.soup}.")
    checkpoints = open_members(paths, settings.which, warn)
    require_same_validation(checkpoints)
    run = restore(paths[0])
    if run.description.model.lora.rank:
        raise ConfigError(
            f"soup={settings.soup}: {paths[0]} was trained with model.lora, and the mean of two factors is not that of "
            "their products. Average runs that train the weights themselves."
        )
    path = _output_folder(run.checkpoint, settings)
    monitor = run.description.trainer.monitor
    monitor = monitor if monitor.startswith(VALIDATED) else VAL_LOSS
    direction = require_direction(run.description, "trainer.monitor", monitor)
    try:
        soup = build_measured_soup(checkpoints, settings.soup, monitor, direction, run)
    except LoaderError as error:
        raise DataError(str(error)) from error
    try:
        write_soup(soup, run.checkpoint, direction, path)
    except OSError as error:
        raise not_written("The average", path, error) from error
    # A soup orders its members by value, so each path is found by the checkpoint itself.
    name_of = {id(checkpoint): name for checkpoint, name in zip(checkpoints, paths)}
    members = [
        SoupMember(name_of[id(member.checkpoint)], member.checkpoint.step, member.value, member.kept)
        for member in soup.members
    ]
    return SoupResult(path, soup.method, soup.monitor, members, soup.values)


def open_members(paths: Sequence[str], which: str, warn: Callable[[str], None]) -> List[Checkpoint]:
    """Opens the checkpoint of each run.

    Raises:
        CheckpointError: a path is no run.
        ConfigError: two paths are the same checkpoint.
    """
    name_of: Dict[str, str] = {}
    checkpoints = []
    for path in paths:
        checkpoint = open_checkpoint(path, which=which, report=warn)
        require_run_state(checkpoint)
        real = os.path.realpath(checkpoint.path)
        if real in name_of:
            raise ConfigError(f"soup: {name_of[real]} and {path} are the same checkpoint. Name each run once.")
        name_of[real] = path
        checkpoints.append(checkpoint)
    return checkpoints


def _output_folder(first: Checkpoint, settings: AverageSettings) -> Path:
    """Returns the folder to write.

    Raises:
        ConfigError: the folder holds other files, or cannot be written.
    """
    if settings.out is None:
        name, run_dir = f"{settings.soup}-soup", run_dir_of(first.path)
        refuse_links(run_dir, (AVERAGED, f"{AVERAGED}/{name}"))
        return require_writable(run_dir / AVERAGED / name, "out")
    path = Path(settings.out)
    if path.exists() and any(path.iterdir()):
        try:
            # Only an earlier soup is replaced.
            is_own = "soup" in open_checkpoint(path).state
        except CheckpointError:
            is_own = False
        if not is_own:
            raise ConfigError(f"out={path}: the folder holds something else. Name another one with out=FOLDER.")
    return path


def build_measured_soup(
    checkpoints: Sequence[Checkpoint], method: str, monitor: str, direction: str, run: RestoredRun
) -> Soup:
    """Averages checkpoints, each measured on the validation split with one network."""
    run = run.choosing()  # the thresholds of the first run would not suit the others
    measure = build_measure(checkpoints[0], run)
    soup = build_soup(checkpoints, method, monitor, direction, measure)
    if isinstance(run.description.task, ChoosingTask):
        measure(soup.weights, "the soup")  # the last one that was measured may not be the soup
    return replace(soup, choices=saved_choices(run.description.task))


def build_measure(checkpoint: Checkpoint, run: RestoredRun) -> Measure:
    """Returns the function that measures weights on the validation split, with the network of a checkpoint.

    Members of a soup are measured anew, because the metric in a checkpoint may be of another monitor, or of a part of
    the split.
    """
    _, source = choose_split(open_splits(run.dataset), "val")
    # Imports MXNet: only from here on.
    from mxtrain.model.lora import merge
    from mxtrain.training.loaders import build_loader
    from mxtrain.training.snapshot import set_parameters
    from mxtrain.training.trained import load_trained

    trained = load_trained(checkpoint, run.description, run.signature)
    loader = build_loader(trained.description, source, run.signature, trained.device)

    def measure(weights: Mapping[str, np.ndarray], origin: str) -> Dict[str, float]:
        set_parameters(trained.strategy, merge(weights, run.description.model.lora), origin)
        values = trained.evaluator.measure(loader)
        return {f"{VALIDATED}{name}": value for name, value in values.items() if name != "samples_per_s"}

    return measure
