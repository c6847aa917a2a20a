"""Folder of a study: its description, trials and locks."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from mxtrain.checkpoint import refuse_links
from mxtrain.checkpoint.run_directory import is_locked
from mxtrain.config.secret_values import hide_secrets
from mxtrain.config.specs import shown, validate
from mxtrain.errors import ConfigError, RunDirectoryError
from mxtrain.files.durable import write_json_atomic
from mxtrain.files.json_form import require_form, unknown_keys
from mxtrain.files.json_text import read_json
from mxtrain.tuning.file_lock import FileLock
from mxtrain.tuning.space import Space, Value, overrides_of_trial
from mxtrain.tuning.spec import TuneSettings, budget_text, rung_budget

if TYPE_CHECKING:
    from mxtrain.types.annotations import JsonForm, JsonObject

STUDY_FILE = "study.json"
JOURNAL = "journal.log"
CLAIMS, LOGS, SEEDS = ".claims", "logs", ".seeds"
WRITTEN = (STUDY_FILE, JOURNAL, f"{JOURNAL}.lock", CLAIMS, LOGS, SEEDS, ".study.lock")
"""Files and folders that workers write; SEEDS holds the checkpoints that members of a population have taken over."""
_FORM: Dict[str, JsonForm] = {
    "name": str,
    "flags": [str],
    "overrides": [str],
    "working_folder": str,
    "settings": dict,
    "space": list,
    "objectives": [str],
    "directions": [str],
    "max_epochs": (int, type(None)),
    "val_interval?": int,
}


@dataclass(frozen=True)
class StudyDescription:
    """Everything that is fixed when a study begins; only `settings.n_trials` may change later.

    Attributes:
        name: name of Optuna's study; a database may hold several.
        flags: command-line flags that select the user's configuration.
        overrides: overrides of all trials.
        working_folder: folder against which relative paths in overrides are resolved.
        settings: settings of the command.
        space: settings that differ between trials.
        objectives: values to improve, e.g. val/accuracy.
        directions: "min" or "max" for each.
        max_epochs: `trainer.max_epochs` of a whole trial.
        val_interval: interval of validations in the unit of the rungs; 1 if it has another unit.
    """

    name: str
    flags: Sequence[str]
    overrides: Sequence[str]
    working_folder: str
    settings: TuneSettings
    space: Space
    objectives: Sequence[str]
    directions: Sequence[str]
    max_epochs: Optional[int]
    val_interval: int = 1

    def budget(self, rung: int) -> Optional[int]:
        """Returns the budget of a rung; None for the last one."""
        return rung_budget(self.settings, self.max_epochs, rung, self.val_interval)

    def arguments(self, values: Mapping[str, Value], run_dir: Path, budget: Optional[int]) -> List[str]:
        """Returns the arguments of `mxtrain train` for a trial."""
        from mxtrain.config.override_text import quote

        limit = budget_text(self.settings, budget)
        path = str(run_dir)
        plain = path if path.replace("/", "").replace("-", "").replace("_", "").isalnum() else quote(path)
        return [
            *self.flags,
            *self.overrides,
            *overrides_of_trial(values),
            *([limit] if limit else []),
            f"hydra.run.dir={plain}",
        ]

    def to_json(self) -> JsonObject:
        """Returns the content of `study.json`."""
        return {
            "name": self.name,
            "flags": list(self.flags),
            "overrides": list(self.overrides),
            "working_folder": self.working_folder,
            "settings": self.settings.model_dump(),
            "space": self.space.to_json(),
            "objectives": list(self.objectives),
            "directions": list(self.directions),
            "max_epochs": self.max_epochs,
            "val_interval": self.val_interval,
        }

    @classmethod
    def from_json(cls, content: Any) -> StudyDescription:
        """Reads the content of `study.json`.

        Raises:
            ValueError, ConfigError: the content is not the description of a study.
        """
        require_form(content, _FORM)
        for name in unknown_keys(content, _FORM):
            raise ValueError(f"has the unknown field {name}")
        objectives, directions = content["objectives"], content["directions"]
        if not objectives or len(directions) != len(objectives) or not {*directions} <= {"min", "max"}:
            raise ValueError(
                f"has the objectives {objectives}, and for each must have min or max in 'directions', not {directions}"
            )
        settings = validate(TuneSettings, content["settings"], "tune", lambda _: STUDY_FILE)
        space = Space.from_json(content["space"])
        fields = {key: content[key] for key in _FORM if not key.endswith("?")}
        interval = max(1, content.get("val_interval") or 1)  # older studies have none
        return cls(**{**fields, "settings": settings, "space": space, "val_interval": interval})

    def differences(self, other: StudyDescription) -> List[str]:
        """Returns one line for each setting of another description that changes the trials."""
        pairs: List[Tuple[str, object, object]] = []
        for name in ("flags", "overrides", "objectives"):
            before, after = list(getattr(self, name)), list(getattr(other, name))
            # The order of overrides matters when both have the same ones, so both lists are shown whole then.
            if before != after and sorted(before) != sorted(after):  # show only the overrides that differ
                before, after = (
                    [word for word in before if word not in after],
                    [word for word in after if word not in before],
                )
            pairs.append((name, before, after))
        ranges = [{one.key: one.range_text() for one in study.space.parameters} for study in (self, other)]
        for key in dict.fromkeys([*ranges[0], *ranges[1]]):
            before, after = ([found[key]] if key in found else [] for found in ranges)
            pairs.append((key, before, after))
        for name, value in self.settings:
            if name not in ("n_trials", "space"):
                pairs.append((name, value, getattr(other.settings, name)))
        changed = [pair for pair in pairs if pair[1] != pair[2]]
        return [f"  {name}: was {_short(before)}, now {_short(after)}" for name, before, after in changed]


def _short(value: Any) -> str:
    return (" ".join(value) or "not given") if isinstance(value, list) else shown(value)


class StudyFolder:
    """A folder for a study, which may not exist yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = FileLock(path / ".study.lock")
        """Lock for selecting the next trial and for changing study.json."""

    @property
    def exists(self) -> bool:
        """Returns True if the folder holds a study."""
        return (self.path / STUDY_FILE).is_file()

    def read(self) -> StudyDescription:
        """Reads the description of the study.

        Raises:
            ConfigError: there is no study, or it cannot be read.
        """
        file = self.path / STUDY_FILE
        if not self.exists:
            raise ConfigError(
                f"{self.path}: there is no study in this folder ({STUDY_FILE} is missing). `mxtrain tune {self.path} "
                "RANGES n_trials=20` begins one."
            )
        try:
            return StudyDescription.from_json(read_json(file))
        except (OSError, ValueError) as error:
            raise ConfigError(f"{file} {error}. It describes no study of this version.") from None

    def refuse_other_content(self) -> None:
        """Checks that the folder holds nothing but a study.

        Raises:
            ConfigError: it is a file, or holds other files.
        """
        if self.path.exists() and not self.path.is_dir():
            raise ConfigError(f"{self.path} is a file: a study needs a folder of its own.")
        if self.path.is_dir() and not self.exists and any(self.path.iterdir()):
            raise ConfigError(f"{self.path} holds other files and no study. Name a new or empty folder.")

    def create(self, description: StudyDescription) -> StudyDescription:
        """Creates the folder and its files; keeps files that another command has created at the same time.

        Returns:
            The description, with the name and the number of trials of an existing study. Nothing else is read from its
            file, which may be untrusted.

        Raises:
            ConfigError: another study began here meanwhile, or the folder cannot be written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.refuse_links()
            for name in (CLAIMS, LOGS):
                (self.path / name).mkdir(exist_ok=True)
            # Several workers may begin the same study at once; the first one writes its description.
            with self.lock:
                if self.exists:
                    found = self.refuse_difference(description)
                    settings = description.settings.model_copy(update={"n_trials": found.settings.n_trials})
                    return replace(description, name=found.name, settings=settings)
                write_json_atomic(self.path / STUDY_FILE, description.to_json())
                return description
        except OSError as error:
            raise ConfigError(f"{self.path}: the study cannot be kept there: {error.strerror}.") from error

    def refuse_links(self) -> None:
        """Checks that none of the files that workers write is a link, which may lead to files of the user.

        Raises:
            ConfigError: one is.
        """
        try:
            refuse_links(self.path, WRITTEN)
        except RunDirectoryError as error:
            raise ConfigError(str(error)) from None

    def refuse_difference(self, description: StudyDescription) -> StudyDescription:
        """Checks that the study in the folder has the given description, and returns its own.

        Raises:
            ConfigError: it differs; the message lists the differences.
        """
        found = self.read()
        lines = found.differences(description)
        if lines:
            raise ConfigError(
                f"the study in {self.path} was begun with other settings:\n" + hide_secrets("\n".join(lines)) + "\n"
                f"`mxtrain tune {self.path}` alone continues it; another study needs another folder."
            )
        return found

    def set_n_trials(self, description: StudyDescription, n_trials: int) -> StudyDescription:
        """Changes the total number of trials, which running workers notice; returns the new description."""
        settings = description.settings.model_copy(update={"n_trials": n_trials})
        changed = replace(description, settings=settings)
        with self.lock:
            write_json_atomic(self.path / STUDY_FILE, changed.to_json())
        return changed

    def run_dir(self, name: Union[int, str]) -> Path:
        """Returns a run directory by trial number, or by name if a trial has several."""
        return Path(os.path.abspath(self.path / str(name)))

    def claim(self, number: int) -> FileLock:
        """Returns the lock of a trial. Its worker and the training process both hold it."""
        return FileLock(self.path / CLAIMS / str(number))

    def log(self, number: int) -> Path:
        """Returns the file with the output of the processes of a trial."""
        return self.path / LOGS / f"{number}.txt"

    def is_claimed(self, number: int) -> bool:
        """Returns True if a process trains this trial now."""
        return is_locked(self.path / CLAIMS, str(number), may_be_empty=True)
