"""Durations as text. Imports no rich, because datasets use it and are imported for `--help` and to check settings."""

from __future__ import annotations


def format_seconds(seconds: float) -> str:
    """Formats a duration as h:mm:ss, or below a minute as seconds with one decimal."""
    if seconds < 60:
        return f"{seconds:.1f}s"
    whole = int(round(seconds))
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
