"""The folder of a study: what it tries, and where its trials and locks are."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from mxtrain.checkpoint import refuse_links
from mxtrain.config.specs import shown, validate
from mxtrain.errors import ConfigError, MxtrainError
from mxtrain.files.durable import write_json_atomic
from mxtrain.files.json_form import problems_of
from mxtrain.files.json_text import read_json
from mxtrain.tuning.file_lock import FileLock
from mxtrain.tuning.settings import TuneSettings, budget_text, rung_budget
from mxtrain.tuning.space import Space, Value, override_words

if TYPE_CHECKING:
    from mxtrain.annotations import JsonObject, Wanted

STUDY_FILE = "study.json"
JOURNAL = "journal.log"
CLAIMS, LOGS = ".claims", "logs"
_FORM: Dict[str, Wanted] = {
    "name": str, "flags": [str], "overrides": [str], "working_folder": str, "settings": dict, "space": list,
    "objectives": [str], "directions": [str], "max_epochs": (int, type(None)),
}  # fmt: skip


@dataclass(frozen=True)
class StudyDescription:
    """All that is fixed when a study begins; only `settings.n_trials` may change later.

    Attributes:
        name: of Optuna's study; a database holds many.
        flags: that bring in the user's own configuration.
        overrides: that every trial has.
        working_folder: in which relative paths of the overrides are resolved.
        settings: of the command.
        space: settings that differ between trials.
        objectives: values to improve, e.g. val/accuracy.
        directions: "min" or "max" for each.
        max_epochs: `trainer.max_epochs` of a whole trial.
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

    def budget(self, rung: int) -> Optional[int]:
        """The budget of a rung; None for the last one."""
        return rung_budget(self.settings, self.max_epochs, rung)

    def words(self, values: Mapping[str, Value], run_dir: Path, budget: Optional[int]) -> List[str]:
        """What follows `python -m mxtrain train` for a trial."""
        from mxtrain.config.override_text import quote

        limit = budget_text(self.settings, budget)
        where = str(run_dir)
        plain = where if where.replace("/", "").replace("-", "").replace("_", "").isalnum() else quote(where)
        return [*self.flags, *self.overrides, *override_words(values), *([limit] if limit else []),
                f"hydra.run.dir={plain}"]  # fmt: skip

    def to_json(self) -> JsonObject:
        """For `study.json`."""
        return {
            "name": self.name, "flags": list(self.flags), "overrides": list(self.overrides),
            "working_folder": self.working_folder, "settings": self.settings.model_dump(),
            "space": self.space.to_json(), "objectives": list(self.objectives),
            "directions": list(self.directions), "max_epochs": self.max_epochs,
        }  # fmt: skip

    @classmethod
    def from_json(cls, given: Any) -> StudyDescription:
        """Raises: ValueError, ConfigError: this describes no study."""
        for problem in problems_of(given, _FORM):
            raise ValueError(problem)
        settings = validate(TuneSettings, given["settings"], "tune", lambda _: STUDY_FILE)
        space = Space.from_json(given["space"])
        return cls(**{**{key: given[key] for key in _FORM}, "settings": settings, "space": space})

    def differences(self, other: StudyDescription) -> List[str]:
        """One line for each part in which another description would train something else."""
        own, new = self.to_json(), other.to_json()
        pairs: List[Tuple[str, object, object]] = []
        for key in ("flags", "overrides", "space", "objectives"):
            pairs.append((key, _plain(own[key]), _plain(new[key])))
        for key, value in own["settings"].items():
            if key not in ("n_trials", "space"):
                pairs.append((key, value, new["settings"][key]))
        return [f"  {key}: was {_short(was)}, now {_short(now)}" for key, was, now in pairs if was != now]


def _plain(value: Any) -> Any:
    """Lists for tuples, as a file holds them."""
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return {key: _plain(one) for key, one in value.items()} if isinstance(value, dict) else value


def _short(value: Any) -> str:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return ", ".join(f"{one['key']} ({one['kind']})" for one in value)
    return " ".join(value) if isinstance(value, list) else shown(value)


class StudyFolder:
    """A folder that holds a study, or may."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = FileLock(path / ".study.lock")
        """Held by whoever looks for the next trial to train, or changes study.json."""

    @property
    def exists(self) -> bool:
        """True if a study has begun here."""
        return (self.path / STUDY_FILE).is_file()

    def read(self) -> StudyDescription:
        """Raises: ConfigError: there is no study, or one that cannot be read."""
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
        """Raises: ConfigError: the folder holds something else than a study."""
        if self.path.exists() and not self.path.is_dir():
            raise ConfigError(f"{self.path} is a file: a study needs a folder of its own.")
        if self.path.is_dir() and not self.exists and any(self.path.iterdir()):
            raise ConfigError(f"{self.path} holds other files and no study. Name a new or empty folder.")

    def create(self, description: StudyDescription) -> None:
        """Makes the folder and its files; keeps what another command made at the same time.

        Raises:
            ConfigError: another study began here meanwhile.
            MxtrainError: the folder cannot be written.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            refuse_links(self.path, (STUDY_FILE, JOURNAL, CLAIMS, LOGS, f"{JOURNAL}.lock"))
            for name in (CLAIMS, LOGS):
                (self.path / name).mkdir(exist_ok=True)
            with self.lock:
                if self.exists:
                    self.refuse_difference(description)
                else:
                    write_json_atomic(self.path / STUDY_FILE, description.to_json())
        except OSError as error:
            raise MxtrainError(f"{self.path}: the study cannot be kept there: {error.strerror}.") from error

    def refuse_difference(self, description: StudyDescription) -> None:
        """Raises: ConfigError: the study here tries something else."""
        lines = self.read().differences(description)
        if lines:
            raise ConfigError(
                f"the study in {self.path} was begun with other settings:\n" + "\n".join(lines) + "\n"
                f"`mxtrain tune {self.path}` alone continues it; another study needs another folder."
            )

    def set_n_trials(self, n_trials: int) -> None:
        """Changes the number of trials in all; running workers notice it."""
        with self.lock:
            description = self.read()
            settings = description.settings.model_copy(update={"n_trials": n_trials})
            write_json_atomic(self.path / STUDY_FILE, replace(description, settings=settings).to_json())

    def run_dir(self, name: Union[int, str]) -> Path:
        """A run directory: by the number of its trial, or its name where a trial has several."""
        return Path(os.path.abspath(self.path / str(name)))

    def claim(self, number: int) -> FileLock:
        """The lock of a trial: its worker holds it, and so does the process that trains for it."""
        return FileLock(self.path / CLAIMS / str(number))

    def log(self, number: int) -> Path:
        """What the processes of a trial print."""
        return self.path / LOGS / f"{number}.txt"

    def is_claimed(self, number: int) -> bool:
        """Returns True if somebody trains this trial now."""
        lock = self.claim(number)
        free = lock.acquire(wait=False)
        lock.release()
        return not free
