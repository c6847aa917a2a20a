"""Trials of a study: Optuna's storage, and the progress that run directories report.

A worker holds flock on a file of its trial, and the run inherits the descriptor, so a trial is free exactly if neither
lives. A rung is a budget within a schedule of fixed length: a smaller `max_epochs` would change the schedule. Pruned
trials are not resumed, because Optuna cannot continue a reported trial.
"""

from __future__ import annotations

import logging
import os
import warnings
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Callable, Iterator, List, Mapping, Optional, Sequence, Union

from mxtrain.archive.run_files import PRUNED, STATUS_FILE
from mxtrain.archive.run_records import read_meta_object
from mxtrain.archive.status import DAMAGED, read_status, read_status_object
from mxtrain.config.libraries import missing_message, require_library
from mxtrain.config.secret_values import hide_secrets
from mxtrain.errors import EXIT_BUDGET, EXIT_FINISHED, EXIT_NON_FINITE, ConfigError, did_you_mean
from mxtrain.files.durable import open_file, write_json_atomic
from mxtrain.files.json_text import parse_json
from mxtrain.files.regular_files import open_regular
from mxtrain.tuning.file_lock import FileLock
from mxtrain.tuning.folder import JOURNAL, StudyDescription, StudyFolder
from mxtrain.tuning.samplers import build_sampler, distribution_of
from mxtrain.tuning.space import Space, Value, Values, setting_of
from mxtrain.tuning.spec import TuneSettings, first_rung

if TYPE_CHECKING:
    import optuna

    from mxtrain.types.annotations import JsonObject

SAMPLER_LIBRARIES = {"cmaes": (("cmaes", "tune"),), "gp": (("torch", "gp"), ("scipy", "gp"))}
"""Modules that some samplers need besides Optuna, and the extra of each."""
DATABASES = ("postgresql", "mysql", "mariadb", "sqlite", "oracle", "mssql")
DRIVERS = {"psycopg2": "psycopg2-binary", "psycopg": "psycopg[binary]", "MySQLdb": "mysqlclient"}
"""Modules of database drivers whose packages have other names."""
MAX_ENTRY_BYTES = 1 << 24
SPEED = "samples_per_s"
"""Objective that is not a metric: the training throughput."""


def require_optuna() -> None:
    """Raises a `ConfigError` if Optuna is not installed or in another version."""
    optuna = require_library("optuna", "tune", "tune", ConfigError)
    # Optuna and Alembic would write lines between those of the progress.
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    logging.getLogger("alembic").setLevel(logging.WARNING)


def require_sampler_libraries(sampler: str) -> None:
    """Raises a `ConfigError` if a package that only this sampler needs is not installed."""
    for module, extra in SAMPLER_LIBRARIES.get(sampler, ()):
        require_library(module, extra, f"sampler={sampler}", ConfigError)


def read_journal(folder: StudyFolder) -> List[JsonObject]:
    """Reads the journal of a study; a missing one is empty, and an incomplete last line is skipped.

    Raises:
        ConfigError: a line is not one of Optuna's, or the file cannot be read.
    """
    file = folder.path / JOURNAL
    entries: List[JsonObject] = []
    try:
        with open_regular(file) as (stream, _):
            for number, line in enumerate(iter(lambda: stream.readline(MAX_ENTRY_BYTES), b""), start=1):
                try:
                    entry = parse_json(line, allow_nan=True)
                except ValueError as error:
                    if not line.endswith(b"\n") and len(line) < MAX_ENTRY_BYTES:
                        break  # a process was writing it when its machine stopped
                    raise damaged_journal(folder, f", line {number} {error}") from None
                if not isinstance(entry, dict) or not isinstance(entry.get("op_code"), int):
                    raise damaged_journal(folder, f", line {number} is not an entry of Optuna")
                if line.endswith(b"\n"):
                    entries.append(entry)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}.") from error
    return entries


def damaged_journal(folder: StudyFolder, reason: str) -> ConfigError:
    """Returns the error for a journal that cannot be read.

    Args:
        folder: folder of the study.
        reason: continues the path of the file.
    """
    return ConfigError(
        f"{folder.path / JOURNAL}{reason}. Remove this file, then type `mxtrain tune {folder.path}`: it takes the "
        "trials and their results from the run directories."
    )


def open_storage(folder: StudyFolder, url: Optional[str], writes: bool = True) -> Any:
    """Opens Optuna's storage: the database at `url`, or the journal in the study's folder.

    Args:
        folder: folder of the study.
        url: URL of a database.
        writes: False to leave the folder as it is; changes of the study are then kept in memory.

    Raises:
        ConfigError: the storage cannot be opened.
    """
    if url is None:
        return _open_journal(folder, writes)
    import optuna

    try:
        return optuna.storages.RDBStorage(url)
    except Exception as error:  # database drivers raise errors of many unrelated classes
        # Without the cause: messages of database drivers may repeat the URL with its password.
        raise ConfigError(hide_secrets(database_error(url, error))) from None


class JournalLock:
    """Lock for Optuna's journal that the kernel releases.

    Optuna's own locks are files. A killed process leaves its file behind, and all others then wait 30 seconds.
    """

    def __init__(self, folder: StudyFolder) -> None:
        self._journal = folder.path / JOURNAL
        self._lock = FileLock(folder.path / f"{JOURNAL}.lock")

    def acquire(self) -> bool:
        """Waits for the lock, and removes an incomplete last line of the journal. Optuna calls it."""
        self._lock.acquire()
        cut_partial_line(self._journal)
        return True

    def release(self) -> None:
        """Releases the lock. Optuna calls it."""
        self._lock.release()


def _open_journal(folder: StudyFolder, writes: bool) -> Any:
    """Opens the journal in the study's folder; see `open_storage`."""
    import optuna
    from optuna.storages.journal import BaseJournalBackend, JournalFileBackend

    class JournalCopy(BaseJournalBackend):
        """Journal in memory."""

        def __init__(self, entries: List[JsonObject]) -> None:
            self._entries = entries

        def read_logs(self, log_number_from: int) -> List[JsonObject]:
            return self._entries[log_number_from:]

        def append_logs(self, logs: List[JsonObject]) -> None:
            self._entries.extend(logs)

    file = folder.path / JOURNAL
    entries = read_journal(folder)
    try:
        if not writes:
            return optuna.storages.JournalStorage(JournalCopy(entries))
        os.close(open_file(file, os.O_WRONLY | os.O_CREAT))  # refuses links
        lock = JournalLock(folder)
        # Removes an incomplete last line before Optuna reads the file.
        lock.acquire()
        lock.release()
        return optuna.storages.JournalStorage(JournalFileBackend(str(file), lock))
    except OSError as error:
        raise ConfigError(f"{file} cannot be opened: {_first_line(error)}.") from error
    except Exception as error:  # entries that contradict each other raise errors of many unrelated classes
        raise damaged_journal(folder, f" cannot be read: {type(error).__name__}: {error}") from error


def database_error(url: str, error: BaseException) -> str:
    """Returns the message for a database that cannot be opened: the nearest name of a database, or the package of its
    driver. The URL in it may hold a password.

    Args:
        url: URL of the database.
        error: error of Optuna.
    """
    scheme, separator, _ = url.partition("://")
    database = scheme.partition("+")[0]
    if separator and database not in DATABASES:
        near = did_you_mean(f"{database}://", [f"{name}://" for name in DATABASES])
        return f"storage={url}: there is no database '{database}://'.{near} Databases: {', '.join(DATABASES)}."
    causes = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None:
        causes.append(cause)
    missing = [cause for cause in causes if isinstance(cause, ImportError)]
    if missing:  # the last one names the module of the driver; Optuna wraps it
        module = missing[-1].name or scheme
        return missing_message(missing[-1], DRIVERS.get(module, module), f"storage={scheme}://")
    return f"storage={url} cannot be opened: {_first_line(error)}."


def _first_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return lines[0].strip().rstrip(".")


def cut_partial_line(file: Path) -> None:
    """Removes an incomplete last line of the journal, which a process was writing when its machine stopped.

    The caller must hold the lock.
    """
    fd = open_file(file, os.O_RDWR)
    try:
        end = os.fstat(fd).st_size
        num_kept = end
        while num_kept > 0:
            start = max(num_kept - 4096, 0)
            position = os.pread(fd, num_kept - start, start).rfind(b"\n")
            if position >= 0:
                num_kept = start + position + 1
                break
            num_kept = start
        if num_kept < end:
            os.ftruncate(fd, num_kept)
    finally:
        os.close(fd)


def build_pruner(settings: TuneSettings, max_epochs: Optional[int], val_interval: int = 1) -> optuna.pruners.BasePruner:
    """Builds Optuna's pruner. Budgets are in the unit of the rungs: epochs, or steps with `min_steps`."""
    import optuna

    first = first_rung(settings, max_epochs, val_interval)
    if settings.pruner == "asha":
        return optuna.pruners.SuccessiveHalvingPruner(first, settings.reduction)
    if settings.pruner == "hyperband":
        # The number of steps of a whole trial is unknown before its data are open.
        longest = max_epochs if settings.min_steps is None and max_epochs else "auto"
        return seeded_hyperband(settings.seed, first, longest, settings.reduction)
    if settings.pruner == "median":
        return optuna.pruners.MedianPruner(n_startup_trials=4)
    return optuna.pruners.NopPruner()


def seeded_hyperband(seed: int, first: int, longest: Union[int, str], reduction: int) -> optuna.pruners.BasePruner:
    """Builds Optuna's Hyperband pruner with brackets that are drawn by the seed.

    Optuna draws the bracket of a trial by its number and the name of the study, which is random.
    """
    import optuna

    class SeededHyperband(optuna.pruners.HyperbandPruner):
        def _get_bracket_id(self, study: Any, trial: Any) -> int:
            return super()._get_bracket_id(SimpleNamespace(study_name=f"seed {seed}"), trial)

    return SeededHyperband(first, longest, reduction)


class Study:
    """Optuna's study with the sampler and pruner of its folder. All changes of the study go through this class.

    Args:
        folder: folder of the study.
        description: its description.
        writes: False to leave the folder as it is, which may be read-only.

    Raises:
        ConfigError: the storage cannot be opened.
    """

    def __init__(self, folder: StudyFolder, description: StudyDescription, writes: bool = True) -> None:
        import optuna

        self.description = description
        storage = open_storage(folder, description.settings.storage, writes)
        directions = ["maximize" if direction == "max" else "minimize" for direction in description.directions]
        with quiet():
            self.optuna = optuna.create_study(
                storage=storage,
                study_name=description.name,
                directions=directions,
                load_if_exists=True,
                pruner=build_pruner(description.settings, description.max_epochs, description.val_interval),
            )

    @property
    def trials(self) -> List[Any]:
        """Returns Optuna's frozen trials, by number."""
        return list(self.optuna.get_trials(deepcopy=False))

    @property
    def stop_cause(self) -> str:
        """Returns why all workers must stop (a trial with invalid input); empty if they continue."""
        return str(self.optuna.user_attrs.get("stop_cause", ""))

    def set_stop_cause(self, cause: str) -> None:
        """Makes all workers stop; an empty cause lets them continue."""
        self.optuna.set_user_attr("stop_cause", cause)

    def ask(self) -> Any:
        """Creates a new trial; its values have not been drawn yet."""
        self._set_sampler(len(self.trials))
        return self.optuna.ask()

    def restore(self, values: Values) -> Any:
        """Creates a trial with given values, e.g. those of a run directory that is not in the storage.

        Raises:
            ValueError: the space does not have these values.
        """
        import optuna

        settings = [setting for setting in self.description.space.parameters if setting.key in values]
        template = optuna.trial.create_trial(
            state=optuna.trial.TrialState.RUNNING,
            params=dict(values),
            distributions={setting.key: distribution_of(setting) for setting in settings},
        )
        self.optuna.add_trial(template)
        return self.adopt(self.trials[-1])

    def adopt(self, frozen: Any) -> Any:
        """Returns a trial that another worker created, so that this one can continue it."""
        import optuna

        self._set_sampler(frozen.number)
        # Optuna has no public way to continue a trial that another process has created.
        return optuna.trial.Trial(self.optuna, frozen._trial_id)

    def _set_sampler(self, number: int) -> None:
        self.optuna.sampler = build_sampler(self.description.settings, self.description.space, number)

    def tell(self, trial: Any, state: str, values: Optional[Sequence[float]] = None, cause: str = "") -> None:
        """Ends a trial. Does nothing if it has already ended.

        Args:
            trial: trial from `ask` or `adopt`.
            state: COMPLETE, PRUNED or FAIL.
            values: values of the objectives, for COMPLETE.
            cause: reason of a failure.
        """
        import optuna

        if cause:
            trial.set_user_attr("cause", cause)
        with quiet():
            self.optuna.tell(
                trial,
                list(values) if values is not None else None,
                state=optuna.trial.TrialState[state],
                # A worker may be killed after this call, and the next one repeats it.
                skip_if_finished=True,
            )


@contextmanager
def quiet() -> Iterator[None]:
    """Suppresses Optuna's warnings about experimental features."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


# Progress of a trial, as recorded in its run directory.


@dataclass(frozen=True)
class TrialProgress:
    """Progress of the run of a trial, from its status.json.

    Attributes:
        exit_code: exit code of its last process; None while it runs or if it was killed.
        epoch: number of finished epochs.
        step: number of finished steps.
        metrics: last measured values by name.
        best: best value of `trainer.monitor`; None if it was not measured.
        speed: throughput in samples per second.
        cause: reason of its end.
    """

    exit_code: Optional[int] = None
    epoch: int = 0
    step: int = 0
    metrics: Mapping[str, Optional[float]] = field(default_factory=dict)
    best: Optional[float] = None
    speed: Optional[float] = None
    cause: str = ""

    def reached(self, settings: TuneSettings, budget: Optional[int]) -> bool:
        """Returns True if the run has reached the end of a rung, or its own end."""
        if self.exit_code == EXIT_FINISHED:
            return True
        if self.exit_code != EXIT_BUDGET or budget is None:
            return False
        return (self.step if settings.min_steps else self.epoch) >= budget

    @property
    def is_failure(self) -> bool:
        """Returns True if the run failed in a way that would happen again: its loss was not finite."""
        return self.exit_code == EXIT_NON_FINITE

    def values(self, description: StudyDescription, last: bool = False) -> Optional[List[float]]:
        """Returns the results of a finished run, one for each objective; None if one was never measured.

        Args:
            description: description of the study.
            last: True to use the last value of a single objective instead of its best value.
        """
        names = description.objectives
        # Bests of several objectives may be of different epochs, so no network has these values together.
        takes_best = len(names) == 1 and not last
        results = [self.best if takes_best and name != SPEED else self.value_of(name) for name in names]
        measured = [float(value) for value in results if value is not None]
        return measured if len(measured) == len(results) else None

    def value_of(self, name: str) -> Optional[float]:
        """Returns the last measured value of an objective; None if there is none."""
        return self.speed if name == SPEED else self.metrics.get(name)


def note_pruned(run_dir: Path, cause: str) -> None:
    """Replaces the state in status.json of a trial, which its run has left as interrupted, by `pruned`.

    A file that cannot be read or written stays as it is: the study itself knows that the trial was pruned.
    """
    status = read_status_object(run_dir)
    if status:
        with suppress(OSError):
            write_json_atomic(run_dir / STATUS_FILE, {**status, "state": PRUNED, "cause": cause}, durable=False)


def read_progress(run_dir: Path) -> TrialProgress:
    """Reads status.json. A missing or damaged file means no progress."""
    status = read_status(run_dir)
    if status is None or status.state == DAMAGED:
        return TrialProgress()
    return TrialProgress(
        exit_code=status.exit_code,
        epoch=status.epoch,
        step=status.step,
        metrics=status.metrics,
        best=status.best,
        speed=status.samples_per_s,
        cause=status.cause,
    )


def recorded_values(run_dir: Path, space: Space) -> Values:
    """Returns the values with which the run of a trial was started, from its meta.json; empty if there are none."""
    types: Mapping[str, Callable[[str], Value]] = {"choice": str, "int": int, "float": float}
    try:
        argv = read_meta_object(run_dir).get("argv")
        words = dict(word.split("=", 1) for word in argv if "=" in word) if isinstance(argv, list) else {}
        values: Values = {}
        for setting in space.parameters:
            if setting_of(setting.key) in words and setting.exists_with(values):
                values[setting.key] = types[setting.kind](words[setting_of(setting.key)])
        return values
    except (OSError, ValueError, TypeError, AttributeError):  # missing or damaged
        return {}
