"""Generates the code of a trained network and collects its weights. Imports MXNet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Sequence, Tuple, Union

import numpy as np

from mxtrain.engine.backend import gluon, mx
from mxtrain.errors import ConfigError
from mxtrain.exporting.graph import Input, ProbedGraph, ShapeNotExpressible, Unsupported, has_open_batch
from mxtrain.exporting.network import Dynamic, SymbolOperators, TracedNetwork
from mxtrain.exporting.pytorch.source import ModuleSource
from mxtrain.exporting.pytorch.through_onnx import OnnxSource, source_through_onnx
from mxtrain.model.graph.trace import NotTraceable, input_names, symbol_of

if TYPE_CHECKING:
    from mxnet.symbol import Symbol

    from mxtrain.training.trained import Trained

NETWORK, DECODING = "Network", "Decoding"


@dataclass(frozen=True)
class TorchNetwork:
    """A network as code of PyTorch.

    Attributes:
        symbol: the network, from normalised inputs to its outputs and next states.
        inputs: names of the variables of its inputs.
        given: the inputs that it reads, as positions among all inputs and states.
        parameters: values of all other variables.
        source: the code.
        state: name in the state_dict -> array.
    """

    symbol: Symbol
    inputs: Sequence[str]
    given: Sequence[int]
    parameters: Mapping[str, np.ndarray]
    source: Union[ModuleSource, OnnxSource]
    state: Mapping[str, np.ndarray]
    names: Mapping[str, str]
    """Structural name of a parameter -> its variable in the symbol."""
    num_outputs: int
    """Number of its outputs without states, which follow them."""


@dataclass(frozen=True)
class Choice:
    """Inputs of the network with their open dimensions, and sizes of these, see `TracedNetwork.choices`."""

    inputs: Mapping[str, Input]
    probes: Sequence[Mapping[str, int]]


def generate(trained: Trained, traced: TracedNetwork, dynamic: Dynamic) -> Tuple[TorchNetwork, Choice]:
    """Writes the network as code, with as many open sizes as it allows.

    Args:
        trained: the trained network, on a CPU in float32.
        traced: the traced network, which knows the inputs.
        dynamic: sizes that may be open.

    Raises:
        ConfigError: an operator has no conversion, or the network computes batches of one size only.
    """
    network = trained.strategy.gather()
    count = len(traced.shapes) + len(traced.state_shapes)
    try:
        symbol, recorder = symbol_of(network, training=False, num_inputs=count)
    except NotTraceable as error:
        raise ConfigError(f"export: the network cannot be traced: {error}.") from error
    variables = input_names(count)
    full_names = {
        parameter.name: name
        for name, parameter in network._collect_params_with_prefix().items()
        if not isinstance(parameter, gluon.Constant)
    }
    parameters = {name: parameter.data().asnumpy() for name, parameter in network.collect_params().items()}
    by_structure = {name: variable for variable, name in full_names.items()}
    kinds = {path: type(block).__name__ for path, block in recorder.called.items()}
    read = symbol.list_inputs()
    failure: Exception = ConfigError("export: the network computes batches of one size only.")
    for inputs, probes in traced.choices(dynamic):
        if not has_open_batch(inputs):
            break
        own = {
            variable: _as_number(inputs[name], traced, position)
            for position, (name, variable) in enumerate(zip(traced.input_names, variables))
            if name in inputs and variable in read
        }
        try:
            graph = ProbedGraph(symbol, parameters, own, probes)
            source = _source_of(graph, symbol, full_names, kinds)
        except (ShapeNotExpressible, mx.MXNetError) as error:
            failure = error
            continue
        given = [position for position, variable in enumerate(variables) if variable in own]
        state = {new: parameters[by_structure[name]] for name, new in source.names.items()}
        state.update(source.extra)
        found = TorchNetwork(symbol, variables, given, parameters, source, state, by_structure, traced.num_raw)
        return found, Choice(inputs, probes)
    raise ConfigError(str(failure)) from failure


def _source_of(
    graph: ProbedGraph, symbol: Symbol, full_names: Mapping[str, str], kinds: Mapping[str, str]
) -> Union[ModuleSource, OnnxSource]:
    """Returns plain code of torch.nn, or that of the ONNX graph if an operator has none."""
    try:
        return ModuleSource(graph, full_names, kinds)
    except ShapeNotExpressible:
        raise
    except Unsupported as error:
        return source_through_onnx(symbol, graph.parameters, graph.inputs, graph.probes, full_names, error)


def _as_number(one: Input, traced: TracedNetwork, position: int) -> Input:
    """Returns an input of the network: images are numbers behind the normalisation."""
    is_image = traced.normalisation is not None and position == 0
    return Input(one.dims, "float32") if is_image else one


def decoding_symbol(trained: Trained, traced: TracedNetwork) -> Tuple[List[str], Any, Dict[str, np.ndarray]]:
    """Returns the graph from outputs of the network to predictions: their names, the symbol, and its constants.

    Args:
        trained: the trained network.
        traced: the traced network.
    """
    F: Any = SymbolOperators()
    outputs = [mx.sym.var(name) for name in traced.output_names[: traced.num_raw]]
    task = trained.description.task
    decoded = task.export_form().outputs(F, outputs, trained.description, trained.signature)
    return [*decoded], mx.sym.Group([*decoded.values()]) if decoded else None, F.constants


def raw_inputs(
    traced: TracedNetwork, network: TorchNetwork, choice: Choice
) -> Tuple[Dict[str, Input], List[Dict[str, int]]]:
    """Returns the outputs of the network as inputs of the decoding, and sizes of their open dimensions."""
    graph = network.source.graph
    inputs: Dict[str, Input] = {}
    probes: List[Dict[str, int]] = [dict(probe) for probe in choice.probes]
    for name, head in zip(traced.output_names[: traced.num_raw], graph.heads):
        dims: List[Union[int, str]] = []
        for axis, size in enumerate(graph.dims(head)):
            same = [key for key in probes[0] if all(probe[key] == one for probe, one in zip(probes, size))]
            if len(set(size)) == 1:
                dims.append(size[0])
                continue
            if not same:
                same = [f"{name}_{axis}"]
                for probe, one in zip(probes, size):
                    probe[same[0]] = one
            dims.append(same[0])
        inputs[name] = Input(tuple(dims), graph.dtype(head))
    return inputs, probes
