"""Files that PyTorch writes for torchvision's networks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from mxtrain.config.groups import build_group
from mxtrain.engine.backend import autograd, gluon, mx
from mxtrain.exporting.standalone import relative_error
from mxtrain.model.prepare import prepare_network

torch = pytest.importorskip("torch")
torchvision = pytest.importorskip("torchvision")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

SIDE = 64


def network_of(name: str) -> Any:
    """A network with random weights and statistics of batch norms."""
    torch.manual_seed(0)
    if name == "small_densenet":
        network = torchvision.models.DenseNet(32, (2, 2), num_classes=7)
    else:
        network = getattr(torchvision.models, name)(weights=None, num_classes=7)
    network.train()
    with torch.no_grad():
        for _ in range(2):
            network(torch.randn(8, 3, SIDE, SIDE))
    return network.eval()


def write(network: Any, path: Path, form: str) -> str:
    """Writes a file: `folded` batch norms, an `open` batch size, open `sizes`, or the form for `training`."""
    settings: Any = {"training": {"training": torch.onnx.TrainingMode.TRAINING, "do_constant_folding": False}}
    settings["open"] = {"dynamic_axes": {"input": {0: "batch"}}}
    settings["sizes"] = {"dynamic_axes": {"input": {0: "batch", 2: "height", 3: "width"}}}
    torch.onnx.export(
        network,
        torch.zeros(1, 3, SIDE, SIDE),
        str(path),
        dynamo=False,
        input_names=["input"],
        **settings.get(form, {}),
    )
    return str(path)


def imported(path: str, classes: int = 7) -> Any:
    model = build_group("model", {"_target_": "mxtrain.model.onnx.model.OnnxFile", "file": path}, lambda path: "test")
    return prepare_network(model, num_classes=classes, input_shape=(3, SIDE, SIDE), seed=0)


NETWORKS = ("resnet18", "mobilenet_v2", "mobilenet_v3_small", "densenet121", "efficientnet_b0")
SHUFFLE = "shufflenet_v2_x0_5"
FEW = {("resnet18", "training"), ("mobilenet_v3_small", "open"), ("small_densenet", "folded"), (SHUFFLE, "sizes")}
CASES: Any = [*FEW, *((name, form) for name in (*NETWORKS, SHUFFLE) for form in ("folded", "open", "training"))]
# Its form for training draws random numbers (stochastic depth), which is refused.
CASES.remove(("efficientnet_b0", "training"))
CASES = [pytest.param(*case, marks=() if case in FEW else pytest.mark.zoo) for case in dict.fromkeys(sorted(CASES))]


@pytest.mark.parametrize("name, form", CASES)
def test_network_of_torchvision_computes_the_same_and_trains(tmp_path: Path, name: str, form: str) -> None:
    network = network_of(name)
    path = write(network, tmp_path / "x.onnx", form)
    network.eval()
    prepared = imported(path)
    assert not prepared.weights_report.left and not prepared.weights_report.unused
    has_norms = any(parameter.endswith("gamma") for parameter in prepared.network.collect_params())
    # Only norms behind a convolution are merged into it; those of DenseNet stand before one.
    assert has_norms == (form == "training" or "densenet" in name)
    x = image()
    with torch.no_grad():
        expected = network(torch.from_numpy(x)).numpy()
    assert relative_error(prepared.network(mx.nd.array(x)).asnumpy(), expected) < 1e-5
    losses = train(imported(path, classes=3).network, x)
    # Without batch norms random weights learn slowly.
    assert losses[-1] < (0.5 if form == "training" else 0.98) * losses[0]


def small_shuffle() -> Any:
    nn = torch.nn
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.Hardswish(), nn.ChannelShuffle(2), nn.AvgPool2d(3, 2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 7)).eval()


ZOO = [
    pytest.param(lambda name=name: network_of(name), 1e-5, id=name, marks=pytest.mark.zoo)
    for name in (*NETWORKS, SHUFFLE)
]


@pytest.mark.parametrize("make, limit", [pytest.param(small_shuffle, 1e-6, id="small"), *ZOO])
def test_file_of_the_exporter_by_torch_export(tmp_path: Path, make: Any, limit: float) -> None:
    """`dynamo=True`, the default of PyTorch: arrays are in a second file."""
    pytest.importorskip("onnxscript")
    path, sizes = str(tmp_path / "x.onnx"), {0: torch.export.Dim("batch")}
    torch.onnx.export(make(), (torch.zeros(2, 3, SIDE, SIDE),), path, dynamo=True, dynamic_shapes=(sizes,))
    assert (tmp_path / "x.onnx.data").is_file()
    prepared = imported(path)
    assert not prepared.weights_report.left and not prepared.weights_report.unused
    x = image()
    session = onnxruntime.InferenceSession(path)
    (expected,) = session.run(None, {session.get_inputs()[0].name: x})
    assert relative_error(prepared.network(mx.nd.array(x)).asnumpy(), expected) < limit
    losses = train(imported(path, classes=3).network, x)
    assert losses[-1] < losses[0]


def image() -> np.ndarray:
    return np.random.RandomState(1).uniform(-1, 1, (4, 3, SIDE, SIDE)).astype(np.float32)


def train(network: Any, x: np.ndarray) -> Any:
    trainer = gluon.Trainer(network.collect_params(), "adam", {"learning_rate": 1e-3})
    target = mx.nd.array([0, 1, 2, 0])
    losses = []
    for _ in range(12):
        with autograd.record():
            loss = gluon.loss.SoftmaxCrossEntropyLoss()(network(mx.nd.array(x)), target)
        loss.backward()
        trainer.step(len(x))
        losses.append(float(loss.mean().asscalar()))
    return losses
