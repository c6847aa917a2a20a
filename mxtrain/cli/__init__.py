"""The command line: parses arguments, composes the configuration, and runs one command."""

from __future__ import annotations

from typing import List, Optional


def main(argv: Optional[List[str]] = None) -> int:
    """Runs mxtrain with these arguments (default: the process's) and returns the exit code."""
    from mxtrain.cli.dispatch import run

    return run(argv)
