"""Large arrays reach a file and come back without a second copy of them, with the bytes that a copy would give."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any, List

import numpy as np
import pytest

from mxtrain.checkpoint import CheckpointStore, Snapshot, canonical_sha256, contents, pieces, write_ndarrays
from mxtrain.checkpoint.pieces import ArrayInPieces, write_rows
from mxtrain.errors import DamagedCheckpoint


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "PIECE_BYTES", 100)  # 6 rows of 4 float32
    monkeypatch.setattr(contents, "MAPPED_FROM_BYTES", 64)


def table(rows: int = 20) -> np.ndarray:
    return np.random.RandomState(rows).randn(rows, 4).astype(np.float32)


def in_pieces(array: np.ndarray, read: Any = None) -> ArrayInPieces:
    return ArrayInPieces(array.shape, array.dtype, read or (lambda begin, end: array[begin:end].copy()))


def test_the_bytes_of_the_file_and_the_hash_match_a_copy(tmp_path: Path) -> None:
    asked: List[int] = []
    array = table()

    def read(begin: int, end: int) -> np.ndarray:
        asked.append(end - begin)
        return array[begin:end].copy()

    given = {"bias": table(3), "table": in_pieces(array, read)}
    whole = {"bias": table(3), "table": array}
    assert write_ndarrays(tmp_path / "a", given) == write_ndarrays(tmp_path / "b", whole)
    assert asked == [6, 6, 6, 2]
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert canonical_sha256(given) == canonical_sha256(whole)


def test_a_save_waits_for_arrays_that_are_the_runs_own(tmp_path: Path) -> None:
    """Changes after `save` are not in the file, and restored arrays equal the saved ones."""
    array = table()
    expected = array.copy()
    store = CheckpointStore(tmp_path, keep_last=1, keep_top=0)
    store.save(Snapshot(1, 0, {"model": {"table": in_pieces(array)}}, {}))
    array[:] = 0
    saved = store.latest()
    assert saved is not None
    found = saved.arrays("model")["table"]
    np.testing.assert_array_equal(found, expected)
    write_rows(found, array)  # type: ignore[arg-type]  # as an NDArray
    np.testing.assert_array_equal(array, expected)


def test_a_save_waits_for_its_arrays_and_not_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array, others, disk = table(), table(5), threading.Event()
    expected = array.copy()
    synchronize = os.fsync

    def fsync(fd: int) -> None:
        assert disk.wait(60)
        synchronize(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    tmp_path.joinpath("c").mkdir()
    store = CheckpointStore(tmp_path / "c", keep_last=1, keep_top=0)
    store.save(Snapshot(1, 0, {"model": {"table": in_pieces(array)}, "optimizer": {"table:0": in_pieces(others)}}, {}))
    array[:] = others[:] = 0
    disk.set()
    saved = store.latest()
    assert saved is not None
    np.testing.assert_array_equal(saved.arrays("model")["table"], expected)
    np.testing.assert_array_equal(saved.arrays("optimizer")["table:0"], table(5))


def test_a_save_that_fails_does_not_wait(tmp_path: Path) -> None:
    def read(begin: int, end: int) -> np.ndarray:
        raise OSError(28, "No space left on device")

    store = CheckpointStore(tmp_path, keep_last=1, keep_top=0)
    store.save(Snapshot(1, 0, {"model": {"bias": table(), "table": in_pieces(table(), read)}}, {}))
    outcome = store.wait()
    assert outcome is not None and outcome.path is None and "No space left" in str(outcome.error)
    assert not list(tmp_path.rglob("*.params"))


def test_mapped_arrays_are_verified_and_outlive_their_file(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep_last=1, keep_top=0)
    store.save(Snapshot(1, 0, {"model": {"table": table()}}, {}))
    saved = store.latest()
    assert saved is not None
    found = saved.arrays("model")["table"]
    assert pieces._mapping(found) is not None and not found.flags.writeable
    (saved.path / "model.params").rename(tmp_path / "elsewhere")
    np.testing.assert_array_equal(found, table())
    damaged = bytearray((tmp_path / "elsewhere").read_bytes())
    damaged[100] ^= 1
    (saved.path / "model.params").write_bytes(bytes(damaged))
    with pytest.raises(DamagedCheckpoint, match="model.params has SHA-256"):
        saved.arrays("model")
