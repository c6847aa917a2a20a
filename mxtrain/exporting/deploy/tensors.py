"""Inputs and outputs of an exported network, as onnxruntime reports them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Tuple

BATCH = "batch"
DTYPES = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(float16)": "float16",
    "tensor(uint8)": "uint8",
    "tensor(int8)": "int8",
    "tensor(int32)": "int32",
    "tensor(int64)": "int64",
    "tensor(bool)": "bool",
}


@dataclass(frozen=True)
class Tensor:
    """An input or an output.

    Attributes:
        dtype: as NumPy calls it.
        shape: -1 = open.
        is_batch: whether the first dimension is that of samples, and open.
    """

    name: str
    dtype: str
    shape: Tuple[int, ...]
    is_batch: bool

    @classmethod
    def from_node(cls, node: Any) -> Tensor:
        """Returns the description of an element of a session's `get_inputs` or `get_outputs`."""
        shape = tuple(size if isinstance(size, int) else -1 for size in node.shape)
        return cls(node.name, DTYPES[node.type], shape, bool(node.shape) and node.shape[0] == BATCH)
