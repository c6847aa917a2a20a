"""`mxtrain average RUN` writes the mean of the weights of a run's last checkpoints.

`average RUN RUN... soup=greedy` averages the best checkpoints of several runs: each further run is added if the mean is
at least as good on the validation split; soup=uniform averages all. `eval`, `predict` and `export` take the result like
any checkpoint."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Dict, List, Literal, Mapping, Optional, Sequence, Tuple

import pydantic
from typing_extensions import Annotated

from mxtrain.checkpoint import Checkpoint, open_checkpoint, refuse_links, require_run_state
from mxtrain.checkpoint.average import last_checkpoints, write_average
from mxtrain.checkpoint.folder import AVERAGED, CHECKPOINTS, run_dir_of
from mxtrain.checkpoint.ranking import VAL_LOSS
from mxtrain.checkpoint.soup import Soup, cook, require_same_runs, write_soup
from mxtrain.cli.commands import Command
from mxtrain.cluster.launch.sweep import direction_of
from mxtrain.composing import arguments as command_line
from mxtrain.composing.arguments import Arguments
from mxtrain.composing.restored import one_run, restore
from mxtrain.composing.settings import refuse_misspelled_groups, split_settings
from mxtrain.data.spec import choose_split, open_splits
from mxtrain.errors import CheckpointError, ConfigError, DataError, LoaderError
from mxtrain.terminal.console import open_console
from mxtrain.terminal.program import program
from mxtrain.terminal.report import format_value
from mxtrain.terminal.tables import BEST, print_rows
from mxtrain.types import Spec
from mxtrain.workflows.output_file import OutputFolder, require_writable

if TYPE_CHECKING:
    import numpy as np

    from mxtrain.config.groups import Description
    from mxtrain.data.signature import Signature
    from mxtrain.data.spec import BaseDataset

VALIDATED = "val/"


class AverageSettings(Spec):
    """Settings of `average`."""

    last: Annotated[int, pydantic.Field(ge=2)] = 5
    """Number of the newest checkpoints of one run to average; they must have been kept (`checkpoint.keep_last`)."""
    soup: Optional[Literal["greedy", "uniform"]] = None
    """How to average several runs: greedy = only the runs that improve the validation metric; uniform = all runs;
    null = the last checkpoints of one run."""
    which: Literal["best", "last"] = "best"
    """Of a soup: the checkpoint of each run to use, its best or its last one."""
    out: Optional[OutputFolder] = None
    """Of a soup: folder of the new checkpoint; null = averaged/greedy-soup or uniform-soup of the first run."""


COMMAND = Command(
    "average",
    position=60,
    listed="average RUN [last=5]",
    help="the mean of the weights of a run's last checkpoints, as a checkpoint; of several runs: "
    "average RUN RUN... soup=greedy|uniform",
    usage="RUN [last=N] | RUN RUN... soup=greedy|uniform [--config-dir DIR | --trust-code] "
    "[setting=value ...] [group.field=value ...]",
    settings="AverageSettings",
    examples=("average RUN last=5", "average runs/1 runs/2 runs/3 soup=greedy", "eval runs/1/averaged/greedy-soup"),
)


def run(arguments: Sequence[str]) -> int:
    """Averages and writes; returns the exit code."""
    parsed = command_line.parse(arguments, reads_checkpoint=True)
    settings, overrides = split_settings(parsed, AverageSettings, "average")
    if settings.soup is not None:
        refuse_misspelled_groups(overrides, "average", parsed.config_dirs)
    one_run(parsed, "average")
    if settings.soup is not None:
        return average_runs(parsed, settings, overrides)
    if parsed.trusts_code or parsed.config_dirs:
        raise ConfigError(
            "--trust-code and --config-dir go with soup=greedy and soup=uniform: the average of one run's checkpoints "
            "needs no code. Leave it out."
        )
    if parsed.positionals[1:]:
        raise ConfigError(
            f"average takes one run directory, not also '{parsed.positionals[1]}'. To average several runs, type "
            "soup=greedy or soup=uniform."
        )
    for name in sorted({"which", "out"} & settings.model_fields_set):
        raise ConfigError(f"{name} is for averages of several runs. Type soup=greedy, or leave it out.")
    if overrides:
        raise ConfigError(f"average takes `last=N` and nothing else, not '{overrides[0]}'.")
    return average_last(Path(parsed.positionals[0]), settings.last)


def average_last(run_dir: Path, last: int) -> int:
    """Averages the last checkpoints of one run."""
    if not os.path.isdir(run_dir / CHECKPOINTS):
        raise CheckpointError(f"There is no run directory at {run_dir}: it would hold a folder '{CHECKPOINTS}'.")
    refuse_links(run_dir, (CHECKPOINTS, AVERAGED, f"{AVERAGED}/last-{last}"))
    checkpoints = last_checkpoints(run_dir, last)
    try:
        path = write_average(run_dir, checkpoints)
    except OSError as error:
        raise CheckpointError(f"The average cannot be written to {run_dir / AVERAGED}: {error.strerror}.") from error
    steps = ", ".join(str(checkpoint.step) for checkpoint in checkpoints)
    print(f"the mean of the weights after steps {steps}: {path}")
    print(f"  {program()} eval {shlex.quote(str(path))}")
    return 0


def average_runs(parsed: Arguments, settings: AverageSettings, overrides: Sequence[str]) -> int:
    """Averages the weights of several runs, as far as they improve the validation split."""
    soup, checkpoints, path = make_soup(
        parsed.positionals, settings, overrides, config_dirs=parsed.config_dirs, trust_code=parsed.trusts_code
    )
    print_soup(soup, parsed.positionals, checkpoints, path)
    return 0


def make_soup(
    paths: Sequence[str],
    settings: AverageSettings,
    overrides: Sequence[str] = (),
    *,
    config_dirs: Sequence[str] = (),
    trust_code: bool = False,
) -> Tuple[Soup, List[Checkpoint], Path]:
    """Averages the weights of several runs and writes the checkpoint.

    Returns:
        The soup, the checkpoint of each run in the given order, and the folder that was written.

    Raises:
        ConfigError: a setting or an override is wrong, or the runs do not go together.
        CheckpointError: a run has no usable checkpoint, or the average cannot be written.
        DataError: the validation data cannot be read.
    """
    assert settings.soup is not None
    if "last" in settings.model_fields_set:
        raise ConfigError("last=N averages checkpoints of one run, and soup=... several runs. Leave one of them out.")
    if len(paths) < 2:
        raise ConfigError(f"soup={settings.soup}: name two runs at least: average RUN RUN soup={settings.soup}.")
    checkpoints = open_members(paths, settings.which)
    require_same_runs(checkpoints)
    restored = restore(
        paths[0],
        which=settings.which,
        overrides=overrides,
        config_dirs=config_dirs,
        trust_code=trust_code,
        command="average",
        settings=AverageSettings.model_fields,
    )
    first, description = restored.checkpoint, restored.description
    dataset, signature = restored.dataset, restored.signature
    path = _folder(first, settings)
    monitor = description.trainer.monitor
    monitor = monitor if monitor.startswith(VALIDATED) else VAL_LOSS
    direction = direction_of(description, monitor)
    try:
        soup = cook_measured(checkpoints, settings.soup, monitor, direction, description, dataset, signature)
    except LoaderError as error:
        raise DataError(str(error)) from error
    try:
        write_soup(soup, first, direction, path)
    except OSError as error:
        raise CheckpointError(f"The average cannot be written to {path}: {error.strerror}.") from error
    return soup, checkpoints, path


def open_members(paths: Sequence[str], which: str) -> List[Checkpoint]:
    """Opens the checkpoint of each run.

    Raises:
        CheckpointError: a path is no run.
        ConfigError: two paths are the same checkpoint.
    """
    name_of: Dict[str, str] = {}
    checkpoints = []
    for path in paths:
        checkpoint = open_checkpoint(path, which=which, report=lambda text: print(f"warning: {text}", file=sys.stderr))
        require_run_state(checkpoint)
        real = os.path.realpath(checkpoint.path)
        if real in name_of:
            raise ConfigError(f"soup: {name_of[real]} and {path} are the same checkpoint. Name each run once.")
        name_of[real] = path
        checkpoints.append(checkpoint)
    return checkpoints


def _folder(first: Checkpoint, settings: AverageSettings) -> Path:
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
            is_own = "soup" in open_checkpoint(path).state
        except CheckpointError:
            is_own = False
        if not is_own:
            raise ConfigError(f"out={path}: the folder holds something else. Name another one with out=FOLDER.")
    return path


def cook_measured(
    checkpoints: Sequence[Checkpoint],
    method: str,
    monitor: str,
    direction: str,
    description: Description,
    dataset: BaseDataset,
    signature: Signature,
) -> Soup:
    """Averages checkpoints, each measured on the validation split with one network."""
    _, source = choose_split(open_splits(dataset), "val")
    # Imports MXNet: only from here on.
    from mxtrain.training.loaders import build_loader
    from mxtrain.training.snapshot import set_parameters
    from mxtrain.training.trained import load_trained

    trained = load_trained(checkpoints[0], description, signature)
    loader = build_loader(trained.description, source, signature, trained.device)

    def measure(weights: Mapping[str, np.ndarray], origin: str) -> Dict[str, float]:
        set_parameters(trained.strategy, weights, origin)
        values = trained.evaluator.measure(loader)
        return {f"{VALIDATED}{name}": value for name, value in values.items() if name != "samples_per_s"}

    return cook(checkpoints, method, monitor, direction, measure)


def print_soup(soup: Soup, paths: Sequence[str], checkpoints: Sequence[Checkpoint], path: Path) -> None:
    """Prints a table of the members, best first, and the values of the soup."""
    name_of = {id(checkpoint): name for checkpoint, name in zip(checkpoints, paths)}
    rows = [
        [
            name_of[id(member.checkpoint)],
            str(member.checkpoint.step),
            format_value(member.value),
            "in the soup" if member.kept else "left out",
        ]
        for member in soup.members
    ]
    num_members = sum(member.kept for member in soup.members)
    rows.append([f"{soup.method} soup of {num_members}", "", format_value(soup.values[soup.monitor]), ""])
    console = open_console(sys.stdout)
    print_rows(["run", "step", soup.monitor, ""], rows, {len(rows) - 1: BEST})
    shown = "  ".join(f"{name} {format_value(value)}" for name, value in soup.values.items())
    console.print(f"{shown}\nwritten to {path}", soft_wrap=True)
    print(f"  {program()} eval {shlex.quote(str(path))}")
