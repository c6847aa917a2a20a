"""Further graphs of an exported network (`Task.export_parts`): converts, writes and proves them. Imports onnx."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Set

from mxtrain.errors import NotProven
from mxtrain.exporting import standalone
from mxtrain.exporting.converters import CONVERTERS
from mxtrain.exporting.folder import write_model
from mxtrain.exporting.graph import Input, OnnxGraph
from mxtrain.exporting.refused_layer import refused_layer
from mxtrain.exporting.standalone import MAX_ERROR, UnusableFolder, errors_of, load_session

if TYPE_CHECKING:
    from mxtrain.task.exported_part import ExportedPart, PartCase

SIZES = ((5, 14), (11, 9), (23, 6))
"""Sizes of a batch, and of every other open dimension, that shapes are inferred for; the latter grow apart by one from
dimension to dimension, so that they can be told apart."""


@dataclass(frozen=True)
class WrittenPart:
    """A part in the folder.

    Attributes:
        cases: of the proof.
        errors: relative error of each output.
        signature: its inputs and outputs, as JSON.
    """

    cases: List[PartCase]
    errors: Mapping[str, float]
    signature: Dict[str, Any]


def write_part(folder: Path, name: str, part: ExportedPart, metadata: Mapping[str, str]) -> WrittenPart:
    """Writes one part and proves it.

    Raises:
        ConfigError: an operator has no conversion.
        NotProven: onnxruntime computes something else than MXNet.
        DataError: it cannot be written.
    """
    if name not in standalone.PARTS:
        raise AssertionError(f"{name} is not in standalone.PARTS")
    inputs = {key: Input(dims, dtype) for key, (dims, dtype) in part.inputs.items()}
    names: Set[str] = {dim for one in inputs.values() for dim in one.dims if isinstance(dim, str)}
    others = sorted(names - {"batch"})
    probes = [{"batch": batch, **{dim: size + 2 * k for k, dim in enumerate(others)}} for batch, size in SIZES]
    graph = OnnxGraph(part.symbol, part.parameters, inputs, probes, CONVERTERS)
    write_model(folder, graph.model(part.outputs, metadata), f"{name}.onnx")
    try:
        # The written file is loaded, and not the model in memory, because the file is what is proven.
        session = load_session(str(folder), name=f"{name}.onnx")
        errors = errors_of(session, part.cases)
    except UnusableFolder as error:
        raise refused_layer(graph, part.cases[0][0], error) from error
    wrong = [f"{key} by {error:.1e}" for key, error in errors.items() if not error <= MAX_ERROR]
    if wrong:
        raise NotProven(
            f"export: onnxruntime's outputs of {name} differ from MXNet's by more than {MAX_ERROR:.0e} of the largest "
            f"number: {', '.join(wrong)}."
        )
    signature = {
        "inputs": [{"name": key, "dtype": one.dtype, "shape": list(one.dims)} for key, one in inputs.items()],
        "outputs": [{"name": one.name, "shape": list(one.shape)} for one in session.get_outputs()],
    }
    return WrittenPart(part.cases, errors, signature)
