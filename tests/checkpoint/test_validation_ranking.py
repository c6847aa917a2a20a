import itertools
import json
import math

import pytest

from mxtrain.checkpoint.ranking import is_perfect, rank, should_warn_unmoved, track_unmoved, unmoved_warning


@pytest.mark.parametrize("direction, sign", [("max", 1), ("min", -1)])
def test_order_of_validations(direction, sign):
    best_first = [
        (sign * 0.9, 7.0, 1),
        (sign * 0.5, 1.0, 2),
        (sign * 0.5, 2.0, 9),
        (sign * 0.5, 2.0, 3),
        (sign * 0.5, None, 8),
        (sign * 0.5, math.nan, 7),
        (sign * 0.1, 0.0, 10),
    ]
    for order in itertools.permutations(best_first):
        assert sorted(order, key=lambda one: rank(*one, direction)) == best_first


def remark(values, losses, direction="max", monitor="val/bleu"):
    unmoved = {}
    for value, loss in zip(values, losses):
        unmoved = json.loads(json.dumps(track_unmoved(unmoved, value, loss)))
    return unmoved_warning(monitor, direction, unmoved)


def test_constant_value_is_reported():
    said = remark([0.0] * 4, [5.0, 4.0, 4.5, 3.0])
    assert "val/bleu was 0 at each of the 4 validations" in said and "lowest val/loss" in said
    assert "went from 5 to 3: train longer" in said and "trainer.monitor=val/loss" in said
    assert "went from 5 to 4.999: check the data" in remark([0.0] * 2, [5.0, 4.999])
    assert "went from 5 to 6: check the data" in remark([0.0] * 2, [5.0, 6.0])
    assert "val/cer was 1 at each of the 2" in remark([1.0] * 2, [5.0, 4.0], "min", "val/cer")
    assert "at the only validation" in remark([0.0], [5.0])
    assert "last checkpoint counts as the best" in remark([0.0] * 2, [None, None])
    assert "nothing is learned" in remark([2.5] * 2, [2.5] * 2, "min", "val/loss")


@pytest.mark.parametrize(
    "values, direction",
    [
        ([0.0, 0.1], "max"),
        ([0.0, 0.1, 0.0], "max"),
        ([1.0, 1.0], "max"),
        ([100.0] * 3, "max"),
        ([0.0] * 3, "min"),
        ([0.2], "max"),
        ([1.0], "min"),
        ([0.0, math.nan], "max"),
        ([math.nan, 0.0, 0.0], "max"),
        ([], "max"),
    ],
)
def test_changed_or_perfect_value_has_no_remark(values, direction):
    assert remark(values, [5.0 - number for number in range(len(values))], direction) == ""


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_value_that_is_always_nan_is_reported(value):
    said = remark([value] * 3, [5.0, 4.0, 3.0], monitor="val/own")
    assert "val/own was no finite number at each of the 3 validations so far, so no checkpoint is the best" in said
    assert "trainer.monitor=val/loss" in said and "at the only validation" in remark([value], [5.0])
    unmoved = {}
    for number in range(1, 5):
        unmoved = track_unmoved(unmoved, value, 1.0)
        assert should_warn_unmoved(unmoved, number, 9) == (number == 3)
    assert track_unmoved(unmoved, 0.5, 1.0) == {"moved": 1}


def test_perfect_values():
    assert is_perfect(1.0, "max") and is_perfect(100.0, "max") and is_perfect(0.0, "min")
    assert not is_perfect(0.0, "max") and not is_perfect(1.0, "min")
