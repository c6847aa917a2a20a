"""Stragglers: times of all workers, slow workers by name, and shares by measured speed."""

from __future__ import annotations

from pathlib import Path
from typing import Dict, List, Optional, Tuple

import pytest
from running import ROOT, Process, status, steps
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tiers import rest_in_zoo

from mxtrain.cluster.spec import Cluster
from mxtrain.cluster.stragglers import Stragglers
from mxtrain.kvstore.times import WorkerTimes, is_paced, is_timed
from mxtrain.kvstore.world import World

SLEEPY = """
import os, time

def network(num_classes, sleep_s=0.0):
    from mxnet import autograd, gluon

    class Sleepy(gluon.Block):
        def __init__(self):
            super().__init__()
            self.features = gluon.nn.Dense(16)
            self.output = gluon.nn.Dense(num_classes)

        def forward(self, x):
            if os.environ.get("MXTRAIN_WORKER") == "1" and autograd.is_training():
                time.sleep(sleep_s * x.shape[0])
            return self.output(self.features(x.reshape((x.shape[0], -1))))

    return Sleepy()
"""


def timed(compute_s: List[float], sizes: List[int], step: int = 10) -> WorkerTimes:
    return WorkerTimes(step, compute_s, sizes, 0.001)


def test_shares_follow_speeds_and_cover_all_samples() -> None:
    world = World(1, 3, (1.0, 0.5, 0.25))
    for count in (0, 1, 2, 7, 64, 100):
        shares = [world.share_of(rank, count) for rank in range(3)]
        assert shares[0][0] == 0 and shares[2][1] == count
        assert all(before[1] == after[0] for before, after in zip(shares, shares[1:]))
    assert world.share(70) == (40, 60)
    assert World(1, 3).share(70) == (24, 47)


def test_slow_worker_is_reported_once_and_gets_fewer_samples() -> None:
    stragglers, world = Stragglers(by_speed=True), World(0, 3)
    assert stragglers.share(world) is world
    assert stragglers.note(timed([0.1, 0.3, 0.1], [20, 20, 20])) and stragglers.remark() == ""
    assert stragglers.note(timed([0.1, 0.3, 0.1], [20, 20, 20], step=60))
    assert "worker 1 is slow" in stragglers.remark() and stragglers.remark() == ""
    shared = stragglers.share(world)
    assert [shared.share_of(rank, 70) for rank in range(3)] == [(0, 30), (30, 40), (40, 70)]
    stragglers.note(timed([0.15, 0.15, 0.15], [30, 10, 30], step=110))
    assert stragglers.share(shared) is shared  # all take as long now
    assert Stragglers(by_speed=False).share(world) is world
    for can_balance in (True, False):
        equal = Stragglers(by_speed=False, can_balance=can_balance)
        equal.note(timed([0.1, 0.3], [20, 20]))
        equal.note(timed([0.1, 0.3], [20, 20], step=60))
        assert equal.remark().endswith("cluster.balance=speed gives it fewer samples") == can_balance


def test_a_worker_without_samples_keeps_a_small_share() -> None:
    stragglers = Stragglers(by_speed=True)
    stragglers.note(timed([0.1, 0.001], [64, 0]))
    begin, end = stragglers.share(World(0, 2)).share_of(1, 64)
    assert 0 < end - begin < 8


def test_times_are_exchanged_in_one_of_fifty_steps() -> None:
    assert [step for step in range(121) if is_timed(step)] == [10, 60, 110]


@pytest.mark.parametrize(
    "balance_every, paced",
    [
        (None, []),
        (100, [96, 97, 98, 99, 100]),
        (10, [6, 7, 8, 9, 10, 16, 17, 18, 19, 20]),
        (5, [2, 3, 4, 5, 7, 8, 9, 10, 12, 13, 14, 15, 17, 18, 19, 20]),
        (2, list(range(2, 21, 2))),
        (1, list(range(1, 21))),
    ],
)
def test_workers_measure_their_speed_before_a_change_of_shares(balance_every: Optional[int], paced: List[int]) -> None:
    assert [step for step in range(1, 101 if balance_every == 100 else 21) if is_paced(step, balance_every)] == paced


def test_shares_are_kept_unless_a_step_becomes_shorter() -> None:
    for slow_s, is_kept in ((0.109, True), (0.112, False)):  # 4 and 6 % of the step of the slow worker
        stragglers, world = Stragglers(by_speed=True), World(0, 2)
        stragglers.restart(timed([0.1, slow_s], [20, 20]))
        assert (stragglers.share(world) is world) == is_kept
    # Measured anew, speeds before are forgotten.
    stragglers.restart(timed([0.1, 0.3], [20, 20]))
    stragglers.restart(timed([0.1, 0.1], [20, 20], step=20))
    assert stragglers.share(world) is world


def test_equal_shares_do_not_change() -> None:
    assert "cluster.balance_every=5 with cluster.balance=equal" in Cluster(balance_every=5).unsupported_reason()
    assert not Cluster(balance_every=5, balance="speed").unsupported_reason()
    with pytest.raises(ValueError, match="greater than 0"):
        Cluster(balance_every=0, balance="speed")


@pytest.mark.slow
def test_a_slow_asynchronous_worker_gets_fewer_samples(tmp_path: Path, sleepy: Path) -> None:
    run_dir = tmp_path / "run"
    store = ("kvstore=dist_async", "cluster.workers=2", "cluster.balance=speed")
    Process(run_dir, *store, *sleepy_run_words(sleepy), env=environment(sleepy)).end()
    slow, fast = (scalars(run_dir, f"perf/worker_{rank}/samples") for rank in (1, 0))
    assert len(slow) == 4  # after each epoch but the last one
    shares = [own / (own + others) for own, others in zip(slow, fast)]
    assert shares[0] == pytest.approx(0.5, abs=0.02) and min(shares[1:]) < 0.4
    assert steps(run_dir) == steps(sleepy / "alone")


@pytest.mark.slow
def test_shares_change_within_an_epoch_and_each_sample_counts_once(tmp_path: Path, sleepy: Path) -> None:
    run_dir = tmp_path / "run"
    store = ("kvstore=dist_sync", "cluster.workers=2", "cluster.balance=speed", "cluster.balance_every=10")
    run = Process(run_dir, *store, *sleepy_run_words(sleepy), env=environment(sleepy)).end()
    slow, fast = (scalars(run_dir, f"perf/worker_{rank}/samples") for rank in (1, 0))
    assert {own + others for own, others in zip(slow[:3], fast)} == {40}
    # Measured in steps 6 to 10, so changed after step 10; an epoch has 32 steps.
    assert slow[0] == 20
    assert any(value < 16 for step, value in events(run_dir, "perf/worker_1/samples") if step <= 30)
    assert run.output.count("what the workers did in step") <= 1 + status(run_dir)["step"] // 50
    assert steps(run_dir) == steps(sleepy / "alone")
    assert status(run_dir)["metrics"] == pytest.approx(status(sleepy / "alone")["metrics"], rel=1e-4)


def scalars(run_dir: Path, tag: str) -> List[float]:
    return [value for _, value in events(run_dir, tag)]


def events(run_dir: Path, tag: str) -> List[Tuple[int, float]]:
    """Returns (step, value) of each point of a curve."""
    found = EventAccumulator(str(run_dir), size_guidance={"scalars": 0})
    found.Reload()
    return [(event.step, event.value) for event in found.Scalars(tag)]


@pytest.fixture(scope="module")
def sleepy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the network, and with a run of it in one process, which does not sleep."""
    folder = tmp_path_factory.mktemp("sleepy")
    (folder / "sleepy.py").write_text(SLEEPY)
    (folder / "conf" / "model").mkdir(parents=True)
    (folder / "conf" / "model" / "sleepy.yaml").write_text("_target_: sleepy.network\nsleep_s: 0.002\n")
    Process(folder / "alone", *sleepy_run_words(folder), env=environment(folder)).end()
    return folder


def sleepy_run_words(folder: Path) -> List[str]:
    return [
        "--config-dir",
        str(folder / "conf"),
        "model=sleepy",
        "dataset.batch_size=40",
        "trainer.max_epochs=5",
        "early_stopping=off",
    ]


def environment(folder: Path) -> Dict[str, str]:
    return {"PYTHONPATH": f"{ROOT}:{folder}"}


@pytest.mark.zoo
@pytest.mark.parametrize("balance", rest_in_zoo(["equal", "speed"], "speed"))
def test_a_slow_worker_is_named_and_may_get_fewer_samples(tmp_path: Path, sleepy: Path, balance: str) -> None:
    run_dir = tmp_path / "run"
    store = ("kvstore=dist_sync", "cluster.workers=2", f"cluster.balance={balance}")
    run = Process(run_dir, *store, *sleepy_run_words(sleepy), env=environment(sleepy)).end()
    if balance == "equal":  # else it is not slow twice in a row
        assert "worker 1 is slow" in run.output
        assert "cluster.balance=speed gives it fewer samples" in run.output
    assert "what the workers did in step 10" in run.output
    slow, fast = (scalars(run_dir, f"perf/worker_{rank}/samples") for rank in (1, 0))
    shares = [own / (own + others) for own, others in zip(slow, fast)]
    assert shares[0] == 0.5 and (min(shares) < 0.4) == (balance == "speed")
    assert all(
        compute_s >= 0.002 * samples for compute_s, samples in zip(scalars(run_dir, "perf/worker_1/compute_s"), slow)
    )
    assert len(scalars(run_dir, "perf/exchange_s")) == len(slow) >= 3
    assert steps(run_dir) == steps(sleepy / "alone")
    assert status(run_dir)["metrics"] == pytest.approx(status(sleepy / "alone")["metrics"], rel=1e-4)
