"""GPipe and 1F1B orders."""

import pytest

from mxtrain.parallel.schedule import BACKWARD, FORWARD, held, stage_order, timetable


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("stages, microbatches", [(1, 1), (2, 1), (2, 8), (4, 3), (4, 16)])
def test_every_action_runs_once_after_its_dependencies(schedule, stages, microbatches):
    table = timetable(schedule, microbatches, [1.0] * stages, [2.0] * stages)
    done = set()
    for action in table.actions:
        if action.kind == FORWARD:
            assert action.stage == 0 or (FORWARD, action.stage - 1, action.microbatch) in done
        else:
            assert (FORWARD, action.stage, action.microbatch) in done
            assert action.stage == stages - 1 or (BACKWARD, action.stage + 1, action.microbatch) in done
        done.add((action.kind, action.stage, action.microbatch))
    assert len(table.actions) == len(done) == 2 * stages * microbatches


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_bubble_equals_published_formula(schedule):
    """(p - 1) / (m + p - 1) for p equal stages and m microbatches."""
    for stages, microbatches in ((2, 8), (4, 16), (3, 3)):
        table = timetable(schedule, microbatches, [1.0] * stages, [2.0] * stages)
        assert table.bubble == pytest.approx((stages - 1) / (microbatches + stages - 1))


def test_1f1b_holds_as_many_microbatches_as_stages_follow():
    assert [held("1f1b", stage, 4, 16) for stage in range(4)] == [4, 3, 2, 1]
    assert [held("gpipe", stage, 4, 16) for stage in range(4)] == [16] * 4
    assert [held("1f1b", stage, 4, 2) for stage in range(4)] == [2, 2, 2, 1]


def test_backward_passes_follow_microbatch_order():
    """Gradients are thereby added in the order of one device."""
    for schedule in ("gpipe", "1f1b"):
        for stage in range(3):
            order = [a.microbatch for a in stage_order(schedule, stage, 3, 5) if a.kind == BACKWARD]
            assert order == [0, 1, 2, 3, 4]
