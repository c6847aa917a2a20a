"""`mxtrain inspect FILE`: inputs, outputs, layers and parameters of a network in a file, what it seems to be, and the
overrides that train it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Literal, Sequence

from mxtrain.cli.commands import Command
from mxtrain.cli.run_arguments import is_table, parse_run_arguments, print_json
from mxtrain.errors import EXIT_FINISHED, ConfigError
from mxtrain.terminal.program import program
from mxtrain.terminal.tables import format_size, print_rows
from mxtrain.types import Positive, Spec, expand_path
from mxtrain.workflows.inspect import InspectResult, inspect


class InspectOptions(Spec):
    """Settings of `inspect`."""

    lines: Positive = 20
    """Number of layers and of arrays that are listed, the last ones of each."""
    format: Literal["auto", "table", "lines", "json"] = "auto"
    """auto: tables on a terminal, else plain lines; json: all as JSON."""


COMMAND = Command(
    "inspect",
    position=205,
    listed="inspect FILE",
    help="a network in a file of MXNet: inputs, outputs, layers, size, and how to train it",
    usage="FILE [setting=value ...]",
    settings="InspectOptions",
    examples=("inspect old-symbol.json", "inspect model.tar.gz format=json"),
)


def run(arguments: Sequence[str]) -> int:
    """Reads the file and prints what is in it; returns the exit code."""
    parsed, settings, _ = parse_run_arguments(arguments, InspectOptions, "inspect")
    if len(parsed.positionals) != 1:
        raise ConfigError(f"inspect takes one file, and {len(parsed.positionals)} were given.")
    found = inspect(expand_path(parsed.positionals[0]))
    if settings.format == "json":
        print_json({**asdict(found), "num_parameters": found.num_parameters, "num_bytes": found.num_bytes})
    else:
        _print(found, settings.lines, is_table(settings.format))
    return EXIT_FINISHED


def _print(found: InspectResult, lines: int, as_table: bool) -> None:
    print(f"{found.path}: {found.kind}" + (f"; it seems to be {found.seems}" if found.seems else ""))
    if found.inputs:
        print(f"inputs: {', '.join(found.inputs)}")
    if found.outputs:
        print(f"outputs: {', '.join(found.outputs)}")
    if found.prediction:
        print(f"prediction: {found.prediction}")
    if found.operators:
        print("operators: " + ", ".join(f"{count} {name}" for name, count in found.operators.items()))
    if found.arrays:
        print(f"parameters: {found.num_parameters:,} in {len(found.arrays)} arrays, {format_size(found.num_bytes)}")
    for titles, rows in (
        (["layer", "operator", "units"], [[name, operator, str(units)] for name, operator, units in found.layers]),
        (
            ["array", "shape", "type"],
            [[one.name, "x".join(map(str, one.shape)), one.dtype] for one in found.arrays],
        ),
    ):
        if rows and as_table:
            print()
            print_rows(titles, rows[-lines:])
            if len(rows) > lines:
                print(f"... and {len(rows) - lines} before; lines={len(rows)} lists all")
        elif rows:
            for row in rows[-lines:]:
                print(f"{titles[0]}: {' '.join(row)}")
    for remark in found.remarks:
        print(remark)
    if found.command:
        print(f"# train\n{program()} {found.command}")
