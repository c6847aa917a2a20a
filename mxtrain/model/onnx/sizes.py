"""Sizes that a file computes from the size of its input, such as targets of Reshape.

Sizes of the input may be open, and ONNX infers shapes through few operators. So each open size is tried with two
numbers: for each of them shapes are inferred, and operators of sizes are computed, until nothing new is found. A number
that is the same for both does not depend on the open sizes; others get a name.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Dict, Mapping, Tuple, Union

import numpy as np

from mxtrain.model.onnx.builder import KnownTensor, SymbolBuilder
from mxtrain.model.onnx.call import OnnxCall
from mxtrain.model.onnx.file import DOMAINS, OnnxContent, Shape, check_schema, shape_of
from mxtrain.model.onnx.operators import FOLDED
from mxtrain.model.onnx.refusals import DamagedOnnx, RefusedOnnx

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, ValueInfoProto

MAX_INFERRED_SIZE = 1024
"""Number of elements up to which constants take part in the inference of shapes: shapes and axes are small."""
MAX_ROUNDS = 200
"""Maximum number of inferences. Each of them reaches the next layer whose shape is computed from that of another."""
PROBES = ((3, 5), (7, 11), (224, 288), (320, 352), (256, 416))
"""Two sizes for each open dimension of the input: of the batch, of the channels, and of the image."""


def with_sizes(file: OnnxContent) -> OnnxContent:
    """Returns the content with shapes, and with the tensors that are computed from shapes.

    Raises:
        DamagedOnnx: operators do not fit together.
    """
    image = next(info for info in file.model.graph.input if info.name == file.input)
    light = _light(file.model)
    first, second = (_Probe(file, light, image, probe) for probe in range(len(PROBES[0])))
    names: Dict[Tuple[Union[int, str], ...], str] = {
        tuple(_probe(axis, probe) for probe in range(len(PROBES[0]))): size
        for axis, size in enumerate(file.input_shape)
        if isinstance(size, str)
    }

    def merged(pair: Tuple[Any, Any]) -> Union[int, str]:
        return pair[0] if pair[0] == pair[1] else names.setdefault(pair, f"size{len(names)}")

    shapes: Dict[str, Shape] = {}
    for name, sizes in first.shapes.items():
        others = second.shapes.get(name, ())
        if len(sizes) == len(others):
            shapes[name] = tuple(merged(pair) for pair in zip(sizes, others))
    shapes.update((tensor.name, tuple(tensor.dims)) for tensor in file.model.graph.initializer)
    known: Dict[str, np.ndarray] = {}
    for name, array in first.known.items():
        other = second.known.get(name)
        if other is None or array.shape != other.shape:
            continue
        if np.array_equal(array, other):
            known[name] = array
        else:
            named = [merged(pair) for pair in zip(array.reshape(-1).tolist(), other.reshape(-1).tolist())]
            known[name] = np.array(named, dtype=object).reshape(array.shape)
    return replace(file, shapes=shapes, known=known)


def _probe(axis: int, probe: int) -> int:
    return PROBES[min(axis, len(PROBES) - 1)][probe]


class _Probe:
    """Shapes and computed sizes for one number for each open size of the input.

    Attributes:
        shapes: shapes of tensors by name.
        known: small tensors that are computed from shapes and constants.

    Raises:
        DamagedOnnx: operators do not fit together.
    """

    def __init__(self, file: OnnxContent, light: ModelProto, image: ValueInfoProto, probe: int):
        self.file = file
        self.known: Dict[str, np.ndarray] = {}
        sizes = [size if isinstance(size, int) else _probe(axis, probe) for axis, size in enumerate(file.input_shape)]
        self.shapes = _inferred(light, image, sizes, self.known)
        if not any(node.op_type == "Shape" for node in file.nodes):
            return
        builder = SymbolBuilder(file)
        for _ in range(MAX_ROUNDS):
            builder.file = replace(file, shapes=self.shapes)
            if not self._compute(builder):
                break
            self.shapes = _inferred(light, image, sizes, self.known)

    def _compute(self, builder: SymbolBuilder) -> bool:
        """Computes operators of sizes; returns True if there was a new one."""
        before = len(self.known)
        for name in self.shapes:
            builder.values.setdefault(name, (0, 0))  # its shape is known, its value is not
        for node in self.file.nodes:
            if len(node.output) != 1 or node.output[0] in self.known or not _is_small(node, builder):
                continue
            check_schema(node, self.file)
            call = OnnxCall(builder, node, "")
            try:
                array = plain(FOLDED[node.op_type](call))
                call.refuse_unread()
            except RefusedOnnx:
                continue  # the conversion says so
            if array.dtype != object and array.size <= MAX_INFERRED_SIZE:
                self.known[node.output[0]] = array
                builder.values[node.output[0]] = KnownTensor(array)
        return len(self.known) > before


def plain(array: np.ndarray) -> np.ndarray:
    """Returns an array of objects as one of integers if no size in it is open."""
    if array.dtype == object and not any(isinstance(size, str) for size in array.reshape(-1)):
        return array.astype(np.int64)
    return array


def _is_small(node: NodeProto, builder: SymbolBuilder) -> bool:
    """Returns True for operators that are computed from shapes and from small known tensors."""
    if node.domain not in DOMAINS or node.op_type not in FOLDED:
        return False
    if node.op_type == "Shape":
        return node.input[0] in builder.values
    values = [builder.values.get(name) for name in node.input if name]
    return all(isinstance(value, KnownTensor) and value.array.size <= MAX_INFERRED_SIZE for value in values)


def _light(model: ModelProto) -> ModelProto:
    """Returns a copy for the inference of shapes, in which large arrays are inputs, which saves copies of them."""
    import onnx
    from onnx import helper

    light = onnx.ModelProto()
    light.ir_version = model.ir_version
    light.opset_import.extend(model.opset_import)
    graph = light.graph
    graph.name = "shapes"
    graph.node.extend(model.graph.node)
    # Without their shapes, which may hold other sizes of the batch.
    graph.output.extend(helper.make_empty_tensor_value_info(info.name) for info in model.graph.output)
    for tensor in model.graph.initializer:
        if int(np.prod(tensor.dims, dtype=np.int64)) <= MAX_INFERRED_SIZE:
            graph.initializer.append(tensor)
        else:
            graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    return light


def _inferred(
    light: ModelProto, image: ValueInfoProto, sizes: Any, known: Mapping[str, np.ndarray]
) -> Dict[str, Shape]:
    """Returns the shapes of tensors.

    Args:
        light: the model, without large arrays.
        image: its input.
        sizes: sizes of the input.
        known: tensors that need not be computed.

    Raises:
        DamagedOnnx: no schema fits a node.
    """
    import onnx
    from onnx import helper, numpy_helper, shape_inference

    model = onnx.ModelProto()
    model.CopyFrom(light)
    if known:
        del model.graph.node[:]
        model.graph.node.extend(node for node in light.graph.node if not any(name in known for name in node.output))
        model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in known.items())
    model.graph.input.append(helper.make_tensor_value_info(image.name, image.type.tensor_type.elem_type, sizes))
    try:
        inferred = shape_inference.infer_shapes(model, data_prop=True)
    except Exception as error:  # several kinds
        raise DamagedOnnx(f"its operators do not fit together ({str(error).splitlines()[0]:.120})") from error
    infos = [*inferred.graph.input, *inferred.graph.value_info, *inferred.graph.output]
    return {info.name: shape_of(info) for info in infos if info.type.tensor_type.HasField("shape")}
