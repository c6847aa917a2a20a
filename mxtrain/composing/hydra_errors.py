"""Rephrases the errors of Hydra and OmegaConf for people."""

from __future__ import annotations

import re

RANGE_OF_TUNE = re.compile(r"(?:log|int|log_int)\([^()]*[,;][^()]*\)")
"""Ranges that only `tune` reads; Hydra reads `interval(...)` itself."""

_QUOTED_KEY = re.compile(r"""([{,]\s*)(['"])([\w.+ -]+)\2(?=\s*:)""")
"""Quoted key of a mapping, as in JSON and Python, which Hydra does not read."""


def malformed(text: str) -> str:
    """Returns the reason for which a word is not a valid override."""
    key = text.partition("=")[0]
    if any(text.count(sign) % 2 for sign in "'\""):
        reason = "a quote is not closed"
    elif any(text.count(left) != text.count(right) for left, right in (("[", "]"), ("{", "}"), ("(", ")"))):
        reason = "a bracket is not closed"
    elif "=" not in text:
        reason = "write key=value"
    elif not re.fullmatch(r"[+~]*[\w./@:-]+", key):
        reason = f"'{key}' is no name of a setting"
    else:
        value = text.partition("=")[2]
        if RANGE_OF_TUNE.fullmatch(value):
            return range_outside_tune(text)
        unquoted = _QUOTED_KEY.sub(r"\1\3", value)
        if unquoted != value:
            return f'{text} is no override: keys have no quotes: "{key}={unquoted}".'
        signs = " ".join(dict.fromkeys(re.findall(r"[^\w./@%+\-\s]", value)))
        reason = f"""a value with {signs or "such signs"} in it needs quotes: "{key}='{value}'\""""
    return f"{text} is no override: {reason}."


def range_outside_tune(text: str) -> str:
    """Returns the message about a range of numbers that another command than `tune` was given."""
    return f"{text}: ranges belong to `tune`, which chooses the values: mxtrain tune STUDY '{text}'."


def first_line(error: BaseException) -> str:
    """Returns the message's first line without its full stop; the class where there is no message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def reasons_of(error: BaseException) -> str:
    """Returns the first lines of the messages of an error and its causes, without Hydra's advice to add keys with `+`:
    `Error merging override x=1` alone does not help."""
    causes = [error]
    # Hydra wraps the error of OmegaConf, which alone names the fault.
    while causes[-1].__cause__ is not None:
        causes.append(causes[-1].__cause__)
    return ": ".join(dict.fromkeys(_readable(cause) for cause in causes))


def _readable(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and "append to your config" not in line]
    relevant = [line for line in lines if not line.startswith(("full_key:", "object_type=", "reference_type="))]
    return " ".join(relevant).rstrip(".") or type(error).__name__
