"""One exported network: what it takes and gives, and the check of what clients send."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np

from mxtrain.errors import did_you_mean
from mxtrain.export import standalone
from mxtrain.export.standalone import UnusableFolder
from mxtrain.serving.errors import RequestError
from mxtrain.serving.generators import ServedParts, TextGenerator, make_generator
from mxtrain.serving.readers import BodyReader, find_reader

Arrays = Dict[str, np.ndarray]
BATCH = "batch"
_TYPES = {
    "tensor(float)": ("float32", "FP32"), "tensor(double)": ("float64", "FP64"), "tensor(float16)": ("float16", "FP16"),
    "tensor(uint8)": ("uint8", "UINT8"), "tensor(int8)": ("int8", "INT8"), "tensor(bool)": ("bool", "BOOL"),
    "tensor(uint16)": ("uint16", "UINT16"), "tensor(int16)": ("int16", "INT16"),
    "tensor(uint32)": ("uint32", "UINT32"), "tensor(int32)": ("int32", "INT32"),
    "tensor(uint64)": ("uint64", "UINT64"), "tensor(int64)": ("int64", "INT64"),
}  # fmt: skip
"""ONNX Runtime's name of a type -> NumPy's and the protocol's."""
LEAST_OPEN_SIZE = 16
"""An open dimension may always be this large."""


@dataclass(frozen=True)
class TensorSpec:
    """One input or output.

    Attributes:
        name: of the tensor.
        dtype: NumPy's name of its type.
        datatype: the protocol's.
        dims: sizes; a string is the name of an open one.
    """

    name: str
    dtype: str
    datatype: str
    dims: Tuple[Union[int, str], ...]

    @classmethod
    def from_node(cls, value: Any) -> TensorSpec:
        """That of a session. Raises: UnusableFolder: it is no tensor of numbers."""
        if value.type not in _TYPES:
            raise UnusableFolder(f"{value.name} is a {value.type}, and only tensors of numbers can be served")
        dims = tuple(size if isinstance(size, int) else str(size or f"{value.name}_{axis}")
                     for axis, size in enumerate(value.shape))  # fmt: skip
        return cls(value.name, *_TYPES[value.type], dims)

    def to_json(self) -> Dict[str, Any]:
        """As the protocol writes it: -1 for open sizes."""
        shape = [size if isinstance(size, int) else -1 for size in self.dims]
        return {"name": self.name, "datatype": self.datatype, "shape": shape}


class ServedModel:
    """An exported network, ready to compute.

    Args:
        name: for clients.
        folder: from anybody; nothing in it is executed.
        threads: of the network; 0 = as many as cores.
        check: repeat the proof.
        max_batch: samples of a request at most.
        max_scale: see `ServeSettings`.

    Attributes:
        is_batched: whether samples of several requests may be computed together: the batch is open, and each sample
            of the proof gives the same alone and among others.
        statistics: by input, the mean and deviation of the proof's samples.
        class_names: of what is predicted; empty if it has none.
        own_signature: that of the checkpoint.
        parts: further networks of the folder.
        generator: writes texts with the parts; None if the network writes none.
        reader: of bodies that are an image, a text or a sound; None if only arrays are read.

    Raises:
        UnusableFolder: it is no export, or its network computes something else here.
    """

    def __init__(self, name: str, folder: str, threads: int, check: bool, max_batch: int, max_scale: float) -> None:
        self.name, self.folder = name, folder
        self.signature = standalone.read_json(folder, standalone.SIGNATURE)
        self.report = standalone.read_json(folder, standalone.REPORT)
        self.session = standalone.load_session(folder, threads)
        self.inputs = [TensorSpec.from_node(one) for one in self.session.get_inputs()]
        self.outputs = [TensorSpec.from_node(one) for one in self.session.get_outputs()]
        # Readers get the inputs as the network has them, whatever the signature says.
        self.signature["inputs"] = [
            {"name": one.name, "dtype": one.dtype, "shape": list(one.dims)} for one in self.inputs
        ]  # fmt: skip
        self.parts = ServedParts(folder, self.signature, threads)
        self.generator: Optional[TextGenerator] = make_generator(self.parts)
        arrays = standalone.read_arrays(folder)
        cases = standalone.cases_of(arrays)
        if check:
            unordered = self.signature.get("order_dependent", ())
            self._check(standalone.errors_of(self.session, cases, unordered))
            for part, session in self.parts.sessions.items():
                errors = standalone.errors_of(session, standalone.cases_of(arrays, part))
                self._check({f"{part}.{output}": error for output, error in errors.items()})
        first = {one.dims[0] if one.dims else None for one in self.inputs}
        self.is_batched = len(first) == 1 and isinstance(next(iter(first)), str) and self._keeps_rows(cases)
        self.max_rows = max_batch if all(isinstance(size, str) for size in first) else 1
        self._largest = self._open_sizes(cases, max_scale)
        self.statistics = _statistics(cases)
        self.reader: Optional[BodyReader] = find_reader(self.parts, self.inputs)
        names, own = self.signature.get("class_names"), self.signature.get("signature")
        self.class_names: Sequence[str] = (
            names if isinstance(names, list) and all(isinstance(one, str) for one in names) else []
        )
        self.own_signature: Dict[str, Any] = own if isinstance(own, dict) else {}

    def _check(self, errors: Mapping[str, float]) -> None:
        tolerance = standalone.tolerance_of(self.report)
        wrong = {name: error for name, error in errors.items() if not error <= tolerance}
        if wrong or not errors:
            listed = ", ".join(f"{name} {error:.1e}" for name, error in wrong.items()) or "it holds no outputs"
            raise UnusableFolder(f"{self.folder}: the proof fails on this machine: {listed}")

    def _keeps_rows(self, cases: Sequence[Tuple[Arrays, Arrays]]) -> bool:
        """True if a sample gives the same alone and among others: else answers would depend on other clients."""
        several = [inputs for inputs, _ in cases if inputs and min(len(one) for one in inputs.values()) > 1]
        if not several:
            return False
        inputs, rows = several[0], len(next(iter(several[0].values())))
        together = standalone.run(self.session, inputs)
        if any(not one.ndim or len(one) != rows for one in together.values()):
            return False
        alone = [(row_of(inputs, row), row_of(together, row)) for row in range(rows)]
        return all(error <= standalone.MAX_ERROR for error in standalone.errors_of(self.session, alone).values())

    def _open_sizes(self, cases: Sequence[Tuple[Arrays, Arrays]], max_scale: float) -> Dict[str, int]:
        found: Dict[str, int] = {}
        for spec in self.inputs:
            for axis, dim in enumerate(spec.dims):
                if isinstance(dim, str) and axis > 0:
                    seen = [one[spec.name].shape[axis] for one, _ in cases
                            if spec.name in one and one[spec.name].ndim > axis]  # fmt: skip
                    found[dim] = max(round(max(seen, default=1) * max_scale), LEAST_OPEN_SIZE, found.get(dim, 0))
        return found

    def validate(self, arrays: Mapping[str, np.ndarray]) -> int:
        """Checks the inputs of a request; returns the number of samples.

        Raises:
            RequestError: names the input, what it is and what is allowed.
        """
        names = [spec.name for spec in self.inputs]
        for name in arrays:
            if name not in names:
                raise RequestError(400, f"there is no input '{name[:100]}'.{did_you_mean(name[:100], names)} Inputs: "
                                        f"{', '.join(names)}.")  # fmt: skip
        sizes: Dict[str, int] = {}
        for spec in self.inputs:
            if spec.name not in arrays:
                raise RequestError(400, f"the input '{spec.name}' is missing. Inputs: {', '.join(names)}.")
            self._validate(spec, arrays[spec.name], sizes)
        rows = arrays[self.inputs[0].name].shape[0] if self.inputs[0].dims else 1
        if rows > self.max_rows:
            raise RequestError(413, f"the request has {rows} samples; at most {self.max_rows} are taken at once. Send "
                                    "several requests.")  # fmt: skip
        return rows

    def _validate(self, spec: TensorSpec, array: np.ndarray, sizes: Dict[str, int]) -> None:
        if array.dtype != spec.dtype:
            raise RequestError(400, f"the input '{spec.name}' is {array.dtype}; it must be {spec.datatype}.")
        wanted = f"[{', '.join(map(str, spec.dims))}]"
        if array.ndim != len(spec.dims):
            raise RequestError(400, f"the input '{spec.name}' has {array.ndim} dimensions; its shape must be {wanted}.")
        for axis, (size, dim) in enumerate(zip(array.shape, spec.dims)):
            fits = size == dim if isinstance(dim, int) else size == sizes.setdefault(dim, size)
            if not fits or size < 1:
                raise RequestError(400, f"the input '{spec.name}' has the shape {list(array.shape)}; it must be "
                                        f"{wanted}, with the same size wherever a name is the same.")  # fmt: skip
            if axis and isinstance(dim, str) and size > self._largest[dim]:
                raise RequestError(413, f"the input '{spec.name}' has the {dim} {size}; at most {self._largest[dim]} "
                                        "are taken.")  # fmt: skip
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise RequestError(400, f"the input '{spec.name}' holds numbers that are not finite.")

    def metadata(self) -> Dict[str, Any]:
        """What the protocol tells of a model."""
        return {
            "name": self.name, "versions": ["1"], "platform": "onnxruntime_onnx",
            "inputs": [spec.to_json() for spec in self.inputs], "outputs": [spec.to_json() for spec in self.outputs],
            "parameters": {
                "task": str(self.signature.get("task", "")), "is_batched": self.is_batched,
                "max_rows": self.max_rows, "accepts": self.accepts, "kind": self.reader.kind if self.reader else "json",
                "generate": self.generator.defaults.model_dump() if self.generator else None,
            },
        }  # fmt: skip

    @property
    def accepts(self) -> List[str]:
        """Media types of bodies of `predict`."""
        return [*(self.reader.media_types if self.reader else ()), "application/json"]


def row_of(arrays: Mapping[str, np.ndarray], row: int) -> Arrays:
    """One sample of arrays, (1, ...) each."""
    return {name: one[row : row + 1] for name, one in arrays.items()}


def _statistics(cases: Sequence[Tuple[Arrays, Arrays]]) -> Dict[str, Tuple[float, float]]:
    values: Dict[str, List[np.ndarray]] = {}
    for inputs, _ in cases:
        for name, array in inputs.items():
            values.setdefault(name, []).append(array.astype(np.float64).ravel())
    joined = {name: np.concatenate(parts) for name, parts in values.items()}
    return {name: (float(one.mean()), float(one.std())) for name, one in joined.items() if one.size}
