"""Small exported folders, made without a run, and the server as a process."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Type

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from mxtrain.exporting import standalone

ROOT = Path(__file__).resolve().parents[2]
RNG = np.random.default_rng(0)
WEIGHT = RNG.normal(size=(16, 3)).astype(np.float32) / 300
TABLE = RNG.normal(size=(10, 4)).astype(np.float32)
SQUARE = RNG.normal(size=(96, 96)).astype(np.float32) / 10
CLASSES = ["ape", "bee", "cat"]
IMAGES: Dict[str, Any] = {
    "task": "classification",
    "samples": "images",
    "class_names": CLASSES,
    "signature_class": "ImageSignature",
    "signature": {
        "shape": [1, 4, 4],
        "mean": [0.5],
        "std": [0.5],
        "class_names": CLASSES,
        "decoding": {"shape": [1, 4, 4], "central_crop": 1.0},
    },
}
TYPES = {"uint8": TensorProto.UINT8, "float32": TensorProto.FLOAT, "int32": TensorProto.INT32}


def write_folder(
    folder: Path,
    nodes: Sequence[Any],
    inputs: Mapping[str, Tuple[str, Sequence[Any]]],
    outputs: Mapping[str, Any],
    constants: Mapping[str, np.ndarray],
    samples: Mapping[str, np.ndarray],
    signature: Mapping[str, Any] = {},
) -> Path:
    """Writes a network as `mxtrain export` would; the proof is what onnxruntime computes for the samples."""
    import onnxruntime

    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info(name, TYPES[kind], dims) for name, (kind, dims) in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    folder.mkdir(parents=True)
    (folder / standalone.MODEL).write_bytes(model.SerializeToString())
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    arrays = {}
    for number, rows in enumerate((1, len(next(iter(samples.values()))))):
        given = {name: array[:rows] for name, array in samples.items()}
        found = dict(zip(outputs, session.run(list(outputs), given)))
        arrays.update({f"{number}/input/{name}": one for name, one in given.items()})
        arrays.update({f"{number}/output/{name}": one for name, one in found.items()})
    np.savez(folder / standalone.PROOF, **arrays)
    said = {
        "task": "",
        "samples": "numbers",
        "class_names": [],
        "signature": {},
        "signature_class": "Signature",
        "inputs": [{"name": name, "dtype": kind, "shape": list(dims)} for name, (kind, dims) in inputs.items()],
        "outputs": [{"name": name} for name in outputs],
        **signature,
    }
    (folder / standalone.SIGNATURE).write_text(json.dumps(said))
    (folder / standalone.REPORT).write_text("{}")
    (folder / "predict.py").write_text("raise SystemExit('the code of a folder was executed')")
    return folder


def write_pixels(folder: Path, **signature: Any) -> Path:
    """A classifier of images of 4 x 4 pixels: `pixels_of` computes the same."""
    nodes = [
        helper.make_node("Cast", ["input"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Flatten", ["f"], ["x"]),
        helper.make_node("MatMul", ["x", "w"], ["output"]),
        helper.make_node("Softmax", ["output"], ["probabilities"]),
    ]
    samples = RNG.integers(100, 140, (4, 1, 4, 4), dtype=np.uint8)
    outputs = {name: ["batch", 3] for name in ("output", "probabilities")}
    return write_folder(
        folder,
        nodes,
        {"input": ("uint8", ["batch", 1, 4, 4])},
        outputs,
        {"w": WEIGHT},
        {"input": samples},
        {**IMAGES, **signature},
    )


def pixels_of(image_B144: np.ndarray) -> np.ndarray:
    """Probabilities of `write_pixels` by NumPy."""
    score = image_B144.reshape(len(image_B144), 16).astype(np.float32) @ WEIGHT
    share = np.exp(score - score.max(axis=1, keepdims=True))
    return share / share.sum(axis=1, keepdims=True)


def write_ids(folder: Path) -> Path:
    """Means of rows of a table; ids are from -10 to 9, the length is open."""
    nodes = [
        helper.make_node("Gather", ["t", "ids"], ["x"], axis=0),
        helper.make_node("ReduceMean", ["x"], ["output"], axes=[1], keepdims=0),
    ]
    samples = RNG.integers(0, 10, (3, 6)).astype(np.int32)
    return write_folder(
        folder, nodes, {"ids": ("int32", ["batch", "length"])}, {"output": ["batch", 4]}, {"t": TABLE}, {"ids": samples}
    )


COLUMNS: List[Dict[str, Any]] = [
    {"name": "town", "kind": "category", "vocabulary": ["Ulm", "Bonn"]},
    {"name": "age", "kind": "number", "mean": 40.0, "std": 8.0, "indicator": True},
    {"name": "visits", "kind": "number", "log": True, "mean": 1.0, "std": 2.0},
]
ID_WEIGHT, NUMBER_WEIGHT = np.array([0.5, -1, 2, 0.25], np.float32), np.array([[0.5], [-1.5], [0.75]], np.float32)


def write_rows(folder: Path, **signature: Any) -> Path:
    """A score of a town, an age with an indicator of its absence, and a logarithm: `probability_of` computes the
    same."""
    nodes = [
        helper.make_node("Gather", ["w", "input0"], ["a"], axis=0),
        helper.make_node("MatMul", ["input1", "n"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["output"]),
    ]
    samples = {"input0": RNG.integers(0, 4, (4, 1)).astype(np.int32), "input1": np.eye(4, 3, dtype=np.float32)}
    own = {"shape": [[1], [3]], "mean": [], "std": [], "class_names": ["no", "yes"], "columns": COLUMNS}
    return write_folder(
        folder,
        nodes,
        {"input0": ("int32", ["batch", 1]), "input1": ("float32", ["batch", 3])},
        {"output": ["batch", 1]},
        {"w": ID_WEIGHT, "n": NUMBER_WEIGHT},
        samples,
        {
            "task": "tabular",
            "samples": "features",
            "class_names": ["no", "yes"],
            "signature_class": "FeatureSignature",
            "reader": "exported_rows",
            "signature": own,
            "facts": {},
            **signature,
        },
    )


def probability_of(id_: int, age: Optional[float], visits: float) -> float:
    """Probability of `write_rows` by NumPy: id 0 is a missing town, 1 an unknown one, then Ulm and Bonn."""
    numbers = [0.0 if age is None else (age - 40) / 8, float(age is None), (np.log1p(visits) - 1) / 2]
    return float(1 / (1 + np.exp(-(ID_WEIGHT[id_] + np.array(numbers) @ NUMBER_WEIGHT[:, 0]))))


def write_mixing(folder: Path) -> Path:
    """A network whose answer for a sample depends on the others of its batch."""
    nodes = [helper.make_node("ReduceMean", ["x"], ["m"], axes=[0]), helper.make_node("Sub", ["x", "m"], ["output"])]
    samples = RNG.normal(size=(4, 2)).astype(np.float32)
    return write_folder(folder, nodes, {"x": ("float32", ["batch", 2])}, {"output": ["batch", 2]}, {}, {"x": samples})


def write_slow(folder: Path) -> Path:
    """Works longer the larger its numbers are: a thousand steps take a few ms."""
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        [
            helper.make_node("MatMul", ["v", "w"], ["v1"]),
            helper.make_node("Tanh", ["v1"], ["v2"]),
            helper.make_node("Identity", ["c"], ["c1"]),
        ],
        "body",
        [value("i", TensorProto.INT64, []), value("c", TensorProto.BOOL, []), value("v", TensorProto.FLOAT, [96, 96])],
        [value("c1", TensorProto.BOOL, []), value("v2", TensorProto.FLOAT, [96, 96])],
    )
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["m"], keepdims=0),
        helper.make_node("Cast", ["m"], ["n"], to=TensorProto.INT64),
        helper.make_node("Loop", ["n", "yes", "w"], ["end"], body=body),
        helper.make_node("ReduceSum", ["end"], ["s"], keepdims=0),
        helper.make_node("Mul", ["s", "zero"], ["z"]),
        helper.make_node("Add", ["x", "z"], ["output"]),
    ]
    constants = {"w": SQUARE, "yes": np.array(True), "zero": np.array(0, np.float32)}
    samples = np.arange(1, 4, dtype=np.float32)[:, None]
    return write_folder(
        folder, nodes, {"x": ("float32", ["batch", 1])}, {"output": ["batch", 1]}, constants, {"x": samples}
    )


class Served:
    """`mxtrain serve` as a process.

    Args:
        words: folders and settings.
        environment: further variables.

    Attributes:
        port: that it listens on.
        process: of the server.
    """

    def __init__(self, *words: Any, environment: Mapping[str, str] = {}) -> None:
        self._log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "mxtrain", "serve", *map(str, words), "port=0", "threads=1"],
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        )
        assert self.process.stdout is not None
        said, found = "-", None
        while said and found is None:
            said = self.process.stdout.readline()
            found = re.search(r" at http://.*:(\d+)$", said.strip())
        if found is None:
            self.end()
            raise RuntimeError(f"{said}{self.errors}")
        self.port = int(found[1])

    def __enter__(self) -> Served:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.end(signal.SIGINT)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Sends a signal and returns the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            code = self.process.wait(30)
        finally:
            self.process.kill()
            assert self.process.stdout is not None
            self.process.stdout.close()
            assert self.errors is not None  # read before the file is closed
            self._log.close()
        return code

    @property
    def errors(self) -> str:
        """Returns the standard error of the server so far."""
        if not self._log.closed:
            self._log.seek(0)
            self._errors = self._log.read()
        return self._errors

    @property
    def log(self) -> List[Dict[str, Any]]:
        """The events it has logged."""
        return [json.loads(line) for line in self.errors.splitlines()]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(
        self,
        path: str,
        body: Any = None,
        kind: str = "application/json",
        method: str = "",
        headers: Mapping[str, str] = {},
        timeout_s: float = 30,
    ) -> Tuple[int, Any, Dict[str, str]]:
        """Status, body (JSON decoded) and headers of one request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        try:
            content = json.dumps(body).encode() if isinstance(body, (dict, list)) else body
            connection.request(
                method or ("GET" if body is None else "POST"),
                path,
                content,
                {**({"Content-Type": kind} if body is not None else {}), **headers},
            )
            response = connection.getresponse()
            found = response.read()
            is_json = response.headers.get("content-type", "").startswith("application/json")
            named = {name.lower(): value for name, value in response.headers.items()}
            return response.status, json.loads(found) if is_json else found, named
        finally:
            connection.close()

    def infer(self, model: str, name: str, array: np.ndarray, datatype: str) -> Tuple[int, Any]:
        """One input as JSON."""
        tensor = {"name": name, "shape": list(array.shape), "datatype": datatype, "data": array.ravel().tolist()}
        return self.ask(f"/v2/models/{model}/infer", {"inputs": [tensor]})[:2]
