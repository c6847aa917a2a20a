"""Operators of constants, which are computed while a file is read: sizes of tensors, and arrays that are put together.

Sizes that are open have names in place of numbers, in arrays of objects.
"""

from __future__ import annotations

from typing import Any, Callable, Mapping, Union

import numpy as np

from mxtrain.model.onnx.builder import KnownTensor
from mxtrain.model.onnx.call import OnnxCall, shortest
from mxtrain.model.onnx.file import as_float32
from mxtrain.model.onnx.operators.shapes import axes_of, slices_of
from mxtrain.model.onnx.operators.table import folds

MAX_FOLDED_SIZE = 1 << 28
"""Number of elements of the largest array that is filled with one value."""
_DTYPES = {1: "float32", 10: "float32", 11: "float32", 16: "float32", 2: "uint8", 3: "int8", 6: "int32", 7: "int64"}
"""ONNX's numbers of types -> types of constants here."""
_ARITHMETIC: Mapping[str, Callable[[Any, Any], Any]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
}


def _any(call: OnnxCall, index: int = 0) -> np.ndarray:
    """Returns a constant input, which may have open sizes."""
    value = call.value(index)
    assert isinstance(value, KnownTensor)
    return value.array


@folds("Constant")
def constant(call: OnnxCall) -> np.ndarray:
    from onnx import numpy_helper

    for name in ("value_float", "value_floats", "value_int", "value_ints"):
        if name in call.attributes:
            call.ignore(name)
            dtype = np.float32 if "float" in name else np.int64
            return np.array(call.attributes[name], dtype)
    if "value" not in call.attributes:
        raise call.refused(f"has {', '.join(call.attributes) or 'no value'}")
    call.ignore("value")
    try:
        return as_float32(numpy_helper.to_array(call.attributes["value"]))
    except Exception as error:  # onnx raises TypeError, ValueError and KeyError for damaged tensors
        raise call.refused("has a damaged value") from error


@folds("ConstantOfShape")
def filled(call: OnnxCall) -> np.ndarray:
    from onnx import numpy_helper

    shape = call.ints(0)
    call.ignore("value")
    if min(shape, default=1) < 0 or np.prod(shape, dtype=float) > MAX_FOLDED_SIZE:
        raise call.refused(f"has a shape of {shape}")
    value = call.attributes.get("value")
    number: Union[float, np.ndarray] = 0.0 if value is None else numpy_helper.to_array(value).reshape(-1)[0]
    return as_float32(np.full(shape, number, np.float32 if value is None else None))


@folds("Shape")
def shape(call: OnnxCall) -> np.ndarray:
    sizes = call.shape()
    begin, end = call.integer("start", 0), call.integer("end", len(sizes))
    return np.array(sizes, dtype=object)[begin:end]


@folds("Identity")
def identity(call: OnnxCall) -> np.ndarray:
    return _any(call)


@folds("Gather")
def gather(call: OnnxCall) -> np.ndarray:
    array, axis = _any(call), call.axis("axis", 0)
    index = call.array(1)
    if index.size and not -array.shape[axis] <= index.min() <= index.max() < array.shape[axis]:
        raise call.refused(f"has an index beyond {array.shape[axis]}")
    # With a type: a size that is alone must stay an array of objects.
    return np.asarray(np.take(array, index.astype(np.int64), axis=axis), dtype=array.dtype)


@folds("Unsqueeze")
def unsqueeze(call: OnnxCall) -> np.ndarray:
    axes = axes_of(call)
    return np.expand_dims(_any(call), tuple(call.non_negative(axis, added_axes=len(axes)) for axis in axes))


@folds("Squeeze")
def squeeze(call: OnnxCall) -> np.ndarray:
    array, axes = _any(call), tuple(call.non_negative(axis) for axis in axes_of(call))
    if any(array.shape[axis] != 1 for axis in axes):
        raise call.refused(f"has axes={list(axes)}, and its input has the shape {array.shape}")
    return array.squeeze(axes or None)


@folds("Concat")
def concat(call: OnnxCall) -> np.ndarray:
    arrays = [_any(call, index) for index in range(len(call))]
    return _checked(call, lambda: np.concatenate(arrays, axis=call.integer("axis")))


@folds("Slice")
def slice_(call: OnnxCall) -> np.ndarray:
    array = _any(call)
    cut = [slice(None)] * array.ndim
    for axis, begin, end, step in slices_of(call):
        cut[axis] = slice(begin, end, step)
    return array[tuple(cut)]


@folds("Transpose")
def transpose(call: OnnxCall) -> np.ndarray:
    return _checked(call, lambda: _any(call).transpose(call.numbers("perm") or None))


@folds("Reshape")
def reshape(call: OnnxCall) -> np.ndarray:
    array, target = _any(call), call.ints(1)
    if not call.integer("allowzero"):
        target = [array.shape[axis] if size == 0 and axis < array.ndim else size for axis, size in enumerate(target)]
    return _checked(call, lambda: array.reshape(target))


@folds("Cast")
def cast(call: OnnxCall) -> np.ndarray:
    array, dtype = _any(call), _DTYPES.get(call.integer("to"))
    call.ignore("saturate")
    if dtype is None:
        raise call.refused(f"has to={call.attributes.get('to')}")
    return array if array.dtype == object else array.astype(dtype)


@folds(*_ARITHMETIC)
def arithmetic(call: OnnxCall) -> np.ndarray:
    left, right = call.array(0), call.array(1)
    if call.op == "Div" and right.dtype.kind in "iu":  # ONNX rounds quotients of integers towards zero
        if not right.all():
            raise call.refused("divides by zero")
        return np.asarray(np.trunc(left / right).astype(left.dtype))
    with np.errstate(all="ignore"):
        return np.asarray(_checked(call, lambda: _ARITHMETIC[call.op](left, right)))


@folds("Sqrt")
def sqrt(call: OnnxCall) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.asarray(np.sqrt(call.array(0)))


def _checked(call: OnnxCall, compute: Callable[[], np.ndarray]) -> np.ndarray:
    try:
        return compute()
    except ValueError as error:
        raise call.refused(f"has inputs whose shapes do not fit ({error})") from error


def scalar_of(call: OnnxCall, index: int) -> float:
    """Returns a constant input of one number.

    Raises:
        RefusedOnnx: it has several, or is computed.
    """
    array = call.array(index)
    if array.size != 1:
        raise call.refused(f"has {array.size} numbers in '{call.node.input[index]}'")
    return shortest(array.reshape(-1)[0])
