"""One command line, drawn from a seed and its number: the same two always give the same one."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import List, Mapping, Sequence


@dataclass(frozen=True)
class Case:
    """A typed command line and its environment.

    Attributes:
        number: of the case; with the seed it says all.
        kind: what is wrong, or might be.
        arguments: what follows `python -m mxtrain`.
        environment: variables besides the usual ones.
        stdout: a file, as most runs have it; closed; full, as a disk is; or a pipe that nobody reads.
    """

    number: int
    kind: str
    arguments: Sequence[str]
    environment: Mapping[str, str]
    stdout: str = "file"

    def shown(self) -> str:
        """Returns the command as typed in a shell."""
        words: List[str] = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        end = "" if self.stdout == "file" else f"   # stdout: {self.stdout}"
        return " ".join([*words, "mxtrain", *map(shlex.quote, self.arguments)]) + end
