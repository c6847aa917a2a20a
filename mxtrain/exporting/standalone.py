"""Runs an exported network and repeats its proof. Needs onnxruntime and NumPy, and what reads the files: Pillow for
images, tokenizers or sentencepiece for texts.

    python predict.py FILE...               predictions, a JSON object a line; of images and sound also folders
    python predict.py --out FOLDER FILE...  the same; sound and masks are written to FOLDER instead of predicted/
    python predict.py --check               repeats the proof: MXNet's outputs for a few samples, and how files are read

predict.py and reading/ are code of the folder: run them only if you trust where the folder comes from. `mxtrain export
check FOLDER` repeats the proof of an untrusted folder without executing its code.
"""

from __future__ import annotations

import csv
import importlib
import json
import math
import os
import signal
import stat
import sys
import warnings
import zipfile
from typing import Any, Callable, Collection, Dict, Iterator, List, Sequence, Tuple

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # Before NumPy is imported, which takes long: Ctrl-C ends the program without a traceback, with the usual exit code.
    signal.signal(signal.SIGINT, lambda number, frame: os._exit(130))

import numpy as np

# `mxtrain export check` and `mxtrain serve` use this module for folders that may be untrusted: nothing in a folder is
# executed, no file outside of it is read, and sizes are checked before anything is read.
MODEL, WEIGHTS, SIGNATURE, PROOF, REPORT = "model.onnx", "model.onnx.data", "signature.json", "proof.npz", "export.json"
PROOF_FILES = "proof_files.npz"
"""Files that were made for the proof, and the inputs that the run made of them."""
READING = "reading"
"""Folder of the modules that read samples of files."""
PARTS = ("encoder", "step")
"""Further networks that a folder may hold, in files such as step.onnx."""
DTYPES = (
    "float16",
    "float32",
    "float64",
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
)
"""Types of tensors."""
MAX_MODEL_BYTES, MAX_WEIGHT_BYTES = 2**31, 1 << 36
MAX_JSON_BYTES, MAX_ARRAY_BYTES, MAX_ARRAYS = 1 << 26, 1 << 29, 1000
"""Largest size of a .json file, of the arrays of a .npz file, and largest number of these arrays."""
MAX_GIVEN_BYTES = 1 << 30
"""Largest size of a file to predict for."""
OUT, WRITTEN = "--out", "predicted"
"""Option that names the folder for files that are predicted, such as masks, and its default."""
RANKED = "detections"
"""Name of the output whose rows are in the order of their scores."""
MAX_ERROR = 1e-4
"""Largest difference from MXNet's outputs, relative to the largest number of an output."""
MAX_TOLERANCE = 0.1
"""Largest tolerance that export.json may set, for folders with networks in int8."""
DETECTION_COLUMNS = 6
"""Class, score and box of a detection; further columns are a mask."""
MIN_SHARE = 0.5
"""Smallest share of the rows that must be right in an output whose rows depend on the order of nearly equal scores."""


class UnusableFolder(Exception):
    """The folder is not an export, or its network computes something else than MXNet did."""


def read_regular(path: str, at_most: int, flags: int = 0) -> bytes:
    """Reads a regular file of at most so many bytes.

    Args:
        path: path of the file.
        at_most: largest number of bytes.
        flags: further flags of `os.open`.

    Raises:
        ValueError: the file cannot be read; a sentence.
    """
    try:
        # A pipe without a writer would block without O_NONBLOCK.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_size > at_most:
        os.close(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise ValueError(f"{path} is a folder and not a file")
        raise ValueError(f"{path} cannot be read: it is no regular file of at most {at_most:,} bytes")
    with os.fdopen(descriptor, "rb") as file:
        return file.read(status.st_size)


def read_file(folder: str, name: str, at_most: int) -> bytes:
    """Reads a regular file of the folder; links are rejected."""
    try:
        return read_regular(os.path.join(folder, name), at_most, os.O_NOFOLLOW)
    except ValueError as error:
        raise UnusableFolder(str(error)) from error


def plain_name(name: str) -> str:
    """Returns the name of a file of a folder. Raises: UnusableFolder: it contains a path."""
    if os.path.basename(name) != name:
        raise UnusableFolder(f"{name} is no file of the folder")
    return name


def read_json(folder: str, name: str) -> Dict[str, Any]:
    """Reads a JSON object, whose numbers must be finite."""
    try:
        found = json.loads(read_file(folder, name, MAX_JSON_BYTES), parse_float=_finite, parse_constant=_finite)
    except (ValueError, RecursionError) as error:
        raise UnusableFolder(f"{os.path.join(folder, name)} holds no JSON: {error}") from error
    if not isinstance(found, dict):
        raise UnusableFolder(f"{os.path.join(folder, name)} holds no JSON object")
    return found


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:100]} is no finite number")
    return value


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _is_shape(value: Any) -> bool:
    # `type`, because True is an instance of int.
    return isinstance(value, list) and all(isinstance(one, str) or type(one) is int and one > 0 for one in value)


def _are_tensors(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(one, dict)
        and isinstance(one.get("name"), str)
        and _is_shape(one.get("shape"))
        and one.get("dtype") in DTYPES
        for one in value
    )


def _are_parts(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and set(value) <= set(PARTS)
        and all(isinstance(one, dict) and _are_tensors(one.get("inputs")) for one in value.values())
    )


def _is_endings(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(one, str) and one.startswith(".") and one == os.path.basename(one) for one in value.values()
    )


def _is_tokenizer(value: Any) -> bool:
    """Returns True for values without a file, and for those of a tokenizer."""
    if not isinstance(value, dict) or "file" not in value:
        return True
    name = value["file"]
    return (
        isinstance(name, str)
        and name.endswith((".json", ".model"))
        and os.path.basename(name) == name
        and type(value.get("lowercase")) is bool
        and type(value.get("max_length")) is int
        and value["max_length"] > 0
        and _are_ids(value.get("special"))
        and all(type(value.get(key)) is int for key in ("pad", "unknown"))
        and all(value.get(key) is None or type(value[key]) is int for key in ("first", "last", "bos", "eos"))
    )


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and all(type(one) is int for one in value)


_TENSORS = "a list of objects with name, dtype (such as float32) and shape (sizes above 0, or names of open ones)"
SCHEMA: Dict[str, Tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(
        ("task", "samples", "reader", "input", "signature_class", "fixed"),
        (lambda value: isinstance(value, str), "a text"),
    ),
    **dict.fromkeys(("predicts", "reads_json"), (lambda value: type(value) is bool, "true or false")),
    **dict.fromkeys(("class_names", "order_dependent", "targets"), (_are_texts, "a list of texts")),
    "inputs": (lambda value: _are_tensors(value) and bool(value), _TENSORS),
    "outputs": (
        lambda value: isinstance(value, list)
        and all(isinstance(one, dict) and isinstance(one.get("name"), str) for one in value),
        "a list of objects with name",
    ),
    "parts": (_are_parts, f"an object with {' and '.join(PARTS)} at most, each with inputs: {_TENSORS}"),
    "signature": (lambda value: isinstance(value, dict), "an object"),
    "facts": (
        lambda value: isinstance(value, dict) and all(map(_is_tokenizer, value.values())),
        "an object; one with `file` is a tokenizer, with the name of a .json or .model file of the folder, and "
        "lowercase, max_length, special, pad, unknown, first, last, bos and eos",
    ),
    "writes": (_is_endings, "an object with endings of files, such as .wav"),
}
"""Field of signature.json -> check of its value, and the allowed values. Folders of earlier versions lack some."""


def read_signature(folder: str, needed: Collection[str] = ()) -> Dict[str, Any]:
    """Reads and validates signature.json.

    Args:
        folder: the exported folder.
        needed: fields that must be there.

    Raises:
        UnusableFolder: a field is missing or has a value that is not allowed; the message names both.
    """
    signature = read_json(folder, SIGNATURE)
    path = os.path.join(folder, SIGNATURE)
    for name in needed:
        if name not in signature:
            raise UnusableFolder(f"{path}: {name} is missing; it must be {SCHEMA[name][1]}")
    for name, (is_right, allowed) in SCHEMA.items():
        if name in signature and not is_right(signature[name]):
            shown = json.dumps(signature[name])
            shown = f"{shown[:100]}..." if len(shown) > 100 else shown
            raise UnusableFolder(f"{path}: {name} is {shown}; it must be {allowed}")
    return signature


def protobuf_fields(message: memoryview) -> Iterator[Tuple[int, Any]]:
    """Yields (number, value) of the fields of a protocol buffer: an int, or bytes for all other wire types.

    Parsing them here, instead of with onnx, keeps the dependencies of an export small.
    """
    position, end = 0, len(message)

    def varint() -> int:
        nonlocal position
        value = shift = 0
        while True:
            byte = message[position]
            position += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
            if shift > 63:
                raise ValueError("a number has no end")

    while position < end:
        key = varint()
        if key >> 32:  # other readers ignore the bits above
            raise ValueError("a key is too large")
        if key & 7 == 0:
            yield key >> 3, varint()
            continue
        size = {1: 8, 5: 4}.get(key & 7) if key & 7 != 2 else varint()
        if size is None or position + size > end:
            raise ValueError("a field has no end")
        yield key >> 3, message[position : position + size]
        position += size


# Numbers of fields in onnx.proto: which messages hold which, down to tensors and the operators' domains.
_GRAPH, _OPERATOR_SET, _FUNCTION, _NODE, _INITIALIZER, _SPARSE, _ATTRIBUTE, _LOCATION = range(8)
_MESSAGES: Dict[int, Dict[int, int]] = {
    _GRAPH: {1: _NODE, 5: _INITIALIZER, 15: _SPARSE},
    _NODE: {5: _ATTRIBUTE},
    _ATTRIBUTE: {5: _INITIALIZER, 6: _GRAPH, 10: _INITIALIZER, 11: _GRAPH, 22: _SPARSE, 23: _SPARSE},
    _SPARSE: {1: _INITIALIZER, 2: _INITIALIZER},
    _INITIALIZER: {13: _LOCATION},
}
KNOWN = (b"", b"ai.onnx")
_MODEL = {7: _GRAPH, 8: _OPERATOR_SET, 20: _FUNCTION, 25: _FUNCTION}


def weights_of(name: str) -> str:
    """Returns the name of the file with a network's weights, which exists if they are more than 2 GB."""
    return f"{name}.data"


def check_model(content: bytes, weights: str = WEIGHTS) -> bool:
    """Rejects models with operators of other domains, functions, or data in other files than `weights`.

    Such operators may be code of an extension, and onnxruntime reads external data from any path in the model.

    Returns:
        True if the model reads data from `weights`.

    Raises:
        UnusableFolder: the model contains one of these, or is damaged.
    """
    waiting: List[Tuple[memoryview, Dict[int, int]]] = [(memoryview(content), _MODEL)]
    reads_weights = False
    try:
        while waiting:
            message, known = waiting.pop()
            for number, value in protobuf_fields(message):
                kind = known.get(number)
                if kind == _FUNCTION:
                    raise UnusableFolder(f"{MODEL} defines operators of its own")
                if kind == _OPERATOR_SET and any(n == 1 and v not in KNOWN for n, v in protobuf_fields(value)):
                    raise UnusableFolder(f"{MODEL} has operators that are not ONNX's")
                if kind == _LOCATION:
                    found = list(protobuf_fields(value))
                    parts = dict(found)
                    if len(parts) < len(found):  # this check and onnxruntime might use different ones of the two
                        raise ValueError("a field is given twice")
                    reads_weights = True
                    if parts.get(1) == b"location" and parts.get(2) != weights.encode():
                        raise UnusableFolder(f"{MODEL} reads data outside of {weights}")
                elif kind in _MESSAGES:
                    waiting.append((value, _MESSAGES[kind]))
    except (ValueError, IndexError, TypeError, AttributeError) as error:
        raise UnusableFolder(f"{MODEL} is damaged: {error}") from error
    return reads_weights


def load_session(folder: str, threads: int = 0, name: str = MODEL) -> Any:
    """Opens a network of the folder with onnxruntime.

    Args:
        folder: the exported folder.
        threads: threads of an operator; 0: all cores.
        name: file of the network.

    Raises:
        UnusableFolder: the file cannot be read, or is no plain ONNX model.
    """
    import onnxruntime

    content = read_file(folder, name, MAX_MODEL_BYTES)
    reads_weights = check_model(content, weights_of(name))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    # onnxruntime takes 0 for all cores, too.
    options.intra_op_num_threads = threads
    # Idle threads that spin would take CPU time from other processes.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    weights = os.path.join(folder, weights_of(name))
    given: Any = content
    if os.path.lexists(weights):  # external data are found relative to the model's path, so bytes would not do
        status = os.lstat(weights)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_WEIGHT_BYTES:
            raise UnusableFolder(f"{weights} cannot be read: it is no regular file, or too large")
        given = os.path.join(folder, name)
    elif reads_weights:  # onnxruntime would take a file of this name in the current folder
        raise UnusableFolder(f"{weights} is missing, in which {name} has its weights")
    try:
        return onnxruntime.InferenceSession(given, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # of onnxruntime, which has no common class for them
        raise UnusableFolder(f"onnxruntime cannot load {os.path.join(folder, name)}: {error}") from error


def run(session: Any, inputs: Dict[str, np.ndarray]) -> Dict[str, np.ndarray]:
    """Runs a network and returns its outputs by name.

    Raises:
        UnusableFolder: the inputs have wrong names, shapes or dtypes.
    """
    names = [one.name for one in session.get_outputs()]
    try:
        return dict(zip(names, session.run(names, inputs)))
    except Exception as error:
        raise UnusableFolder(f"onnxruntime cannot run the network: {error}") from error


def read_arrays(folder: str, name: str = PROOF) -> Dict[str, np.ndarray]:
    """Reads the arrays of a file of numpy.savez, without unpickling and within limits of size.

    Raises:
        UnusableFolder: the file cannot be read, is damaged or too large.
    """
    import io

    found, total = {}, 0
    try:
        with zipfile.ZipFile(io.BytesIO(read_file(folder, name, MAX_ARRAY_BYTES))) as archive:
            members = archive.infolist()
            if len(members) > MAX_ARRAYS or sum(one.file_size for one in members) > MAX_ARRAY_BYTES:
                raise UnusableFolder(f"{os.path.join(folder, name)} unpacks to more than {MAX_ARRAY_BYTES:,} bytes")
            for member in members:
                with archive.open(member) as stream:
                    version = np.lib.format.read_magic(stream)
                    read = (
                        np.lib.format.read_array_header_1_0
                        if version == (1, 0)
                        else np.lib.format.read_array_header_2_0
                    )
                    shape, is_fortran, dtype = read(stream)
                    size = dtype.itemsize * int(np.prod(shape, dtype=object))  # Python integers do not overflow
                    total += size
                    # An object array holds pickles, which would run code.
                    if dtype.hasobject or is_fortran or total > MAX_ARRAY_BYTES:
                        raise UnusableFolder(f"{os.path.join(folder, name)} holds an array that is not read")
                    # One byte more than announced: a longer member is damaged, and a zip bomb is not unpacked.
                    content = stream.read(size + 1)
                    if len(content) != size:
                        raise ValueError(f"{member.filename} is not as large as it says")
                    found[member.filename[: -len(".npy")]] = np.frombuffer(content, dtype).reshape(shape)
    except (ValueError, zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, SyntaxError) as error:
        raise UnusableFolder(f"{os.path.join(folder, name)} is damaged: {error}") from error
    except Exception as error:  # zlib.error and others of a damaged archive
        if isinstance(error, UnusableFolder):
            raise
        raise UnusableFolder(f"{os.path.join(folder, name)} is damaged: {error}") from error
    return found


def optional_arrays(folder: str, name: str) -> Dict[str, np.ndarray]:
    """Reads the arrays of a .npz file; returns none if there is no such file.

    Raises:
        UnusableFolder: the name contains a path, or the file cannot be read, is damaged or too large.
    """
    is_there = os.path.lexists(os.path.join(folder, plain_name(name)))
    return read_arrays(folder, name) if is_there else {}


def cases_of(
    arrays: Dict[str, np.ndarray], part: str = ""
) -> List[Tuple[Dict[str, np.ndarray], Dict[str, np.ndarray]]]:
    """Returns (inputs, MXNet's outputs) of each case of the proof.

    Args:
        arrays: arrays of the proof, named e.g. "0/input/tokens", or "step:0/input/token" for the part "step".
        part: name of a part; "": the network itself.
    """
    found: Dict[str, Tuple[Dict[str, np.ndarray], Dict[str, np.ndarray]]] = {}
    for name, array in arrays.items():
        location, _, rest = name.partition("/")
        part_of_array, _, number = location.rpartition(":")
        if part_of_array and part_of_array not in PARTS:
            raise UnusableFolder(f"{PROOF} holds {name[:100]}, which is no array of a proof")
        if part_of_array != part:
            continue
        kind, _, tensor = rest.partition("/")
        if kind not in ("input", "output"):
            raise UnusableFolder(f"{PROOF} holds {name[:100]}, which is no array of a proof")
        _check_proof_array(name[:100], tensor, array)
        inputs, outputs = found.setdefault(number, ({}, {}))
        (inputs if kind == "input" else outputs)[tensor] = array
    return [found[number] for number in sorted(found)]


def _check_proof_array(location: str, name: str, array: np.ndarray) -> None:
    if array.dtype.name not in DTYPES:
        raise UnusableFolder(f"{PROOF}: {location} has the type {array.dtype}; it must be one of {', '.join(DTYPES)}")
    if name == RANKED and array.ndim == 3 and array.shape[2] < DETECTION_COLUMNS:
        raise UnusableFolder(
            f"{PROOF}: {location} has the shape {_shape_text(array.shape)}; it must have at least "
            f"{DETECTION_COLUMNS} columns: class, score and box"
        )


def proven_cases(
    session: Any, arrays: Dict[str, np.ndarray], part: str = ""
) -> List[Tuple[Dict[str, np.ndarray], Dict[str, np.ndarray]]]:
    """Returns the cases of the proof of a network, see `cases_of`, whose inputs are those of the network.

    Raises:
        UnusableFolder: there is no case with outputs, or inputs have other names or numbers of dimensions.
    """
    cases = cases_of(arrays, part)
    of = f" of {part}" if part else ""
    if not any(expected for _, expected in cases):
        raise UnusableFolder(f"{PROOF} proves nothing{of}: it holds no outputs")
    ranks = {node.name: len(node.shape) for node in session.get_inputs()}
    for inputs, _ in cases:
        found = {name: array.ndim for name, array in inputs.items()}
        if found != ranks:
            described, wanted = (
                ", ".join(f"{name} with {rank} dimensions" for name, rank in one.items()) or "none"
                for one in (found, ranks)
            )
            raise UnusableFolder(f"{PROOF}: a case{of} has the inputs {described}; the network reads {wanted}")
    return cases


def relative_error(found: np.ndarray, expected: np.ndarray) -> float:
    """Returns the largest absolute difference, divided by the largest absolute number of `expected`.

    Infinite if the shapes differ, or NaN and infinity occur at different positions.
    """
    if found.shape != expected.shape:
        return float("inf")
    if not expected.size:
        return 0.0
    # Differences of unsigned integers would wrap around.
    x, y = found.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(y)
    if not (np.isfinite(x) == finite).all() or not np.array_equal(x[~finite], y[~finite], equal_nan=True):
        return float("inf")
    scale = np.abs(y[finite]).max(initial=0.0) or 1.0
    return float(np.abs(x[finite] - y[finite]).max(initial=0.0) / scale)


def detections_error(found: np.ndarray, expected: np.ndarray) -> float:
    """Returns the relative error of detections (B, N, 6 or more): class, score, box, ...

    Rows with equal scores have no defined order, so each expected row is compared with the nearest found row of its
    class. Rows with scores close to that of the last row are ignored if the output is full, since it is not defined
    which of them are kept.
    """
    error = relative_error(found[..., 1], expected[..., 1])
    scale = float(np.abs(expected).max(initial=1.0))
    for found_N6, expected_N6 in zip(found, expected):
        own_N6, other_N6 = (one[one[:, 0] >= 0].astype(np.float64) for one in (found_N6, expected_N6))
        if len(other_N6) == len(expected_N6):  # some may have been cut off
            other_N6 = other_N6[other_N6[:, 1] > other_N6[-1, 1] + MAX_ERROR]
        if len(other_N6) and not len(own_N6):
            return float("inf")
        for row_6 in other_N6:
            away_N = np.abs(own_N6 - row_6).max(axis=1) / scale
            error = max(error, float(away_N[own_N6[:, 0] == row_6[0]].min(initial=np.inf)))
    return error


def rows_error(found: np.ndarray, expected: np.ndarray, share: float) -> float:
    """Returns the largest relative error among the best-matching share of rows (B, N, ...), in any order.

    Networks that keep the regions with the highest scores may keep other regions if scores are nearly equal.

    Args:
        found: the output of onnxruntime.
        expected: the output of MXNet.
        share: share of the expected rows that must match.
    """
    scale = float(np.abs(expected).max(initial=0.0)) or 1.0
    errors: List[float] = []
    flat = (one.astype(np.float64).reshape(*one.shape[:2], -1) for one in (found, expected))
    for found_NM, expected_NM in zip(*flat):
        for row_M in expected_NM:
            away = np.nan_to_num(np.abs(found_NM - row_M), nan=np.inf).max(axis=1, initial=0.0).min(initial=np.inf)
            errors.append(float(away) / scale)
    # NaN has become infinity before: sorted among numbers, it would stay anywhere.
    errors.sort()
    return errors[max(math.ceil(share * len(errors)) - 1, 0)] if errors else 0.0


def errors_of(
    session: Any, cases: Sequence[Tuple[Dict[str, np.ndarray], Dict[str, np.ndarray]]], unordered: Collection[str] = ()
) -> Dict[str, float]:
    """Returns the largest relative error of each output over all cases.

    Args:
        session: the network in onnxruntime.
        cases: inputs and expected outputs.
        unordered: outputs that depend on the order of scores. If one differs, the result is `rows_error` of
            `MIN_SHARE`.
    """
    errors: Dict[str, float] = {}
    for inputs, expected in cases:
        outputs = run(session, inputs)
        for name, array in expected.items():
            if name not in outputs:
                raise UnusableFolder(f"{MODEL} has no output {name!r}, which {PROOF} has")
            found = outputs[name]
            compare = detections_error if name == RANKED and array.ndim == 3 else relative_error
            error = compare(found, array) if found.shape == array.shape else float("inf")
            # Sets are compared only after the exact comparison has failed, since they hide a wrong order.
            if not error <= MAX_ERROR and name in unordered and found.shape == array.shape and array.ndim > 1:
                error = rows_error(found, array, MIN_SHARE)
            errors[name] = max(errors.get(name, 0.0), error)
    return errors


class FirstInputs(Exception):
    """Ends a reader when it runs a network for the first time.

    Attributes:
        inputs: inputs of the network by name.
        part: part of the network; "": the network itself.
    """

    def __init__(self, inputs: Dict[str, np.ndarray], part: str):
        super().__init__()
        self.inputs, self.part = inputs, part


class UnrunExport:
    """Takes the place of an `OpenedExport` whose network is not run: a reader ends with the inputs of the network.

    Args:
        signature: content of signature.json.
        read: returns the content of a file of the folder.
        read_arrays: returns the arrays of a .npz file of the folder.
    """

    def __init__(
        self,
        signature: Dict[str, Any],
        read: Callable[[str], bytes],
        read_arrays: Callable[[str], Dict[str, np.ndarray]],
    ):
        self.signature, self.read, self.read_arrays = signature, read, read_arrays

    def run(self, inputs: Dict[str, np.ndarray], part: str = "") -> Dict[str, np.ndarray]:
        """Raises `FirstInputs`."""
        raise FirstInputs(inputs, part)


def first_inputs(reader: Any, folder: UnrunExport, content: bytes, name: str) -> Dict[str, np.ndarray]:
    """Returns the inputs of the network for the first sample of a file; none if a part of the network is run first.

    Args:
        reader: module that reads files.
        folder: the folder.
        content: content of the file.
        name: name of the file.

    Raises:
        ValueError: the file cannot be read.
    """
    try:
        for _ in reader.predict(folder, content, name):
            pass
    except FirstInputs as found:
        return {} if found.part else found.inputs
    return {}


def input_errors(found: Dict[str, np.ndarray], expected: Dict[str, np.ndarray]) -> Dict[str, float]:
    """Returns the relative error of each input for one sample.

    Args:
        found: inputs (1, ...) by name.
        expected: inputs without the first axis, which may be padded to the length of a batch.
    """
    errors: Dict[str, float] = {}
    for name, array in expected.items():
        own = np.asarray(found[name])[0] if name in found else np.zeros(())
        is_alike = name in found and own.ndim == array.ndim
        part = array[tuple(slice(0, size) for size in own.shape)] if is_alike else array
        errors[name] = relative_error(own, part) if is_alike else math.inf
    return errors


def check_files(folder: str, signature: Dict[str, Any], reader: Any) -> Dict[str, float]:
    """Reads the files of the proof; returns the largest relative error of the inputs for each.

    Args:
        folder: the exported folder.
        signature: content of signature.json.
        reader: module that reads files.

    Raises:
        UnusableFolder: a file is read differently from the run, or cannot be read.
        ImportError: a package that reads files is missing.
    """
    cases: Dict[str, Tuple[Dict[str, np.ndarray], Dict[str, np.ndarray]]] = {}
    for location, array in optional_arrays(folder, PROOF_FILES).items():
        number, kind, name = (location.split("/", 2) + ["", ""])[:3]
        if kind not in ("file", "input") or array.dtype.name not in DTYPES:
            raise UnusableFolder(f"{PROOF_FILES} holds {location[:100]}, which is no array of a proof")
        files, inputs = cases.setdefault(number, ({}, {}))
        (files if kind == "file" else inputs)[name] = array
    unrun = UnrunExport(
        signature,
        lambda name: read_file(folder, plain_name(name), MAX_JSON_BYTES),
        lambda name: optional_arrays(folder, name),
    )
    tolerance, errors = getattr(reader, "MAX_INPUT_ERROR", MAX_ERROR), {}
    for files, expected in cases.values():
        for name, content in files.items():
            if content.tobytes()[:4] == b"PAR1":  # exports write none, and pyarrow is not safe for files of strangers
                raise UnusableFolder(f"{PROOF_FILES} holds Parquet, which no export writes")
            try:
                inputs = first_inputs(reader, unrun, content.tobytes(), name)
                error = max(input_errors(inputs, expected).values(), default=math.inf)
            except (UnusableFolder, ImportError):
                raise
            except Exception as problem:  # of a reader, for a signature or file of strangers
                raise UnusableFolder(f"{name[:100]} of {PROOF_FILES} cannot be read: {problem}") from problem
            if not error <= tolerance:
                raise UnusableFolder(
                    f"{folder}: {name[:100]} of {PROOF_FILES} is read differently from the run, by {error:.1e}"
                )
            errors[f"reading {name}"] = error
    return errors


def check(folder: str, find_reader: Callable[[Dict[str, Any]], Any] = lambda signature: None) -> Dict[str, float]:
    """Repeats the proof of a folder; returns the relative error of each output, and of the inputs of each file.

    Args:
        folder: the exported folder.
        find_reader: signature -> module that reads files; None: files are not read. It is called only if the proof has
            files.

    Raises:
        UnusableFolder: the folder is no export, or an error is larger than its tolerance.
        ImportError: a package that reads files is missing.
    """
    signature = read_signature(folder)
    tolerance = tolerance_of(read_json(folder, REPORT))
    arrays = read_arrays(folder)
    errors: Dict[str, float] = {}
    for part in ("", *signature.get("parts", ())):
        session = load_session(folder, name=f"{part}.onnx" if part else MODEL)
        # Parts are proven by the exact comparison, see `write_part`.
        unordered = () if part else signature.get("order_dependent", ())
        found = errors_of(session, proven_cases(session, arrays, part), unordered)
        errors.update((f"{part}.{name}" if part else name, error) for name, error in found.items())
    wrong = {name: error for name, error in errors.items() if not error <= tolerance}
    if wrong:
        listed = ", ".join(f"{name} {error:.1e}" for name, error in wrong.items())
        raise UnusableFolder(f"{folder}: outputs differ from MXNet's by more than {tolerance:.0e}: {listed}")
    reader = find_reader(signature) if os.path.lexists(os.path.join(folder, PROOF_FILES)) else None
    return errors if reader is None else {**errors, **check_files(folder, signature, reader)}


def tolerance_of(report: Dict[str, Any]) -> float:
    """Returns the largest error that the proof of a folder allows. A folder in int8 sets its own."""
    found = report.get("tolerance", MAX_ERROR)
    if type(found) not in (int, float) or not 0 < found <= MAX_TOLERANCE:
        raise UnusableFolder(f"{REPORT} has a tolerance that is no number above 0 and up to {MAX_TOLERANCE}")
    return float(found)


def inputs_of(path: str, signature: Dict[str, Any]) -> Dict[str, np.ndarray]:
    """Reads the inputs of the network from a .npz or .json file with arrays by the names of the inputs.

    Raises:
        UnusableFolder: a .npz file cannot be read.
        ValueError: the file cannot be read, or an array has another name, shape or kind of numbers.
    """
    folder, name = os.path.split(os.path.abspath(path))
    if path.endswith(".npz"):
        return checked_inputs(read_arrays(folder, name), signature["inputs"], path, signature.get("fixed", ""))
    content = read_regular(path, MAX_GIVEN_BYTES)
    try:
        given = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} holds no JSON: {error}") from error
    if not isinstance(given, dict):
        raise ValueError(f"{path} holds no JSON object with {', '.join(one['name'] for one in signature['inputs'])}")
    return checked_inputs(given, signature["inputs"], path, signature.get("fixed", ""))


def checked_inputs(
    given: Dict[str, Any], specs: List[Dict[str, Any]], path: str, fixed: str = ""
) -> Dict[str, np.ndarray]:
    """Returns arrays with the names, shapes and types of the inputs of a network.

    Args:
        given: arrays or nested lists by name.
        specs: inputs in the signature; a size that is a name is open.
        path: name of the file, for messages.
        fixed: why sizes are fixed, for messages.

    Raises:
        ValueError: a name or shape is wrong, or a number does not fit into the type.
    """
    described = ", ".join(f"{one['name']} ({one['dtype']}, {_shape_text(one['shape'])})" for one in specs)
    names = [one["name"] for one in specs]
    for key in given:
        if key not in names:
            raise ValueError(f"{path} has {key[:100]!r}, which is no input. The network reads {described}")
    found: Dict[str, np.ndarray] = {}
    sizes: Dict[str, int] = {}
    for spec in specs:
        key = spec["name"]
        if key not in given:
            raise ValueError(f"{path} has no {key!r}. The network reads {described}")
        found[key] = array = as_input(given[key], spec["dtype"], f"{path}: {key}")
        fits = array.ndim == len(spec["shape"])
        for size, dim in zip(array.shape, spec["shape"]):
            expected = sizes.setdefault(dim, size) if isinstance(dim, str) else dim
            fits = fits and size == expected and size > 0
        if not fits:
            raise ValueError(
                f"{path}: {key} has the shape {_shape_text(array.shape) or 'of one number'}, and the network "
                f"reads {_shape_text(spec['shape'])}{f'. {fixed}' if fixed else ''}"
            )
    return found


def _shape_text(sizes: Sequence[Any]) -> str:
    """Returns a shape for messages, e.g. 3 x 224 x 224."""
    return " x ".join(map(str, sizes))


def as_input(value: Any, dtype: str, location: str) -> np.ndarray:
    """Returns an array of the type of an input.

    Args:
        value: an array, or nested lists.
        dtype: name of the type.
        location: location of the array, for messages.

    Raises:
        ValueError: it is no array of numbers, or a number does not fit into the type.
    """
    try:
        with warnings.catch_warnings():  # of older NumPy, which makes an array of lists
            warnings.simplefilter("ignore")
            array = np.asarray(value)
    except (ValueError, OverflowError) as error:  # lists of different lengths
        raise ValueError(f"{location} is no array of numbers: {error}") from error
    if array.dtype.kind not in "fiub":
        raise ValueError(
            f"{location} is no array of numbers, but holds texts, objects, null, or lists of other lengths"
        )
    target = np.dtype(dtype)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError(f"{location} has a number that is not finite (NaN or infinite)")
    if array.dtype == target or not array.size or target.kind not in "fiu":
        return array.astype(target)
    limits: Any = np.finfo(target) if target.kind == "f" else np.iinfo(target)
    for number in (array.min().item(), array.max().item()):
        if not limits.min <= number <= limits.max:
            raise ValueError(f"{location} has {number:g}; {dtype} goes from {limits.min:g} to {limits.max:g}")
    if target.kind != "f" and array.dtype.kind == "f" and (array != np.rint(array)).any():
        number = array[array != np.rint(array)].ravel()[0].item()
        raise ValueError(f"{location} has {number:g}, and the network reads whole numbers ({dtype})")
    return array.astype(target)


def strict(value: Any) -> Any:
    """Replaces numbers that are not finite by None in nested lists and dicts: JSON has none, and `mxtrain predict`
    writes null as well."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: strict(one) for key, one in value.items()}
    return [strict(one) for one in value] if isinstance(value, (list, tuple)) else value


class OpenedExport:
    """An exported folder whose networks are loaded.

    Args:
        folder: path of the folder.
        threads: threads of onnxruntime; 0: all cores.

    Attributes:
        signature: content of signature.json.

    Raises:
        UnusableFolder: the folder is not an export.
    """

    def __init__(self, folder: str, threads: int = 0):
        self._folder, self._threads = folder, threads
        self.signature = read_signature(folder, needed=("inputs",))
        self._sessions = {"": load_session(folder, threads)}

    def run(self, inputs: Dict[str, np.ndarray], part: str = "") -> Dict[str, np.ndarray]:
        """Runs the network, or one of its `PARTS`, and returns the outputs by name.

        Raises:
            UnusableFolder: the inputs have wrong names, shapes or dtypes, or there is no such part.
        """
        if part not in self._sessions:
            if part not in self.signature.get("parts", ()):
                raise UnusableFolder(f"{self._folder} has no part {part!r}")
            self._sessions[part] = load_session(self._folder, self._threads, f"{part}.onnx")
        return run(self._sessions[part], inputs)

    def read(self, name: str) -> bytes:
        """Reads a file of the folder.

        Raises:
            UnusableFolder: the name contains a path, or the file cannot be read.
        """
        return read_file(self._folder, plain_name(name), MAX_JSON_BYTES)

    def read_arrays(self, name: str) -> Dict[str, np.ndarray]:
        """Reads the arrays of a .npz file of the folder; see `optional_arrays`."""
        return optional_arrays(self._folder, name)


def reader_of(signature: Dict[str, Any]) -> Any:
    """Returns the module of the folder that reads the files of its task; None if there is none.

    Raises:
        UnusableFolder: the signature does not name a module.
    """
    entry = str(signature.get("reader") or "")
    if not entry:
        return None
    if not entry.isidentifier():
        raise UnusableFolder(f"{SIGNATURE}: reader is the name of a module in {READING}")
    return importlib.import_module(f"{READING}.{entry}")


def describe_input(signature: Dict[str, Any]) -> str:
    """Returns what FILE may be, as sentences."""
    names = ", ".join(one["name"] for one in signature["inputs"])
    arrays = f"a .npz{'' if signature.get('reads_json') else ' or .json'} file with the arrays {names}"
    if signature.get("input"):
        return f"FILE is {signature['input']}. It may also be {arrays}."
    said = "" if signature.get("predicts", True) else f"Runs of {signature['task']} predict nothing for files. "
    return f"{said}FILE is {arrays}."


def rows_of(opened: OpenedExport, path: str) -> Iterator[Dict[str, Any]]:
    """Yields the predictions for a file: with the folder's own reader if it has one, else for arrays.

    Values that are bytes are contents of files, such as a WAV file.

    Raises:
        ValueError: the file cannot be read, or holds nothing.
        UnusableFolder: the network cannot compute for it.
    """
    signature = opened.signature
    reader = reader_of(signature)
    if not _has_arrays(path, signature, reader):
        content = read_regular(path, MAX_GIVEN_BYTES)
        if reader is None:
            raise ValueError(f"{path} is no file that this folder reads. {describe_input(signature)}")
        is_empty = True
        for row in reader.predict(opened, content, path):
            is_empty = False
            yield row
        if is_empty:
            raise ValueError(f"{path}: there is nothing in this file. {describe_input(signature)}")
        return
    outputs = opened.run(inputs_of(path, signature))
    names = signature.get("class_names", [])
    if "probabilities" in outputs and names and "ClassSet" not in signature.get("targets", []):
        probability_K = outputs["probabilities"][0]
        order = (-probability_K).argsort(kind="stable")[:3]
        top = [{"class": names[k], "probability": round(float(probability_K[k]), 6)} for k in order]
        yield {"file": path, **top[0], "top": top}
    else:
        yield {"file": path, **{name: array.tolist() for name, array in outputs.items()}}


def _has_arrays(path: str, signature: Dict[str, Any], reader: Any) -> bool:
    """Returns True for files with arrays by the names of the inputs. A .json file may also hold the lines of JSON that
    `reader` reads."""
    if path.endswith(".npz") or not path.endswith(".json"):
        return path.endswith(".npz")
    if not getattr(reader, "READS_JSON_LINES", False):
        return not signature.get("reads_json")
    try:
        given = json.loads(read_regular(path, MAX_GIVEN_BYTES))
    except (ValueError, RecursionError):  # several lines, or a mistake that the reader describes
        return False
    return isinstance(given, dict) and any(one["name"] in given for one in signature["inputs"])


def with_files(row: Dict[str, Any], out: str, signature: Dict[str, Any], taken: Dict[str, str]) -> Dict[str, Any]:
    """Writes the values of a row that are bytes as files, and returns the row with the paths of these.

    Args:
        row: a row of `rows_of`.
        out: folder for the files.
        signature: content of signature.json, which has the ending of the files.
        taken: path -> source location of files that must not be overwritten; the new files are added.

    Raises:
        ValueError: such a file would be overwritten.
    """
    found = dict(row)
    for name, value in row.items():
        if isinstance(value, bytes):
            location, _, line = os.path.basename(row["file"]).rpartition(":")
            stem = f"{os.path.splitext(location)[0]}-{line}" if location else os.path.splitext(line)[0]
            found[name] = path = os.path.join(out, stem + signature["writes"][name])
            before = taken.get(os.path.realpath(path))
            if before is not None:
                raise ValueError(
                    f"{path} would be written for {row['file']}, and is {before}. Name another folder "
                    f"with {OUT} FOLDER, or predict for one file at a time"
                )
            taken[os.path.realpath(path)] = f"written for {row['file']}"
            # Only now, so that networks which write no files leave no empty folder behind.
            os.makedirs(out, exist_ok=True)
            with open(path, "wb") as file:
                file.write(value)
    return found


def files_of(names: Sequence[str], endings: Sequence[str]) -> List[str]:
    """Returns files as given, and for folders all files in them and in subfolders with these endings, sorted by path.

    Hidden files and folders are skipped, and links to folders are not followed.

    Args:
        names: names of files and folders.
        endings: extensions in lower case; empty if folders are not read.

    Raises:
        ValueError: a folder holds no such file.
    """
    found: List[str] = []
    for name in names:
        if not endings or not os.path.isdir(name):
            found.append(name)
            continue
        before = len(found)
        for parent, folders, files in os.walk(name):
            folders[:] = [one for one in folders if not one.startswith(".")]
            found += [
                os.path.join(parent, one)
                for one in files
                if one.lower().endswith(tuple(endings)) and not one.startswith(".")
            ]
        found[before:] = sorted(found[before:])
        if len(found) == before:
            raise ValueError(f"{name} holds no file that this folder reads: none ends in {', '.join(endings)}")
    return found


def show_progress(done: int, total: int) -> None:
    """Writes the number of read files to standard error if it is a terminal, and standard output is not one."""
    if total > 1 and sys.stderr.isatty() and not sys.stdout.isatty():
        end = "\r\x1b[K" if done == total else ""
        print(f"\r{done} of {total} files{end}", end="", file=sys.stderr, flush=True)


def predict(words: Sequence[str], folder: str) -> int:
    """Prints the predictions for files; returns the exit code.

    Args:
        words: names of files, and possibly `OUT` and a folder.
        folder: the exported folder.

    Raises:
        ValueError: a word is wrong, or a file cannot be read.
        UnusableFolder: the folder is not an export, or its network cannot compute for a file.
    """
    files, out = list(words), WRITTEN
    if OUT in files:
        location = files.index(OUT)
        if location + 1 == len(files):
            raise ValueError(f"{OUT} needs a folder: {OUT} FOLDER FILE...")
        out = files[location + 1]
        del files[location : location + 2]
    unknown = [word for word in files if word.startswith("--") and not os.path.exists(word)]
    if unknown:
        raise ValueError(f"{unknown[0]} is neither an option (--check, {OUT} FOLDER, --help) nor a file")
    if not files or files[0] == "-h":
        described = describe_input(read_signature(folder, needed=["inputs"]))
        print(f"{(__doc__ or '').strip()}\n\n{described}")
        return 0 if files else 2
    opened = OpenedExport(folder)
    files = files_of(files, getattr(reader_of(opened.signature), "ENDINGS", ()))
    taken = {os.path.realpath(path): "one of the files to predict for" for path in files}
    for number, path in enumerate(files):
        show_progress(number, len(files))
        for row in rows_of(opened, path):
            written = strict(with_files(row, out, opened.signature, taken))
            print(json.dumps(written, ensure_ascii=False, allow_nan=False), flush=True)
    show_progress(len(files), len(files))
    return 0


def main(arguments: Sequence[str], folder: str) -> int:
    """Predicts or checks; returns the exit code."""
    try:
        if "--check" in arguments:
            others = [word for word in arguments if word != "--check"]
            if others:
                raise ValueError(
                    f"--check takes no files: it repeats the proof of this folder, whose samples are in "
                    f"{PROOF}. To predict for {others[0]}, leave out --check"
                )
            errors = check(folder, reader_of)
            print("\n".join(f"{name}: relative error {error:.1e}" for name, error in errors.items()))
            print(f"{folder}: proven")
            return 0
        return predict(["-h" if word == "--help" else word for word in arguments], folder)
    except BrokenPipeError:  # for example `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python fails once more when it ends
        return 1
    except ImportError as error:
        package = {"PIL": "pillow", "cv2": "opencv-python-headless"}.get(str(error.name), error.name)
        print(f"error: {error}. pip install {package}", file=sys.stderr)
    except (KeyError, TypeError, AttributeError, IndexError) as error:  # of a reader whose facts are missing or wrong
        print(
            f"error: {SIGNATURE} or an input lacks something that {READING} needs: {type(error).__name__}: {error}",
            file=sys.stderr,
        )
    except (UnusableFolder, OSError, ValueError, RecursionError, MemoryError, csv.Error) as error:
        print(f"error: {str(error) or type(error).__name__}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    HERE = os.path.dirname(os.path.abspath(__file__))
    if HERE not in sys.path:  # with `python -P` and `python -I` it is not, and reading/ is imported from there
        sys.path.insert(0, HERE)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # rows are UTF-8 whatever the locale
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
    sys.exit(main(sys.argv[1:], HERE))
