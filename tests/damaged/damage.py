"""What is damaged, how, and what is said of it: the rows of docs/damaged-input.md.

A kind of input is a function that makes a whole one and gives what reads it; a damage is a function that spoils it.
`@kind` and `@damage` register them; a `Case` is plain data that names both. A new row is a `Case` and, where the damage
is new, a function.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Dict, List, Optional, Tuple

Read = Callable[[], Optional[str]]
"""Reads all of the input as a command would; gives what was said where that went well."""
Make = Callable[[Path], Read]
Spoil = Callable[[Path], None]

KINDS: Dict[str, Make] = {}
DAMAGES: Dict[Tuple[str, str], Spoil] = {}


@dataclass(frozen=True)
class Case:
    """One row of the table.

    Attributes:
        kind: what is damaged, e.g. "image folder".
        damage: what was done to it.
        said: a part of the message.
        exit_code: 2 where nothing was started; 1 where a training had begun; 0 where it goes on and says so.
    """

    kind: str
    damage: str
    said: str
    exit_code: int = 2

    def __str__(self) -> str:
        return f"{self.kind}, {self.damage}"


def kind(name: str) -> Callable[[Make], Make]:
    """Registers a function: an empty folder -> a whole input is written there; it returns what reads it."""

    def register(make: Make) -> Make:
        KINDS[name] = make
        return make

    return register


def damage(*kinds: str, called: str) -> Callable[[Spoil], Spoil]:
    """Registers a function: the folder of a whole input of these kinds -> it is damaged."""

    def register(spoil: Spoil) -> Spoil:
        for name in kinds:
            DAMAGES[name, called] = spoil
        return spoil

    return register


def table(cases: List[Case]) -> str:
    """The rows in Markdown, kinds and damages in the order in which they stand."""
    lines = ["| what | damage | what is said | exit code |", "| --- | --- | --- | --- |"]
    for case in cases:
        said = case.said.replace("|", "\\|")
        lines.append(f"| {case.kind} | {case.damage} | `{said}` | {case.exit_code} |")
    return "\n".join(lines) + "\n"
