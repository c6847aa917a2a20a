"""One row of the sweep: an operator with its inputs and its reference in NumPy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np

Shape = Tuple[Union[int, str], ...]
"""Shape of an input; "N" is the size of the batch."""
Function = Callable[..., Any]
BATCH = 3


@dataclass(frozen=True)
class Entry:
    """An operator.

    Attributes:
        name: operator and options, as on the page.
        call: function of `nd` or `sym` and the inputs; returns an output or a list of outputs.
        shapes: shapes of the inputs that are differentiated.
        reference: function of the inputs as float64 arrays, which returns what `call` returns; None for the
            gradient of the operator's own values.
        fixed: function of the size of the batch that returns further inputs, which are not differentiated.
        low, high: range of the inputs.
        step: step of the finite differences.
        tolerance: largest error in float32, over the largest value of the output or gradient.
        gradient: False if the gradient is not that of the outputs by definition.
    """

    name: str
    call: Function
    shapes: Sequence[Shape]
    reference: Optional[Function] = None
    fixed: Callable[[int], Sequence[np.ndarray]] = lambda size: ()
    low: float = -2.0
    high: float = 2.0
    step: float = 1e-5
    tolerance: float = 1e-3
    gradient: bool = True

    def inputs(self, batch: int) -> List[np.ndarray]:
        """Returns differentiated inputs: numbers in any order of which no two are near, so that no kink or tie lies
        within a step."""
        rng = np.random.RandomState(len(self.name))
        found = []
        for shape in self.shapes:
            sizes = [batch if size == "N" else int(size) for size in shape]
            count = int(np.prod(sizes))
            spread = (rng.permutation(count) + 0.31) / max(count, 1)
            found.append((self.low + spread * (self.high - self.low)).reshape(sizes))
        return found


def table(calls: Mapping[str, Tuple[Function, Function]], shapes: Sequence[Shape], **options: Any) -> List[Entry]:
    """Returns entries that have the same inputs."""
    return [Entry(name, call, shapes, reference, **options) for name, (call, reference) in calls.items()]


def as_list(outputs: Any) -> List[Any]:
    """Returns outputs as a list."""
    return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]


def heads_of(outputs: Sequence[np.ndarray]) -> List[np.ndarray]:
    """Returns the weights of the outputs in the sum that is differentiated."""
    rng = np.random.RandomState(7)
    return [rng.uniform(-1, 1, output.shape) for output in outputs]


def differences(
    function: Callable[[Sequence[np.ndarray]], Sequence[np.ndarray]], inputs: Sequence[np.ndarray], step: float
) -> List[np.ndarray]:
    """Returns the gradient of the sum of heads times outputs by central differences, for every element."""
    heads = heads_of(function(inputs))
    found = []
    for number, array in enumerate(inputs):
        gradient = np.zeros_like(array)
        for index in np.ndindex(array.shape):
            values: Dict[int, float] = {}
            for sign in (-1, 1):
                moved = array.copy()
                moved[index] += sign * step
                outputs = function([*inputs[:number], moved, *inputs[number + 1 :]])
                values[sign] = sum(float((output * head).sum()) for output, head in zip(outputs, heads))
            gradient[index] = (values[1] - values[-1]) / (2 * step)
        found.append(gradient)
    return found
