"""`mxtrain clean [FOLDER...]` lists files of runs that are no longer needed, with their sizes. `delete=true` deletes
what is listed; without it nothing is deleted.

Runs in use, runs that can be continued, and the best and the last checkpoint stay. `what=runs` with where= is for whole
run directories, e.g. what=runs where='state=failed and age>30d'."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Dict, List, Literal, Sequence

from mxtrain.archive.cleanup import (
    BY_DEFAULT,
    KINDS,
    WHOLE,
    CleanupPlan,
    Kept,
    Removable,
    delete,
    plan_cleanup,
    why_nothing,
)
from mxtrain.archive.filter import parse_filter
from mxtrain.archive.run_folders import folders_of, parse_words, print_json, print_line, runs_below
from mxtrain.errors import EXIT_CRASHED, EXIT_FINISHED, ConfigError, did_you_mean
from mxtrain.terminal.console import open_console
from mxtrain.terminal.tables import format_size, on_one_line, print_rows
from mxtrain.types import Spec

if TYPE_CHECKING:
    from mxtrain.types.annotations import JsonObject

SHOWN = 50


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
    format: Literal["auto", "table", "lines", "json"] = "auto"
    """auto: a table on a terminal, else one line for each file or folder; json: all as JSON."""


def run(arguments: Sequence[str]) -> int:
    """Lists or deletes; returns the exit code."""
    parsed, settings, wheres = parse_words(arguments, CleanSettings, "clean")
    kinds = kinds_of(settings.what)
    filtered = parse_filter(wheres)
    if WHOLE in kinds and not wheres:
        raise ConfigError(
            "clean: what=runs deletes whole run directories, so it needs a filter that says which: "
            "where='state=failed and age>30d'."
        )
    if settings.unfinished and WHOLE not in kinds:
        raise ConfigError("clean: unfinished=true belongs to what=runs. Parts of unfinished runs are never deleted.")
    folders = folders_of(parsed, "clean")
    runs = filtered.apply(runs_below(folders, filtered.needed, "clean"))
    plan = plan_cleanup(runs, kinds, settings.unfinished)
    failed = delete(plan) if settings.delete else []
    is_table = settings.format == "table" or (settings.format == "auto" and sys.stdout.isatty())
    if settings.format == "json":
        print_json(
            {
                "deleted": settings.delete,
                "bytes": plan.size,
                "removable": [_json_of(item) for item in plan.removable],
                "kept": [asdict(item) for item in plan.kept],
                "failed": [asdict(item) for item in failed],
            }
        )
    elif is_table:
        _print_table(plan)
    else:
        for item in plan.removable:
            print_line(item.kind, {"size": str(item.size), "path": _place(item.path)})
    if settings.format != "json":
        # Lines are for programs: what is said to people goes to the other stream.
        stream = sys.stdout if is_table else sys.stderr
        print(summary(plan, failed, len(runs), settings.delete) if plan.removable else why_nothing(runs), file=stream)
        for sentence in (*_reason_lines(plan.kept, "left alone"), *_reason_lines(failed, "not deleted")):
            print(sentence, file=stream)
    sys.stdout.flush()
    return EXIT_CRASHED if failed else EXIT_FINISHED


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


def _json_of(item: Removable) -> JsonObject:
    return {name: value for name, value in asdict(item).items() if name != "files"}


def _print_table(plan: CleanupPlan) -> None:
    if not plan.removable:
        return
    largest = sorted(plan.removable, key=lambda item: -item.size)
    rows = [
        [item.kind, format_size(item.size), _place(item.path), on_one_line(item.reason)[:80]]
        for item in largest[:SHOWN]
    ]
    console = open_console(sys.stdout)
    console.print()
    print_rows(["what", "size", "path", "because"], rows, unbroken=("what", "size", "path"))
    if len(largest) > SHOWN:
        console.print(f"and {len(largest) - SHOWN:,} smaller ones: format=lines lists all")


def summary(plan: CleanupPlan, failed: Sequence[Kept], num_runs: int, is_deleted: bool) -> str:
    """Returns the last line of the output: size of the removable or deleted files, by kind."""
    sizes: Dict[str, List[int]] = {}
    left = {entry.run for entry in failed}
    for item in plan.removable:
        if item.run not in left:
            sizes.setdefault(item.kind, []).append(item.size)
    kinds = ", ".join(f"{len(group):,} {kind} ({format_size(sum(group))})" for kind, group in sizes.items())
    if is_deleted:
        rest = f"; {len(left):,} run{'s' * (len(left) > 1)} could not be cleaned" if left else ""
        return f"deleted: {kinds or 'nothing'}{rest}"
    return f"{format_size(plan.size)} can go of {num_runs:,} runs: {kinds}. Nothing was deleted: delete=true deletes it"


def _reason_lines(kept: Sequence[Kept], prefix: str) -> List[str]:
    """Returns one line for each reason, with the first runs."""
    by_reason: Dict[str, List[str]] = {}
    for entry in kept:
        by_reason.setdefault(entry.reason, []).append(_place(entry.run))
    return [
        f"{prefix}: {', '.join(runs[:3])}{f' and {len(runs) - 3:,} more' if runs[3:] else ''}: {on_one_line(reason)}"
        for reason, runs in by_reason.items()
    ]


def _place(path: str) -> str:
    return on_one_line(os.path.normpath(path))
