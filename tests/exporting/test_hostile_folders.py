"""Exported folders of strangers: nothing is executed, nothing outside is read, sizes are limited."""

from __future__ import annotations

import io
import json
import os
import re
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Callable, Dict, List, Tuple

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from mxtrain.cli.dispatch import run
from mxtrain.exporting import standalone
from mxtrain.exporting.standalone import UnusableFolder, check, detections_error, errors_of
from mxtrain.serving.models import ServedModel


def save(folder: Path, nodes: Any, initializers: Any = (), domain: str = "") -> None:
    """A model with input x (2,) and output y (2,)."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])],
        initializers,
    )
    opsets = [helper.make_opsetid("", 17), *([helper.make_opsetid(domain, 1)] if domain else [])]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    (folder / "model.onnx").write_bytes(model.SerializeToString())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sound folder: y = x + 1."""
    one = numpy_helper.from_array(np.ones(2, np.float32), "one")
    save(tmp_path, [helper.make_node("Add", ["x", "one"], ["y"])], [one])
    np.savez(tmp_path / "proof.npz", **{"0/input/x": np.zeros(2, np.float32), "0/output/y": np.ones(2, np.float32)})
    for name in ("signature.json", "export.json"):
        (tmp_path / name).write_text("{}")
    return tmp_path


def test_a_sound_folder_is_proven_and_a_wrong_one_is_not(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(str(folder)) == {"y": 0}
    assert run(["export", "check", str(folder)]) == 0
    assert "proven" in capsys.readouterr().out
    np.savez(folder / "proof.npz", **{"0/input/x": np.zeros(2, np.float32), "0/output/y": np.float32([1, 1.01])})
    assert run(["export", "check", str(folder)]) == 2
    assert "differ from MXNet's by more than 1e-04: y 9.9e-03" in capsys.readouterr().err


def external(folder: Path, location: str) -> None:
    tensor = TensorProto(name="one", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=location)
    save(folder, [helper.make_node("Add", ["x", "one"], ["y"])], [tensor])


def hidden_external(folder: Path) -> None:
    tensor = TensorProto(name="c", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="/etc/passwd")
    inner = helper.make_graph(
        [helper.make_node("Constant", [], ["z"], value=tensor)],
        "inner",
        [],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, [2])],
    )
    condition = numpy_helper.from_array(np.array(True), "true")
    save(folder, [helper.make_node("If", ["true"], ["y"], then_branch=inner, else_branch=inner)], [condition])


def bomb(folder: Path) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (10**6, 10**6)})
    with zipfile.ZipFile(folder / "proof.npz", "w") as archive:
        archive.writestr("0/output/y.npy", header.getvalue())


def pickled(folder: Path) -> None:
    np.savez(folder / "proof.npz", **{"0/output/y": np.array([print], object)})


def replaced_by_link(folder: Path) -> None:
    (folder / "other").write_bytes((folder / "model.onnx").read_bytes())
    (folder / "model.onnx").unlink()
    (folder / "model.onnx").symlink_to(folder / "other")


def pipe(folder: Path) -> None:
    (folder / "proof.npz").unlink()
    os.mkfifo(folder / "proof.npz")


def functions(folder: Path) -> None:
    model = onnx.load(str(folder / "model.onnx"))
    model.functions.append(helper.make_function("own", "f", ["a"], ["b"], [], [helper.make_opsetid("", 17)]))
    (folder / "model.onnx").write_bytes(model.SerializeToString())


def field(key: int, content: bytes) -> bytes:
    """A field of a protocol buffer: the varint of its key, the content's length below 2 ** 14, and the content."""
    found = bytearray()
    while key > 127:
        found.append(key & 127 | 128)
        key >>= 7
    return bytes(found) + bytes([key, len(content) & 127 | 128, len(content) >> 7]) + content


def graph_read_otherwise(folder: Path, graph_key: int, location: bytes) -> None:
    """Writes what readers of protocol buffers may understand in different ways, as the last field of the model."""
    model = onnx.load(str(folder / "model.onnx"))
    del model.graph.initializer[:]
    tensor = TensorProto(name="one", data_type=TensorProto.FLOAT, dims=[2], data_location=TensorProto.EXTERNAL)
    graph = model.graph.SerializeToString() + field(42, tensor.SerializeToString() + field(106, location))
    model.ClearField("graph")
    (folder / "model.onnx").write_bytes(model.SerializeToString() + field(graph_key, graph))


ALLOWED, SECRET = field(18, b"model.onnx.data"), field(18, b"/etc/passwd")

HOSTILE: Dict[str, Tuple[Callable[[Path], Any], str]] = {
    "external data": (lambda folder: external(folder, "/etc/passwd"), "reads data outside"),
    "external data above": (lambda folder: external(folder, "../secret"), "reads data outside"),
    "external data in a branch": (hidden_external, "reads data outside"),
    "external data, given twice": (
        lambda folder: graph_read_otherwise(folder, 58, field(10, b"location") + ALLOWED + SECRET),
        "is damaged: a field is given twice",
    ),
    "external data behind a large key": (
        lambda folder: graph_read_otherwise(folder, 58 + 2**32, field(10, b"location") + SECRET),
        "is damaged: a key is too large",
    ),
    "a number for a name": (
        lambda folder: (folder / "model.onnx").write_bytes(field(66, b"\x08" + b"\xff" * 8 + b"\x7f")),
        "operators that are not ONNX's",
    ),
    "foreign operators": (
        lambda folder: save(folder, [helper.make_node("Run", ["x"], ["y"], domain="evil")], domain="evil"),
        "operators that are not ONNX's",
    ),
    "functions": (functions, "defines operators of its own"),
    "cut off": (
        lambda folder: (folder / "model.onnx").write_bytes((folder / "model.onnx").read_bytes()[:-3]),
        "is damaged|cannot load",
    ),
    "no protocol buffer": (lambda folder: (folder / "model.onnx").write_bytes(b"\xff" * 50), "is damaged"),
    "array of a terabyte": (bomb, "is not read"),
    "pickled array": (pickled, "is not read|is damaged"),
    "a link": (replaced_by_link, "cannot be read"),
    "a pipe": (pipe, "no regular file"),
    "no archive": (lambda folder: (folder / "proof.npz").write_bytes(b"PK"), "is damaged"),
    "nested JSON": (lambda folder: (folder / "export.json").write_text("[" * 10**5), "holds no JSON"),
    "a number that is none": (
        lambda folder: (folder / "export.json").write_text('{"a": [NaN]}'),
        "NaN is no finite number",
    ),
    "a number beyond all": (
        lambda folder: (folder / "signature.json").write_text('{"signature": {"mean": -1e999}}'),
        "-1e999 is no finite number",
    ),
    "no outputs": (lambda folder: np.savez(folder / "proof.npz", **{"0/input/x": np.zeros(2)}), "proves nothing"),
    "other names": (lambda folder: np.savez(folder / "proof.npz", y=np.zeros(2)), "no array of a proof"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_folders_are_refused(folder: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    harm, said = HOSTILE[name]
    harm(folder)
    with pytest.raises(UnusableFolder, match=said):
        check(str(folder))
    assert run(["export", "check", str(folder)]) == 2


TOKENIZER = {
    "file": "t.json",
    "lowercase": False,
    "max_length": 8,
    "special": [0],
    "pad": 0,
    "unknown": 1,
    "first": None,
    "last": 2,
    "bos": None,
    "eos": None,
}
TENSOR = {"name": "x", "dtype": "float32", "shape": [2]}
WRONG: Dict[str, List[Any]] = {
    "task": [5],
    "fixed": [None, ["height"]],
    "reader": [{}],
    "samples": [1],
    "targets": ["ClassIndex", [1], 5],
    "input": [0],
    "signature_class": [[]],
    "predicts": ["no", 1],
    "reads_json": [0],
    "class_names": ["cat", [1], None],
    "order_dependent": [5, [5], {"y": 1}],
    "inputs": [
        [],
        {},
        [5],
        [{**TENSOR, "name": 1}],
        [{**TENSOR, "dtype": "object"}],
        [{**TENSOR, "dtype": "U4"}],
        [{**TENSOR, "shape": [0]}],
        [{**TENSOR, "shape": 2}],
        [{**TENSOR, "shape": [True]}],
        [{"name": "x"}],
    ],
    "outputs": [5, [5], [{"name": 5}]],
    "signature": [[]],
    "parts": [["step"], {"../../etc": {}}, {"step": []}, {"step": {}}, {"step": {"inputs": [{"name": "x"}]}}],
    "facts": [
        [],
        *(
            {"tokenizer": {**TOKENIZER, **harm}}
            for harm in (
                {"file": "../t.json"},
                {"file": 5},
                {"file": "t.py"},
                {"lowercase": 1},
                {"max_length": 0},
                {"max_length": "8"},
                {"special": 0},
                {"special": ["a"]},
                {"pad": None},
                {"unknown": "x"},
                {"last": "x"},
                {"first": [0]},
                {"bos": True},
                {"eos": 1.5},
            )
        ),
        *(
            {"tokenizer": {key: TOKENIZER[key] for key in TOKENIZER if key != missing}}
            for missing in ("lowercase", "max_length", "special", "pad", "unknown")
        ),
    ],
    "writes": [[], {"mask": 5}, {"mask": "png"}, {"mask": "./../x"}],
}


@pytest.mark.parametrize("name", standalone.SCHEMA)
def test_fields_of_signature_are_validated_by_all_readers(
    folder: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for value in WRONG[name]:
        (folder / "signature.json").write_text(json.dumps({"inputs": [TENSOR], name: value}))
        said = f"signature.json: {name} is {re.escape(json.dumps(value)[:100])}"
        for read in (check, standalone.OpenedExport, lambda path: ServedModel("m", path, 1, True, 4, 1.0)):
            with pytest.raises(UnusableFolder, match=said):
                read(str(folder))
        assert standalone.main(["file.npz"], str(folder)) == run(["export", "check", str(folder)]) == 2
        printed = capsys.readouterr().err
        assert printed.count(standalone.SCHEMA[name][1]) == 2 and "Traceback" not in printed


def test_sound_signatures_are_read(folder: Path) -> None:
    sound = {
        "inputs": [TENSOR],
        "facts": {"tokenizer": TOKENIZER, "other": 5},
        "parts": {"step": {"inputs": []}},
        "writes": {"mask": ".png"},
        "order_dependent": ["y"],
        "outputs": [{"name": "y", "shape": [None]}],
    }
    (folder / "signature.json").write_text(json.dumps(sound))
    assert standalone.read_signature(str(folder), ["inputs"]) == sound
    (folder / "signature.json").write_text("{}")
    with pytest.raises(UnusableFolder, match="signature.json: inputs is missing; it must be a list of objects"):
        standalone.read_signature(str(folder), ["inputs"])
    (folder / "signature.json").write_text(json.dumps({"class_names": [5] * 100}))
    with pytest.raises(UnusableFolder, match=r"class_names is \[5(, 5){32}, \.\.\.; it must"):
        standalone.read_signature(str(folder))


@pytest.mark.parametrize(
    "proof, said",
    [
        (
            {"0/input/x": np.zeros(2, np.float32), "0/output/y": np.array(["a", "b"])},
            "0/output/y has the type <U1; it must be one of float16, ",
        ),
        (
            {"0/input/x": np.zeros(2, "M8[s]"), "0/output/y": np.ones(2, np.float32)},
            "0/input/x has the type datetime64",
        ),
        ({"0/input/x": np.zeros(2, np.complex64), "0/output/y": np.ones(2)}, "0/input/x has the type complex64"),
        (
            {"0/input/x": np.zeros(2, np.float32), "0/output/detections": np.ones((1, 2, 5))},
            "0/output/detections has the shape 1 x 2 x 5; it must have at least 6 columns",
        ),
        (
            {"0/input/x": np.float32(0), "0/output/y": np.ones(2, np.float32)},
            "a case has the inputs x with 0 dimensions; the network reads x with 1 dimensions",
        ),
        ({"0/input/z": np.zeros(2, np.float32), "0/output/y": np.ones(2, np.float32)}, "inputs z with 1 dimensions"),
        ({"0/output/y": np.ones(2, np.float32)}, "a case has the inputs none; the network reads x"),
        ({"0/input/x": np.zeros(3, np.float32), "0/output/y": np.ones(2, np.float32)}, "cannot run the network"),
        ({"0/input/x": np.zeros(2, np.float32), "0/output/q": np.ones(2, np.float32)}, "has no output 'q'"),
    ],
)
def test_arrays_of_the_proof_are_validated_by_all_readers(folder: Path, proof: Any, said: str) -> None:
    np.savez(folder / "proof.npz", **proof)
    for read in (check, lambda path: ServedModel("m", path, 1, True, 4, 1.0)):
        with pytest.raises(UnusableFolder, match=said):
            read(str(folder))
    assert run(["export", "check", str(folder)]) == 2


def test_weights_in_the_current_folder_are_not_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    external(folder, "model.onnx.data")
    other = folder / "other"
    other.mkdir()
    (other / "model.onnx.data").write_bytes(np.ones(2, np.float32).tobytes())
    monkeypatch.chdir(other)
    with pytest.raises(UnusableFolder, match="model.onnx.data is missing, in which model.onnx has its weights"):
        check(str(folder))
    (folder / "model.onnx.data").write_bytes(np.ones(2, np.float32).tobytes())
    assert check(str(folder)) == {"y": 0}


def test_wrong_reader_facts_are_reported_in_one_sentence(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "signature.json").write_text(json.dumps({"inputs": [TENSOR], "facts": {"columns": 5}}))

    def read(opened: Any, content: bytes, path: str) -> Any:
        yield {"file": opened.signature["facts"]["columns"][0]}

    monkeypatch.setattr(standalone, "reader_of", lambda signature: SimpleNamespace(predict=read))
    assert standalone.main([str(folder / "model.onnx")], str(folder)) == 2
    assert "error: signature.json or an input lacks something that reading needs: TypeError" in capsys.readouterr().err


def test_infinite_outputs_are_compared_without_a_warning() -> None:
    found, expected = np.float32([np.inf, 1, np.nan]), np.float32([np.inf, 2, np.nan])
    assert standalone.relative_error(found, expected) == 0.5
    assert standalone.relative_error(-found, -expected) == 0.5
    assert standalone.relative_error(np.float32([-np.inf]), np.float32([np.inf])) == np.inf


def test_files_are_measured_before_they_are_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standalone, "MAX_JSON_BYTES", 10)
    (folder / "signature.json").write_text(json.dumps({"a": "b" * 10}))
    with pytest.raises(UnusableFolder, match="at most 10 bytes"):
        check(str(folder))


def test_detections_are_compared_as_sets() -> None:
    rows = np.array([[[0, 0.9, 0, 0, 8, 8], [1, 0.5, 1, 1, 4, 4], [0, 0.5, 2, 2, 9, 9], [-1] * 6]], np.float32)
    assert detections_error(rows[:, [0, 2, 1, 3]], rows) == 0
    other = rows.copy()
    other[0, 1, 2] = 3
    assert detections_error(other, rows) == pytest.approx(2 / 9)
    other = rows.copy()
    other[0, 1, 0] = 0
    assert detections_error(other, rows) > 0.1
    for name, is_set in ((standalone.RANKED, True), ("output", False)):
        session = Answering({name: rows[:, [0, 2, 1, 3]]})
        assert (errors_of(session, [({}, {name: rows})])[name] == 0) == is_set


class Answering:
    """A session of onnxruntime with fixed outputs."""

    def __init__(self, outputs: Dict[str, np.ndarray]) -> None:
        self._outputs = outputs

    def get_outputs(self) -> List[Any]:
        return [SimpleNamespace(name=name) for name in self._outputs]

    def get_inputs(self) -> List[Any]:
        return []

    def run(self, names: Any, inputs: Any, *options: Any) -> List[np.ndarray]:
        return [self._outputs[name] for name in names or self._outputs]


def test_fields_of_fixed_size_are_skipped() -> None:
    """A protocol buffer with 8 bytes of wire type 1 and 4 of type 5, then the number 7."""
    message = b"\x09" + b"a" * 8 + b"\x15" + b"b" * 4 + b"\x18\x07"
    assert list(standalone.protobuf_fields(memoryview(message))) == [(1, b"a" * 8), (2, b"b" * 4), (3, 7)]
    with pytest.raises(ValueError, match="has no end"):
        list(standalone.protobuf_fields(memoryview(b"\x15bbb")))


def test_damaged_compression_is_a_damaged_file(folder: Path) -> None:
    np.savez_compressed(folder / "more.npz", x=np.zeros(100))
    content = bytearray((folder / "more.npz").read_bytes())
    begin = 30 + int.from_bytes(content[26:28], "little") + int.from_bytes(content[28:30], "little")
    content[begin] = 0xFF  # a block of a type that does not exist
    (folder / "more.npz").write_bytes(content)
    with pytest.raises(UnusableFolder, match="more.npz is damaged: .*invalid block type"):
        standalone.read_arrays(str(folder), "more.npz")


def test_onnxruntime_writes_only_errors_and_its_idle_threads_sleep(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: List[Any] = []
    monkeypatch.setattr(onnxruntime, "InferenceSession", lambda content, options, providers: given.append(options))
    standalone.load_session(str(folder), threads=3)
    assert given[0].log_severity_level == 3 and given[0].intra_op_num_threads == 3
    assert given[0].get_session_config_entry("session.intra_op.allow_spinning") == "0"
