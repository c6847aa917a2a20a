"""Serves the exported network of this folder with Ray Serve, by the Open Inference Protocol v2 (JSON).

    pip install 'ray[serve]' onnxruntime numpy
    serve run serve.yaml                       in this folder: replicas, address and port are in that file

Requests that wait at the same time are computed as one batch. One request is never affected by another: each is
checked before it waits, and those of other lengths or sizes are computed apart.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
from typing import Any, Dict, List, Sequence, Tuple, Union

import numpy as np
import predict
from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse

NAME = "model"
FOLDER = os.path.dirname(os.path.abspath(__file__))
MAX_BATCH_SIZE, WAIT_S = 32, 0.003
MAX_BYTES, MAX_ROWS = 1 << 26, 256
DATATYPES = {
    "float32": "FP32",
    "float64": "FP64",
    "float16": "FP16",
    "uint8": "UINT8",
    "int8": "INT8",
    "int32": "INT32",
    "int64": "INT64",
    "bool": "BOOL",
}
Arrays = Dict[str, np.ndarray]


class Refused(Exception):
    """A request that is wrong.

    Args:
        text: says what is.
        status: of HTTP.
    """

    def __init__(self, text: str, status: int = 400):
        super().__init__(text)
        self.status = status


def read_inputs(content: bytes, declared: Sequence[Dict[str, Any]]) -> Tuple[Arrays, Any]:
    """Parses a request.

    Args:
        content: the body, JSON.
        declared: inputs as signature.json has them.

    Returns:
        The inputs by name, and the id of the request.

    Raises:
        Refused: the request does not fit the signature.
    """
    try:
        # Python's parser accepts NaN and Infinity, which JSON does not have.
        body = json.loads(content, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise Refused(f"the body is no JSON: {error}") from error
    tensors = body.get("inputs") if isinstance(body, dict) else None
    if not isinstance(tensors, list) or not all(isinstance(one, dict) for one in tensors):
        raise Refused("the body has no list of inputs")
    tensor_by_name = {str(one.get("name")): one for one in tensors}
    names = [one["name"] for one in declared]
    if len(tensor_by_name) != len(tensors) or set(tensor_by_name) != set(names):
        raise Refused(f"the inputs must be {', '.join(names)}, each once")
    arrays = {one["name"]: _read_tensor(tensor_by_name[one["name"]], one) for one in declared}
    if len({len(array) for array in arrays.values()}) > 1:
        raise Refused("the inputs have different numbers of samples")
    return arrays, body.get("id")


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _read_tensor(tensor: Dict[str, Any], declared: Dict[str, Any]) -> np.ndarray:
    name, dtype, expected = declared["name"], declared["dtype"], declared["shape"]
    if tensor.get("datatype") != DATATYPES[dtype]:
        raise Refused(f"the datatype of {name} must be {DATATYPES[dtype]}")
    shape: Any = tensor.get("shape")
    fits = (
        isinstance(shape, list)
        and len(shape) == len(expected)
        and all(
            # `isinstance` would accept True and False.
            type(size) is int and size > 0 and (isinstance(other, str) or size == other)
            for size, other in zip(shape, expected)
        )
    )
    if not fits or shape[0] > MAX_ROWS or math.prod(shape) > MAX_BYTES:
        raise Refused(f"the shape of {name} must be {expected}, with at most {MAX_ROWS} samples")
    try:
        array = np.asarray(tensor.get("data"))
        if array.dtype.kind not in "biuf":
            raise ValueError("these are no numbers")
        converted = array.astype(dtype)
        if converted.dtype.kind in "biu" and not np.array_equal(converted, array):
            raise ValueError(f"some are not {dtype}")
        if not np.isfinite(converted).all():
            raise ValueError("some are not finite")
        return converted.reshape(shape)
    except (ValueError, TypeError, OverflowError) as error:
        raise Refused(f"the data of {name} do not fit: {error}") from error


def grouped(requests: Sequence[Arrays]) -> List[List[int]]:
    """Groups the indices of requests that can be one batch: all inputs have the same shapes but for the samples."""
    groups: Dict[Tuple[Tuple[int, ...], ...], List[int]] = {}
    for number, arrays in enumerate(requests):
        groups.setdefault(tuple(array.shape[1:] for array in arrays.values()), []).append(number)
    return list(groups.values())


def compute(session: Any, requests: Sequence[Arrays], is_open: bool) -> List[Union[Arrays, str]]:
    """Computes the outputs of each request; a message instead where it failed.

    Args:
        session: of onnxruntime.
        requests: inputs of each, of any shapes.
        is_open: whether a batch may have any size.
    """
    results: List[Union[Arrays, str]] = ["" for _ in requests]
    for numbers in grouped(requests) if is_open else [[number] for number in range(len(requests))]:
        group = [requests[number] for number in numbers]
        try:
            batch = {name: np.concatenate([request[name] for request in group]) for name in group[0]}
            outputs = predict.run(session, batch)
        except predict.UnusableFolder as error:
            if len(group) > 1:  # such as an id out of range: the others must not suffer from it
                for number in numbers:
                    results[number] = compute(session, [requests[number]], False)[0]
            else:
                results[numbers[0]] = str(error)
            continue
        row = 0
        for number, request in zip(numbers, group):
            count = len(next(iter(request.values())))
            alone = len(group) == 1
            results[number] = outputs if alone else {name: array[row : row + count] for name, array in outputs.items()}
            row += count
    return results


@serve.deployment
class Network:
    """A replica: one session of one thread. More replicas use more cores."""

    def __init__(self) -> None:
        self._signature = predict.read_signature(FOLDER, needed=["inputs"])
        self._session = predict.load_session(FOLDER, threads=1)
        self._inputs = self._signature["inputs"]
        nodes = [*self._session.get_inputs(), *self._session.get_outputs()]
        self._is_open = all(node.shape and node.shape[0] == "batch" for node in nodes)

    @serve.batch(max_batch_size=MAX_BATCH_SIZE, batch_wait_timeout_s=WAIT_S)
    async def _compute(self, requests: List[Arrays]) -> List[Union[Arrays, str]]:
        return await asyncio.to_thread(compute, self._session, requests, self._is_open)

    async def __call__(self, request: Request) -> JSONResponse:
        """Answers a request of HTTP."""
        path, model = request.url.path.rstrip("/"), f"/v2/models/{NAME}"
        try:
            if request.method == "GET" and path in ("/v2/health/live", "/v2/health/ready", f"{model}/ready"):
                return JSONResponse({"ready": True, "name": NAME})
            if request.method == "GET" and path == model:
                return JSONResponse(self._metadata())
            if request.method == "POST" and path == f"{model}/infer":
                return await self._infer(request)
            raise Refused(f"there is no {request.method} {path}; the network is {model}", 404)
        except Refused as error:
            return JSONResponse({"error": str(error)}, status_code=error.status)

    async def _infer(self, request: Request) -> JSONResponse:
        content = bytearray()
        async for part in request.stream():
            content += part
            if len(content) > MAX_BYTES:
                raise Refused(f"the body has more than {MAX_BYTES:,} bytes", 413)
        arrays, number = read_inputs(bytes(content), self._inputs)
        outputs = await self._compute(arrays)
        if isinstance(outputs, str):
            raise Refused(outputs)
        answer = [
            {
                "name": name,
                "datatype": DATATYPES[array.dtype.name],
                "shape": list(array.shape),
                "data": array.ravel().tolist(),
            }
            for name, array in outputs.items()
        ]
        return JSONResponse({"model_name": NAME, **({} if number is None else {"id": number}), "outputs": answer})

    def _metadata(self) -> Dict[str, Any]:
        outputs = self._signature["outputs"]
        types = {node.name: node.type for node in self._session.get_outputs()}
        names = {"tensor(float)": "FP32", "tensor(int64)": "INT64", "tensor(int32)": "INT32"}
        return {
            "name": NAME,
            "versions": ["1"],
            "platform": "onnxruntime_onnx",
            "inputs": [
                {"name": one["name"], "datatype": DATATYPES[one["dtype"]], "shape": _sizes(one)} for one in self._inputs
            ],
            "outputs": [
                {"name": one["name"], "datatype": names.get(types[one["name"]], "FP32"), "shape": _sizes(one)}
                for one in outputs
            ],
        }


def _sizes(tensor: Dict[str, Any]) -> List[int]:
    return [size if isinstance(size, int) else -1 for size in tensor["shape"]]


app = Network.bind()  # type: ignore[attr-defined]  # made by the decorator
