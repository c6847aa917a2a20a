"""Picks the command, and turns errors into messages and exit codes."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from typing import List, Optional

from mxtrain.errors import EXIT_CRASHED, EXIT_SIGINT, ConfigError, MxtrainError, did_you_mean

COMMANDS = {
    "train": "mxtrain.cli.train",
    "eval": "mxtrain.cli.evaluate",
    "predict": "mxtrain.cli.predict",
    "explain": "mxtrain.cli.explain",
    "doctor": "mxtrain.cli.doctor",
}
"""Command -> the module whose `run(arguments)` returns the exit code."""


def run(argv: Optional[List[str]] = None) -> int:
    """Runs one command; see `mxtrain.cli.main`."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    # As `python -m` does: user classes in the current folder can be imported from the console script, too.
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        if arguments[:1] in (["--version"], ["version"]):
            from mxtrain import __version__

            print(f"mxtrain {__version__}")
            return 0
        command = arguments.pop(0) if arguments and is_command(arguments[0]) else "train"
        if command not in COMMANDS:
            raise ConfigError(
                f"there is no command '{command}'.{did_you_mean(command, COMMANDS)} Commands: {', '.join(COMMANDS)}."
            )
        os.environ.setdefault("HYDRA_FULL_ERROR", "1")
        return int(importlib.import_module(COMMANDS[command]).run(arguments))
    except MxtrainError as error:
        print_error(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        print_error("interrupted before training began; nothing was lost")
        return EXIT_SIGINT
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_CRASHED
    except Exception as error:
        traceback.print_exc()
        print_error(f"{type(error).__name__}: {error}")
        return EXIT_CRASHED


def is_command(argument: str) -> bool:
    """Whether an argument is a word, and not a flag, an override or a path."""
    return not argument.startswith(("-", "+", "~")) and "=" not in argument and argument.isidentifier()


def print_error(text: str) -> None:
    """Prints the cause to stderr, a line each, as the last thing that is printed."""
    sys.stdout.flush()
    for number, line in enumerate(text.splitlines() or [""]):
        # Indented lines belong to the one above.
        print(line if number and line.startswith(" ") else f"error: {line}", file=sys.stderr)
    sys.stderr.flush()


