"""Every converter to PyTorch over the table of converters to ONNX, against MXNet, outputs and gradients."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple

import numpy as np
import pytest
from test_converter_sweep import PROBES, SIZES, TABLE, array_for, operator_of, sizes_of

from mxtrain.engine.backend import autograd, mx, nd
from mxtrain.exporting.graph import Input, ProbedGraph, Unsupported
from mxtrain.exporting.pytorch.source import Source
from mxtrain.exporting.standalone import relative_error

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.slow

NOT_IN_TORCH = {
    "contrib.box_nms",
    "contrib.ROIAlign",
    "space_to_depth",
    "shape_array",
}
"""Operators without a converter."""
WITHOUT_GRADIENT = {"topk", "argsort", "SequenceMask", "SequenceLast", "SequenceReverse", "contrib.arange_like"}
"""Operators whose gradient MXNet cannot compute here: it ends the process."""


def network_of(symbol: Any, parameters: Dict[str, np.ndarray], inputs: Dict[str, Input], probes: Sequence[Any]) -> Any:
    """The network in PyTorch, with its weights."""
    graph = ProbedGraph(symbol, parameters, inputs, probes)
    source = Source(graph, {name: name for name in parameters}, {})
    scope: Dict[str, Any] = {}
    exec(source.code, scope)
    network = scope["Network"]()
    state = {new: torch.tensor(parameters[name]) for name, new in source.names.items()}
    state.update((name, torch.tensor(value)) for name, value in source.extra.items())
    network.load_state_dict(state)
    return network.eval(), source


def tuple_of(outputs: Any) -> Tuple[Any, ...]:
    return tuple(outputs) if isinstance(outputs, (tuple, list)) else (outputs,)


def errors_of(
    call: str, options: Dict[str, Any], shapes: Sequence[Any], parameter_shapes: Dict[str, Any]
) -> List[float]:
    draw = np.random.default_rng(1)
    names = [f"x{number}" for number in range(len(shapes))]
    parameters = {name: array_for(name, dims, {}, draw) for name, dims in parameter_shapes.items()}
    symbol = operator_of(call)(*map(mx.sym.var, [*names, *parameters]), **options)
    batches = [
        {name: array_for("", dims, sizes_of(sizes), draw) for name, dims in zip(names, shapes)} for sizes in SIZES
    ]
    inputs = {name: Input(dims, batches[0][name].dtype.name) for name, dims in zip(names, shapes)}
    network, source = network_of(symbol, parameters, inputs, [sizes_of(probe) for probe in PROBES])
    errors = []
    for batch in batches:
        arrays = {name: nd.array(value, dtype=value.dtype) for name, value in {**parameters, **batch}.items()}
        floats = [name for name, value in arrays.items() if value.dtype == np.float32]
        for name in floats:
            arrays[name].attach_grad()
        with autograd.record(train_mode=False):
            expected = tuple_of(nd.CachedOp(symbol)(*(arrays[name] for name in symbol.list_inputs())))
            weights = [nd.array(draw.normal(size=one.shape), dtype="float32") for one in expected]
            totals = [(one * w).sum() for one, w in zip(expected, weights) if one.dtype == np.float32]
            total = sum(totals[1:], totals[0]) if totals else None
        given = [torch.tensor(batch[name], requires_grad=name in floats) for name in names]
        found = tuple_of(network(*given))
        for one, other in zip(found, expected):
            assert str(one.dtype).replace("torch.", "") == np.dtype(other.dtype).name
            errors.append(relative_error(one.detach().numpy(), other.asnumpy()))
        differentiable = [one for one in found if one.dtype == torch.float32 and one.requires_grad]
        if total is None or len(differentiable) != len(totals):
            continue
        total.backward()
        network.zero_grad()
        sum((one * torch.tensor(w.asnumpy())).sum() for one, w in zip(found, weights)).backward()
        own = dict(network.named_parameters())
        grads = {name: one.grad for name, one in zip(names, given)}
        grads.update((name, own[new].grad) for name, new in source.names.items() if new in own)
        for name in floats:
            if grads.get(name) is not None and arrays[name].grad is not None:
                errors.append(relative_error(grads[name].numpy(), arrays[name].grad.asnumpy()))
    return errors


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row[0]}-{'-'.join(map(str, row[1].values()))}")
def test_operator_and_its_gradient_are_those_of_mxnet(row: Any) -> None:
    call, options, shapes, parameter_shapes = row
    if call in NOT_IN_TORCH:
        with pytest.raises(Unsupported, match="has no conversion to PyTorch"):
            errors_of(call, options, shapes, parameter_shapes)
        return
    assert max(errors_of(call, options, shapes, parameter_shapes)) < 1e-5
