"""Messages about a store of a user name that store, not one of mxtrain with the same abilities."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, List, Tuple

import pytest

from mxtrain.api.custom_loop import require_custom_steps
from mxtrain.cli.verify import refuse_updates_without_order
from mxtrain.config import options
from mxtrain.errors import ConfigError
from mxtrain.kvstore.spec import DistAsync, DistSync, Horovod, Joined
from mxtrain.kvstore.store import Store
from mxtrain.kvstore.world import ALONE, World
from mxtrain.task.classification import Classification
from mxtrain.training.remarks import warnings_of


class Hasty(Joined):
    """A store whose servers update."""

    van: ClassVar[str] = "zmq"
    servers_update: ClassVar[bool] = True

    def build(self, world: World = ALONE) -> Store:
        return Store()


class Demanding(Classification):
    """Classification that needs something."""

    name: ClassVar[str] = "classification"


OWN = "kvstore._target_=test_store_messages.Hasty"
DEMANDING = "task._target_=test_store_messages.Demanding"
TWO = "cluster.workers=2"


def require_own_name(message: str) -> None:
    before_remedy = message.rpartition("Type ")[0]
    assert OWN in before_remedy and not re.search("dist_|horovod", before_remedy), message


@pytest.mark.parametrize(
    "overrides",
    [
        ("amp=float16", "parallel.devices=gpu:1"),
        (TWO, "cluster.balance=speed", "cluster.balance_every=5"),
        (TWO, "parallel.batch_norm=global"),
        ("callback=[prune]", TWO),
        (DEMANDING, TWO),
        ("task=reinforcement_learning", TWO, "model.normalize_observations=true"),
    ],
    ids=" ".join,
)
def test_refusals_name_the_store(
    describe_run: Any, monkeypatch: pytest.MonkeyPatch, overrides: Tuple[str, ...]
) -> None:
    monkeypatch.setattr(Demanding, "needs", ("carried_rows",))
    with pytest.raises(ConfigError) as refused:
        describe_run(OWN, *overrides)
    require_own_name(str(refused.value))


@pytest.mark.parametrize("refuse", [refuse_updates_without_order, lambda run: require_custom_steps(run, None)])
def test_commands_name_the_store(describe_run: Any, refuse: Any) -> None:
    with pytest.raises(ConfigError) as refused:
        refuse(describe_run(OWN, TWO))
    require_own_name(str(refused.value))


def test_warnings_name_the_store(describe_run: Any) -> None:
    store, meter = SimpleNamespace(independent_steps=True, world=World(0, 2)), SimpleNamespace(weighted=True)
    (warning,) = warnings_of(describe_run(OWN, TWO), 1000, 10, meter, store)
    assert OWN in warning and "dist_" not in warning


def test_options_are_named_by_their_file(tmp_path: Path) -> None:
    stores: List[Any] = [DistAsync(), DistSync(), Horovod(), Hasty()]
    assert [store.setting for store in stores] == ["kvstore=dist_async", "kvstore=dist_sync", "kvstore=horovod", OWN]
    (tmp_path / "kvstore").mkdir()
    (tmp_path / "kvstore" / "hasty.yaml").write_text("_target_: test_store_messages.Hasty\n", encoding="utf-8")
    options.remember_folders([tmp_path])
    try:
        assert Hasty().setting == "kvstore=hasty"
    finally:
        options.remember_folders([])


@pytest.mark.parametrize("setting", ["cluster.standby=true", "cluster.memory_steps=5"])
def test_settings_of_restarts_need_a_supervised_store(setting: str, describe_run: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{setting}: this kvstore stays within one process"):
        describe_run(setting)
    describe_run(setting, "kvstore=dist_sync")
