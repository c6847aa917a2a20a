"""`mxtrain reproduce RUN` trains a run again, in a new directory, and compares the results to the bit.

It composes the description that meta.json of the run contains, with overrides on top, and compares versions, code, data
and machine with those of the run before it starts. With all of them equal, weights and metrics are the same bits.
Exit code 0: the same result. 1: another result. 2: with strict=true, something differs, and nothing was started."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Dict, List, Optional, Sequence, Tuple

import pydantic
from typing_extensions import Annotated

from mxtrain.archive.compare import (
    Different,
    ResultComparison,
    cell_text,
    compare_meta,
    compare_results,
    short_value,
)
from mxtrain.archive.meta import RecordedRun, read_recorded_run
from mxtrain.archive.provenance import collect_meta
from mxtrain.cluster.member import HOST_WORKERS
from mxtrain.composing import arguments as command_line
from mxtrain.composing.arguments import Arguments
from mxtrain.composing.composer import Composed, Composer
from mxtrain.composing.environment import compose_and_check, set_environment
from mxtrain.composing.moved_data import find_data
from mxtrain.composing.recorded import with_overrides, words_of, written
from mxtrain.composing.restored import one_run
from mxtrain.composing.settings import refuse_misspelled_groups, split_settings
from mxtrain.config.groups import GROUPS, Description
from mxtrain.config.override_text import key_of, quote
from mxtrain.config.trust import require_trusted
from mxtrain.data.fingerprint import fingerprint
from mxtrain.data.loading.described_paths import named_paths
from mxtrain.data.spec import open_splits
from mxtrain.errors import EXIT_BUDGET, EXIT_CRASHED, EXIT_FINISHED, ConfigError
from mxtrain.terminal.tables import print_rows
from mxtrain.training.resume import settings_that_differ
from mxtrain.types import PathText, Spec

if TYPE_CHECKING:
    from mxtrain.types.annotations import Json

RUN_DIR = "hydra.run.dir"


class ReproduceSettings(Spec):
    """Settings of `reproduce`, besides overrides."""

    dir: Optional[PathText] = None
    """The new run directory; by default outputs/DATE/TIME. The same command continues there after an interruption."""
    strict: bool = False
    """Refuses to start, with exit code 2, if anything differs that may change the result."""
    tolerance: Annotated[float, pydantic.Field(ge=0, lt=1)] = 0.0
    """Largest relative difference of final metrics that passes; 0.0: weights, metrics and rows are the same bits."""


def run(arguments: Sequence[str]) -> int:
    """Compares, trains and compares again; returns the exit code."""
    parsed = command_line.parse(arguments, reads_checkpoint=True)
    settings, overrides = split_settings(parsed, ReproduceSettings, "reproduce")
    refuse_misspelled_groups(overrides, "reproduce", parsed.config_dirs)
    recorded = read_recorded_run(Path(one_run(parsed, "reproduce")))
    if parsed.positionals[1:]:
        raise ConfigError(f"reproduce takes one run directory, not also {shlex.quote(parsed.positionals[1])}.")
    if parsed.multirun:
        raise ConfigError("reproduce trains one run: leave out -m.")
    if settings.dir is not None:
        overrides = [*overrides, f"{RUN_DIR}={quote(settings.dir)}"]
    with Composer(parsed.config_dirs) as composer:
        composed, description = compose_recorded(recorded, overrides, parsed, composer)
        refuse_same_directory(recorded, composed.run_dir)
        differing = differences(recorded, description)
        show_differences(differing, recorded)
        if differing and settings.strict:
            raise ConfigError(f"strict=true, and {count(differing)} from {recorded.path}. Nothing was started.")
        # Takes time to load: only from here on.
        from mxtrain.cluster.launch.run import train_once

        outcome = train_once(composed, description, command_line.config_flags(parsed.config_dirs))
    if outcome.exit_code not in (EXIT_FINISHED, EXIT_BUDGET):  # a budget is a part of the description
        print(f"the run did not finish, so nothing is compared with {recorded.path}")
        return outcome.exit_code
    return show_results(compare_results(recorded.path, Path(outcome.run_dir)), settings.tolerance, recorded.path)


def compose_recorded(
    recorded: RecordedRun, overrides: Sequence[str], parsed: Arguments, composer: Composer
) -> Tuple[Composed, Description]:
    """Composes the description of a run, with overrides.

    Raises:
        ConfigError: an override is wrong, the description cannot be composed here, or it names code that was not
            declared trusted.
    """
    if not parsed.trusts_code:
        typed = [o.key_or_group for o in composer.parse(overrides) if not isinstance(o.value(), dict)]
        # Before anything in it is looked up in the environment, imported or set.
        require_trusted(recorded.description, str(recorded.path), "reproduce", typed, parsed.config_dirs)
    if any(str(target).endswith(".given") for target in _modules(recorded.description)):
        raise ConfigError(
            f"{recorded.path} was started from Python with objects, which meta.json does not contain. Run the program "
            "again."
        )
    words = words_of(recorded.description, recorded.choices, composer)
    groups = [group for group in composer.groups() if group in GROUPS]
    words = with_overrides(words, overrides, groups)
    composed, description = compose_and_check(composer, words)
    data = find_data(recorded.path, description, {key_of(word) for word in overrides}, needs_data=True)
    moved_words = moved_paths(description, data)
    if moved_words:
        composed, description = compose_and_check(composer, with_overrides(words, moved_words, groups))
    return composed, description


def _modules(config: object) -> List[str]:
    if not isinstance(config, dict):
        return []
    own_module = [str(config["_target_"]).rpartition(".")[0]] if "_target_" in config else []
    return [*own_module, *(module for value in config.values() for module in _modules(value))]


def moved_paths(recorded: Description, current: Description) -> List[str]:
    """Returns the overrides for paths of the dataset that `find_data` has changed."""
    old = named_paths(recorded.dataset)
    names = [name for name, paths in named_paths(current.dataset).items() if paths != old[name]]
    return [f"dataset.{name}={written(getattr(current.dataset, name))}" for name in names]


def refuse_same_directory(recorded: RecordedRun, run_dir: Path) -> None:
    """Checks that the new run has another directory than the recorded one.

    Raises:
        ConfigError: they are the same.
    """
    if os.path.realpath(run_dir) == os.path.realpath(recorded.path):
        raise ConfigError(f"dir={run_dir} is the run that is to be reproduced. Choose another folder.")


def differences(recorded: RecordedRun, description: Description) -> List[Different]:
    """Returns everything that may change the result, and is not as it was."""
    data = fingerprint(description.dataset, open_splits(description.dataset))
    current_meta = {**meta_of_worker(description, recorded), "data": data}
    changed = settings_that_differ(recorded.description, description.config, whole_run=True)
    paths = {f"dataset.{name}" for name in named_paths(description.dataset)}  # their content is compared instead
    settings = [Different(path, short_value(old), short_value(new)) for path, old, new in changed if path not in paths]
    return [*settings, *compare_meta(recorded.meta, current_meta)]


def meta_of_worker(description: Description, recorded: RecordedRun) -> Dict[str, Json]:
    """Returns what worker 0 of the new run would write of itself. Imports MXNet."""
    environment = dict(os.environ)
    cluster = description.cluster
    try:
        if description.kvstore.distributed:
            os.environ[HOST_WORKERS] = str(cluster.workers)  # they share this machine, unless hosts are named
        report = set_environment(description)
        from mxtrain.engine.backend import native_operators  # imports MXNet, which reads the environment

        meta = collect_meta(description, report)
        if recorded.meta.get("asks_for_operators"):  # the new run asks for them only when its network is built
            path = native_operators().path
            meta["own_operators"] = path.name if path else ""
    finally:
        if description.kvstore.distributed:  # each worker sets its own
            os.environ.clear()
            os.environ.update(environment)
    return {**meta, "runtime": recorded.meta.get("runtime")} if cluster.launcher != "local" else meta


def show_differences(changed: Sequence[Different], recorded: RecordedRun) -> None:
    """Prints what differs from the run, before the new one starts."""
    step = recorded.meta.get("resumed_step")
    if step:
        print(
            f"note: {recorded.path} was continued at step {cell_text(step)} by a later command, whose settings are used"
        )
    if not changed:
        print(f"settings, versions, code, data and machine are those of {recorded.path}", flush=True)
        return
    print(f"{count(changed)} from {recorded.path}, and the result may, too:")
    print_rows(("", "then", "now"), rows_of(changed), indent=2)
    threads = next((fact.first for fact in changed if fact.name == "runtime.OMP_NUM_THREADS"), "")
    if threads and threads.isdecimal():
        print(f"runtime.threads={threads} computes with the threads of then.")
    sys.stdout.flush()


def rows_of(changed: Sequence[Different]) -> List[Tuple[str, str, str]]:
    """Returns the rows of a table of differences."""
    return [(one.name, cell_text(one.first), cell_text(one.second)) for one in changed]


def count(changed: Sequence[Different]) -> str:
    """Returns the number of differences in words."""
    return f"{len(changed)} thing{'s' * (len(changed) != 1)} differ{'s' * (len(changed) == 1)}"


def show_results(compared: ResultComparison, tolerance: float, original: Path) -> int:
    """Prints the comparison of the results; returns the exit code."""
    print()
    for line in compared.lines:
        print(line)
    if compared.same:
        print(f"the same result as {original}: weights and metrics are equal to the bit")
        return EXIT_FINISHED
    if compared.differences:
        print_rows(("", "then", "now"), rows_of(compared.differences), indent=2)
    if tolerance and compared.largest is not None and compared.largest <= tolerance:
        print(
            f"the same result as {original} within the tolerance: final metrics differ by {compared.largest:.1e} at "
            f"most (tolerance {tolerance:g})"
        )
        return EXIT_FINISHED
    size = "" if compared.largest is None else f"; final metrics differ by {compared.largest:.1e} at most"
    print(f"NOT the same result as {original}{size} (tolerance {tolerance:g})")
    return EXIT_CRASHED
