"""Gives a checkpoint of one worker to the others, which may not see the run directory: file by file, a piece at a time,
so that no worker holds a large table and its message beside each other."""

from __future__ import annotations

import hashlib
import json
import mmap
import re
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Callable, Collection, Dict, Iterator, Optional, Tuple

from mxtrain.checkpoint.contents import (
    MANIFEST,
    MAPPED_FROM_BYTES,
    STATE,
    Checkpoint,
    Snapshot,
    read_checkpoint,
    write_contents,
)
from mxtrain.checkpoint.pieces import PIECE_BYTES, HostArray
from mxtrain.errors import CheckpointError

_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]*\Z")
Broadcast = Callable[[Optional[bytes]], bytes]
"""Returns on all workers the bytes that rank 0 gives; the others give None. Collective."""


def send_checkpoint(broadcast: Broadcast, checkpoint: Optional[Checkpoint], without: Collection[str] = ()) -> None:
    """Gives a checkpoint on the disk, or none, to the workers that call `receive_checkpoint`. Collective.

    Args:
        broadcast: of rank 0.
        checkpoint: or None.
        without: names of parameters to leave out, with all arrays named `<parameter>:...`. The result is another
            checkpoint, with other hashes.
    """
    if checkpoint is None:
        broadcast(b"")
    elif without:
        with tempfile.TemporaryDirectory(prefix="mxtrain-") as folder:
            target = Path(folder) / checkpoint.path.name
            write_contents(_reduced(checkpoint, without), target)
            _send(broadcast, read_checkpoint(target, verify_arrays=False))
    else:
        _send(broadcast, checkpoint)


def _send(broadcast: Broadcast, checkpoint: Checkpoint) -> None:
    names = [MANIFEST, STATE, *sorted(name for name in checkpoint.files if name != STATE)]
    sizes = {name: (checkpoint.path / name).stat().st_size for name in names}
    broadcast(json.dumps({"name": checkpoint.path.name, "sizes": sizes}).encode())
    for name, size in sizes.items():
        with open(checkpoint.path / name, "rb") as file:
            for length in _lengths(size):
                broadcast(file.read(length))


def _reduced(checkpoint: Checkpoint, without: Collection[str]) -> Snapshot:
    """The same without some parameters. Large files are mapped into memory, so these are not read."""
    arrays: Dict[str, Dict[str, HostArray]] = {}
    for stem in checkpoint.stems:
        named = checkpoint.arrays(stem)
        kept: Dict[str, HostArray] = {n: array for n, array in named.items() if n.partition(":")[0] not in without}
        if kept:
            arrays[stem] = kept
    return Snapshot(
        step=checkpoint.step, epoch=checkpoint.epoch, arrays=arrays, state=checkpoint.state, metric=checkpoint.metric,
        direction=checkpoint.direction, monitor=checkpoint.monitor,
    )  # fmt: skip


def receive_checkpoint(broadcast: Broadcast) -> Optional[Checkpoint]:
    """The checkpoint that rank 0 sends, verified. It is in memory, large files in temporary ones without a name, which
    are read as they are needed: a worker that is killed leaves none behind. Collective.

    Raises:
        CheckpointError: it arrived damaged.
    """
    said = broadcast(None)
    if not said:
        return None
    header = json.loads(said)
    sizes: Dict[str, int] = header["sizes"]
    if not all(_NAME.match(name) for name in [header["name"], *sizes]):
        raise CheckpointError(f"a checkpoint arrived with the file names {', '.join(sizes)}")
    with tempfile.TemporaryDirectory(prefix="mxtrain-") as folder:
        target = Path(folder) / header["name"]
        target.mkdir()
        for name in (MANIFEST, STATE):
            (target / name).write_bytes(b"".join(broadcast(None) for _ in _lengths(sizes[name])))
        for name, size in sizes.items():
            if name not in (MANIFEST, STATE):  # only their sizes are looked at; they take no room
                with open(target / name, "xb") as file:
                    file.truncate(size)
        checkpoint = read_checkpoint(target, verify_arrays=False)
    held: Dict[str, memoryview] = {}
    for name in sizes:
        if name not in (MANIFEST, STATE):
            held[name], digest = _receive(broadcast, sizes[name])
            if digest != checkpoint.files[name].sha256:
                raise CheckpointError(f"{name} of the checkpoint {header['name']} arrived damaged")
    return replace(checkpoint, held=held)


def _lengths(size: int) -> Iterator[int]:
    """The lengths of the pieces of a file; all workers count them alike."""
    for begin in range(0, size, PIECE_BYTES):
        yield min(PIECE_BYTES, size - begin)


def _receive(broadcast: Broadcast, size: int) -> Tuple[memoryview, str]:
    """The content of one file, read-only, and its SHA-256, taken of the pieces: a mapped file is not read for it."""
    made = hashlib.sha256()

    def pieces() -> Iterator[bytes]:
        for _ in _lengths(size):
            piece = broadcast(None)
            made.update(piece)
            yield piece

    if size < MAPPED_FROM_BYTES:
        content = memoryview(b"".join(pieces()))
    else:
        with tempfile.TemporaryFile(prefix="mxtrain-") as file:
            for piece in pieces():
                file.write(piece)
            file.flush()
            content = memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ))
    return content, made.hexdigest()
