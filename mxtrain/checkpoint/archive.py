"""Packs a checkpoint into one archive in memory, for workers that may not see the run directory."""

from __future__ import annotations

import json
import re
import struct
import tempfile
from pathlib import Path
from typing import Collection, Dict, Optional

from mxtrain.checkpoint.contents import MANIFEST, Checkpoint, Snapshot, read_checkpoint, write_contents
from mxtrain.checkpoint.pieces import HostArray
from mxtrain.errors import CheckpointError

_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]*\Z")
_LENGTH = struct.Struct("<Q")


def pack(checkpoint: Optional[Checkpoint], without: Collection[str] = ()) -> bytes:
    """Packs all files of a checkpoint; empty for None.

    Args:
        checkpoint: on the disk.
        without: names of parameters that are left out, and so is what is named `<parameter>:...`: then it is another
            checkpoint, with other hashes.
    """
    if checkpoint is None:
        return b""
    if without:
        with tempfile.TemporaryDirectory(prefix="mxtrain-") as folder:
            target = Path(folder) / checkpoint.path.name
            write_contents(_reduced(checkpoint, without), target)
            return pack(read_checkpoint(target, verify_arrays=False))
    contents = {name: (checkpoint.path / name).read_bytes() for name in [MANIFEST, *checkpoint.files]}
    sizes = {name: len(content) for name, content in contents.items()}
    header = json.dumps({"name": checkpoint.path.name, "sizes": sizes}).encode()
    return b"".join([_LENGTH.pack(len(header)), header, *contents.values()])


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


def unpack(archive: bytes) -> Optional[Checkpoint]:
    """The checkpoint that was packed, verified and in memory: a worker that is killed leaves no file behind.

    Raises:
        CheckpointError: it arrived damaged.
    """
    if not archive:
        return None
    (length,) = _LENGTH.unpack_from(archive)
    begin = _LENGTH.size + length
    header = json.loads(archive[_LENGTH.size : begin])
    if not all(_NAME.match(name) for name in [header["name"], *header["sizes"]]):
        raise CheckpointError(f"a checkpoint arrived with the file names {', '.join(header['sizes'])}")
    with tempfile.TemporaryDirectory(prefix="mxtrain-") as folder:
        target = Path(folder) / header["name"]
        target.mkdir()
        for name, size in header["sizes"].items():
            (target / name).write_bytes(archive[begin : begin + size])
            begin += size
        return read_checkpoint(target, verify_arrays=False).in_memory()
