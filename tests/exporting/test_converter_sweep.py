"""Every converter over the middle values of its parameters, against MXNet, for sizes that no probe has."""

from __future__ import annotations

import itertools
import json
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np
import onnxruntime
import pytest

from mxtrain.engine.backend import mx
from mxtrain.exporting.converters import CONVERTERS
from mxtrain.exporting.graph import Input, OnnxGraph, Unsupported, evaluate
from mxtrain.exporting.standalone import relative_error

PROBES = [
    {"batch": 5, "length": 13, "height": 17, "width": 22},
    {"batch": 11, "length": 9, "height": 27, "width": 20},
    {"batch": 23, "length": 6, "height": 21, "width": 31},
]
SIZES = ({"batch": 3, "length": 7, "height": 11, "width": 14}, {"batch": 1, "length": 8, "height": 16, "width": 9})
Dims = Tuple[Any, ...]
BCL, BCHW, BC = ("batch", 4, "length"), ("batch", 4, "height", "width"), ("batch", 6)


def rows_of(call: str, options: Sequence[Dict[str, Any]], *shapes: Dims, **arrays: Dims) -> List[Any]:
    """Cases of one operator: (name, operator, arguments, shapes of open inputs, shapes of parameters)."""
    return [(call, one, shapes, arrays) for one in options]


def product(**values: Sequence[Any]) -> List[Dict[str, Any]]:
    return [dict(zip(values, one)) for one in itertools.product(*values.values())]


def positive(*calls: str) -> List[Any]:
    return [row for call in calls for row in rows_of(call, [{}], ("batch", 4, "positive"))]


POOLING = [
    ({"kernel": kernel, "stride": stride, "pad": pad}, dims)
    for kernel, stride, pad, dims in (
        ((3,), (2,), (1,), BCL),
        ((2,), (4,), (1,), BCL),
        ((3, 2), (2, 3), (1, 0), BCHW),
        ((3, 2), (1, 1), (0, 1), BCHW),
        ((2, 3), (3, 4), (1, 2), BCHW),
        ((2, 3, 2), (2, 2, 3), (1, 1, 0), ("batch", 2, "height", 9, "width")),
        ((3, 3, 3), (2, 2, 2), (1, 1, 1), ("batch", 2, "height", 9, "width")),
    )
]

TABLE: List[Any] = [
    *(
        row
        for options, dims in POOLING
        for row in rows_of(
            "Pooling",
            [
                {**options, **one}
                for one in product(
                    pool_type=("max", "avg", "sum"),
                    pooling_convention=("valid", "full"),
                    count_include_pad=(True, False),
                )
                if one["pool_type"] == "avg" or one["count_include_pad"]
            ],
            dims,
        )
    ),
    *rows_of("Pooling", product(pool_type=("max", "avg", "sum"), global_pool=(True,), kernel=((1, 1),)), BCHW),
    *rows_of("GroupNorm", product(num_groups=(1,)), BCHW, gamma=(1,), beta=(1,)),
    *rows_of("GroupNorm", product(num_groups=(2,), eps=(0.1,)), BCHW, gamma=(2,), beta=(2,)),
    *rows_of("GroupNorm", product(num_groups=(4,)), BCL, gamma=(4,), beta=(4,)),
    *rows_of("InstanceNorm", [{"eps": 0.1}], BCHW, gamma=(4,), beta=(4,)),
    *rows_of("LayerNorm", [{"axis": -1, "eps": 0.1}], BC, gamma=(6,), beta=(6,)),
    *rows_of("L2Normalization", product(mode=("channel", "instance", "spatial"), eps=(0.1,)), BCHW),
    *rows_of(
        "Convolution",
        product(kernel=((3, 2),), stride=((2, 3),), pad=((2, 1),), dilate=((1, 2),), num_filter=(6,), num_group=(2,)),
        BCHW,
        weight=(6, 2, 3, 2),
        bias=(6,),
    ),
    *rows_of(
        "Convolution",
        product(kernel=((3,),), stride=((2,),), pad=((1,),), num_filter=(6,), no_bias=(True,)),
        BCL,
        weight=(6, 4, 3),
    ),
    *rows_of(
        "Convolution",
        product(kernel=((2, 3, 2),), stride=((1, 2, 1),), num_filter=(3,), no_bias=(True,)),
        ("batch", 2, "height", 7, "width"),
        weight=(3, 2, 2, 3, 2),
    ),
    *rows_of(
        "Deconvolution",
        product(
            kernel=((3, 4),),
            stride=((2, 3),),
            pad=((1, 2),),
            adj=((1, 2),),
            num_filter=(6,),
            num_group=(2,),
            no_bias=(True,),
        ),
        BCHW,
        weight=(4, 3, 3, 4),
    ),
    *rows_of(
        "Deconvolution",
        product(kernel=((3, 3),), dilate=((2, 1),), num_filter=(2,), no_bias=(True,)),
        BCHW,
        weight=(4, 2, 3, 3),
    ),
    *rows_of(
        "Deconvolution",
        product(kernel=((3,),), stride=((2,),), num_filter=(2,), no_bias=(False,)),
        BCL,
        weight=(4, 2, 3),
        bias=(2,),
    ),
    *rows_of("UpSampling", product(scale=(2, 3), sample_type=("nearest",)), BCHW),
    *rows_of("contrib.BilinearResize2D", product(height=(9,), width=(20,), align_corners=(True, False)), BCHW),
    *rows_of(
        "contrib.BilinearResize2D",
        product(mode=("like",), align_corners=(True, False)),
        BCHW,
        ("batch", 2, "length", "length"),
    ),
    *rows_of("contrib.AdaptiveAvgPooling2D", product(output_size=((3, 2), (1, 1), (4, 3))), ("batch", 4, 9, 10)),
    *rows_of(
        "Pad",
        product(mode=("constant", "edge", "reflect"), pad_width=((0, 0, 0, 0, 1, 2, 3, 1),), constant_value=(0.5,)),
        BCHW,
    ),
    *rows_of("FullyConnected", product(num_hidden=(3,), flatten=(False,)), BCL[:2], weight=(3, 4), bias=(3,)),
    *rows_of("FullyConnected", product(num_hidden=(3,), flatten=(True,)), ("batch", 4, 2), weight=(3, 8), bias=(3,)),
    *rows_of(
        "FullyConnected",
        product(num_hidden=(3,), flatten=(False,), no_bias=(True,)),
        ("batch", "length", 4),
        weight=(3, 4),
    ),
    *rows_of(
        "batch_dot",
        [{"transpose_a": True}, {"transpose_a": True, "transpose_b": False}],
        ("batch", "length", 3),
        ("batch", "length", 2),
    ),
    *rows_of("batch_dot", [{"transpose_b": True}], ("batch", "length", 3), ("batch", 2, 3)),
    *rows_of("dot", [{}], ("batch", 4, 3), weight=(3, 5)),
    *rows_of("dot", [{}], ("batch", 4, 3), weight=(3, 5, 2)),
    *rows_of("dot", [{"transpose_a": True}], (4, "batch", 3), weight=(4, 5)),
    *rows_of("dot", [{"transpose_a": True}], (4, "batch", 3), weight=(4, 5, 2)),
    *rows_of("dot", [{"transpose_b": True}], ("batch", 4), weight=(5, 4)),
    *rows_of("dot", [{"transpose_b": True}], ("batch", 3, 4), weight=(5, 2, 4)),
    *(
        row
        for call in ("mean", "sum", "max", "min", "prod")
        for row in rows_of(
            call,
            product(axis=(1, -1, (0, 2), ()), keepdims=(True, False), exclude=(True, False)),
            ("batch", 3, "length"),
        )
    ),
    *rows_of("norm", product(axis=(1, (1, 2)), keepdims=(True, False), ord=(1, 2)), BCL),
    *rows_of("softmax", product(axis=(1, -1), temperature=(None, 2.5)), BCL),
    *rows_of("log_softmax", product(axis=(1, -1), temperature=(None, 2.5)), BCL),
    *rows_of("softmin", product(axis=(1, -1)), BCL),
    *rows_of("SoftmaxActivation", product(mode=("channel", "instance")), ("batch", 4, 3, 2)),
    *rows_of("SoftmaxActivation", product(mode=("channel", "instance")), BCL),
    *rows_of("SoftmaxActivation", product(mode=("instance",)), BC),
    *rows_of("Activation", product(act_type=("relu", "sigmoid", "tanh", "softrelu", "softsign")), BC),
    *rows_of("LeakyReLU", product(act_type=("leaky", "elu", "selu", "gelu"), slope=(0.1, 0.7)), BC),
    *rows_of("LeakyReLU", product(act_type=("prelu",)), BCHW, gamma=(4,)),
    *rows_of("LeakyReLU", product(act_type=("prelu",)), BCHW, gamma=(1,)),
    *rows_of("hard_sigmoid", [{}, {"alpha": 0.4, "beta": 0.1}], BC),
    *rows_of("smooth_l1", product(scalar=(0.5, 1.0, 2.0)), BC),
    *rows_of("clip", product(a_min=(-0.3,), a_max=(0.4,)), BC),
    *(
        row
        for call in (
            "relu",
            "sigmoid",
            "tanh",
            "exp",
            "abs",
            "negative",
            "sin",
            "cos",
            "floor",
            "ceil",
            "erf",
            "softsign",
            "sign",
            "square",
            "expm1",
            "identity",
            "BlockGrad",
            "Flatten",
            "shape_array",
            "ones_like",
            "zeros_like",
            "logical_not",
        )
        for row in rows_of(call, [{}], BCL)
    ),
    *positive("log", "sqrt", "rsqrt", "reciprocal", "log2", "log1p"),
    *(
        row
        for call in (
            "add",
            "sub",
            "mul",
            "div",
            "maximum",
            "minimum",
            "greater",
            "greater_equal",
            "lesser",
            "lesser_equal",
            "equal",
            "not_equal",
            "logical_and",
            "logical_or",
            "logical_xor",
        )
        for row in rows_of(f"broadcast_{call}", [{}], BCL, ("batch", 1, "length"))
    ),
    *(
        row
        for call in (
            "plus",
            "minus",
            "mul",
            "div",
            "maximum",
            "minimum",
            "greater",
            "greater_equal",
            "lesser",
            "lesser_equal",
            "equal",
            "not_equal",
            "rminus",
            "rdiv",
            "power",
        )
        for row in rows_of(f"_internal._{call}_scalar", [{"scalar": 2.0}], BC)
    ),
    *rows_of("_internal._rpower_scalar", [{"scalar": 2.0}], BC),
    *rows_of("add_n", [{}], BC, BC, BC),
    *rows_of("where", [{}], BC, BC, BC),
    *rows_of("where", [{}], ("batch",), BC, BC),
    *rows_of(
        "reshape",
        product(shape=((0, -1), (-1, 0), (0, 2, -1), (-2,), (-3, 0), (0, -4, 2, -1, 0), (0, -3), (-1, 2))),
        ("batch", 4, "length"),
    ),
    *rows_of("reshape", product(shape=((-1, 0),), reverse=(True,)), ("batch", 4, "length")),
    *rows_of("reshape_like", [{}], ("batch", 4, "length"), ("batch", 2, 2, "length")),
    *rows_of("squeeze", product(axis=(1, (1, 3))), ("batch", 1, "length", 1)),
    *rows_of("expand_dims", product(axis=(0, 1, -1, -2)), BCL),
    *rows_of("transpose", product(axes=((), (1, 0, 2), (2, 0, 1))), BCL),
    *rows_of("SwapAxis", product(dim1=(0, 1), dim2=(1, 2)), BCL),
    *rows_of("concat", product(dim=(1, -1, -2)), BCL, BCL),
    *rows_of("stack", product(axis=(0, 1, -1, -2)), BC, BC),
    *rows_of("split", product(num_outputs=(2,), axis=(1, -2), squeeze_axis=(False,)), ("batch", 2, "length")),
    *rows_of("split", product(num_outputs=(2,), axis=(1, -2), squeeze_axis=(True,)), ("batch", 2, "length")),
    *rows_of("split_v2", product(indices_or_sections=((1, 3), 2), axis=(1, -2)), BCL),
    *rows_of("slice_axis", product(axis=(1, -1), begin=(0, 1), end=(3, None, -1)), ("batch", 4, "length")),
    *rows_of("slice_axis", product(axis=(1, -1), begin=(-3,), end=(None, -1)), ("batch", 4, "length")),
    *rows_of(
        "slice",
        [
            {"begin": (None, 1), "end": (None, 3)},
            {"begin": (0, 3, -2), "end": (-1, 0, None), "step": (1, -2, 1)},
            {"begin": (None, None, 1), "end": (None, None, -1), "step": (None, None, 2)},
        ],
        BCL,
    ),
    *rows_of(
        "slice_like",
        product(axes=((), (2, 3), (-1,))),
        ("batch", 4, "height", "width"),
        ("batch", 4, "less height", "less width"),
    ),
    *rows_of("reverse", product(axis=(1, (1, 2))), BCL),
    *rows_of("broadcast_axis", product(axis=(1,), size=(3,)), ("batch", 1, "length")),
    *rows_of("broadcast_to", product(shape=((0, 3, 0),)), ("batch", 1, "length")),
    *rows_of("broadcast_like", [{}, {"lhs_axes": (1,), "rhs_axes": (2,)}], ("batch", 1, 4), ("batch", 3, 4)),
    *rows_of("repeat", product(repeats=(2, 3), axis=(0, 1, -1)), BCL),
    *rows_of("tile", product(reps=((2,), (1, 3), (2, 1, 1, 2))), BCL),
    *rows_of("depth_to_space", product(block_size=(2,)), ("batch", 12, "height", "width")),
    *rows_of("space_to_depth", product(block_size=(2,)), ("batch", 3, 6, 8)),
    *rows_of("take", product(axis=(0, 1, -1), mode=("clip", "wrap")), ("batch", 4, 5), indices=(3, 2)),
    *rows_of(
        "pick", product(axis=(1, -1), keepdims=(True, False), mode=("clip", "wrap")), ("batch", 4), ("batch index",)
    ),
    *rows_of("pick", product(axis=(1, -2), keepdims=(True, False)), ("batch", 4, 3), ("batch index", 3)),
    *rows_of("Embedding", [{"input_dim": 6, "output_dim": 3}], ("batch indices", 2), weight=(6, 3)),
    *rows_of("one_hot", product(depth=(4,), on_value=(2.0,), off_value=(-1.0,)), ("batch index",)),
    *rows_of("gather_nd", [{}], ("batch", 4, 5), pairs=(2, 3)),
    *rows_of("argmax", product(axis=(1, -1), keepdims=(True, False)), BCL),
    *rows_of(
        "topk", product(axis=(1, -1), k=(2,), ret_typ=("indices", "value"), is_ascend=(True, False)), ("batch", 5, 4)
    ),
    *rows_of("argsort", product(axis=(1, -1), is_ascend=(True, False)), BCL),
    *rows_of("contrib.arange_like", product(axis=(None, 1, -1), start=(0.0, 2.0), step=(1.0, 0.5)), BCL),
    *rows_of(
        "SequenceMask",
        product(use_sequence_length=(True,), value=(-2.0,), axis=(0,)),
        ("length", "batch", 2),
        ("batch lengths",),
    ),
    *rows_of(
        "SequenceMask", product(use_sequence_length=(True,), axis=(1,)), ("batch", "length", 2), ("batch lengths",)
    ),
    *rows_of("SequenceReverse", product(use_sequence_length=(True,)), ("length", "batch", 2), ("batch lengths",)),
    *rows_of("SequenceReverse", [{}], ("length", "batch", 2)),
    *rows_of(
        "SequenceLast", product(use_sequence_length=(True,), axis=(0,)), ("length", "batch", 2), ("batch lengths",)
    ),
    *rows_of(
        "SequenceLast", product(use_sequence_length=(True,), axis=(1,)), ("batch", "length", 2), ("batch lengths",)
    ),
    *rows_of("SequenceLast", product(axis=(0, 1)), ("length", "batch", 2)),
    *rows_of(
        "contrib.ROIAlign",
        product(pooled_size=((2, 3),), spatial_scale=(0.5,), sample_ratio=(1, 2, 3)),
        ("batch", 3, "height", "width"),
        rois=(4, 5),
    ),
    *rows_of(
        "contrib.box_nms",
        product(topk=(-1, 5, 7, 8, 40), overlap_thresh=(0.1, 0.5), valid_thresh=(0.2,), id_index=(-1, 0)),
        ("batch", "boxes", 6),
    ),
    *rows_of("contrib.interleaved_matmul_selfatt_qk", product(heads=(2,)), ("length", "batch", 12)),
    *rows_of(
        "contrib.interleaved_matmul_selfatt_valatt",
        product(heads=(1,)),
        ("length", "batch", 6),
        ("batch", "length", "length"),
    ),
    *(row for call in ("add", "sub", "mul", "div") for row in rows_of(f"elemwise_{call}", [{}], BC, BC)),
    *(
        row
        for call in (
            "maximum",
            "minimum",
            "power",
            "equal",
            "not_equal",
            "greater",
            "greater_equal",
            "lesser",
            "lesser_equal",
            "logical_and",
            "logical_or",
            "logical_xor",
        )
        for row in rows_of(f"_internal._{call}", [{}], *[("batch", "positive")] * 2)
    ),
    *rows_of("broadcast_power", [{}], ("batch", "positive"), ("batch", "positive")),
    *rows_of("Cast", product(dtype=("int32", "float64", "float16", "bool", "uint8")), ("batch", "positive")),
    *rows_of("Dropout", product(p=(0.5,)), BC),
    *rows_of("constants", product(start=(0.0, 1.0), step=(1.0, 0.5), repeat=(1, 2)), ("batch", 12)),
]
LESS = {"less height": ("height", 1), "less width": ("width", 2)}
"""Open sizes that are smaller than another one by so much."""


def sizes_of(sizes: Dict[str, int]) -> Dict[str, int]:
    less = {name: sizes[other] - count for name, (other, count) in LESS.items()}
    return {
        **sizes,
        **less,
        "positive": sizes["length"],
        "boxes": sizes["length"],
        **{f"batch {kind}": sizes["batch"] for kind in ("index", "indices", "lengths")},
    }


def array_for(name: str, dims: Dims, sizes: Dict[str, int], draw: np.random.Generator) -> np.ndarray:
    shape = [sizes[dim] if isinstance(dim, str) else dim for dim in dims]
    if name == "rois":
        corners = draw.uniform(0, 6, (*shape[:-1], 2))
        return np.concatenate(
            [np.zeros((*shape[:-1], 1)), corners, corners + draw.uniform(2, 9, corners.shape)], -1
        ).astype(np.float32)
    if name == "pairs":
        return draw.integers(0, 1, shape).astype(np.float32)
    if name == "indices" or "batch index" in dims:  # out of range on both sides, too
        return draw.integers(-3, 9, shape).astype(np.float32)
    if "batch indices" in dims:
        return draw.integers(0, 6, shape).astype(np.int32 if len(shape) == 1 else np.float32)
    if "batch lengths" in dims:
        return draw.integers(1, sizes["length"] + 1, shape).astype(np.float32)
    if "boxes" in dims:  # class, score, left, top, right, bottom; no two scores are equal
        corners = draw.uniform(0, 6, (*shape[:-1], 2))
        scores = draw.permutation(int(np.prod(shape[:-1]))).reshape(*shape[:-1], 1) / np.prod(shape[:-1])
        sides = draw.uniform(2, 9, corners.shape)
        parts = [draw.integers(0, 2, scores.shape), scores, corners, corners + sides]
        return np.concatenate(parts, -1).astype(np.float32)
    values = draw.normal(size=shape).astype(np.float32)
    return np.abs(values) + 0.1 if "positive" in dims else np.round(values * 4) / 4


def constants(x: Any, start: float, step: float, repeat: int) -> Any:
    """Operators without inputs."""
    numbers = mx.sym.arange(start, start + 12 * step / repeat, step, repeat)
    filled = mx.sym.zeros((1, 12)) + mx.sym.ones((1, 12)) + mx.sym.full((1, 12), 2.5)
    return mx.sym.broadcast_add(mx.sym.broadcast_add(x, mx.sym.expand_dims(numbers, axis=0)), filled)


def operator_of(call: str) -> Any:
    if call == "constants":
        return constants
    operator = mx.sym
    for part in call.split("."):
        operator = getattr(operator, part)
    return operator


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row[0]}-{'-'.join(map(str, row[1].values()))}")
def test_converter_computes_as_mxnet(row: Any) -> None:
    call, options, shapes, parameter_shapes = row
    error, problem = error_of(call, options, shapes, parameter_shapes)
    assert error < 1e-5, problem


def error_of(call: str, options: Dict[str, Any], shapes: Sequence[Dims], parameter_shapes: Dict[str, Dims]) -> Any:
    draw = np.random.default_rng(1)
    names = [f"x{number}" for number in range(len(shapes))]
    parameters = {name: array_for(name, dims, {}, draw) for name, dims in parameter_shapes.items()}
    symbol = operator_of(call)(*map(mx.sym.var, [*names, *parameters]), **options)
    outputs = [f"y{number}" for number in range(len(symbol.list_outputs()))]
    batches = [
        {name: array_for("", dims, sizes_of(sizes), draw) for name, dims in zip(names, shapes)} for sizes in SIZES
    ]
    inputs = {name: Input(dims, batches[0][name].dtype.name) for name, dims in zip(names, shapes)}
    graph = OnnxGraph(symbol, parameters, inputs, [sizes_of(probe) for probe in PROBES], CONVERTERS)
    session = onnxruntime.InferenceSession(graph.model(outputs, {}).SerializeToString())
    worst: Tuple[float, Optional[Any]] = (0.0, None)
    for batch in batches:
        found, expected = session.run(outputs, batch), evaluate(symbol, {**parameters, **batch})
        for one, other in zip(found, expected):
            assert one.dtype == other.dtype, (one.dtype, other.dtype)
            worst = max(worst, (relative_error(one, other), (one, other)), key=lambda pair: pair[0])
    return worst


REFUSED = [
    ("Dropout", {"mode": "always"}, "with mode=always"),
    ("LeakyReLU", {"act_type": "rrelu"}, "with act_type=rrelu"),
    ("Pooling", {"kernel": (2, 2), "pool_type": "lp", "p_value": 2}, "with pool_type=lp"),
    ("topk", {"ret_typ": "mask"}, "with ret_typ=mask"),
    ("contrib.arange_like", {"repeat": 2}, "with repeat"),
]


@pytest.mark.parametrize("call, options, said", REFUSED)
def test_parameter_without_conversion_is_named(call: str, options: Dict[str, Any], said: str) -> None:
    with pytest.raises(Unsupported, match=said):
        error_of(call, options, [BCHW], {})


def test_maps_that_are_equal_in_all_probes_are_cut_for_other_sizes() -> None:
    """A map that was halved and doubled is larger than before if its size was odd."""
    x = mx.sym.var("x0")
    small = mx.sym.Pooling(x, kernel=(2, 2), stride=(2, 2), pooling_convention="full")
    cut = mx.sym.slice_like(mx.sym.UpSampling(small, scale=2, sample_type="nearest"), x, axes=(2, 3))
    probes = [{"batch": 5, "height": 16, "width": 32}, {"batch": 11, "height": 48, "width": 64}]
    graph = OnnxGraph(cut + x, {}, {"x0": Input(("batch", 2, "height", "width"))}, probes, CONVERTERS)
    session = onnxruntime.InferenceSession(graph.model(["y"], {}).SerializeToString())
    for height, width in ((16, 32), (15, 32), (16, 33), (7, 9)):
        array = np.random.default_rng(0).normal(size=(2, 2, height, width)).astype(np.float32)
        np.testing.assert_allclose(session.run(None, {"x0": array})[0], evaluate(cut + x, {"x0": array})[0], rtol=1e-6)


def test_every_converter_is_in_the_table() -> None:
    elsewhere = {name for name in CONVERTERS if name.startswith("_mxtrain_")}  # with the networks that hold them
    elsewhere |= {"BatchNorm", "RNN", "_contrib_box_nms"}  # in test_converters.py
    called = set()
    for call, options, shapes, arrays in TABLE:
        symbol = operator_of(call)(*map(mx.sym.var, [*map(str, range(len(shapes))), *arrays]), **options)
        called |= {node["op"] for node in json.loads(symbol.tojson())["nodes"]} - {"null"}
    tested = {CONVERTERS[name] for name in {*called, *elsewhere}}
    written = set(mx.operator.get_all_registered_operators())
    untested = [name for name, one in CONVERTERS.items() if one not in tested and name in written]
    assert [name for name in untested if not is_alias(name)] == []


def is_alias(name: str) -> bool:
    """Returns True for a second name of a binary operator, which symbols do not contain."""
    operator = getattr(mx.sym, name, None) or getattr(mx.sym._internal, name)
    return json.loads(operator(mx.sym.var("x"), mx.sym.var("y")).tojson())["nodes"][-1]["op"] != name
