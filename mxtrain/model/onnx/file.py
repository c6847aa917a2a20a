"""Reads an ONNX file, and checks all that is relied on: it may be damaged or somebody else's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Dict, Iterator, Mapping, Sequence, Tuple, Union

import numpy as np

from mxtrain.files.regular_files import read_regular
from mxtrain.model.onnx.refusals import DamagedOnnx, RefusedOnnx

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto

LEAST_OPSET = 7
"""Before it operators broadcast by attributes."""
MAX_INFERRED_SIZE = 1024
"""Number of elements up to which constants take part in the inference of shapes: shapes and axes are small."""
DOMAINS = ("", "ai.onnx")
"""Names of ONNX's own operators."""

PROBES = ((3, 5), (7, 11), (224, 288), (320, 352), (256, 416))
"""Two sizes for each open dimension of the input: of the batch, of the channels, and of the image."""
PIXELS, FLOATS = 2, (1, 10, 11, 16)
"""ONNX's numbers of the types uint8; and float, float16, double, bfloat16."""

Shape = Tuple[Union[int, str], ...]
"""Sizes of a tensor; an open one is a name, which is the same for equal sizes."""


@dataclass(frozen=True)
class OnnxContent:
    """The checked content of a file.

    Attributes:
        model: the protocol buffer.
        opset: version of ONNX's operators.
        input: name of the only input.
        input_shape: its shape.
        takes_bytes: True if its elements are bytes, i.e. pixels.
        outputs: names of the outputs.
        initializers: the arrays of the file by name.
        shapes: shapes of tensors, as far as they can be inferred.
    """

    model: ModelProto
    opset: int
    input: str
    input_shape: Shape
    takes_bytes: bool
    outputs: Sequence[str]
    initializers: Mapping[str, np.ndarray]
    shapes: Mapping[str, Shape]

    @property
    def nodes(self) -> Sequence[NodeProto]:
        """Returns the nodes in the order of the file."""
        return self.model.graph.node


def load_onnx(path: str) -> OnnxContent:
    """Reads a file.

    Raises:
        ImportError: the package onnx is missing.
        OSError: the file cannot be read.
        DamagedOnnx: it is truncated or no ONNX file.
        RefusedOnnx: it is of a form that cannot be trained.
    """
    import onnx
    from google.protobuf.message import DecodeError

    content = read_regular(path)
    model = onnx.ModelProto()
    try:
        model.ParseFromString(content)
    except DecodeError as error:
        raise DamagedOnnx("it is no ONNX file, or is truncated") from error
    if not model.graph.node:
        raise DamagedOnnx("it is no ONNX file, or has no operators")
    opset = _opset(model)
    _refuse_other_forms(model)
    initializers = {tensor.name: _array(tensor) for tensor in model.graph.initializer}
    inputs = [info for info in model.graph.input if info.name not in initializers]
    if len(inputs) != 1:
        names = ", ".join(f"'{info.name}'" for info in inputs) or "none"
        raise RefusedOnnx(f"it has {len(inputs)} inputs ({names}), and networks with one input of images are read")
    shape = _shape(inputs[0])
    if not shape or inputs[0].type.tensor_type.elem_type not in (PIXELS, *FLOATS):
        raise RefusedOnnx(
            f"its input '{inputs[0].name}' is no tensor of known rank of pixels or floating-point numbers"
        )
    outputs = [info.name for info in model.graph.output]
    if not outputs:
        raise DamagedOnnx("it has no outputs")
    takes_bytes = inputs[0].type.tensor_type.elem_type == PIXELS
    return OnnxContent(
        model, opset, inputs[0].name, shape, takes_bytes, outputs, initializers, _shapes(model, inputs[0])
    )


def _opset(model: ModelProto) -> int:
    """Returns the version of ONNX's operators.

    Raises:
        RefusedOnnx: it is too old or too new.
    """
    from onnx import defs

    opset = max((entry.version for entry in model.opset_import if entry.domain in DOMAINS), default=1)
    newest = defs.onnx_opset_version()
    if not LEAST_OPSET <= opset <= newest:
        raise RefusedOnnx(
            f"its operators have version (opset) {opset}, and versions {LEAST_OPSET} to {newest} are read. Write it "
            "with another one, e.g. opset_version=17 in torch.onnx.export"
        )
    return opset


def _refuse_other_forms(model: ModelProto) -> None:
    """Raises `RefusedOnnx` for contents in other files, sparse arrays and functions."""
    if model.graph.sparse_initializer:
        raise RefusedOnnx(f"its array '{model.graph.sparse_initializer[0].values.name}' is sparse")
    if model.functions:
        raise RefusedOnnx(
            f"it defines operators by functions, such as '{model.functions[0].name}'. Write them out first: "
            "onnx.save(onnx.inliner.inline_local_functions(onnx.load('old.onnx')), 'new.onnx')"
        )
    for tensor in _tensors(model):
        if tensor.data_location == tensor.EXTERNAL:
            raise RefusedOnnx(
                f"its array '{tensor.name}' is in another file, which is not read. Write all into one file: "
                "onnx.save(onnx.load('old.onnx'), 'new.onnx')"
            )


def _tensors(model: ModelProto) -> Iterator[TensorProto]:
    yield from model.graph.initializer
    for node in model.graph.node:
        for attribute in node.attribute:
            yield attribute.t
            yield from attribute.tensors


def _array(tensor: TensorProto) -> np.ndarray:
    """Returns an array of the file; numbers of 16 bits and of 64 bits as float32.

    Raises:
        DamagedOnnx: its size and its content do not fit together.
    """
    from onnx import numpy_helper

    if any(size < 0 for size in tensor.dims):
        raise DamagedOnnx(f"the array '{tensor.name}' has a negative size")
    try:
        array = numpy_helper.to_array(tensor)
    except Exception as error:  # onnx raises TypeError, ValueError and KeyError for damaged tensors
        raise DamagedOnnx(f"the array '{tensor.name}' of {'x'.join(map(str, tensor.dims))} is damaged") from error
    return as_float32(array)


def as_float32(array: np.ndarray) -> np.ndarray:
    """Returns floating-point numbers of any precision as float32, others as they are."""
    is_float = array.dtype.kind == "f" or array.dtype.name == "bfloat16"
    return np.ascontiguousarray(array, dtype=np.float32).reshape(array.shape) if is_float else array


def _shape(info: ValueInfoProto) -> Shape:
    """Returns the declared shape of a tensor; empty if it has none."""
    dims = info.type.tensor_type.shape.dim
    return tuple(
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param or f"{info.name}:{axis}"
        for axis, dim in enumerate(dims)
    )


def _shapes(model: ModelProto, image: ValueInfoProto) -> Dict[str, Shape]:
    """Infers the shapes of tensors for two sizes of each open dimension of the input.

    A size that is equal for both is a number; sizes that are open get equal names if they are equal for both.
    """
    light = _light(model)
    probes = [_inferred(light, image, probe) for probe in range(len(PROBES[0]))]
    declared = _shape(image)
    names: Dict[Tuple[Union[int, str], ...], str] = {
        tuple(_probe(axis, probe) for probe in range(len(PROBES[0]))): size
        for axis, size in enumerate(declared)
        if isinstance(size, str)
    }
    shapes: Dict[str, Shape] = {}
    for name, first in probes[0].items():
        others = probes[1].get(name, ())
        if len(first) == len(others):
            pairs = list(zip(first, others))
            shapes[name] = tuple(
                pair[0] if pair[0] == pair[1] else names.setdefault(pair, f"size{len(names)}") for pair in pairs
            )
    shapes.update((tensor.name, tuple(tensor.dims)) for tensor in model.graph.initializer)
    return shapes


def _probe(axis: int, probe: int) -> int:
    return PROBES[min(axis, len(PROBES) - 1)][probe]


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


def _inferred(light: ModelProto, image: ValueInfoProto, probe: int) -> Dict[str, Shape]:
    """Returns the shapes of tensors for one size of each open dimension.

    Raises:
        DamagedOnnx: no schema fits a node.
    """
    import onnx
    from onnx import helper, shape_inference

    sizes = [size if isinstance(size, int) else _probe(axis, probe) for axis, size in enumerate(_shape(image))]
    model = onnx.ModelProto()
    model.CopyFrom(light)
    model.graph.input.append(helper.make_tensor_value_info(image.name, image.type.tensor_type.elem_type, sizes))
    try:
        inferred = shape_inference.infer_shapes(model, data_prop=True)
    except Exception as error:  # several kinds
        raise DamagedOnnx(f"its operators do not fit together ({str(error).splitlines()[0]:.120})") from error
    infos = [*inferred.graph.input, *inferred.graph.value_info, *inferred.graph.output]
    return {info.name: _shape(info) for info in infos if info.type.tensor_type.HasField("shape")}
