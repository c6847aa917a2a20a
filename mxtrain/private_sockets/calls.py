"""Replaces the functions that a loaded shared library calls in others.

A library calls functions of other libraries through a table of addresses, one for each function, that the dynamic
linker fills in (ELF's global offset table). This module replaces addresses in the table of one library. Other libraries
of the process continue to call the original functions.

Source: System V ABI, chapter 5, dynamic linking (https://www.sco.com/developers/gabi/latest/ch5.dynamic.html).
"""

from __future__ import annotations

import atexit
import ctypes
import errno
import mmap
import struct
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple

_ELF64, _LITTLE_ENDIAN = 2, 1
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_PLTRELSZ, _DT_STRTAB, _DT_SYMTAB, _DT_RELA, _DT_RELASZ, _DT_JMPREL = 2, 5, 6, 7, 8, 23
_RELOCATION, _SYMBOL = struct.Struct("<QQq"), struct.Struct("<IBBHQQ")
_NOT_A_FUNCTION = (0, 8, 37)
"""Types of relocations without a symbol: none, relative and irelative on x86-64."""
_LIBC = ctypes.CDLL(None, use_errno=True)

Replacement = Callable[..., int]
_kept: List[object] = []
"""Objects called from C, which must live as long as the process."""


def replace_calls(
    library: str, types: Mapping[str, Any], replacements: Mapping[str, Callable[[Replacement], Replacement]]
) -> bool:
    """Replaces functions that a library calls with Python functions, until the interpreter ends.

    Args:
        library: path of a loaded library.
        types: name of a function -> its type, from `ctypes.CFUNCTYPE`.
        replacements: name of a function -> factory that receives the original function and returns its replacement,
            which may raise OSError.

    Returns:
        True if all functions were replaced; otherwise none was.
    """
    places = find_calls(Path(library), list(replacements))
    if set(places) != set(replacements):
        return False
    loaded = ctypes.CDLL(library)
    for name, build in replacements.items():
        original = ctypes.cast(getattr(loaded, name), ctypes.c_void_p).value
        ours = types[name](_answering(build(types[name](original))))
        _kept.append(ours)
        for place in places[name]:
            _write(place, ctypes.cast(ours, ctypes.c_void_p).value)
            # Threads of the library can run longer than the interpreter, so put the original functions back.
            atexit.register(_write, place, original)
    return True


def _answering(function: Replacement) -> Replacement:
    """Converts an OSError to -1 and errno, as C expects; ctypes would only print the exception."""

    def call(*arguments: object) -> int:
        try:
            return function(*arguments)
        except OSError as error:
            ctypes.set_errno(error.errno or errno.EIO)
            return -1

    return call


def find_calls(library: Path, names: List[str]) -> Dict[str, List[int]]:
    """Finds the memory locations at which a loaded library keeps the addresses of functions that it calls: name ->
    locations. Functions called in other ways are omitted."""
    library = library.resolve()
    starts = [start for start, _, _, path in _mappings() if path == str(library)]
    found: Dict[str, List[int]] = {}
    if not starts:
        return found
    with open(library, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as image:
        if image[:4] != b"\x7fELF" or image[4] != _ELF64 or image[5] != _LITTLE_ENDIAN:
            return found
        for offset, name in _relocations(image, [name.encode() for name in names]):
            found.setdefault(name.decode(), []).append(min(starts) + offset)
    return found


def _relocations(image: mmap.mmap, names: List[bytes]) -> Iterator[Tuple[int, bytes]]:
    """Yields (offset from the start of the library, name) of the table entries for these functions."""
    at, size, count = struct.unpack_from("<Q", image, 32)[0], *struct.unpack_from("<HH", image, 54)
    headers = [struct.unpack_from("<IIQQQQ", image, at + number * size) for number in range(count)]
    loads = [(address, offset, length) for kind, _, offset, address, _, length in headers if kind == _PT_LOAD]

    def position(address: int) -> int:
        """Returns the position of an address in the file."""
        return next(offset + address - begin for begin, offset, length in loads if begin <= address < begin + length)

    dynamic = next(((offset, length) for kind, _, offset, _, _, length in headers if kind == _PT_DYNAMIC), (0, 0))
    tags = dict(struct.iter_unpack("<QQ", image[dynamic[0] : sum(dynamic)]))
    wanted = tuple(name + b"\0" for name in names)
    symbols, texts = position(tags[_DT_SYMTAB]), position(tags[_DT_STRTAB])
    first = min(begin for begin, _, _ in loads)
    for table, length in ((_DT_JMPREL, _DT_PLTRELSZ), (_DT_RELA, _DT_RELASZ)):
        if table not in tags:
            continue
        begin = position(tags[table])
        for address, info, _ in _RELOCATION.iter_unpack(image[begin : begin + tags[length]]):
            if info & 0xFFFFFFFF in _NOT_A_FUNCTION or not info >> 32:
                continue
            text = texts + _SYMBOL.unpack_from(image, symbols + (info >> 32) * _SYMBOL.size)[0]
            for name in wanted:
                if image[text : text + len(name)] == name:
                    yield address - first, name[:-1]


def _mappings() -> Iterator[Tuple[int, int, str, str]]:
    """Yields (first address, address after the last, permissions, path) of each memory mapping of the process."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split(None, 5)
        start, _, end = fields[0].partition("-")
        yield int(start, 16), int(end, 16), fields[1], fields[5] if len(fields) > 5 else ""


def _write(place: int, address: Optional[int]) -> None:
    """Replaces one entry of the table. Makes its page writable meanwhile if the dynamic linker made it read-only."""
    permissions = next(found for start, end, found, _ in _mappings() if start <= place < end)
    page = place - place % mmap.PAGESIZE
    is_read_only = "w" not in permissions
    if is_read_only and _LIBC.mprotect(ctypes.c_void_p(page), mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE):
        raise OSError(ctypes.get_errno(), "mprotect")
    ctypes.c_void_p.from_address(place).value = address
    if is_read_only:
        _LIBC.mprotect(ctypes.c_void_p(page), mmap.PAGESIZE, mmap.PROT_READ)
