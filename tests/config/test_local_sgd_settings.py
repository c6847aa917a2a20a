"""Settings of local SGD: what they stand for, and combinations that are refused."""

from __future__ import annotations

from typing import Any, Tuple

import pytest

from mxtrain.api.custom_loop import require_custom_steps
from mxtrain.errors import ConfigError
from mxtrain.kvstore import horovod_store, local_sgd
from mxtrain.kvstore.spec import DistSync, Horovod, Summing
from mxtrain.kvstore.store import Store
from mxtrain.kvstore.world import ALONE
from mxtrain.workflows.verify import refuse_updates_without_order

EVERY_5 = ("kvstore=dist_sync", "kvstore.sync_every=5")
TWO = "cluster.workers=2"


@pytest.mark.parametrize(
    "overrides, message",
    [
        (("kvstore.outer_lr=0.3",), "outer_lr=0.3 without kvstore.sync_every"),
        (("kvstore.outer_optimizer=nesterov",), "outer_optimizer=nesterov without kvstore.sync_every"),
        (
            ("kvstore.sync_every=5", "kvstore.outer_momentum=0.3"),
            "a mean has no momentum",
        ),
        (("kvstore.sync_every=5", "kvstore.tables=servers"), "differences of weights are of all rows"),
        (("kvstore.sync_every=5", "trainer.sparse_grad=true"), "differences of weights are of all rows"),
        (("kvstore.sync_every=5", "trainer.ema_decay=0.9"), "moving average of its own weights"),
        (("kvstore.sync_every=5", "amp=float16", "parallel.devices=gpu:1"), "scale its loss by a number of its own"),
        (("kvstore.sync_every=5", TWO, "cluster.balance=speed"), "no worker waits for a slower one"),
        (("kvstore.sync_every=5", TWO, "parallel.batch_norm=global"), "no batch that they compute together"),
        (("kvstore.sync_every=5", TWO, "callback=[prune]"), "no step after which all of them know the change"),
        (
            ("kvstore.sync_every=5", TWO, "task=reinforcement_learning", "model=q_network"),
            "a target network of its",
        ),
    ],
)
def test_combinations_are_refused(describe_run: Any, overrides: Tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        describe_run("kvstore=dist_sync", *overrides)
    # The run has this store already, so the message must not suggest it.
    assert "Type kvstore=dist_sync" not in str(refused.value)


def test_nesterov_has_settings(describe_run: Any) -> None:
    store = describe_run(*EVERY_5, "kvstore.outer_optimizer=nesterov", "kvstore.outer_lr=0.3").kvstore
    assert (store.outer_lr, store.outer_momentum) == (0.3, None)


@pytest.mark.parametrize("refuse", [refuse_updates_without_order, lambda run: require_custom_steps(run, None)])
def test_commands_without_local_steps_refuse_them(describe_run: Any, refuse: Any) -> None:
    with pytest.raises(ConfigError, match="kvstore.sync_every"):
        refuse(describe_run(*EVERY_5, TWO))


def test_a_ring_is_elastic_unless_its_weights_must_stay_those_of_an_unbroken_run() -> None:
    assert Horovod().is_elastic and not Horovod(sync_every=5).is_elastic and not DistSync().is_elastic
    assert not Horovod(elastic=False).is_elastic
    assert not Horovod(hierarchical=True).is_elastic


@pytest.mark.parametrize(
    "settings, outer",
    [
        ({}, (1.0, 0.0)),
        ({"outer_optimizer": "nesterov"}, (0.7, 0.9)),
        ({"outer_optimizer": "nesterov", "outer_lr": 0.5, "outer_momentum": 0.8}, (0.5, 0.8)),
    ],
)
def test_outer_optimizers_have_the_defaults_of_diloco(
    settings: Any, outer: Tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Summing, "connect", lambda store, world: Store())
    monkeypatch.setattr(DistSync, "connect", Summing.connect)
    built: Any = DistSync(sync_every=5, **settings).build()
    assert isinstance(built, local_sgd.LocalSGDStore) and (built._outer.lr, built._outer.momentum) == outer
    assert built._sync_every == 5


@pytest.mark.parametrize(
    "settings, mib",
    [({}, 4), ({"sync_every": 5}, 16), ({"sync_every": 5, "bucket_mib": 0.5}, 0.5), ({"bucket_mib": 32}, 32)],
)
def test_messages_of_local_sgd_on_a_ring_are_large(settings: Any, mib: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(horovod_store, "HorovodStore", lambda *given: given)
    *_, hierarchical, bucket_bytes, _ = Horovod(**settings).connect(ALONE)  # type: ignore[misc]
    assert (hierarchical, bucket_bytes) == (False, mib * 2**20)


def test_workers_of_a_hierarchy_are_told_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(horovod_store, "HorovodStore", lambda *given: given)
    assert Horovod(hierarchical=True).connect(ALONE)[2] is True  # type: ignore[index]


def test_workers_that_sum_in_every_step_have_the_plain_store(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    monkeypatch.setattr(DistSync, "connect", lambda self, world: store)
    assert DistSync().build() is store
