"""Splits a command line into Hydra's flags, overrides, and the paths or keys that a command takes."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import List, Sequence

from hydra._internal.utils import get_args_parser

from mxtrain.errors import ConfigError, did_you_mean

FLAGS = {
    "--help": "help", "--hydra-help": "hydra_help", "--version": "version", "--cfg": "cfg", "--resolve": "resolve",
    "--package": "package", "--multirun": "multirun", "--config-dir": "config_dir", "--info": "info",
    "--shell-completion": "shell_completion", "--experimental-rerun": "experimental_rerun",
}  # fmt: skip


@dataclass(frozen=True)
class Arguments:
    """A parsed command line.

    Attributes:
        overrides: `key=value` and their variants, in order.
        positionals: everything else that is no flag.
        flags: Hydra's flags as they were given, for Hydra.
        only_shows: whether the flags ask to print something instead of running.
    """

    overrides: List[str]
    positionals: List[str]
    flags: List[str]
    config_dirs: List[str]
    multirun: bool
    only_shows: bool


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        raise ConfigError(message)


def parse(arguments: Sequence[str]) -> Arguments:
    """Parses what follows the command.

    Raises:
        ConfigError: an unknown flag, or one without its value.
    """
    parser = get_args_parser()
    parser.__class__ = _Parser
    known, unknown = parser.parse_known_intermixed_args(list(arguments))
    for flag in unknown:
        raise ConfigError(f"there is no flag '{flag}'.{did_you_mean(flag, FLAGS)} Flags: {', '.join(FLAGS)}.")
    words = list(known.overrides)
    overrides = [word for word in words if is_override(word)]
    positionals = [word for word in words if not is_override(word)]
    only_shows = any(
        (known.help, known.hydra_help, known.cfg, known.info, known.shell_completion)
    )  # fmt: skip
    return Arguments(
        overrides=overrides,
        positionals=positionals,
        flags=[argument for argument in arguments if argument not in words],
        config_dirs=[known.config_dir] if known.config_dir else [],
        multirun=bool(known.multirun),
        only_shows=only_shows,
    )


def is_override(word: str) -> bool:
    """`key=value`, `+key=value`, `~key`; a path that holds `=` is written with a leading ./ or /."""
    return word.startswith(("+", "~")) or ("=" in word and not word.startswith(("/", "./", "../")))


def no_positionals(given: Arguments, command: str) -> None:
    """Raises: ConfigError: the command takes only overrides, and something else was given."""
    if given.positionals:
        word = given.positionals[0]
        raise ConfigError(f"'{word}' is no override: write key=value. `{command}` takes only overrides and flags.")
