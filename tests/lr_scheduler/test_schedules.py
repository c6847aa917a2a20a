import math

import pytest

from mxtrain.errors import ConfigError
from mxtrain.lr_scheduler.schedules import Constant, Cosine, InverseSqrt, Linear, MultiStep, Poly, Step


def rates(schedule, total=100, per_epoch=10, base=1.0):
    lr = schedule.build(base, per_epoch, total)
    return [lr(step) for step in range(total)]


def test_constant():
    assert rates(Constant(), base=0.3) == [0.3] * 100


@pytest.mark.parametrize("unit, period", [("epochs", 3.0), ("steps", 30.0)])
def test_step_falls_exactly_at_the_boundary(unit, period):
    got = rates(Step(unit=unit, period=period, gamma=0.5))
    assert got[29] == 1.0 and got[30] == 0.5 and got[60] == 0.25


def test_step_boundary_with_fractional_epochs():
    got = rates(Step(period=0.3, gamma=0.5))
    assert got[2] == 1.0 and got[3] == 0.5


def test_multistep():
    got = rates(MultiStep(milestones=[2.0, 5.0], gamma=0.1))
    assert got[19] == 1.0 and got[20] == pytest.approx(0.1) and got[50] == pytest.approx(0.01)


def test_poly_and_cosine_end_at_their_final_rate():
    poly, cosine = rates(Poly(power=2.0, end_factor=0.1)), rates(Cosine())
    assert poly[0] == 1.0 and poly[50] == pytest.approx(0.1 + 0.9 * 0.25)
    assert cosine[0] == 1.0 and cosine[50] == pytest.approx(0.5)
    assert cosine[99] == pytest.approx((1 + math.cos(math.pi * 0.99)) / 2)
    assert all(a >= b for a, b in zip(cosine, cosine[1:]))


def test_duration_ends_the_fall_before_the_run():
    got = rates(Cosine(duration=5.0, end_factor=0.2))
    assert got[50] == pytest.approx(0.2) and got[99] == pytest.approx(0.2)


@pytest.mark.parametrize("schedule", [Constant, Step, MultiStep, Poly, Cosine])
def test_warmup_rises_linearly_to_the_base_rate(schedule):
    got = rates(schedule(warmup=2.0, warmup_from=0.5))
    assert got[:20] == pytest.approx([0.5 + 0.5 * (i + 1) / 20 for i in range(20)])
    assert got[20] == pytest.approx(1.0)


def test_a_fall_without_an_end_is_refused():
    with pytest.raises(ConfigError, match="trainer.max_epochs"):
        Cosine().build(0.1, 10, None)
    assert Constant().build(0.1, 10, None)(10**6) == 0.1


@pytest.mark.parametrize("unit, warmup", [("steps", 40.0), ("epochs", 4.0)])
def test_inverse_sqrt_equals_the_formula_of_the_transformer_paper(unit, warmup):
    size, steps = 512, 40
    peak = (size * steps) ** -0.5
    published = [size**-0.5 * min(step**-0.5, step * steps**-1.5) for step in range(1, 1001)]
    got = rates(InverseSqrt(unit=unit, warmup=warmup), total=1000, base=peak)
    assert got == pytest.approx(published, rel=1e-12)
    assert max(got) == got[39] == peak and got[159] == pytest.approx(peak / 2)


def test_inverse_sqrt_needs_no_end_and_has_a_warmup():
    assert InverseSqrt(warmup=4.0).build(0.1, 10, None)(399) == pytest.approx(0.01)
    assert rates(InverseSqrt(unit="epochs", warmup=0.01))[:4] == pytest.approx([1, 2**-0.5, 3**-0.5, 0.5])
    with pytest.raises(ValueError, match="greater than 0"):
        InverseSqrt(warmup=0.0)


def test_linear_rises_for_its_share_and_falls_to_the_end():
    got = rates(Linear(), total=100)
    assert got[0] == pytest.approx(0.1) and got[9] == 1.0 and got[10] == 1.0
    assert got[55] == pytest.approx(0.5) and got[99] == pytest.approx(1 / 90)
    assert rates(Linear(warmup=2.0), total=100)[9] == pytest.approx(0.5)  # a length goes before the share


@pytest.mark.parametrize(
    "schedule, words",
    [
        (
            Constant(warmup=12.0),
            ["lr_scheduler.warmup=12 epochs (120 steps)", "run (100 steps)", "0.83 of optimizer.lr"],
        ),
        (Cosine(warmup=12.0), ["lr_scheduler.warmup=12"]),
        (InverseSqrt(), ["lr_scheduler.warmup=4000 steps", "0.025 of optimizer.lr"]),
        (Linear(warmup=200.0, unit="steps"), ["lr_scheduler.warmup=200 steps"]),
        (Linear(warmup_share=0.5, duration=40.0), ["lr_scheduler: the warm-up (200 steps) is longer than the run"]),
        (MultiStep(milestones=[5.0, 10.0, 40.0]), ["lr_scheduler.milestones: 10, 40 epochs lie at or beyond the end"]),
        (MultiStep(milestones=[2.0, 5.0], warmup=3.0), ["drops to 0.1 of optimizer.lr right after it"]),
        (MultiStep(milestones=[2.0, 5.0], gamma=0.0), ["the rate is 0 from step 21 of 100 on"]),
        (Step(period=10.0), ["lr_scheduler.period=10 epochs", "never falls"]),
        (Step(period=2.0, warmup=5.0), ["drops to 0.01 of optimizer.lr"]),
        (Cosine(duration=20.0), ["lr_scheduler.duration=20 epochs (200 steps)", "0.5 of optimizer.lr"]),
        (Cosine(duration=5.0), ["the rate is 0 from step 51 of 100 on"]),
    ],
    ids=str,
)
def test_schedule_that_does_not_fit_the_run_is_one_line(schedule, words):
    (line,) = schedule.warnings(10, 100)
    assert all(word in line for word in words) and "\n" not in line


@pytest.mark.parametrize(
    "schedule",
    [
        Constant(warmup=10.0),
        InverseSqrt(warmup=20.0),
        Cosine(warmup=2.0),
        Cosine(warmup=10.0),
        Linear(),
        Poly(duration=10.0),
        Step(period=3.0, warmup=3.0, gamma=1.0),
        MultiStep(milestones=[5.0, 9.9], warmup=2.0),
        Cosine(duration=5.0, end_factor=0.1),
    ],
    ids=str,
)
def test_fitting_schedule_gives_no_remark(schedule):
    assert schedule.warnings(10, 100) == []
    assert Constant(warmup=12.0).warnings(10, None) == []


def test_milestones_must_rise_and_a_fall_must_not_end_within_the_warmup():
    for milestones in ([5.0, 2.0], [5.0, 5.0]):
        with pytest.raises(ValueError, match="each must come after the one before it"):
            MultiStep(milestones=milestones)
    with pytest.raises(ValueError, match="warmup=5 must be shorter than duration=5"):
        Poly(warmup=5.0, duration=5.0)
