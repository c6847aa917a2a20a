"""Broadcasts a checkpoint from rank 0 to workers that may not see the run directory.

Files are sent one after the other in pieces, so that no worker holds a large table and a message of its size at once.
"""

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
from mxtrain.files.temporary import temporary_root

_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]*\Z")
Broadcast = Callable[[Optional[bytes]], bytes]
"""Returns the bytes of rank 0 on all workers; other ranks pass None. Collective."""


def send_checkpoint(broadcast: Broadcast, checkpoint: Optional[Checkpoint], without: Collection[str] = ()) -> None:
    """Sends a checkpoint, or None, to the workers that call `receive_checkpoint`. Collective.

    Args:
        broadcast: the broadcast of rank 0.
        checkpoint: a checkpoint on the disk; None: the others receive None.
        without: names of parameters to leave out, with all arrays named `<parameter>:...`. The result is another
            checkpoint, with other hashes.
    """
    if checkpoint is None:
        broadcast(b"")
    elif without:
        with tempfile.TemporaryDirectory(prefix="mxtrain-", dir=temporary_root()) as folder:
            target = Path(folder) / checkpoint.path.name
            write_contents(_reduced(checkpoint, without), target)
            _send(broadcast, read_checkpoint(target, verify_arrays=False))
    else:
        _send(broadcast, checkpoint)


def _send(broadcast: Broadcast, checkpoint: Checkpoint) -> None:
    names = [MANIFEST, STATE, *sorted(name for name in checkpoint.files if name != STATE)]
    # Sizes come first, so that all workers make the same number of collective calls.
    sizes = {name: (checkpoint.path / name).stat().st_size for name in names}
    broadcast(json.dumps({"name": checkpoint.path.name, "sizes": sizes}).encode())
    for name, size in sizes.items():
        with open(checkpoint.path / name, "rb") as file:
            for length in _lengths(size):
                broadcast(file.read(length))


def _reduced(checkpoint: Checkpoint, without: Collection[str]) -> Snapshot:
    """Returns a snapshot of the checkpoint without some parameters. Large files are mapped, so what is left out is not
    read a second time."""
    arrays: Dict[str, Dict[str, HostArray]] = {}
    for stem in checkpoint.stems:
        arrays_by_name = checkpoint.arrays(stem)
        remaining: Dict[str, HostArray] = {
            name: array for name, array in arrays_by_name.items() if name.partition(":")[0] not in without
        }
        if remaining:
            arrays[stem] = remaining
    return Snapshot(
        step=checkpoint.step,
        epoch=checkpoint.epoch,
        arrays=arrays,
        state=checkpoint.state,
        metric=checkpoint.metric,
        direction=checkpoint.direction,
        monitor=checkpoint.monitor,
    )


def receive_checkpoint(broadcast: Broadcast) -> Optional[Checkpoint]:
    """Receives the checkpoint that rank 0 sends, and verifies it; None if rank 0 sends none. Collective.

    Small files are kept in memory, large ones in unnamed temporary files that are mapped, so a killed worker leaves no
    files behind.

    Raises:
        CheckpointError: a file arrived damaged.
    """
    header_bytes = broadcast(None)
    if not header_bytes:
        return None
    header = json.loads(header_bytes)
    sizes: Dict[str, int] = header["sizes"]
    # The names came over the network and become paths below, so they may hold no separator.
    if not all(_NAME.match(name) for name in [header["name"], *sizes]):
        raise CheckpointError(f"a checkpoint arrived with the file names {', '.join(sizes)}")
    with tempfile.TemporaryDirectory(prefix="mxtrain-", dir=temporary_root()) as folder:
        target = Path(folder) / header["name"]
        target.mkdir()
        for name in (MANIFEST, STATE):
            (target / name).write_bytes(b"".join(broadcast(None) for _ in _lengths(sizes[name])))
        for name, size in sizes.items():
            if name not in (MANIFEST, STATE):  # sparse files: `read_checkpoint` only compares their sizes here
                with open(target / name, "xb") as file:
                    file.truncate(size)
        checkpoint = read_checkpoint(target, verify_arrays=False)
    content_of: Dict[str, memoryview] = {}
    for name in sizes:
        if name not in (MANIFEST, STATE):
            content_of[name], digest = _receive(broadcast, sizes[name])
            if digest != checkpoint.files[name].sha256:
                raise CheckpointError(f"{name} of the checkpoint {header['name']} arrived damaged")
    return replace(checkpoint, content=content_of)


def _lengths(size: int) -> Iterator[int]:
    """Yields the lengths of the pieces of a file. All workers compute the same ones, so they are not sent."""
    for begin in range(0, size, PIECE_BYTES):
        yield min(PIECE_BYTES, size - begin)


def _receive(broadcast: Broadcast, size: int) -> Tuple[memoryview, str]:
    """Receives one file. Returns its content, read-only, and its SHA-256.

    The hash is computed from the pieces as they arrive, so a mapped file need not be read for it.
    """
    sha256 = hashlib.sha256()

    def pieces() -> Iterator[bytes]:
        for _ in _lengths(size):
            piece = broadcast(None)
            sha256.update(piece)
            yield piece

    if size < MAPPED_FROM_BYTES:
        content = memoryview(b"".join(pieces()))
    else:
        with tempfile.TemporaryFile(prefix="mxtrain-", dir=temporary_root()) as file:
            for piece in pieces():
                file.write(piece)
            file.flush()
            content = memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ))
    return content, sha256.hexdigest()
