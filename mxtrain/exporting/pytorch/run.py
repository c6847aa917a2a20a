"""Exports a trained network to PyTorch: writes its code and weights, and proves them. Imports MXNet and PyTorch."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from mxtrain.data.exported_data import DatasetExport
from mxtrain.errors import NotProven
from mxtrain.exporting import standalone
from mxtrain.exporting.bundle import bundled
from mxtrain.exporting.compression import Stage
from mxtrain.exporting.converters import CONVERTERS
from mxtrain.exporting.file_proof import prove_examples, prove_files
from mxtrain.exporting.folder import (
    CARD,
    PREDICT,
    check_arrays,
    new_folder,
    write_model,
    write_proof,
    write_proof_files,
    write_texts,
)
from mxtrain.exporting.graph import OnnxGraph, ProbedGraph, Unsupported
from mxtrain.exporting.network import Dynamic, TracedNetwork
from mxtrain.exporting.operator_proof import order_dependent
from mxtrain.exporting.parts import write_part
from mxtrain.exporting.proof import Case, cases_for, read_samples
from mxtrain.exporting.pytorch.card import card
from mxtrain.exporting.pytorch.network import DECODING, Choice, TorchNetwork, decoding_symbol, generate, raw_inputs
from mxtrain.exporting.pytorch.proof import (
    load_network,
    output_errors,
    prove_export,
    prove_training,
)
from mxtrain.exporting.pytorch.safetensors_file import write_safetensors
from mxtrain.exporting.pytorch.source import ModuleSource
from mxtrain.exporting.pytorch.through_onnx import NETWORK_ONNX, OnnxSource
from mxtrain.exporting.pytorch.weights import WEIGHTS, WrittenWeights, write_names
from mxtrain.exporting.run import describe_network, model_metadata, reader_facts, reader_fields, versions
from mxtrain.exporting.standalone import UnrunExport
from mxtrain.files.durable import encode_json, replace_file
from mxtrain.files.regular_files import read_regular

if TYPE_CHECKING:
    from mxtrain.data.spec import Samples
    from mxtrain.training.trained import Trained

MODEL, PROOF, EXPORTED = "model.py", "proof.json", "exported.py"
DECODING_FILE, DECODING_ONNX, DECODING_WEIGHTS = "decoding.py", "decoding.onnx", "decoding.safetensors"
PROGRAM = Path(__file__).with_name("predict_torch.py")
CHECK_S = 600
"""Seconds that predict.py may take to repeat the proof."""


def export_pytorch(
    trained: Trained,
    source: Samples,
    training: Samples,
    folder: Path,
    facts: Mapping[str, Any],
    dynamic: Dynamic = "auto",
    num_steps: Optional[int] = None,
    stage: Stage = lambda what: None,
) -> WrittenWeights:
    """Writes a network as code and weights of PyTorch into a new folder, with a proof that PyTorch has computed.

    Args:
        trained: network to export, see `TaskExport.exported`, on a CPU in float32.
        source: held-out samples for the outputs.
        training: training samples for gradients and steps of fine-tuning.
        folder: folder to create.
        facts: facts about the checkpoint, for the report.
        dynamic: sizes that may be open, see `TracedNetwork.choices`.
        num_steps: number of steps of fine-tuning at most; None = an epoch.
        stage: called with a description of each part of the work before it starts.

    Raises:
        ConfigError: an operator has no conversion.
        NotProven: PyTorch computes something else than MXNet.
        DataError: the folder exists already or cannot be written; data of the run are missing or too large.
    """
    description, signature = trained.description, trained.signature
    exported = description.dataset.exported(signature) if description.task.predicts else DatasetExport("")
    check_arrays(exported.arrays)
    with new_folder(folder) as root:
        stage("reading samples")
        sampled = read_samples(trained, source)
        stage("tracing the network and writing its code")
        traced = TracedNetwork(trained, sampled.arrays)
        network, choice = generate(trained, traced, dynamic)
        metadata = {"format": "pt", **model_metadata(description.task.name, facts)}
        replace_file(root / MODEL, (_head(facts) + network.source.code).encode())
        write_safetensors(root / WEIGHTS, network.state, metadata)
        write_names(root, network.source.names)
        if isinstance(network.source, OnnxSource):
            write_model(root, network.source.model, NETWORK_ONNX)
        decoded, decodes, form, remarks = _write_decoding(root, trained, traced, network, choice)
        remarks += network.source.remarks
        stage("proof: outputs in PyTorch")
        cases = cases_for(traced, sampled, choice.inputs)
        names = traced.output_names[: len(network.source.graph.heads)]
        loaded = load_network(root)
        entered = [(_entered(traced, network, case), case[1]) for case in cases]
        errors = output_errors(loaded, names, entered, order_dependent(network.source.graph, names))
        stage("proof: gradients and fine-tuning in both frameworks")
        proof: Dict[str, Any] = {
            "outputs": errors,
            "batch_sizes": [len(next(iter(inputs.values()))) for inputs, _ in cases],
            **prove_training(network, partial(load_network, root), trained, training, num_steps),
        }
        stage("proof: torch.export")
        reason = prove_export(loaded, _entered(traced, network, cases[-1]))
        proof["torch_export"] = reason or True
        proof["trained"] = sum(one.requires_grad for one in loaded.parameters())
        task_parts = description.task.export_form().parts(description, signature, trained.strategy, sampled.arrays)
        parts = {name: write_part(root, name, part, metadata) for name, part in task_parts.items()}
        if parts:
            remarks.append(
                f"predict.py runs {' and '.join(parts)} with onnxruntime: they are graphs beside the network"
            )
        write_proof(root, {"": cases, **{name: part.cases for name, part in parts.items()}})
        outputs = _outputs(network, choice, names, decoded, cases)
        described = describe_network(trained, traced, choice.inputs, outputs)
        described["order_dependent"] = order_dependent(
            ProbedGraph(traced.symbol, traced.parameters, choice.inputs, choice.probes), traced.output_names
        )
        described["parts"] = {name: part.signature for name, part in parts.items()}
        described["facts"], files = reader_facts(trained, exported)
        normal = traced.normalisation
        described["pytorch"] = {
            "inputs": [traced.input_names[position] for position in network.given],
            "outputs": names,
            "decoded": form,
            "decodes": decodes,
            "makes": decoded,
            "normalisation": normal
            and {"scale": normal.scale_1C11.ravel().tolist(), "shift": normal.shift_1C11.ravel().tolist()},
        }
        if exported.reader:
            stage("proof: reading files")
            unwritten = UnrunExport(described, files.__getitem__, lambda name: dict(exported.arrays.get(name, {})))
            prove_files(exported.reader, unwritten, source, sampled, traced.enter(sampled.arrays))
            write_proof_files(root, prove_examples(exported.reader, unwritten, trained, traced))
        described.update(reader_fields(trained, exported.reader, described))
        proof["through_onnx"] = isinstance(network.source, OnnxSource)
        proof.update(facts=dict(facts), versions=_versions(), remarks=remarks)
        report = {**facts, "errors": errors, "metrics": {}, "evaluated": "", "versions": versions()}
        modules = bundled(exported.reader) if exported.reader else {}
        own = {
            PROOF: encode_json(proof, 2) + b"\n",
            EXPORTED: read_regular(standalone.__file__),
            PREDICT: read_regular(str(PROGRAM)),
            CARD: card(described, facts, proof).encode(),
        }
        write_texts(root, described, report, {**files, **own}, exported.arrays, modules)
        stage("proof: predict.py --check")
        _check(root)
    return WrittenWeights(folder, [*_said(proof), *remarks], proof)


def _head(facts: Mapping[str, Any]) -> str:
    return (
        f'"""{facts["model"]} of a run on {facts["dataset"]}, written by `mxtrain export for=pytorch`.\n\n'
        "    from safetensors.torch import load_file\n\n"
        "    network = Network()\n"
        f'    network.load_state_dict(load_file("{WEIGHTS}"))\n"""\n\n'
    )


def _entered(traced: TracedNetwork, network: TorchNetwork, case: Case) -> List[np.ndarray]:
    """Returns the inputs of the network for a case, whose images are pixels."""
    arrays = []
    for position in network.given:
        array = case[0][traced.input_names[position]]
        if position == 0 and traced.normalisation is not None:
            array = array.astype(np.float32) * traced.normalisation.scale_1C11 + traced.normalisation.shift_1C11
        arrays.append(array)
    return arrays


def _write_decoding(
    root: Path, trained: Trained, traced: TracedNetwork, network: TorchNetwork, choice: Choice
) -> Tuple[List[str], List[str], str, List[str]]:
    """Writes what makes predictions of the network's outputs, as code if it can be, else as ONNX.

    Returns:
        Names of the predictions, names of the outputs that are read, "" or "torch" or "onnx", and remarks for the user.
    """
    names, symbol, constants = decoding_symbol(trained, traced)
    if not names:
        return [], [], "", []
    inputs, probes = raw_inputs(traced, network, choice)
    inputs = {name: one for name, one in inputs.items() if name in symbol.list_inputs()}
    try:
        source = ModuleSource(ProbedGraph(symbol, constants, inputs, probes), {}, {}, name=DECODING)
    except Unsupported as error:
        graph = OnnxGraph(symbol, constants, inputs, probes, CONVERTERS)
        write_model(root, graph.model(names, {}), DECODING_ONNX)
        operator = str(error).partition(" has no conversion")[0].replace("export: ", "")
        return (
            names,
            [*inputs],
            "onnx",
            [f"predict.py makes {', '.join(names)} with onnxruntime: {operator} is none of PyTorch's"],
        )
    replace_file(
        root / DECODING_FILE, f'"""Makes predictions of the outputs of the network."""\n\n{source.code}'.encode()
    )
    if source.extra:
        write_safetensors(root / DECODING_WEIGHTS, source.extra, {"format": "pt"})
    return names, [*inputs], "torch", []


def _outputs(
    network: TorchNetwork, choice: Choice, names: Sequence[str], decoded: Sequence[str], cases: Sequence[Case]
) -> List[Any]:
    """Returns names and shapes of all outputs; a size that is not that of all cases is open."""
    found = []
    for name in [*names, *decoded]:
        shapes = [outputs[name].shape for _, outputs in cases]
        dims = [
            "batch" if axis == 0 else sizes[0] if len(set(sizes)) == 1 else f"{name}_{axis}"
            for axis, sizes in enumerate(zip(*shapes))
        ]
        found.append(SimpleNamespace(name=name, shape=dims))
    return found


def _check(root: Path) -> None:
    """Lets predict.py of the folder repeat the proof. Raises: NotProven: it fails."""
    # -B: the folder gets no __pycache__.
    command = [sys.executable, "-B", str(root / PREDICT), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=CHECK_S, check=False)
    if done.returncode:
        raise NotProven(f"export: predict.py --check fails: {done.stderr.strip()[-500:]}")


def _said(proof: Mapping[str, Any]) -> List[str]:
    """Returns the lines that the command prints."""
    tuned, gradients = proof["fine_tuning"], proof["gradients"]
    away = max(abs(a - b) / (abs(a) or 1.0) for a, b in zip(tuned["mxnet"], tuned["pytorch"]))
    return [
        *(f"{name}: relative error {error:.1e}" for name, error in proof["outputs"].items()),
        f"gradients of {gradients['compared']} parameters: relative error {gradients['largest_error']:.1e}",
        f"{tuned['steps']} steps of SGD in both: losses differ by {away:.1e} ({proof['loss']})",
        "torch.export: succeeds" if proof["torch_export"] is True else f"torch.export: {proof['torch_export']}",
    ]


def _versions() -> Dict[str, str]:
    import torch

    return {**versions(), "torch": str(torch.__version__)}
