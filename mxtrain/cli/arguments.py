"""Splits a command line into Hydra's flags, overrides, and the paths or keys that a command takes."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import dataclass
from typing import List, NoReturn, Optional, Sequence

from hydra._internal.utils import get_args_parser

from mxtrain.config.override_text import config_flags as config_flags
from mxtrain.config.override_text import is_override
from mxtrain.errors import ConfigError, did_you_mean
from mxtrain.types import expand_path

FLAGS = (
    "--help",
    "--hydra-help",
    "--version",
    "--cfg",
    "--resolve",
    "--package",
    "--multirun",
    "--config-dir",
    "--info",
    "--shell-completion",
    "--trust-code",
    "--dry-run",
)

REFUSED_FLAGS = {
    "config_name": "--config-name: there is one configuration. Bring own groups and presets with --config-dir DIR, "
    "and choose a preset with experiment=NAME.",
    "config_path": "--config-path: mxtrain's own groups are always there. Add yours with --config-dir DIR.",
    "experimental_rerun": "--experimental-rerun: to go on with a run, give the same command with hydra.run.dir=DIR.",
}
"""Flag of Hydra that mxtrain does not support -> message with what to type instead."""

PRINTING_OPTIONS = ("help", "hydra_help", "cfg", "info", "shell_completion", "dry_run")
"""Names, in argparse, of the flags that print something instead of training."""

NO_DRY_SWEEP = (
    "--dry-run looks at one run, and a sweep has several: leave out -m and give each setting one value. A sweep checks "
    "the configurations of all of its jobs before the first one starts."
)


@dataclass(frozen=True)
class Arguments:
    """A parsed command line.

    Attributes:
        overrides: `key=value` and their variants, in order.
        positionals: all other arguments that are no flags.
        config_dirs: folders of the user's own groups and presets.
        trusts_code: whether classes that only a checkpoint names may be imported and called.
        multirun: whether `-m` was given.
        shows: what to print instead of running: help, hydra_help, cfg, info, shell_completion, dry_run, or
            None.
        options: all flags, parsed by `parser`.
        parser: Hydra's parser, which `--hydra-help` describes.
    """

    overrides: List[str]
    positionals: List[str]
    config_dirs: List[str]
    trusts_code: bool
    multirun: bool
    shows: Optional[str]
    options: argparse.Namespace
    parser: argparse.ArgumentParser


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message.replace("argument ", "", 1) + ". `python -m mxtrain --help` shows all flags.")


def parse(arguments: Sequence[str], reads_checkpoint: bool = False, trains: bool = False) -> Arguments:
    """Parses the arguments after the command.

    Args:
        arguments: arguments after the command.
        reads_checkpoint: True if the command takes its description from a checkpoint.
        trains: True if the command is `train`.

    Raises:
        ConfigError: an unknown flag, one without its value, or several that exclude each other.
    """
    parser = get_args_parser()
    parser.add_argument(
        "--trust-code", action="store_true", help="eval and predict: run whatever code the checkpoint names"
    )
    parser.add_argument("--dry-run", action="store_true", help="train: estimate memory and time, and train nothing")
    # Hydra makes the parser. argparse's own class would print the usage and exit.
    parser.__class__ = _Parser
    options, unknown = parser.parse_known_intermixed_args(list(arguments))
    if unknown:
        hint = _meant_by(unknown[0], options.overrides)
        raise ConfigError(f"there is no flag '{unknown[0]}'.{hint} Flags: {', '.join(FLAGS)}.")
    for name, sentence in REFUSED_FLAGS.items():
        if getattr(options, name) is not None:
            raise ConfigError(sentence)
    if options.trust_code and not reads_checkpoint:
        raise ConfigError(
            "--trust-code goes with eval and predict, which take a description from a checkpoint. Here nothing is run "
            "but what you type: leave it out."
        )
    if options.dry_run and not trains:
        raise ConfigError("--dry-run goes with train, which it keeps from training. Leave it out.")
    if options.dry_run and options.multirun:
        raise ConfigError(NO_DRY_SWEEP)
    shows = [name for name in PRINTING_OPTIONS if getattr(options, name)]
    # Hydra's --shell-completion also completes command lines with -m; every other pair of these flags is an error.
    exclusive = [*shows, *(["multirun"] if options.multirun and shows != ["shell_completion"] else [])]
    if len(exclusive) > 1:
        flags = " and ".join("--" + name.replace("_", "-") for name in exclusive)
        raise ConfigError(f"{flags} exclude each other: give one of them.")
    if options.cfg is None and (options.resolve or options.package):
        raise ConfigError(f"{'--resolve' if options.resolve else '--package'} goes with --cfg job|hydra|all.")
    return Arguments(
        overrides=[word for word in options.overrides if is_override(word)],
        positionals=[word for word in options.overrides if not is_override(word)],
        config_dirs=[expand_path(options.config_dir)] if options.config_dir else [],
        trusts_code=bool(options.trust_code),
        multirun=bool(options.multirun),
        shows=shows[0] if shows else None,
        options=options,
        parser=parser,
    )


def _meant_by(flag: str, words: Sequence[str]) -> str:
    """Returns a hint at the flag or setting that was meant: other programs take settings as flags, `--lr 0.1`."""
    from mxtrain.composing.mistakes import setting_for_flag
    from mxtrain.composing.setting_names import OTHER_NAMES
    from mxtrain.config.groups import GROUPS, NAMED_GROUPS, PRESET_GROUPS

    name, _, value = flag.lstrip("-").partition("=")
    name = name.replace("-", "_")
    near = did_you_mean(flag, FLAGS)
    is_known = name in (*GROUPS, *NAMED_GROUPS, *PRESET_GROUPS, *OTHER_NAMES)
    setting = setting_for_flag(name) if is_known or (name and not near) else ""
    value = value or next((word for word in words if "=" not in word), "...")
    return f" Settings are given without dashes: {setting}={value}." if setting else near


def no_positionals(parsed: Arguments, command: str) -> None:
    """Checks that only overrides were typed, for commands without other arguments.

    Raises:
        ConfigError: there is another argument.
    """
    if not parsed.positionals:
        return
    word, following = [*parsed.positionals, ""][:2]
    # Other programs take settings as two words: `optimizer.lr 0.1`.
    example = f"{word}={following}" if "." in word and following else "key=value"
    raise ConfigError(
        f"{shlex.quote(word)} is no override: write {example}. `{command}` takes only overrides and flags."
    )
