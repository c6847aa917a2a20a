"""The network of an exported folder behind the servers of this folder, which run in environments without mxtrain.

Settings are variables of the environment: BENCH_MODEL (model.onnx), BENCH_THREADS, BENCH_PORT.
"""

from __future__ import annotations

import os
from typing import Any, Dict, List, Mapping, Sequence

import numpy as np
import onnxruntime

MAX_BATCH, WAIT_S = 32, 0.002
"""Samples of a batch, and the time for which a batch waits for more: the defaults of `mxtrain serve`."""
PORT = int(os.environ.get("BENCH_PORT", "0"))
_TYPES = {"tensor(float)": np.float32, "tensor(uint8)": np.uint8, "tensor(int32)": np.int32, "tensor(int64)": np.int64}
Arrays = Dict[str, np.ndarray]


class Model:
    """A session of onnxruntime with the threads that all servers have."""

    def __init__(self) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = int(os.environ["BENCH_THREADS"])
        options.inter_op_num_threads = 1
        # As in mxtrain: threads that spin take the cores from the process that parses requests.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = onnxruntime.InferenceSession(
            os.environ["BENCH_MODEL"], options, providers=["CPUExecutionProvider"]
        )
        self.types = {node.name: _TYPES[node.type] for node in self._session.get_inputs()}
        self.outputs = [node.name for node in self._session.get_outputs()]

    def arrays(self, values: Mapping[str, Any]) -> Arrays:
        """Converts nested lists by input name to arrays."""
        return {name: np.asarray(values[name], dtype) for name, dtype in self.types.items()}

    def from_bytes(self, body: bytes) -> Arrays:
        """Returns the only input, one image of 28 x 28 (8 x 8 in quick runs), from its bytes."""
        ((name, dtype),) = self.types.items()
        array = np.frombuffer(body, dtype)
        return {name: array.reshape(1, 1, round(array.size**0.5), -1)}

    def run(self, inputs: Arrays) -> Arrays:
        """Computes a batch."""
        return dict(zip(self.outputs, self._session.run(self.outputs, inputs)))

    def run_all(self, requests: Sequence[Arrays]) -> List[Arrays]:
        """Computes requests of one sample each as one batch; returns the outputs of each."""
        joined = {name: np.concatenate([one[name] for one in requests]) for name in self.types}
        outputs = self.run(joined)
        return [{name: array[row : row + 1] for name, array in outputs.items()} for row in range(len(requests))]


def to_lists(outputs: Arrays) -> Dict[str, Any]:
    """Converts outputs to JSON values."""
    return {name: array.tolist() for name, array in outputs.items()}
