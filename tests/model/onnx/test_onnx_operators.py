"""Operators of ONNX files after their conversion to MXNet, against ONNX Runtime, for two sizes of batch and image."""

from __future__ import annotations

import json
from typing import Any, Dict, List, Sequence, Tuple

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper, save

from mxtrain.engine.backend import mx
from mxtrain.exporting.graph import evaluate
from mxtrain.exporting.standalone import relative_error
from mxtrain.model.onnx.convert import FIXED_KEY, convert_file, is_flagged
from mxtrain.model.onnx.operators import CONVERTERS, FOLDED
from mxtrain.model.onnx.refusals import RefusedOnnx

DRAW = np.random.RandomState(3)
IMAGE = ("n", 4, "h", "w")
MATRIX = ("n", 4)
Node = Tuple[str, List[str], Dict[str, Any]]


def draw(*shape: int) -> np.ndarray:
    return DRAW.randn(*shape).astype(np.float32)


def ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def one(value: float) -> np.ndarray:
    return np.array(value, np.float32)


def make_model(
    nodes: Sequence[Node], constants: Dict[str, np.ndarray], dims: Sequence[Any], opset: int, outputs: int = 1
) -> ModelProto:
    """A model of nodes (operator, inputs, attributes); the tensors are t0, t1 and so on, the input is x."""
    protos = []
    for number, (op, inputs, attributes) in enumerate(nodes):
        last = number == len(nodes) - 1
        names = [f"y{index}" for index in range(outputs)] if last else [f"t{number}"]
        protos.append(helper.make_node(op, inputs, names, name=f"node{number}", **attributes))
    graph = helper.make_graph(
        protos,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)],
        [helper.make_tensor_value_info(f"y{index}", TensorProto.FLOAT, None) for index in range(outputs)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def case(op: str, inputs: str = "x", dims: Sequence[Any] = IMAGE, opset: int = 17, constants: Any = None, **attributes):
    return [(op, inputs.split(","), attributes)], constants or {}, dims, opset


def conv(weight: np.ndarray, dims: Sequence[Any] = IMAGE, bias: bool = True, op: str = "Conv", **attributes):
    units = weight.shape[0] if op == "Conv" else weight.shape[1] * attributes.get("group", 1)
    constants = {"w": weight, **({"b": draw(units)} if bias else {})}
    return case(op, "x,w,b" if bias else "x,w", dims, constants=constants, **attributes)


def norm(op: str = "BatchNormalization", dims: Sequence[Any] = IMAGE, opset: int = 17, **attributes):
    arrays = {"s": draw(4), "b": draw(4), "m": draw(4), "v": np.abs(draw(4))}
    return case(op, "x,s,b,m,v", dims, opset, arrays, **attributes)


def deconv(weight: np.ndarray, **attributes):
    return conv(weight, op="ConvTranspose", **attributes)


W33 = draw(6, 4, 3, 3)
T33 = draw(4, 6, 3, 3)
POOL = {"kernel_shape": [3, 3], "strides": [2, 2]}
SHAPE_OPS: List[Node] = [
    ("Shape", ["x"], {}),
    ("Gather", ["t0", "zero"], {"axis": 0}),
    ("Unsqueeze", ["t1", "axes"], {}),
    ("Concat", ["t2", "rest"], {"axis": 0}),
    ("Reshape", ["x", "t3"], {}),
]
"""The nodes that PyTorch writes for x.view(x.size(0), -1)."""
SHUFFLE: List[Node] = [
    ("Reshape", ["x", "split"], {}),
    ("Transpose", ["t0"], {"perm": [0, 2, 1, 3, 4]}),
    ("Reshape", ["t1", "join"], {}),
]
SPLIT_AGAIN: List[Node] = [
    ("Reshape", ["x", "joined"], {}),
    ("Shape", ["x"], {}),
    ("Gather", ["t1", "two"], {"axis": 0}),
    ("Concat", ["front", "t2", "back"], {"axis": 0}),
    ("Reshape", ["t0", "t3"], {}),
]
"""Joins channels and height (n, 4, h, 5), which is open, and splits them."""
SPLIT_CHANNELS: List[Node] = [
    ("Shape", ["x"], {}),
    ("Gather", ["t0", "sides"], {"axis": 0}),
    ("Concat", ["front", "t1"], {"axis": 0}),
    ("Reshape", ["x", "t2"], {}),
]
COMPUTED: List[Node] = [
    ("MaxPool", ["x"], {"kernel_shape": [2, 2], "strides": [2, 2]}),
    ("Shape", ["x"], {}),
    ("Slice", ["t1", "two", "four"], {}),
    ("Div", ["t2", "twos"], {}),
    ("Gather", ["t1", "one"], {}),
    ("Div", ["t4", "two"], {}),
    ("Slice", ["t1", "zero", "one"], {}),
    ("Concat", ["t6", "two", "t5", "t3"], {"axis": 0}),
    ("Reshape", ["t0", "t7"], {}),
    ("Transpose", ["t8"], {"perm": [0, 2, 1, 3, 4]}),
    ("Concat", ["t6", "t4", "t3"], {"axis": 0}),
    ("Reshape", ["t9", "t10"], {}),
    ("Shape", ["t11"], {}),
    ("Gather", ["t12", "one"], {}),
    ("Div", ["t13", "two"], {}),
    ("Slice", ["t11", "zero", "t14", "one"], {}),
    ("Shape", ["t15"], {}),
    ("Gather", ["t16", "one"], {}),
    ("Div", ["t17", "two"], {}),
    ("Concat", ["t6", "t18", "rest"], {"axis": 0}),
    ("Reshape", ["t15", "t19"], {}),
]
"""Channel shuffle with open sizes, and then half of the channels, twice: each shape is computed from the one before."""
RESIZE = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
LINEAR = {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}


def resize(dims: Sequence[Any] = IMAGE, opset: int = 17, scales=None, sizes=None, **attributes):
    constants = {"scales": np.array(scales, np.float32)} if scales else {"sizes": ints(*sizes)}
    return case("Resize", "x,,scales" if scales else "x,,,sizes", dims, opset, constants, **attributes)


CASES = {
    "Conv": conv(W33),
    "Conv without bias": conv(W33, bias=False, pads=[1, 1, 1, 1], strides=[2, 1], kernel_shape=[3, 3]),
    "Conv groups": conv(draw(6, 2, 3, 3), group=2, dilations=[2, 1], pads=[2, 1, 2, 1]),
    "Conv other pads": conv(W33, pads=[0, 1, 2, 0], strides=[2, 2]),
    "Conv VALID": conv(W33, auto_pad="VALID", strides=[2, 1]),
    "Conv SAME_UPPER": conv(draw(6, 4, 2, 3), auto_pad="SAME_UPPER"),
    "Conv SAME_LOWER": conv(draw(6, 4, 4, 3), auto_pad="SAME_LOWER"),
    "Conv SAME_UPPER strides": conv(W33, ("n", 4, 8, 9), auto_pad="SAME_UPPER", strides=[2, 2]),
    "Conv SAME_LOWER strides": conv(draw(6, 4, 2, 5), ("n", 4, 8, 9), auto_pad="SAME_LOWER", strides=[2, 3]),
    "Conv 1 axis": conv(draw(6, 4, 3), ("n", 4, "h"), pads=[2, 1]),
    "Conv 3 axes": conv(draw(6, 4, 2, 3, 1), ("n", 4, 5, "h", "w"), pads=[1, 1, 0, 0, 1, 0]),
    "ConvTranspose": deconv(T33, strides=[2, 2], pads=[1, 1, 1, 1], output_padding=[1, 1]),
    "ConvTranspose groups": deconv(draw(4, 2, 3, 3), group=2, strides=[2, 1], pads=[0, 1, 0, 1]),
    "ConvTranspose dilations": deconv(T33, dilations=[2, 2]),
    "ConvTranspose other pads": deconv(T33, strides=[2, 2], pads=[0, 1, 1, 2]),
    "ConvTranspose SAME_UPPER": deconv(T33, strides=[2, 2], auto_pad="SAME_UPPER"),
    "ConvTranspose SAME_LOWER": deconv(draw(4, 6, 4, 4), strides=[3, 3], auto_pad="SAME_LOWER"),
    "Gemm": case("Gemm", "x,w,b", MATRIX, constants={"w": draw(4, 5), "b": draw(5)}),
    "Gemm transB": case("Gemm", "x,w,b", MATRIX, constants={"w": draw(5, 4), "b": draw(1, 5)}, transB=1),
    "Gemm alpha": case(
        "Gemm", "x,w,b", MATRIX, constants={"w": draw(5, 4), "b": draw(1)}, transB=1, alpha=0.3, beta=-2.0
    ),
    "Gemm transA": case("Gemm", "x,w", (4, "n"), constants={"w": draw(4, 5)}, transA=1),
    "MatMul": case("MatMul", "x,w", ("n", "h", 4), constants={"w": draw(4, 5)}),
    "MatMul of tensors": (
        [("Transpose", ["x"], {"perm": [0, 1, 3, 2]}), ("MatMul", ["x", "t0"], {})],
        {},
        ("n", 4, 5, 5),
        17,
    ),
    "MatMul of matrices": ([("Transpose", ["x"], {}), ("MatMul", ["t0", "x"], {})], {}, MATRIX, 17),
    "MatMul and bias": (
        [("MatMul", ["x", "w"], {}), ("Add", ["b", "t0"], {})],
        {"w": draw(4, 5), "b": draw(5)},
        ("n", "h", 4),
        17,
    ),
    "Conv and bias": (
        [("Conv", ["x", "w"], {}), ("Add", ["t0", "b"], {})],
        {"w": W33, "b": draw(6, 1, 1)},
        IMAGE,
        17,
    ),
    "Conv and sum": (
        [("Conv", ["x", "w"], {"pads": [1, 1, 1, 1]}), ("Add", ["t0", "b"], {})],
        {"w": W33, "b": draw(1, 6, 1, 1)},
        IMAGE,
        17,
    ),
    "Conv and map": (
        [("Conv", ["x", "w"], {"pads": [1, 1, 1, 1]}), ("Add", ["t0", "b"], {})],
        {"w": W33, "b": draw(7, 7)},
        ("n", 4, 7, 7),
        17,
    ),
    "BatchNormalization": norm(epsilon=1e-3),
    "BatchNormalization default": norm(),
    "BatchNormalization 7": norm(opset=7, spatial=1),
    "BatchNormalization matrix": norm(dims=MATRIX),
    "InstanceNormalization": case(
        "InstanceNormalization", "x,s,b", constants={"s": draw(4), "b": draw(4)}, epsilon=1e-3
    ),
    "LayerNormalization": case(
        "LayerNormalization", "x,s,b", ("n", "h", 4), constants={"s": draw(4), "b": draw(4)}, epsilon=1e-4
    ),
    "LayerNormalization without bias": case("LayerNormalization", "x,s", ("n", "h", 4), constants={"s": draw(4)}),
    "LRN": case("LRN", size=3, alpha=0.2, beta=0.5, bias=2.0),
    "LRN default": case("LRN", size=3),
    "MaxPool": case("MaxPool", pads=[1, 1, 1, 1], **POOL),
    "MaxPool ceil": case("MaxPool", ceil_mode=1, pads=[1, 0, 1, 0], **POOL),
    "MaxPool other pads": case("MaxPool", pads=[0, 1, 1, 2], **POOL),
    "MaxPool SAME_UPPER": case("MaxPool", dims=("n", 4, 8, 9), auto_pad="SAME_UPPER", **POOL),
    "MaxPool 1 axis": case("MaxPool", dims=("n", 4, "h"), kernel_shape=[2], pads=[0, 1]),
    "AveragePool": case("AveragePool", pads=[1, 1, 1, 1], **POOL),
    "AveragePool counted": case("AveragePool", pads=[1, 1, 1, 1], count_include_pad=1, **POOL),
    "AveragePool ceil": case("AveragePool", ceil_mode=1, pads=[1, 1, 1, 1], **POOL),
    "AveragePool ceil counted": case("AveragePool", ceil_mode=1, pads=[1, 0, 1, 0], count_include_pad=1, **POOL),
    "AveragePool ceil without pads": case("AveragePool", ceil_mode=1, count_include_pad=1, **POOL),
    "AveragePool other pads": case("AveragePool", pads=[0, 1, 1, 2], **POOL),
    "AveragePool other pads counted": case("AveragePool", pads=[0, 1, 1, 2], count_include_pad=1, **POOL),
    "AveragePool SAME_LOWER": case("AveragePool", auto_pad="SAME_LOWER", kernel_shape=[2, 3]),
    "GlobalAveragePool": case("GlobalAveragePool"),
    "GlobalMaxPool": case("GlobalMaxPool"),
    **{op: case(op) for op in ("Relu", "Sigmoid", "Softplus", "Softsign", "Tanh", "Exp", "Abs", "Neg", "Erf")},
    **{op: case(op) for op in ("Floor", "Ceil", "Sin", "Cos", "Sign", "Reciprocal", "HardSwish")},
    **{op: ([("Abs", ["x"], {}), (op, ["t0"], {})], {}, IMAGE, 17) for op in ("Log", "Sqrt")},
    "LeakyRelu": case("LeakyRelu", alpha=0.3),
    "LeakyRelu default": case("LeakyRelu"),
    "Elu": case("Elu", alpha=0.7),
    "Elu default": case("Elu"),
    "Selu": case("Selu"),
    "Selu arguments": case("Selu", alpha=1.5, gamma=0.7),
    "PRelu": case("PRelu", "x,s", constants={"s": draw(4, 1, 1)}),
    "PRelu one slope": case("PRelu", "x,s", constants={"s": draw(1)}),
    "PRelu matrix": case("PRelu", "x,s", MATRIX, constants={"s": draw(4)}),
    "HardSigmoid": case("HardSigmoid", alpha=0.3, beta=0.4),
    "HardSigmoid default": case("HardSigmoid"),
    "Gelu": case("Gelu", opset=20),
    "Gelu tanh": case("Gelu", opset=20, approximate="tanh"),
    "Mish": case("Mish", opset=18),
    "Clip": case("Clip", "x,a,b", constants={"a": one(-0.2), "b": one(0.5)}),
    "Clip below": case("Clip", "x,a", constants={"a": one(0.1)}),
    "Clip above": case("Clip", "x,,b", constants={"b": one(0.1)}),
    "Clip 6": case("Clip", opset=7, min=-0.2, max=0.5),
    "Clip 6 below": case("Clip", opset=7, min=-0.2),
    **{f"{op} number": case(op, "x,a", constants={"a": one(1.7)}) for op in ("Add", "Sub", "Mul", "Div", "Max", "Min")},
    **{f"{op} of a number": case(op, "a,x", constants={"a": one(1.7)}) for op in ("Add", "Sub", "Mul", "Div", "Min")},
    **{f"{op} channels": case(op, "x,a", constants={"a": draw(4, 1, 1)}) for op in ("Add", "Sub", "Mul", "Div", "Max")},
    **{f"{op} of channels": case(op, "a,x", constants={"a": draw(1, 4, 1, 1)}) for op in ("Sub", "Div")},
    **{f"{op} tensors": ([("Exp", ["x"], {}), (op, ["x", "t0"], {})], {}, IMAGE, 17) for op in ("Add", "Sub", "Div")},
    **{f"{op} of x and x": case(op, "x,x") for op in ("Add", "Mul")},
    "Mul broadcast": ([("GlobalAveragePool", ["x"], {}), ("Mul", ["x", "t0"], {})], {}, IMAGE, 17),
    "Add of other ranks": (
        [("ReduceMean", ["x"], {"axes": [1], "keepdims": 0}), ("Add", ["x", "t0"], {})],
        {},
        (1, 4, "h", "w"),
        17,
    ),
    "Pow": case("Pow", "x,a", constants={"a": one(2)}),
    "Pow of a number": case("Pow", "a,x", constants={"a": one(2)}),
    "Sum": ([("Exp", ["x"], {}), ("Abs", ["x"], {}), ("Sum", ["x", "t0", "t1"], {})], {}, IMAGE, 17),
    "Sum of one": ([("Exp", ["x"], {}), ("Sum", ["t0"], {})], {}, IMAGE, 17),
    "Identity": ([("Exp", ["x"], {}), ("Identity", ["t0"], {})], {}, IMAGE, 17),
    "Mean": ([("Exp", ["x"], {}), ("Abs", ["x"], {}), ("Mean", ["x", "t0", "t1"], {})], {}, IMAGE, 17),
    "Max of three": ([("Exp", ["x"], {}), ("Max", ["x", "t0", "a"], {})], {"a": draw(4, 1, 1)}, IMAGE, 17),
    "Dropout": case("Dropout", "x,a", constants={"a": one(0.3)}),
    "Dropout 7": case("Dropout", opset=7, ratio=0.3),
    "Softmax": case("Softmax"),
    "Softmax axis": case("Softmax", axis=1),
    "LogSoftmax": case("LogSoftmax", axis=-2),
    "Softmax 11": case("Softmax", dims=MATRIX, opset=11),
    "Softmax 11 axis": case("Softmax", opset=11, axis=3),
    "Concat": ([("Exp", ["x"], {}), ("Concat", ["x", "t0"], {"axis": 1})], {}, IMAGE, 17),
    "Concat of 16 channels": case("Concat", "x,x", dims=(1, 16, "h", "w"), axis=1),
    "Concat from the end": ([("Exp", ["x"], {}), ("Concat", ["x", "t0"], {"axis": -1})], {}, IMAGE, 17),
    "Flatten": case("Flatten"),
    "Flatten axis": case("Flatten", axis=-3),
    "Reshape": case("Reshape", "x,s", constants={"s": ints(0, -1)}),
    "Reshape fixed batch": case("Reshape", "x,s", (1, 4, 3, 5), constants={"s": ints(1, 12, 5)}),
    "Reshape fixed batch rest": case("Reshape", "x,s", (1, 4, 3, 5), constants={"s": ints(1, -1)}),
    "Reshape all": case("Reshape", "x,s", constants={"s": ints(-1, 2)}),
    "Reshape open sizes": (SHAPE_OPS, {"zero": np.array(0), "axes": ints(0), "rest": ints(-1)}, IMAGE, 17),
    "Reshape open batch": (SHAPE_OPS, {"zero": np.array(0), "axes": ints(0), "rest": ints(60)}, ("n", 4, 3, 5), 17),
    "Reshape shuffle": (SHUFFLE, {"split": ints(1, 2, 2, 5, 7), "join": ints(1, 4, 5, 7)}, (1, 4, 5, 7), 17),
    "Reshape unknown size": case("Reshape", "x,s", ("n", 4, 3, -1), constants={"s": ints(0, 6, -1)}),
    "Reshape two sizes": case("Reshape", "x,s", (1, 2, 6, 5), constants={"s": ints(1, 3, 4, 5)}),
    "Reshape open split": (
        SPLIT_AGAIN,
        {"joined": ints(0, -1, 5), "two": ints(2), "front": ints(0, 4), "back": ints(5)},
        ("n", 4, "h", 5),
        17,
    ),
    "Reshape open split in three": (
        SPLIT_AGAIN,
        {"joined": ints(0, -1, 5), "two": ints(2), "front": ints(0, 2, 2), "back": ints(5)},
        ("n", 4, "h", 5),
        17,
    ),
    "Reshape computed sizes": (
        COMPUTED,
        {"zero": ints(0), "one": ints(1), "two": ints(2), "four": ints(4), "twos": ints(2, 2), "rest": ints(-1)},
        IMAGE,
        17,
    ),
    "Reshape split channels": (SPLIT_CHANNELS, {"sides": ints(2, 3), "front": ints(0, 2, 2)}, IMAGE, 17),
    "Squeeze": ([("GlobalAveragePool", ["x"], {}), ("Squeeze", ["t0", "a"], {})], {"a": ints(2, -1)}, IMAGE, 17),
    "Squeeze 11": ([("GlobalAveragePool", ["x"], {}), ("Squeeze", ["t0"], {"axes": [2, 3]})], {}, IMAGE, 11),
    "Unsqueeze": case("Unsqueeze", "x,a", MATRIX, constants={"a": ints(-1, 1)}),
    "Unsqueeze 11": case("Unsqueeze", dims=MATRIX, opset=11, axes=[2, 3]),
    "Transpose": case("Transpose", perm=[0, 2, 3, 1]),
    "Transpose default": case("Transpose", dims=("h", "w")),
    "Pad": case("Pad", "x,p,v", constants={"p": ints(0, 0, 1, 2, 0, 0, 3, 0), "v": one(0.5)}),
    "Pad edge": case("Pad", "x,p", constants={"p": ints(0, 0, 1, 2, 0, 0, 3, 0)}, mode="edge"),
    "Pad reflect": case("Pad", "x,p", constants={"p": ints(0, 0, 1, 2, 0, 0, 2, 1)}, mode="reflect"),
    "Pad axes": case("Pad", "x,p,,a", opset=18, constants={"p": ints(1, 2, 3, 0), "a": ints(-1, 2)}),
    "Pad 1 axis": case("Pad", "x,p", ("n", 4, "h"), constants={"p": ints(0, 0, 1, 0, 0, 2)}),
    "Pad 2": case("Pad", opset=10, pads=[0, 0, 1, 0, 0, 0, 0, 2], value=0.5),
    "Slice": case("Slice", "x,s,e,a", constants={"s": ints(1, 1), "e": ints(3, -1), "a": ints(1, 3)}),
    "Slice step": case(
        "Slice",
        "x,s,e,a,p",
        constants={"s": ints(1, 0), "e": ints(2**62, 2**31 - 1), "a": ints(2, -1), "p": ints(2, 2)},
    ),
    "Slice beyond": case("Slice", "x,s,e,a", constants={"s": ints(-9), "e": ints(7), "a": ints(1)}),
    "Slice all": case("Slice", "x,s,e", MATRIX, constants={"s": ints(0, 1), "e": ints(2**40, 9)}),
    "Slice 9": case("Slice", opset=9, starts=[1], ends=[3], axes=[2]),
    "Gather": case("Gather", "x,i", constants={"i": np.array(2)}, axis=1),
    "Gather last": case("Gather", "x,i", constants={"i": np.array(-1)}, axis=2),
    "DepthToSpace": case("DepthToSpace", blocksize=2),
    "DepthToSpace CRD": case("DepthToSpace", blocksize=2, mode="CRD"),
    "SpaceToDepth": case("SpaceToDepth", dims=("n", 4, 6, 8), blocksize=2),
    "ReduceMean": case("ReduceMean", axes=[2, -1]),
    "ReduceMean 18": case("ReduceMean", "x,a", opset=18, constants={"a": ints(2, 3)}, keepdims=0),
    "ReduceSum": case("ReduceSum", "x,a", constants={"a": ints(1)}),
    "ReduceSum of nothing": ([("Exp", ["x"], {}), ("ReduceSum", ["t0"], {"noop_with_empty_axes": 1})], {}, IMAGE, 17),
    "ReduceMax": case("ReduceMax", axes=[1], keepdims=0),
    "ReduceMin": case("ReduceMin", axes=[1]),
    "ReduceProd": case("ReduceProd", axes=[1]),
    "Resize": resize(scales=[1, 1, 2, 2], **RESIZE),
    "Resize other scales": resize(scales=[1, 1, 3, 2], **RESIZE),
    "Resize half pixel": resize(scales=[1, 1, 3, 3], mode="nearest"),
    "Resize sizes": resize((1, 4, 5, 6), sizes=[1, 4, 10, 12], mode="nearest"),
    "Resize linear": resize(scales=[1, 1, 2, 3], **LINEAR),
    "Resize linear sizes": resize((1, 4, 5, 6), sizes=[1, 4, 8, 9], **LINEAR),
    "Resize linear scales": resize(("n", 4, 6, 8), scales=[1, 1, 1.5, 0.5], **LINEAR),
    "Resize aligned": resize(
        (1, 4, 5, 6), sizes=[1, 4, 8, 9], mode="linear", coordinate_transformation_mode="align_corners"
    ),
    "Resize 10": case("Resize", "x,s", opset=10, constants={"s": np.array([1, 1, 2, 2], np.float32)}),
    "Upsample": case("Upsample", "x,s", opset=9, constants={"s": np.array([1, 1, 2, 2], np.float32)}),
    "Upsample 7": case("Upsample", opset=7, scales=[1.0, 1.0, 2.0, 3.0]),
    "Split": ([("Split", ["x"], {"axis": 1})], {}, IMAGE, 17, 2),
    "Split sizes": ([("Split", ["x", "s"], {"axis": -3})], {"s": ints(1, 3)}, IMAGE, 13, 2),
    "Split 11": ([("Split", ["x"], {"axis": 1, "split": [1, 1, 2]})], {}, IMAGE, 11, 3),
    "Split 18": ([("Split", ["x"], {"axis": 1, "num_outputs": 3})], {}, ("n", 5, "h", "w"), 18, 3),
    "Cast": ([("Cast", ["x"], {"to": 11}), ("Cast", ["t0"], {"to": 1}), ("Exp", ["t1"], {})], {}, IMAGE, 17),
    "folded": (
        [
            ("Constant", [], {"value": numpy_helper.from_array(draw(2, 12))}),
            ("Transpose", ["t0"], {"perm": [1, 0]}),
            ("Reshape", ["t1", "s"], {}),
            ("Slice", ["t2", "begin", "end"], {}),
            ("Mul", ["t3", "half"], {}),
            ("Sqrt", ["four"], {}),
            ("Div", ["t4", "t5"], {}),
            ("Concat", ["t6", "t6"], {"axis": 1}),
            ("Cast", ["t7"], {"to": 1}),
            ("MatMul", ["x", "t8"], {}),
        ],
        {"s": ints(0, -1), "begin": ints(3), "end": ints(7), "half": one(0.5), "four": one(4)},
        MATRIX,
        17,
    ),
    "filled": (
        [
            ("ConstantOfShape", ["s"], {"value": numpy_helper.from_array(np.array([2.5], np.float32))}),
            ("Squeeze", ["t0", "axes"], {}),
            ("Identity", ["t1"], {}),
            ("Sub", ["t2", "half"], {}),
            ("Add", ["t3", "half"], {}),
            ("Mul", ["x", "t4"], {}),
        ],
        {"s": ints(1, 4), "axes": ints(0), "half": one(0.5)},
        MATRIX,
        17,
    ),
}
SIZES = ({"n": 1, "h": 7, "w": 8, -1: 8}, {"n": 3, "h": 9, "w": 6, -1: 6})


def convert(tmp_path: Any, model: ModelProto) -> Any:
    save(model, str(tmp_path / "x.onnx"))
    return convert_file(str(tmp_path / "x.onnx"))


@pytest.mark.parametrize("name", CASES)
def test_operator_computes_as_onnxruntime(tmp_path: Any, name: str) -> None:
    nodes, constants, dims, opset, *rest = CASES[name]
    model = make_model(nodes, constants, dims, opset, *rest)
    converted = convert(tmp_path, model)
    symbol = mx.sym.load_json(converted.text)
    for sizes in SIZES:
        shape = [sizes.get(dim, dim) for dim in dims]
        session = onnxruntime.InferenceSession(model.SerializeToString())
        expected = session.run(None, {"x": (x := draw(*shape))})
        found = evaluate(symbol, {**converted.arrays, "data": x})
        for ours, theirs in zip(found, expected):
            assert ours.shape == theirs.shape
            assert relative_error(ours, theirs) < 2e-6


FIXED = [name for name, (_, _, dims, *_) in CASES.items() if list(dims[:1]) == [1] and "h" not in dims]


@pytest.mark.parametrize("name", FIXED)
def test_fixed_batch_size_of_the_file_does_not_matter(tmp_path: Any, name: str) -> None:
    nodes, constants, dims, opset = CASES[name]
    converted = convert(tmp_path, make_model(nodes, constants, dims, opset))
    symbol = mx.sym.load_json(converted.text)
    x = draw(3, *dims[1:])
    whole = evaluate(symbol, {**converted.arrays, "data": x})[0]
    singly = [evaluate(symbol, {**converted.arrays, "data": x[row : row + 1]})[0] for row in range(3)]
    np.testing.assert_array_equal(whole, np.concatenate(singly))


@pytest.mark.parametrize(
    "dims, axis, is_whole",
    [
        ((1, 4, 6, 6), 1, False),
        ((1, 24, 6, 6), 1, False),
        ((1, 16, 6, 6), 1, True),
        ((1, 4, 6, 6), 0, True),
        ((1, 4, 6, 6), 2, True),
        ((1, 4), 1, True),
    ],
)
def test_channels_are_joined_by_onednn_only_in_whole_blocks(
    tmp_path: Any, dims: Any, axis: int, is_whole: bool
) -> None:
    """Its gradient of other parts fails, see `BLOCK`."""
    nodes, constants, dims, opset = case("Concat", "x,x", dims=dims, axis=axis)
    text = convert(tmp_path, make_model(nodes, constants, dims, opset)).text
    assert [node["op"] for node in json.loads(text)["nodes"]].count("expand_dims") == (0 if is_whole else 2)


def test_copies_of_an_array_of_the_file_train_by_themselves(tmp_path: Any) -> None:
    nodes = [("Identity", ["a"], {}), ("Exp", ["x"], {}), ("Add", ["t1", "a"], {}), ("Add", ["t2", "t0"], {})]
    nodes += [("Add", ["t3", "a"], {}), ("Constant", [], {"value_floats": [1.0] * 6}), ("Identity", ["t5"], {})]
    nodes.append(("Add", ["t4", "t6"], {}))
    model = make_model(nodes, {"a": draw(4, 1, 1)}, (1, 4, 6, 6), 17)
    converted = convert(tmp_path, model)
    variables = [node for node in json.loads(converted.text)["nodes"] if node["name"] in converted.arrays]
    assert ["__lr_mult__" in node["attrs"] for node in variables] == [False, False, True]


def test_every_operator_is_tested() -> None:
    tested = {op for nodes, *_ in CASES.values() for op, *_ in nodes}
    assert tested >= {*CONVERTERS, *FOLDED}


NUMBERS = {"s": draw(4), "b": draw(4)}
REFUSED = {
    "dilations=[2, 2]": case("MaxPool", kernel_shape=[2, 2], dilations=[2, 2]),
    "its last window may hold padding only": case(
        "MaxPool", kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1, pads=[1] * 4
    ),
    "other pads before than behind": case("AveragePool", ceil_mode=1, pads=[0, 0, 1, 1], **POOL),
    "an image of the open size h": conv(W33, auto_pad="SAME_UPPER", strides=[2, 2]),
    "output_shape=[9, 9]": deconv(T33, output_shape=[9, 9]),
    "kernel_shape=[2, 2]": conv(W33, kernel_shape=[2, 2]),
    "group": conv(draw(6, 2, 3, 3), group=2, pads=[-1, 0, 0, 0]),
    "that depends on the images": case("Conv", "x,x"),
    "spatial=0": norm(opset=7, spatial=0),
    "not one for each channel": case("PRelu", "x,s", ("n", 4, 3, 3), constants={"s": draw(3, 3)}),
    "axis=1 of 4 axes in version 11": case("Softmax", opset=11),
    "axis=2": case("Flatten", axis=2),
    "MXNet normalises over one axis": case(
        "LayerNormalization", "x,s", ("n", 4, 4), constants={"s": draw(4, 4)}, axis=1
    ),
    "no axes": ([("GlobalAveragePool", ["x"], {}), ("Squeeze", ["t0"], {})], {}, IMAGE, 17),
    "mixes the images of a batch": case("ReduceMean"),
    "mixes the images": case("ReduceMean", axes=[0]),
    "mode=cubic": resize(scales=[1, 1, 2, 2], mode="cubic"),
    "no multiples": resize((1, 4, 5, 6), sizes=[1, 4, 8, 9], mode="nearest"),
    "mode=linear with coordinate_transformation_mode=asymmetric": resize(
        scales=[1, 1, 2, 2], mode="linear", coordinate_transformation_mode="asymmetric"
    ),
    "gives no whole size": resize(("n", 4, 5, 6), scales=[1, 1, 1.5, 1.5], **LINEAR),
    "antialias=1": resize(opset=18, scales=[1, 1, 2, 2], antialias=1, **LINEAR),
    "scales=[1.0, 2.0, 2.0, 2.0]": resize(scales=[1, 2, 2, 2], **RESIZE),
    "only images are padded": case("Pad", "x,p", constants={"p": ints(0, 1, 0, 0, 0, 0, 0, 0)}),
    "by no negative widths": case("Pad", "x,p", constants={"p": ints(0, 0, -1, 0, 0, 0, 0, 0)}),
    "mode=wrap": case("Pad", "x,p", opset=19, constants={"p": ints(0, 0, 1, 0, 0, 0, 0, 0)}, mode="wrap"),
    "steps=-1": case("Slice", "x,s,e,a,p", constants={"s": ints(-1), "e": ints(-99), "a": ints(1), "p": ints(-1)}),
    "has 2 indices": case("Gather", "x,i", constants={"i": ints(0, 1)}, axis=1),
    "to=7": case("Cast", to=7),
    "allowzero=1": case("Reshape", "x,s", constants={"s": ints(0, 4)}, allowzero=1),
    "size=2": case("LRN", size=2),
    "multiplies the shapes": (
        [("MatMul", ["x", "w"], {}), ("MatMul", ["w3", "t0"], {})],
        {"w": draw(4, 5), "w3": draw(1, 5, 4)},
        ("n", 4, 4),
        17,
    ),
    "a weight of the shape (2, 4, 5)": case("MatMul", "x,w", (2, 3, 4), constants={"w": draw(2, 4, 5)}),
    "a bias of the shape (3, 5)": case("Gemm", "x,w,b", (3, 4), constants={"w": draw(4, 5), "b": draw(3, 5)}),
    "the open sizes": (
        [("Shape", ["x"], {}), ("Gather", ["t0", "i"], {}), ("Reshape", ["x", "t1"], {})],
        {"i": ints(3, 2, 1, 0)},
        IMAGE,
        17,
    ),
    "depends on the images or their size": (
        [("Shape", ["x"], {}), ("Cast", ["t0"], {"to": 1}), ("Gather", ["t1", "i"], {}), ("Mul", ["x", "t2"], {})],
        {"i": ints(3)},
        IMAGE,
        17,
    ),
    "'t0' that depends on the images or their size": (
        [("Shape", ["x"], {"end": 1}), ("ConstantOfShape", ["t0"], {}), ("Mul", ["x", "t1"], {})],
        {},
        IMAGE,
        17,
    ),
    "the open sizes w, h": (
        [("Shape", ["x"], {}), ("Gather", ["t0", "i"], {}), ("Reshape", ["x", "t1"], {})],
        {"i": ints(0, 1, 2, 4, 3)},
        ("n", 4, 2, "h", "w"),
        17,
    ),
    "round_mode=up": (
        [("Shape", ["x"], {}), ("Cast", ["t0"], {"to": 7, "round_mode": "up"}), ("Reshape", ["x", "t1"], {})],
        {},
        IMAGE,
        24,
    ),
    "has an index beyond 4": (
        [("Shape", ["x"], {}), ("Gather", ["t0", "i"], {}), ("Reshape", ["x", "t1"], {})],
        {"i": ints(9)},
        IMAGE,
        17,
    ),
}


@pytest.mark.parametrize("words", REFUSED)
def test_form_without_conversion_is_refused(tmp_path: Any, words: str) -> None:
    nodes, constants, dims, opset, *rest = REFUSED[words]
    with pytest.raises(RefusedOnnx) as raised:
        convert(tmp_path, make_model(nodes, constants, dims, opset, *rest))
    assert "the node 'node" in str(raised.value) and words in str(raised.value).replace("pads=[-1", "group pads=[-1")


def test_indices_of_maxima_are_refused(tmp_path: Any) -> None:
    model = make_model([("MaxPool", ["x"], {"kernel_shape": [2, 2]})], {}, IMAGE, 17, outputs=2)
    with pytest.raises(RefusedOnnx, match="has the output 'y1', which is read"):
        convert(tmp_path, model)


@pytest.mark.parametrize("dims, is_fixed", [(("n", 4, 8, 9), True), (IMAGE, False)])
def test_size_of_images_is_noted(tmp_path: Any, dims: Any, is_fixed: bool) -> None:
    attributes = {"strides": [2, 2]} if is_fixed else {}
    converted = convert(tmp_path, make_model(*conv(W33, dims, auto_pad="SAME_UPPER", **attributes)))
    assert is_flagged(converted.graph, FIXED_KEY) == is_fixed
