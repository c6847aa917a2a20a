"""Reads an ONNX file, and checks all that is relied on: it may be damaged or somebody else's."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Dict, Iterator, Mapping, Sequence, Tuple, Union

import numpy as np

from mxtrain.files.regular_files import read_regular
from mxtrain.model.onnx.refusals import DamagedOnnx, RefusedOnnx

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto

LEAST_OPSET = 7
"""Before it operators broadcast by attributes."""
DOMAINS = ("", "ai.onnx")
"""Names of ONNX's own operators."""
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
        shapes: shapes of tensors, as far as they can be inferred; see `with_sizes`.
        known: tensors that are computed from shapes, with names for open sizes; see `with_sizes`.
    """

    model: ModelProto
    opset: int
    input: str
    input_shape: Shape
    takes_bytes: bool
    outputs: Sequence[str]
    initializers: Mapping[str, np.ndarray]
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    known: Mapping[str, np.ndarray] = field(default_factory=dict)

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
    _read_external(model, Path(path).parent)
    initializers = {tensor.name: _array(tensor) for tensor in model.graph.initializer}
    inputs = [info for info in model.graph.input if info.name not in initializers]
    if len(inputs) != 1:
        names = ", ".join(f"'{info.name}'" for info in inputs) or "none"
        raise RefusedOnnx(f"it has {len(inputs)} inputs ({names}), and networks with one input of images are read")
    shape = shape_of(inputs[0])
    if not shape or inputs[0].type.tensor_type.elem_type not in (PIXELS, *FLOATS):
        raise RefusedOnnx(
            f"its input '{inputs[0].name}' is no tensor of known rank of pixels or floating-point numbers"
        )
    outputs = [info.name for info in model.graph.output]
    if not outputs:
        raise DamagedOnnx("it has no outputs")
    takes_bytes = inputs[0].type.tensor_type.elem_type == PIXELS
    return OnnxContent(model, opset, inputs[0].name, shape, takes_bytes, outputs, initializers)


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
    """Raises `RefusedOnnx` for sparse arrays and functions."""
    if model.graph.sparse_initializer:
        raise RefusedOnnx(f"its array '{model.graph.sparse_initializer[0].values.name}' is sparse")
    if model.functions:
        raise RefusedOnnx(
            f"it defines operators by functions, such as '{model.functions[0].name}'. Write them out first: "
            "onnx.save(onnx.inliner.inline_local_functions(onnx.load('old.onnx')), 'new.onnx')"
        )


def _read_external(model: ModelProto, folder: Path) -> None:
    """Reads the arrays that are in files beside the model, as torch.onnx.export writes them.

    Args:
        model: the protocol buffer, into which they are put.
        folder: folder of the model; nothing outside of it is read.

    Raises:
        RefusedOnnx: a file is missing or elsewhere.
        DamagedOnnx: a file is too short for its arrays.
    """
    contents: Dict[str, memoryview] = {}
    used: Dict[str, int] = {}
    for tensor in _tensors(model):
        if tensor.data_location != tensor.EXTERNAL:
            continue
        entries = {entry.key: entry.value for entry in tensor.external_data}
        name = entries.get("location", "")
        if name not in contents:
            contents[name] = _content_beside(folder, name, tensor)
        content = contents[name]
        try:
            begin = int(entries.get("offset", 0))
            size = int(entries.get("length", len(content) - begin))
        except ValueError as error:
            raise DamagedOnnx(f"the array '{tensor.name}' has no numbers for its bytes in '{name}'") from error
        # All together: many arrays of the same bytes of one file would fill the memory.
        used[name] = used.get(name, 0) + size
        if begin < 0 or size < 0 or begin + size > len(content) or used[name] > len(content):
            raise DamagedOnnx(
                f"the array '{tensor.name}' is bytes {begin} to {begin + size} of '{name}', which has {len(content)} "
                "bytes for all arrays"
            )
        tensor.raw_data = bytes(content[begin : begin + size])
        tensor.ClearField("data_location")
        tensor.ClearField("external_data")


def _content_beside(folder: Path, name: str, tensor: TensorProto) -> memoryview:
    """Returns the content of a file with arrays.

    Raises:
        RefusedOnnx: it cannot be read, or is not in the folder of the model: a model of somebody else could name any
            file.
    """
    path = folder / name
    if "\0" in name or folder.resolve() not in path.resolve().parents:
        raise RefusedOnnx(
            f"its array '{tensor.name}' is in the file {name!r}, and only files in its own folder are read. Write "
            "all into one file: onnx.save(onnx.load('old.onnx'), 'new.onnx')"
        )
    try:
        return memoryview(read_regular(path))
    except OSError as error:
        raise RefusedOnnx(
            f"its array '{tensor.name}' is in the file '{name}', which cannot be read ({error.strerror}). Put it "
            "beside the model; torch.onnx.export(..., external_data=False) writes one file"
        ) from error


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


def shape_of(info: ValueInfoProto) -> Shape:
    """Returns the declared shape of a tensor; empty if it has none."""
    dims = info.type.tensor_type.shape.dim
    return tuple(
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param or f"{info.name}:{axis}"
        for axis, dim in enumerate(dims)
    )


def check_schema(node: NodeProto, file: OnnxContent) -> None:
    """Checks number of inputs, and names and types of attributes.

    Raises:
        DamagedOnnx: they are not those of the operator.
    """
    from onnx import checker

    context = checker.C.CheckerContext()
    context.ir_version = file.model.ir_version
    context.opset_imports = {entry.domain: entry.version for entry in file.model.opset_import}
    try:
        checker.check_node(node, context)
    except checker.ValidationError as error:
        reason = str(error).splitlines()[0]
        raise DamagedOnnx(f"the node '{node.name}' ({node.op_type}) is invalid ({reason:.120})") from error
