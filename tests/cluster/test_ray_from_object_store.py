"""The guides of Ray and object stores, end to end: a run on three raylets that reads a bucket loses one of them."""

from __future__ import annotations

import importlib.util
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Iterator, List

import numpy as np
import pytest
from object_store import BUCKET, ENVIRONMENT, TestStore, shared_store, store  # noqa: F401 - fixtures
from PIL import Image
from raylets import Raylets
from running import Process, assert_same, has_steps, role_of, running_processes
from waiting import wait_until

from mxtrain.kvstore.spec import has_horovod
from mxtrain.vision.images.make_record import make_record

pytestmark = [
    pytest.mark.zoo,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed"),
]
VARIABLES = (*ENVIRONMENT, "AWS_ENDPOINT_URL_S3", "XDG_CACHE_HOME", "TMPDIR")
TRAINING = (
    "dataset=image_record",
    "dataset.image_size=[32,32]",
    "dataset.batch_size=20",
    "model=mlp",
    "model.hidden=[64]",
    "model.dropout=0.3",
    "cluster.workers=2",
    "cluster.backoff=0.1",
    "trainer.max_epochs=40",
    "trainer.log_interval=1",
    "checkpoint.every_steps=20",
    "early_stopping=off",
)


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Records of 200 images in two classes."""
    folder = tmp_path_factory.mktemp("data")
    random = np.random.default_rng(0)
    for number in range(200):
        path = folder / "photos" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 255, (32, 32, 3), dtype=np.uint8)).save(path)
    make_record(str(folder / "photos"), str(folder / "records" / "images"))
    return folder / "records"


@pytest.fixture
def raylets() -> Iterator[Raylets]:
    with ExitStack() as stack:
        yield Raylets(stack, 1, 1, 2)


def parents(pid: int) -> Iterator[int]:
    """Yields a process and all processes above it."""
    while pid > 1:
        yield pid
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.parametrize(
    "kvstore",
    [
        ["kvstore=dist_sync"],
        pytest.param(
            ["kvstore=horovod", "kvstore.elastic=false"],
            marks=pytest.mark.skipif(not has_horovod(), reason="Horovod is not built here: scripts/horovod"),
        ),
    ],
    ids=["dist_sync", "horovod"],
)
def test_run_that_loses_a_raylet_ends_with_the_bits_of_an_unbroken_run(
    store: TestStore,
    raylets: Raylets,
    records: Path,
    tmp_path: Path,
    kvstore: List[str],
) -> None:
    Process(tmp_path / "unbroken", *TRAINING, *kvstore, f"dataset.root={records}").end()
    address, temporary = store.upload(records, "photos"), tmp_path / "temporary"
    temporary.mkdir()
    run_dir = tmp_path / "run"
    run = Process(
        run_dir,
        *TRAINING,
        *kvstore,
        f"dataset.root={address}",
        f"checkpoint.upload=s3://{BUCKET}/runs/1",
        "cluster.launcher=ray",
        f"cluster.launcher_options=[address={raylets.address}]",
        f"cluster.environment=[{','.join(VARIABLES)}]",
        env={"MXTRAIN_TEST": str(run_dir), "TMPDIR": str(temporary)},
    ).wait_until(has_steps(run_dir, 60))
    mine = {
        role_of(environment): pid
        for pid, _, environment in running_processes()
        if environment.get("MXTRAIN_TEST") == str(run_dir)
    }
    raylet = next(pid for pid in parents(mine["worker1"]) if pid in raylets.raylets)
    raylets.kill(raylets.raylets.index(raylet))
    run.end()
    said = (run_dir / "workers" / "supervisor.log").read_text()
    assert "was lost: the raylet on" in said and "restart 1 of 3" in said, said
    assert_same(run_dir, tmp_path / "unbroken")
    assert any(key.startswith("runs/1/step-") for key in store.list_keys("runs/1/"))
    wait_until(lambda: not any(env.get("MXTRAIN_TEST") == str(run_dir) for _, _, env in running_processes()), 15.0)
    wait_until(lambda: not any(actors_of(raylets)), 5.0)
    assert not list(temporary.glob("*mxtrain*"))


def actors_of(raylets: Raylets) -> Iterator[str]:
    """Yields the processes of actors of mxtrain, which have log files in the folder of their cluster."""
    for pid, command, _ in running_processes():
        opened = [os.path.realpath(link) for link in Path(f"/proc/{pid}/fd").glob("*")]
        if "RelayActor" in command and any(name.startswith(str(raylets.folder)) for name in opened):
            yield f"{pid}: {command}"
