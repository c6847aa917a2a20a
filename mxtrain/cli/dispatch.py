"""Selects the command, and converts errors to messages and exit codes."""

from __future__ import annotations

import functools
import gc
import importlib
import os
import sys
import warnings
from typing import TYPE_CHECKING, Callable, List, Optional, Tuple

from mxtrain.cli.commands import COMMANDS, help_of
from mxtrain.cluster.heartbeat import HEARTBEAT
from mxtrain.cluster.member import FORK_SERVER_FD
from mxtrain.cluster.stopping import EXIT_CODES, Terminated, limit_end, startup_signals, still_disconnects
from mxtrain.engine.collection import collection_paused
from mxtrain.errors import (
    AGREED_EXIT_CODES,
    EXIT_BAD_INPUT,
    EXIT_CRASHED,
    EXIT_FINISHED,
    EXIT_SIGINT,
    EXIT_SIGTERM,
    ConfigError,
    MxtrainError,
    describe_unexpected,
    did_you_mean,
)
from mxtrain.terminal.patient_stream import output_failure, patient_streams

if TYPE_CHECKING:
    from mxtrain.config.groups import Description

PRINTING_FLAGS = (
    "--help",
    "-h",
    "--hydra-help",
    "--version",
    "--cfg",
    "-c",
    "--info",
    "-i",
    "--shell-completion",
    "-sc",
    "--dry-run",
)
"""Flags with which `train` prints something instead of training."""

FLAGS_WITH_VALUE = (
    "--config-dir",
    "-cd",
    "--cfg",
    "-c",
    "--package",
    "-p",
    "--info",
    "-i",
    "--config-name",
    "-cn",
    "--config-path",
    "-cp",
    "--experimental-rerun",
)
"""Flags of Hydra whose value is the next word."""


def run(argv: Optional[List[str]] = None) -> int:
    """Runs one command; see `mxtrain.cli`."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    is_fork = FORK_SERVER_FD in os.environ
    if is_fork:
        from mxtrain.cluster.launch.preload import serve_forks

        arguments = serve_forks(lambda: _description_of_train(arguments[1:]))
    if argv is None:  # the process is this command's own
        warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
    with patient_streams() as output:
        is_disconnected = False  # True if all processes of the command have ended together
        try:
            with startup_signals():
                # Once in a process. A server has frozen its objects, and counting them takes 30 ms in a fork.
                with collection_paused(freeze=not (is_fork or gc.get_freeze_count())):
                    command = command_of(arguments)
                code = command()
                is_disconnected = code in AGREED_EXIT_CODES
        except MxtrainError as error:
            code = fail(str(error), error.exit_code)
        except KeyboardInterrupt as error:
            exit_code = EXIT_SIGTERM if isinstance(error, Terminated) else EXIT_SIGINT
            code = fail(interrupted(arguments), exit_code)
        except Exception as error:
            code = fail(describe_unexpected(error), EXIT_CRASHED)
        output.flush()
        problem = output_failure(output)
        if problem and code == EXIT_FINISHED and not writes_run(arguments):
            code = fail(problem, EXIT_BAD_INPUT)
    is_one_of_several = bool({"DMLC_ROLE", "HOROVOD_RANK"}.intersection(os.environ))
    if is_one_of_several and (not is_disconnected or still_disconnects()):
        # Shutting down the interpreter would wait for the other processes, which wait for this one.
        os._exit(code)  # both streams were flushed above, by `patient_streams`
    if argv is None and code in EXIT_CODES.values():
        limit_end(code)
    return code


def _description_of_train(arguments: List[str]) -> Description:
    description: Description = importlib.import_module(COMMANDS["train"].module).checked_description(arguments)
    return description


INSTEAD = {
    "infer": "Did you mean 'predict'?",
    "test": "Type `eval RUN split=test`.",
    "validate": "Type `eval RUN split=val`.",
    "resume": "The command that started a run continues it, with the same hydra.run.dir.",
    "sweep": "Type -m and several values of a setting: -m optimizer.lr=0.1,0.01; or `tune STUDY`, which searches.",
}
"""Commands of other programs, and what to type instead."""


def instead_of(name: str, following: List[str]) -> str:
    """Returns a suggestion for a word that is no command: the nearest command or the setting it begins; or empty."""
    if name in INSTEAD:
        return f" {INSTEAD[name]}"
    from mxtrain.config.groups import GROUPS, PRESET_GROUPS

    if name in (*GROUPS, *PRESET_GROUPS):
        setting = following[0] if following and following[0].partition("=")[0].isidentifier() else ""
        suggestion = f"{name}.{setting}" if "=" in setting else f"{name}={setting or 'OPTION'}"
        return f" It is a group of settings: type {suggestion}."
    return did_you_mean(name, COMMANDS)


def interrupted(arguments: List[str]) -> str:
    """Returns the message about a signal that came before or outside of training."""
    position = find_command(arguments)
    if position is None or arguments[position] == "train":
        return "interrupted before training began; nothing was lost"
    return f"interrupted before `{arguments[position]}` came to its end; the same command begins anew"


def writes_run(arguments: List[str]) -> bool:
    """Returns True if the command writes its results into a run directory, so that they survive a broken standard
    output."""
    position = find_command(arguments)
    return (position is None or arguments[position] == "train") and not only_prints(arguments)


def only_prints(arguments: List[str]) -> bool:
    """Returns True if a flag asks `train` to print something instead of training."""
    return any(argument.partition("=")[0] in PRINTING_FLAGS for argument in arguments)


def command_of(arguments: List[str]) -> Callable[[], int]:
    """Returns the function of the command, which returns the exit code.

    Raises:
        MxtrainError: the arguments are invalid.
    """
    if "--version" in arguments or arguments[:1] == ["version"]:
        from mxtrain import __version__

        return functools.partial(answer, f"mxtrain {__version__}")
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    name, arguments = split_command(arguments)
    if sys.flags.optimize > 1:
        raise ConfigError(
            f"PYTHONOPTIMIZE={sys.flags.optimize} (python -OO) removes docstrings, from which MXNet builds its "
            "functions. Type `unset PYTHONOPTIMIZE` first; PYTHONOPTIMIZE=1 works, too."
        )
    command = COMMANDS[name]
    if not command.helps_itself and {"--help", "-h"}.intersection(arguments):
        return functools.partial(answer, help_of(name))
    if name == "train" and arguments in (["--help"], ["-h"]):
        from mxtrain.cli.help import default_help

        text = default_help()
        if text is not None:
            return functools.partial(answer, text)
    if name in ("train", "tune") and sys.stdout.isatty() and not only_prints(arguments):
        from mxtrain.cluster.member import is_standby

        if not is_standby():
            print("mxtrain: reading the configuration ...", flush=True)  # Hydra alone takes half a second to import
    role = None
    if command.in_groups and "--dry-run" not in arguments:
        role = enter_role()
    else:
        leave_role(name)
    if role is None:
        return functools.partial(importlib.import_module(command.module).run, arguments)
    from mxtrain.cluster.launch.store_server import serve

    return functools.partial(serve, role, lambda: importlib.import_module(command.module).description_of(arguments))


def split_command(arguments: List[str]) -> Tuple[str, List[str]]:
    """Returns the name of the command, which is `train` if none is typed, and all other arguments.

    Raises:
        ConfigError: there is no such command.
    """
    position = find_command(arguments)
    if position is None:
        return "train", arguments
    name, following = arguments[position], arguments[position + 1 :]
    if name not in COMMANDS:
        joined = "".join(following[:2])
        if joined.startswith("="):
            raise ConfigError(f"there are no spaces around =: write {name}{joined}.")
        near = instead_of(name, following)
        raise ConfigError(f"there is no command '{name}'.{near} Commands: {', '.join(COMMANDS)}.")
    return name, [*arguments[:position], *following]


def answer(text: str) -> int:
    """Prints a text; returns the exit code."""
    print(text)
    return EXIT_FINISHED


def enter_role() -> Optional[str]:
    """Starts the heartbeat of a process that is one of several.

    Returns:
        The role of a process that only serves and that a supervisor of ours watches; it starts without the description.
        None for every other process. A role that comes from somewhere else, or is left over from an earlier command, is
        checked against the description first.

    Raises:
        ConfigError: the environment describes the role incompletely.
    """
    from mxtrain.cluster.member import HEARTBEAT_FD, find_member

    member = find_member()
    if member is None:
        return None
    HEARTBEAT.begin(HEARTBEAT_FD)
    return member.role if member.role != "worker" and HEARTBEAT.has_listener else None


def leave_role(command: str) -> None:
    """Removes DMLC_ROLE from the environment of a command that is always one process.

    With that variable, `import mxnet` becomes a scheduler or server of ps-lite, which waits for workers for ever.
    """
    role = os.environ.pop("DMLC_ROLE", None)
    if role is not None:
        print(f"mxtrain: {command} runs in one process: DMLC_ROLE={role} is ignored", file=sys.stderr)


def find_command(arguments: List[str]) -> Optional[int]:
    """Returns the position of the command: the first word that is no override, no flag and no flag's value."""
    is_value = False
    for position, argument in enumerate(arguments):
        # A word is a misspelt command only in first position: elsewhere it may be the value of a misspelt flag.
        if not is_value and (is_command(argument) if position == 0 else argument in COMMANDS):
            return position
        if not is_value and not argument.startswith("-"):
            return None
        is_value = argument in FLAGS_WITH_VALUE
    return None


def is_command(argument: str) -> bool:
    """Returns True if an argument is a word, and not a flag, an override or a path."""
    return not argument.startswith(("-", "+", "~")) and "=" not in argument and argument.isidentifier()


def fail(text: str, exit_code: int) -> int:
    """Prints the cause, and returns the exit code."""
    from mxtrain.cluster.launch.outcome import print_cause

    print_cause(text, exit_code)
    return exit_code
