"""Exports a trained network: traces, converts, proves and writes it. Imports MXNet and onnx."""

from __future__ import annotations

import importlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from mxtrain.data.exported_data import DatasetExport
from mxtrain.engine.backend import mx
from mxtrain.errors import NotProven
from mxtrain.exporting.bundle import bundled
from mxtrain.exporting.compression import TOLERANCES, Compression, Stage, Subject, compress
from mxtrain.exporting.deploy import PLAIN, Deployment
from mxtrain.exporting.file_proof import prove_examples, prove_files
from mxtrain.exporting.folder import check_arrays, new_folder, write_model, write_proof, write_proof_files, write_texts
from mxtrain.exporting.graph import IR_VERSION, OPSET, Input, OnnxGraph, ShapeNotExpressible
from mxtrain.exporting.network import Dynamic, TracedNetwork
from mxtrain.exporting.operator_proof import order_dependent
from mxtrain.exporting.parts import write_part
from mxtrain.exporting.proof import (
    Case,
    Sampled,
    cases_for,
    compare_metrics,
    differs_at_other_sizes,
    disturbed,
    prove,
    read_samples,
    with_onnx,
)
from mxtrain.exporting.refused_layer import refused_layer
from mxtrain.exporting.standalone import UnrunExport, UnusableFolder, load_session
from mxtrain.task.fit import learned_target_of
from mxtrain.training.loaders import build_loader
from mxtrain.types.kinds import kind_names

if TYPE_CHECKING:
    from mxtrain.data.spec import Samples
    from mxtrain.training.trained import Trained


class DiffersAtOtherSizes(NotProven):
    """Outputs agree with MXNet for the sizes of the samples, but not for other sizes."""


@dataclass(frozen=True)
class Candidate:
    """A converted network and its proof.

    Attributes:
        graph: converted graph.
        inputs: name -> input with its open dimensions.
        cases: cases of the proof.
        model: ONNX model that was written.
        session: session of the model in onnxruntime.
    """

    graph: OnnxGraph
    inputs: Mapping[str, Input]
    cases: List[Case]
    model: Any
    session: Any


@dataclass(frozen=True)
class EvaluationData:
    """Samples with which an exported network is proven and evaluated.

    Attributes:
        source: the samples.
        split: name of their split.
        limit_batches: number of batches of the evaluation.
    """

    source: Samples
    split: str
    limit_batches: int


@dataclass(frozen=True)
class ExportReport:
    """Result of an export.

    Attributes:
        folder: folder that was written.
        errors: output -> relative error.
        metrics: metric -> its values in MXNet and in onnxruntime.
        fixed: why requested open sizes are fixed; empty if all are open.
        compressed: comparison of the quantized network with float32, see `compression.compress`; None without one.
    """

    folder: Path
    errors: Mapping[str, float]
    metrics: Mapping[str, Mapping[str, float]]
    fixed: str
    compressed: Optional[Mapping[str, Any]] = None


def choose_sizes(
    network: TracedNetwork, sampled: Sampled, dynamic: Dynamic, draft: Path, metadata: Mapping[str, str]
) -> Tuple[Candidate, str]:
    """Writes the network with as many open sizes as it allows.

    Args:
        network: the traced network.
        sampled: real samples.
        dynamic: which sizes may be open, see `TracedNetwork.choices`.
        draft: folder for the model.
        metadata: properties of the model.

    Returns:
        The candidate that was written, and why sizes are fixed; empty if none is.
    """
    wanted: Mapping[str, Input] = {}
    reason: Optional[Exception] = None
    last: Optional[Exception] = None
    for inputs, probes in network.choices(dynamic):
        wanted = wanted or inputs
        try:
            graph = network.build(inputs, probes)
            cases = cases_for(network, sampled, inputs)
            model = graph.model(network.output_names, metadata)
            write_model(draft, model)
            try:
                session = load_session(str(draft))
            except UnusableFolder as error:
                raise refused_layer(graph, cases[0][0], error) from error
            if differs_at_other_sizes(session, cases, order_dependent(graph, network.output_names)):
                raise DiffersAtOtherSizes("export: the outputs of onnxruntime and MXNet differ for other sizes.")
            return Candidate(graph, inputs, cases, model, session), _why_fixed(wanted, inputs, reason)
        except (ShapeNotExpressible, DiffersAtOtherSizes, mx.MXNetError) as error:
            # The first failure says why a size is fixed, and the last one why nothing can be exported.
            reason = reason or error
            last = error
    assert last is not None, "there is at least one choice"
    raise last


def _why_fixed(wanted: Mapping[str, Input], inputs: Mapping[str, Input], reason: Optional[Exception]) -> str:
    """Returns a sentence on the sizes that were to be open and are fixed; empty if none is.

    Args:
        wanted, inputs: inputs as requested and as written.
        reason: error of the first choice; None if it was taken.
    """
    fixed = {
        str(dim): size for name in wanted for dim, size in zip(wanted[name].dims, inputs[name].dims) if dim != size
    }
    if reason is None or not fixed:
        return ""
    names = [*fixed]
    listed = " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
    verb = "are" if len(names) > 1 else "is"
    if isinstance(reason, DiffersAtOtherSizes):
        why = "its results for other sizes are not those of MXNet"
    elif isinstance(reason, mx.MXNetError) or isinstance(reason.__cause__, mx.MXNetError):
        why = "the network computes no other sizes"
    else:
        why = "a size inside of the network cannot be computed from others"
    return f"{listed} {verb} fixed at {' x '.join(map(str, fixed.values()))}: {why}"


def export_network(
    trained: Trained,
    data: EvaluationData,
    folder: Path,
    facts: Mapping[str, Any],
    dynamic: Dynamic = "auto",
    smaller: Optional[Compression] = None,
    deployment: Deployment = PLAIN,
    stage: Stage = lambda what: None,
) -> ExportReport:
    """Exports a network into a new folder.

    Args:
        trained: network to export, see `TaskExport.exported`, on a CPU in float32.
        data: samples for the proof and the evaluation.
        folder: folder to create.
        facts: facts about the checkpoint, for the report.
        dynamic: which sizes may be open, see `TracedNetwork.choices`.
        smaller: settings of a quantization; None = float32.
        deployment: server for which the folder is written.
        stage: called with a description of each part of the work before it starts.

    Raises:
        ConfigError: an operator has no conversion.
        NotProven: outputs of onnxruntime differ from those of MXNet.
        WorseThanAllowed: the metric of the quantized network is too bad.
        DataError: the folder exists already or cannot be written; data of the run are missing or too large.
    """
    description, signature = trained.description, trained.signature
    task = description.task
    exported = description.dataset.exported(signature) if task.predicts else DatasetExport("")
    reader, arrays = exported.reader, exported.arrays
    # Files that would be too large are refused before the network is traced and measured, which can take minutes.
    check_arrays(arrays)
    with new_folder(folder) as root:
        draft = deployment.folder_in(root)
        stage("reading samples")
        sampled = read_samples(trained, data.source)
        stage("tracing and converting the network")
        network = TracedNetwork(trained, sampled.arrays)
        metadata = model_metadata(task.name, facts)
        candidate, fixed = choose_sizes(network, sampled, dynamic, draft, metadata)
        graph, model, session = candidate.graph, candidate.model, candidate.session
        stage("proof: comparing onnxruntime with MXNet")
        errors = prove(graph, model, network, session, candidate.cases)
        is_open = next(iter(candidate.inputs.values())).dims[0] == "batch"
        compared = with_onnx(trained, network, session, is_open)
        stage("measuring the metric of both")

        def measure(version: Trained) -> Mapping[str, float]:
            loader = build_loader(description, data.source, signature, trained.device, limit_batches=data.limit_batches)
            return version.evaluator.measure(loader)

        error = max(errors.values(), default=0.0)
        metrics = compare_metrics(
            measure(trained), measure(compared), lambda seed: measure(disturbed(trained, error, seed))
        )
        if task.export_form().open_set:  # without centres of classes, their loss is not defined
            metrics = {name: both for name, both in metrics.items() if not math.isnan(both["mxnet"])}
        task_parts = task.export_form().parts(description, signature, trained.strategy, sampled.arrays)
        if task_parts:
            stage("proof: the parts of the network")
        parts = {name: write_part(draft, name, part, metadata) for name, part in task_parts.items()}
        errors.update((f"{name}.{key}", error) for name, part in parts.items() for key, error in part.errors.items())
        subject = Subject(trained, network, is_open, candidate.cases, data.source, data.limit_batches, parts)
        proven: Mapping[str, Sequence[Case]] = subject.all_cases
        compressed = None
        if smaller is not None:
            compressed, proven = compress(draft, smaller, subject, stage)
        write_proof(draft, proven)
        signature_json = describe_network(trained, network, candidate.inputs, session.get_outputs())
        signature_json["fixed"] = fixed
        signature_json["order_dependent"] = order_dependent(graph, network.output_names)
        signature_json["parts"] = {name: part.signature for name, part in parts.items()}
        signature_json["facts"], files = reader_facts(trained, exported)
        num_files = 0
        if reader:
            stage("proof: reading files")
            entered = network.enter(sampled.arrays)
            unwritten = UnrunExport(signature_json, files.__getitem__, lambda name: dict(arrays.get(name, {})))
            num_files, _ = prove_files(reader, unwritten, data.source, sampled, entered)
            write_proof_files(draft, prove_examples(reader, unwritten, trained, network))
        report = {
            "format": "onnx",
            "opset": OPSET,
            "ir_version": IR_VERSION,
            **facts,
            "errors": errors,
            "metrics": metrics,
            "evaluated": f"{data.split}, {data.limit_batches} batches at most",
            "fixed": fixed,
            "versions": versions(),
            "files": num_files,
        }
        report.update({} if smaller is None else {"compression": compressed, "tolerance": TOLERANCES[smaller.form]})
        modules = bundled(reader) if reader else {}
        signature_json.update(reader_fields(trained, reader, signature_json))
        write_texts(draft, signature_json, report, files, arrays, modules)
        deployment.write(root, session, signature.class_names)
    return ExportReport(folder, errors, metrics, fixed, compressed)


def model_metadata(task: str, facts: Mapping[str, Any]) -> Dict[str, str]:
    """Returns the properties of a model file: the task, and the facts about the checkpoint as texts."""
    return {"task": task, **{name: str(value) for name, value in facts.items()}}


def describe_network(
    trained: Trained, network: TracedNetwork, inputs: Mapping[str, Input], outputs: Sequence[Any]
) -> Dict[str, Any]:
    """Returns the fields of signature.json about the network.

    Args:
        trained: the trained network.
        network: the traced network.
        inputs: inputs with their open dimensions.
        outputs: objects with name and shape.
    """
    signature = trained.signature
    return {
        "task": trained.description.task.name,
        "samples": network.kind,
        "targets": kind_names(learned_target_of(trained.description.task, trained.description.dataset)),
        "inputs": [{"name": name, "dtype": spec.dtype, "shape": list(spec.dims)} for name, spec in inputs.items()],
        "outputs": [{"name": node.name, "shape": list(node.shape)} for node in outputs],
        "class_names": list(signature.class_names),
        "signature": signature.to_json(),
        "signature_class": type(signature).__name__,
    }


def reader_facts(trained: Trained, exported: DatasetExport) -> Tuple[Dict[str, Any], Dict[str, bytes]]:
    """Returns the facts that the folder's reader of samples needs, and further files by name."""
    description, signature = trained.description, trained.signature
    facts, files = signature.exported_facts()
    of_task = description.task.export_form().facts(description, signature, trained.strategy)
    return {**of_task, **exported.facts, **facts}, files


def reader_fields(trained: Trained, reader: str, described: Mapping[str, Any]) -> Dict[str, Any]:
    """Returns the fields of signature.json about reading samples and writing predictions.

    Args:
        trained: the trained network.
        reader: module that reads samples; "" if there is none.
        described: the other fields.
    """
    task = trained.description.task
    form = task.prediction_format()
    fields: Dict[str, Any] = {
        "reader": reader.rpartition(".")[2],
        "predicts": task.predicts,
        "writes": {form.writes: form.writes_ending} if form.writes else {},
    }
    if reader:
        module = importlib.import_module(reader)
        fields["input"] = module.describe_input({**described, **fields})
        fields["reads_json"] = getattr(module, "READS_JSON", False)
    return fields


def versions() -> Dict[str, str]:
    """Returns the versions of the libraries that computed the results."""
    import onnx
    import onnxruntime

    from mxtrain import __version__

    return {
        "mxtrain": __version__,
        "mxnet": mx.__version__,
        "onnx": onnx.__version__,
        "onnxruntime": onnxruntime.__version__,
        "numpy": np.__version__,
    }
