"""Quantizes exported networks: int8 arithmetic with onnxruntime's tools, or weights stored in 16 bits.

int8, static            for convolutional networks: Conv, Gemm, MatMul in int8 (QDQ), activation ranges from samples
int8, dynamic           for others: MatMul, Gemm in int8, activation ranges computed at run time
                        both: embedding tables in int8 with one scale per row
float16, bfloat16       weights are stored in 16 bits, and cast to float32 when the file is loaded

Weights have 7 bits (`reduce_range`) on all machines: without VNNI, sums of two products in 16 bits overflow with 8 bits
(largest error of the logits 0.27, with 7 bits 0.055), and the processor that exports is not the one that serves.
Operators are named one by one, because onnxruntime's default also quantizes normalisation, softmax and box decoding.
"""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Iterable, Iterator, List, Mapping, Sequence, Set

import numpy as np

from mxtrain.errors import ConfigError
from mxtrain.exporting.graph import IR_VERSION, OPSET

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

STATIC, DYNAMIC = "static", "dynamic"
CONVOLUTIONS = ("Conv", "ConvTranspose")
PRODUCTS = ("MatMul", "Gemm")
BETWEEN = ("Add", "Concat", "MaxPool", "AveragePool", "GlobalAveragePool", "Relu", "Clip")
"""Operators that onnxruntime computes in int8, so that nothing becomes float32 between two convolutions."""
MIN_TABLE_SIZE, MIN_WEIGHT_SIZE = 4096, 256
"""Smallest number of elements of an embedding table or weight that is quantized."""
PLAIN = ("", "ai.onnx")
MAX_FLOAT16 = 65504.0
Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Way:
    """The kind of int8 quantization for a graph.

    Attributes:
        name: "static" or "dynamic".
        reason: numbers of operators that decided it, for people.
    """

    name: str
    reason: str


class _Roles:
    """Classifies tensors and operators of a graph: constants, operators with weights, and what depends on them."""

    def __init__(self, model: ModelProto):
        self.constants = {tensor.name for tensor in model.graph.initializer}
        self.weighted: List[NodeProto] = []
        computed: Set[str] = set()
        for node in model.graph.node:
            if node.op_type == "Constant":
                self.constants.update(node.output)
            elif node.input and set(node.input) <= self.constants | {""}:
                self.constants.update(node.output)
            # Products of two computed matrices, as in attention, have no weights to store in int8.
            is_weighted = node.op_type in (*CONVOLUTIONS, *PRODUCTS) and node.input[1] in self.constants
            if is_weighted:
                self.weighted.append(node)
            if is_weighted or computed.intersection(node.input):
                computed.update(node.output)
        self.after = computed
        """Tensors that depend on the output of a weighted operator."""
        needed: Set[str] = set()
        for node in reversed(model.graph.node):
            if needed.intersection(node.output) or any(node is weighted for weighted in self.weighted):
                needed.update(node.input)
        self.before = needed
        """Tensors that a weighted operator reads, directly or through other operators."""
        self.attentions = sum(
            node.op_type == "MatMul" and not self.constants.intersection(node.input) for node in model.graph.node
        )


def choose_way(model: ModelProto) -> Way:
    """Chooses static quantization for convolutional networks, and dynamic for all others.

    The activation ranges of transformers differ between texts. Convolutions with dynamic ranges are slower than in
    float32.
    """
    roles = _Roles(model)
    counts = Counter(node.op_type for node in roles.weighted)
    convolutions, products = (sum(counts[op] for op in ops) for ops in (CONVOLUTIONS, PRODUCTS))
    text = f"{convolutions} convolutions, {products} matrix products with weights, {roles.attentions} without"
    if convolutions and (not roles.attentions or convolutions > products):
        return Way(STATIC, text)
    return Way(DYNAMIC, text)


def quantize_int8(source: Path, target: Path, samples: Iterable[Arrays], is_part: bool = False) -> Way:
    """Writes a network in int8; returns the kind of quantization that was chosen.

    Weights have 7 bits and one scale per channel. With 8 bits, processors without VNNI sum pairs of products in 16
    bits, which can overflow silently, so the file would compute other numbers on another machine.

    Args:
        source: an ONNX file.
        target: the file to write.
        samples: inputs by name, from which static quantization takes the ranges of activations.
        is_part: True for a part such as the step of a decoder, which has no samples: it is quantized dynamically, and
            stays float32 if it has nothing to quantize.

    Raises:
        ConfigError: the network has nothing to quantize.
    """
    import onnx
    from onnxruntime import quantization

    prepared = target.with_suffix(".prepared.onnx")
    _prepare(source, prepared)
    model = onnx.load(prepared)
    way, roles = choose_way(model), _Roles(model)
    way = Way(DYNAMIC, way.reason) if is_part else way
    if is_part and not roles.weighted and not list(_tables(model)):
        prepared.unlink()
        shutil.copyfile(source, target)
        return way
    if not roles.weighted and not list(_tables(model)):
        raise ConfigError("quantize=int8: this network has no convolutions, matrix products or tables. Leave it out.")
    common: Dict[str, Any] = {"per_channel": True, "reduce_range": True, "weight_type": quantization.QuantType.QInt8}
    if way.name == STATIC:
        quantization.quantize_static(
            str(prepared),
            str(target),
            _CalibrationReader(samples),
            nodes_to_quantize=nodes_in_int8(model),
            activation_type=quantization.QuantType.QUInt8,
            # Outputs of matrix products stay float32, because they are the logits.
            extra_options={"OpTypesToExcludeOutputQuantization": list(PRODUCTS)},
            **common,
        )
    else:
        quantization.quantize_dynamic(
            str(prepared),
            str(target),
            op_types_to_quantize=list(PRODUCTS),
            extra_options={"MatMulConstBOnly": True},
            **common,
        )
    prepared.unlink()
    model = onnx.load(target)
    _quantize_tables(model)
    save_plain(model, target)
    return way


def _prepare(source: Path, target: Path) -> None:
    """Folds batch norms and constants. Skips onnxruntime's optimisations if they add operators of its own domain."""
    import onnx
    from onnxruntime.quantization.shape_inference import quant_pre_process

    for skip in (False, True):
        quant_pre_process(str(source), str(target), skip_symbolic_shape=True, skip_optimization=skip)
        if all(node.domain in PLAIN for node in onnx.load(target, load_external_data=False).graph.node):
            return


def save_plain(model: ModelProto, target: Path) -> None:
    """Writes a model with the opset and IR version of all exports.

    Raises:
        ConfigError: the model has operators that are not ONNX's.
    """
    from onnx import helper

    foreign = {node.domain for node in model.graph.node} - set(PLAIN)
    if foreign:
        raise ConfigError(f"quantize: onnxruntime made operators of its own: {', '.join(sorted(foreign))}.")
    del model.opset_import[:]
    model.opset_import.append(helper.make_opsetid("", OPSET))
    model.ir_version = IR_VERSION
    target.write_bytes(model.SerializeToString())


def nodes_in_int8(model: ModelProto) -> List[str]:
    """Returns the names of the operators that static quantization computes in int8.

    These are operators with weights, and those of `BETWEEN` between two of them. Operators before the first one
    (normalisation) and after the last one (softmax, decoding of boxes) stay in float32.
    """
    roles = _Roles(model)
    weighted = {node.name for node in roles.weighted}

    def is_between(node: NodeProto) -> bool:
        read = [name for name in node.input if name and name not in roles.constants]
        is_read = roles.before.issuperset(node.output)
        operands = len(read) == len(node.input) or node.op_type not in ("Add", "Concat")
        return node.op_type in BETWEEN and operands and roles.after.issuperset(read) and is_read

    return [node.name for node in model.graph.node if node.name in weighted or is_between(node)]


class _CalibrationReader:
    """Passes samples to onnxruntime's calibration."""

    def __init__(self, samples: Iterable[Arrays]):
        self._samples = iter(samples)

    def get_next(self) -> Any:
        """Returns the next inputs by name; None after the last."""
        return next(self._samples, None)


def _tables(model: ModelProto) -> Iterator[Any]:
    """Yields the large float32 tables that are used only to look up rows by id."""
    readers: Dict[str, Set[str]] = {}
    for node in model.graph.node:
        axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
        for position, name in enumerate(node.input):
            is_lookup = node.op_type == "Gather" and position == 0 and axis == 0
            readers.setdefault(name, set()).add("lookup" if is_lookup else node.op_type)
    for tensor in model.graph.initializer:
        is_large = len(tensor.dims) == 2 and int(np.prod(tensor.dims)) >= MIN_TABLE_SIZE
        if is_large and tensor.data_type == 1 and readers.get(tensor.name) == {"lookup"}:
            yield tensor


def _quantize_tables(model: ModelProto) -> None:
    """Stores embedding tables in int8 with one scale per row, and dequantizes the rows after the lookup."""
    from onnx import TensorProto, helper, numpy_helper

    tables: Dict[str, str] = {}
    for tensor in list(_tables(model)):
        table_VE = numpy_helper.to_array(tensor)
        # onnxruntime would use one scale for a table. Without tables in int8, BERT-base has 0.4 of its size, with them
        # a quarter.
        scale_V1 = np.abs(table_VE).max(axis=1, keepdims=True) / 127.0
        # Rows of zeros, as of padding, have no range.
        scale_V1[scale_V1 == 0] = 1.0
        name = tensor.name
        model.graph.initializer.remove(tensor)
        model.graph.initializer.append(
            numpy_helper.from_array(np.rint(table_VE / scale_V1).astype(np.int8), f"{name}_int8")
        )
        model.graph.initializer.append(numpy_helper.from_array(scale_V1.astype(np.float32), f"{name}_scale"))
        tables[name] = f"{name}_scale"
    nodes: List[NodeProto] = []
    for node in model.graph.node:
        if node.op_type != "Gather" or node.input[0] not in tables:
            nodes.append(node)
            continue
        table, ids, out = node.input[0], node.input[1], node.output[0]
        row = f"row_of_{out}"  # onnxruntime already uses names like {out}_scale
        nodes += [
            helper.make_node("Gather", [f"{table}_int8", ids], [f"{row}_int8"], f"{row}_take", axis=0),
            helper.make_node("Cast", [f"{row}_int8"], [f"{row}_float"], f"{row}_cast", to=TensorProto.FLOAT),
            helper.make_node("Gather", [tables[table], ids], [f"{row}_scale"], f"{row}_take_scale", axis=0),
            helper.make_node("Mul", [f"{row}_float", f"{row}_scale"], [out], f"{row}_multiply"),
        ]
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def store_weights(model: ModelProto, dtype: str) -> None:
    """Stores the float32 weights of a model in 16 bits, and adds casts to float32.

    onnxruntime folds the casts when it loads the file, so the arithmetic stays float32.

    Args:
        model: the model; changed in place.
        dtype: "float16" or "bfloat16".

    Raises:
        ConfigError: a weight exceeds the range of float16.
    """
    from onnx import TensorProto, helper, numpy_helper

    casts = []
    for tensor in model.graph.initializer:
        if tensor.data_type != TensorProto.FLOAT or len(tensor.dims) < 2 or np.prod(tensor.dims) < MIN_WEIGHT_SIZE:
            continue
        array = numpy_helper.to_array(tensor)
        if dtype == "float16" and float(np.abs(array).max()) > MAX_FLOAT16:
            raise ConfigError(
                f"quantize=float16: {tensor.name} has a number of {float(np.abs(array).max()):.3g}, and float16 ends "
                f"at {MAX_FLOAT16:.0f}. Type quantize=bfloat16."
            )
        name, tensor.name = tensor.name, f"{tensor.name}_{dtype}"
        # A tensor may hold its numbers in either field, and must not hold both.
        tensor.ClearField("float_data")
        tensor.raw_data = (array.astype("<f2") if dtype == "float16" else to_bfloat16(array)).tobytes()
        tensor.data_type = TensorProto.FLOAT16 if dtype == "float16" else TensorProto.BFLOAT16
        casts.append(helper.make_node("Cast", [tensor.name], [name], f"{name}_float32", to=TensorProto.FLOAT))
    nodes = [*casts, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def to_bfloat16(array: np.ndarray) -> np.ndarray:
    """Rounds float32 numbers to bfloat16 (nearest, ties to even); returns the bits as uint16."""
    bits = np.ascontiguousarray(array, "<f4").view("<u4").astype(np.uint64)
    # Adding 0x7FFF plus the lowest bit that is kept rounds ties to even. uint64, since the sum may exceed 32 bits.
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def count_in_int8(model: ModelProto) -> Sequence[int]:
    """Returns the number of convolutions and matrix products in int8, and the number of all of them."""
    reads = {node.output[0]: node.op_type for node in model.graph.node}
    heavy = [node for node in model.graph.node if node.op_type in (*CONVOLUTIONS, *PRODUCTS)]
    # Static quantization keeps the operator between DequantizeLinear nodes, the dynamic one replaces it.
    integer = sum(node.op_type == "MatMulInteger" for node in model.graph.node)
    quantized = sum(all(reads.get(name) == "DequantizeLinear" for name in node.input[:2]) for node in heavy)
    return [quantized + integer, len(heavy) + integer]
