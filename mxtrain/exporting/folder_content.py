"""Steps that the exports to ONNX and to PyTorch share: they describe the network, prove that the folder reads files as
the run does, and write both. Imports MXNet and onnx."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Dict, Mapping, Sequence

import numpy as np

from mxtrain.data.exported_data import DatasetExport
from mxtrain.engine.backend import mx
from mxtrain.exporting.bundle import bundled
from mxtrain.exporting.compression import Stage
from mxtrain.exporting.file_proof import prove_examples, prove_files
from mxtrain.exporting.folder import check_arrays, write_proof_files, write_texts
from mxtrain.exporting.graph import Input
from mxtrain.exporting.network import TracedNetwork
from mxtrain.exporting.parts import WrittenPart, write_part
from mxtrain.exporting.proof import Sampled
from mxtrain.exporting.standalone import UnrunExport
from mxtrain.task.fit import learned_target_of
from mxtrain.types.kinds import kind_names

if TYPE_CHECKING:
    from mxtrain.data.spec import Samples
    from mxtrain.training.trained import Trained


@dataclass(frozen=True)
class FolderContent:
    """Content of an exported folder besides its networks and their proof.

    Attributes:
        signature: content of signature.json. An export may add fields before the folder is written.
        exported: reader of samples, with the arrays of the dataset that it needs.
        files: name -> content of further files that the reader needs, such as a tokenizer.
    """

    signature: Dict[str, Any]
    exported: DatasetExport
    files: Mapping[str, bytes]


def dataset_export(trained: Trained) -> DatasetExport:
    """Returns the reader of samples for the folder, with facts and arrays of the dataset.

    Raises:
        DataError: the arrays are too large. It is raised before the network is traced and measured, which can take
            minutes.
    """
    description = trained.description
    exported = description.dataset.exported(trained.signature) if description.task.predicts else DatasetExport("")
    check_arrays(exported.arrays)
    return exported


def model_metadata(trained: Trained, facts: Mapping[str, Any]) -> Dict[str, str]:
    """Returns the properties of a model file: the task, and the facts about the checkpoint as texts."""
    return {"task": trained.description.task.name, **{name: str(value) for name, value in facts.items()}}


def write_parts(
    folder: Path, trained: Trained, sampled: Sampled, metadata: Mapping[str, str], stage: Stage
) -> Dict[str, WrittenPart]:
    """Writes and proves the further graphs of the network, such as the step of a decoder.

    Args:
        folder: folder to write to.
        trained: the trained network.
        sampled: real samples.
        metadata: properties of the model files.
        stage: called with a description of the work before it starts.

    Raises:
        ConfigError, NotProven, DataError: see `write_part`.
    """
    description = trained.description
    parts = description.task.export_form().parts(description, trained.signature, trained.strategy, sampled.arrays)
    if parts:
        stage("proof: the parts of the network")
    return {name: write_part(folder, name, part, metadata) for name, part in parts.items()}


def describe_folder(
    trained: Trained,
    network: TracedNetwork,
    inputs: Mapping[str, Input],
    outputs: Sequence[Any],
    unordered: Sequence[str],
    parts: Mapping[str, WrittenPart],
    exported: DatasetExport,
) -> FolderContent:
    """Collects the content of the folder besides networks and proof.

    Args:
        trained: the trained network.
        network: the traced network.
        inputs: inputs with their open dimensions.
        outputs: objects with name and shape.
        unordered: outputs that depend on an order of scores, see `order_dependent`.
        parts: further graphs of the folder by name.
        exported: reader of samples, with facts and arrays of the dataset.
    """
    description, signature = trained.description, trained.signature
    facts_of_task = description.task.export_form().facts(description, signature, trained.strategy)
    facts_of_signature, files = signature.exported_facts()
    described = {
        "task": description.task.name,
        "samples": network.kind,
        "targets": kind_names(learned_target_of(description.task, description.dataset)),
        "inputs": [{"name": name, "dtype": spec.dtype, "shape": list(spec.dims)} for name, spec in inputs.items()],
        "outputs": [{"name": node.name, "shape": list(node.shape)} for node in outputs],
        "class_names": list(signature.class_names),
        "signature": signature.to_json(),
        "signature_class": type(signature).__name__,
        "order_dependent": list(unordered),
        "parts": {name: part.signature for name, part in parts.items()},
        "facts": {**facts_of_task, **exported.facts, **facts_of_signature},
    }
    described.update(_reader_fields(trained, exported.reader, described))
    return FolderContent(described, exported, files)


def _reader_fields(trained: Trained, reader: str, described: Mapping[str, Any]) -> Dict[str, Any]:
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


def prove_reader(
    folder: Path,
    content: FolderContent,
    trained: Trained,
    network: TracedNetwork,
    source: Samples,
    sampled: Sampled,
    stage: Stage,
) -> int:
    """Proves that the folder reads files as the run does, and writes the files of the proof.

    Args:
        folder: folder to write to.
        content: content of the folder.
        trained: the trained network.
        network: the traced network.
        source: samples of the split.
        sampled: first batch of the split.
        stage: called with a description of the work before it starts.

    Returns:
        Number of files or lines of the split that were compared; 0 if the folder has no reader.

    Raises:
        NotProven: an input differs, or the folder cannot read a file.
    """
    reader, arrays, files = content.exported.reader, content.exported.arrays, content.files
    if not reader:
        return 0
    stage("proof: reading files")
    # The folder is not complete yet: its reader gets files and arrays from memory.
    unwritten = UnrunExport(content.signature, files.__getitem__, lambda name: dict(arrays.get(name, {})))
    count, _ = prove_files(reader, unwritten, source, sampled, network.enter(sampled.arrays))
    write_proof_files(folder, prove_examples(reader, unwritten, trained, network))
    return count


def write_content(
    folder: Path, content: FolderContent, report: Dict[str, Any], own: Mapping[str, bytes] = MappingProxyType({})
) -> None:
    """Writes signature.json, export.json, the modules that read samples, and the files that they need.

    Args:
        folder: folder to write to.
        content: content of the folder.
        report: content of export.json.
        own: name -> content of files of this export; a model card or program among them replaces ours.

    Raises:
        DataError: a file cannot be written, for example because the disk is full.
    """
    exported = content.exported
    modules = bundled(exported.reader) if exported.reader else {}
    write_texts(folder, content.signature, report, {**content.files, **own}, exported.arrays, modules)


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
