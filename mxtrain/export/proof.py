"""Compares an exported network with MXNet's: outputs of real samples, and the metrics of an evaluation."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from mxtrain.data.loading.loader import Consumer
from mxtrain.engine.backend import mx, nd
from mxtrain.errors import MxtrainError
from mxtrain.export.operator_proof import differing_operator, order_dependent
from mxtrain.export.standalone import MAX_ERROR, UnusableFolder, errors_of, relative_error, run
from mxtrain.parallel.recurrent_state import RecurrentState
from mxtrain.training.loaders import build_loader
from mxtrain.training.objective import build_evaluator

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray
    from onnx import ModelProto

    from mxtrain.data.base import Samples
    from mxtrain.export.graph import Input, OnnxGraph
    from mxtrain.export.network import TracedNetwork
    from mxtrain.trained import Trained

Case = Tuple[Dict[str, np.ndarray], Dict[str, np.ndarray]]
"""Inputs, and MXNet's outputs."""

NUM_SAMPLES = 4
"""Samples of the larger batch of the proof."""
MAX_METRIC_ERROR = 1e-5


class NotProven(MxtrainError):
    """The exported network computes something else than the trained one."""

    exit_code = 1


@dataclass(frozen=True)
class Sampled:
    """Real samples.

    Attributes:
        arrays: what enters the network, (B, ...) each, and its states.
        outputs: of the network, by the way of `predict`.
    """

    arrays: List[np.ndarray]
    outputs: List[np.ndarray]


def read_samples(trained: Trained, source: Samples) -> Sampled:
    """The first samples of a split, and what the network says of them.

    Args:
        trained: network.
        source: of the samples.
    """
    loader = build_loader(trained.description, source, trained.signature, trained.device, limit_batches=1)
    objective = trained.strategy.objective
    state = RecurrentState(objective.state_shapes, objective.network)
    with closing(loader.epoch(consumer=Consumer([trained.strategy]))) as batches:
        inputs = state.enter(next(batches)).inputs
    outputs = trained.strategy.predict(inputs)
    return Sampled([one.asnumpy() for one in inputs], [one.asnumpy() for one in outputs])


def cases_for(network: TracedNetwork, sampled: Sampled, inputs: Mapping[str, Input]) -> List[Case]:
    """The cases of the proof: a batch of one and of several samples, and another length or size where it is open.

    Raises:
        NotProven: the traced network says something else than `predict`.
    """
    entered = network.enter(sampled.arrays)
    is_open = next(iter(inputs.values())).dims[0] == "batch"
    given = [_rows(entered, 1), *([_rows(entered, NUM_SAMPLES)] if is_open else [])]
    changed = _resized(given[-1], inputs)
    cases = [(one, _outputs(network, one)) for one in [*given, *([changed] if changed is not None else [])]]
    expected = [array[: len(next(iter(given[-1].values())))] for array in sampled.outputs[: network.num_raw]]
    for name, array in zip(network.output_names, expected):
        error = relative_error(cases[len(given) - 1][1][name], array)
        if not error <= MAX_ERROR:
            raise NotProven(f"export: the traced network differs from `predict`: {name} by {error:.1e}.")
    return cases


def _rows(arrays: Mapping[str, np.ndarray], count: int) -> Dict[str, np.ndarray]:
    return {name: array[:count] for name, array in arrays.items()}


def _resized(arrays: Mapping[str, np.ndarray], inputs: Mapping[str, Input]) -> Optional[Dict[str, np.ndarray]]:
    """The same samples in another length or size: cut at the end, or repeated at the right and at the bottom."""
    found, lengths = dict(arrays), []
    for name, array in arrays.items():
        for axis, dim in enumerate(inputs[name].dims):
            if not isinstance(dim, str) or axis == 0:
                continue
            more = {"height": 64, "width": 32}.get(dim, -max(array.shape[axis] // 3, 1))
            size = array.shape[axis] + more
            lengths.append(size)
            found[name] = np.take(found[name], np.arange(size) % array.shape[axis], axis)
    if not lengths:
        return None
    most = min(lengths)
    for name, array in arrays.items():
        # Lengths and positions must not exceed what is left: MXNet would read and write behind the end.
        if not any(isinstance(dim, str) for dim in inputs[name].dims[1:]) and array.ndim <= 2:
            found[name] = np.minimum(array, most if array.ndim == 1 else most - 1).astype(array.dtype)
    return found


def _outputs(network: TracedNetwork, inputs: Mapping[str, np.ndarray]) -> Dict[str, np.ndarray]:
    return dict(zip(network.output_names, network.evaluate(inputs)))


def prove(
    graph: OnnxGraph, model: ModelProto, network: TracedNetwork, session: Any, cases: Sequence[Case]
) -> Dict[str, float]:  # fmt: skip
    """The relative error of each output. Where those differ that depend on an order, they are compared as sets, and
    each operator is proven by itself, see `operator_proof`.

    Raises:
        NotProven: one is too large; names the first operator whose output differs.
    """
    unordered = order_dependent(graph, network.output_names)
    try:
        strict, errors = (errors_of(session, cases, names) for names in ((), unordered))
    except UnusableFolder as error:
        raise NotProven(f"export: {error}") from error
    if strict != errors:
        for inputs, _ in cases:
            said = differing_operator(graph, model, inputs)
            if said:
                raise NotProven(f"export: onnxruntime computes something else than MXNet. {said}")
    wrong = {name: error for name, error in errors.items() if not error <= MAX_ERROR}
    if wrong:
        listed = ", ".join(f"{name} by {error:.1e}" for name, error in wrong.items())
        raise NotProven(
            f"export: onnxruntime's outputs differ from MXNet's by more than {MAX_ERROR:.0e} of the largest number: "
            f"{listed}. {first_difference(graph, model, network, cases)}"
        )
    return errors


def first_difference(
    graph: OnnxGraph, model: ModelProto, network: TracedNetwork, cases: Sequence[Case]
) -> str:  # fmt: skip
    """Names the first operator whose output differs, in a sentence."""
    import onnxruntime
    from onnx import helper

    inner = network.symbol.get_internals()
    hidden = (None, *graph.initializers)
    places = [(number, node) for number, node in enumerate(graph.nodes)
              if node["op"] != "null" and graph.names.get((number, 0)) not in hidden]  # fmt: skip
    names = list(dict.fromkeys(graph.names[number, 0] for number, _ in places))
    model = type(model).FromString(model.SerializeToString())
    del model.graph.output[:]
    types = {graph.names[number, 0]: graph.onnx_type(number) for number, _ in places}
    model.graph.output.extend(helper.make_tensor_value_info(name, types[name], None) for name in names)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    group = mx.sym.Group([inner[graph.first(number)] for number, _ in places])
    for inputs, _ in cases:
        found = dict(zip(names, session.run(names, inputs)))
        for (number, node), expected in zip(places, network.evaluate(inputs, group)):
            error = relative_error(found[graph.names[number, 0]], expected)
            if not error <= MAX_ERROR:
                name, layer = f"{node['op']} ({node['name']})", node.get("attrs", {}).get("__layer__", "")
                return f"The first operator that differs is {name} of layer '{layer}', by {error:.1e}."
    return "No single operator differs by as much."


class OnnxStrategy:
    """A strategy whose predictions are onnxruntime's; everything else is the original's.

    Args:
        trained: with the original.
        network: turns batches into inputs.
        session: of onnxruntime.
        is_open: whether a batch may have any size.
    """

    def __init__(self, trained: Trained, network: TracedNetwork, session: Any, is_open: bool):
        self._trained, self._network, self._session, self._is_open = trained, network, session, is_open

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trained.strategy, name)

    def predict(self, inputs: Sequence[NDArray]) -> Tuple[NDArray, ...]:
        """The outputs of the network for a batch."""
        entered = self._network.enter([one.asnumpy() for one in inputs])
        count = len(next(iter(entered.values())))
        step = count if self._is_open else 1
        parts = [run(self._session, {name: array[row : row + step] for name, array in entered.items()})
                 for row in range(0, count, step)]  # fmt: skip
        names = self._network.output_names[: self._network.num_raw + len(self._network.state_shapes)]
        return tuple(nd.array(np.concatenate([part[name] for part in parts]), dtype=parts[0][name].dtype)
                     for name in names)  # fmt: skip


def with_onnx(trained: Trained, network: TracedNetwork, session: Any, is_open: bool) -> Trained:
    """The trained network with onnxruntime in MXNet's place."""
    strategy: Any = OnnxStrategy(trained, network, session, is_open)
    evaluator = build_evaluator(trained.description, strategy, trained.signature)
    return replace(trained, evaluator=evaluator, strategy=strategy)


def compare_metrics(expected: Mapping[str, float], found: Mapping[str, float]) -> Dict[str, Dict[str, float]]:
    """Both values of each metric.

    Raises:
        NotProven: they differ.
    """
    both = {name: {"mxnet": float(value), "onnxruntime": float(found[name])}
            for name, value in expected.items() if name != "samples_per_s"}  # fmt: skip
    for name, pair in both.items():
        one, other = pair["mxnet"], pair["onnxruntime"]
        if not np.isclose(one, other, rtol=MAX_METRIC_ERROR, atol=MAX_METRIC_ERROR, equal_nan=True):
            raise NotProven(f"export: {name} is {one:.6g} by MXNet and {other:.6g} by onnxruntime.")
    return both
