"""Exports compute all sizes that they declare as open, and report sizes that cannot be open as fixed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, List

import numpy as np
import pytest
import running
from mxnet import gluon
from small_runs import CASES, SHORT

import mxtrain
from mxtrain.exporting.converters import CONVERTERS
from mxtrain.exporting.graph import Unsupported
from mxtrain.exporting.standalone import OpenedExport, inputs_of, load_session
from mxtrain.serving.errors import RequestError
from mxtrain.serving.models import ServedModel

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def segmentation(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run of a pyramid network, whose maps are halved, doubled and cut."""
    folder = tmp_path_factory.mktemp("segmentation") / "run"
    running.train_here(folder, *SHORT, *CASES["fpn"])
    return mxtrain.load(folder)


def input_shapes(folder: Path) -> List[Any]:
    return [array.shape for name, array in np.load(folder / "proof.npz").items() if "/input/" in name]


def test_odd_sizes_are_proven_apart_and_in_batches(segmentation: Any, tmp_path: Path) -> None:
    report = segmentation.export(tmp_path / "out", limit_batches=1)
    assert report.fixed == "" and max(report.errors.values()) < 1e-5
    assert input_shapes(tmp_path / "out") == [
        (1, 3, 32, 32),
        (4, 3, 32, 32),
        (2, 3, 65, 47),
        (1, 3, 32, 49),
        (1, 3, 50, 32),
    ]
    session = load_session(str(tmp_path / "out"))
    for height, width in ((64, 63), (31, 33), (50, 17)):
        (output, *_) = session.run(None, {"input": np.zeros((2, 3, height, width), np.uint8)})
        assert output.shape[2:] == (height, width)


def test_a_size_that_cannot_be_open_is_named_as_fixed(
    segmentation: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Right for multiples of the stride alone, as the conversion once was.
    monkeypatch.setitem(CONVERTERS, "slice_like", lambda call: call.x())
    folder = tmp_path / "out"
    report = segmentation.export(folder, limit_batches=1)
    sentence = "height and width are fixed at 32 x 32: its results for other sizes are not those of MXNet"
    assert report.fixed == sentence and json.loads((folder / "signature.json").read_text())["fixed"] == sentence
    assert f"\n\n{sentence}.\n" in (folder / "README.md").read_text()
    assert [one["shape"] for one in OpenedExport(str(folder)).signature["inputs"]] == [["batch", 3, 32, 32]]
    np.savez(tmp_path / "x.npz", input=np.zeros((1, 3, 31, 32), np.uint8))
    with pytest.raises(ValueError, match=f"network reads batch x 3 x 32 x 32. {sentence}"):
        inputs_of(str(tmp_path / "x.npz"), OpenedExport(str(folder)).signature)
    model = ServedModel("m", str(folder), 1, False, 4, 1.0)
    with pytest.raises(RequestError, match=f"it must be .*{sentence}"):
        model.validate({"input": np.zeros((1, 3, 31, 32), np.uint8)})


@pytest.fixture(scope="module")
def norm(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run of a network with a group norm of 4 groups for 8 channels."""
    draw = np.random.default_rng(0)
    network = gluon.nn.HybridSequential()
    network.add(gluon.nn.Conv2D(8, 3), gluon.nn.GroupNorm(4), gluon.nn.GlobalAvgPool2D(), gluon.nn.Dense(2))
    data = draw.normal(size=(16, 3, 9, 9)).astype(np.float32), draw.integers(0, 2, 16)
    folder = tmp_path_factory.mktemp("norm") / "run"
    return mxtrain.train("trainer.max_epochs=1", "logger=[jsonl]", model=network, dataset=data, dir=str(folder))


def test_group_norm_of_several_groups_is_exported(norm: Any, tmp_path: Path) -> None:
    assert max(norm.export(tmp_path / "out", limit_batches=1).errors.values()) < 1e-5


def by_channel(call: Any) -> str:
    """The conversion of GroupNorm with one gamma for each channel: onnxruntime complains of the layer behind it."""
    gamma = call.graph.constant(np.ones((4, 1, 1), np.float32))
    return str(call.add("Mul", [call.add("Reshape", [call.x(), call.add("Shape", [call.x()])]), gamma]))


WRONG: Dict[str, Any] = {
    "GroupNorm": by_channel,  # refused when it is loaded, at the dense layer
    "Convolution": lambda call: call.add("Conv", [call.x(), call.x(1)], kernel_shape=(2, 3)),
    "FullyConnected": lambda call: call.add("Reshape", [call.x(), call.ints(0, 3)]),  # refused when it runs
}


@pytest.mark.parametrize("operator", WRONG)
def test_a_graph_that_onnxruntime_refuses_names_the_layer(
    norm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operator: str
) -> None:
    monkeypatch.setitem(CONVERTERS, operator, WRONG[operator])
    layer = {"Convolution": "0", "GroupNorm": "1", "FullyConnected": "3"}[operator]
    said = rf"operator {operator} \(.*, in layer '{layer}'\) has no conversion to ONNX that onnxruntime takes \(.+\)\. "
    with pytest.raises(Unsupported, match=said):
        norm.export(tmp_path / "out", limit_batches=1)
    assert not (tmp_path / "out").exists()
