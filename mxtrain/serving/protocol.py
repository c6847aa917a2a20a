"""Parses requests and encodes answers of the Open Inference Protocol v2, as JSON and with the binary extension, and
parses requests for text.

Source: https://github.com/kserve/open-inference-protocol, and Triton's "Binary tensor data extension" and "Generate
extension".
"""

from __future__ import annotations

import itertools
import json
import math
import re
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, NoReturn, Optional, Sequence, Set, Tuple

import numpy as np
import pydantic

from mxtrain.data.exported_folder import MAX_CHARACTERS
from mxtrain.errors import did_you_mean
from mxtrain.serving.errors import RequestError
from mxtrain.serving.generators import GenerateParameters, TextGenerator
from mxtrain.serving.models import Arrays, ServedModel, TensorSpec

HEADER_LENGTH = "inference-header-content-length"
BINARY_TYPE = "application/octet-stream"
TEXT_INPUT = "text_input"
MAX_ID = 200
MAX_DIMENSIONS = 16
MAX_DIGITS = 15
"""Limit of the digits of a number in a header."""


@dataclass(frozen=True)
class InferCall:
    """A parsed `infer` request.

    Attributes:
        id: id that the answer repeats; None = none.
        inputs: name -> array.
        outputs: (name, is binary) of each requested output.
    """

    id: Optional[str]
    inputs: Arrays
    outputs: Sequence[Tuple[str, bool]]


@dataclass(frozen=True)
class GenerateCall:
    """A parsed request for text.

    Attributes:
        id: id that the answer repeats; None = none.
        text: prompt or source.
        parameters: all parameters of the generator.
    """

    id: Optional[str]
    text: str
    parameters: GenerateParameters


def _refuse_constant(name: str) -> NoReturn:
    raise RequestError(400, f"the body holds {name}, which is no JSON.")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_encode_strictly = json.JSONEncoder(ensure_ascii=False).encode
# `json.dumps` with such settings would build an encoder for each answer.
_encode = json.JSONEncoder(separators=(",", ":")).encode


def parse_json(body: bytes) -> Dict[str, Any]:
    """Parses a JSON object.

    Raises:
        RequestError: the body is no JSON object, or contains NaN or infinities.
    """
    try:
        text = body.decode(json.detect_encoding(body))
        value = _DECODER.decode(text)
        # Python's parser accepts half of a surrogate pair, with which a tokenizer or the answer would fail later.
        if _SURROGATE.search(text):
            _encode_strictly(value).encode()
    except UnicodeEncodeError as error:
        raise RequestError(400, "the body holds half of a surrogate pair, which is no character.") from error
    except UnicodeDecodeError as error:
        raise RequestError(400, "the body is no UTF-8.") from error
    except ValueError as error:
        raise RequestError(400, f"the body is no JSON: {str(error)[:200]}.") from error
    except RecursionError as error:
        raise RequestError(400, "the body is no JSON: it is nested too deeply.") from error
    if not isinstance(value, dict):
        raise RequestError(400, "the body is no JSON object.")
    return value


def refuse_long_json(size: int, limit: int) -> None:
    """Raises a `RequestError` if JSON or a table has more bytes than `ServeSettings.max_json_mb` allows."""
    if size > limit:
        raise RequestError(
            413,
            f"the JSON or table of the body has more than {limit:,} bytes, the server's "
            "max_json_mb. Send arrays to infer with the binary extension (Inference-Header-Content-"
            "Length and binary_data_size), and rows of a table in several requests.",
            closes=True,
        )


def parse_infer(body: bytes, header_length: Optional[str], model: ServedModel, max_json: int) -> InferCall:
    """Parses the body of `infer`.

    Args:
        body: JSON, optionally followed by the bytes of binary inputs.
        header_length: value of the header with the number of bytes of JSON; None = the whole body.
        model: model that the request is for.
        max_json: largest number of bytes of JSON.

    Raises:
        RequestError: the body is invalid; the message names the field.
    """
    size = len(body)
    if header_length is not None:
        if not re.fullmatch(f"[0-9]{{1,{MAX_DIGITS}}}", header_length) or int(header_length) > size:
            raise RequestError(
                400,
                f"Inference-Header-Content-Length is {header_length[:50]!r}; it must be the bytes "
                "of the JSON at the beginning of the body.",
            )
        size = int(header_length)
    refuse_long_json(size, max_json)
    request = parse_json(body[:size])
    call_id = _id_of(request)
    tensors = request.get("inputs")
    if not isinstance(tensors, list) or not all(isinstance(tensor, dict) for tensor in tensors):
        raise RequestError(400, "inputs must be a list of objects with name, shape, datatype and data.")
    specs = {spec.name: spec for spec in model.inputs}
    remaining, arrays = memoryview(body)[size:], {}
    for tensor in tensors:
        name = tensor.get("name")
        if not isinstance(name, str) or name in arrays:
            raise RequestError(400, "each of inputs must have a name of its own.")
        arrays[name], remaining = _read_tensor(tensor, specs.get(name), remaining)
    if len(remaining):
        raise RequestError(400, f"{len(remaining)} bytes at the end of the body belong to no input.")
    return InferCall(call_id, arrays, _requested_outputs(request, model))


def _id_of(request: Mapping[str, Any]) -> Optional[str]:
    call_id = request.get("id")
    if call_id is not None and (not isinstance(call_id, str) or len(call_id) > MAX_ID):
        raise RequestError(400, f"id must be a string of at most {MAX_ID} characters.")
    return call_id


def parse_generate(body: bytes, generator: TextGenerator, is_stream: bool, limit: int) -> GenerateCall:
    """Parses the body of `generate` or `generate_stream`.

    Args:
        body: JSON.
        generator: writes the text.
        is_stream: True for `generate_stream`.
        limit: largest `max_tokens` of the server.

    Raises:
        RequestError: the body is invalid; the message names the field.
    """
    request = parse_json(body)
    _refuse_unknown("field", request, (TEXT_INPUT, "parameters", "id"))
    text = request.get(TEXT_INPUT)
    if not isinstance(text, str):
        raise RequestError(400, "text_input must be a string.")
    if len(text) > MAX_CHARACTERS:
        raise RequestError(413, f"text_input has {len(text):,} characters; at most {MAX_CHARACTERS:,} are read.")
    values = dict(_parameters(request, "the request"))
    defaults = generator.defaults
    names = [*type(defaults).model_fields, "stream"]
    _refuse_unknown("parameter", values, names)
    if "stream" in values and values.pop("stream") is not is_stream:  # clients of Triton's vLLM backend send it
        reason = f"parameters.stream must be {json.dumps(is_stream)} here: only generate_stream streams."
        raise RequestError(400, reason)
    largest = min(limit, generator.most_tokens or limit)
    try:
        max_tokens = min(defaults.max_tokens, largest)
        parsed = type(defaults)(**{**defaults.model_dump(), "max_tokens": max_tokens, **values})
    except pydantic.ValidationError as error:
        problem = error.errors()[0]
        name = ".".join(map(str, problem["loc"]))
        raise RequestError(400, f"parameters.{name} is {str(values.get(name))[:50]}: {problem['msg']}.") from error
    if parsed.max_tokens > largest:
        raise RequestError(400, f"parameters.max_tokens is {parsed.max_tokens}; at most {largest} are written here.")
    return GenerateCall(_id_of(request), text, parsed)


def _refuse_unknown(kind: str, values: Mapping[str, Any], allowed: Sequence[str]) -> None:
    for name in values:
        if name not in allowed:
            raise RequestError(
                400,
                f"there is no {kind} '{name[:100]}'.{did_you_mean(name[:100], allowed)} It takes {', '.join(allowed)}.",
            )


def _read_tensor(
    tensor: Dict[str, Any], spec: Optional[TensorSpec], remaining: memoryview
) -> Tuple[np.ndarray, memoryview]:
    name = tensor["name"][:100]
    if spec is None:
        return np.zeros(0, np.float32), remaining[len(remaining) :]  # `ServedModel.validate` rejects unknown names
    if tensor.get("datatype") != spec.datatype:
        datatype = str(tensor.get("datatype"))[:30]
        raise RequestError(400, f"the input '{name}' has the datatype {datatype}; it must be {spec.datatype}.")
    shape = tensor.get("shape")
    if (
        not isinstance(shape, list)
        or len(shape) > MAX_DIMENSIONS
        or not all(type(size) is int and 0 < size < 1 << 31 for size in shape)
    ):
        raise RequestError(400, f"the shape of the input '{name}' must be a list of sizes above 0.")
    count = math.prod(shape)
    binary = _parameters(tensor, f"the input '{name}'").get("binary_data_size")
    if binary is None:
        return from_json(tensor.get("data"), spec, count).reshape(shape), remaining
    num_bytes = count * np.dtype(spec.dtype).itemsize
    if type(binary) is not int or binary != num_bytes or binary > len(remaining):
        raise RequestError(
            400,
            f"the input '{name}' has {str(binary)[:30]} as binary_data_size; its shape and type "
            f"need {num_bytes} bytes, and {len(remaining)} bytes are left.",
        )
    # The binary extension is little-endian on every machine.
    array = np.frombuffer(remaining[:binary], np.dtype(spec.dtype).newbyteorder("<")).astype(spec.dtype, copy=False)
    if spec.dtype == "bool":
        # A byte other than 0 and 1 is no valid boolean for NumPy.
        array = np.frombuffer(remaining[:binary], np.uint8) != 0
    return array.reshape(shape), remaining[binary:]


def from_json(data: Any, spec: TensorSpec, count: int) -> np.ndarray:
    """Converts a flat or nested list of `count` numbers to a one-dimensional array.

    Raises:
        RequestError: the nesting is uneven, or the number or type of elements is wrong.
    """
    flat = data
    for _ in range(MAX_DIMENSIONS):
        if not (isinstance(flat, list) and flat and isinstance(flat[0], list)):
            break
        if set(map(type, flat)) != {list} or len(set(map(len, flat))) != 1:
            raise RequestError(400, f"the data of the input '{spec.name}' are nested unevenly.")
        flat = list(itertools.chain.from_iterable(flat))
    if not isinstance(flat, list) or len(flat) != count:
        actual = len(flat) if isinstance(flat, list) else "no list of"
        raise RequestError(400, f"the data of the input '{spec.name}' are {actual} numbers; its shape needs {count}.")
    return to_array(flat, spec)


def to_array(flat: List[Any], spec: TensorSpec) -> np.ndarray:
    """Converts a flat list to an array of the input's type.

    Raises:
        RequestError: an element has another type, or is out of range.
    """
    kind = np.dtype(spec.dtype).kind
    of_kind: Dict[str, Set[type]] = {"f": {int, float}, "b": {bool}}
    allowed = of_kind.get(kind, {int})
    wrong = set(map(type, flat)) - allowed
    if wrong:
        names = ", ".join(sorted(element_type.__name__ for element_type in wrong))
        raise RequestError(400, f"the data of the input '{spec.name}' hold {names}; they must be {spec.datatype}.")
    try:
        if kind == "f":
            # Numbers beyond the type become infinite, which `ServedModel.validate` rejects with the input's name.
            with np.errstate(over="ignore"):
                return np.array(flat, np.float64).astype(spec.dtype)
        wide = np.array(flat, {"b": np.bool_, "u": np.uint64}.get(kind, np.int64))
        if kind == "u" and flat and min(flat) < 0:  # NumPy 1 silently wraps negative numbers around
            raise OverflowError
    except OverflowError as error:
        raise RequestError(400, f"the data of the input '{spec.name}' are beyond {spec.datatype}.") from error
    limits = None if kind == "b" or not wide.size else np.iinfo(spec.dtype)
    if limits is not None and not (limits.min <= wide.min() and wide.max() <= limits.max):
        raise RequestError(400, f"the data of the input '{spec.name}' are beyond {spec.datatype}.")
    return wide.astype(spec.dtype)


def _parameters(owner: Mapping[str, Any], subject: str) -> Dict[str, Any]:
    parameters = owner.get("parameters")
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise RequestError(400, f"the parameters of {subject} must be an object.")
    return parameters


def _requested_outputs(request: Mapping[str, Any], model: ServedModel) -> Sequence[Tuple[str, bool]]:
    names = [spec.name for spec in model.outputs]
    is_binary = _parameters(request, "the request").get("binary_data_output") is True
    requested = request.get("outputs")
    if requested is None or requested == []:
        return [(name, is_binary) for name in names]
    if not isinstance(requested, list) or not all(isinstance(output, dict) for output in requested):
        raise RequestError(400, "outputs must be a list of objects with a name.")
    is_binary_of: Dict[str, bool] = {}
    for output in requested:
        name = output.get("name")
        if name not in names:
            raise RequestError(400, f"there is no output {str(name)[:100]!r}. Outputs: {', '.join(names)}.")
        is_binary_of[name] = _parameters(output, f"the output '{name}'").get("binary_data", is_binary) is True
    return list(is_binary_of.items())


def encode_answer(model: ServedModel, call: InferCall, outputs: Arrays) -> Tuple[bytes, Dict[str, str]]:
    """Returns the body and the headers of an answer.

    Raises:
        RequestError: an output that is requested as JSON contains NaN or infinities.
    """
    types = {spec.name: spec.datatype for spec in model.outputs}
    tensors, parts = [], []
    for name, is_binary in call.outputs:
        array = outputs[name]
        tensor: Dict[str, Any] = {"name": name, "datatype": types[name], "shape": list(array.shape)}
        if is_binary:
            parts.append(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes())
            tensor["parameters"] = {"binary_data_size": len(parts[-1])}
        else:
            require_finite(name, array)
            tensor["data"] = array.ravel().tolist()
        tensors.append(tensor)
    answer = {"model_name": model.name, "model_version": "1", "outputs": tensors}
    if call.id is not None:
        answer["id"] = call.id
    head = _encode(answer).encode()
    if not parts:
        return head, {"content-type": "application/json"}
    return head + b"".join(parts), {"content-type": BINARY_TYPE, HEADER_LENGTH: str(len(head))}


def require_finite(name: str, array: np.ndarray) -> None:
    """Raises a `RequestError` if an output contains NaN or infinities, which JSON cannot represent."""
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise RequestError(
            422,
            f"the output '{name}' holds numbers that are not finite for these inputs, which JSON "
            "cannot hold. Ask for it with binary_data.",
        )
