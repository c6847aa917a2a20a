"""Checkpoints in an object store: a real S3 server, and machines that are folders."""

from __future__ import annotations

import json
import logging
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Optional

import numpy as np
import pytest
from object_store import BUCKET, TestStore, shared_store, store  # noqa: F401
from running import SMALL, Process, has_steps, status
from running import checkpoints as local_checkpoints

import mxtrain
from mxtrain.checkpoint import CheckpointStore, Snapshot
from mxtrain.checkpoint.contents import read_checkpoint
from mxtrain.checkpoint.spec import CheckpointSpec
from mxtrain.checkpoint.upload import CheckpointUpload, fetch_checkpoints
from mxtrain.errors import CheckpointError
from mxtrain.files.object_store import store as requests
from mxtrain.files.object_store.address import Address, StoreError
from mxtrain.training.resume import find_resume_point

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")]
log = logging.getLogger(__name__)
ADDRESS = f"s3://{BUCKET}/runs/a"


@pytest.fixture(autouse=True)
def own_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "_stores", {})


def find(run_dir: Path, **settings: object) -> CheckpointStore:
    """Returns the store of a run directory, as a run finds it when it starts."""
    keep = CheckpointSpec(upload=ADDRESS, **settings)
    fetch_checkpoints(ADDRESS, run_dir / "checkpoints", keep.resume == "never")
    upload = CheckpointUpload(ADDRESS)
    return CheckpointStore(
        run_dir / "checkpoints", keep_last=keep.keep_last, keep_top=keep.keep_top, report=log.warning, upload=upload
    )


def snapshot(step: int, size: int = 12, value: Optional[int] = None) -> Snapshot:
    arrays = {"model": {"0.weight": np.full(size, step if value is None else value, "float32")}}
    return Snapshot(step, 0, arrays, {"run": {}, "step": step}, None, "max", "val/accuracy")


def save(checkpoints: CheckpointStore, *steps: int, size: int = 12) -> None:
    for step in steps:
        checkpoints.save(snapshot(step, size))
        outcome = checkpoints.wait()
        assert outcome is not None and outcome.error is None
        upload = checkpoints._upload
        assert isinstance(upload, CheckpointUpload)
        upload.wait()


def remote_names(store: TestStore) -> list:
    return sorted({key.split("/")[2] for key in store.list_keys("runs/a/")} - {"owner.json"})


def test_another_machine_finds_the_same_checkpoints(store, tmp_path: Path) -> None:
    save(find(tmp_path / "one"), 1, 2, 3)
    assert remote_names(store) == ["step-00000002", "step-00000003"]  # keep_last, as in the folder
    files = {path.name for path in (tmp_path / "one/checkpoints/step-00000003").iterdir()}
    assert {key.rsplit("/", 1)[1] for key in store.list_keys("runs/a/step-00000003/")} == files
    moved = find(tmp_path / "two")
    latest = moved.latest()
    assert latest is not None and latest.step == 3 and (latest.arrays("model")["0.weight"] == 3).all()
    for path in (tmp_path / "one/checkpoints").rglob("*.*"):
        assert (tmp_path / "two/checkpoints" / path.relative_to(tmp_path / "one/checkpoints")).read_bytes() == (
            path.read_bytes()
        )
    save(moved, 4)
    assert remote_names(store) == ["step-00000003", "step-00000004"]


def test_manifests_are_written_last_and_removed_first(store, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store.proxy.latency_s = 0.05
    with caplog.at_level(logging.INFO):
        save(find(tmp_path / "one", keep_last=1, keep_top=0), 1, 2)
    assert caplog.text.count(f"waiting for the upload of checkpoints to {ADDRESS}") == 2
    written = [line.rsplit("/", 1)[1] for line in store.proxy.requests if line.startswith("PUT")]
    removed = [line.rsplit("/", 1)[1] for line in store.proxy.requests if line.startswith("DELETE")]
    assert [name.split("?")[0] for name in written] == [
        "owner.json",
        *["model.params", "state.json", "manifest.json"] * 2,
    ]
    assert removed[0].split("?")[0] == "manifest.json" and len(removed) == 3


def test_a_large_file_is_uploaded_in_parts(store, tmp_path: Path) -> None:
    save(find(tmp_path / "one"), 1, size=5 << 20)
    assert sum("partNumber" in line for line in store.proxy.requests) == 3
    latest = find(tmp_path / "two").latest()
    assert latest is not None and (latest.arrays("model")["0.weight"] == 1).all()


def test_an_upload_that_was_cut_off_is_no_checkpoint(store, tmp_path: Path) -> None:
    save(find(tmp_path / "one"), 1, 2)
    store.client.delete_object(Bucket=BUCKET, Key="runs/a/step-00000002/manifest.json")
    latest = find(tmp_path / "two").latest()
    assert latest is not None and latest.step == 1
    assert [path.name for path in (tmp_path / "two/checkpoints").iterdir()] == ["step-00000001"]
    save(find(tmp_path / "one"), 3)  # the first machine completes it
    assert remote_names(store) == ["step-00000002", "step-00000003"]


def test_a_damaged_upload_is_skipped_by_name(store, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    save(find(tmp_path / "one"), 1, 2)
    content = store.get("runs/a/step-00000002/model.params")
    store.put("runs/a/step-00000002/model.params", content[:-1] + b"x")
    latest = find(tmp_path / "two").latest()
    assert latest is not None and latest.step == 1
    assert "step-00000002" in caplog.text and "The one before it is used." in caplog.text


def test_a_failed_upload_is_a_warning_and_is_made_up_for(
    store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("MXTRAIN_STORE_DEADLINE_S", "20")
    checkpoints = find(tmp_path / "one")
    store.proxy.fault = lambda handler: handler.command == "PUT" and handler.refuse(403, "AccessDenied")
    with caplog.at_level(logging.INFO):
        save(checkpoints, 1)
    assert "access is denied: the credentials in the environment do not allow to write it" in caplog.text
    assert remote_names(store) == []
    store.proxy.heal()
    save(checkpoints, 2)
    assert remote_names(store) == ["step-00000001", "step-00000002"]


def test_checkpoints_of_other_runs_are_not_replaced(store, tmp_path: Path) -> None:
    save(find(tmp_path / "one"), 1)
    with pytest.raises(CheckpointError, match="step-00000001 of an earlier run is there"):
        find(tmp_path / "two", resume="never")
    with pytest.raises(CheckpointError) as error:
        fetch_checkpoints(ADDRESS, tmp_path / "three/checkpoints", False, lambda other: [f"  seed: was {other.step}"])
    assert str(error.value) == (
        f"checkpoint.upload={ADDRESS}: step-00000001 there is of a run that computes something else:\n"
        "  seed: was 1\nChoose another address."
    )
    assert not (tmp_path / "three/checkpoints").exists()
    assert (
        store.get("runs/a/step-00000001/manifest.json")
        == (tmp_path / "one/checkpoints/step-00000001/manifest.json").read_bytes()
    )


def test_a_machine_continues_what_another_one_has_continued(
    store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = find(tmp_path / "one")
    save(first, 1, 2)
    save(find(tmp_path / "two"), 3, 4)
    # The first machine had saved step 3, too, with other bits, and has lost its connection to the store.
    first._upload = None
    first.save(snapshot(3, value=30))
    first.close()
    with caplog.at_level(logging.INFO):
        again = find(tmp_path / "one")
    assert f"step-00000003: the one at {ADDRESS} replaces another one in" in caplog.text
    assert "step-00000003, step-00000004: downloaded from" in caplog.text and "trains there since" in caplog.text
    latest = again.latest()
    assert latest is not None and latest.step == 4
    assert (read_checkpoint(tmp_path / "one/checkpoints/step-00000003").arrays("model")["0.weight"] == 3).all()
    assert not list((tmp_path / "one/checkpoints").glob(".tmp*"))
    save(again, 5)
    assert remote_names(store) == ["step-00000004", "step-00000005"]


def test_a_machine_that_was_replaced_uploads_and_removes_nothing(
    store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = find(tmp_path / "one")
    save(first, 1, 2)
    second = find(tmp_path / "two")
    save(second, 3, 4)
    before = {key: store.get(key) for key in store.list_keys("runs/a/")}
    save(first, 7, 8)
    assert {key: store.get(key) for key in store.list_keys("runs/a/")} == before
    assert caplog.text.count(f"{ADDRESS} has continued this run: '{socket.gethostname()}' trains there since") == 1
    save(second, 5)
    assert remote_names(store) == ["step-00000004", "step-00000005"]


def test_later_steps_of_the_machine_before_stay_until_they_are_reached(store, tmp_path: Path) -> None:
    first = find(tmp_path / "one")
    save(first, 1)
    second = find(tmp_path / "two")
    save(first, 2, 3)  # after the second machine has looked, and before its first upload
    save(second, 2)
    assert remote_names(store) == ["step-00000001", "step-00000002", "step-00000003"]
    store.proxy.requests.clear()
    second.save(snapshot(3, value=33))
    second.close()
    changed = [line for line in store.proxy.requests if line.split()[0] in ("PUT", "DELETE") and "00000003" in line]
    assert "manifest.json" in changed[0] and changed[0].startswith("DELETE"), "incomplete, but with a manifest"
    latest = find(tmp_path / "three").latest()
    assert latest is not None and (latest.arrays("model")["0.weight"] == 33).all()


def test_the_end_of_the_grace_time_says_what_is_uploaded(
    store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints = find(tmp_path / "one")
    save(checkpoints, 1)
    store.proxy.latency_s = 1.0
    checkpoints.save(snapshot(2))
    checkpoints.wait()
    begun = time.monotonic()
    with caplog.at_level(logging.INFO):
        checkpoints.close(lambda: begun + 0.3 - time.monotonic())
    assert time.monotonic() - begun < 1
    assert f"waiting for the upload of checkpoints to {ADDRESS}; complete there: step-00000001" in caplog.text
    assert (
        f"the time of cluster.grace was over before step-00000002 could be uploaded to {ADDRESS}; complete there: "
        "step-00000001. All are kept in"
    ) in caplog.text
    checkpoints.close()
    assert remote_names(store) == ["step-00000001", "step-00000002"]


# Without workers, the upload ends as it does in the test below.
@pytest.mark.zoo_cases("kvstore=local")
@pytest.mark.parametrize("kvstore", ["kvstore=local", "kvstore=dist_sync"])
def test_a_stopped_run_ends_in_its_grace_time_and_says_what_is_uploaded(store, tmp_path: Path, kvstore: str) -> None:
    words = ["trainer.max_epochs=5000", "early_stopping=off", "checkpoint.every_epochs=5000"]
    words += ["checkpoint.keep_top=0", f"checkpoint.upload={ADDRESS}", "cluster.grace=5", kvstore]
    words += ["cluster.workers=2"] if kvstore != "kvstore=local" else []
    run = Process(tmp_path / "run", *SMALL, *words)
    first = "runs/a/step-00000000/manifest.json"
    run.wait_until(has_steps(tmp_path / "run", 20)).wait_until(lambda: first in store.list_keys())
    store.proxy.latency_s = 30.0
    begun = time.monotonic()
    run.kill(signal.SIGTERM).end(143)
    assert 3.5 < time.monotonic() - begun < 15  # and not the 30 s of an answer
    saved = f"step-{status(tmp_path / 'run')['step']:08d}"
    printed = " ".join(run.output.split())  # a terminal breaks lines
    assert f"cluster.grace was over before {saved} could be uploaded" in printed
    assert "complete there: step-00000000" in printed and saved in local_checkpoints(tmp_path / "run")
    assert status(tmp_path / "run")["state"] == "interrupted"


def test_a_signal_after_a_notice_ends_the_wait_for_the_upload(store, tmp_path: Path) -> None:
    words = ["trainer.max_epochs=5000", "early_stopping=off", "checkpoint.every_epochs=5000", "checkpoint.keep_top=0"]
    words += [f"checkpoint.upload={ADDRESS}", "cluster.grace=2", f"cluster.notice={tmp_path}/ending"]
    run = Process(tmp_path / "run", *SMALL, *words)
    first = "runs/a/step-00000000/manifest.json"
    run.wait_until(has_steps(tmp_path / "run", 20)).wait_until(lambda: first in store.list_keys())
    store.proxy.latency_s = 60.0
    (tmp_path / "ending").touch()
    run.wait_until(lambda: status(tmp_path / "run")["state"] == "interrupted")
    time.sleep(3)  # the grace time does not begin with the notice
    assert run.popen.poll() is None
    begun = time.monotonic()
    run.kill(signal.SIGTERM).end(75)
    assert time.monotonic() - begun < 15  # and not the 60 s of an answer
    printed = " ".join(run.output.split())
    assert "complete there: step-00000000" in printed and "cluster.grace was over before step-" in printed
    assert status(tmp_path / "run")["cause"] == "notice of preemption received"


def test_other_objects_are_left_alone(store, tmp_path: Path) -> None:
    store.put("runs/a/notes.txt", b"mine")
    store.put("runs/a/figures/loss.png", b"mine")
    store.put("runs/ab/step-00000009/manifest.json", b"{}")
    save(find(tmp_path / "one", keep_last=1), 1, 2)
    assert remote_names(store) == ["figures", "notes.txt", "step-00000002"]
    assert "runs/ab/step-00000009/manifest.json" in store.list_keys()


def test_an_object_that_is_gone_counts_as_removed(store) -> None:
    store.proxy.fault = lambda handler: handler.command == "DELETE" and handler.refuse(404, "NoSuchKey")
    requests.store_of("s3").remove(Address("s3", BUCKET, "runs/a/gone"))
    store.proxy.fault = lambda handler: handler.command == "DELETE" and handler.refuse(403, "AccessDenied")
    with pytest.raises(StoreError, match="do not allow to remove it"):
        requests.store_of("s3").remove(Address("s3", BUCKET, "runs/a/gone"))


def test_a_run_continues_on_another_machine_to_the_same_weights(store, tmp_path: Path) -> None:
    words = ["model=mlp", "model.hidden=[8]", "dataset.batch_size=100", "trainer.max_epochs=2", "trainer.seed=3"]
    quiet = ["logger.console.show_config=false", "logger.console.show_model=false", "runtime.operators=false"]
    whole = mxtrain.train(*words, *quiet, dir=tmp_path / "whole")
    uploaded = [*words, *quiet, f"checkpoint.upload={ADDRESS}"]
    store.proxy.latency_s = 0.1  # else the upload could have ended by itself
    mxtrain.train(*uploaded, "trainer.epoch_budget=1", dir=tmp_path / "first")
    assert "mxtrain-upload" not in {thread.name for thread in threading.enumerate()}
    moved = mxtrain.train(*uploaded, dir=tmp_path / "second")
    shas = [json.loads((run.path / "status.json").read_text())["weights_sha256"] for run in (whole, moved)]
    assert shas[0] == shas[1]
    assert (tmp_path / "second" / "checkpoints" / "step-00000013").is_dir(), "it began anew"


def test_a_store_that_refuses_ends_the_run_before_it_starts(store, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no such bucket"):
        find_resume_point(tmp_path / "one", CheckpointSpec(upload="s3://no-such-bucket/a"), {})
    assert not (tmp_path / "one").exists()
