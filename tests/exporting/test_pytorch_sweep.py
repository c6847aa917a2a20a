"""Every converter to PyTorch over the table of converters to ONNX, against MXNet."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple

import numpy as np
import pytest
from test_converter_sweep import PROBES, SIZES, TABLE, array_for, operator_of, sizes_of

from mxtrain.engine.backend import mx
from mxtrain.exporting.graph import Input, ProbedGraph, Unsupported, evaluate
from mxtrain.exporting.pytorch.source import ModuleSource
from mxtrain.exporting.standalone import relative_error

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.slow

NOT_IN_TORCH = {
    "contrib.box_nms",
    "contrib.ROIAlign",
    "shape_array",
}
"""Operators without a converter."""


def network_of(symbol: Any, parameters: Dict[str, np.ndarray], inputs: Dict[str, Input], probes: Sequence[Any]) -> Any:
    """The network in PyTorch, with its weights."""
    graph = ProbedGraph(symbol, parameters, inputs, probes)
    source = ModuleSource(graph, {name: name for name in parameters}, {})
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
    network, _ = network_of(symbol, parameters, inputs, [sizes_of(probe) for probe in PROBES])
    errors = []
    for batch in batches:
        with torch.no_grad():
            found = tuple_of(network(*(torch.tensor(batch[name]) for name in names)))
        for one, other in zip(found, evaluate(symbol, {**parameters, **batch})):
            assert str(one.dtype).replace("torch.", "") == other.dtype.name
            errors.append(relative_error(one.numpy(), other))
    return errors


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row[0]}-{'-'.join(map(str, row[1].values()))}")
def test_operator_computes_as_mxnet(row: Any) -> None:
    call, options, shapes, parameter_shapes = row
    backwards = call == "slice" and any((step or 1) < 0 for step in options.get("step", ()))
    if call in NOT_IN_TORCH or backwards:
        with pytest.raises(Unsupported, match="has no conversion to PyTorch"):
            errors_of(call, options, shapes, parameter_shapes)
        return
    assert max(errors_of(call, options, shapes, parameter_shapes)) < 1e-5
