"""Batch norms over several workers, in real processes: one device's numbers, any shares, and a loss on the way."""

from __future__ import annotations

from pathlib import Path
from typing import List

import numpy as np
import pytest
from running import Process, checkpoints, rows, status, steps, verify

from mxtrain.checkpoint.contents import read_checkpoint
from mxtrain.engine.backend import mx, nd
from mxtrain.kvstore import joined_store, times
from mxtrain.kvstore.joined_store import JoinedStore
from mxtrain.kvstore.reduction import Reduction
from mxtrain.kvstore.spec import has_horovod
from mxtrain.kvstore.world import World
from mxtrain.parallel.sync_batchnorm_executor import NormGroups
from mxtrain.types import Batch

needs_horovod = pytest.mark.skipif(not has_horovod(), reason="Horovod is not built here: scripts/horovod")
SMALL_RESNET = ("model=resnet", "model.depth=8", "parallel=hybrid", "parallel.microbatches=2")


@pytest.mark.zoo
@pytest.mark.parametrize(
    "given",
    [
        # Odd sizes: the last batch has 11 samples, for 3 workers x 2 parts x 2 replicas x 2 microbatches.
        [
            "kvstore=dist_device_sync",
            "cluster.workers=3",
            "cluster.servers=2",
            *SMALL_RESNET,
            "trainer.grad_accumulation=2",
            "dataset.batch_size=24",
            "parallel.batch_norm=replicas",
        ],
        pytest.param(
            [
                "kvstore=horovod",
                "cluster.workers=3",
                *SMALL_RESNET,
                "dataset.batch_size=24",
                "parallel.batch_norm=global",
            ],
            marks=[needs_horovod, pytest.mark.zoo],
        ),
    ],
    ids=["dist_device_sync", "horovod"],
)
def test_joint_batch_norms_match_one_device(given: List[str]) -> None:
    done = verify("tolerance=1e-10", *given)
    assert done.returncode == 0 and "the same as on one device" in done.stdout, done.stdout + done.stderr


@pytest.mark.zoo
def test_workers_of_unequal_shares_one_of_them_empty(tmp_path: Path) -> None:
    """50 samples in batches of 24: the last batch of an epoch has two, for three workers. Step 10 is timed."""
    common = (
        "model=lenet",
        "model.channels=[4,8]",
        "model.hidden=16",
        "model.dropout=0",
        "dataset=synthetic",
        "dataset.shape=[1,8,8]",
        "dataset.num_samples=100",
        "dataset.val_fraction=0.25",
        "dataset.batch_size=24",
        "dataset.test_fraction=0.25",
        "optimizer=sgd",
        "optimizer.lr=0.01",
        "trainer.max_epochs=4",
    )
    Process(tmp_path / "one", *common).end()
    joint = ("kvstore=dist_sync", "cluster.workers=3", "parallel.batch_norm=global")
    Process(tmp_path / "three", *common, *joint).end()
    assert steps(tmp_path / "three") == list(range(1, 13))
    for ours, wanted in zip(rows(tmp_path / "three"), rows(tmp_path / "one")):
        assert ours["loss"] == pytest.approx(wanted["loss"], rel=1e-3)
    last = [
        read_checkpoint(tmp_path / run / "checkpoints" / checkpoints(tmp_path / run)[-1]).arrays("model")
        for run in ("one", "three")
    ]
    moving = [name for name in last[0] if "running" in name]
    assert len(moving) == 8
    for name in moving:
        np.testing.assert_allclose(last[1][name], last[0][name], rtol=1e-3, atol=1e-4)


DIES = """
import os

def network(num_classes, at=10):
    import mxnet
    from mxnet import autograd, gluon

    class Dies(mxnet.operator.CustomOp):
        '''Worker 1 is gone between two batch norms, once.'''
        calls = 0

        def forward(self, is_train, req, in_data, out_data, aux):
            Dies.calls += is_train
            if Dies.calls == at and os.environ.get("MXTRAIN_WORKER") == "1" and "MXTRAIN_JOINS" not in os.environ:
                os._exit(9)
            self.assign(out_data[0], req[0], in_data[0])

        def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
            self.assign(in_grad[0], req[0], out_grad[0])

    @mxnet.operator.register("dies")
    class DiesProperties(mxnet.operator.CustomOpProp):
        def __init__(self, **layer):
            super().__init__(need_top_grad=True)

        def create_operator(self, ctx, shapes, dtypes):
            return Dies()

    class Network(gluon.HybridBlock):
        def __init__(self):
            super().__init__(prefix="network_")
            with self.name_scope():
                self.features = gluon.nn.Dense(32)
                self.norm, self.next_norm = gluon.nn.BatchNorm(), gluon.nn.BatchNorm()
                self.output = gluon.nn.Dense(num_classes)

        def hybrid_forward(self, F, x):
            return self.output(self.next_norm(F.Custom(self.norm(self.features(x)), op_type="dies")))

    return Network()
"""


@pytest.mark.zoo
@needs_horovod
def test_ring_failure_between_batch_norms_leaves_no_trace(tmp_path: Path) -> None:
    (tmp_path / "dies.py").write_text(DIES)
    (tmp_path / "conf" / "model").mkdir(parents=True)
    (tmp_path / "conf" / "model" / "dies.yaml").write_text("_target_: dies.network\nat: -1\n")
    env = {"PYTHONPATH": f"{Path(__file__).parents[2]}:{tmp_path}"}
    given = (
        "kvstore=horovod",
        "cluster.backoff=0.1",
        "cluster.workers=3",
        "cluster.restarts=0",
        "--config-dir",
        str(tmp_path / "conf"),
        "model=dies",
        "parallel.batch_norm=global",
        "dataset.batch_size=300",
        "optimizer=sgd",
        "optimizer.lr=0.05",  # Adam makes steps of the noise in gradients that are 0
        "trainer.max_steps=12",
    )
    found = {}
    for name, at in (("undisturbed", -1), ("run", 8)):
        run = Process(tmp_path / name, *given, f"model.at={at}", env=env).end(75)
        checkpoint = checkpoints(tmp_path / name)[-1]
        found[name] = read_checkpoint(tmp_path / name / "checkpoints" / checkpoint).arrays("model")
    assert "2 workers (before: 3) go on after step 7" in run.output
    assert steps(tmp_path / "run") == list(range(1, 13))
    # Over the whole batch: the same with two workers as with three, moving statistics included.
    for name, wanted in found["undisturbed"].items():
        np.testing.assert_allclose(found["run"][name], wanted, rtol=1e-3, atol=1e-5)
    assert status(tmp_path / "run")["exit_code"] == 75


class Clock:
    """Time passes where it is told to."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


class Slow(JoinedStore):
    """The first of two workers, to whom the second one adds nothing, after 5 s."""

    clock = Clock()

    def sum_in_place(self, arrays):
        self.clock.now += 5


def test_waiting_within_a_forward_pass_is_not_counted_as_computing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joined_store, "time", Slow.clock)
    store = Slow(World(0, 2))
    gradient = nd.ones((3,), ctx=mx.cpu(0))
    store.begin_step(times.FIRST_STEP, 4)
    Slow.clock.now += 1
    store.gather(gradient)
    Slow.clock.now += 2
    store.reduce([Reduction("weight", [gradient], 0)])
    assert store.times is not None and store.times.compute_s == [3.0, 0.0]


@pytest.mark.parametrize("over_microbatches", [True, False])
@pytest.mark.parametrize("speeds", [(), (3.0, 1.0, 0.0)])
@pytest.mark.parametrize("size", [1, 2, 7, 24, 25])
def test_all_workers_know_the_sizes_of_each_group(over_microbatches, speeds, size) -> None:
    """The counts for each worker are the sizes of that worker's own shares."""
    from mxtrain.parallel.layout import split

    division = NormGroups(2, 2, 3, over_microbatches)
    counts = division.counts(size, World(0, 3, speeds))
    for rank in range(3):
        begin, end = World(rank, 3, speeds).share(size)
        whole = Batch((nd.zeros((end - begin + 1,)),), (nd.zeros((end - begin + 1,)),), end - begin)
        parts = [] if begin == end else list(split(whole, 2))
        groups = [division.groups([list(split(share, 3)) for share in split(part, 2)]) for part in parts]
        own = [[sum(batch.size for _, batch in group) for group in part] for part in groups]
        assert [[c[rank] for c in part if c[rank]] for part in counts if any(c[rank] for c in part)] == own
    assert sum(count for part in counts for group in part for count in group) == size
