"""Files for Triton, KServe and Ray Serve, against the published schemas; and requests to the Ray application."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from pathlib import Path
from typing import Any, Dict, Iterator, List, Tuple

import numpy as np
import onnx
import pytest
import yaml
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from onnx import TensorProto, helper

from mxtrain.cli.dispatch import run
from mxtrain.exporting import standalone
from mxtrain.exporting.deploy import Deployment, kserve, ray, triton
from mxtrain.exporting.deploy.tensors import Tensor

DATA_TYPES = (
    "INVALID",
    "BOOL",
    "UINT8",
    "UINT16",
    "UINT32",
    "UINT64",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "FP16",
    "FP32",
    "FP64",
    "STRING",
    "BF16",
)
FIELDS: Dict[str, Dict[str, Tuple[int, str]]] = {
    "ModelConfig": {
        "name": (1, "string"),
        "platform": (2, "string"),
        "max_batch_size": (4, "int32"),
        "input": (5, "*ModelInput"),
        "output": (6, "*ModelOutput"),
        "instance_group": (7, "*ModelInstanceGroup"),
        "default_model_filename": (8, "string"),
        "dynamic_batching": (11, "ModelDynamicBatching"),
        "backend": (17, "string"),
    },
    "ModelInput": {
        "name": (1, "string"),
        "data_type": (2, "DataType"),
        "dims": (4, "*int64"),
        "reshape": (5, "ModelTensorReshape"),
    },
    "ModelOutput": {
        "name": (1, "string"),
        "data_type": (2, "DataType"),
        "dims": (3, "*int64"),
        "label_filename": (4, "string"),
        "reshape": (5, "ModelTensorReshape"),
    },
    "ModelTensorReshape": {"shape": (1, "*int64")},
    "ModelInstanceGroup": {"name": (1, "string"), "count": (2, "int32"), "gpus": (3, "*int32"), "kind": (4, "Kind")},
    "ModelDynamicBatching": {
        "preferred_batch_size": (1, "*int32"),
        "max_queue_delay_microseconds": (2, "uint64"),
        "preserve_ordering": (3, "bool"),
        "default_queue_policy": (6, "ModelQueuePolicy"),
    },
    "ModelQueuePolicy": {
        "timeout_action": (1, "int32"),
        "default_timeout_microseconds": (2, "uint64"),
        "allow_timeout_override": (3, "bool"),
        "max_queue_size": (4, "uint32"),
    },
}
"""Numbers and types of the fields that a configuration may use; * = repeated. Source: model_config.proto of
triton-inference-server/common."""


def model_config() -> Any:
    """The message class of a Triton model's configuration."""
    file = descriptor_pb2.FileDescriptorProto(name="triton_fields.proto", package="inference", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    for name, values in (
        ("DataType", [f"TYPE_{one}" for one in DATA_TYPES]),
        ("Kind", ["KIND_AUTO", "KIND_GPU", "KIND_CPU", "KIND_MODEL"]),
    ):
        enum = file.enum_type.add(name=name)
        for number, value in enumerate(values):
            enum.value.add(name=value, number=number)
    for name, fields in FIELDS.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            label = kinds.LABEL_REPEATED if kind[0] == "*" else kinds.LABEL_OPTIONAL
            added = message.field.add(name=field, number=number, label=label)
            kind = kind.lstrip("*")
            if kind.islower():
                added.type = kinds.Type.Value(f"TYPE_{kind.upper()}")
            else:
                added.type = kinds.TYPE_MESSAGE if kind in FIELDS else kinds.TYPE_ENUM
                added.type_name = f".inference.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("inference.ModelConfig"))


def parsed(text: str) -> Any:
    return text_format.Parse(text, model_config()())


IMAGES = Tensor("input", "uint8", (-1, 3, 224, 224), True)
SCORES = Tensor("probabilities", "float32", (-1, 10), True)


def test_triton_configuration_is_one_of_the_published_schema() -> None:
    found = parsed(triton.config("digits", [IMAGES], [Tensor("output", "float32", (-1, 10), True), SCORES], True))
    assert found.name == "digits" and found.backend == "onnxruntime" and found.max_batch_size == 32
    assert [(one.name, one.data_type, list(one.dims)) for one in found.input] == [("input", 2, [3, 224, 224])]
    assert [(one.name, one.data_type, list(one.dims)) for one in found.output] == [
        ("output", 11, [10]),
        ("probabilities", 11, [10]),
    ]
    assert [one.label_filename for one in found.output] == ["", "labels.txt"]
    assert found.instance_group[0].kind == 2 and found.instance_group[0].count == 1
    assert found.dynamic_batching.max_queue_delay_microseconds == 2000
    assert found.dynamic_batching.default_queue_policy.max_queue_size == 256
    with pytest.raises(text_format.ParseError, match="no field named"):
        parsed("max_batchsize: 1")  # the check can fail


def test_triton_batches_only_batched_tensors() -> None:
    lengths = Tensor("input1", "int32", (-1,), True)
    found = parsed(triton.config("m", [Tensor("input0", "int64", (-1, -1), True), lengths], [SCORES]))
    assert [list(one.dims) for one in found.input] == [[-1], [1]]
    assert found.input[1].HasField("reshape") and list(found.input[1].reshape.shape) == []
    state = Tensor("next_state0", "float32", (2, -1, 8), False)
    found = parsed(triton.config("m", [IMAGES], [SCORES, state]))
    assert found.max_batch_size == 0 and not found.HasField("dynamic_batching")
    assert list(found.input[0].dims) == [-1, 3, 224, 224] and list(found.output[1].dims) == [2, -1, 8]


INFERENCE_SERVICE: Dict[str, Any] = {
    "apiVersion": str,
    "kind": str,
    "metadata": {"name": str},
    "spec": {
        "predictor": {
            "minReplicas": int,
            "maxReplicas": int,
            "scaleMetric": ("cpu", "memory", "concurrency", "rps"),
            "scaleTarget": int,
            "timeout": int,
            "model": {
                "modelFormat": {"name": str, "version": str},
                "runtime": str,
                "runtimeVersion": str,
                "protocolVersion": str,
                "storageUri": str,
                "resources": {"requests": {"cpu": str, "memory": str}, "limits": {"cpu": str, "memory": str}},
            },
        }
    },
}
"""Fields that a manifest may use, and their types. Source: version v1beta1 of kserve/kserve,
config/crd/full/serving.kserve.io_inferenceservices.yaml."""


def unknown_fields(value: Any, allowed: Any, path: str = "") -> Iterator[str]:
    if isinstance(allowed, dict):
        assert isinstance(value, dict), path
        yield from (f"{path}.{name}" for name in value if name not in allowed)
        for name in value:
            yield from unknown_fields(value[name], allowed.get(name, type(value[name])), f"{path}.{name}")
    elif value not in allowed if isinstance(allowed, tuple) else type(value) is not allowed:
        yield f"{path}={value}"


def test_kserve_manifest_is_one_of_the_published_schema(tmp_path: Path) -> None:
    kserve.write(tmp_path, "digits", "s3://bucket/digits", 400 << 20)
    found = yaml.safe_load((tmp_path / kserve.MANIFEST).read_text())
    assert not list(unknown_fields(found, INFERENCE_SERVICE))
    assert (found["apiVersion"], found["kind"]) == ("serving.kserve.io/v1beta1", "InferenceService")
    model = found["spec"]["predictor"]["model"]
    assert model["storageUri"] == "s3://bucket/digits" and model["resources"]["requests"]["memory"] == "3248Mi"
    # kserve-tritonserver names this format and this version among those that it supports.
    assert model["modelFormat"] == {"name": "onnx", "version": "1"} and model["protocolVersion"] == "v2"
    found["spec"]["predictor"]["scaleMetric"] = "qps"
    found["spec"]["predictor"]["model"]["storageURI"] = ""
    assert len(list(unknown_fields(found, INFERENCE_SERVICE))) == 2


@pytest.mark.parametrize(
    "words, said",
    [
        (["for=tritn"], "Did you mean 'triton'?"),
        (["for=triton", "name=Digits"], "export.name=Digits"),
        (["for=triton", "name=../up"], "export.name=../up"),
        (["storage=here"], "export.storage=here"),
        (["for=kserve", "storage=s3://a\nb"], "export.storage"),
    ],
)
def test_wrong_settings_are_refused(words: List[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["export", "RUN", *words]) == 2
    assert said in capsys.readouterr().err


def summing() -> Any:
    """Ids (batch, length) -> sums of rows of a table of 5 (batch, 2)."""
    table = np.arange(10, dtype=np.float32).reshape(5, 2)
    nodes = [
        helper.make_node("Gather", ["table", "input"], ["rows"]),
        helper.make_node("ReduceSum", ["rows", "axis"], ["output"], keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("input", TensorProto.INT64, ["batch", "length"])],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, ["batch", 2])],
        [onnx.numpy_helper.from_array(table, "table"), onnx.numpy_helper.from_array(np.int64([1]), "axis")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An exported folder for Ray Serve, with a network that is made by hand."""
    (tmp_path / "model.onnx").write_bytes(summing().SerializeToString())
    inputs = [{"name": "input", "dtype": "int64", "shape": ["batch", "length"]}]
    outputs = [{"name": "output", "shape": ["batch", 2]}]
    (tmp_path / "signature.json").write_text(json.dumps({"inputs": inputs, "outputs": outputs}))
    (tmp_path / "predict.py").write_bytes(Path(standalone.__file__).read_bytes())
    Deployment("ray", "sums").write(tmp_path, standalone.load_session(str(tmp_path)), [])
    return tmp_path


def test_deployments_name_the_folder_that_holds_the_network(folder: Path, tmp_path: Path) -> None:
    session = standalone.load_session(str(folder))
    for deployment, place in (
        (Deployment("triton", "sums"), "sums/1"),
        (Deployment("folder"), "."),
        (Deployment("kserve", "sums", "pvc://a/b"), "repository/sums/1"),
    ):
        out = tmp_path / deployment.server
        out.mkdir()
        assert deployment.folder_in(out) == out / place
        deployment.write(out, session, ["a", "b"])
        config = out / place / ".." / "config.pbtxt"
        assert config.exists() == (deployment.server != "folder")
        if config.exists():
            assert list(parsed(config.read_text()).input[0].dims) == [-1]
        assert (out / kserve.MANIFEST).exists() == (deployment.server == "kserve")
    found = yaml.safe_load((folder / ray.CONFIG).read_text())
    assert found["applications"][0]["import_path"] == "ray_application:app"


@pytest.fixture
def application(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The program of the folder, without Ray: its decorators return what they are given."""

    class Decorated:
        def __init__(self, cls: Any):
            self.cls = cls

        def bind(self) -> Any:
            return self.cls

    serve = types.SimpleNamespace(deployment=Decorated, batch=lambda **options: lambda function: function)
    answers = types.SimpleNamespace(JSONResponse=lambda content, status_code=200: (status_code, content))
    for name, module in (
        ("ray", types.SimpleNamespace(serve=serve)),
        ("starlette", None),
        ("starlette.requests", types.SimpleNamespace(Request=None)),
        ("starlette.responses", answers),
    ):
        monkeypatch.setitem(sys.modules, name, module)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "predict", standalone)
    found = types.ModuleType("ray_application")
    found.__file__ = str(folder / ray.PROGRAM)
    exec(compile((folder / ray.PROGRAM).read_text(), found.__file__, "exec"), found.__dict__)
    return found


def body(data: Any, shape: Any, datatype: str = "INT64", name: str = "input") -> bytes:
    return json.dumps({"inputs": [{"name": name, "datatype": datatype, "shape": shape, "data": data}]}).encode()


DECLARED = [{"name": "input", "dtype": "int64", "shape": ["batch", "length"]}]


@pytest.mark.parametrize(
    "content, said",
    [
        (b"{", "no JSON"),
        (b"[" * 100000, "no JSON"),
        (b"[]", "no list of inputs"),
        (b'{"inputs": 1}', "no list"),
        (b'{"inputs": [1]}', "no list"),
        (b'{"inputs": []}', "must be input"),
        (body([1], [1, 1], name="other"), "must be input"),
        (body([1], [1, 1], "FP32"), "must be INT64"),
        (body([1], [1]), "shape"),
        (body([1], [1, -1]), "shape"),
        (body([1], "a"), "shape"),
        (body([1], [True, 1]), "shape"),
        (body([1], [257, 1]), "at most 256"),
        (body([], [1, 2**40]), "shape"),
        (body([1, 2], [1, 3]), "do not fit"),
        (body(["a"], [1, 1]), "no numbers"),
        (body([None], [1, 1]), "numbers"),
        (body([0.5], [1, 1]), "some are not int64"),
        (body([2**70], [1, 1]), "do not fit"),
        (body([[1], [1, 2]], [1, 3]), "do not fit"),
        (body({"a": 1}, [1, 1]), "numbers"),
        (body([1], [1, 1]).replace(b"[1]", b"[NaN]"), "no number of JSON"),
    ],
)
@pytest.mark.filterwarnings("ignore::numpy.VisibleDeprecationWarning")
def test_wrong_requests_are_refused(application: Any, content: bytes, said: str) -> None:
    with pytest.raises(application.Refused, match=said):
        application.read_inputs(content, DECLARED)


def test_requests_of_one_batch_do_not_affect_each_other(application: Any) -> None:
    session = standalone.load_session(application.FOLDER)
    given = [[[0, 1]], [[9, 9]], [[1, 1, 1]], [[4, 4], [0, 0]], [[2, 3]]]
    requests = [application.read_inputs(body(ids, list(np.shape(ids))), DECLARED)[0] for ids in given]
    assert sorted(map(sorted, application.grouped(requests))) == [[0, 1, 3, 4], [2]]
    found = application.compute(session, requests, True)
    table = np.arange(10, dtype=np.float32).reshape(5, 2)
    assert "indices element out of data bounds" in found[1]  # alone, though it was in the batch
    for number in (0, 2, 3, 4):
        np.testing.assert_array_equal(found[number]["output"], table[np.array(given[number])].sum(axis=1))
    assert application.NAME == "sums"


def test_program_of_the_folder_needs_no_mxtrain(folder: Path) -> None:
    blocked = "import sys; sys.modules.update(mxtrain=None, mxnet=None, ray=None); import ray_application"
    done = subprocess.run([sys.executable, "-c", blocked], cwd=folder, capture_output=True, text=True, timeout=60)
    assert "import of ray halted" in done.stderr  # as far as that it imports only NumPy and predict.py
