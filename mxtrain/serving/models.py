"""An exported network on the server: its inputs and outputs, and the validation of requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np

from mxtrain.errors import did_you_mean
from mxtrain.exporting import standalone
from mxtrain.exporting.standalone import UnusableFolder
from mxtrain.serving.errors import RequestError
from mxtrain.serving.generators import ServedParts, TextGenerator, make_generator
from mxtrain.serving.readers import JSON_TYPE, BodyReader, find_reader, require_tokenizer_libraries

Arrays = Dict[str, np.ndarray]
BATCH = "batch"
_TYPES = {
    "tensor(float)": ("float32", "FP32"),
    "tensor(double)": ("float64", "FP64"),
    "tensor(float16)": ("float16", "FP16"),
    "tensor(uint8)": ("uint8", "UINT8"),
    "tensor(int8)": ("int8", "INT8"),
    "tensor(bool)": ("bool", "BOOL"),
    "tensor(uint16)": ("uint16", "UINT16"),
    "tensor(int16)": ("int16", "INT16"),
    "tensor(uint32)": ("uint32", "UINT32"),
    "tensor(int32)": ("int32", "INT32"),
    "tensor(uint64)": ("uint64", "UINT64"),
    "tensor(int64)": ("int64", "INT64"),
}
"""Type name of ONNX Runtime -> type names of NumPy and of the protocol."""
MIN_OPEN_LIMIT = 16
"""Lower bound of the limit of an open dimension."""


@dataclass(frozen=True)
class TensorSpec:
    """One input or output.

    Attributes:
        name: name of the tensor.
        dtype: NumPy's name of its type.
        datatype: the protocol's name of its type.
        dims: sizes; a string is the name of an open dimension.
    """

    name: str
    dtype: str
    datatype: str
    dims: Tuple[Union[int, str], ...]

    @classmethod
    def from_node(cls, value: Any) -> TensorSpec:
        """Returns the description of an input or output of a session.

        Raises:
            UnusableFolder: it is not a tensor of numbers.
        """
        if value.type not in _TYPES:
            raise UnusableFolder(f"{value.name} is a {value.type}, and only tensors of numbers can be served")
        dims = tuple(
            size if isinstance(size, int) else str(size or f"{value.name}_{axis}")
            for axis, size in enumerate(value.shape)
        )
        return cls(value.name, *_TYPES[value.type], dims)

    def to_json(self) -> Dict[str, Any]:
        """Returns the description in the format of the protocol, with -1 for open sizes."""
        shape = [size if isinstance(size, int) else -1 for size in self.dims]
        return {"name": self.name, "datatype": self.datatype, "shape": shape}


class ServedModel:
    """An exported network, ready to compute.

    Args:
        name: name for clients.
        folder: exported folder; it may be untrusted, since nothing in it is executed.
        threads: threads of the network; 0 = number of cores.
        check: True to repeat the proof of the export.
        max_batch: largest number of samples of a request.
        max_scale: see `ServeSettings`.

    Attributes:
        is_batched: True if samples of several requests may share a batch: the batch size is open, and the outputs for
            a sample of the proof do not depend on the other samples.
        statistics: input -> mean and standard deviation of the proof's samples.
        class_names: names of the predicted classes; empty if there are none.
        parts: further networks of the folder.
        generator: text generator with the parts; None if the network generates no text.
        reader: reader of images, texts or recordings; None if only arrays are read.

    Raises:
        UnusableFolder: the folder is not an export, or its network computes other values on this machine.
    """

    def __init__(self, name: str, folder: str, threads: int, check: bool, max_batch: int, max_scale: float) -> None:
        self.name, self.folder = name, folder
        self.signature = standalone.read_signature(folder)
        require_tokenizer_libraries(self.signature)
        self.report = standalone.read_json(folder, standalone.REPORT)
        self.session = standalone.load_session(folder, threads)
        self.inputs = [TensorSpec.from_node(node) for node in self.session.get_inputs()]
        self.outputs = [TensorSpec.from_node(node) for node in self.session.get_outputs()]
        # Readers get the inputs as the network has them, whatever the signature says.
        self.signature["inputs"] = [
            {"name": spec.name, "dtype": spec.dtype, "shape": list(spec.dims)} for spec in self.inputs
        ]
        self._fixed = f" {self.signature['fixed']}." if self.signature.get("fixed") else ""
        self.parts = ServedParts(folder, self.signature, threads)
        self.generator: Optional[TextGenerator] = make_generator(self.parts)
        arrays = standalone.read_arrays(folder)
        cases = standalone.proven_cases(self.session, arrays)
        if check:
            # onnxruntime takes other kernels on other processors, so the proof is repeated where the network is served.
            unordered = self.signature.get("order_dependent", ())
            self._require_proof(standalone.errors_of(self.session, cases, unordered))
            for part, session in self.parts.sessions.items():
                errors = standalone.errors_of(session, standalone.proven_cases(session, arrays, part))
                self._require_proof({f"{part}.{output}": error for output, error in errors.items()})
        batch_dims = {spec.dims[0] if spec.dims else None for spec in self.inputs}
        self.is_batched = (
            len(batch_dims) == 1 and isinstance(next(iter(batch_dims)), str) and self._has_independent_rows(cases)
        )
        self.max_rows = max_batch if all(isinstance(size, str) for size in batch_dims) else 1
        self._max_size_of = self._limits_of_open_sizes(cases, max_scale)
        self.statistics = _statistics(cases)
        self.reader: Optional[BodyReader] = find_reader(self.parts, self.inputs)
        self.class_names: Sequence[str] = self.signature.get("class_names", [])

    def _require_proof(self, errors: Mapping[str, float]) -> None:
        tolerance = standalone.tolerance_of(self.report)
        wrong = {name: error for name, error in errors.items() if not error <= tolerance}
        if wrong or not errors:
            listed = ", ".join(f"{name} {error:.1e}" for name, error in wrong.items()) or "it holds no outputs"
            raise UnusableFolder(f"{self.folder}: the proof fails on this machine: {listed}")

    def _has_independent_rows(self, cases: Sequence[Tuple[Arrays, Arrays]]) -> bool:
        """Returns True if outputs do not depend on the other samples of a batch, which other clients may have sent."""
        several = [inputs for inputs, _ in cases if inputs and min(len(array) for array in inputs.values()) > 1]
        if not several:
            return False
        inputs, rows = several[0], len(next(iter(several[0].values())))
        batch_outputs = standalone.run(self.session, inputs)
        if any(not array.ndim or len(array) != rows for array in batch_outputs.values()):
            return False
        single_cases = [(row_of(inputs, row), row_of(batch_outputs, row)) for row in range(rows)]
        return all(error <= standalone.MAX_ERROR for error in standalone.errors_of(self.session, single_cases).values())

    def _limits_of_open_sizes(self, cases: Sequence[Tuple[Arrays, Arrays]], max_scale: float) -> Dict[str, int]:
        """Returns the largest allowed size of each open dimension: `max_scale` times that of the proof's samples."""
        limits: Dict[str, int] = {}
        for spec in self.inputs:
            for axis, dim in enumerate(spec.dims):
                if isinstance(dim, str) and axis > 0:
                    sizes = [
                        inputs[spec.name].shape[axis]
                        for inputs, _ in cases
                        if spec.name in inputs and inputs[spec.name].ndim > axis
                    ]
                    limits[dim] = max(round(max(sizes, default=1) * max_scale), MIN_OPEN_LIMIT, limits.get(dim, 0))
        return limits

    def validate(self, arrays: Mapping[str, np.ndarray]) -> int:
        """Checks the inputs of a request; returns the number of samples.

        Raises:
            RequestError: an input is invalid; the message names it and the allowed values.
        """
        names = [spec.name for spec in self.inputs]
        for name in arrays:
            if name not in names:
                raise RequestError(
                    400,
                    f"there is no input '{name[:100]}'.{did_you_mean(name[:100], names)} Inputs: {', '.join(names)}.",
                )
        sizes: Dict[str, int] = {}
        for spec in self.inputs:
            if spec.name not in arrays:
                raise RequestError(400, f"the input '{spec.name}' is missing. Inputs: {', '.join(names)}.")
            self._validate(spec, arrays[spec.name], sizes)
        rows = arrays[self.inputs[0].name].shape[0] if self.inputs[0].dims else 1
        if rows > self.max_rows:
            raise RequestError(
                413,
                f"the request has {rows} samples; at most {self.max_rows} are taken at once. Send several requests.",
            )
        return rows

    def _validate(self, spec: TensorSpec, array: np.ndarray, sizes: Dict[str, int]) -> None:
        if array.dtype != spec.dtype:
            raise RequestError(400, f"the input '{spec.name}' is {array.dtype}; it must be {spec.datatype}.")
        expected = f"[{', '.join(map(str, spec.dims))}]"
        if array.ndim != len(spec.dims):
            raise RequestError(
                400, f"the input '{spec.name}' has {array.ndim} dimensions; its shape must be {expected}."
            )
        for axis, (size, dim) in enumerate(zip(array.shape, spec.dims)):
            fits = size == dim if isinstance(dim, int) else size == sizes.setdefault(dim, size)
            if not fits or size < 1:
                raise RequestError(
                    400,
                    f"the input '{spec.name}' has the shape {list(array.shape)}; it must be "
                    f"{expected}, with the same size wherever a name is the same.{self._fixed}",
                )
            if axis and isinstance(dim, str) and size > self._max_size_of[dim]:
                raise RequestError(
                    413, f"the input '{spec.name}' has the {dim} {size}; at most {self._max_size_of[dim]} are taken."
                )
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise RequestError(400, f"the input '{spec.name}' holds numbers that are not finite.")

    def metadata(self) -> Dict[str, Any]:
        """Returns the metadata of the model in the format of the protocol."""
        return {
            "name": self.name,
            "versions": ["1"],
            "platform": "onnxruntime_onnx",
            "inputs": [spec.to_json() for spec in self.inputs],
            "outputs": [spec.to_json() for spec in self.outputs],
            "parameters": {
                "task": str(self.signature.get("task", "")),
                "is_batched": self.is_batched,
                "max_rows": self.max_rows,
                "accepts": self.accepts,
                "kind": self.reader.kind if self.reader else "json",
                "example": self.reader.example if self.reader else "",
                "columns": list(self.reader.columns) if self.reader else [],
                "generate": self.generator.defaults.model_dump() if self.generator else None,
            },
        }

    @property
    def accepts(self) -> List[str]:
        """Returns the media types of bodies for `predict`."""
        return list(dict.fromkeys([*self.read_types, JSON_TYPE]))

    @property
    def read_types(self) -> Sequence[str]:
        """Returns the media types of bodies that `reader` reads."""
        return self.reader.media_types if self.reader else ()

    @property
    def max_joint_rows(self) -> int:
        """Returns the largest number of rows of one sample that are computed together; 1 if the rows of a batch
        influence each other."""
        return self.max_rows if self.is_batched else 1


def row_of(arrays: Mapping[str, np.ndarray], row: int) -> Arrays:
    """Returns one sample of arrays, (1, ...) each."""
    return {name: array[row : row + 1] for name, array in arrays.items()}


def _statistics(cases: Sequence[Tuple[Arrays, Arrays]]) -> Dict[str, Tuple[float, float]]:
    values: Dict[str, List[np.ndarray]] = {}
    for inputs, _ in cases:
        for name, array in inputs.items():
            values.setdefault(name, []).append(array.astype(np.float64).ravel())
    flat = {name: np.concatenate(parts) for name, parts in values.items()}
    return {name: (float(array.mean()), float(array.std())) for name, array in flat.items() if array.size}
