"""Exports a trained network: traces, converts, proves and writes it. Imports MXNet and onnx."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Tuple

import numpy as np

from mxtrain.engine.backend import mx
from mxtrain.export.bundle import bundled
from mxtrain.export.compression import TOLERANCES, Compression, Subject, compress
from mxtrain.export.deploy import PLAIN, Deployment
from mxtrain.export.folder import new_folder, write_model, write_proof, write_texts
from mxtrain.export.graph import IR_VERSION, OPSET, Input, OnnxGraph, ShapeNotExpressible
from mxtrain.export.network import Dynamic, TracedNetwork
from mxtrain.export.operator_proof import order_dependent
from mxtrain.export.parts import write_part
from mxtrain.export.proof import (
    Case,
    Sampled,
    cases_for,
    compare_metrics,
    prove,
    read_samples,
    with_onnx,
)
from mxtrain.export.standalone import load_session
from mxtrain.training.loaders import build_loader

if TYPE_CHECKING:
    from mxtrain.data.base import Samples
    from mxtrain.trained import Trained


@dataclass(frozen=True)
class Candidate:
    """A converted network and its proof.

    Attributes:
        graph: converted.
        inputs: by name, with what is open.
        cases: of the proof.
        model: that was written.
        session: of the model.
    """

    graph: OnnxGraph
    inputs: Mapping[str, Input]
    cases: List[Case]
    model: Any
    session: Any


@dataclass(frozen=True)
class ExportReport:
    """Result of an export.

    Attributes:
        folder: that was written.
        errors: relative error of each output.
        metrics: by name, the value of MXNet and that of onnxruntime.
        fixed: what was to be open and is not, with the reason; empty if everything is.
        compressed: the comparison of a smaller form with float32, see `compression.compress`; None without one.
    """

    folder: Path
    errors: Mapping[str, float]
    metrics: Mapping[str, Mapping[str, float]]
    fixed: str
    compressed: Optional[Mapping[str, Any]] = None


def choose_sizes(
    network: TracedNetwork, sampled: Sampled, dynamic: Dynamic, draft: Path, metadata: Mapping[str, str]
) -> Tuple[Candidate, str]:  # fmt: skip
    """Writes the network with as many open sizes as it allows.

    Args:
        network: the traced network.
        sampled: real samples.
        dynamic: which sizes may be open, see `TracedNetwork.choices`.
        draft: folder of the model.
        metadata: of the model.

    Returns:
        The graph that was written, and why sizes are fixed; an empty string if none is.
    """
    fixed = ""
    reason: Optional[Exception] = None
    for inputs, probes in network.choices(dynamic):
        try:
            graph = network.build(inputs, probes)
            cases = cases_for(network, sampled, inputs)
            model = graph.model(network.output_names, metadata)
            write_model(draft, model)
            return Candidate(graph, inputs, cases, model, load_session(str(draft))), fixed
        except (ShapeNotExpressible, mx.MXNetError) as error:
            reason = error
            fixed = fixed or str(error).splitlines()[0]
    assert reason is not None, "there is at least one choice"
    raise reason


def export_network(
    trained: Trained, source: Samples, folder: Path, facts: Mapping[str, Any], split: str, limit_batches: int,
    dynamic: Dynamic = "auto", smaller: Optional[Compression] = None, deployment: Deployment = PLAIN,
) -> ExportReport:  # fmt: skip
    """Exports a network into a new folder.

    Args:
        trained: on a CPU in float32.
        source: of real samples.
        folder: that is made.
        facts: of the checkpoint, for the report.
        split: the name of the split that `source` is of.
        limit_batches: batches of the repeated evaluation.
        dynamic: which sizes may be open, see `TracedNetwork.choices`.
        smaller: the form that is written, if not float32.
        deployment: the server that the folder is for.

    Raises:
        ConfigError: an operator has no conversion.
        NotProven: onnxruntime computes something else than MXNet.
        WorseThanAllowed: the smaller form does.
        DataError: there is such a folder, or it cannot be written.
    """
    description, signature = trained.description, trained.signature
    with new_folder(folder) as whole:
        draft = deployment.place(whole)
        sampled = read_samples(trained, source)
        network = TracedNetwork(trained, sampled.arrays)
        metadata = _metadata(description.task.name, facts)
        found, fixed = choose_sizes(network, sampled, dynamic, draft, metadata)
        graph, model, session = found.graph, found.model, found.session
        errors = prove(graph, model, network, session, found.cases)
        is_open = next(iter(found.inputs.values())).dims[0] == "batch"
        compared = with_onnx(trained, network, session, is_open)
        values = [
            one.evaluator.measure(
                build_loader(description, source, signature, trained.device, limit_batches=limit_batches)
            ) for one in (trained, compared)
        ]  # fmt: skip
        metrics = compare_metrics(*values)
        proven, compressed = found.cases, None
        if smaller is not None:
            subject = Subject(trained, network, is_open, found.cases, source, limit_batches)
            compressed, proven = compress(draft, smaller, subject)
        given = description.task.export_parts(description, signature, trained.strategy, sampled.arrays)
        parts = {name: write_part(draft, name, part, metadata) for name, part in given.items()}
        errors.update((f"{name}.{key}", error) for name, part in parts.items() for key, error in part.errors.items())
        write_proof(draft, {"": proven, **{name: part.cases for name, part in parts.items()}})
        written = _signature(trained, network, found.inputs, session)
        written["order_dependent"] = order_dependent(graph, network.output_names)
        written["parts"] = {name: part.signature for name, part in parts.items()}
        report = {
            "format": "onnx", "opset": OPSET, "ir_version": IR_VERSION, **facts, "errors": errors,
            "metrics": metrics, "evaluated": f"{split}, {limit_batches} batches at most", "fixed": fixed,
            "versions": versions(),
        }  # fmt: skip
        report.update({} if smaller is None else {"compression": compressed, "tolerance": TOLERANCES[smaller.form]})
        written["facts"], files = _facts(trained)
        task = description.task
        reader = (description.dataset.exported_reader or signature.exported_reader) if task.predicts else ""
        modules = bundled(reader) if reader else {}
        written["reader"] = reader.rpartition(".")[2]
        written["predicts"], written["writes"] = task.predicts, {task.writes: task.writes_ending} if task.writes else {}
        if reader:
            module = importlib.import_module(reader)
            written["input"] = module.describe_input(written)
            written["reads_json"] = getattr(module, "READS_JSON", False)
        write_texts(draft, written, report, files, modules)
        deployment.write(whole, session, signature.class_names)
    return ExportReport(folder, errors, metrics, fixed, compressed)


def _metadata(task: str, facts: Mapping[str, Any]) -> Dict[str, str]:
    return {"task": task, **{name: str(value) for name, value in facts.items()}}


def _signature(
    trained: Trained, network: TracedNetwork, inputs: Mapping[str, Input], session: Any
) -> Dict[str, Any]:  # fmt: skip
    signature = trained.signature
    return {
        "task": trained.description.task.name, "samples": network.kind,
        "inputs": [{"name": name, "dtype": one.dtype, "shape": list(one.dims)} for name, one in inputs.items()],
        "outputs": [{"name": one.name, "shape": list(one.shape)} for one in session.get_outputs()],
        "class_names": list(signature.class_names), "signature": signature.to_json(),
        "signature_class": type(signature).__name__,
    }  # fmt: skip


def _facts(trained: Trained) -> Tuple[Dict[str, Any], Dict[str, bytes]]:
    """Returns the facts that the folder's reader of samples needs, and further files by name."""
    description, signature = trained.description, trained.signature
    facts, files = signature.exported_facts()
    of_task = description.task.export_facts(description, signature, trained.strategy)
    return {**of_task, **description.dataset.exported_facts(), **facts}, files


def versions() -> Dict[str, str]:
    """Versions of what the numbers come from."""
    import onnx
    import onnxruntime

    from mxtrain import __version__

    return {
        "mxtrain": __version__, "mxnet": mx.__version__, "onnx": onnx.__version__,
        "onnxruntime": onnxruntime.__version__, "numpy": np.__version__,
    }  # fmt: skip
