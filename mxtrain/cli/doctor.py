"""`mxtrain doctor`: hardware and libraries of this machine, usable features, and how to enable the other ones."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import NoReturn, Sequence

from mxtrain.cli.commands import Command
from mxtrain.errors import EXIT_CRASHED, EXIT_FINISHED, ConfigError, did_you_mean
from mxtrain.workflows.doctor import DoctorResult, doctor

FLAGS = ("--json", "--timeout", "--help")


class Flags(argparse.ArgumentParser):
    """Parses the flags of `doctor`; errors are reported as by any command."""

    def error(self, message: str) -> NoReturn:
        """Rejects unknown arguments.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(f"doctor: {message}. It takes --json and --timeout SECONDS.")


COMMAND = Command(
    "doctor",
    position=210,
    listed="doctor",
    help="what this machine has, what is usable, and what to do about the rest",
    helps_itself=True,
)


def run(argv: Sequence[str]) -> int:
    """Examines the machine and prints the findings.

    Args:
        argv: What follows `mxtrain doctor`: nothing, `--json`, `--timeout SECONDS`.

    Returns:
        0 where training can work, 1 where it cannot.

    Raises:
        ConfigError: `argv` is wrong.
    """
    parser = Flags("mxtrain doctor", description="Say what this machine can train with.")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--timeout", type=float, default=120.0, metavar="SECONDS", help="limit for importing MXNet")
    try:
        options, others = parser.parse_known_args(list(argv))
    except SystemExit as leaving:
        # argparse leaves by SystemExit after --help.
        return int(leaving.code or 0)
    if others:
        near = did_you_mean(others[0], FLAGS)
        raise ConfigError(f"doctor takes no '{others[0]}'.{near} It takes --json and --timeout SECONDS.")
    found = doctor(timeout=options.timeout)
    if options.json:
        findings = [asdict(finding) for finding in found.findings]
        print(json.dumps({"usable": found.usable, "findings": findings}, indent=2))
    elif sys.stdout.isatty():
        _print_table(found)
    else:
        print(found)
    return EXIT_FINISHED if found.usable else EXIT_CRASHED


def _print_table(found: DoctorResult) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    colours = {"ok": "green", "missing": "yellow", "problem": "bold red"}
    table = Table(title="mxtrain doctor", title_justify="left", show_lines=False)
    table.add_column("state")
    table.add_column("what")
    table.add_column("found, and what to do", overflow="fold")
    for finding in found.findings:
        text = escape(finding.value) + (f"\n[dim]-> {escape(finding.remedy)}[/dim]" if finding.remedy else "")
        table.add_row(f"[{colours[finding.state]}]{finding.state}[/]", finding.what, text)
    console = Console()
    console.print(table)
    console.print(found.verdict, style="green" if found.usable else "bold red")
