"""Converters against MXNet: defaults of parameters, sequences of different lengths, boxes at a bound."""

from __future__ import annotations

from typing import Any, Dict, Tuple

import numpy as np
import onnxruntime
import pytest
from test_converters import X, error_of

from mxtrain.engine.backend import mx, native_operators
from mxtrain.exporting.converters import CONVERTERS
from mxtrain.exporting.graph import Input, OnnxGraph, ShapeNotExpressible, evaluate

LENGTHS = {"length": np.float32([4, 1, 6])}
LENGTH = mx.sym.var("length")
IMAGES: Tuple[Any, ...] = ("batch", 2, 5, 4)
SEQUENCE_OPTIONS: Dict[str, Any] = {"sequence_length": LENGTH, "use_sequence_length": True}
CASES = {
    "mask of times first": (mx.sym.SequenceMask(X, value=-7, **SEQUENCE_OPTIONS), (6, 3, 2)),
    "mask of times second": (mx.sym.SequenceMask(X, value=-7, axis=1, **SEQUENCE_OPTIONS), (3, 6, 2)),
    "mask without lengths": (mx.sym.SequenceMask(X, value=-7), (6, 3, 2)),
    "reverse": (mx.sym.SequenceReverse(X, **SEQUENCE_OPTIONS), (6, 3, 2)),
    "reverse without lengths": (mx.sym.SequenceReverse(X), (6, 3, 2)),
    "last of times first": (mx.sym.SequenceLast(X, **SEQUENCE_OPTIONS), (6, 3, 2)),
    "last of times second": (mx.sym.SequenceLast(X, axis=1, **SEQUENCE_OPTIONS), (3, 6, 2)),
    "last without lengths": (mx.sym.SequenceLast(X), (6, 3, 2)),
    "resize": (mx.sym.contrib.BilinearResize2D(X, height=9, width=7), IMAGES),
    "resize of centres": (mx.sym.contrib.BilinearResize2D(X, height=9, width=7, align_corners=False), IMAGES),
    "hard sigmoid": (mx.sym.hard_sigmoid(X), IMAGES),
    "hard sigmoid of a slope": (mx.sym.hard_sigmoid(X, alpha=0.4, beta=0.1), IMAGES),
    **{
        f"pad by {mode}": (mx.sym.Pad(X, mode=mode, pad_width=(0, 0, 0, 0, 1, 3, 2, 0), **value), IMAGES)
        for mode, value in (("constant", {"constant_value": 4}), ("edge", {}), ("reflect", {}))
    },
}


@pytest.mark.parametrize("name", CASES)
def test_operator(name: str) -> None:
    symbol, dims = CASES[name]
    assert error_of(symbol, dims, LENGTHS if "length" in symbol.list_inputs() else {}) < 1e-6


@pytest.mark.parametrize("overlap, kept", [(0.47, 2), (0.53, 1)])
def test_default_overlap_of_suppression(overlap: float, kept: int) -> None:
    shift = 10 * (1 - overlap) / (1 + overlap)  # two squares with sides of 10 then share `overlap` of their union
    x = np.float32([[[0, 0.9, 0, 0, 10, 10], [0, 0.8, shift, 0, 10 + shift, 10]]])
    symbol = mx.sym.contrib.box_nms(X)
    assert error_of(symbol, ("batch", 2, 6), {}, x) == 0
    assert (evaluate(symbol, {"x": x})[0][0, :, 1] > 0).sum() == kept


@pytest.mark.parametrize("most", [1, 2, -1])
def test_highest_scores_of_suppression(most: int) -> None:
    x = np.float32([[[0, score, 20 * n, 0, 20 * n + 10, 10] for n, score in enumerate((0.3, 0.9, 0.5))]])
    symbol = mx.sym.contrib.box_nms(X, topk=most)
    assert error_of(symbol, ("batch", 3, 6), {}, x) == 0
    assert (evaluate(symbol, {"x": x})[0][0, :, 1] > 0).sum() == (most if most > 0 else 3)


@pytest.mark.parametrize("samples", [-1, 1, 3])
def test_samples_of_region_alignment(samples: int) -> None:
    """-1 takes as many samples of a bin as it has pixels, rounded up."""
    regions = {"regions": np.float32([[0, 0.5, 1, 14, 15], [1, 2, 2, 9, 5]])}
    options = {"pooled_size": (2, 3), "spatial_scale": 1, "sample_ratio": samples}
    symbol = mx.sym.contrib.ROIAlign(X, mx.sym.var("regions"), **options)
    assert error_of(symbol, (3, 2, 16, 16), regions) < 1e-5


def nodes_of(symbol: Any, dims: Any, parameters: Dict[str, np.ndarray], probes: Any) -> Any:
    graph = OnnxGraph(symbol, parameters, {"x": Input(dims)}, probes, CONVERTERS)
    return graph.model([f"y{number}" for number in range(len(symbol.list_outputs()))], {})


def test_adaptive_pooling_of_one_size() -> None:
    made = nodes_of(mx.sym.contrib.AdaptiveAvgPooling2D(X, output_size=(3, 2)), (2, 2, 6, 4), {}, [{}])
    (node,) = (node for node in made.graph.node if node.op_type == "AveragePool")
    assert [list(one.ints) for one in node.attribute] == [[2, 2], [2, 2]]


def test_only_weights_of_one_layer_are_stored_transposed() -> None:
    weight = mx.sym.var("w")

    def dense(x: Any, number: int) -> Any:
        return mx.sym.FullyConnected(x, weight, num_hidden=4, no_bias=True, flatten=False, name=f"d{number}")

    parameters = {"w": np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)}
    probes = [{"batch": size} for size in (5, 11, 23)]
    once, twice = dense(X, 1), dense(dense(X, 1), 2)
    for symbol, is_stored in ((once, True), (twice, False)):
        made = nodes_of(symbol, ("batch", 3, 4), parameters, probes)
        assert ("Transpose" not in [node.op_type for node in made.graph.node]) == is_stored
        assert len(made.graph.initializer) == 1
    assert max(error_of(symbol, ("batch", 3, 4), parameters) for symbol in (once, twice)) < 1e-5


def test_the_type_of_a_second_output_is_its_own() -> None:
    """Indices of the highest values are integers, which a cast to the type of the values changes."""
    highest = mx.sym.topk(X, k=2, ret_typ="both", dtype="int32")
    made = nodes_of(mx.sym.Cast(highest[1], dtype="float32"), ("batch", 6), {}, [{"batch": 5}, {"batch": 11}])
    session = onnxruntime.InferenceSession(made.SerializeToString())
    (found,) = session.run(None, {"x": np.float32([[0, 5, 1, 9, 2, 3]])})
    assert found.dtype == np.float32 and found.tolist() == [[3, 1]]


def test_unequal_windows_of_an_open_size_are_refused() -> None:
    symbol = mx.sym.contrib.AdaptiveAvgPooling2D(X, output_size=(3, 3))
    with pytest.raises(ShapeNotExpressible, match=r"\(-1, -2 in the trials\)"):
        error_of(symbol, ("batch", 2, "length", 9), {})


def own_operators() -> Dict[str, Any]:
    """Operator -> (options, shapes, other arrays) with several heads, steps and rows per sample."""
    lengths = np.float32([2, 4])
    return {
        "norm": ({"residual": 1, "eps": 0.1}, {"x": (3, 2, 6), "residual": (3, 2, 6), "gamma": (6,), "beta": (6,)}, {}),
        "attention": ({"num_heads": 2}, {"x": (4, 2, 12)}, {"length": lengths}),
        "cross_attention": ({"num_heads": 2}, {"x": (3, 2, 4), "source": (4, 2, 8)}, {"length": lengths}),
        "attention_step": ({"num_heads": 2}, {"x": (1, 3, 12), "key": (3, 2, 4, 2), "value": (3, 2, 4, 2)}, {}),
        "source_attention_step": (
            {"num_heads": 2},
            {"x": (1, 6, 4), "key": (2, 2, 4, 2), "value": (2, 2, 4, 2)},
            {"length": lengths},
        ),
        "roi_align": (
            {"maps": 2, "count": 2, "side": 2, "heights": (8, 4), "widths": (8, 4), "scales": (0.5, 0.25)},
            {"x": (2, 3, 8, 8), "low": (2, 3, 4, 4)},
            {"rows": np.float32([[0, 1, 2, 9, 11], [1, 0, 0, 15, 15], [1, 3, 1, 12, 9], [0, 2, 2, 6, 6]])},
        ),
    }


@pytest.mark.skipif(native_operators().path is None, reason=native_operators().why)
@pytest.mark.parametrize("name", own_operators())
def test_own_operator(name: str) -> None:
    options, shapes, arrays = own_operators()[name]
    draw = np.random.default_rng(2)
    given = {**{key: draw.normal(size=shape).astype(np.float32) for key, shape in shapes.items()}, **arrays}
    symbol = getattr(mx.sym._internal, f"_mxtrain_{name}")(*map(mx.sym.var, given), **options)
    graph = OnnxGraph(symbol, {}, {key: Input(array.shape) for key, array in given.items()}, [{}], CONVERTERS)
    converted = [f"y{number}" for number in range(3 if name == "attention_step" else 1)]
    session = onnxruntime.InferenceSession(graph.model(converted, {}).SerializeToString())
    for found, expected in zip(session.run(None, given), evaluate(symbol, given)):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
