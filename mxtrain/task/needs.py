"""Requirements of a task on placement, order and precision of a batch's computation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Sequence

if TYPE_CHECKING:
    from mxtrain.model.spec import Model

WHOLE_BATCH = "whole_batch"
CARRIED_STATE = "carried_state"
CARRIED_ROWS = "carried_rows"
GLOBAL_WEIGHT = "global_weight"
FULL_PRECISION = "full_precision"
EQUAL_SHARES = "equal_shares"
NEEDS = {
    WHOLE_BATCH: "its loss compares the samples of a batch with each other",
    CARRIED_STATE: "its state goes from each batch to the next, in order",
    CARRIED_ROWS: "its network carries the state of each row of a batch to the next",
    GLOBAL_WEIGHT: "its loss must be divided by the weight of the global batch",
    FULL_PRECISION: "its numbers do not fit into 16 bits",
    EQUAL_SHARES: "each worker keeps its own samples, such as environments, so shares stay as they are",
}
"""Reason for each requirement, as a clause of messages."""


def needs_of(needs: Sequence[str], model: Model) -> Sequence[str]:
    """Returns the requirements of a run: the `needs` of its task, and those of the chosen network."""
    carries = model.state_shapes and CARRIED_ROWS not in needs
    return [*needs, *([CARRIED_ROWS] if carries else [])]
