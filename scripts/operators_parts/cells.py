"""Compares operators with their references, one line of JSON per cell. Runs in a process of its own: see `__main__`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from operators_parts import arrays, elementwise, layers
from operators_parts.entry import BATCH, Entry, as_list, differences, heads_of

LOW = {"float16": 3e-2, "bfloat16": 8e-2}
"""Precisions that are cast to and from, with their tolerances."""


@dataclass(frozen=True)
class Condition:
    """A way to call an operator.

    Attributes:
        name: as on the page.
        leaf: turns the value of an input into the array that is differentiated.
        enter: function of `nd` or `sym`, the differentiated array and the shape that the operator is given, which
            returns the operator's input.
        back: turns the gradient of the differentiated array into that of the input.
        dtype: precision of the arrays.
        batch: size of the batch.
        hybrid: flags of the graph; None for an imperative call.
        add: True to add to the gradient.
        consumers: True if something else reads the operator's inputs, too.
        train: False for inference mode.
    """

    name: str
    leaf: Callable[[np.ndarray], np.ndarray] = lambda value: value
    enter: Callable[..., Any] = lambda F, x, shape: x
    back: Callable[[np.ndarray, Sequence[int]], np.ndarray] = lambda gradient, shape: gradient
    dtype: str = "float32"
    batch: int = BATCH
    hybrid: Optional[Dict[str, bool]] = None
    add: bool = False
    consumers: bool = False
    train: bool = True


def _padded(value: np.ndarray) -> np.ndarray:
    return np.concatenate([value[:1], value, value[:1]])


def _conv(F: Any, x: Any, shape: Sequence[int]) -> Any:
    """Passes an image through a convolution that changes nothing, so that it has oneDNN's own memory layout."""
    if len(shape) not in (3, 4, 5):
        return x
    ndim = len(shape) - 2
    weight = F.array(np.eye(shape[1]).reshape(shape[1], shape[1], *(1,) * ndim))
    return F.Convolution(x, weight, kernel=(1,) * ndim, num_filter=shape[1], no_bias=True)


def _dense(F: Any, x: Any, shape: Sequence[int]) -> Any:
    """Passes an array through a dense layer and an elementwise operator that change nothing."""
    size = shape[-1]
    y = F.FullyConnected(x.reshape((-1, size)), F.array(np.eye(size)), num_hidden=size, no_bias=True)
    return F.identity(y.reshape(shape))


VIEW = Condition(
    "view: reshape", lambda v: v.ravel(), lambda F, x, shape: (x * 1).reshape(shape), lambda g, shape: g.reshape(shape)
)
ROWS = Condition("view: rows", _padded, lambda F, x, shape: (x * 1)[1:-1], lambda g, shape: g[1:-1])
TURNED = Condition("transpose", lambda v: v.T, lambda F, x, shape: x.T, lambda g, shape: g.T)
CONDITIONS = [
    Condition("float32"),
    Condition("float64", dtype="float64"),
    VIEW,
    ROWS,
    TURNED,
    Condition("after Convolution", enter=_conv),
    replace(
        VIEW,
        name="view after Convolution",
        leaf=lambda v: v,
        back=lambda g, shape: g,
        enter=lambda F, x, shape: _conv(F, x, shape).reshape((-1,)).reshape(shape),
    ),
    Condition("after FullyConnected and identity", enter=_dense),
    Condition("grad_req=add", add=True),
    Condition("hybrid, grad_req=add", add=True, hybrid={"static_alloc": True}),
    Condition("several consumers", consumers=True),
    Condition("inference mode", train=False),
    Condition("batch of 1", batch=1),
    Condition("batch of 0", batch=0),
    Condition("hybrid", hybrid={}),
    Condition("hybrid static", hybrid={"static_alloc": True, "static_shape": True}),
    replace(VIEW, name="hybrid of a view", hybrid={}),
    replace(ROWS, name="hybrid static of rows", hybrid={"static_alloc": True}),
    Condition("hybrid, inference mode", hybrid={}, train=False),
    *(Condition(dtype, dtype=dtype) for dtype in LOW),
]
POLLUTED = 3
"""Exit code of a process in which oneDNN has failed. The failed calls stay in its stream and fail later ones."""
POLLUTES = ("primitive", "is_view", "reserve")
REPEATED = ("view", "inference", "hybrid of", "hybrid static of")
"""Conditions that are tried three times, because a gradient that is read from other memory is right by chance."""


def entries() -> List[Entry]:
    """Returns the whole table."""
    return [*elementwise.entries(), *arrays.entries(), *layers.entries()]


AVX_512 = ("avx512bw", "avx512dq", "avx512vl")


def has_bfloat16() -> bool:
    """Returns True if oneDNN 2.4 has bfloat16 kernels for this processor."""
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    return all(flag in flags for flag in AVX_512)


def is_skipped(entry: Entry, condition: Condition) -> bool:
    """Returns True if a condition does not apply to an operator."""
    if condition.name == "bfloat16" and not has_bfloat16():
        return True
    if condition.dtype in LOW and ("mod" in entry.name or "%" in entry.name):
        return True  # a rounded input is on the other side of a jump
    has_batch = any("N" in shape for shape in entry.shapes)
    images = any(len(shape) in (3, 4, 5) for shape in entry.shapes)
    if entry.name.startswith("BatchNorm") and not condition.train:
        return True  # it computes something else then, which "use_global_stats" tries
    if condition.name == "batch of 0":
        return not has_batch or entry.reference is None
    return condition.batch != BATCH and not has_batch or "Convolution" in condition.name and not images


class Cell:
    """An operator under a condition."""

    def __init__(self, entry: Entry, condition: Condition, mx: Any, cached_op: Any) -> None:
        self.entry, self.condition, self.mx, self.cached_op = entry, condition, mx, cached_op
        self.values = entry.inputs(condition.batch)
        self.fixed = [np.asarray(array, dtype=np.float64) for array in entry.fixed(condition.batch)]
        self._compiled: Any = None

    def operator(self, F: Any, inputs: Sequence[Any]) -> List[Any]:
        """Calls the operator in the precision of the condition."""
        if self.condition.dtype in LOW:
            inputs = [F.amp_cast(array, dtype=self.condition.dtype) for array in inputs]
        outputs = as_list(self.entry.call(F, *inputs))
        return [F.amp_cast(y, dtype="float32") for y in outputs] if self.condition.dtype in LOW else outputs

    def outputs(self, inputs: Sequence[Any]) -> List[Any]:
        """Calls the operator, or a graph of it."""
        nd, sym = self.mx.nd, self.mx.sym
        if self.condition.hybrid is None:
            return self.operator(nd, inputs)
        if self._compiled is None:
            names = [f"x{number}" for number in range(len(inputs))]
            graph = sym.Group(self.operator(sym, [sym.var(name) for name in names]))
            self._order = [names.index(name) for name in graph.list_inputs()]
            self._compiled = self.cached_op(graph, list(self.condition.hybrid.items()))
        return as_list(self._compiled(*[inputs[number] for number in self._order]))

    def run(self) -> Tuple[List[np.ndarray], List[np.ndarray]]:
        """Returns outputs and gradients, in float64."""
        nd, autograd, condition = self.mx.nd, self.mx.autograd, self.condition
        dtype = "float32" if condition.dtype in LOW else condition.dtype
        leaves = [nd.array(condition.leaf(value), dtype=dtype) for value in self.values]
        fixed = [nd.array(array, dtype=dtype) for array in self.fixed]
        for leaf in leaves:
            leaf.attach_grad("add" if condition.add else "write")
            if condition.add:
                leaf.grad[:] = 1
        with autograd.record(train_mode=condition.train):
            taken = [leaf * 1 if condition.consumers else leaf for leaf in leaves]
            entered = [condition.enter(nd, x, value.shape) for x, value in zip(taken, self.values)]
            outputs = self.outputs([*entered, *fixed])
            weights = heads_of([y.asnumpy() for y in outputs])
            heads = [nd.array(weight, dtype=y.dtype) for weight, y in zip(weights, outputs)]
            ends = list(outputs)
            if condition.consumers:
                ends += [x * x for x in taken]
                heads += [nd.ones_like(x) for x in taken]
        if self.entry.gradient:
            autograd.backward(ends, heads, train_mode=condition.train)
        found = [leaf.grad.asnumpy().astype(np.float64) - condition.add for leaf in leaves]
        if condition.consumers:
            found = [gradient - 2 * value for gradient, value in zip(found, self.values)]
        gradients = [condition.back(gradient, value.shape) for gradient, value in zip(found, self.values)]
        return [y.asnumpy().astype(np.float64) for y in outputs], gradients

    def expected(self) -> Tuple[Optional[List[np.ndarray]], List[np.ndarray]]:
        """Returns outputs and gradients of the reference, or of the operator's own values, then without outputs."""
        if self.entry.reference is not None:

            def compute(inputs: Sequence[np.ndarray]) -> List[np.ndarray]:
                found = as_list(self.entry.reference(*inputs, *self.fixed))
                return [np.asarray(y, dtype=np.float64) for y in found]

            return compute(self.values), differences(compute, self.values, self.entry.step)

        def measure(inputs: Sequence[np.ndarray]) -> List[np.ndarray]:
            given = [self.mx.nd.array(x, dtype="float32") for x in (*inputs, *self.fixed)]
            return [y.asnumpy().astype(np.float64) for y in as_list(self.entry.call(self.mx.nd, *given))]

        return None, differences(measure, self.values, max(self.entry.step, 1e-3))


def error(found: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    """Returns the largest difference over the largest value; infinite if the shapes differ."""
    worst = 0.0
    for one, two in zip(found, expected):
        if one.shape != two.shape and not one.size == two.size == 1:
            return float("inf")
        if one.size:
            difference = np.abs(one.ravel() - two.ravel()).max() / max(np.abs(two).max(), 1e-2)
            worst = max(worst, float(np.nan_to_num(difference, nan=np.inf)))
    return worst


def tolerance(entry: Entry, condition: Condition) -> float:
    """Returns the largest error that counts as right."""
    own = entry.tolerance if entry.reference is not None else max(entry.tolerance, 2e-2)
    return max(own, LOW.get(condition.dtype, 0.0))


def measured(cell: Cell, expected: Tuple[Optional[List[np.ndarray]], List[np.ndarray]]) -> Dict[str, Any]:
    """Returns the result of a cell: right, wrong or refused, with the errors."""
    wrong: List[str] = []
    limit = tolerance(cell.entry, cell.condition)
    for _ in range(3 if cell.condition.name.startswith(REPEATED) else 1):
        outputs, gradients = cell.run()
        forward = error(outputs, expected[0]) if expected[0] is not None else 0.0
        backward = error(gradients, expected[1]) if cell.entry.gradient else 0.0
        wrong += [f"value by {forward:.0e}"] if forward > limit else []
        wrong += [f"gradient by {backward:.0e}"] if backward > limit else []
    return {"result": "wrong" if wrong else "right", "text": wrong[0] if wrong else ""}


def reason(problem: Exception) -> str:
    """Returns the line of a message that says what is wrong."""
    lines = [line.strip() for line in str(problem).splitlines() if line.strip() and "Traceback" not in line]
    checks = [line[line.index("Check failed") :] for line in lines if "Check failed" in line]
    others = [line for line in lines if not line.startswith(("File", "[bt]"))] or [type(problem).__name__]
    return (checks or others)[0]


def rows(
    mx: Any, cached_op: Any, refuse: Callable[..., None], skip: int, only: Sequence[str]
) -> Iterator[Dict[str, Any]]:
    """Yields a line before and after each cell, from the cell with number `skip`, of some operators or of all."""
    number = -1
    for entry in entries():
        expected: Dict[int, Any] = {}
        for condition in CONDITIONS:
            number += 1
            if number < skip or only and entry.name not in only or is_skipped(entry, condition):
                continue
            begun = {"number": number, "operator": entry.name, "condition": condition.name}
            yield {**begun, "result": "ended"}
            cell = Cell(entry, condition, mx, cached_op)
            try:
                refuse(entry, mx)
                if condition.batch not in expected:
                    expected[condition.batch] = cell.expected()
                found = measured(cell, expected[condition.batch])
            except Exception as problem:  # an operator may raise anything
                found = {"result": "refused", "text": reason(problem)}
            yield {**begun, **found}
            if found["result"] == "refused" and any(word in found["text"] for word in POLLUTES):
                sys.exit(POLLUTED)


def main() -> None:
    """Prints all cells."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mxtrain", action="store_true", help="with mxtrain's workarounds")
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--only", nargs="*", default=[], help="names of operators")
    options = parser.parse_args()
    np.seterr(all="ignore")

    def refuse(entry: Entry, mx: Any) -> None:
        """Accepts every operator."""

    if options.mxtrain:
        from mxtrain.engine.backend import mx
        from mxtrain.model.graph.mxnet_workarounds import called_in, refuse_wrong

        def refuse(entry: Entry, mx: Any) -> None:
            """Raises the `ConfigError` that a network with this operator gets."""
            inputs = [mx.nd.array(x) for x in (*entry.inputs(BATCH), *entry.fixed(BATCH))]
            for array in inputs:
                array.attach_grad()
            with mx.autograd.record():
                outputs = as_list(entry.call(mx.nd, *inputs))
            refuse_wrong(called_in(outputs[:1]))
    else:
        np.bool = np.bool_
        import mxnet as mx
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # MXNet prints, too
    for row in rows(mx, mx.nd.CachedOp, refuse, options.skip, options.only):
        print(json.dumps(row), file=lines, flush=True)


if __name__ == "__main__":
    sys.exit(main())
