"""Finds the commands: each is a module of this package with a constant `COMMAND`."""

from __future__ import annotations

import ast
import importlib
import os
import re
import textwrap
from dataclasses import dataclass
from typing import Dict, List

DECLARED = re.compile(r"^COMMAND = (Command\(.*?^\))$", re.MULTILINE | re.DOTALL)
COLUMN, WIDTH = 30, 116
"""Column of the second part of a command's line in `--help`, and the width of the line."""


@dataclass(frozen=True)
class Command:
    """One command. A module of the command line assigns it to `COMMAND`, with literal arguments only.

    Its module has a function `run(arguments)`, which returns the exit code, and for `in_groups` also
    `description_of(arguments)`.

    Attributes:
        name: the word that is typed.
        position: rank in the list of `--help`; commands without one follow, by name.
        listed: name and main arguments in that list.
        help: sentence about the command in that list.
        usage: arguments in the usage line of `COMMAND --help`.
        settings: name of the `Spec` in its module with the settings of the command; "" if it has none.
        examples: command lines, without `python -m mxtrain`.
        helps_itself: True if `run` answers --help itself.
        subcommands: words that may follow the name, e.g. `check` of `data`; none if there is no such word.
        in_groups: True if the command can run as one of several processes.
        module: import path of its module.
    """

    name: str
    position: int = 1000
    listed: str = ""
    help: str = ""
    usage: str = ""
    settings: str = ""
    examples: tuple = ()
    helps_itself: bool = False
    subcommands: tuple = ()
    in_groups: bool = False
    module: str = ""


def find_commands(folder: str) -> Dict[str, Command]:
    """Returns the commands that the modules of a folder declare, by name, in the order of `--help`.

    Their source is read instead of importing them, which takes 0.5 s.
    """
    found = []
    # Not through pathlib, whose import takes longer than all else here, before the first line of any command.
    for name, end in map(os.path.splitext, os.listdir(folder)):
        if end != ".py":
            continue
        with open(os.path.join(folder, name + end), encoding="utf-8") as file:
            declared = DECLARED.search(file.read())
        if declared is not None:
            call = ast.parse(declared[1], mode="eval").body
            assert isinstance(call, ast.Call)
            settings = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
            settings.update(name=ast.literal_eval(call.args[0]), module=f"{__package__}.{name}")
            found.append(Command(**settings))
    return {command.name: command for command in sorted(found, key=lambda one: (one.position, one.name))}


COMMANDS = find_commands(os.path.dirname(__file__))


def command_lines() -> List[str]:
    """Returns the list of commands for `--help`."""
    lines = []
    for command in COMMANDS.values():
        first = f"  {command.listed or command.name} ".ljust(COLUMN)
        lines += textwrap.wrap(
            command.help, WIDTH, initial_indent=first, subsequent_indent=" " * COLUMN, break_on_hyphens=False
        ) or [first.rstrip()]
    return lines


def help_of(name: str) -> str:
    """Returns the usage text of a command."""
    from mxtrain.config.specs import shown, spec_help
    from mxtrain.terminal.program import with_program_name

    command = COMMANDS[name]
    module = importlib.import_module(command.module)
    lines: List[str] = [f"usage: python -m mxtrain {name} {command.usage}", "", (module.__doc__ or "").strip()]
    if command.settings:
        spec = getattr(module, command.settings)
        lines += ["", "Settings"]
        settings = {field: f"{info.alias or field}={shown(info.default)}" for field, info in spec.model_fields.items()}
        width = max(map(len, settings.values()))
        lines += [f"  {text:<{width}}  {spec_help(spec, [field])}".rstrip() for field, text in settings.items()]
    lines += ["", "Examples", *(f"  python -m mxtrain {example}" for example in command.examples)]
    return with_program_name("\n".join(lines))
