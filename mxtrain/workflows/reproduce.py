"""`reproduce`: trains a run again in a new directory, and compares the results to the bit."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Dict, List, Optional, Sequence, Tuple

import pydantic
from typing_extensions import Annotated

from mxtrain.archive.compare import (
    Different,
    ResultComparison,
    compare_meta,
    compare_results,
    short_cell,
    short_value,
)
from mxtrain.archive.meta import RecordedRun
from mxtrain.archive.provenance import collect_meta
from mxtrain.cluster.member import HOST_WORKERS
from mxtrain.data.fingerprint import fingerprint
from mxtrain.data.loading.described_paths import named_paths
from mxtrain.data.spec import open_splits
from mxtrain.errors import EXIT_BUDGET, EXIT_FINISHED, ConfigError
from mxtrain.terminal.tables import rows_text
from mxtrain.training.prepared_run import PreparedRun
from mxtrain.training.resume import settings_that_differ
from mxtrain.types import PathText, Spec

if TYPE_CHECKING:
    from mxtrain.types.annotations import Json


class ReproduceSettings(Spec):
    """Settings of `reproduce`, besides overrides."""

    dir: Optional[PathText] = None
    """The new run directory; by default outputs/DATE/TIME. The same command continues there after an interruption."""
    strict: bool = False
    """Refuses to start, with exit code 2, if anything differs that may change the result."""
    tolerance: Annotated[float, pydantic.Field(ge=0, lt=1)] = 0.0
    """Largest relative difference of final metrics that passes; 0.0: weights, metrics and rows are the same bits."""


@dataclass(frozen=True)
class Conditions:
    """Conditions that can make the results of two runs differ.

    Attributes:
        original: the run that is reproduced.
        differences: settings, versions, code, data and facts of the machine that differ: ``name``, ``first`` (then)
            and ``second`` (now).
    """

    original: RecordedRun
    differences: Sequence[Different]

    def __str__(self) -> str:
        lines: List[str] = []
        step = self.original.meta.get("resumed_step")
        path = self.original.path
        if step:
            lines.append(
                f"note: {path} was continued at step {short_cell(step)} by a later command, whose settings are used"
            )
        if not self.differences:
            return "\n".join([*lines, f"settings, versions, code, data and machine are those of {path}"])
        lines.append(f"{count(self.differences)} from {path}, and the result may, too:")
        lines.append(rows_text(("", "then", "now"), rows_of(self.differences), indent=2))
        threads = next((one.first for one in self.differences if one.name == "runtime.OMP_NUM_THREADS"), "")
        if threads and threads.isdecimal():
            lines.append(f"runtime.threads={threads} computes with the threads of then.")
        return "\n".join(lines)


@dataclass(frozen=True)
class ReproduceResult:
    """Result of `reproduce`.

    Attributes:
        original: run directory of the run that was reproduced.
        path: run directory of the new run.
        exit_code: exit code of the new run, as for ``mxtrain train``.
        cause: why the new run ended before its end; else empty.
        conditions: what differed before the start.
        results: comparison of the results; None if the new run did not finish.
        tolerance: largest relative difference of final metrics that passes.
    """

    original: Path
    path: Path
    exit_code: int
    cause: str
    conditions: Conditions
    results: Optional[ResultComparison]
    tolerance: float

    @property
    def same(self) -> bool:
        """True if weights, final metrics and all rows are equal to the bit."""
        return self.results is not None and self.results.same

    @property
    def passed(self) -> bool:
        """True if the results are the same, or final metrics differ by at most the tolerance."""
        if self.results is None:
            return False
        largest = self.results.largest
        return self.same or (self.tolerance > 0 and largest is not None and largest <= self.tolerance)

    def __str__(self) -> str:
        if self.results is None:
            return f"the run did not finish, so nothing is compared with {self.original}"
        lines = list(self.results.lines)
        if self.same:
            return "\n".join([*lines, f"the same result as {self.original}: weights and metrics are equal to the bit"])
        if self.results.differences:
            lines.append(rows_text(("", "then", "now"), rows_of(self.results.differences), indent=2))
        largest = self.results.largest
        if self.passed:
            lines.append(
                f"the same result as {self.original} within the tolerance: final metrics differ by {largest:.1e} at "
                f"most (tolerance {self.tolerance:g})"
            )
        else:
            size = "" if largest is None else f"; final metrics differ by {largest:.1e} at most"
            lines.append(f"NOT the same result as {self.original}{size} (tolerance {self.tolerance:g})")
        return "\n".join(lines)

    __repr__ = __str__


def reproduce_run(
    original: RecordedRun,
    run: PreparedRun,
    settings: ReproduceSettings,
    report: Callable[[Conditions], object] = lambda conditions: None,
) -> ReproduceResult:
    """Compares the conditions, trains, and compares the results.

    Args:
        original: the run that is reproduced.
        run: the new run, with the description of the original one.
        settings: settings of the comparison.
        report: called with the conditions before the training starts.

    Raises:
        ConfigError: the new run has the directory of the original one, or something differs and `settings.strict` is
            set. Nothing was started.
        MxtrainError: the new run could not start.
    """
    if os.path.realpath(run.run_dir) == os.path.realpath(original.path):
        raise ConfigError(f"dir={run.run_dir} is the run that is to be reproduced. Choose another folder.")
    conditions = Conditions(original, differences(original, run))
    report(conditions)
    if conditions.differences and settings.strict:
        raise ConfigError(
            f"strict=true, and {count(conditions.differences)} from {original.path}. Nothing was started."
        )
    end = run.train()
    finished = end.exit_code in (EXIT_FINISHED, EXIT_BUDGET)  # the limit that ended it is part of the description
    results = compare_results(original.path, Path(end.run_dir)) if finished else None
    path = Path(end.run_dir)
    return ReproduceResult(original.path, path, end.exit_code, end.cause, conditions, results, settings.tolerance)


def differences(original: RecordedRun, run: PreparedRun) -> List[Different]:
    """Returns all conditions that may change the result and differ from the original run. Imports MXNet."""
    dataset, config = run.description.dataset, run.description.config
    current_meta = {**meta_of_worker(run, original), "data": fingerprint(dataset, open_splits(dataset))}
    changed = settings_that_differ(original.description, config, whole_run=True)
    paths = {f"dataset.{name}" for name in named_paths(dataset)}  # the contents of the files are compared instead
    settings = [Different(path, short_value(old), short_value(new)) for path, old, new in changed if path not in paths]
    return [*settings, *compare_meta(original.meta, current_meta)]


def meta_of_worker(run: PreparedRun, original: RecordedRun) -> Dict[str, Json]:
    """Returns the meta.json that worker 0 of the new run would write. Imports MXNet."""
    environment = dict(os.environ)
    cluster, is_distributed = run.description.cluster, run.description.kvstore.distributed
    try:
        if is_distributed:
            os.environ[HOST_WORKERS] = str(cluster.workers)  # workers share this machine, unless hosts are named
        report = run.set_environment()
        from mxtrain.engine.backend import native_operators  # imports MXNet, which reads the environment

        meta = collect_meta(run.description, report)
        if original.meta.get("asks_for_operators"):  # the new run asks for them only when its network is built
            path = native_operators().path
            meta["own_operators"] = path.name if path else ""
    finally:
        if is_distributed:  # each worker sets its own variables
            os.environ.clear()
            os.environ.update(environment)
    return {**meta, "runtime": original.meta.get("runtime")} if cluster.launcher != "local" else meta


def rows_of(changed: Sequence[Different]) -> List[Tuple[str, str, str]]:
    """Returns the rows of a table of differences."""
    return [(one.name, short_cell(one.first), short_cell(one.second)) for one in changed]


def count(changed: Sequence[Different]) -> str:
    """Returns the number of differences in words."""
    return f"{len(changed)} thing{'s' * (len(changed) != 1)} differ{'s' * (len(changed) == 1)}"
