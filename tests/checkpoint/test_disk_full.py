"""A save that fails says why, leaves nothing half written and keeps what was there; the next one can succeed."""

from __future__ import annotations

import errno
import os
import resource
import subprocess

import numpy as np
import pytest

from mxtrain.checkpoint import CheckpointStore, Snapshot
from mxtrain.files.durable import write_json_atomic


def snapshot(step: int, kilobytes: int) -> Snapshot:
    model = {f"{i}.weight": np.full((256,), step, "float32") for i in range(kilobytes)}
    return Snapshot(step, 0, {"model": model, "optimizer": dict(model)}, {})


def check_failure_and_recovery(store: CheckpointStore, said: str, too_large: int) -> None:
    store.save(snapshot(1, 20))
    outcome = store.wait()
    assert outcome is not None and outcome.error is None
    for _ in range(2):
        store.save(snapshot(2, too_large))
        outcome = store.wait()
        assert outcome is not None and outcome.path is None and said in outcome.error, outcome
        assert os.listdir(store.directory) == ["step-00000001"]
        found = store.latest()
        assert found is not None and found.step == 1 and (found.arrays("model")["0.weight"] == 1).all()
    store.save(snapshot(2, 30))
    outcome = store.wait()
    assert outcome is not None and outcome.error is None and os.listdir(store.directory) == ["step-00000002"]


@pytest.fixture
def megabyte(small_disk):
    return small_disk("1m")


@pytest.fixture
def small_files():
    """No file may grow past 64 kB: works without privileges."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_full_disk(megabyte):
    check_failure_and_recovery(CheckpointStore(megabyte / "c", keep_last=1, keep_top=0), "No space left", 600)


def test_file_size_limit(tmp_path, small_files):
    check_failure_and_recovery(CheckpointStore(tmp_path / "c", keep_last=1, keep_top=0), "File too large", 300)


def test_every_amount_of_free_space(megabyte):
    """The disk fills up at another place of the save each time; old and new are never mixed."""
    store = CheckpointStore(megabyte / "c", keep_last=1, keep_top=0)
    store.save(snapshot(1, 20))
    store.wait()
    failures = 0
    for free in range(0, 120 << 10, 4096):
        (megabyte / "ballast").write_bytes(b"")
        status = os.statvfs(megabyte)
        size = status.f_bavail * status.f_frsize - free
        (megabyte / "ballast").write_bytes(bytes(max(size, 0)))
        store.save(snapshot(1 + free // 4096, 20))
        outcome = store.wait()
        assert outcome is not None
        failures += outcome.error is not None
        (entry,) = os.listdir(store.directory)
        found = store.latest()
        assert found is not None and found.path.name == entry
        assert (found.arrays("optimizer")["7.weight"] == found.step).all()
    assert 3 <= failures <= 20, failures


def test_a_small_file_survives_a_full_disk(megabyte):
    write_json_atomic(megabyte / "status.json", {"step": 1})
    with pytest.raises(OSError) as caught:
        write_json_atomic(megabyte / "status.json", {"step": "2" * (2 << 20)})
    assert caught.value.errno == errno.ENOSPC
    assert (megabyte / "status.json").read_text() == '{\n  "step": 1\n}\n' and os.listdir(megabyte) == ["status.json"]


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_read_only_folder(tmp_path):
    store = CheckpointStore(tmp_path, keep_last=1, keep_top=0)
    tmp_path.chmod(0o500)
    store.save(snapshot(1, 1))
    outcome = store.wait()
    tmp_path.chmod(0o700)
    assert outcome is not None and "Permission denied" in outcome.error


def test_a_disk_that_became_read_only(megabyte):
    store = CheckpointStore(megabyte / "c", keep_last=1, keep_top=0)
    store.save(snapshot(1, 20))
    store.wait()
    subprocess.run(["mount", "-o", "remount,ro", str(megabyte)], check=True)
    store.save(snapshot(2, 20))
    outcome = store.wait()
    assert outcome is not None and outcome.path is None and "Read-only file system" in outcome.error
    found = store.latest()
    assert found is not None and found.step == 1


def test_failing_to_remove_old_ones_does_not_lose_the_new_one(tmp_path):
    store = CheckpointStore(tmp_path, keep_last=1, keep_top=0)
    store.save(snapshot(1, 1))
    store.wait()
    (tmp_path / f".tmp-discarded-step-00000001-{os.getpid()}").write_text("a file where a folder should go")
    store.save(snapshot(2, 1))
    outcome = store.wait()
    assert outcome is not None and outcome.path is not None and outcome.path.name == "step-00000002"
    assert outcome.error is not None and "Not a directory" in outcome.error
    found = store.latest()
    assert found is not None and found.step == 2
