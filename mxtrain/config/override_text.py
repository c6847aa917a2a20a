"""Quotes and inspects overrides as text on a Hydra command line. Does not import Hydra."""

from __future__ import annotations

import os
import re
from numbers import Integral, Real
from typing import List, Mapping, Sequence

NOT_FOR_EVAL = r"\+*(callback|logger|hydra)\."
"""Regular expression of the start of overrides that `eval` and `predict` do not use."""


def quote(text: str) -> str:
    """Quotes text as a value that Hydra parses back unchanged."""
    # Hydra's grammar gives a backslash a meaning only before a quote. At the end it would escape the closing one.
    escaped = re.sub(r'(\\*)("|$)', lambda match: match[1] * 2 + ('\\"' if match[2] else ""), text)
    return f'"{escaped}"'


def code_arguments(arguments: Sequence[str]) -> List[str]:
    """Returns the flags and overrides with which `eval` and `predict` accept the user's own classes of a run.

    Args:
        arguments: the command line of the run.
    """
    flags = list(arguments[:2]) if list(arguments[:1]) == ["--config-dir"] else []
    has_search_path = any(re.match(r"\+*hydra\.searchpath", word) for word in arguments)
    target_overrides = [
        word for word in arguments if re.search(r"_target_\s*[:=]", word) and not re.match(NOT_FOR_EVAL, word)
    ]
    if has_search_path or not all(re.match(r"(model|dataset)\._target_=", word) for word in target_overrides):
        return [*flags, "--trust-code"]
    return [*flags, *target_overrides]


def expand_home(text: str) -> str:
    """Replaces `~/` at the start of an override's value, or of an element of a list, by the home folder.

    Shells expand `~` only at the start of a word, and Hydra's grammar does not allow it in values.
    """
    # In quotes a tilde is text, as it is for a shell.
    if "'" in text or '"' in text:
        return text
    return re.sub(r"(?<=[=,\[])~(?=/)", lambda match: os.path.expanduser("~"), text)


def quote_pairs(text: str) -> str:
    """Quotes the elements of a list that contain `=`, which Hydra's grammar does not allow without quotes, as in
    `cluster.launcher_options=[address=auto]`."""
    key, _, value = text.partition("=")
    if not re.fullmatch(r"\[[^\[\]{}()'\"]*=[^\[\]{}()'\"]*\]", value):
        return text
    elements = [element.strip() for element in value[1:-1].split(",")]
    return f"{key}=[{','.join(quote(element) if '=' in element else element for element in elements)}]"


def key_of(text: str) -> str:
    """Returns the setting or group of an override, without the prefix (`+`, `++`, `~`) and the value."""
    return text.partition("=")[0].lstrip("+~")


def is_override(word: str) -> bool:
    """Returns True for `key=value`, `+key=value` and `~key`. A path that contains `=` must begin with ./ or /."""
    return word.startswith(("+", "~")) or ("=" in word and not word.startswith(("/", "./", "../")))


def config_flags(folders: Sequence[str]) -> List[str]:
    """Returns the command-line flags for folders with the user's own configuration; only one folder is supported."""
    return ["--config-dir", folders[0]] if folders else []


def written(value: object) -> str:
    """Returns a value as text that Hydra's grammar parses back."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return quote(value)
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(written, value))}]"
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{key}:{written(one)}' for key, one in value.items())}}}"
    if isinstance(value, os.PathLike):
        return quote(os.fspath(value))
    # Converted to Python's types, because repr of NumPy 2 gives np.float64(0.1).
    if isinstance(value, Integral):
        return repr(int(value))
    return repr(float(value) if isinstance(value, Real) else value)
