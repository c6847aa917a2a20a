"""Forecasts of placements are compared with schedules and sums that are computed in another way."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import List

import pytest

from mxtrain.parallel.exchange import Link
from mxtrain.parallel.forecast import (
    Cores,
    Forecast,
    Forecaster,
    StagePass,
    best_by_workers,
    best_of,
    knee_of,
    pass_tasks,
    simulate,
)
from mxtrain.parallel.placement import Placement
from mxtrain.parallel.placement_profile import PlacementProfile, Probe
from mxtrain.parallel.schedule import timetable

MANY = Cores(float("inf"))
MIB = 2**20


@pytest.mark.parametrize("schedule, microbatches", list(product(["gpipe", "1f1b"], [1, 2, 5])))
def test_enough_cores_give_the_timetable_of_the_schedule(schedule: str, microbatches: int) -> None:
    forward_s, backward_s = [1.0, 2.0, 0.5], [2.0, 3.0, 1.5]
    placement = Placement(stages=3, microbatches=microbatches)
    makespan, busy = simulate(pass_tasks(placement, forward_s, backward_s, schedule), MANY)
    expected = timetable(schedule, microbatches, forward_s, backward_s)
    assert makespan == pytest.approx(expected.makespan)
    assert busy == pytest.approx(expected.busy)


def test_parts_of_a_batch_follow_each_other() -> None:
    """A stage begins the next part while later stages still compute."""
    one, three = (
        simulate(pass_tasks(Placement(stages=2, accumulation=parts), [1.0, 1.0], [1.0, 1.0], "gpipe"), MANY)[0]
        for parts in (1, 3)
    )
    assert one == 4.0
    assert 3 * 2.0 <= three <= 3 * one


def test_devices_share_cores_equally() -> None:
    """Two cores, three tasks: 2/3 of a core each until the short one ends; then a whole one."""
    makespan, busy = simulate([StagePass(0, 1.0), StagePass(1, 2.0), StagePass(2, 2.0)], Cores(2))
    assert busy[0] == pytest.approx(1.5)
    assert makespan == pytest.approx(1.5 + 1.0)


def test_neighbours_slow_each_other_down_while_both_compute() -> None:
    """A contention of 1.25: the first second of work takes 1.25 s, the second one is done alone."""
    assert simulate([StagePass(0, 1.0), StagePass(1, 2.0)], Cores(2, contention=1.25))[0] == pytest.approx(2.25)


def test_more_threads_than_cores_are_no_faster_than_the_cores() -> None:
    assert Cores(4, threads=2).rate(2) == 1.0
    assert Cores(4, threads=2).rate(4) == 0.5


def profile_of(*probes: Probe, cores: int = 2, memory: float = 1024 * MIB) -> PlacementProfile:
    return PlacementProfile("hash", ["model=resnet"], 64, 10, "cpu", cores, memory, "a processor", probes)


def passes(seconds: List[float]) -> tuple:
    """Sizes 16, 32 and 64."""
    return tuple((16 * 2**i, s) for i, s in enumerate(seconds))


TWO_THREADS = Probe(Placement(), 2, "", 100 * MIB, 64, passes([0.2, 0.3, 0.5]), 0.6, 0.5, 170 * MIB)
TWO_THREADS = replace(TWO_THREADS, parameter_bytes=10.0 * MIB)
ONE_THREAD = Probe(Placement(), 1, "", 100 * MIB, 64, passes([0.2, 0.4, 0.8]), 0.9, 0.8, 170 * MIB)
TWO_PARTS = Probe(Placement(accumulation=2), 2, "", 0.0, 64, passes([0.3, 0.44, 0.64]), 0.74, 0.6, 150 * MIB)
"""Two parts of 16 or 32 samples take 0.02 s each beyond their passes, and 5 MiB beyond a further gradient."""
TWO_REPLICAS = Probe(Placement(replicas=2), 1, "", 0.0, 64, (), 0.65, 0.5, 195 * MIB)
STAGE = {"forward": 1.0, "backward": 2.0, "parameter_bytes": 20.0 * MIB, "activation_bytes": 2.0, "sample_bytes": 1024}
TWO_STAGES = Probe(
    Placement(stages=2, microbatches=4),
    1,
    passes_s=0.5,
    step_s=0.61,
    step_peak_bytes=160 * MIB,
    batch_size=64,
    compute_s=(0.6, 0.2),
    stages=(STAGE, {**STAGE, "parameter_bytes": 0.0}),
)
TWO_MICROBATCHES = replace(
    TWO_STAGES, placement=Placement(stages=2, microbatches=2), passes_s=0.6, step_s=0.7, step_peak_bytes=155.0 * MIB
)
IN_TURN = replace(TWO_STAGES, placement=Placement(stages=2), passes_s=0.9, step_s=1.0, step_peak_bytes=150.0 * MIB)
ALL = (TWO_THREADS, ONE_THREAD, TWO_PARTS, TWO_REPLICAS, IN_TURN, TWO_MICROBATCHES, TWO_STAGES)


def test_measured_placements_are_predicted() -> None:
    """One device, two parts, two replicas, two stages and the measured pipeline."""
    forecaster = Forecaster(profile_of(*ALL))
    measured = (TWO_THREADS, 0.6), (TWO_PARTS, 0.74), (TWO_REPLICAS, 0.65), (IN_TURN, 1.0)
    for probe, step_s in (*measured, (TWO_MICROBATCHES, 0.7), (TWO_STAGES, 0.61)):
        found = forecaster.predict(probe.placement)
        assert found.step_s == pytest.approx(step_s, rel=1e-6)
        assert found.samples_per_s == pytest.approx(64 / step_s, rel=1e-6)
        assert found.process_bytes == pytest.approx(probe.step_peak_bytes)


def test_parts_take_the_time_of_their_number_of_samples() -> None:
    """Four parts of 16 samples at 0.2 s and 0.02 s more, and 0.1 s for the update; the peak is that of 16 samples, a
    further gradient of 10 MiB, and 5 MiB more as for two parts."""
    found = Forecaster(profile_of(*ALL)).predict(Placement(accumulation=4))
    assert found.step_s == pytest.approx(4 * (0.2 + 0.02) + 0.1)
    assert found.process_bytes == pytest.approx((100 + 70 / 4 + 10 + 5) * MIB)


def test_disturbed_measurements_of_fewer_samples_are_replaced() -> None:
    """16 samples seemed to take longer than 32."""
    disturbed = replace(TWO_THREADS, passes=passes([0.9, 0.3, 0.5]))
    assert Forecaster(profile_of(disturbed)).microbatch_s(Placement(), 16, 2) == pytest.approx(0.3)
    assert Forecaster(profile_of(disturbed)).microbatch_s(Placement(), 48, 2) == pytest.approx(0.4)


def test_replicas_add_parameters_gradients_and_their_share_of_activations() -> None:
    """The measured peak of two replicas of 32 samples holds 5 MiB more than the model says; for 16 samples this and the
    activations are half, and each replica has a further gradient and the 5 MiB of parts."""
    whole, parts = (
        Forecaster(profile_of(*ALL)).predict(Placement(replicas=2, accumulation=n)).process_bytes for n in (1, 2)
    )
    assert whole == 195 * MIB
    assert whole - parts == pytest.approx((70 / 2 + 5 / 2 - 2 * 10 - 5) * MIB)


def test_less_memory_than_the_model_is_kept_for_any_number_of_samples() -> None:
    probes = [replace(one, step_peak_bytes=185 * MIB) if one is TWO_REPLICAS else one for one in ALL]
    whole, parts = (
        Forecaster(profile_of(*probes)).predict(Placement(replicas=2, accumulation=n)).process_bytes for n in (1, 2)
    )
    assert whole == 185 * MIB
    assert whole - parts == pytest.approx((70 / 2 - 2 * 10 - 5) * MIB)


def test_four_devices_on_two_cores_are_no_faster_than_two() -> None:
    """Without update and contention: 4 x 16 samples of 0.2 s on two cores."""
    probe = replace(TWO_REPLICAS, passes_s=0.4, step_s=0.5)
    four = replace(probe, placement=Placement(replicas=4))
    forecaster = Forecaster(profile_of(TWO_THREADS, ONE_THREAD, probe, four))
    assert forecaster.predict(Placement(replicas=4)).step_s == pytest.approx(0.1 + 4 * 0.2 / 2)


def test_steps_that_overlap_are_shorter_by_the_measured_factor() -> None:
    """The measured step of two parts took 0.5 s, and its passes one by one 0.64 s; four parts of 16 samples take 0.88 s
    one by one."""
    parts = replace(TWO_PARTS, step_s=0.5)
    forecaster = Forecaster(profile_of(replace(TWO_THREADS, step_s=0.4), ONE_THREAD, parts, TWO_REPLICAS))
    assert forecaster.predict(parts.placement).step_s == pytest.approx(0.5)
    assert forecaster.predict(Placement(accumulation=4)).step_s == pytest.approx(0.88 * 0.5 / 0.64)
    assert forecaster.predict(Placement()).step_s == pytest.approx(0.4)


def test_parts_on_replicas_take_the_time_of_parts_with_their_threads() -> None:
    """Two parts of 16 samples take 0.6 s with one thread, and 0.44 s with two. Two replicas compute them at the same
    time without contention, and their update takes 0.25 s."""
    slow = replace(TWO_PARTS, threads=1, passes=passes([0.4, 0.6, 1.0]))
    two = replace(TWO_REPLICAS, passes_s=0.4)
    forecaster = Forecaster(profile_of(TWO_THREADS, ONE_THREAD, TWO_PARTS, slow, two))
    assert forecaster.predict(Placement(replicas=2, accumulation=2)).step_s == pytest.approx(0.6 + 0.25)


@pytest.mark.parametrize(
    "placement, factor",
    [
        (Placement(1, 2, 8), (8 * 0.25) / (4 * 0.3)),
        (Placement(1, 2, 2, 2), 1.0),
        (Placement(2, 2, 2), (2 * 0.3 * 1.25) / (4 * 0.3)),
        (Placement(2, 2, 4), (4 * 0.25 * 1.25) / (4 * 0.3)),
        (Placement(1, 2, 2, workers=2, store="horovod"), (2 * 0.3 * 1.25) / (4 * 0.3)),
    ],
)
def test_pipelines_take_the_measured_step_by_the_time_of_their_microbatches(
    placement: Placement, factor: float
) -> None:
    """The first stage has all work: 0.25 s for 8 samples, and 0.3 s for the 16 of the nearest pipeline, whose step took
    0.61 s. Two replicas slow each other down by 1.25."""
    slow = replace(ONE_THREAD, passes=passes([0.3, 0.4, 0.8]))
    stages = [IN_TURN, TWO_MICROBATCHES, replace(TWO_STAGES, compute_s=(0.8, 0.0))]
    forecaster = Forecaster(profile_of(TWO_THREADS, slow, TWO_PARTS, TWO_REPLICAS, PAIR, *stages))
    found = forecaster.predict(placement)
    assert found.step_s - found.exchange_s == pytest.approx(0.61 * factor)


def offset(placement: Placement) -> float:
    """MiB of a predicted peak beyond activations, parameters and gradients: 100 MiB, and 70 MiB for 64 samples, of
    which the first stage holds two microbatches at once."""
    samples = 64 / (placement.replicas * placement.microbatches * placement.accumulation)
    held = min(placement.microbatches, 2)
    model = 100 + placement.replicas * 70 * samples / 64 * (held + 1) / 2 + (placement.replicas - 1) * 20
    return Forecaster(profile_of(*ALL)).predict(placement).process_bytes / MIB - model


def test_more_microbatches_keep_the_memory_of_the_most_that_are_measured() -> None:
    assert offset(Placement(stages=2, microbatches=4)) == pytest.approx(160 - 100 - 70 / 4 * 3 / 2)
    assert offset(Placement(stages=2, microbatches=8)) == pytest.approx(160 - 100 - 70 / 4 * 3 / 2)
    assert offset(Placement(stages=2, microbatches=2)) == pytest.approx(155 - 100 - 70 / 2 * 3 / 2)


def test_parts_of_pipelines_keep_memory_between_that_of_their_microbatches_and_all() -> None:
    two, four, parts = (offset(Placement(1, 2, m, a)) for m, a in ((2, 1), (4, 1), (2, 2)))
    assert parts == pytest.approx((two + four) / 2)
    assert offset(Placement(1, 2, 4, 2)) == pytest.approx(four)


def test_replicas_of_pipelines_keep_the_memory_of_one_or_of_replicas() -> None:
    """Two replicas keep 5 MiB, and the pipeline with microbatches of 16 samples 33.75 MiB."""
    assert offset(Placement(2, 2, 4)) == pytest.approx(offset(Placement(1, 2, 4)))
    assert offset(Placement(2, 2, 2)) == pytest.approx(offset(Placement(1, 2, 4)))
    large = [replace(one, step_peak_bytes=390 * MIB) if one is TWO_REPLICAS else one for one in ALL]
    kept = Forecaster(profile_of(*large)).predict(Placement(2, 2, 2)).process_bytes / MIB
    assert kept == pytest.approx(100 + 2 * 70 / 4 * 3 / 2 + 20 + 200 / 2)  # 200 MiB for 32 samples of a replica


def test_traffic_counts_gradients_weights_and_activations() -> None:
    forecaster = Forecaster(profile_of(*ALL))
    assert forecaster.predict(Placement(replicas=2)).device_traffic == 2 * 10 * MIB
    # Two stages name their input in the example, so both send.
    assert forecaster.predict(Placement(stages=2, microbatches=2)).device_traffic == 2 * 2 * 1024 * 64


def test_placements_that_do_not_fit_are_left_out() -> None:
    refused = replace(IN_TURN, refused="the network can be cut before 0 of its layers")
    forecaster = Forecaster(profile_of(TWO_THREADS, ONE_THREAD, TWO_REPLICAS, refused, memory=180 * MIB))
    found = [forecaster.predict(one) for one in (Placement(), Placement(replicas=2), refused.placement)]
    assert [one.reason for one in found] == [
        "",
        "it needs 195 MiB of memory, and there are 180 MiB",
        "the network can be cut before 0 of its layers",
    ]
    assert found[0].bound == "memory"
    best = best_of(found)
    assert best is not None and best.placement == Placement()
    assert best_of(found[1:]) is None


def test_of_equal_times_the_simplest_placement_is_taken() -> None:
    """Within 5 % of the fastest."""
    fastest, near, far = (
        Forecast(place, step_s) for place, step_s in ((Placement(2), 1.0), (Placement(), 1.04), (Placement(), 1.06))
    )
    assert best_of([fastest, near]) is near
    assert best_of([fastest, far]) is fastest


def test_a_pipeline_whose_devices_mostly_wait_is_bound_by_its_bubble() -> None:
    """The first stage computes for three quarters of the step of 1 s, and the second one for a quarter."""
    found = Forecaster(profile_of(*ALL)).predict(Placement(stages=2))
    assert (found.compute_s, found.bubble_s) == (pytest.approx(0.75), pytest.approx(0.5))
    assert found.bound == "bubble"


PAIR = Probe(Placement(workers=2, store="horovod"), 1, step_s=1.4, batch_size=64)
"""Two workers with 32 samples each, one core for each: 0.4 s of passes, slowed down by 1.25 as two replicas are, and
0.1 s of update, so 0.8 s of exchange."""


def test_two_measured_workers_are_predicted() -> None:
    found = Forecaster(profile_of(*ALL, PAIR)).predict(PAIR.placement)
    assert found.step_s == pytest.approx(1.4)
    assert found.exchange_s == pytest.approx(0.8)
    assert found.bound == "link"


def test_workers_on_machines_of_their_own_have_all_cores() -> None:
    """Two threads for 32 samples: 0.3 s, and 0.1 s for the update. A ring of two handles half of the bytes
    on each machine, so 0.4 s of the exchange, unless the link is slower: 20 MiB each way at 10 MiB/s."""
    fast, slow = (
        Forecaster(profile_of(*ALL, PAIR), link=Link(speed * MIB), shared=False).predict(PAIR.placement)
        for speed in (1000, 5)
    )
    assert fast.step_s == pytest.approx(0.3 + 0.1 + 0.4)
    assert slow.exchange_s == pytest.approx(10 / 5)
    assert fast.traffic == 20 * MIB


def test_more_workers_than_cores_take_turns() -> None:
    """Four workers with 16 samples on two cores: 2 x 0.2 s, slowed down by 1.25, and an update each on two cores."""
    found = Forecaster(profile_of(*ALL, PAIR)).predict(replace(PAIR.placement, workers=4))
    assert found.step_s - found.exchange_s == pytest.approx(2 * 0.2 * 1.25 + 2 * 0.1)
    assert found.exchange_s == pytest.approx(3 * 0.8)  # 2 (W - 1) times the gradients in all


def test_fewer_bits_take_less_time() -> None:
    forecaster = Forecaster(profile_of(*ALL, PAIR))
    found = forecaster.predict(replace(PAIR.placement, compression="fp16"))
    assert found.exchange_s == pytest.approx(0.4) and found.traffic == 10 * MIB


def test_stores_that_were_not_measured_are_named() -> None:
    found = Forecaster(profile_of(*ALL)).predict(PAIR.placement)
    assert found.reason == "the profile has no measurement of two workers with kvstore=horovod"


@pytest.mark.parametrize(
    "speeds, knee",
    [([100, 190, 300, 350], 4), ([100, 199, 390, 780], 8), ([100, 140], 1), ([100, 140, 400], 4)],
    ids=["in the middle", "none", "at once", "behind a dip"],
)
def test_the_knee_is_where_workers_add_less_than_half_of_the_first(speeds: List[float], knee: int) -> None:
    curve = [Forecast(Placement(workers=2**i), 1.0, speed) for i, speed in enumerate(speeds)]
    assert knee_of(curve).placement.workers == knee


def test_the_curve_has_the_best_placement_of_each_number() -> None:
    places = [Forecast(Placement(workers=2), 2.0), Forecast(Placement(2, workers=2), 1.0), Forecast(Placement(), 3.0)]
    assert best_by_workers(places) == [places[2], places[1]]
    assert best_by_workers([replace(places[0], reason="too large"), places[2]]) == [places[2]]
