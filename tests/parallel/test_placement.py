"""Placements are listed once each, and their overrides compose to them."""

from __future__ import annotations

import pytest

from mxtrain.parallel.placement import Placement, enumerate_placements, powers_to, replaces_placement


def test_all_placements_of_two_devices() -> None:
    found = list(enumerate_placements(2, [1], [], []))
    assert len(found) == len(set(found)) == 3 * (1 + 1 + 4)  # parts x (one device, two replicas, microbatches)
    assert {place.option for place in found} == {"single", "data", "model", "pipeline"}


def test_hybrid_placements_need_four_devices() -> None:
    options = [{place.option for place in enumerate_placements(n, [1], [], [])} for n in (3, 4)]
    assert ["hybrid" in each for each in options] == [False, True]


def test_stores_and_compressions_are_for_several_workers() -> None:
    found = list(enumerate_placements(1, [1, 2], ["dist_sync", "horovod"], ["none", "fp16"]))
    assert len(found) == 3 + 4
    assert all(place.store == "local" for place in found if place.workers == 1)


def test_each_precision_and_recomputation_has_all_placements() -> None:
    variants = [Placement(), Placement(precision="bfloat16", recompute="auto")]
    found = list(enumerate_placements(2, [1, 2], ["horovod"], ["none"], variants))
    assert len(found) == len(set(found)) == 2 * (18 + 6)
    assert {place.variant for place in found} == {("off", "off"), ("bfloat16", "auto")}


def test_recomputation_and_named_devices_are_overrides() -> None:
    place = Placement(replicas=2, recompute="4")
    assert "parallel.recompute=4" in place.overrides() and "parallel.recompute=off" not in Placement().overrides()
    assert "parallel.devices=gpu:2" in place.overrides("gpu") and "parallel.devices=cpu:2" in place.overrides("cpu")
    assert not any("devices" in word for word in place.overrides())


def test_powers_end_with_the_number_itself() -> None:
    assert [powers_to(number) for number in (1, 2, 3, 8)] == [[1], [1, 2], [1, 2, 3], [1, 2, 4, 8]]


def test_shares_of_a_batch_are_rounded_up() -> None:
    place = Placement(workers=2, replicas=2, stages=2, microbatches=4, accumulation=2)
    assert place.microbatch_size(65) == 3
    assert place.num_devices == 4


@pytest.mark.parametrize(
    "word, replaced",
    [
        ("parallel=data", True),
        ("parallel.stages=3", True),
        ("parallel.batch_norm=global", False),
        ("trainer.grad_accumulation=2", True),
        ("trainer.max_epochs=2", False),
        ("kvstore=horovod", True),
        ("kvstore.tables=servers", False),
        ("+cluster.workers=2", True),
        ("model=resnet", False),
    ],
)
def test_overrides_of_the_placement_are_replaced(word: str, replaced: bool) -> None:
    assert replaces_placement(word) == replaced


@pytest.mark.parametrize(
    "place",
    [
        Placement(),
        Placement(replicas=3),
        Placement(stages=2),
        Placement(stages=2, microbatches=4, accumulation=2),
        Placement(replicas=2, stages=2, microbatches=2, precision="bfloat16"),
    ],
    ids=lambda place: place.option,
)
def test_overrides_compose_to_the_placement(place: Placement) -> None:
    import mxtrain

    config = mxtrain.compose(*place.overrides(), "dataset.batch_size=96")
    parallel, trainer = config["parallel"], config["trainer"]
    assert parallel["_target_"].rpartition(".")[2].lower().startswith(place.option)
    for name in ("replicas", "stages", "microbatches"):
        assert parallel.get(name, 1) == getattr(place, name)
    assert trainer["grad_accumulation"] == place.accumulation


def test_gpus_are_counted() -> None:
    assert "parallel.devices=gpu:2" in Placement(replicas=2).overrides("gpu")
