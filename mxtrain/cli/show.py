"""Flags that print something instead of running: help, the composed configuration, completions."""

from __future__ import annotations

import os
import shlex
import sys
from typing import List, Sequence

from hydra.core.hydra_config import HydraConfig

from mxtrain.cli import arguments as command_line
from mxtrain.cli.arguments import Arguments
from mxtrain.cli.commands import COMMANDS
from mxtrain.cli.help import help_text
from mxtrain.composing.composer import Composed, Composer
from mxtrain.composing.config_files import CONFIG_NAME
from mxtrain.composing.mistakes import did_you_mean_any, nearest_settings, settings_of
from mxtrain.config.plugins import find_plugins
from mxtrain.errors import EXIT_FINISHED, ConfigError
from mxtrain.terminal.program import STARTED_BY

SHELLS = ("bash", "zsh", "fish")
COMPLETED = "mxtrain"
"""The console script, which is completed also where this was called by `python -m mxtrain`."""


def show(parsed: Arguments) -> int:
    """Prints what a flag asks for; returns the exit code.

    Raises:
        ConfigError: an override is wrong. The run that they describe need not be possible.
    """
    if parsed.shows == "shell_completion":
        return complete(parsed)
    command_line.no_positionals(parsed, "train")
    is_help = parsed.shows == "help"
    for plugin in find_plugins() if is_help else ():
        if plugin.problem:
            print(f"warning: {plugin.message}", file=sys.stderr)
    # Help must be there even if an installed plug-in cannot be used; the warning has named it.
    with Composer(parsed.config_dirs, check_plugins=not is_help) as composer:
        composed = composer.compose(parsed.overrides)
        overrides = list(composed.overrides)
        if parsed.shows == "help":
            print(help_of_configuration(composed))
        elif parsed.shows == "hydra_help":
            composer.hydra.hydra_help(config_name=CONFIG_NAME, args_parser=parsed.parser, args=parsed.options)
        elif parsed.shows == "info":
            composer.hydra.show_info(parsed.options.info, config_name=CONFIG_NAME, overrides=overrides)
        else:
            show_config(parsed, composer, overrides)
    return EXIT_FINISHED


def show_config(parsed: Arguments, composer: Composer, overrides: List[str]) -> None:
    """Prints the configuration for `--cfg`, with `--package` and `--resolve` as in Hydra."""
    package = parsed.options.package
    if package not in (None, "_global_"):
        known = settings_of(composer.load(composer.parse(overrides)))
        if package not in known and not any(path.startswith(package + ".") for path in known):
            near = did_you_mean_any(nearest_settings(package, [*known, *composer.groups()]))
            raise ConfigError(f"--package {package}: there is no such part of the configuration.{near}")
    composer.hydra.show_cfg(
        config_name=CONFIG_NAME,
        overrides=overrides,
        cfg_type=parsed.options.cfg,
        package=package,
        resolve=parsed.options.resolve,
    )


def help_of_configuration(composed: Composed) -> str:
    """Returns the help with the chosen options of a configuration."""
    HydraConfig.instance().cfg = None
    composer = composed.composer
    groups = composer.groups()
    return help_text(
        composed.hydra.help.template,
        {group: composer.options(group) for group in groups},
        {group: composed.chosen(group) for group in groups},
    )


# Completion in a shell. Hydra completes overrides and flags; commands are completed here.


def complete(parsed: Arguments) -> int:
    """Prints the code of shell completion for `install=SHELL`; the shell then calls `query=SHELL` at each TAB."""
    words = [*parsed.overrides, *parsed.positionals]
    action, _, shell = words[0].partition("=") if len(words) == 1 else ("", "", "")
    if action not in ("install", "uninstall", "query") or shell not in SHELLS:
        raise ConfigError(
            f"--shell-completion takes install=SHELL or uninstall=SHELL, and SHELL can be: {', '.join(SHELLS)}. "
            'E.g. eval "$(mxtrain --shell-completion install=bash)" in ~/.bashrc. It completes the command `mxtrain`, '
            "and if scripts/train prints it, also scripts/train."
        )
    sys.argv[0] = COMPLETED
    if action == "query" and not _prepare_query(os.environ.get("COMP_LINE", "")):
        return EXIT_FINISHED
    with Composer(parsed.config_dirs) as composer:
        composer.hydra.shell_completion(config_name=CONFIG_NAME, overrides=words)
    script = os.environ.get(STARTED_BY)
    if action == "install" and shell in ("bash", "zsh") and script:
        # A shell knows completions of a path by the path as typed, and then by its last part, `train`.
        names = " ".join(map(shlex.quote, dict.fromkeys([script, os.path.abspath(script)])))
        print(f"\ncomplete -o nospace -o default -F hydra_bash_completion {names}")
    return EXIT_FINISHED


def _prepare_query(line: str) -> bool:
    """Completes a command, or removes it from COMP_LINE, which Hydra reads. Returns True if Hydra must complete the
    rest."""
    words: Sequence[str] = line.split()
    position = 2 if words[:1] != ["python"] else 4
    at_command = len(words) < position or (len(words) == position and not line.endswith(" "))
    prefix = words[position - 1] if len(words) >= position else ""
    if at_command and "=" not in prefix:
        matching = [command for command in COMMANDS if command.startswith(prefix)]
        if matching:
            print(" ".join(matching))
    if not at_command and prefix in COMMANDS:
        rest = line.split(prefix, 1)[1].lstrip()
        subcommands = COMMANDS[prefix].subcommands
        word, space, following = rest.partition(" ")
        if subcommands and not space:
            print(" ".join(name for name in subcommands if name.startswith(word)))
            return False
        os.environ["COMP_LINE"] = f"{words[0]} {following if word in subcommands else rest}"
        return prefix != "doctor"
    return True
