"""`mxtrain report RUN... [out=FILE.html]` writes one page about runs: the curves of all in one chart, results, settings
that differ, samples and tables of evaluations, the commands to reproduce each run, and a model card.

The page is one file without scripts that loads nothing from elsewhere: it can be sent by mail. A folder stands for the
runs below it. `mxtrain eval RUN` before adds the tables and figures of an evaluation."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import Literal, Sequence

from mxtrain.cli.commands import Command
from mxtrain.cli.run_arguments import parse_run_arguments, print_json
from mxtrain.errors import EXIT_FINISHED
from mxtrain.types import expand_path
from mxtrain.workflows.report import ReportSettings, write_report


class ReportOptions(ReportSettings):
    """Settings of `report`, and of its output."""

    format: Literal["auto", "lines", "json"] = "auto"
    """Format of the output: auto and lines print one line; json: file and runs as JSON."""


COMMAND = Command(
    "report",
    position=170,
    listed="report RUN... [out=FILE]",
    help="one HTML page: curves, results, samples, commands, a model card",
    usage="RUN|FOLDER... [setting=value ...]",
    settings="ReportOptions",
    examples=("report outputs/a outputs/b out=report.html", "report studies/lr where='best>0.9' sort=best"),
)


def run(arguments: Sequence[str]) -> int:
    """Writes the page; returns the exit code."""
    parsed, settings, wheres = parse_run_arguments(arguments, ReportOptions, "report")
    written = write_report(list(map(expand_path, parsed.positionals)), wheres, settings)
    if settings.format == "json":
        print_json({"file": written.file, "bytes": written.size, "runs": [one.path for one in written.runs]})
    elif settings.out != "/dev/stdout":
        print(f"written to {replace(written, file=os.path.abspath(written.file))}")
    sys.stdout.flush()
    return EXIT_FINISHED
