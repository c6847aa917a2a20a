"""Settings with which optimizer state cannot be divided among workers, and what a division needs."""

from __future__ import annotations

from typing import Any, Tuple

import pytest

from mxtrain.api.custom_loop import require_custom_steps
from mxtrain.errors import ConfigError
from mxtrain.kvstore import horovod_store
from mxtrain.kvstore.joined_store import JoinedStore
from mxtrain.kvstore.spec import DistSync, Horovod, Summing
from mxtrain.kvstore.world import ALONE, World

SHARDED = ("kvstore=dist_sync", "kvstore.shard_optimizer=true", "cluster.workers=2")


@pytest.mark.parametrize(
    "overrides, message",
    [
        (("kvstore.sync_every=5",), "with kvstore.sync_every=5: between two synchronisations"),
        (("trainer.sparse_grad=true",), "workers send whole parameters after an update"),
        (("kvstore.tables=servers",), "workers send whole parameters after an update"),
        (("optimizer=sgld",), "optimizer=sgld: it draws noise"),
        (("optimizer=lbsgd",), "optimizer=lbsgd: it gathers the gradients of several steps"),
        (
            ("optimizer._target_=mxnet.optimizer.Nadam",),
            "optimizer=your own: it may keep numbers for all parameters together",
        ),
    ],
)
def test_combinations_are_refused(describe_run: Any, overrides: Tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        describe_run(*SHARDED, *overrides)


def test_norms_of_whole_parameters_are_allowed(describe_run: Any) -> None:
    assert describe_run(*SHARDED, "optimizer=lamb").kvstore.shards_optimizer


def test_stores_without_joined_workers_do_not_have_the_setting(describe_run: Any) -> None:
    with pytest.raises(ConfigError, match="shard_optimizer"):
        describe_run("kvstore=local", "kvstore.shard_optimizer=true")
    with pytest.raises(ConfigError, match="shard_optimizer"):
        describe_run("kvstore=dist_async", "kvstore.shard_optimizer=true")


def test_custom_steps_refuse_it(describe_run: Any) -> None:
    with pytest.raises(ConfigError, match="kvstore.shard_optimizer"):
        require_custom_steps(describe_run(*SHARDED), None)  # type: ignore[arg-type]


@pytest.mark.parametrize("divides", [False, True])
def test_a_ring_with_divided_state_is_not_elastic(divides: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(horovod_store, "HorovodStore", lambda *given: given)
    spec = Horovod(shard_optimizer=divides)
    assert spec.is_elastic is (not divides)
    *_, elastic = spec.connect(ALONE)  # type: ignore[misc]
    assert elastic is (not divides)


@pytest.mark.parametrize("divides", [False, True])
def test_the_setting_reaches_the_store(divides: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DistSync, "connect", lambda spec, world: JoinedStore(world))
    monkeypatch.setattr(Summing, "connect", DistSync.connect)
    built: Any = DistSync(shard_optimizer=divides).build(World(0, 2))
    assert built.shards_optimizer is divides
