"""Compares an exported network in onnxruntime with MXNet: outputs for real samples, and metrics of an evaluation.

Metrics of tied predictions: after a few training steps a detector gives many boxes nearly the same score, and last bits
decide which are kept. If a metric differs by more than 1e-5, MXNet evaluates four times with noise of the size of the
proven error, and the difference may be three times the largest change.

Reasons: docs/decisions/0102-exported-folders.md.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from mxtrain.data.loading.loader import Consumer
from mxtrain.engine.backend import mx, nd
from mxtrain.errors import NotProven
from mxtrain.exporting.graph import has_open_batch
from mxtrain.exporting.operator_proof import differing_operator, order_dependent
from mxtrain.exporting.refused_layer import refused_layer
from mxtrain.exporting.standalone import MAX_ERROR, UnusableFolder, errors_of, relative_error, run
from mxtrain.parallel.base import Strategy, StrategyView
from mxtrain.parallel.recurrent_state import RecurrentState
from mxtrain.training.loaders import build_loader
from mxtrain.training.objective import build_evaluator

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray
    from onnx import ModelProto

    from mxtrain.data.exported_folder import ExportedFolder
    from mxtrain.data.loading.loader import EpochLoader
    from mxtrain.data.spec import Samples
    from mxtrain.exporting.graph import Input, OnnxGraph
    from mxtrain.exporting.network import TracedNetwork
    from mxtrain.training.trained import Trained
    from mxtrain.types import Batch

Case = Tuple[Dict[str, np.ndarray], Dict[str, np.ndarray]]
"""Inputs by name, and MXNet's outputs by name."""

NUM_SAMPLES = 4
"""Number of samples of the larger batch of the proof."""
ADDED_PIXELS = {"height": (33, 0, 18), "width": (15, 17, 0)}
"""Pixels added to images in further cases of the proof. Height and width differ and are odd, because networks that
halve and double sizes behave differently for sizes that are no multiples of their stride."""
TRUNCATED = (1 / 3, 0)
"""Parts of sequences that are cut off in further cases, at least one step."""
RESIZED_ROWS = (2, 1, 1)
"""Samples of these cases."""
MAX_METRIC_ERROR = 1e-5
DISTURBED_TRIALS, MAX_DISTURBED = 4, 3.0
"""Evaluations with noise, and how many times the largest change that they make a metric may differ."""


@dataclass(frozen=True)
class Sampled:
    """A batch of real samples.

    Attributes:
        arrays: inputs of the network, (B, ...) each, followed by its recurrent states.
        outputs: outputs of the network, computed as in `predict`.
        index_B: indices of the samples in their split, if known.
    """

    arrays: List[np.ndarray]
    outputs: List[np.ndarray]
    index_B: Optional[np.ndarray] = None


def read_samples(trained: Trained, source: Samples) -> Sampled:
    """Reads the first batch of a split and computes the outputs of the network.

    Args:
        trained: the trained network.
        source: samples of the split.
    """
    loader = build_loader(trained.description, source, trained.signature, trained.device, limit_batches=1)
    batch, inputs = first_batch(trained, loader)
    outputs = trained.strategy.predict(inputs)
    arrays, results = ([array.asnumpy() for array in group] for group in (inputs, outputs))
    return Sampled(arrays, results, batch.index_B)


def first_batch(trained: Trained, loader: EpochLoader) -> Tuple[Batch, Sequence[NDArray]]:
    """Returns the first batch of a loader, and the inputs of the network for it, followed by its recurrent states."""
    objective = trained.strategy.objective
    state = RecurrentState(objective.state_shapes, objective.network)
    # Loaders that play episodes ask the network for each action.
    with closing(loader.epoch(consumer=Consumer([trained.strategy]))) as batches:
        batch = next(batches)
        return batch, state.enter(batch).inputs


def cases_for(network: TracedNetwork, sampled: Sampled, inputs: Mapping[str, Input]) -> List[Case]:
    """Builds the cases of the proof: batches of one and of several samples, and other sizes of open dimensions.

    Raises:
        NotProven: the outputs of the traced network differ from those of `predict`.
    """
    entered = network.enter(sampled.arrays)
    is_open = has_open_batch(inputs)
    batches = [_rows(entered, 1), *([_rows(entered, NUM_SAMPLES)] if is_open else [])]
    changed = [_resized(_rows(entered, rows), inputs, number) for number, rows in enumerate(RESIZED_ROWS)]
    cases = [(batch, _outputs(network, batch)) for batch in [*batches, *(batch for batch in changed if batch)]]
    expected = [array[: len(next(iter(batches[-1].values())))] for array in sampled.outputs[: network.num_raw]]
    for name, array in zip(network.output_names, expected):
        error = relative_error(cases[len(batches) - 1][1][name], array)
        if not error <= MAX_ERROR:
            raise NotProven(f"export: the traced network differs from `predict`: {name} by {error:.1e}.")
    return cases


def _rows(arrays: Mapping[str, np.ndarray], count: int) -> Dict[str, np.ndarray]:
    return {name: array[:count] for name, array in arrays.items()}


def _resized(
    arrays: Mapping[str, np.ndarray], inputs: Mapping[str, Input], number: int
) -> Optional[Dict[str, np.ndarray]]:
    """Changes the size of open dimensions: truncates sequences, and extends images by repeating them.

    Returns None if only the batch dimension is open, or sequences are too short for another length.
    """
    resized, lengths = dict(arrays), []
    for name, array in arrays.items():
        for axis, dim in enumerate(inputs[name].dims):
            if not isinstance(dim, str) or axis == 0:
                continue
            if dim in ADDED_PIXELS:
                size = array.shape[axis] + ADDED_PIXELS[dim][number]
            elif number < len(TRUNCATED):
                size = array.shape[axis] - max(int(array.shape[axis] * TRUNCATED[number]), 1)
            else:
                return None
            lengths.append(size)
            resized[name] = np.take(resized[name], np.arange(size) % array.shape[axis], axis)
    if not lengths:
        return None
    max_length = min(lengths)
    for name, array in arrays.items():
        # Lengths and positions must not exceed the new size: MXNet would read and write out of bounds.
        if not any(isinstance(dim, str) for dim in inputs[name].dims[1:]) and array.ndim <= 2:
            resized[name] = np.minimum(array, max_length if array.ndim == 1 else max_length - 1).astype(array.dtype)
    return resized


def _outputs(network: TracedNetwork, inputs: Mapping[str, np.ndarray]) -> Dict[str, np.ndarray]:
    return dict(zip(network.output_names, network.evaluate(inputs)))


def prove(
    graph: OnnxGraph, model: ModelProto, network: TracedNetwork, session: Any, cases: Sequence[Case]
) -> Dict[str, float]:
    """Returns the relative error of each output.

    Outputs that depend on an order of scores are compared as sets if they differ. Then each operator is also compared
    on its own, see `operator_proof`.

    Raises:
        NotProven: an error is too large; the message names the first operator whose output differs.
        Unsupported: onnxruntime cannot run the network; the message names the layer.
    """
    unordered = order_dependent(graph, network.output_names)
    try:
        strict, errors = (errors_of(session, cases, names) for names in ((), unordered))
    except UnusableFolder as error:
        raise refused_layer(graph, cases[0][0], error) from error
    if strict != errors:
        for inputs, _ in cases:
            problem = differing_operator(graph, model, inputs)
            if problem:
                raise NotProven(f"export: onnxruntime computes something else than MXNet. {problem}")
    wrong = {name: error for name, error in errors.items() if not error <= MAX_ERROR}
    if wrong:
        listed = ", ".join(f"{name} by {error:.1e}" for name, error in wrong.items())
        raise NotProven(
            f"export: onnxruntime's outputs differ from MXNet's by more than {MAX_ERROR:.0e} of the largest number: "
            f"{listed}. {first_difference(graph, model, network, cases)}"
        )
    return errors


def differs_at_other_sizes(session: Any, cases: Sequence[Case], unordered: Sequence[str]) -> bool:
    """Returns True if the samples as they are give MXNet's outputs, alone or as a batch, but another case does not.

    Then an open size has to be fixed. If no case is right, `prove` names the wrong layer.
    """
    return 0 < sum(_agrees(session, case, unordered) for case in cases) < len(cases)


def _agrees(session: Any, case: Case, unordered: Sequence[str]) -> bool:
    try:
        return max(errors_of(session, [case], unordered).values()) <= MAX_ERROR
    except UnusableFolder:
        return False


def first_difference(graph: OnnxGraph, model: ModelProto, network: TracedNetwork, cases: Sequence[Case]) -> str:
    """Returns a sentence that names the first operator whose output differs."""
    import onnxruntime
    from onnx import helper

    inner = network.symbol.get_internals()
    hidden = (None, *graph.initializers)
    operators = [
        (number, node)
        for number, node in enumerate(graph.nodes)
        if node["op"] != "null" and graph.names.get((number, 0)) not in hidden
    ]
    names = list(dict.fromkeys(graph.names[number, 0] for number, _ in operators))
    model = type(model).FromString(model.SerializeToString())
    del model.graph.output[:]
    types = {graph.names[number, 0]: graph.onnx_type(number) for number, _ in operators}
    model.graph.output.extend(helper.make_tensor_value_info(name, types[name], None) for name in names)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    group = mx.sym.Group([inner[graph.first(number)] for number, _ in operators])
    for inputs, _ in cases:
        actual = dict(zip(names, session.run(names, inputs)))
        for (number, node), expected in zip(operators, network.evaluate(inputs, group)):
            error = relative_error(actual[graph.names[number, 0]], expected)
            if not error <= MAX_ERROR:
                name, layer = f"{node['op']} ({node['name']})", node.get("attrs", {}).get("__layer__", "")
                return f"The first operator that differs is {name} of layer '{layer}', by {error:.1e}."
    return "No single operator differs by as much."


class OnnxStrategy(StrategyView):
    """Replaces the predictions of a strategy by those of onnxruntime, for evaluations of an export.

    Args:
        strategy: strategy of the trained network.
        network: the traced network, which converts batches to inputs.
        session: session of onnxruntime.
        is_open: True if the batch dimension is open; False if it is 1.
    """

    def __init__(self, strategy: Strategy, network: TracedNetwork, session: Any, is_open: bool):
        super().__init__(strategy)
        self._network, self._session, self._is_open = network, session, is_open
        shapes = {one.name: one.shape for one in session.get_inputs()}
        sizes = {number: shapes.get(name, ())[1:2] for number, name in enumerate(network.input_names)}
        fixed = {number: size for number, axis in sizes.items() for size in axis if isinstance(size, int)}
        # Evaluations of recommenders score all items: if the graph takes a fixed number, in rows of this length.
        self.id_limits = replace(strategy.id_limits, fixed=fixed)

    def predict(self, inputs: Sequence[NDArray]) -> Tuple[NDArray, ...]:
        """Returns the outputs of the network for a batch."""
        entered = self._network.enter([value.asnumpy() for value in inputs])
        count = len(next(iter(entered.values())))
        step = count if self._is_open else 1
        parts = [
            run(self._session, {name: array[row : row + step] for name, array in entered.items()})
            for row in range(0, count, step)
        ]
        names = self._network.output_names[: self._network.num_raw + len(self._network.state_shapes)]
        return tuple(
            nd.array(np.concatenate([part[name] for part in parts]), dtype=parts[0][name].dtype) for name in names
        )


def with_onnx(
    trained: Trained, network: TracedNetwork, session: Any, is_open: bool, parts: Optional[ExportedFolder] = None
) -> Trained:
    """Returns the trained network with onnxruntime instead of MXNet for predictions and evaluations.

    Args:
        trained: the trained network.
        network: the traced network.
        session: session of the network in onnxruntime.
        is_open: True if the batch dimension is open; False if it is 1.
        parts: runs the parts with which predictions are decoded; None = MXNet decodes them.
    """
    strategy = OnnxStrategy(trained.strategy, network, session, is_open)
    description, signature = trained.description, trained.signature
    export = description.task.export_form()
    decode = None if parts is None else export.build_decode(description, signature, strategy, parts)
    evaluator = build_evaluator(description, strategy, signature, decode)
    return replace(trained, evaluator=evaluator, strategy=strategy)


class DisturbedStrategy(StrategyView):
    """Adds noise to the predictions of a strategy, to measure its effect on a metric.

    Args:
        strategy: strategy that computes with MXNet.
        error: largest noise, relative to the largest number of an output.
        seed: seed of the noise.
    """

    def __init__(self, strategy: Strategy, error: float, seed: int):
        super().__init__(strategy)
        self._error, self._draw = error, np.random.default_rng(seed)

    def predict(self, inputs: Sequence[NDArray]) -> Tuple[NDArray, ...]:
        """Returns the outputs of the network for a batch, with noise."""
        return tuple(self._disturbed(output) for output in self.whole.predict(inputs))

    def _disturbed(self, output: NDArray) -> NDArray:
        array = output.asnumpy()
        if array.dtype.kind != "f":
            return output
        # Errors of the proof are relative to the largest number of an output, so the noise is, too.
        limit = self._error * float(np.abs(array).max(initial=0.0))
        return nd.array(array + self._draw.uniform(-limit, limit, array.shape), dtype=array.dtype)


def disturbed(trained: Trained, error: float, seed: int) -> Trained:
    """Returns the trained network with noise of the size of `error` in its outputs, see `DisturbedStrategy`."""
    strategy = DisturbedStrategy(trained.strategy, error, seed)
    evaluator = build_evaluator(trained.description, strategy, trained.signature, None)
    return replace(trained, evaluator=evaluator, strategy=strategy)


def compare_metrics(
    expected: Mapping[str, float],
    actual: Mapping[str, float],
    measure_disturbed: Callable[[int], Mapping[str, float]] = lambda seed: {},
) -> Dict[str, Dict[str, float]]:
    """Returns the value of each metric in MXNet and in onnxruntime.

    If predictions are nearly tied, such as the detections after a few training steps, a metric depends on the last bits
    of the outputs. A difference is allowed if noise of this size changes MXNet's own value by a third of it or more.

    Args:
        expected, actual: metrics by MXNet and by onnxruntime.
        measure_disturbed: seed -> metrics by MXNet with noise in the outputs, called only if a metric differs.

    Raises:
        NotProven: two values differ by more than `MAX_METRIC_ERROR`, and by more than noise explains.
    """
    pairs = {
        name: {"mxnet": float(value), "onnxruntime": float(actual[name])}
        for name, value in expected.items()
        # The speed is among the metrics, and differs between two engines.
        if name != "samples_per_s"
    }
    differing = [name for name, pair in pairs.items() if not _is_close(pair["mxnet"], pair["onnxruntime"])]
    trials = [measure_disturbed(seed) for seed in range(DISTURBED_TRIALS)] if differing else []
    for name in differing:
        one, other = pairs[name]["mxnet"], pairs[name]["onnxruntime"]
        moved = max(abs(float(trial.get(name, one)) - one) for trial in trials)
        if not abs(one - other) <= MAX_DISTURBED * moved:
            raise NotProven(f"export: {name} is {one:.6g} by MXNet and {other:.6g} by onnxruntime.")
    return pairs


def _is_close(one: float, other: float) -> bool:
    return bool(np.isclose(one, other, rtol=MAX_METRIC_ERROR, atol=MAX_METRIC_ERROR, equal_nan=True))
