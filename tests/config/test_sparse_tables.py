"""Settings that keep gradients of tables to the rows of a batch, and messages for those that cannot."""

from __future__ import annotations

from typing import Any

import pytest

from mxtrain.config.sparse_tables import PAYS_FROM, WORKERS_PAY_FROM, sparse_from, sparse_samples
from mxtrain.errors import ConfigError


@pytest.mark.parametrize(
    "given, least",
    [
        ((), PAYS_FROM),
        (("trainer.sparse_grad=true",), 1),
        (("trainer.sparse_grad=false",), None),
        (("optimizer=adam", "optimizer.lazy_update=true"), 1),  # what it computes must not depend on a threshold
        (("optimizer=lamb",), None),
        (("optimizer=sgld",), None),
        (("kvstore=dist_async", "cluster.workers=2"), None),
        (("kvstore=dist_async", "cluster.workers=2", "kvstore.tables=servers"), WORKERS_PAY_FROM),
        (("kvstore=dist_sync", "cluster.workers=2"), WORKERS_PAY_FROM),
        (("kvstore=dist_sync", "cluster.workers=2", "kvstore.compression=fp16"), None),
        (("parallel=data", "kvstore=device", "kvstore.compression=2bit", "kvstore.threshold=0.1"), None),
    ],
)
def test_smallest_size_of_sparse_tables(describe_run: Any, given: Any, least: Any) -> None:
    description = describe_run(*given, "dataset.batch_size=32")
    assert sparse_from(description) == least
    if least is not None:
        assert sparse_samples(description) == (32 if least == PAYS_FROM else 0)


@pytest.mark.parametrize(
    "given, said",
    [
        (("trainer.sparse_grad=true", "optimizer=lamb"), "whole table. Type optimizer=adam or sgd, or trainer"),
        (("trainer.sparse_grad=true", "optimizer=lbsgd"), "gradients of several steps"),
        (
            ("optimizer.lazy_update=true", "kvstore=dist_async", "cluster.workers=2"),
            "lazy_update=true: the servers .* Type kvstore.tables=servers, or optimizer.lazy_update=false",
        ),
        (
            ("trainer.sparse_grad=true", "kvstore=dist_sync", "cluster.workers=2", "kvstore.compression=topk"),
            "compression=topk: what it leaves out .* Type kvstore.compression=none",
        ),
        (("trainer.sparse_grad=false", "optimizer.lazy_update=true"), "moves all rows. Type trainer.sparse_grad=auto"),
    ],
)
def test_settings_that_need_all_rows_refuse_sparse_tables(describe_run: Any, given: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        describe_run(*given)


SERVERS = ("kvstore=dist_sync", "cluster.workers=2", "kvstore.tables=servers")


@pytest.mark.parametrize(
    "given, said",
    [
        (("optimizer=lamb",), "tables=servers with optimizer=lamb .*Type optimizer=adam or sgd, or kvst"),
        (("kvstore.compression=fp16",), "compression=fp16: .* Type kvstore.compression=none"),
        (("trainer.sparse_grad=false",), "Type trainer.sparse_grad=auto"),
        (("trainer.ema_decay=0.9",), "the average is of whole tables. Type trainer.ema_decay=null"),
        (("trainer.clip_global_norm=1",), "norm of the sum .* Type optimizer.clip_gradient=1"),
    ],
)
def test_incompatible_settings_of_served_tables(describe_run: Any, given: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        describe_run(*SERVERS, *given)


def test_asynchronous_workers_clip_by_themselves(describe_run: Any) -> None:
    assert describe_run("kvstore=dist_async", *SERVERS[1:], "trainer.clip_global_norm=1").trainer.clip_global_norm == 1
