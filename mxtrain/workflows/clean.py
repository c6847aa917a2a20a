"""`clean`: finds files of runs that are no longer needed, and deletes them if asked to."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Dict, List, Sequence, Union

from mxtrain.archive.cleanup import (
    BY_DEFAULT,
    KINDS,
    WHOLE,
    Kept,
    Removable,
    delete,
    plan_cleanup,
    why_nothing,
)
from mxtrain.archive.filter import filters_of, parse_filter
from mxtrain.archive.registry import ListedRun
from mxtrain.archive.run_folders import named_or_default_folders, paths_in, runs_below
from mxtrain.config.specs import validate_arguments
from mxtrain.errors import ConfigError, did_you_mean
from mxtrain.terminal.tables import format_size, on_one_line
from mxtrain.types import Spec


class CleanSettings(Spec):
    """Settings of `clean`."""

    delete: bool = False
    """true deletes what is listed; false only lists it."""
    what: str = ",".join(BY_DEFAULT)
    """Kinds of files to list or delete, separated by commas: leftovers of killed runs, checkpoints besides the best and
    the last of finished runs, empty runs that ended without a checkpoint, previous/ (what checkpoint.resume=never
    set aside), whole runs."""
    where: str = ""
    """Runs to look at, e.g. 'state=failed and age>30d', as for `mxtrain runs`; may be given several times."""
    unfinished: bool = False
    """With what=runs: true takes runs that could be continued, too."""


@dataclass(frozen=True)
class Cleanup:
    """Result of `clean`; its text says how much can go or has gone.

    Attributes:
        removable: files and folders that are not needed: ``kind``, ``run``, ``path``, ``size`` in bytes and ``reason``.
        kept: runs that were looked at and are left alone, with the reason.
        failed: runs of which something could not be deleted, with the reason.
        is_deleted: True if `removable` was deleted, except in `failed` runs.
        runs: the runs that were looked at.
    """

    removable: Sequence[Removable]
    kept: Sequence[Kept]
    failed: Sequence[Kept]
    is_deleted: bool
    runs: Sequence[ListedRun]

    @property
    def size(self) -> int:
        """Total size of `removable` in bytes."""
        return sum(item.size for item in self.removable)

    def __str__(self) -> str:
        return "\n".join(
            [
                self.summary() if self.removable else why_nothing(self.runs),
                *_reason_lines(self.kept, "left alone"),
                *_reason_lines(self.failed, "not deleted"),
            ]
        )

    __repr__ = __str__

    def summary(self) -> str:
        """Returns a line with the size of what can go or was deleted, by kind."""
        sizes: Dict[str, List[int]] = {}
        left = {entry.run for entry in self.failed}
        for item in self.removable:
            if item.run not in left:
                sizes.setdefault(item.kind, []).append(item.size)
        kinds = ", ".join(f"{len(group):,} {kind} ({format_size(sum(group))})" for kind, group in sizes.items())
        if self.is_deleted:
            rest = f"; {len(left):,} run{'s' * (len(left) > 1)} could not be cleaned" if left else ""
            return f"deleted: {kinds or 'nothing'}{rest}"
        can_go = f"{format_size(self.size)} can go of {len(self.runs):,} runs: {kinds}"
        return f"{can_go}. Nothing was deleted: delete=true deletes it"


def clean(
    *folders: Any,
    what: Union[str, Sequence[str]] = BY_DEFAULT,
    where: Union[str, Sequence[str]] = (),
    unfinished: bool = False,
    delete: bool = False,
) -> Cleanup:
    """Finds files of runs that are no longer needed, as ``mxtrain clean``. Deletes nothing unless ``delete=True``.

    Runs in use, runs that can be continued, and the best and the last checkpoint stay.

    Args:
        folders: folders, each searched for run directories; default: ``outputs``.
        what: kinds of files: ``"leftovers"`` of killed runs, ``"checkpoints"`` besides the best and the last of
            finished runs, ``"empty"`` runs that ended without a checkpoint, ``"previous"`` (what
            ``checkpoint.resume=never`` set aside), whole ``"runs"``, which need a filter.
        where: filters of runs; see `runs`.
        unfinished: True takes runs that could be continued, too; for ``what="runs"``.
        delete: True deletes what is listed.

    Returns:
        ``removable``, with sizes in bytes, ``kept`` and ``failed``, each with reasons; ``size`` is the total.

    Raises:
        ConfigError: there is no such folder, run, kind or field.

    >>> found = mxtrain.clean("outputs")
    >>> found.size, [one.path for one in found.removable]
    """
    typed = what if isinstance(what, str) else ",".join(what)
    values = {"delete": delete, "what": typed, "unfinished": unfinished}
    settings = validate_arguments(CleanSettings, values, "clean")
    return clean_runs(paths_in(folders, "clean"), filters_of(where), settings)


def clean_runs(folders: Sequence[str], wheres: Sequence[str], settings: CleanSettings) -> Cleanup:
    """Finds files that are no longer needed, and deletes them with `settings.delete`.

    Args:
        folders: folders to search; empty: `outputs`.
        wheres: filters that must all hold.
        settings: kinds of files, and whether to delete.

    Raises:
        ConfigError: there is no such folder, run, kind or field; nothing was deleted.
    """
    kinds = kinds_of(settings.what)
    filtered = parse_filter(wheres)
    if WHOLE in kinds and not wheres:
        raise ConfigError(
            "clean: what=runs deletes whole run directories, so it needs a filter that says which: "
            "where='state=failed and age>30d'."
        )
    if settings.unfinished and WHOLE not in kinds:
        raise ConfigError("clean: unfinished=true belongs to what=runs. Parts of unfinished runs are never deleted.")
    found = filtered.apply(runs_below(named_or_default_folders(folders, "clean"), filtered.needed, "clean"))
    plan = plan_cleanup(found, kinds, settings.unfinished)
    failed = delete(plan) if settings.delete else []
    return Cleanup(plan.removable, plan.kept, failed, settings.delete, found)


def kinds_of(text: str) -> List[str]:
    """Returns the kinds in a setting.

    Raises:
        ConfigError: there is no such kind.
    """
    kinds = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in kinds:
        if name not in KINDS:
            listed = "; ".join(f"{kind}: {meaning}" for kind, meaning in KINDS.items())
            near = did_you_mean(name, KINDS)
            raise ConfigError(f"clean.what={text}: there is no '{name}'.{near} There are {listed}.")
    if not kinds:
        raise ConfigError(f"clean.what={text}: name at least one of {', '.join(KINDS)}.")
    return kinds


def _reason_lines(kept: Sequence[Kept], prefix: str) -> List[str]:
    """Returns one line for each reason, with the first runs."""
    by_reason: Dict[str, List[str]] = {}
    for entry in kept:
        by_reason.setdefault(entry.reason, []).append(shown_path(entry.run))
    return [
        f"{prefix}: {', '.join(runs[:3])}{f' and {len(runs) - 3:,} more' if runs[3:] else ''}: {on_one_line(reason)}"
        for reason, runs in by_reason.items()
    ]


def shown_path(path: str) -> str:
    """Returns a path as messages show it."""
    return on_one_line(os.path.normpath(path))
