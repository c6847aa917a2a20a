"""Kinds of input, damages and expected messages: the rows of docs/reference/damaged-input.md. A kind of input is a
function that makes a whole one and returns its reader; a damage is a function that spoils it. `@kind` and `@damage`
register them; a `Case` is plain data that names both. A new row is a `Case` and, for a new damage, a function."""

from __future__ import annotations

import ctypes
import os
import shutil
import struct
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import numpy as np
import pytest
from PIL import Image

from mxtrain.data.spec import open_splits

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

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
        said: a part of the message; " ... " stands for any other part, such as a folder.
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


def kind_of_fuzz(name: str, form: str) -> None:
    """Registers an input of `scripts/fuzz files`, which is opened as in training and in `data check`."""

    @kind(name)
    def _(folder: Path) -> Read:
        from fuzz_parts import files

        if form not in files.available([form]):
            pytest.skip(f"{form}: a library is not installed")
        return files.FORMATS[form](folder)


def damaged(name: str, called: str, file: str, spoil: Spoil, said: str, exit_code: int = 2) -> Case:
    """Registers a damage to one file of a kind, and returns its row."""
    damage_file((name, file), called=called)(spoil)
    return Case(name, called, said, exit_code)


def cut(length: int) -> Spoil:
    """Returns the damage that leaves the first bytes, or all but the last ones."""
    return lambda path: path.write_bytes(path.read_bytes()[:length])


def replaced(old: str, new: str) -> Spoil:
    """Returns the damage that replaces a text once."""

    def spoil(path: Path) -> None:
        content = path.read_bytes()
        assert old.encode() in content
        path.write_bytes(content.replace(old.encode(), new.encode(), 1))

    return spoil


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def in_latin1(path: Path) -> None:
    path.write_bytes(path.read_bytes().decode().encode("latin-1", "replace"))


def in_utf16(path: Path) -> None:
    path.write_bytes(path.read_bytes().decode().encode("utf-16"))


def removed(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def piped(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def linked_to(target: str) -> Spoil:
    """Returns the damage that replaces a file by a link."""

    def spoil(path: Path) -> None:
        path.unlink()
        path.symlink_to(target)

    return spoil


def smaller_image(path: Path) -> None:
    with Image.open(path) as image:
        image.resize((5, 4)).save(path)
