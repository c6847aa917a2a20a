"""Rejects overrides from an untrusted file unless the configuration that they compose is trusted.

Reasons: docs/decisions/0144-words-of-a-study.md.
"""

from __future__ import annotations

import re
from typing import Any, Dict, List, Sequence

from hydra.core.override_parser.types import Override

from mxtrain.composing.composer import Composer
from mxtrain.config.override_text import is_override, key_of
from mxtrain.config.trust import INTERPOLATION, MAX_SHOWN, require_trusted
from mxtrain.errors import ConfigError
from mxtrain.files.text_lines import printable_line

REMEDY = "If you trust it, add --trust-code, or type the whole command again"


def require_trusted_overrides(
    composer: Composer,
    overrides: Sequence[str],
    alternatives: Sequence[str],
    path: str,
    command: str,
    config_dirs: Sequence[str],
    remedy: str = REMEDY,
) -> None:
    """Rejects overrides that would run code of their author, or write outside of the run directory.

    Only settings of the groups of a run are allowed: no flags, no settings below `hydra` (its callbacks import classes,
    its logging opens files, its search path adds files), and no group that is moved there (`callback@hydra.x`).

    Args:
        composer: the user's own configuration files.
        overrides: overrides that are composed together.
        alternatives: further values of settings, each of which replaces one of `overrides`.
        path: path of the file, for messages.
        command: command that reads it.
        config_dirs: folders that the user has typed (`--config-dir`).
        remedy: sentence about what to do, without its full stop.

    Raises:
        ConfigError: some are not trusted; the message lists all of them. Nothing was imported or looked up.
    """
    every = list(dict.fromkeys([*overrides, *alternatives]))
    # A list of forbidden spellings missed 9 of 24 forms, so only what looks like a plain setting is parsed at all.
    refuse_overrides([word for word in every if not _is_plain(word)], path, remedy)
    try:
        parsed = composer.parse(every)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    groups = composer.groups()
    # Judged after parsing by Hydra itself: a parser of our own could read an override in another way.
    refuse_overrides([one.input_line for one in parsed if _leaves_groups(one, groups)], path, remedy)
    for override in parsed:  # values of ranges need not be composed: they add nothing else to mxtrain's own files
        require_trusted(_as_config(override), path, command, [], config_dirs, remedy)
    try:
        config = composer.compose(
            overrides
        ).config  # no override holds an interpolation: all are those of trusted files
    except ConfigError as error:
        raise ConfigError(f"{path} cannot be composed here: {error}") from None
    require_trusted(config, path, command, [], config_dirs, remedy)


def refuse_overrides(overrides: Sequence[str], path: str, remedy: str = REMEDY) -> None:
    """Raises a `ConfigError` that lists these words of a file, if there are any."""
    if overrides:
        lines = "\n".join(f"  {printable_line(word, MAX_SHOWN)}" for word in overrides)
        raise ConfigError(
            f"{path} contains overrides that can run code or write files outside of the run directory:\n{lines}\n"
            f"{remedy}."
        )


def _is_plain(word: str) -> bool:
    """Returns True for an override; False for a flag, an interpolation, and a key with characters that no setting
    has."""
    is_key = re.fullmatch(r"[A-Za-z_][\w-]*([./][\w-]+)*", key_of(word), re.ASCII) is not None
    return is_key and is_override(word) and INTERPOLATION not in word


def _leaves_groups(override: Override, groups: Sequence[str]) -> bool:
    root = re.split(r"[./]", override.key_or_group)[0]
    return root not in groups or override.package is not None or override.is_sweep_override()


def _as_config(override: Override) -> Dict[str, Any]:
    """Returns the configuration that consists of the value of an override alone."""
    names: List[str] = override.key_or_group.split(".")
    config: Any = None if override.is_delete() else override.value()
    for name in reversed(names):
        config = {name: config}
    return dict(config)
