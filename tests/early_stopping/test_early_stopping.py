import json

import pytest

from mxtrain.early_stopping.spec import EarlyStopping, NoEarlyStopping


def feed(spec, values, direction="max", state=None):
    """The state after these values, and after how many of them the run stopped (None: not at all)."""
    state = state or {}
    for number, value in enumerate(values, start=1):
        state = spec.check({"val/accuracy": value}, state, lambda name: direction)
        state = json.loads(json.dumps(state))
        if spec.reason(state):
            return state, number
    return state, None


@pytest.mark.parametrize("direction, sign", [("max", 1), ("min", -1)])
def test_stops_after_patience_in_the_metrics_direction(direction, sign):
    values = [sign * v for v in (0.1, 0.5, 0.4, 0.4, 0.6, 0.6, 0.59, 0.58)]
    assert feed(EarlyStopping(patience=3), values, direction)[1] == 8


def test_an_improvement_within_min_delta_does_not_count():
    assert feed(EarlyStopping(patience=2, min_delta=0.1), [0.5, 0.55, 0.59])[1] == 3
    assert feed(EarlyStopping(patience=2, min_delta=0.01), [0.5, 0.55, 0.59])[1] is None


def test_baseline_must_be_beaten():
    state, stopped = feed(EarlyStopping(patience=2, baseline=0.9), [0.5, 0.8])
    assert stopped == 2 and "baseline 0.9" in EarlyStopping(patience=2, baseline=0.9).reason(state)
    assert feed(EarlyStopping(patience=2, baseline=0.9), [0.5, 0.91, 0.8])[1] is None


@pytest.mark.parametrize("direction, sign", [("max", 1), ("min", -1)])
def test_a_value_that_reaches_the_threshold_ends_the_run(direction, sign):
    spec = EarlyStopping(patience=9, threshold=sign * 0.9)
    state, stopped = feed(spec, [sign * value for value in (0.5, 0.95, 0.1)], direction)
    assert stopped == 2 and spec.reason(state).startswith(f"val/accuracy has reached {sign * 0.95:.6g}")
    assert feed(spec, [sign * 0.89, float("nan")], direction)[1] is None
    assert EarlyStopping(patience=9).reason(state) == "", "whoever takes the threshold away goes on"


def test_a_value_that_is_not_a_number_is_no_improvement():
    spec, nan = EarlyStopping(patience=2), float("nan")
    state, stopped = feed(spec, [nan, nan])
    assert stopped == 2 and spec.reason(state) == (
        "val/accuracy was no finite number at each of the 2 validations so far, so it cannot improve. Monitor a value "
        "that the validation samples define, e.g. early_stopping.monitor=val/loss"
    )
    assert spec.reason(feed(spec, [0.5, nan, nan])[0]).startswith("val/accuracy has not improved for 2 validations (b")
    spec = EarlyStopping(patience=2, baseline=0.9)
    assert spec.reason(feed(spec, [0.5, nan])[0]).endswith("(baseline 0.9, last nan)")


def feed_losses(spec, values, losses, state=None):
    """Like `feed`, with validation losses."""
    state = state or {}
    for number, (value, loss) in enumerate(zip(values, losses), start=1):
        state = spec.check({"val/accuracy": value, "val/loss": loss}, state, lambda name: "max")
        state = json.loads(json.dumps(state))
        if spec.reason(state):
            return state, number
    return state, None


def test_constant_value_does_not_stop_a_run_with_falling_loss():
    falling = [9.0 - number for number in range(9)]
    assert feed_losses(EarlyStopping(patience=2), [0.0] * 9, falling)[1] is None
    assert feed_losses(EarlyStopping(patience=2, baseline=0.5), [0.0] * 9, falling)[1] is None
    assert feed_losses(EarlyStopping(patience=2), [0.0] * 9, [9.0, 8.0, 8.0, 7.0, 7.0, 7.0, 6.0, 5.0, 4.0])[1] == 6
    assert feed_losses(EarlyStopping(patience=2), [0.0] * 9, [float("nan")] * 9)[1] == 3


def test_changed_value_decides_without_the_loss():
    falling = [9.0 - number for number in range(9)]
    assert feed_losses(EarlyStopping(patience=2), [0.0, 0.0, 0.1, 0.0, 0.0, 0.0, 0.0], falling)[1] == 5
    assert feed_losses(EarlyStopping(patience=2), [0.5, 0.1, 0.5, 0.5], falling)[1] == 3


def test_perfect_value_stops_regardless_of_loss():
    assert feed_losses(EarlyStopping(patience=2), [1.0] * 9, [9.0 - number for number in range(9)])[1] == 3


def test_constant_value_continues_after_a_resume():
    spec = EarlyStopping(patience=2)
    state, _ = feed_losses(spec, [0.0, 0.0], [9.0, 8.0])
    assert feed_losses(spec, [0.0, 0.0, 0.0], [7.0, 6.0, 5.0], state)[1] is None
    assert feed_losses(spec, [0.0, 0.0], [8.0, 8.0], state)[1] == 2


def test_state_is_resumed():
    spec = EarlyStopping(patience=3)
    state, _ = feed(spec, [0.5, 0.4, 0.4])
    assert feed(spec, [0.4], state=state)[1] == 1
    assert feed(EarlyStopping(patience=9), [0.4], state=state)[1] is None


def test_off_never_stops():
    assert NoEarlyStopping().reason(NoEarlyStopping().check({}, {}, lambda name: "max")) == ""


@pytest.mark.parametrize(
    "before, after, improves",
    [
        (0.80, 0.81, False),
        (0.93, 0.94, False),
        (0.80, 0.8101, True),
        (0.0, 0.01, False),
        (0.79, 0.81, True),
    ],
)
def test_an_improvement_of_exactly_min_delta_is_none_for_any_rounding(
    before: float, after: float, improves: bool
) -> None:
    rule = EarlyStopping(monitor="val/accuracy", min_delta=0.01)
    first = rule.check({"val/accuracy": before}, {}, lambda name: "max")
    second = rule.check({"val/accuracy": after}, first, lambda name: "max")
    assert (second["best"] == after) is improves


@pytest.mark.parametrize(
    "value, direction, reached",
    [
        (0.8999999761581421, "max", True),
        (0.8999, "max", False),
        (0.10000000149011612, "min", True),
        (0.1001, "min", False),
    ],
)
def test_a_threshold_is_reached_by_its_float32(value: float, direction: str, reached: bool) -> None:
    rule = EarlyStopping(monitor="val/x", threshold=0.9 if direction == "max" else 0.1)
    assert bool(rule.check({"val/x": value}, {}, lambda name: direction).get("reached")) is reached
