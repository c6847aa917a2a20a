"""Finds run directories in folders, and reads a summary of each run.

Reasons: docs/decisions/0110-run-directories-as-registry.md.
"""

from __future__ import annotations

import os
import re
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Collection, Dict, Iterator, List, Mapping, Sequence, Set, Tuple

import yaml

from mxtrain.archive.run_files import INTERRUPTED, META_FILE, PRUNED, STATUS_FILE
from mxtrain.archive.status import DAMAGED, RunStatus, read_status
from mxtrain.checkpoint.folder import CHECKPOINTS, NAME
from mxtrain.checkpoint.ranking import VAL_LOSS
from mxtrain.checkpoint.run_directory import is_locked
from mxtrain.files.regular_files import read_regular, read_regular_text
from mxtrain.runtime.cores import usable_cores

if TYPE_CHECKING:
    from mxtrain.types.annotations import Json


_CONFIG_FILE = ".hydra/config.yaml"
_MAX_CONFIG_BYTES = 1 << 20
_MAX_SETTINGS, _MAX_DEPTH = 20_000, 40
_REFERENCE = re.compile(r"\$\{([\w.]+)\}")
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_settings(run_dir: str) -> Dict[str, Json]:
    """Returns all settings of a run by dotted path; empty if they are missing or damaged.

    A reference to another setting, such as `${trainer.monitor}`, is replaced by the value of that setting. Other
    interpolations stay as they are written: they could read the environment.
    """
    try:
        text = read_regular_text(os.path.join(run_dir, _CONFIG_FILE), _MAX_CONFIG_BYTES)
        config = yaml.load(text, _LOADER)  # builds only plain values
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return {}
    settings = flatten_untrusted(config) if isinstance(config, dict) else {}
    for name, value in settings.items():
        reference = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
        if reference:
            settings[name] = settings.get(reference[1], value)
    return settings


def flatten_untrusted(config: Mapping[str, Json]) -> Dict[str, Json]:
    """Returns dotted path -> value for all leaves, like `config.specs.flatten`.

    Aliases in YAML can expand a short text without limit, so settings beyond the limits are left out.
    """
    settings: Dict[str, Json] = {}
    waiting: List[Tuple[str, Json, int]] = [("", config, 0)]
    while waiting and len(settings) < _MAX_SETTINGS:
        path, value, depth = waiting.pop()
        if isinstance(value, dict) and value and depth < _MAX_DEPTH:
            below = [(f"{path}.{name}" if path else str(name), item, depth + 1) for name, item in value.items()]
            waiting.extend(reversed(below[:_MAX_SETTINGS]))
            # Nested aliases multiply the waiting nodes before any of these counts as a setting.
            del waiting[_MAX_SETTINGS:]
        else:
            settings[path] = _plain(value)
    return settings


def _plain(value: Json, depth: int = 0) -> Json:
    """Limits a list from a file; dates and other values of YAML become text."""
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, list) and depth < 4:
        return [_plain(item, depth + 1) for item in value[:100]]
    if isinstance(value, dict) and depth < 4:
        return {str(name): _plain(item, depth + 1) for name, item in list(value.items())[:100]}
    return f"({type(value).__name__})"


CHOSEN = ("task", "model", "dataset")
_HYDRA_FILE = ".hydra/hydra.yaml"
_MAX_HYDRA_BYTES = 1 << 18
_CHOICES, _MAX_CHOICES_BYTES = b"\n    choices:\n", 4096
"""Line in Hydra's file above the chosen options, and the largest number of bytes of these that are read."""
_CHOICE = re.compile(rb"\n {6}(\w+): '?([\w.-]{1,60})'?(?=\n)")
"""Line of a chosen option: `model: lenet`."""
_TARGET = re.compile(rb"\n {4}- '?\+*(\w+)\._target_=(?:\w+\.)*(\w{1,60})'?(?=\n)")
"""Line of an override that names the user's own class, which counts as the chosen option: `- model._target_=x.Net`."""

KILLED = "killed"
"""State of a run whose process has ended without writing a final state."""
STARTING = "starting"
"""State of a run whose process holds the run directory and has not written a status yet."""
NO_STATUS = "not started"
"""State of a run directory without a status and without a process."""
STATES = ("running", "finished", "stopped_early", INTERRUPTED, "failed", PRUNED, KILLED, STARTING, NO_STATUS, DAMAGED)
MIN_RUNS_FOR_PROCESSES = 2000
"""Number of run directories from which on several processes read them."""


@dataclass(frozen=True, repr=False)
class ListedRun:
    """Summary of a run directory, which functions that take a path accept, too. `choices`, `settings` and `size` are
    read on first use.

    Attributes:
        path: run directory; relative if the searched folder is.
        state: state in status.json, or killed, starting, not started or damaged.
        status: content of status.json.
        age_s: seconds since status.json was last written.
    """

    path: str
    state: str
    status: RunStatus
    age_s: float

    def __fspath__(self) -> str:
        return self.path

    def __repr__(self) -> str:
        best = "" if self.status.best is None else f", {self.status.monitor}={self.status.best:.6g}"
        return f"ListedRun({self.path!r}, state={self.state!r}, step={self.status.step}{best})"

    @cached_property
    def choices(self) -> Mapping[str, str]:
        """Returns the chosen option of each group; see `read_choices`."""
        return read_choices(self.path)

    @cached_property
    def size(self) -> int:
        """Returns the size of all files in bytes."""
        return size_of(self.path)

    @cached_property
    def settings(self) -> Mapping[str, Json]:
        """Returns all settings by dotted path; see `read_settings`."""
        return read_settings(self.path)

    @property
    def direction(self) -> str:
        """Returns the better direction of the monitored metric, "max" or "min"."""
        return self.status.direction or ("min" if self.status.monitor == VAL_LOSS else "max")

    def to_json(self) -> Dict[str, Json]:
        """Returns all values as JSON, for scripts."""
        status = self.status
        return {
            "run": self.path,
            "state": self.state,
            "exit_code": status.exit_code,
            "cause": status.cause,
            **{name: self.choices.get(name) for name in CHOSEN},
            "metric": status.monitor or None,
            "best": status.best,
            "best_step": status.best_step,
            "direction": self.direction,
            "step": status.step,
            "epoch": status.epoch,
            "samples_per_s": status.samples_per_s,
            "wall_s": status.wall_s,
            "size": self.size,
            "age_s": round(self.age_s, 1),
            "metrics": dict(status.metrics),
        }


def find_run_dirs(folder: str) -> Iterator[str]:
    """Yields the run directories below a folder, or the folder itself if it is one.

    Links are not followed, except `folder` itself. The contents of run directories and hidden folders are not searched.

    Raises:
        OSError: the folder cannot be read; unreadable folders below it are skipped.
    """
    pending = [folder]
    while pending:
        path = pending.pop()
        try:
            with os.scandir(path) as entries:
                listed = list(entries)
        except OSError:
            if path == folder:
                raise
            continue
        names = {entry.name for entry in listed}
        if is_run_dir(path, names):
            yield path
            continue
        subfolders = [entry.path for entry in listed if not entry.name.startswith(".") and _is_folder(entry)]
        # Reversed, since `pop` takes the last one: runs are found in the order of their names.
        pending.extend(sorted(subfolders, reverse=True))


def is_run_dir(path: str, names: Collection[str]) -> bool:
    """Returns True if a folder with entries of these names holds a run, or checkpoints alone."""
    if STATUS_FILE in names or META_FILE in names:
        return True
    if CHECKPOINTS not in names:
        return False
    try:
        return any(NAME.match(name) for name in os.listdir(os.path.join(path, CHECKPOINTS)))
    except OSError:
        return False


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False


def size_of(path: str) -> int:
    """Returns the bytes of all files below a folder. Links are not followed and have no size."""
    total = 0
    pending = [path]
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    try:
                        if entry.is_file(follow_symlinks=False):
                            total += entry.stat(follow_symlinks=False).st_size
                        elif entry.is_dir(follow_symlinks=False):
                            pending.append(entry.path)
                    except OSError:
                        continue  # removed meanwhile
        except OSError:
            continue
    return total


def read_run(path: str, needed: Sequence[str] = ()) -> ListedRun:
    """Reads the summary of a run, even if its files are damaged.

    Args:
        path: the run directory.
        needed: properties to read now: "choices", "settings" or "size".
    """
    status = read_status(path)
    state = NO_STATUS if status is None else status.state
    # The lock is tried and released at once; /proc/locks would not know the processes of other machines.
    if state == "running" and not is_locked(path):
        state = KILLED
    elif state == NO_STATUS and is_locked(path):
        state = STARTING
    # Without a status, the age is that of the directory.
    status = status or RunStatus(state, written_at=_changed_at(path))
    run = ListedRun(path, state, status, max(time.time() - status.written_at, 0.0))
    for name in needed:
        getattr(run, name)  # reads it now, possibly in a process of `read_runs`
    return run


def read_runs(folders: Sequence[str], needed: Sequence[str] = ()) -> List[ListedRun]:
    """Reads the summaries of all runs in folders, each once; see `read_run`.

    Raises:
        OSError: one of the folders cannot be read.
    """
    paths = _find_each_once(folders)
    first = list(islice(paths, MIN_RUNS_FOR_PROCESSES))
    num_processes = min(usable_cores(), 8)
    # status.json alone is read about as fast as its content is sent between processes.
    if len(first) < MIN_RUNS_FOR_PROCESSES or num_processes < 2 or not needed:
        return [read_run(path, needed) for path in chain(first, paths)]
    # Choices, settings and sizes take dozens of system calls and some parsing, during which a process holds Python's
    # lock. `map` takes paths while they are found, so reading begins before the last one is.
    with ProcessPoolExecutor(num_processes) as pool:
        return list(pool.map(partial(read_run, needed=needed), chain(first, paths), chunksize=200))


def _find_each_once(folders: Sequence[str]) -> Iterator[str]:
    seen: Set[str] = set()
    for path in chain.from_iterable(map(find_run_dirs, folders)):
        # A single folder cannot contain a run twice, since links in it are not followed.
        if len(folders) > 1:
            real = os.path.realpath(path)
            if real in seen:
                continue
            seen.add(real)
        yield path


def read_choices(path: str) -> Mapping[str, str]:
    """Returns the chosen option of each group, as Hydra has recorded it.

    Uses regular expressions, since a YAML parser would take ten milliseconds per run.
    """
    try:
        content = read_regular(os.path.join(path, _HYDRA_FILE), _MAX_HYDRA_BYTES)
    except OSError:
        return {}
    # The last one: the value of a setting could contain the same text.
    position = content.rfind(_CHOICES)
    choices = content[position + len(_CHOICES) - 1 :][:_MAX_CHOICES_BYTES] if position >= 0 else b""
    pairs: List[Tuple[bytes, bytes]] = _CHOICE.findall(choices)
    if b"._target_=" in content:
        pairs += _TARGET.findall(content)
    return {name.decode(): option.decode() for name, option in pairs if option != b"null"}


def _changed_at(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0
