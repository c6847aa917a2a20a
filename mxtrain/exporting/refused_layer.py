"""Names the layer whose conversion onnxruntime refuses. Imports onnx."""

from __future__ import annotations

from typing import TYPE_CHECKING, Mapping

import numpy as np

from mxtrain.exporting.graph import OnnxGraph, OperatorCall, Unsupported

if TYPE_CHECKING:
    from mxtrain.exporting.standalone import UnusableFolder

MAX_REASON = 300


def refused_layer(graph: OnnxGraph, inputs: Mapping[str, np.ndarray], error: UnusableFolder) -> Unsupported:
    """Returns the error for a graph that onnxruntime does not load or run because of a mistake in a converter.

    onnxruntime often names a later operator, whose input shapes do not fit. So the first operators of the graph are run
    by themselves, with a bisection for the first one that fails or returns another shape than MXNet.

    Args:
        graph: the converted graph.
        inputs: inputs of one case of the proof.
        error: error of the whole graph.
    """
    low, high = 0, len(graph.converted)  # the first `low` operators work, the first `high` do not
    reason = str(error)
    while high - low > 1:
        middle = (low + high) // 2
        problem = _problem(graph, middle, inputs)
        if problem:
            high, reason = middle, problem
        else:
            low = middle
    shortened = " ".join(reason.split())[:MAX_REASON]
    return OperatorCall(graph, graph.converted[high - 1]).unsupported(f"that onnxruntime takes ({shortened})")


def _problem(graph: OnnxGraph, count: int, inputs: Mapping[str, np.ndarray]) -> str:
    """Returns the reason if the first operators of a graph fail or return wrong shapes; otherwise an empty text."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    # Failures are expected during the bisection, and the message to the user contains the reason.
    options.log_severity_level = 4
    model, entries = graph.model_of_first(count)
    given = {name: array for name, array in inputs.items() if name in graph.inputs}
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        outputs = dict(zip(entries, session.run(list(entries), given)))
    except Exception as error:  # onnxruntime's exceptions have no common base class
        return str(error)
    shapes = graph.shapes_for_inputs({name: array.shape for name, array in given.items()})
    for name, entry in entries.items():
        if outputs[name].shape != shapes[entry]:
            return f"its shape is {outputs[name].shape}, and {shapes[entry]} in MXNet"
    return ""
