"""Continues a study that Optuna keeps in a storage: the jobs of its earlier calls, wherever they ran."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Sequence

from mxtrain.cli.outcome import Outcome, read_outcomes
from mxtrain.errors import ConfigError

if TYPE_CHECKING:
    from omegaconf import DictConfig

FOLDERS = "mxtrain.sweep_dirs"
"""The attribute of a study that lists the folders of its sweeps."""


@dataclass(frozen=True)
class StoredStudy:
    """A study of the sweeper's settings, which later calls go on with.

    Attributes:
        name: `hydra.sweeper.study_name`.
        storage: `hydra.sweeper.storage`, e.g. sqlite:///study.db.
    """

    name: str
    storage: str

    @classmethod
    def of(cls, sweeper: DictConfig) -> Optional[StoredStudy]:
        """The study of these settings; None if nothing is kept, or nothing that a later call finds."""
        name, storage = sweeper.get("study_name"), sweeper.get("storage")
        is_kept = "optuna" in str(sweeper.get("_target_")) and isinstance(name, str) and isinstance(storage, str)
        return cls(name, storage) if is_kept else None

    def load(self) -> Any:
        """Optuna's study, or None if no call has begun it.

        Raises:
            ConfigError: the storage cannot be opened.
        """
        import optuna
        import sqlalchemy

        try:
            return optuna.load_study(study_name=self.name, storage=self.storage)
        except KeyError:
            return None
        except (optuna.exceptions.OptunaError, sqlalchemy.exc.SQLAlchemyError, ImportError) as error:
            reason = str(error).strip().splitlines()[0].rstrip(".")
            raise ConfigError(f"hydra.sweeper.storage={self.storage} cannot be opened: {reason}.") from error

    def folders(self) -> List[Path]:
        """The folders of earlier calls, the oldest first."""
        study = self.load()
        return [] if study is None else [Path(folder) for folder in study.user_attrs.get(FOLDERS, [])]

    def note(self, folder: Path) -> None:
        """Adds the folder of a call, which later ones look into."""
        study, own = self.load(), str(folder.resolve())
        if study is not None and own not in study.user_attrs.get(FOLDERS, []):
            study.set_user_attr(FOLDERS, [*study.user_attrs.get(FOLDERS, []), own])

    def remark(self, outcomes: Sequence[Outcome], direction: str) -> str:
        """A sentence on a better trial than all these, whose folder is gone or unknown; else an empty string."""
        study = self.load()
        sign = 1.0 if direction == "max" else -1.0
        finished = [trial for trial in study.trials if trial.state.name == "COMPLETE"] if study is not None else []
        if not finished:
            return ""
        best = max(finished, key=lambda trial: sign * trial.value)
        if any(one.best is not None and sign * float(one.best["value"]) >= sign * best.value for one in outcomes):
            return ""
        given = ", ".join(f"{name}={value}" for name, value in best.params.items())
        return f"the best trial of the study {self.name} is number {best.number} with {best.value:.6g} ({given}); " \
            "the folder of its run is not known"  # fmt: skip


def earlier_outcomes(folders: Sequence[Path], file_name: str, until: int) -> List[Outcome]:
    """Reads the outcomes of the jobs of earlier calls, one for each run directory.

    Args:
        folders: of sweeps; the last one is that of this call.
        file_name: of their list of jobs.
        until: byte of the last folder's list at which this call begins.
    """
    found: Dict[str, Outcome] = {}
    for folder in dict.fromkeys(folder.resolve() for folder in folders):
        end = until if folder == folders[-1].resolve() else None
        for outcome in read_outcomes(folder / file_name, 0, end):
            found[outcome.run_dir] = replace(outcome, before=True)
    return list(found.values())


@contextmanager
def jobs_numbered_from(first: int) -> Iterator[None]:
    """Makes Hydra's launchers number the jobs of any sweeper from `first` on, until the context ends."""
    from hydra.core.plugins import Plugins

    plugins = Plugins.instance()
    original = plugins.instantiate_launcher

    def instantiate(*args: Any, **kwargs: Any) -> Any:
        launcher = original(*args, **kwargs)
        launch = launcher.launch

        def launch_later(job_overrides: Any, initial_job_idx: int) -> Any:
            return launch(job_overrides, initial_job_idx=initial_job_idx + first)

        launcher.launch = launch_later
        return launcher

    if first == 0:
        yield
        return
    plugins.instantiate_launcher = instantiate
    try:
        yield
    finally:
        delattr(plugins, "instantiate_launcher")
