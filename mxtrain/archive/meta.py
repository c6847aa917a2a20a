"""Reads meta.json: how a run was started, and with what."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Dict, List, Mapping, Sequence

from mxtrain.archive import run_records
from mxtrain.archive.provenance import DESCRIPTION
from mxtrain.archive.run_files import META_FILE
from mxtrain.errors import ConfigError, reason_of

if TYPE_CHECKING:
    from mxtrain.types.annotations import Config, Json, JsonObject

_RUN_DIR_OVERRIDES = ("hydra.run.dir=", "hydra.sweep.dir=")


@dataclass(frozen=True)
class Meta:
    """Content of meta.json; a value of another type than the run writes counts as absent."""

    argv: Sequence[str] = ()
    working_folder: str = ""
    started: str = ""
    packages: Mapping[str, str] = field(default_factory=dict)
    """Versions by package, and of Python."""
    git: Mapping[str, str] = field(default_factory=dict)
    """commit, dirty ("true" or "false") and diff_sha256; empty outside of a repository. The difference itself is left
    out."""
    host: Mapping[str, str] = field(default_factory=dict)
    devices: Sequence[str] = ()
    runtime: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that mxtrain has set."""
    data: Mapping[str, str] = field(default_factory=dict)
    """Number and hash of the files of each setting and of the samples of each split, e.g. {"train": "1257 samples,
    0a1b..."}."""

    def command(self) -> str:
        """Returns the command that trains the run again in a new run directory; empty if unknown."""
        if not self.argv:
            return ""
        # The new run must not be written into the directory of the old one.
        first, arguments = self.argv[0], [word for word in self.argv[1:] if not word.startswith(_RUN_DIR_OVERRIDES)]
        is_own = os.path.basename(first) in ("mxtrain", "__main__.py", "train")
        program = ["python", "-m", "mxtrain"] if is_own else ["python", first]
        return " ".join(map(shlex.quote, [*program, *arguments]))


def read_meta(run_dir: str) -> Meta:
    """Reads meta.json of a run directory; a missing or damaged one is empty."""
    try:
        meta = run_records.read_meta_object(run_dir)
    except (OSError, ValueError):
        return Meta()
    precision = _strings(meta.get("precision"))
    return Meta(
        argv=_list(meta.get("argv")),
        working_folder=_text(meta.get("working_folder")),
        started=_text(meta.get("started")),
        packages={**_strings(meta.get("packages")), **_named(meta, "python")},
        git=_git(meta.get("git")),
        host=_strings(meta.get("host")),
        devices=_list(meta.get("devices")),
        runtime={**_strings(meta.get("runtime")), **precision, **_named(meta, "own_operators")},
        data=_data(meta.get("data")),
    )


def _named(meta: Mapping[str, Json], name: str) -> Dict[str, str]:
    value = _text(meta.get(name))
    return {name: value} if value else {}


def _git(value: Json) -> Dict[str, str]:
    return {name: text for name, text in _strings(value).items() if name in ("commit", "dirty", "diff_sha256")}


def _data(value: Json) -> Dict[str, str]:
    """Returns a text for the files of each setting and for each split, see `mxtrain.data.fingerprint`."""
    descriptions = {}
    for part, unit in (("files", "files"), ("splits", "samples")):
        splits = value.get(part) if isinstance(value, dict) else None
        for name, facts in list(splits.items())[:20] if isinstance(splits, dict) else ():
            if isinstance(facts, dict):
                digest = _text(facts.get("sha256"))
                descriptions[str(name)] = f"{_text(facts.get(unit))} {unit}{digest and f', {digest}'}"
    return descriptions


def _strings(value: Json) -> Dict[str, str]:
    return {name: _text(item) for name, item in list(value.items())[:200]} if isinstance(value, dict) else {}


def _list(value: Json) -> List[str]:
    return [_text(item) for item in value[:1000]] if isinstance(value, list) else []


def _text(value: Json) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)[:2000] if isinstance(value, (str, int, float)) else ""


@dataclass(frozen=True)
class RecordedRun:
    """A run directory with a meta.json that describes the run."""

    path: Path
    meta: JsonObject

    @property
    def description(self) -> Config:
        """Returns the configuration of the run, with all defaults."""
        config: Config = self.meta[DESCRIPTION]
        return config

    @property
    def choices(self) -> Mapping[str, str]:
        """Returns the chosen option of each group; empty if the run was started in another way."""
        choices = self.meta.get("choices")
        return {str(group): str(option) for group, option in choices.items()} if isinstance(choices, dict) else {}


def read_recorded_run(path: Path) -> RecordedRun:
    """Reads the meta.json of a run directory.

    Raises:
        ConfigError: there is none, or it is not what a run writes.
    """
    try:
        meta = run_records.read_meta_object(path)
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no {META_FILE}. reproduce takes the directory of a run.") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path / META_FILE} cannot be read: {reason_of(error)}.") from None
    if not isinstance(meta.get(DESCRIPTION), dict):
        raise ConfigError(
            f"{path / META_FILE} does not contain the description of the run. Only runs that a version with "
            "`reproduce` has started can be reproduced by it; the other runs by their command."
        )
    return RecordedRun(path, meta)
