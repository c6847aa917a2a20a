"""The state of one parameter in an optimizer: MXNet nests arrays in tuples, with None for absent ones."""

from __future__ import annotations

from typing import Callable, List, Sequence, Union

from mxtrain.engine.backend import nd

OptimizerState = Union[None, nd.NDArray, Sequence["OptimizerState"]]
"""The state of one parameter."""


def flatten(state: OptimizerState) -> List[nd.NDArray]:
    """Returns the arrays of one parameter's optimizer state, in order."""
    if state is None:
        return []
    if isinstance(state, nd.NDArray):
        return [state]
    return [array for part in state for array in flatten(part)]


def map_state(state: OptimizerState, change: Callable[[nd.NDArray], nd.NDArray]) -> OptimizerState:
    """Returns the state with each of its arrays replaced by the result of `change`."""
    if isinstance(state, nd.NDArray):
        return change(state)
    return type(state)(map_state(part, change) for part in state) if isinstance(state, (list, tuple)) else state
