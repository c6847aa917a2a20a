"""Exports a trained network to PyTorch: writes its code and weights, and proves them. Imports MXNet and PyTorch."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Dict, List, Literal, Mapping, Optional, Sequence

import numpy as np

from mxtrain.errors import NotProven
from mxtrain.exporting import standalone
from mxtrain.exporting.compression import Stage
from mxtrain.exporting.converters import CONVERTERS
from mxtrain.exporting.folder import CARD, PREDICT, write_model, write_proof
from mxtrain.exporting.folder_content import (
    dataset_export,
    describe_folder,
    model_metadata,
    prove_reader,
    versions,
    write_content,
    write_parts,
)
from mxtrain.exporting.graph import OnnxGraph, ProbedGraph, Unsupported
from mxtrain.exporting.network import Dynamic, TracedNetwork
from mxtrain.exporting.operator_proof import order_dependent
from mxtrain.exporting.proof import Case, cases_for, read_samples
from mxtrain.exporting.pytorch.card import card
from mxtrain.exporting.pytorch.network import DECODING, Choice, TorchNetwork, decoding_symbol, generate, raw_inputs
from mxtrain.exporting.pytorch.proof import load_network, output_errors, prove_export, prove_training
from mxtrain.exporting.pytorch.safetensors_file import write_safetensors
from mxtrain.exporting.pytorch.source import ModuleSource
from mxtrain.exporting.pytorch.through_onnx import NETWORK_ONNX, OnnxSource
from mxtrain.exporting.pytorch.weights import WEIGHTS, WrittenWeights, write_names
from mxtrain.files.durable import encode_json, replace_file
from mxtrain.files.new_folder import new_folder
from mxtrain.files.regular_files import read_regular

if TYPE_CHECKING:
    from mxtrain.data.spec import Samples
    from mxtrain.training.trained import Trained

MODEL, PROOF, EXPORTED = "model.py", "proof.json", "exported.py"
DECODING_FILE, DECODING_ONNX, DECODING_WEIGHTS = "decoding.py", "decoding.onnx", "decoding.safetensors"
PROGRAM = Path(__file__).with_name("predict_torch.py")
CHECK_S = 600
"""Seconds that predict.py may take to repeat the proof."""


@dataclass(frozen=True)
class TorchDecoding:
    """Part of the folder that makes predictions of the outputs of the network.

    Attributes:
        names: names of the predictions; none if the outputs are the predictions.
        inputs: names of the outputs that it reads.
        form: "torch" = code, "onnx" = an ONNX graph; "" without predictions.
        remarks: sentences for the user.
    """

    names: Sequence[str] = ()
    inputs: Sequence[str] = ()
    form: Literal["", "torch", "onnx"] = ""
    remarks: Sequence[str] = ()


@dataclass(frozen=True)
class ProvenNetwork:
    """A network as code of PyTorch, and the cases that prove it.

    Attributes:
        traced: the network in MXNet.
        network: the network in PyTorch.
        cases: cases of the proof.
        names: names of the outputs of the network in PyTorch.
    """

    traced: TracedNetwork
    network: TorchNetwork
    cases: Sequence[Case]
    names: Sequence[str]

    def enter(self, inputs: Mapping[str, np.ndarray]) -> List[np.ndarray]:
        """Returns the inputs of a case as the network in PyTorch takes them: without unused ones, and normalised."""
        arrays = []
        for position in self.network.given:
            array = inputs[self.traced.input_names[position]]
            normal = self.traced.normalisation
            if position == 0 and normal is not None:
                array = array.astype(np.float32) * normal.scale_1C11 + normal.shift_1C11
            arrays.append(array)
        return arrays


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
    exported = dataset_export(trained)
    with new_folder(folder) as root:
        stage("reading samples")
        sampled = read_samples(trained, source)
        stage("tracing the network and writing its code")
        traced = TracedNetwork(trained, sampled.arrays)
        network, choice = generate(trained, traced, dynamic)
        metadata = {"format": "pt", **model_metadata(trained, facts)}
        _write_network(root, network, facts, metadata)
        decoding = _write_decoding(root, trained, traced, network, choice)
        cases = cases_for(traced, sampled, choice.inputs)
        names = traced.output_names[: len(network.source.graph.heads)]
        proof = _prove(root, trained, ProvenNetwork(traced, network, cases, names), training, num_steps, stage)
        parts = write_parts(root, trained, sampled, metadata, stage)
        write_proof(root, {"": cases, **{name: part.cases for name, part in parts.items()}})
        outputs = _outputs([*names, *decoding.names], cases)
        probed = ProbedGraph(traced.symbol, traced.parameters, choice.inputs, choice.probes)
        unordered = order_dependent(probed, traced.output_names)
        content = describe_folder(trained, traced, choice.inputs, outputs, unordered, parts, exported)
        content.signature["pytorch"] = _describe_code(traced, network, names, decoding)
        prove_reader(root, content, trained, traced, source, sampled, stage)
        remarks = [*decoding.remarks, *network.source.remarks]
        if parts:
            remarks.append(
                f"predict.py runs {' and '.join(parts)} with onnxruntime: they are graphs beside the network"
            )
        proof["through_onnx"] = isinstance(network.source, OnnxSource)
        proof.update(facts=dict(facts), versions=_versions(), remarks=remarks)
        report = {**facts, "errors": proof["outputs"], "metrics": {}, "evaluated": "", "versions": versions()}
        own = {
            PROOF: encode_json(proof, 2) + b"\n",
            EXPORTED: read_regular(standalone.__file__),
            PREDICT: read_regular(str(PROGRAM)),
            CARD: card(content.signature, facts, proof).encode(),
        }
        write_content(root, content, report, own)
        stage("proof: predict.py --check")
        _check(root)
    return WrittenWeights(folder, [*_said(proof), *remarks], proof)


def _write_network(root: Path, network: TorchNetwork, facts: Mapping[str, Any], metadata: Mapping[str, str]) -> None:
    """Writes code, weights and names of the weights, and the ONNX graph if the code reads it."""
    replace_file(root / MODEL, (_head(facts) + network.source.code).encode())
    write_safetensors(root / WEIGHTS, network.state, metadata)
    write_names(root, network.source.names)
    if isinstance(network.source, OnnxSource):
        write_model(root, network.source.model, NETWORK_ONNX)


def _prove(
    root: Path, trained: Trained, proven: ProvenNetwork, training: Samples, num_steps: Optional[int], stage: Stage
) -> Dict[str, Any]:
    """Compares the written network with MXNet: outputs, gradients and fine-tuning; tries torch.export.

    Args:
        root: folder with the network.
        trained: the trained network.
        proven: the network and the cases of its proof.
        training, num_steps, stage: see `export_pytorch`.

    Returns:
        Content of proof.json.

    Raises:
        NotProven: PyTorch computes something else than MXNet.
    """
    stage("proof: outputs in PyTorch")
    loaded = load_network(root)
    network, names = proven.network, proven.names
    entered = [(proven.enter(inputs), outputs) for inputs, outputs in proven.cases]
    errors = output_errors(loaded, names, entered, order_dependent(network.source.graph, names))
    stage("proof: gradients and fine-tuning in both frameworks")
    proof: Dict[str, Any] = {
        "outputs": errors,
        "batch_sizes": [len(next(iter(inputs.values()))) for inputs, _ in proven.cases],
        **prove_training(network, partial(load_network, root), trained, training, num_steps),
    }
    stage("proof: torch.export")
    reason = prove_export(loaded, entered[-1][0])
    proof["torch_export"] = reason or True
    proof["trained"] = sum(parameter.requires_grad for parameter in loaded.parameters())
    return proof


def _describe_code(
    traced: TracedNetwork, network: TorchNetwork, names: Sequence[str], decoding: TorchDecoding
) -> Dict[str, Any]:
    """Returns the field "pytorch" of signature.json: `predict.py` calls the network and its decoding by it."""
    normal = traced.normalisation
    return {
        "inputs": [traced.input_names[position] for position in network.given],
        "outputs": list(names),
        "decoded": decoding.form,
        "decodes": list(decoding.inputs),
        "makes": list(decoding.names),
        "normalisation": normal
        and {"scale": normal.scale_1C11.ravel().tolist(), "shift": normal.shift_1C11.ravel().tolist()},
    }


def _head(facts: Mapping[str, Any]) -> str:
    return (
        f'"""{facts["model"]} of a run on {facts["dataset"]}, written by `mxtrain export for=pytorch`.\n\n'
        "    from safetensors.torch import load_file\n\n"
        "    network = Network()\n"
        f'    network.load_state_dict(load_file("{WEIGHTS}"))\n"""\n\n'
    )


def _write_decoding(
    root: Path, trained: Trained, traced: TracedNetwork, network: TorchNetwork, choice: Choice
) -> TorchDecoding:
    """Writes the code that makes predictions of the outputs of the network, or an ONNX graph if it has no such code."""
    names, symbol, constants = decoding_symbol(trained, traced)
    if not names:
        return TorchDecoding()
    inputs, probes = raw_inputs(traced, network, choice)
    inputs = {name: one for name, one in inputs.items() if name in symbol.list_inputs()}
    try:
        source = ModuleSource(ProbedGraph(symbol, constants, inputs, probes), {}, {}, name=DECODING)
    except Unsupported as error:
        graph = OnnxGraph(symbol, constants, inputs, probes, CONVERTERS)
        write_model(root, graph.model(names, {}), DECODING_ONNX)
        operator = str(error).partition(" has no conversion")[0].replace("export: ", "")
        remark = f"predict.py makes {', '.join(names)} with onnxruntime: {operator} is none of PyTorch's"
        return TorchDecoding(names, [*inputs], "onnx", [remark])
    code = f'"""Makes predictions of the outputs of the network."""\n\n{source.code}'
    replace_file(root / DECODING_FILE, code.encode())
    if source.extra:
        write_safetensors(root / DECODING_WEIGHTS, source.extra, {"format": "pt"})
    return TorchDecoding(names, [*inputs], "torch")


def _outputs(names: Sequence[str], cases: Sequence[Case]) -> List[Any]:
    """Returns names and shapes of outputs; a dimension whose size differs between the cases is open."""
    found = []
    for name in names:
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
