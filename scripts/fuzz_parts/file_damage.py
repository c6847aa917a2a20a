"""Damages one file of an input: bytes, numbers, fields, encodings, nesting, and what the file is."""

from __future__ import annotations

import os
import pickle
import re
from pathlib import Path
from random import Random
from typing import Callable, Dict, List

EXTREMES = (
    "1e400",
    "-1e400",
    "1" + "0" * 400,
    "9223372036854775808",
    "-9223372036854775809",
    "18446744073709551616",
    "4294967296",
    "2147483648",
    "-1",
    "0",
    "NaN",
    "Infinity",
    "-0.0",
    "1e-400",
    "1_0",
    "0x10",
    "\u0663",
    "null",
    "true",
    '"x"',
    "[]",
    "{}",
    '""',
    "0.5",
    "1e308",
    "65536",
)
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")
_FIELD = re.compile(rb'"[^"\n]{0,40}"\s*:\s*(?:"[^"\n]*"|[\d.eE+-]+|true|false|null)|<(\w+)>[^<]*</\1>|[^,\t\n ]+')
TEXTS = (
    "\0",
    "\ufeff",
    "\u2028",
    "\x0c",
    "\x85",
    "\u00a0",
    "\ud7ff",
    "\r",
    "\n\n\n",
    "\t\t",
    '"',
    "'",
    "\\",
    "<",
    "&#0;",
    "&x;",
    "..",
    "/dev/zero",
    "~",
    "%s",
    "\x1b[2J",
    "a" * 5000,
)


def _flip(content: bytearray, random: Random) -> bytes:
    for _ in range(random.choice((1, 1, 2, 8))):
        if content:
            content[random.randrange(len(content))] ^= 1 << random.randrange(8)
    return bytes(content)


def _set_header(content: bytearray, random: Random) -> bytes:
    """Extremes in the first bytes, where binary formats say their sizes."""
    size = random.choice((1, 2, 4, 8))
    at = random.randrange(max(min(len(content), 200) - size, 1))
    content[at : at + size] = random.choice(
        (b"\xff" * size, bytes(size), b"\x7f" + b"\xff" * (size - 1), b"\x80" + bytes(size - 1))
    )
    return bytes(content)


def _cut(content: bytearray, random: Random) -> bytes:
    return bytes(content[: random.randrange(len(content) + 1)])


def _remove(content: bytearray, random: Random) -> bytes:
    at = random.randrange(len(content) + 1)
    del content[at : at + random.choice((1, 2, 10, 100))]
    return bytes(content)


def _insert(content: bytearray, random: Random) -> bytes:
    at = random.randrange(len(content) + 1)
    content[at:at] = random.choice(TEXTS).encode("utf-8", "surrogatepass")
    return bytes(content)


def _number(content: bytearray, random: Random) -> bytes:
    found = list(_NUMBER.finditer(content))
    for one in sorted(random.sample(found, min(len(found), random.choice((1, 1, 3)))), key=lambda one: -one.start()):
        content[one.start() : one.end()] = random.choice(EXTREMES).encode()
    return bytes(content)


def _field(content: bytearray, random: Random) -> bytes:
    """A field twice, or none, or replaced by another."""
    found = list(_FIELD.finditer(content))
    if not found:
        return bytes(content)
    one, other = random.choice(found), random.choice(found)
    new = random.choice((b"", one[0] + b"," + one[0], one[0] + one[0], other[0], random.choice(EXTREMES).encode()))
    content[one.start() : one.end()] = new
    return bytes(content)


def _line(content: bytearray, random: Random) -> bytes:
    lines = bytes(content).split(b"\n")
    at = random.randrange(len(lines))
    lines[at : at + 1] = random.choice(([], [lines[at]] * 2, [random.choice(lines)], [b""], [b" " + lines[at]]))
    return b"\n".join(lines)


def _nest(content: bytearray, random: Random) -> bytes:
    depth = random.choice((60, 150, 3000, 100_000))
    begin, end = random.choice(((b"[", b"]"), (b'{"a":', b"}"), (b"<a>", b"</a>")))
    found = list(_NUMBER.finditer(content))
    at = random.choice(found).span() if found else (0, 0)
    content[at[0] : at[1]] = begin * depth + b"1" + (end * depth if random.random() < 0.7 else b"")
    return bytes(content)


def _encoding(content: bytearray, random: Random) -> bytes:
    text = bytes(content).decode("utf-8", "replace")
    if random.random() < 0.4:
        name = random.choice(("zip", "rot13", "utf-7", "gbk", "big5", "utf-16", "nothing", "idna", "ascii"))
        return bytes(content).replace(b'encoding="utf-8"', f'encoding="{name}"'.encode())
    return text.encode(
        random.choice(("utf-16", "utf-16-le", "utf-32", "utf-8-sig", "latin-1", "gb18030", "cp037")), "replace"
    )


BEGINNINGS = (
    b"",
    b"\0" * 100,
    pickle.dumps(["x"]),
    b"\x1f\x8b\x08\0",
    b"PK\x03\x04",
    b"<html></html>",
    b"null",
    b"[]",
    b"\x89PNG\r\n\x1a\n",
    b"{}",
    b"1",
    b'""',
    b"PAR1PAR1",
    b"\x93NUMPY",
    b"%!PS-Adobe",
)


def _other_file(content: bytearray, random: Random) -> bytes:
    return random.choice(BEGINNINGS)


CONTENTS: Dict[str, Callable[[bytearray, Random], bytes]] = {
    "bytes flipped": _flip,
    "sizes in the header": _set_header,
    "cut off": _cut,
    "bytes removed": _remove,
    "text inserted": _insert,
    "numbers": _number,
    "fields": _field,
    "lines": _line,
    "nesting": _nest,
    "encoding": _encoding,
    "another file": _other_file,
}
WEIGHTS = (3, 3, 2, 1, 2, 5, 4, 2, 1, 1, 1)
PLACES = ("pipe", "folder", "link to /dev/zero", "link to nothing", "link to itself", "removed", "unreadable name")


def damage(folder: Path, random: Random) -> str:
    """Damages one file in a folder, or rarely two; returns what was done."""
    return "; ".join(_damage_one(folder, random) for _ in range(random.choice((1, 1, 1, 2))))


def _damage_one(folder: Path, random: Random) -> str:
    files: List[Path] = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    if not files:
        return "nothing"
    # Annotations are read at once, and most images alike: files in the upper folders are chosen more often.
    path = random.choice(files if random.random() < 0.5 else sorted(files, key=lambda one: len(one.parts))[:4])
    name = str(path.relative_to(folder))
    if random.random() < 0.05:
        place = random.choice(PLACES)
        _replace(path, place)
        return f"{name}: {place}"
    kind = random.choices(list(CONTENTS), WEIGHTS)[0]
    path.write_bytes(CONTENTS[kind](bytearray(path.read_bytes()), random))
    return f"{name}: {kind}"


def _replace(path: Path, place: str) -> None:
    path.unlink()
    if place == "pipe":
        os.mkfifo(path)
    elif place == "folder":
        path.mkdir()
    elif place.startswith("link"):
        os.symlink({"link to /dev/zero": "/dev/zero", "link to nothing": "nothing"}.get(place, path.name), path)
    elif place == "unreadable name":
        os.mkdir(os.fsencode(path) + b"\xff\xfe")
