"""Values as text on a Hydra command line. Knows the grammar of overrides, not Hydra."""

from __future__ import annotations

import re


def quote(text: str) -> str:
    """`text` as a quoted value that Hydra reads back unchanged."""
    # A backslash counts only before a quote, or at the end, where it would hide the closing one.
    escaped = re.sub(r'(\\*)("|$)', lambda match: match[1] * 2 + ('\\"' if match[2] else ""), text)
    return f'"{escaped}"'
