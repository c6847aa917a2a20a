"""Needs of a task from placement, store and precision are checked before anything starts."""

from __future__ import annotations

from typing import Any, ClassVar, Tuple

import pytest

from mxtrain.errors import ConfigError
from mxtrain.task.classification import Classification
from mxtrain.task.needs import NEEDS

DIVIDED = {
    "2 replicas": ("parallel=data",),
    "2 replicas and parallel.microbatches=4": ("parallel=hybrid",),
    "parallel.microbatches=8": ("parallel=pipeline",),
    "trainer.grad_accumulation=2": ("trainer.grad_accumulation=2",),
    "cluster.workers=2": ("kvstore=dist_sync", "cluster.workers=2"),
}
ASYNC = ("kvstore=dist_async", "cluster.workers=2")
HALF = ("amp=float16", "parallel.devices=gpu:1")
CASES = [
    *(
        pytest.param(need, demanding_task, said, id=f"{need}, {said}")
        for need in ("whole_batch", "carried_state")
        for said, demanding_task in DIVIDED.items()
    ),
    pytest.param("carried_rows", ASYNC, "kvstore=dist_async with cluster.workers=2", id="carried_rows"),
    pytest.param("global_weight", ASYNC, "kvstore=dist_async with cluster.workers=2", id="global_weight"),
    pytest.param("full_precision", HALF, "amp=float16", id="full_precision"),
]


class Demanding(Classification):
    """Classification that needs something."""

    name: ClassVar[str] = "classification"


def demanding_task(monkeypatch: pytest.MonkeyPatch, *needs: str) -> str:
    monkeypatch.setattr(Demanding, "needs", needs)
    return "task._target_=test_needs.Demanding"


@pytest.mark.zoo_except(
    "whole_batch, 2 replicas and parallel.microbatches=4",
    "whole_batch, trainer.grad_accumulation=2",
    "carried_state, parallel.microbatches=8",
    "carried_state, cluster.workers=2",
    "carried_rows",
    "global_weight",
    "full_precision",
)
@pytest.mark.slow
@pytest.mark.parametrize("need, overrides, said", CASES)
def test_options_that_lack_a_need_are_refused_by_name(
    describe_run: Any, monkeypatch: pytest.MonkeyPatch, need: str, overrides: Tuple[str, ...], said: str
) -> None:
    task = demanding_task(monkeypatch, need)
    with pytest.raises(ConfigError) as refused:
        describe_run(task, *overrides)
    (line,) = str(refused.value).splitlines()
    assert line.startswith(f"{said}: task=classification needs {need}: {NEEDS[need]}. Type ")
    remedy = line.rpartition(" Type ")[2].rstrip(".").split()
    describe_run(task, *overrides, *remedy)


@pytest.mark.parametrize(
    "overrides",
    [(), ("parallel=model",), ("kvstore=dist_async", "cluster.workers=1"), ("kvstore=dist_sync", "cluster.workers=1")],
    ids=" ".join,
)
def test_one_placement_satisfies_all_needs(
    describe_run: Any, monkeypatch: pytest.MonkeyPatch, overrides: Tuple[str, ...]
) -> None:
    description = describe_run(demanding_task(monkeypatch, *NEEDS), *overrides)
    assert description.task.needs == tuple(NEEDS)


@pytest.mark.parametrize("overrides", [*DIVIDED.values(), ASYNC, HALF], ids=" ".join)
def test_task_without_needs_accepts_all_placements(describe_run: Any, overrides: Tuple[str, ...]) -> None:
    assert not describe_run(*overrides).task.needs


def test_unknown_need_is_refused(describe_run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    message = "needs 'whole_batc', which is no known requirement. Did you mean 'whole_batch'"
    with pytest.raises(ConfigError, match=message):
        describe_run(demanding_task(monkeypatch, "whole_batc"))
