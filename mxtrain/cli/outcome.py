"""What became of the jobs of this process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import List, Optional, Sequence

from mxtrain.errors import EXIT_FINISHED
from mxtrain.types import Result


class JobFailed(Exception):
    """Tells Hydra and its sweepers that a job failed. Its cause was shown when it happened."""


@dataclass(frozen=True)
class Outcome:
    number: Optional[int]
    """The job's number in a sweep, None for a single run."""
    overrides: Sequence[str]
    run_dir: Path
    result: Result


class Outcomes:
    """All jobs so far, in the order in which they ended."""

    def __init__(self) -> None:
        self.all: List[Outcome] = []

    def clear(self) -> None:
        self.all = []

    def add(self, number: Optional[int], overrides: Sequence[str], run_dir: Path, result: Result) -> None:
        from mxtrain.cli.main import print_error

        self.all.append(Outcome(number, list(overrides), run_dir, result))
        if result.exit_code != EXIT_FINISHED:
            label = "" if number is None else f"job {number} ({', '.join(overrides)}): "
            print_error(label + (result.cause or result.state))

    def exit_code(self) -> int:
        """0 if all jobs finished, else the code of the first that did not."""
        return next((o.result.exit_code for o in self.all if o.result.exit_code != EXIT_FINISHED), EXIT_FINISHED)


outcomes = Outcomes()
