"""Bounds of the proof of an export, and the samples that quantized networks are calibrated with."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any, List
from unittest.mock import Mock

import numpy as np
import onnxruntime
import pytest

from mxtrain.engine.backend import mx
from mxtrain.errors import NotProven
from mxtrain.exporting import compression, proof
from mxtrain.exporting.compression import Compression, calibration_samples
from mxtrain.exporting.converters import CONVERTERS
from mxtrain.exporting.folder import write_model
from mxtrain.exporting.graph import Input, OnnxGraph, evaluate
from mxtrain.exporting.network import Normalisation, _shorter
from mxtrain.exporting.proof import compare_metrics, differs_at_other_sizes, first_difference
from mxtrain.exporting.run import _why_fixed
from mxtrain.exporting.standalone import detections_error
from mxtrain.parallel.base import IdLimits


def test_metrics_may_differ_in_the_sixth_digit() -> None:
    """At most 1e-5, absolute, plus 1e-5 of the value."""
    pairs = compare_metrics({"loss": 2.0, "accuracy": 0.5, "samples_per_s": 9.0}, {"loss": 2.000029, "accuracy": 0.5})
    assert pairs == {"loss": {"mxnet": 2.0, "onnxruntime": 2.000029}, "accuracy": {"mxnet": 0.5, "onnxruntime": 0.5}}
    with pytest.raises(NotProven, match="loss is 2 by MXNet and 2.00003 by onnxruntime"):
        compare_metrics({"loss": 2.0}, {"loss": 2.000031})
    with pytest.raises(NotProven, match="accuracy is nan by MXNet"):
        compare_metrics({"accuracy": float("nan")}, {"accuracy": 0.5})


@pytest.mark.parametrize("wanted, indices", [(4, [0, 33, 66, 99]), (1, [0]), (500, list(range(100)))])
@pytest.mark.parametrize("is_open", [True, False])
def test_calibration_samples_are_evenly_spaced(
    monkeypatch: pytest.MonkeyPatch, wanted: int, indices: List[int], is_open: bool
) -> None:
    """Every sample is yielded once, in batches of at most 8, or one by one if the batch dimension is fixed."""

    def build_loader(description: Any, taken: List[int], signature: Any, device: Any, prefetch: int) -> Any:
        return SimpleNamespace(epoch=lambda: [np.array(taken[n : n + 20]) for n in range(0, len(taken), 20)])

    monkeypatch.setattr(compression, "take", lambda source, chosen: [source[index] for index in chosen])
    monkeypatch.setattr(compression, "build_loader", build_loader)
    monkeypatch.setattr(
        compression,
        "RecurrentState",
        lambda shapes, network: SimpleNamespace(
            enter=lambda batch: SimpleNamespace(inputs=[SimpleNamespace(asnumpy=lambda: batch)])
        ),
    )
    objective = SimpleNamespace(state_shapes=(), network=None)
    subject: Any = SimpleNamespace(
        trained=SimpleNamespace(
            description=None, signature=None, device=None, strategy=SimpleNamespace(objective=objective)
        ),
        network=SimpleNamespace(enter=lambda arrays: {"x": arrays[0]}),
        is_open=is_open,
    )
    settings = Compression("int8", 0.01, train=list(range(100)), samples=wanted)  # type: ignore[arg-type]
    batches = [batch["x"].tolist() for batch in calibration_samples(subject, settings)]
    assert list(itertools.chain(*batches)) == indices
    assert max(map(len, batches)) == (min(8, wanted) if is_open else 1)


class Clock:
    """A clock that each call of a network advances."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def perf_counter(self) -> float:
        return self.now_s

    def run(self, seconds: float, inputs: Any) -> None:
        self.now_s += seconds


def test_networks_are_timed_in_turns_of_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(compression, "time", clock)
    monkeypatch.setattr(compression.standalone, "run", clock.run)
    latencies = compression._in_turns({"float32": 0.25, "int8": 0.125}, {})
    assert latencies == {"float32": 250, "int8": 125}
    assert clock.now_s == 0.375 * (1 + 6)  # untimed calls, and rounds until more than 2 s are over
    clock.now_s = 0.0
    compression._in_turns({"float32": 9.0}, {})
    assert clock.now_s == 9 * (1 + compression.MIN_ROUNDS)


def test_a_network_that_takes_no_other_size_differs_there() -> None:
    def run(names: Any, inputs: Any) -> List[np.ndarray]:
        if len(inputs["x"]) != 2:
            raise RuntimeError("another size")
        return [inputs["x"]]

    session = SimpleNamespace(run=run, get_outputs=lambda: [SimpleNamespace(name="y")])
    cases: List[Any] = [({"x": np.ones((size, 3))}, {"y": np.ones((size, 3))}) for size in (2, 4)]
    assert differs_at_other_sizes(session, cases, ())
    assert not differs_at_other_sizes(session, cases[:1], ()) and not differs_at_other_sizes(session, cases[1:], ())


def test_the_first_operator_that_differs_is_named() -> None:
    with mx.AttrScope(__layer__="features.2"):
        symbol = mx.sym.tanh(mx.sym.relu(mx.sym.sin(mx.sym.var("x"), name="one"), name="two"), name="three")
    converters = {**CONVERTERS, "relu": lambda call: call.add("Neg", [call.x()])}
    graph = OnnxGraph(symbol, {}, {"x": Input((2, 3))}, [{}], converters)
    network: Any = SimpleNamespace(symbol=symbol, evaluate=lambda inputs, group: evaluate(group, inputs))
    cases: List[Any] = [({"x": np.ones((2, 3), np.float32)}, {})]
    said = first_difference(graph, graph.model(["y"], {}), network, cases)
    assert said.startswith("The first operator that differs is relu (two) of layer 'features.2', by ")


def test_normalisation_is_undone() -> None:
    image = np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4)
    scale, shift = (np.float32(values).reshape(1, 2, 1, 1) for values in ([0.5, 0.25], [-1, 3]))
    np.testing.assert_array_equal(Normalisation(scale, shift).undo(image * scale + shift), image)


@pytest.mark.parametrize("options", [{"kernel": (1,), "stride": (4,)}, {"kernel": (3,)}, {"kernel": (3,), "pad": (2,)}])
def test_sizes_of_rounded_halves_and_with_an_offset_are_computed(options: Any) -> None:
    """A quarter, rounded up, two fewer and two more."""
    symbol = mx.sym.Pooling(mx.sym.var("x"), pool_type="max", name="p", **options)
    made = {**CONVERTERS, "Pooling": lambda call: call.cast(call.shape_tensor(call.out_dims()), "float32")}
    probes = [{"batch": batch, "length": length} for batch, length in ((5, 13), (11, 42), (23, 7))]
    graph = OnnxGraph(symbol, {}, {"x": Input(("batch", 2, "length"))}, probes, made)
    model = graph.model(["y"], {})
    model.graph.output[0].type.tensor_type.ClearField("shape")
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for batch, length in ((3, 8), (1, 19)):
        x = np.zeros((batch, 2, length), np.float32)
        assert session.run(None, {"x": x})[0].tolist() == list(evaluate(symbol, {"x": x})[0].shape)


@pytest.mark.parametrize("size, lengths", [(40, (40, 30, 19)), (8, (8, 6, 3)), (3, (3, 2, 1))])
def test_probes_are_shorter(size: int, lengths: Any) -> None:
    assert _shorter(size) == lengths


def test_sizes_that_are_fixed_are_named() -> None:
    opened, fixed = {"x": Input(("batch", "length", 3))}, {"x": Input(("batch", 7, 3))}
    both = {"x": Input(("batch", "height", "width"))}
    assert _why_fixed(opened, opened, NotProven("")) == "" == _why_fixed(opened, fixed, None)
    reason = "a size inside of the network cannot be computed from others"
    assert _why_fixed(opened, fixed, NotProven("")) == f"length is fixed at 7: {reason}"
    said = _why_fixed(both, {"x": Input(("batch", 7, 3))}, NotProven(""))
    assert said == f"height and width are fixed at 7 x 3: {reason}"


def test_other_lengths_change_no_tokens() -> None:
    inputs = {"x": Input(("batch", "length")), "length": Input(("batch",)), "position": Input(("batch", 2))}
    arrays = {"x": np.full((2, 9), 500), "length": np.array([9, 4]), "position": np.array([[8, 0], [3, 2]])}
    found = proof._resized(arrays, inputs, 0)
    assert found is not None
    assert {name: array.tolist() for name, array in found.items()} == {
        "x": [[500] * 6] * 2,
        "length": [6, 4],
        "position": [[5, 0], [3, 2]],
    }


@pytest.mark.parametrize("is_open, sizes", [(True, [3]), (False, [1, 1, 1])])
def test_networks_of_one_sample_compute_a_batch_one_by_one(is_open: bool, sizes: List[int]) -> None:
    seen: List[int] = []

    def run(names: Any, inputs: Any) -> List[np.ndarray]:
        seen.append(len(inputs["x"]))
        return [2 * inputs["x"]]

    inputs, outputs = [SimpleNamespace(name="x", shape=[3, 2])], [SimpleNamespace(name="y")]
    session = SimpleNamespace(run=run, get_inputs=lambda: inputs, get_outputs=lambda: outputs)
    network: Any = SimpleNamespace(
        enter=lambda arrays: {"x": arrays[0]}, input_names=["x"], output_names=["y"], num_raw=1, state_shapes=[]
    )
    strategy = proof.OnnxStrategy(Mock(id_limits=IdLimits()), network, session, is_open)  # type: ignore[arg-type]
    (found,) = strategy.predict([mx.nd.array([[1, 2], [3, 4], [5, 6]])])
    assert found.asnumpy().tolist() == [[2, 4], [6, 8], [10, 12]] and seen == sizes


def test_lowest_scores_of_full_detections_may_differ() -> None:
    expected = np.float32([[[0, score, 0, 0, 9, 9] for score in (0.9, 0.7, 0.5)]])
    for row, is_compared in enumerate((True, True, False)):
        found = expected.copy()
        found[0, row, 2:] = 5
        assert (detections_error(found, expected) > 0.01) == is_compared


def test_the_form_of_weights_is_computed_in_float32(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stored: List[Any] = []
    monkeypatch.setattr(compression, "_store_weights", lambda *given: stored.append(given))
    settings: Any = SimpleNamespace(form="float16")
    facts = compression._convert(tmp_path / "a", tmp_path / "b", settings, None)  # type: ignore[arg-type]
    assert facts == {"way": "weights", "reason": "computed in float32"}
    assert stored == [(tmp_path / "a", tmp_path / "b", "float16")]


def test_a_small_network_is_one_file(tmp_path: Path) -> None:
    model = SimpleNamespace(ByteSize=lambda: 7, SerializeToString=lambda: b"network")
    write_model(tmp_path, model, "step.onnx")
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [("step.onnx", b"network")]
