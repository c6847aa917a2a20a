"""Compares the gradients that MXNet computes with finite differences in float64."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

import numpy as np

from mxtrain.engine.backend import autograd, gluon, mx, nd
from mxtrain.model.graph.mxnet_workarounds import replace_wrong_layers
from mxtrain.model.parameters import distinct_parameters

SEED = 1
SECOND_ORDER = (-1, 1), (-0.5, 0.5)
FOURTH_ORDER = (-2, -1, 1, 2), (1 / 12, -8 / 12, 8 / 12, -1 / 12)
"""Points of the difference quotient, in steps, and their weights."""


@dataclass(frozen=True)
class Case:
    """One function or layer.

    Attributes:
        name: as in a test's name.
        make: gives the layer, or the function, of NDArrays.
        inputs: a shape for what is differentiated; an array for what is not.
        train: in training or prediction.
        step: of the differences, where a float64 result is exact to float32 only, or draws random numbers.
        draws: whether it draws random numbers.
    """

    name: str
    make: Callable[[], Any]
    inputs: Sequence[Any]
    train: bool = True
    step: float = 1e-5
    tolerance: Mapping[str, float] = field(default_factory=lambda: {"float32": 5e-4, "float64": 1e-6})
    draws: bool = False


def spread(shape: Tuple[int, ...], rng: np.random.RandomState) -> np.ndarray:
    """Numbers from -2 to 2 in any order, none near another or near 0, so that no kink or tie lies within a step."""
    size = int(np.prod(shape))
    return ((rng.permutation(size) + 0.3) / size * 4 - 2).reshape(shape)


def flat(outputs: Any) -> List[nd.NDArray]:
    """All arrays of nested outputs."""
    return [outputs] if isinstance(outputs, nd.NDArray) else [one for part in outputs for one in flat(part)]


class Computed:
    """A case in one precision."""

    def __init__(self, case: Case, dtype: str, mend: bool = True):
        rng = np.random.RandomState(SEED)
        self.case, self.block = case, case.make()
        fixed = [given if isinstance(given, np.ndarray) else spread(given, rng) for given in case.inputs]
        self.inputs = [nd.array(given, dtype=dtype) for given in fixed]
        self.varied: Dict[str, nd.NDArray] = {
            f"input {number}": array
            for number, (array, given) in enumerate(zip(self.inputs, case.inputs))
            if not isinstance(given, np.ndarray)
        }
        for array in self.varied.values():
            array.attach_grad()
        self.parameters: Dict[str, Any] = {}
        if isinstance(self.block, gluon.Block):
            if mend:
                replace_wrong_layers(self.block)
            self._fill(fixed, dtype, rng)
            if dtype == "float32" and isinstance(self.block, gluon.HybridBlock):  # as runs are
                self.block.hybridize(static_alloc=True)
        self.state = {
            name: parameter.data().copy() for name, parameter in self.parameters.items() if parameter.grad_req == "null"
        }

    def _fill(self, fixed: Sequence[np.ndarray], dtype: str, rng: np.random.RandomState) -> None:
        self.block.initialize(mx.init.Zero())
        self.block(*[nd.array(given) for given in fixed])
        self.block.cast(dtype)
        self.parameters = distinct_parameters(self.block)
        for name, parameter in self.parameters.items():
            positive = name.endswith(("gamma", "running_var"))
            low = 0.5 if positive else -0.7
            parameter.set_data(nd.array(rng.uniform(low, low + 1.3, parameter.shape), dtype=dtype))
            if parameter.grad_req != "null":
                self.varied[name] = parameter.data()

    def __call__(self) -> List[nd.NDArray]:
        """The outputs, from the same draws and moving statistics each time."""
        for name, before in self.state.items():
            self.parameters[name].set_data(before)
        mx.random.seed(SEED)
        with autograd.record(train_mode=self.case.train):
            return flat(self.block(*self.inputs))

    def gradients(self, heads: Sequence[np.ndarray]) -> Dict[str, np.ndarray]:
        """Returns gradients of the sum of outputs times `heads` with respect to the varied inputs."""
        outputs = self()
        heads_like = [nd.array(head, dtype=out.dtype) for head, out in zip(heads, outputs)]
        autograd.backward(outputs, heads_like, train_mode=self.case.train)
        return {name: array.grad.asnumpy() for name, array in self.varied.items()}

    def value(self, heads: Sequence[np.ndarray]) -> float:
        """The sum of outputs times `heads`."""
        return sum(float((out.asnumpy().astype(np.float64) * head).sum()) for out, head in zip(self(), heads))

    def slope(self, name: str, direction: np.ndarray, heads: Sequence[np.ndarray]) -> float:
        """The derivative in a direction."""
        array = self.varied[name]
        base, total = array.asnumpy(), 0.0
        for place, weight in zip(*(SECOND_ORDER if self.case.step < 1e-3 else FOURTH_ORDER)):
            array[:] = nd.array(base + place * self.case.step * direction, dtype=array.dtype)
            total += weight * self.value(heads)
        array[:] = nd.array(base, dtype=array.dtype)
        return total / self.case.step


def directions(shape: Tuple[int, ...], rng: np.random.RandomState) -> List[np.ndarray]:
    """The last element, any other, and all together with any signs, twice."""
    size = int(np.prod(shape))
    ones = [np.eye(1, size, index).reshape(shape) for index in {rng.randint(size), size - 1}]
    return [*ones, *(rng.choice([-1.0, 1.0], shape) for _ in range(2))]


def errors(case: Case, mend: bool = True) -> Dict[str, float]:
    """By precision and what is varied: the difference over the largest gradient (or its length, in a direction
    that takes all elements)."""
    rng = np.random.RandomState(SEED)
    found: Dict[str, float] = {}
    heads: List[np.ndarray] = []
    slopes: Dict[Tuple[str, str], List[Tuple[np.ndarray, float]]] = {}
    for dtype in ("float64", "float32"):
        computed = Computed(case, dtype, mend)
        heads = heads or [rng.uniform(-1, 1, out.shape) for out in computed()]
        gradients = computed.gradients(heads)
        own = dtype if case.draws else "float64"  # what is drawn depends on the precision
        for name, gradient in gradients.items():
            if (own, name) not in slopes:
                slopes[own, name] = [(one, computed.slope(name, one, heads)) for one in directions(gradient.shape, rng)]
            worst = 0.0
            for direction, slope in slopes[own, name]:
                length = np.abs(gradient).max() if np.abs(direction).sum() == 1 else np.linalg.norm(gradient)
                worst = np.maximum(worst, abs(slope - (gradient * direction).sum()) / max(length, abs(slope), 1e-6))
            found[f"{dtype}, {name}"] = worst
    return found


def wrong(case: Case, mend: bool = True) -> Dict[str, float]:
    """The errors that are too large."""
    return {
        name: error for name, error in errors(case, mend).items() if not error <= case.tolerance[name.partition(",")[0]]
    }
