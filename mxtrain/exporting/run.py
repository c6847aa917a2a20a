"""Exports a trained network: traces, converts, proves and writes it. Imports MXNet and onnx."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Tuple

from mxtrain.engine.backend import mx
from mxtrain.errors import NotProven
from mxtrain.exporting.compression import TOLERANCES, Compression, Stage, Subject, compress
from mxtrain.exporting.deploy import PLAIN, Deployment
from mxtrain.exporting.folder import write_model, write_proof
from mxtrain.exporting.folder_content import (
    dataset_export,
    describe_folder,
    model_metadata,
    prove_reader,
    versions,
    write_content,
    write_parts,
)
from mxtrain.exporting.graph import IR_VERSION, OPSET, Input, OnnxGraph, ShapeNotExpressible, has_open_batch
from mxtrain.exporting.network import Dynamic, TracedNetwork
from mxtrain.exporting.operator_proof import order_dependent
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
from mxtrain.exporting.standalone import UnusableFolder, load_session
from mxtrain.files.new_folder import new_folder
from mxtrain.training.loaders import build_loader

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

    @property
    def is_open(self) -> bool:
        """True if the batch dimension is open; False if it is 1."""
        return has_open_batch(self.inputs)


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
    exported = dataset_export(trained)
    with new_folder(folder) as root:
        draft = deployment.folder_in(root)
        stage("reading samples")
        sampled = read_samples(trained, data.source)
        stage("tracing and converting the network")
        network = TracedNetwork(trained, sampled.arrays)
        metadata = model_metadata(trained, facts)
        candidate, fixed = choose_sizes(network, sampled, dynamic, draft, metadata)
        stage("proof: comparing onnxruntime with MXNet")
        errors = prove(candidate.graph, candidate.model, network, candidate.session, candidate.cases)
        stage("measuring the metric of both")
        metrics = compare_evaluations(trained, network, candidate, data, max(errors.values(), default=0.0))
        parts = write_parts(draft, trained, sampled, metadata, stage)
        errors.update((f"{name}.{key}", error) for name, part in parts.items() for key, error in part.errors.items())
        subject = Subject(trained, network, candidate.is_open, candidate.cases, data.source, data.limit_batches, parts)
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
        }
        if smaller is None:
            write_proof(draft, subject.all_cases)
        else:
            # The proof of a quantized network holds its own outputs, not those of MXNet.
            report["compression"], proven = compress(draft, smaller, subject, stage)
            report["tolerance"] = TOLERANCES[smaller.form]
            write_proof(draft, proven)
        unordered = order_dependent(candidate.graph, network.output_names)
        outputs = candidate.session.get_outputs()
        content = describe_folder(trained, network, candidate.inputs, outputs, unordered, parts, exported)
        content.signature["fixed"] = fixed
        report["files"] = prove_reader(draft, content, trained, network, data.source, sampled, stage)
        write_content(draft, content, report)
        deployment.write(root, candidate.session, trained.signature.class_names)
    return ExportReport(folder, errors, metrics, fixed, report.get("compression"))


def compare_evaluations(
    trained: Trained, network: TracedNetwork, candidate: Candidate, data: EvaluationData, error: float
) -> Dict[str, Dict[str, float]]:
    """Evaluates the network in MXNet and in onnxruntime, and returns each metric in both.

    Args:
        trained: the trained network.
        network: the traced network.
        candidate: the network in onnxruntime.
        data: samples of the evaluation.
        error: largest proven error of an output, which may explain a different metric, see `compare_metrics`.

    Raises:
        NotProven: a metric differs by more than this error explains.
    """

    def measure(version: Trained) -> Mapping[str, float]:
        loader = build_loader(
            trained.description, data.source, trained.signature, trained.device, limit_batches=data.limit_batches
        )
        return version.evaluator.measure(loader)

    metrics = compare_metrics(
        measure(trained),
        measure(with_onnx(trained, network, candidate.session, candidate.is_open)),
        lambda seed: measure(disturbed(trained, error, seed)),
    )
    if trained.description.task.export_form().has_loss:
        return metrics
    # The loss needs parts of the network that are not exported, such as centres of classes, and is NaN without them.
    return {name: both for name, both in metrics.items() if not math.isnan(both["mxnet"])}
