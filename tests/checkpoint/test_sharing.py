"""A checkpoint that workers without the run directory get: the same arrays, piece by piece, and checked."""

from __future__ import annotations

from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Any, List, Optional

import numpy as np
import pytest

from mxtrain.checkpoint import Snapshot, sharing
from mxtrain.checkpoint.contents import read_checkpoint, write_contents
from mxtrain.checkpoint.pieces import write_rows
from mxtrain.engine.backend import nd
from mxtrain.errors import CheckpointError

TABLE = np.arange(9000, dtype=np.float32).reshape(3000, 3)
PIECE = 5000


class Wire:
    """Messages from rank 0 to the other rank, in order."""

    def __init__(self) -> None:
        self.said: List[bytes] = []
        self._queue: Queue = Queue()

    def __call__(self, blob: Optional[bytes]) -> bytes:
        if blob is None:
            return self._queue.get(timeout=30)  # type: ignore[no-any-return]
        self.said.append(blob)
        self._queue.put(blob)
        return blob


def sent(checkpoint: Any, wire: Wire) -> Any:
    sender = Thread(target=sharing.send_checkpoint, args=(wire, checkpoint))
    sender.start()
    try:
        return sharing.receive_checkpoint(wire)
    finally:
        sender.join(30)


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: Any) -> Any:
    monkeypatch.setattr(sharing, "PIECE_BYTES", PIECE)
    monkeypatch.setattr(sharing, "MAPPED_FROM_BYTES", 1000)
    arrays = {"model": {"table": TABLE, "bias": np.ones(2, np.float32)}, "ema": {"bias": np.zeros(2, np.float32)}}
    write_contents(Snapshot(7, 2, arrays, {"loss": float("inf")}), tmp_path / "step7")
    return read_checkpoint(tmp_path / "step7")


def test_checkpoint_is_transferred_in_pieces_without_a_folder(checkpoint: Any) -> None:
    """Small files in memory, large ones mapped; nothing depends on the sender's folder."""
    wire = Wire()
    found = sent(checkpoint, wire)
    assert max(map(len, wire.said)) == PIECE and len(wire.said) > TABLE.nbytes // PIECE
    for name in checkpoint.files:
        (checkpoint.path / name).unlink()
    assert not found.path.exists() and (found.step, found.epoch, found.state) == (7, 2, {"loss": float("inf")})
    np.testing.assert_array_equal(found.arrays("model")["table"], TABLE)
    table = nd.zeros(TABLE.shape)
    write_rows(found.arrays("model")["table"], table)
    np.testing.assert_array_equal(table.asnumpy(), TABLE)
    assert found.arrays("ema")["bias"].tolist() == [0, 0] and sent(None, Wire()) is None


@pytest.mark.parametrize("file", ["model.params", "ema.params"])
def test_damaged_transfer_is_refused(checkpoint: Any, file: str) -> None:
    path = checkpoint.path / file
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=f"{file} of the checkpoint step7 arrived damaged"):
        sent(checkpoint, Wire())


def test_file_names_outside_the_folder_are_refused() -> None:
    wire = Wire()
    wire(b'{"name": "step7", "sizes": {"../x": 1}}')
    with pytest.raises(CheckpointError, match=r"arrived with the file names \.\./x"):
        sharing.receive_checkpoint(wire)
