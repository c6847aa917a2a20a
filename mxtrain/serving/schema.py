"""Forms of requests and answers, for OpenAPI."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Union

import pydantic

from mxtrain.serving.protocol import MAX_ID

_NUMBERS: Dict[str, Any] = {"type": "array", "items": {}, "description": "Numbers in row-major order, flat or nested."}
_TENSOR: Dict[str, Any] = {
    "type": "object",
    "required": ["name", "shape", "datatype"],
    "properties": {
        "name": {"type": "string"},
        "shape": {"type": "array", "items": {"type": "integer", "minimum": 1}},
        "datatype": {"type": "string"},
        "data": _NUMBERS,
        "parameters": {"type": "object", "properties": {"binary_data_size": {"type": "integer", "minimum": 0}}},
    },
}
INFER_BODY: Dict[str, Any] = {
    "type": "object",
    "required": ["inputs"],
    "properties": {
        "id": {"type": "string", "maxLength": MAX_ID},
        "inputs": {"type": "array", "items": _TENSOR},
        "outputs": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name"],
                "properties": {
                    "name": {"type": "string"},
                    "parameters": {"type": "object", "properties": {"binary_data": {"type": "boolean"}}},
                },
            },
        },
        "parameters": {"type": "object", "properties": {"binary_data_output": {"type": "boolean"}}},
    },
}


GENERATE_BODY: Dict[str, Any] = {
    "type": "object",
    "required": ["text_input"],
    "additionalProperties": False,
    "properties": {
        "text_input": {"type": "string"},
        "id": {"type": "string", "maxLength": MAX_ID},
        "parameters": {
            "type": "object",
            "description": "The model's metadata lists its parameters with their defaults.",
            "additionalProperties": False,
            "properties": {
                "max_tokens": {"type": "integer", "minimum": 1},
                "temperature": {"type": "number", "minimum": 0},
                "top_k": {"type": "integer", "minimum": 0},
                "top_p": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
                "seed": {"type": "integer", "minimum": 0},
                "beam_size": {"type": "integer", "minimum": 1},
                "stream": {"type": "boolean"},
            },
        },
    },
}


class ErrorBody(pydantic.BaseModel):
    """Why a request is not answered."""

    error: str


class TensorBody(pydantic.BaseModel):
    """An input or output of a model; -1 stands for open sizes."""

    name: str
    datatype: str
    shape: List[int]


class ModelBody(pydantic.BaseModel):
    """Metadata of a model."""

    name: str
    versions: List[str]
    platform: str
    inputs: List[TensorBody]
    outputs: List[TensorBody]
    parameters: Dict[str, Any] = {}


class ServerBody(pydantic.BaseModel):
    """Metadata of the server."""

    name: str
    version: str
    extensions: List[str]


class OutputBody(TensorBody):
    """An output with its numbers."""

    data: Optional[List[Union[float, bool]]] = None
    parameters: Dict[str, Any] = {}


class InferAnswer(pydantic.BaseModel):
    """The answer of `infer`."""

    model_name: str
    model_version: str
    id: Optional[str] = None
    outputs: List[OutputBody]


class GenerateAnswer(pydantic.BaseModel):
    """The answer of `generate`. An event of `generate_stream` has the next piece of text; only the last one has
    `finish_reason` and `tokens`."""

    model_name: str
    model_version: str
    text_output: str
    id: Optional[str] = None
    finish_reason: Optional[str] = None
    tokens: Optional[int] = None
