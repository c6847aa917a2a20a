"""`mxtrain clean [FOLDER...]` lists files of runs that are no longer needed, with their sizes. `delete=true` deletes
what is listed; without it nothing is deleted.

Runs in use, runs that can be continued, and the best and the last checkpoint stay. `what=runs` with where= is for whole
run directories, e.g. what=runs where='state=failed and age>30d'."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Literal, Sequence

from mxtrain.archive.cleanup import Removable
from mxtrain.cli.commands import Command
from mxtrain.cli.run_arguments import is_table, parse_run_arguments, print_json, print_line
from mxtrain.errors import EXIT_CRASHED, EXIT_FINISHED
from mxtrain.terminal.console import open_console
from mxtrain.terminal.tables import format_size, on_one_line, print_rows
from mxtrain.types import expand_path
from mxtrain.workflows.clean import CleanSettings, Cleanup, clean_runs, shown_path

if TYPE_CHECKING:
    from mxtrain.types.annotations import JsonObject

SHOWN = 50


class CleanOptions(CleanSettings):
    """Settings of `clean`, and of its output."""

    format: Literal["auto", "table", "lines", "json"] = "auto"
    """auto: a table on a terminal, else one line for each file or folder; json: all as JSON."""


COMMAND = Command(
    "clean",
    position=180,
    listed="clean [FOLDER...]",
    help="what of runs can go, with sizes; delete=true deletes it",
    usage="[FOLDER...] [setting=value ...]",
    settings="CleanOptions",
    examples=("clean", "clean studies/lr delete=true", "clean what=runs where='state=failed and age>30d'"),
)


def run(arguments: Sequence[str]) -> int:
    """Lists or deletes; returns the exit code."""
    parsed, settings, wheres = parse_run_arguments(arguments, CleanOptions, "clean")
    found = clean_runs(list(map(expand_path, parsed.positionals)), wheres, settings)
    as_table = is_table(settings.format)
    if settings.format == "json":
        print_json(
            {
                "deleted": found.is_deleted,
                "bytes": found.size,
                "removable": [_json_of(item) for item in found.removable],
                "kept": [asdict(item) for item in found.kept],
                "failed": [asdict(item) for item in found.failed],
            }
        )
    elif as_table:
        _print_table(found)
    else:
        for item in found.removable:
            print_line(item.kind, {"size": str(item.size), "path": shown_path(item.path)})
    if settings.format != "json":
        # Programs read the lines on standard output, so the summary for people goes to standard error.
        print(found, file=sys.stdout if as_table else sys.stderr)
    sys.stdout.flush()
    return EXIT_CRASHED if found.failed else EXIT_FINISHED


def _json_of(item: Removable) -> JsonObject:
    # A run may have thousands of files, and the path says which are meant.
    return {name: value for name, value in asdict(item).items() if name != "files"}


def _print_table(found: Cleanup) -> None:
    if not found.removable:
        return
    largest = sorted(found.removable, key=lambda item: -item.size)
    rows = [
        [item.kind, format_size(item.size), shown_path(item.path), on_one_line(item.reason)[:80]]
        for item in largest[:SHOWN]
    ]
    console = open_console(sys.stdout)
    console.print()
    print_rows(["what", "size", "path", "because"], rows, unbroken=("what", "size", "path"))
    if len(largest) > SHOWN:
        console.print(f"and {len(largest) - SHOWN:,} smaller ones: format=lines lists all")
