"""Kinds of input, damages and expected messages: the rows of docs/reference/damaged-input.md. A kind of input is a
function that makes a whole one and returns its reader; a damage is a function that spoils it. `@kind` and `@damage`
register them; a `Case` is plain data that names both. A new row is a `Case` and, for a new damage, a function."""

from __future__ import annotations

import ctypes
import os
import struct
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import numpy as np

from mxtrain.data.spec import open_splits

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


def damage_file(*kinds_and_files: Tuple[str, str], called: str) -> Callable[[Spoil], Spoil]:
    """The same for a damage to one file, which has another name in each kind."""

    def register(spoil: Spoil) -> Spoil:
        for name, file in kinds_and_files:
            DAMAGES[name, called] = lambda folder, file=file: spoil(folder / file)
        return spoil

    return register


def read_splits(dataset: Any) -> Callable[[], None]:
    """Opens a dataset and reads every sample of it."""

    def read() -> None:
        with without_privileges():
            splits = open_splits(dataset)
            for source in (splits.train, splits.val, splits.test):
                if hasattr(source, "fetch"):
                    source.fetch(np.arange(len(source)), seed=0, epoch=0, train=False)

    return read


@contextmanager
def without_privileges() -> Iterator[None]:
    """Root reads what has no permission, unless it gives that up for a while."""
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    capget, capset = {"x86_64": (125, 126)}[os.uname().machine]
    header = struct.pack("Ii", 0x20080522, 0)
    before = ctypes.create_string_buffer(24)
    assert syscall(capget, header, before) == 0
    effective, permitted, inheritable, *rest = struct.unpack("6I", before.raw)
    reads_all = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
    assert syscall(capset, header, struct.pack("6I", effective & ~reads_all, permitted, inheritable, *rest)) == 0
    try:
        yield
    finally:
        assert syscall(capset, header, before.raw) == 0


def table(cases: List[Case]) -> str:
    """The rows in Markdown, kinds and damages in the order in which they stand."""
    lines = ["| what | damage | what is said | exit code |", "| --- | --- | --- | --- |"]
    for case in cases:
        said = case.said.replace("|", "\\|")
        lines.append(f"| {case.kind} | {case.damage} | `{said}` | {case.exit_code} |")
    return "\n".join(lines) + "\n"
