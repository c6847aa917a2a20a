"""Smaller forms of exported networks: int8, and weights of 16 bits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, List, Sequence

import numpy as np
import onnx
import onnxruntime
import pytest
import running
from onnx import TensorProto, helper, numpy_helper

import mxtrain
from mxtrain.cli.dispatch import run
from mxtrain.errors import ConfigError
from mxtrain.exporting import compression, quantize, standalone
from mxtrain.exporting.standalone import UnusableFolder

pytestmark = pytest.mark.usefixtures("own_cache")
DIGITS = (
    "model=resnet",
    "model.depth=8",
    "model.width=0.5",
    "trainer.max_epochs=4",
    "trainer.seed=1",
    "optimizer.lr=0.05",
)
RANDOM = np.random.default_rng(0)


def random(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def model_of(
    nodes: Sequence[Any], constants: Dict[str, np.ndarray], shape: Sequence[Any], dtype: int, rank: int = 2
) -> Any:
    """A model from input "input" to output "output"."""
    for number, node in enumerate(nodes):
        node.name = f"node{number}"
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info("input", dtype, list(shape))],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, ["batch", None, None][:rank])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def convolutional() -> Any:
    """uint8 images -> normalisation -> two convolutions with a residual sum -> softmax."""
    nodes = [
        helper.make_node("Cast", ["input"], ["pixels"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["pixels", "scale"], ["scaled"]),
        helper.make_node("Add", ["scaled", "shift"], ["normalised"]),
        helper.make_node("Conv", ["normalised", "first"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "second"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["b", "c"], ["d"]),
        helper.make_node("GlobalAveragePool", ["d"], ["e"]),
        helper.make_node("Flatten", ["e"], ["f"]),
        helper.make_node("Gemm", ["f", "dense"], ["g"], transB=1),
        helper.make_node("Softmax", ["g"], ["output"]),
    ]
    constants = {
        "scale": np.float32([[[[1 / 64]]]]),
        "shift": np.float32([[[[-2]]]]),
        "first": random(8, 3, 3, 3) / 5,
        "second": random(8, 8, 3, 3) / 8 * np.float32([1, 20, 1, 5, 1, 0.1, 1, 3])[:, None, None, None] ** 0.5,
        "dense": random(4, 8),
    }
    return model_of(nodes, constants, ["batch", 3, 12, 12], TensorProto.UINT8)


def attending() -> Any:
    """Ids -> a table -> attention -> two dense layers."""
    nodes = [
        helper.make_node("Gather", ["table", "input"], ["x"]),
        helper.make_node("MatMul", ["x", "query"], ["q"]),
        helper.make_node("Transpose", ["x"], ["k"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["q", "k"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["weights"]),
        helper.make_node("MatMul", ["weights", "x"], ["y"]),
        helper.make_node("MatMul", ["y", "dense"], ["output"]),
    ]
    constants = {"table": random(300, 32), "query": random(32, 32) / 16, "dense": random(32, 8)}
    return model_of(nodes, constants, ["batch", "length"], TensorProto.INT64, rank=3)


def outputs_of(model: Any, array: np.ndarray) -> np.ndarray:
    found: np.ndarray = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"input": array})[0]
    return found


def quantized(model: Any, samples: Sequence[np.ndarray], folder: Path) -> Any:
    (folder / "float.onnx").write_bytes(model.SerializeToString())
    quantize.quantize_int8(folder / "float.onnx", folder / "model.onnx", ({"input": one} for one in samples))
    standalone.check_model((folder / "model.onnx").read_bytes())  # ONNX's operators alone
    return onnx.load(folder / "model.onnx")


def test_convolutional_network_is_quantized_between_its_first_and_last_weights(tmp_path: Path) -> None:
    model = convolutional()
    assert quantize.choose_way(model) == quantize.Way(
        "static", "2 convolutions, 1 matrix products with weights, 0 without"
    )
    kinds = {node.name: node.op_type for node in model.graph.node}
    chosen = [kinds[name] for name in quantize.nodes_in_int8(model)]
    assert chosen == ["Conv", "Relu", "Conv", "Add", "GlobalAveragePool", "Gemm"]  # not Mul, Add, Softmax
    samples = [RANDOM.integers(0, 256, (4, 3, 12, 12), dtype=np.uint8) for _ in range(4)]
    found = quantized(model, samples, tmp_path)
    assert quantize.count_in_int8(found) == [3, 3]
    assert [one.version for one in found.opset_import] == [17] and found.ir_version == 8
    weights = [numpy_helper.to_array(one) for one in found.graph.initializer if one.data_type == TensorProto.INT8]
    filters = [one for one in weights if one.ndim == 4]
    assert len(filters) == 2
    for array in filters:  # 7 bits, and each channel uses them all: a scale for each
        assert np.abs(array).max(axis=(1, 2, 3)).tolist() == [64] * 8 or np.abs(array).max() in (63, 64)
        assert np.abs(array).max(axis=(1, 2, 3)).min() >= 62
    error = np.abs(outputs_of(found, samples[0]) - outputs_of(model, samples[0])).max()
    assert 0 < error < 0.05


def test_transformer_is_quantized_with_its_table(tmp_path: Path) -> None:
    model = attending()
    assert quantize.choose_way(model).name == "dynamic"
    found = quantized(model, [], tmp_path)  # needs no samples
    kinds = [node.op_type for node in found.graph.node]
    assert kinds.count("MatMulInteger") == 2 and kinds.count("MatMul") == 2 and "QuantizeLinear" not in kinds
    assert (tmp_path / "model.onnx").stat().st_size < 0.45 * (tmp_path / "float.onnx").stat().st_size
    ids = RANDOM.integers(0, 300, (3, 7))
    expected = outputs_of(model, ids)
    assert np.abs(outputs_of(found, ids) - expected).max() < 0.05 * np.abs(expected).max()
    stored = {one.name: numpy_helper.to_array(one) for one in found.graph.initializer}
    table = numpy_helper.to_array(next(one for one in model.graph.initializer if one.name == "table"))
    restored = stored["table_int8"] * stored["table_scale"]
    assert (np.abs(restored - table) <= np.abs(table).max(axis=1, keepdims=True) / 254 * 1.001).all()


def test_model_without_quantizable_operators_is_refused(tmp_path: Path) -> None:
    model = model_of([helper.make_node("Relu", ["input"], ["output"])], {}, ["batch", 3], TensorProto.FLOAT)
    with pytest.raises(ConfigError, match="no convolutions, matrix products or tables"):
        quantized(model, [], tmp_path)


@pytest.mark.parametrize("dtype, limit", [("float16", 1e-3), ("bfloat16", 8e-3)])
def test_weights_of_16_bits_are_the_nearest_and_are_computed_in_float32(dtype: str, limit: float) -> None:
    import ml_dtypes

    model = attending()
    weights = {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}
    before = len(model.SerializeToString())
    quantize.store_weights(model, dtype)
    onnx.checker.check_model(model)
    assert len(model.SerializeToString()) < 0.55 * before
    rounded = {
        name: array.astype(np.float16 if dtype == "float16" else ml_dtypes.bfloat16).astype(np.float32)
        for name, array in weights.items()
    }
    reference = attending()
    for tensor in reference.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(rounded[tensor.name], tensor.name))
    ids = RANDOM.integers(0, 300, (2, 5))
    found = outputs_of(model, ids)
    np.testing.assert_array_equal(found, outputs_of(reference, ids))
    for name, array in rounded.items():
        assert np.abs(array - weights[name]).max() <= limit * np.abs(weights[name]).max()


def test_weight_beyond_float16_is_refused() -> None:
    model = attending()
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(random(300, 32) * 1e5, "table"))
    with pytest.raises(ConfigError, match=r"table has a number of .*e\+05.* Type quantize=bfloat16"):
        quantize.store_weights(model, "float16")


def test_bfloat16_rounds_to_even() -> None:
    import ml_dtypes

    values = np.float32([1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8 - 2**-20, 3e38, 1e-40, 0, np.pi])
    expected = values.astype(ml_dtypes.bfloat16).view(np.uint16)
    np.testing.assert_array_equal(quantize.to_bfloat16(values), expected)


@pytest.mark.parametrize("tolerance", [0, -1, 0.2, "1", None, True, float("nan"), [0.01]])
def test_folder_cannot_raise_its_own_error_bound(tolerance: Any) -> None:
    with pytest.raises(UnusableFolder, match="tolerance"):
        standalone.tolerance_of({"tolerance": tolerance})
    assert standalone.tolerance_of({}) == standalone.MAX_ERROR
    assert standalone.tolerance_of({"tolerance": 0.05}) == 0.05


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small residual network that has learned digits."""
    run_dir = tmp_path_factory.mktemp("quantize") / "run"
    running.train_here(run_dir, *DIGITS)
    return run_dir


def accuracy_of(folder: Path, run_dir: Path) -> float:
    """Accuracy on the test split, by onnxruntime's outputs for the images themselves."""
    session = standalone.load_session(str(folder))
    hits: List[bool] = []
    for batch in mxtrain.load(run_dir).batches("test"):
        signature = json.loads((folder / "signature.json").read_text())["signature"]
        mean, std = (np.float32(signature[name])[:, None, None] for name in ("mean", "std"))
        pixels = np.rint((batch["input"] * std + mean) * 255).astype(np.uint8)
        outputs = standalone.run(session, {"input": pixels})
        hits += (outputs["output"].argmax(axis=1) == batch["target"]).tolist()
    return float(np.mean(hits))


@pytest.mark.slow
def test_int8_is_compared_and_proven(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "int8"
    assert run(["export", str(trained), f"out={out}", "quantize=int8", "max_loss=0.05", "limit_batches=100"]) == 0
    printed = capsys.readouterr().out
    report = json.loads((out / "export.json").read_text())
    found = report["compression"]
    assert found["way"] == "static" and found["calibration_samples"] == "200" and report["tolerance"] == 0.05
    assert found["bytes"]["int8"] == (out / "model.onnx").stat().st_size < 0.6 * found["bytes"]["float32"]
    assert {(row["batch"], row["threads"]) for row in found["latency"]} >= {(1, 1), (32, 1)}
    assert all(row["int8"] > 0 and row["float32"] > 0 for row in found["latency"])
    assert found["metric"]["name"] == "accuracy"
    assert found["metric"]["int8"] == pytest.approx(accuracy_of(out, trained), abs=1e-6)
    measured = mxtrain.load(trained).evaluate(split="test")
    assert found["metric"]["float32"] == pytest.approx(measured["accuracy"], abs=1e-6)
    assert 1e-4 < found["errors"]["output"] < 0.5
    card = (out / "README.md").read_text()
    for text in ("batch 32, 1 thread, ms", "file, MB", "VNNI"):
        assert text in printed and text in card
    assert run(["export", "check", str(out)]) == 0
    with np.load(out / "proof.npz") as proof:
        arrays = dict(proof)
    arrays["0/output/output"] = arrays["0/output/output"] + 0.1 * np.abs(arrays["0/output/output"]).max()
    np.savez(out / "proof.npz", **arrays)
    assert run(["export", "check", str(out)]) == 2
    assert "by more than 5e-02" in capsys.readouterr().err
    assert not list(tmp_path.glob(".*"))


@pytest.mark.slow
def test_worse_network_is_refused_without_output(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def break_it(source: Path, target: Path, samples: Any) -> quantize.Way:
        model = onnx.load(source)
        weight = next(one for one in model.graph.initializer if one.name.endswith("dense0_weight"))
        weight.CopyFrom(numpy_helper.from_array(-numpy_helper.to_array(weight), weight.name))
        quantize.save_plain(model, target)
        return quantize.choose_way(model)

    monkeypatch.setattr(compression.quantize, "quantize_int8", break_it)
    assert run(["export", str(trained), f"out={tmp_path / 'out'}", "quantize=int8"]) == 1
    said = capsys.readouterr().err
    assert "accuracy is" in said and "max_loss=0.01 allows 0.01" in said
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("form", ["float16", pytest.param("bfloat16", marks=pytest.mark.zoo)])
def test_weights_of_16_bits_are_compared_and_proven(trained: Path, tmp_path: Path, form: str) -> None:
    report = mxtrain.load(trained).export(tmp_path / form, quantize=form).compressed
    assert report is not None and report["way"] == "weights"
    assert report["bytes"][form] < 0.6 * report["bytes"]["float32"]
    assert report["errors"]["output"] < {"float16": 5e-3, "bfloat16": 5e-2}[form]
    errors = standalone.check(str(tmp_path / form))
    assert max(errors.values()) < 1e-5
    assert json.loads((tmp_path / form / "export.json").read_text())["tolerance"] == 1e-4


@pytest.mark.parametrize(
    "words, said",
    [
        (["quantize=int4"], "should be 'none', 'int8', 'float16' or 'bfloat16'. Did you mean 'int8'?"),
        (["max_loss=-1"], "max_loss=-1"),
        (["calibration_samples=0"], "calibration_samples=0"),
    ],
)
def test_wrong_settings_are_refused(words: List[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["export", "RUN", *words]) == 2
    assert said in capsys.readouterr().err
