"""Requirements of a task on placement, order and precision of a batch's computation."""

WHOLE_BATCH = "whole_batch"
CARRIED_STATE = "carried_state"
CARRIED_ROWS = "carried_rows"
GLOBAL_WEIGHT = "global_weight"
FULL_PRECISION = "full_precision"
NEEDS = {
    WHOLE_BATCH: "its loss compares the samples of a batch with each other",
    CARRIED_STATE: "its state goes from each batch to the next, in order",
    CARRIED_ROWS: "its network carries the state of each row of a batch to the next",
    GLOBAL_WEIGHT: "its loss must be divided by the weight of the global batch",
    FULL_PRECISION: "its numbers do not fit into 16 bits",
}
"""Reason for each requirement, as a clause of messages."""
