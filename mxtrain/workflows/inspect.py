"""`inspect`: what is in the file of a network: a graph, weights, or an archive with both. Imports no MXNet."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from mxtrain.errors import ConfigError, WeightsError, path_override
from mxtrain.model.foreign.importing import describe
from mxtrain.model.foreign.peft import is_adapter, patterns_of, place_adapter, read_adapter
from mxtrain.model.foreign.safetensors_file import INDEX, SAFETENSORS, read_safetensors
from mxtrain.model.network_archive import ARCHIVES, is_archive
from mxtrain.model.onnx.convert import FIXED_KEY, PIXELS_KEY, is_flagged
from mxtrain.model.params_file import read_params, without_module_prefix
from mxtrain.model.symbol.graph_file import (
    VARIABLE,
    Output,
    attributes_of,
    heads_of,
    nodes_before,
    parse_graph,
)
from mxtrain.model.symbol.heads import (
    LOSSES,
    WEIGHTED,
    NoSuchOutput,
    Prediction,
    class_layer,
    find_prediction,
    is_label,
    units_of,
)
from mxtrain.model.symbol.inputs import input_names
from mxtrain.model.symbol.model import SYMBOL_END, last_epoch, read_graph_text
from mxtrain.model.symbol.sagemaker import trained_with
from mxtrain.model.symbol.scaling import scaling_of, takes_pixels
from mxtrain.model.symbol.ssd_graph import SSDGraph, find_ssd, is_ssd

if TYPE_CHECKING:
    import numpy as np

    from mxtrain.types.annotations import SymbolGraph

FAMILIES: Sequence[Tuple[str, Sequence[str]]] = (
    ("an SSD detector", ("MultiBoxTarget", "MultiBoxDetection", "MultiBoxPrior")),
    ("a network of insightface", ("pre_fc1", "fc7_weight")),
    ("a residual network of MXNet's symbols, as SageMaker's image classification trains them", ("stage1_unit1_conv1",)),
    ("an Inception network", ("inception", "ch_concat_")),
    ("a DenseNet", ("densenet", "DenseBlock")),
    ("a MobileNet", ("mobilenet", "dwconv", "conv_2_dw")),
    ("a residual network of Gluon", ("resnetv1", "resnetv2", "resnest")),
    ("a VGG network", ("vgg", "conv1_1_weight")),
    ("a SqueezeNet", ("squeezenet", "fire2")),
    ("a BERT model", ("bertmodel", "bertencoder", "bert_")),
    ("a recurrent network", ("lstm", "gru", "rnn")),
)
"""Families of networks, and parts of names or operators by which they are known; the first one that fits counts."""


@dataclass(frozen=True)
class ArrayInfo:
    """One array of a file.

    Attributes:
        name: name in the file.
        shape: its shape.
        dtype: type of its elements in the file, such as float32.
        num_bytes: its size.
    """

    name: str
    shape: Tuple[int, ...]
    dtype: str
    num_bytes: int


@dataclass(frozen=True)
class InspectResult:
    """Result of `inspect`.

    Attributes:
        path: the file.
        kind: form of the file, such as "graph of a symbol".
        seems: family of the network, if its names tell; else empty.
        inputs: names of the inputs of the graph; labels are not among them.
        outputs: outputs of the graph as in the file, as `name (operator)`.
        prediction: where the graph is cut for training; empty without a graph.
        choices: names of the last layers, for `model.output`.
        operators: operator -> number of nodes of the prediction, the most frequent one first.
        layers: the layers with weights, as (name, operator, units).
        arrays: arrays of the weights, in the file's order.
        remarks: sentences on what to know before training.
        command: overrides that train the network; empty if it cannot be trained as it is.
    """

    path: str
    kind: str
    seems: str = ""
    inputs: Sequence[str] = ()
    outputs: Sequence[str] = ()
    prediction: str = ""
    choices: Sequence[str] = ()
    operators: Mapping[str, int] = field(default_factory=dict)
    layers: Sequence[Tuple[str, str, int]] = ()
    arrays: Sequence[ArrayInfo] = ()
    remarks: Sequence[str] = ()
    command: str = ""

    @property
    def num_parameters(self) -> int:
        """Returns the number of numbers in all arrays."""
        return sum(prod(array.shape) for array in self.arrays)

    @property
    def num_bytes(self) -> int:
        """Returns the size of all arrays in bytes."""
        return sum(array.num_bytes for array in self.arrays)


def inspect(file: Union[str, os.PathLike[str]]) -> InspectResult:
    """Reads the file of a network, and reports what it holds and how to train it.

    Args:
        file: a `-symbol.json`, beside which weights are looked for, a `.params`, a `.safetensors`, an ONNX file, or
            a `model.tar.gz` of SageMaker.

    Returns:
        The findings.

    Raises:
        ConfigError: the file cannot be read, or is of another kind.
    """
    path = os.fspath(file)
    for end, read in READERS.items():
        if path.endswith(end):
            try:
                return read(path)
            except (WeightsError, ValueError) as error:
                raise ConfigError(f"inspect: {error}.".replace("..", ".")) from error
    raise ConfigError(f"inspect: {path} is no file that it knows by its name. It reads *{', *'.join(READERS)}.")


def _read_graph(path: str) -> InspectResult:
    graph = parse_graph(read_graph_text(path), path)
    prefix = path[: -len(SYMBOL_END)] if path.endswith(SYMBOL_END) else ""
    weights: Optional[str] = path if is_archive(path) else None
    command = f"model=symbol {path_override('model.symbol', path)}"
    remarks: List[str] = []
    if is_archive(path):
        facts = trained_with(Path(path))
        if facts.side:
            remarks.append(f"It was trained with images of {facts.side}x{facts.side}, the size for image_size=auto.")
        if facts.num_classes:
            remarks.append(f"Its settings name {facts.num_classes} classes.")
    else:
        epochs = last_epoch(prefix) if prefix else None
        if epochs is None:
            remarks.append("No weights are beside it: name them by model.weights=FILE.params.")
        else:
            number, weights = epochs
            command = f"model=symbol {path_override('model.prefix', prefix)} model.epoch={number}"
    arrays = read_params(weights) if weights else {}
    return _describe(path, graph, arrays, command, remarks, _scaling_remarks(graph))


def _describe(
    path: str,
    graph: SymbolGraph,
    arrays: Mapping[str, np.ndarray],
    command: str,
    remarks: List[str],
    scaling: Sequence[str],
) -> InspectResult:
    nodes = graph["nodes"]
    prediction: Optional[Prediction] = None
    cut_at: List[Output] = []
    try:
        if is_ssd(graph):
            ssd = find_ssd(graph)
            cut_at = [ssd.scores, ssd.offsets]
            command = command.replace("model=symbol ", "model=symbol_ssd task=detection ", 1)
            remarks += _ssd_remarks(ssd)
        else:
            prediction = find_prediction(graph)
            cut_at = [prediction.output]
    except NoSuchOutput as error:
        remarks.append(f"{error}."[0].upper() + f"{error}."[1:])
        command = "" if is_ssd(graph) else f"{command} model.output=NAME"
    kept = nodes_before(graph, [position for position, _ in cut_at]) if cut_at else range(len(nodes))
    layers = [(nodes[n]["name"], nodes[n]["op"], _units(graph, n)) for n in kept if nodes[n]["op"] in WEIGHTED]
    if prediction is not None:
        remarks += _task_remarks(graph, prediction)
    remarks += scaling
    if any(attributes_of(node).get("use_global_stats") in ("True", "1") for node in nodes):
        remarks.append("Batch norms with use_global_stats keep their statistics in training.")
    types = [*(attributes_of(node).get("dtype") for node in nodes), *(str(array.dtype) for array in arrays.values())]
    if "float16" in types:
        remarks.append("It was saved in float16, and is trained in float32 unless amp says otherwise.")
    missing = _missing(graph, kept, arrays) if arrays else []
    if missing:
        remarks.append(f"{len(missing)} parameters are not in the weights, such as '{missing[0]}'.")
    return InspectResult(
        path=path,
        kind="archive with a graph and weights" if is_archive(path) else "graph of a symbol",
        seems=_family([*(node["op"] for node in nodes), *(node["name"] for node in nodes)]),
        inputs=input_names(graph, [without_module_prefix(name) for name in arrays]),
        outputs=[f"{nodes[position]['name']} ({nodes[position]['op']})" for position, _ in heads_of(graph)],
        prediction=str(prediction or " and ".join(f"'{nodes[n]['name']}' ({nodes[n]['op']})" for n, _ in cut_at)),
        choices=[name for name, *_ in layers[:-7:-1]],
        operators=dict(Counter(nodes[n]["op"] for n in kept if nodes[n]["op"] != VARIABLE).most_common()),
        layers=layers,
        arrays=_infos(arrays),
        remarks=remarks,
        command=command,
    )


def _read_onnx(path: str) -> InspectResult:
    from mxtrain.model.onnx.reading import convert

    converted = convert(path)
    file, graph = converted.file, converted.graph
    scaling = "The network itself scales pixels from 0 to 255: mean and std stay at auto, and do nothing."
    if not is_flagged(graph, PIXELS_KEY):
        scaling = (
            "Images are scaled outside of the network. torchvision and timm used ImageNet's mean and std, the default "
            "for files, or 0.5 for both; dataset.mean and dataset.std set them."
        )
    found = _describe(path, graph, converted.arrays, f"model=onnx {path_override('model.file', path)}", [], ())
    remarks = [*found.remarks, scaling]
    if is_flagged(graph, FIXED_KEY):
        remarks.append(f"It computes right for images of {'x'.join(map(str, file.input_shape[2:]))} only.")
    return replace(
        found,
        kind=f"ONNX file, opset {file.opset}",
        inputs=[f"{file.input} ({'x'.join(map(str, file.input_shape))})"],
        remarks=remarks,
    )


def _units(graph: SymbolGraph, position: int) -> int:
    attributes = attributes_of(graph["nodes"][position])
    keys = ("num_hidden", "num_filter", "state_size", "output_dim")
    return next((int(attributes[key]) for key in keys if key in attributes), 0)


def _task_remarks(graph: SymbolGraph, prediction: Prediction) -> List[str]:
    layer = class_layer(graph, prediction.output)
    loss = prediction.behind.partition(" ")[0]
    if loss in ("LinearRegressionOutput", "MAERegressionOutput"):
        return ["It predicts numbers: type task=regression."]
    if layer is None:
        return [f"Its output '{prediction.name}' is that of no layer with weights: model.new_layer=true adds one."]
    if loss in LOSSES or loss in ("softmax", "log_softmax", "SoftmaxActivation"):
        return [f"It scores {units_of(layer)} classes; with data of another number, '{layer['name']}' starts anew."]
    return []


def _ssd_remarks(ssd: SSDGraph) -> List[str]:
    candidates = ssd.candidates or "all"
    return [
        f"It is a detector of {ssd.num_classes} classes and the background, with {len(ssd.layers)} maps; with data of "
        "another number of classes, layers of scores keep the background only.",
        f"Boxes of an IoU above {ssd.iou:g} are suppressed, of the {candidates} with the highest scores.",
    ]


def _scaling_remarks(graph: SymbolGraph) -> List[str]:
    scaling = scaling_of(graph)
    if takes_pixels(graph):
        values = ", ".join(f"{node['op'].strip('_')} {attributes_of(node).get('scalar', '')}" for node in scaling)
        return [f"The graph itself scales pixels from 0 to 255 ({values}): mean and std stay at auto, and do nothing."]
    if any(node["op"] == "BatchNorm" for node in scaling):
        return [
            "It begins with a batch norm, so images must be scaled as in its training: for pixels from 0 to 255 type "
            "dataset.mean=[0,0,0] dataset.std=[0.00392157,0.00392157,0.00392157]."
        ]
    return [
        "Images are scaled outside of the graph. Gluon and GluonCV used ImageNet's mean and std, the default for "
        "files; examples of Module with mean_r=123.68 and so on need dataset.mean=[0.485,0.456,0.406] "
        "dataset.std=[0.00392157,0.00392157,0.00392157]."
    ]


def _missing(graph: SymbolGraph, kept: Sequence[int], arrays: Mapping[str, np.ndarray]) -> List[str]:
    named = {without_module_prefix(name) for name in arrays}
    inputs = input_names(graph, named)
    nodes = [graph["nodes"][position] for position in kept]
    return [
        node["name"]
        for node in nodes
        if node["op"] == VARIABLE and not is_label(node) and node["name"] not in (*named, *inputs)
    ]


def _family(names: Sequence[str]) -> str:
    text = "\n".join(names).lower()
    return next((family for family, parts in FAMILIES if any(part.lower() in text for part in parts)), "")


def _infos(arrays: Mapping[str, np.ndarray]) -> List[ArrayInfo]:
    return [ArrayInfo(name, tuple(array.shape), str(array.dtype), array.nbytes) for name, array in arrays.items()]


def _read_weights(path: str) -> InspectResult:
    arrays = read_params(path)
    names = list(arrays)
    kind = "weights by full names"
    if any("." in name for name in names):
        kind = "weights by the structure of a Gluon network"
    elif all(without_module_prefix(name) != name for name in names):
        kind = "weights of Module"
    graph = Path(path[: path.rfind("-")] + SYMBOL_END) if "-" in Path(path).name else None
    weights = path_override("model.weights", path)
    command = f"model=OPTION {weights}"
    remarks = ["They need their network: model=symbol with its graph, or the model=OPTION that made them."]
    if graph is not None and graph.exists():
        command = f"model=symbol {path_override('model.symbol', str(graph))} {weights}"
        remarks = [f"Its graph is {graph}: `mxtrain inspect {graph}` describes the network."]
    return InspectResult(
        path, f"{kind}, {len(names)} arrays", _family(names), arrays=_infos(arrays), remarks=remarks, command=command
    )


def _read_safetensors(path: str) -> InspectResult:
    arrays = read_safetensors(path)
    if is_adapter(path):
        return _describe_adapter(path, arrays)
    family, settings, remarks = describe(path, arrays)
    return InspectResult(
        path,
        f"safetensors, {len(arrays)} arrays",
        family,
        arrays=_infos(arrays),
        remarks=remarks,
        command=f"{settings} {path_override('model.weights', path)}" if settings else "",
    )


def _describe_adapter(path: str, arrays: Mapping[str, np.ndarray]) -> InspectResult:
    adapter = read_adapter(path)
    placed = place_adapter(adapter.arrays)
    base = f"model.weights={adapter.base}" if adapter.base else "model.weights=BASE"
    folder = path_override("model.lora.adapter", str(Path(path).parent))
    layers = f"'model.lora.layers=[{','.join(patterns_of(placed.additions))}]'"
    remarks = ["An adapter of PEFT: the folder or file of the network that it adds to is model.weights."]
    if placed.unknown:
        remarks.append(f"{len(placed.unknown)} arrays have no place in our network, such as '{placed.unknown[0]}'.")
    return InspectResult(
        path,
        f"additions of rank {adapter.rank} to {len(placed.additions)} layers",
        placed.family.name,
        arrays=_infos(arrays),
        remarks=remarks,
        command=f"model=OPTION {base} {folder} {adapter.overrides} {layers}",
    )


READERS: Dict[str, Callable[[str], InspectResult]] = {
    INDEX: _read_safetensors,
    SAFETENSORS: _read_safetensors,
    ".json": _read_graph,
    ".params": _read_weights,
    ".onnx": _read_onnx,
    **dict.fromkeys(ARCHIVES, _read_graph),
}
"""End of a file's name -> function that reads it."""
