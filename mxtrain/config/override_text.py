"""Overrides as text on a Hydra command line. Knows their grammar, not Hydra."""

from __future__ import annotations

import os
import re
from typing import List, Sequence

NOT_FOR_EVAL = r"\+*(callback|logger|hydra)\."
"""The beginning of overrides that `eval` and `predict` do not use."""


def quote(text: str) -> str:
    """`text` as a quoted value that Hydra reads back unchanged."""
    # A backslash counts only before a quote, or at the end, where it would hide the closing one.
    escaped = re.sub(r'(\\*)("|$)', lambda match: match[1] * 2 + ('\\"' if match[2] else ""), text)
    return f'"{escaped}"'


def code_arguments(arguments: Sequence[str]) -> List[str]:
    """The flags and overrides of a run with which `eval` and `predict` accept the classes that it was made with."""
    flags = list(arguments[:2]) if list(arguments[:1]) == ["--config-dir"] else []
    elsewhere = any(re.match(r"\+*hydra\.searchpath", word) for word in arguments)
    typed = [word for word in arguments if re.search(r"_target_\s*[:=]", word) and not re.match(NOT_FOR_EVAL, word)]
    if elsewhere or not all(re.match(r"(model|dataset)\._target_=", word) for word in typed):
        return [*flags, "--trust-code"]
    return [*flags, *typed]


def expand_home(text: str) -> str:
    """An override with the home folder for `~/` at the begin of its value, or of one in a list: shells leave it as it
    is within a word, and Hydra's grammar has no `~` in values."""
    if "'" in text or '"' in text:
        return text
    return re.sub(r"(?<=[=,\[])~(?=/)", lambda match: os.path.expanduser("~"), text)


def key_of(text: str) -> str:
    """The setting or group that an override is about."""
    return text.partition("=")[0].lstrip("+~")
