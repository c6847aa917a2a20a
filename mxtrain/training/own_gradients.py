"""Compares the gradients of users' own blocks with finite differences, and names the block that is wrong.

A block is run by itself on the inputs that it gets in the network, in training mode and in float64, in which the error
of a central difference is about 1e-9. Its float32 gradient is then compared with that in float64, because many
operators of MXNet have another implementation in float32. Elements and directions are drawn at random, so that the time
is bounded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, cast

import numpy as np

from mxtrain.engine.backend import autograd, gluon, mx, nd
from mxtrain.model.graph.mxnet_workarounds import called_in
from mxtrain.model.graph.trace import blocks_by_path
from mxtrain.parallel.differences import OwnGradients, WrongGradient

if TYPE_CHECKING:
    from mxtrain.parallel.objective import Objective
    from mxtrain.types import Batch

LIBRARIES = ("mxtrain", "mxnet", "gluoncv")
"""Packages whose blocks are not compared: tests compare their operators."""
NUM_SAMPLES = 4
"""Largest number of samples of the batch to compare."""
PER_CLASS = 3
"""Largest number of blocks of one class to compare."""
NUM_TENSORS = 8
"""Largest number of inputs and parameters of a block to compare: inputs first, then random parameters."""
NUM_DIRECTIONS = NUM_ELEMENTS = 2
"""Number of random directions of a tensor, and of random elements besides the largest one, to compare."""
STEPS = (1e-5, 1e-3, 1e-2)
"""Steps of the differences. Wider steps serve operators that always compute in float32."""
AGREEMENT = 5e-3
"""Largest relative difference between the slopes to either side. Beyond it the slope is inconclusive: a kink of a ReLU,
a tie of a maximum or a jump lies within the step, or rounding dominates."""
TOLERANCE = 1e-2
"""Largest difference from the gradient, over its length. Where the slopes to both sides agree, the error of their mean
is at most half of their difference; the faults that were found in MXNet are at least 3e-2."""
FLOAT32_TOLERANCE = 5e-2
"""Largest difference between float32 and float64, relative to the norm of the gradient. Rounding moves single inputs of
a ReLU across 0, which changes a gradient by some percent."""
ON_PURPOSE = (
    "BlockGrad",
    "_contrib_gradientmultiplier",
    "make_loss",
    "MakeLoss",
    "SoftmaxOutput",
    "LinearRegressionOutput",
    "LogisticRegressionOutput",
    "MAERegressionOutput",
)
"""Operators whose gradient is intentionally not the derivative of their value."""


@dataclass(frozen=True)
class RecordedCall:
    """One call of a block within the network."""

    layer: str
    block: gluon.Block
    arguments: Sequence[Any]


def is_own(block: gluon.Block) -> bool:
    """Returns True for a block of a user's code; functions in a `Lambda` are such code."""
    is_function = isinstance(block, (gluon.nn.Lambda, gluon.nn.HybridLambda))
    return is_function or type(block).__module__.partition(".")[0] not in LIBRARIES


def compare_own_gradients(exact: Objective, single: Objective, batch: Batch) -> OwnGradients:
    """Compares the gradients of all own blocks of a network and of its loss.

    Args:
        exact: network and loss in float64.
        single: the same, from equal weights, in float32.
        batch: a training batch.
    """
    if not any(_own_blocks(exact)):
        return OwnGradients()
    part = batch.slice(0, min(batch.size, NUM_SAMPLES)).cast("float64")
    calls = list(_recorded_calls(exact, part))
    others = dict(_own_blocks(single))
    wrong: Dict[str, WrongGradient] = {}
    checked: List[str] = []
    remarks: List[str] = []
    per_class: Dict[type, int] = {}
    for call in reversed(calls):  # children before their parents
        kind = type(call.block)
        # A wrong block makes all blocks around it wrong, and only the innermost one is to be named.
        if any(_is_inside(layer, call.layer) for layer in wrong) or per_class.get(kind, 0) >= PER_CLASS:
            continue
        per_class[kind] = per_class.get(kind, 0) + 1
        comparison = BlockComparison(call, others[call.layer])
        if comparison.purpose:
            remarks.append(f"gradient of '{call.layer or 'the network'}' not compared: it calls {comparison.purpose}")
            continue
        checked.append(call.layer)
        found = comparison.first_wrong()
        if found is not None:
            wrong[call.layer] = WrongGradient(call.layer, kind.__name__, *found)
    return OwnGradients(checked[::-1], list(wrong.values())[::-1], remarks[::-1])


def _is_inside(layer: str, other: str) -> bool:
    return other == "" and not layer.startswith("(loss)") or layer.startswith(f"{other}.")


def _own_blocks(objective: Objective) -> Iterator[Tuple[str, gluon.Block]]:
    for root, prefix in ((objective.network, ""), (cast(gluon.Block, objective.loss), "(loss)")):
        yield from ((path, block) for path, block in blocks_by_path(root, prefix) if is_own(block))


def _recorded_calls(objective: Objective, batch: Batch) -> Iterator[RecordedCall]:
    """Runs network and loss once and yields the first call of each own block, parents first."""
    found: Dict[str, RecordedCall] = {}
    for root in (objective.network, objective.loss):
        root.hybridize(False)  # type: ignore[union-attr]  # a graph calls no hooks
    handles = []
    for layer, block in _own_blocks(objective):

        def keep(block: gluon.Block, arguments: Sequence[Any], layer: str = layer) -> None:
            found.setdefault(layer, RecordedCall(layer, block, _copied(arguments)))

        handles.append(block.register_forward_pre_hook(keep))
    with autograd.train_mode():
        states = [nd.zeros((batch.size, *shape), dtype="float64") for shape in objective.state_shapes]
        outputs = objective.network(*batch.inputs, *states)
        outputs = outputs if isinstance(outputs, (list, tuple)) else (outputs,)
        kept = outputs[: len(outputs) - len(objective.state_shapes)]
        objective.loss(*kept, *batch.targets)
    for handle in handles:
        handle.detach()
    yield from (found[layer] for layer, _ in _own_blocks(objective) if layer in found)


def _copied(value: Any, dtype: Optional[str] = None) -> Any:
    """Copies all arrays of nested arguments; floating-point arrays in another precision, if one is given."""
    if isinstance(value, nd.NDArray):
        is_float = np.dtype(value.dtype).kind == "f"
        return value.astype(dtype) if dtype and is_float else value.copy()
    if isinstance(value, (list, tuple)):
        return [_copied(one, dtype) for one in value]
    return value


def _arrays(value: Any) -> List[nd.NDArray]:
    """Returns all floating-point arrays of nested arguments or outputs."""
    if isinstance(value, nd.NDArray):
        return [value] if np.dtype(value.dtype).kind == "f" else []
    return [array for one in value for array in _arrays(one)] if isinstance(value, (list, tuple)) else []


class BlockRun:
    """Runs a block in one precision, with its own copy of the arguments."""

    def __init__(self, block: gluon.Block, arguments: Sequence[Any]) -> None:
        self.block, self.arguments = block, arguments
        self.varied: Dict[str, nd.NDArray] = {f"input {n}": array for n, array in enumerate(_arrays(arguments))}
        for array in self.varied.values():
            array.attach_grad()
        for name, parameter in block._collect_params_with_prefix().items():
            if parameter.grad_req != "null" and parameter._grad_stype == "default":
                self.varied[name] = parameter.data()

    def outputs(self, seed: int = 0) -> List[nd.NDArray]:
        """Runs the block with the same random numbers each time."""
        mx.random.seed(seed)
        with autograd.record():
            return _arrays(self.block(*self.arguments))

    def gradients(self, heads: Sequence[np.ndarray]) -> Mapping[str, np.ndarray]:
        """Returns the gradients of the sum of heads times outputs."""
        for array in self.varied.values():
            array.grad[:] = 0  # the backward pass leaves a gradient as it is if nothing reads the array
        outputs = self.outputs()
        autograd.backward(outputs, [nd.array(head, dtype=y.dtype) for head, y in zip(heads, outputs)])
        return {name: array.grad.asnumpy().astype(np.float64) for name, array in self.varied.items()}

    def value(self, heads: Sequence[np.ndarray]) -> float:
        """Returns the sum of heads times outputs."""
        return sum(float((y.asnumpy() * head).sum()) for y, head in zip(self.outputs(), heads))

    def slopes(
        self, array: nd.NDArray, direction: np.ndarray, step: float, heads: Sequence[np.ndarray]
    ) -> Tuple[float, float]:
        """Returns the slopes of the sum of heads times outputs to either side of the array in a direction."""
        before = array.asnumpy()
        here = self.value(heads)
        totals = []
        for sign in (1, -1):
            array[:] = nd.array(before + sign * step * direction, dtype=array.dtype)
            totals.append(self.value(heads))
        array[:] = nd.array(before, dtype=array.dtype)
        return (totals[0] - here) / step, (here - totals[1]) / step


class BlockComparison:
    """Compares one block in float64 with finite differences, and in float32 with float64."""

    def __init__(self, call: RecordedCall, other: gluon.Block) -> None:
        self._rng = np.random.RandomState(0)
        self._exact = BlockRun(call.block, call.arguments)
        self._single = BlockRun(other, _copied(call.arguments, "float32"))
        outputs = self._exact.outputs()
        self._heads = [self._rng.uniform(-1, 1, y.shape) for y in outputs]
        called = {op for _, op, _ in called_in(outputs)} if outputs and self._exact.varied else set()
        self.purpose = ", ".join(op for op in ON_PURPOSE if op in called)

    def first_wrong(self) -> Optional[Tuple[str, float, str]]:
        """Returns tensor, error and precision of a gradient that is wrong; None if all are right."""
        if not self._heads or not self._exact.varied:
            return None
        exact = self._exact.gradients(self._heads)
        # A gradient that is 0 except for rounding is compared relative to the largest gradient of the block.
        floor = 1e-6 * max(float(np.linalg.norm(gradient)) for gradient in exact.values())
        for name in self._drawn(list(exact)):
            error = self._error(name, exact[name], floor)
            if error > TOLERANCE:
                return name, error, "float64"
        if self._draws():  # random numbers differ between precisions
            return None
        single = self._single.gradients(self._heads)
        for name, gradient in exact.items():
            length = max(float(np.linalg.norm(gradient)), floor, 1e-12)
            error = float(np.nan_to_num(np.linalg.norm(single[name] - gradient) / length, nan=np.inf))
            if error > FLOAT32_TOLERANCE:
                return name, error, "float32"
        return None

    def _draws(self) -> bool:
        outputs, others = self._exact.outputs(), self._exact.outputs(seed=1)
        return any(not np.array_equal(y.asnumpy(), other.asnumpy()) for y, other in zip(outputs, others))

    def _drawn(self, names: Sequence[str]) -> List[str]:
        inputs = [name for name in names if name.startswith("input ")][:NUM_TENSORS]
        parameters = [name for name in names if not name.startswith("input ")]
        count = min(len(parameters), NUM_TENSORS - len(inputs))
        return [*inputs, *(parameters[index] for index in sorted(self._rng.permutation(len(parameters))[:count]))]

    def _error(self, name: str, gradient: np.ndarray, floor: float) -> float:
        """Returns the largest difference from a conclusive slope, over the length of the gradient in question."""
        worst = 0.0
        for direction in self._directions(gradient):
            moved = direction != 0
            slope = self._conclusive_slope(self._exact.varied[name], direction, float(np.linalg.norm(gradient[moved])))
            if slope is None:
                continue
            length = max(float(np.linalg.norm(gradient[moved])), abs(slope), floor, 1e-12)
            worst = max(worst, float(np.nan_to_num(abs(slope - (gradient * direction).sum()) / length, nan=np.inf)))
        return worst

    def _conclusive_slope(self, array: nd.NDArray, direction: np.ndarray, length: float) -> Optional[float]:
        for step in STEPS:
            right, left = self._exact.slopes(array, direction, step, self._heads)
            if abs(right - left) <= AGREEMENT * max(abs(right), abs(left), length):
                return (right + left) / 2
        return None

    def _directions(self, gradient: np.ndarray) -> Iterator[np.ndarray]:
        if not gradient.size:
            return
        for _ in range(NUM_DIRECTIONS):
            yield self._rng.choice([-1.0, 1.0], gradient.shape)
        # The largest element is always compared, because random elements of a sparse gradient are mostly 0.
        elements = {int(np.abs(gradient).argmax()), *self._rng.randint(gradient.size, size=NUM_ELEMENTS).tolist()}
        for index in sorted(elements):
            yield np.eye(1, gradient.size, index).reshape(gradient.shape)
