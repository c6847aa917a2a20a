"""Durations as text. Imports no rich, because datasets use it and are imported for `--help` and to check settings."""

from __future__ import annotations


def format_seconds(seconds: float) -> str:
    """Formats a duration as h:mm:ss, or below a minute as seconds with one decimal."""
    if seconds < 60:
        return f"{seconds:.1f}s"
    rounded_s = int(round(seconds))
    return f"{rounded_s // 3600}:{rounded_s // 60 % 60:02d}:{rounded_s % 60:02d}"
