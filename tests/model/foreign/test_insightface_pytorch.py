"""insightface's iresnet of PyTorch, rebuilt from its source, against ours: outputs of all layers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from foreign_files import random_arrays, write
from layerwise import differences, randomised

from mxtrain.engine.backend import nd
from mxtrain.errors import WeightsError
from mxtrain.model.foreign.families.iresnet import FAMILY
from mxtrain.model.foreign.importing import describe, family_of
from mxtrain.model.weights import load_weights
from mxtrain.vision.metric_learning.face_networks import IResNet, MobileFaceNet

SIDE, SIZE = 32, 16
UNITS = {18: (2, 2, 2, 2), 50: (3, 4, 14, 3)}


def shapes(units: Any) -> Any:
    """Names and shapes of backbone.pth; source: arcface_torch/backbones/iresnet.py (commit 443c28fa)."""
    found = {"conv1.weight": (64, 3, 3, 3), "prelu.weight": (64,)}

    def norm(name: str, channels: int) -> None:
        found.update({f"{name}.{role}": (channels,) for role in ("weight", "bias", "running_mean", "running_var")})

    norm("bn1", 64)
    before = 64
    for stage, (count, channels) in enumerate(zip(units, (64, 128, 256, 512)), 1):
        for number in range(count):
            name = f"layer{stage}.{number}"
            norm(f"{name}.bn1", before)
            found[f"{name}.conv1.weight"] = (channels, before, 3, 3)
            norm(f"{name}.bn2", channels)
            found[f"{name}.prelu.weight"] = (channels,)
            found[f"{name}.conv2.weight"] = (channels, channels, 3, 3)
            norm(f"{name}.bn3", channels)
            if number == 0:
                found[f"{name}.downsample.0.weight"] = (channels, before, 1, 1)
                norm(f"{name}.downsample.1", channels)
            before = channels
    norm("bn2", 512)
    found.update({"fc.weight": (SIZE, 512 * (SIDE // 16) ** 2), "fc.bias": (SIZE,)})
    norm("features", SIZE)
    return found


def arrays_of(units: Any) -> Any:
    arrays = random_arrays(shapes(units))
    return {**arrays, "features.weight": np.ones(SIZE, "float32")}


def test_the_family_is_told_from_resnet_and_its_settings_are_named(tmp_path: Any) -> None:
    arrays = {**dict.fromkeys(shapes(UNITS[50]), np.zeros(1)), "features.weight": np.ones(SIZE)}
    found = family_of(arrays, {})
    assert found is not None and found.name == "insightface's iresnet of PyTorch"
    _, settings, _ = describe(tmp_path / "model.safetensors", arrays)
    assert settings == "model=iresnet model.depth=50 model.layout=pytorch task.embedding_size=16"


def test_every_array_has_its_name_in_the_network() -> None:
    network = IResNet(depth=18, layout="pytorch").build(SIZE, (3, SIDE, SIDE))
    theirs = shapes(UNITS[18])
    found = [next(filter(None, (rule.match(name, theirs) for rule in FAMILY.tables[0].rules)), name) for name in theirs]
    assert sorted(found) == sorted(network._collect_params_with_prefix())


@pytest.mark.slow
@pytest.mark.parametrize(
    "model,change,reason",
    [
        (IResNet(depth=18), {}, "Type model=iresnet model.depth=18 model.layout=pytorch task.embedding_size=16"),
        (IResNet(depth=18, layout="pytorch"), {"features.weight": np.full(SIZE, 2, "float32")}, "'features.weight' is"),
        (IResNet(depth=18, layout="pytorch", se=True), {}, "arrays the network needs, and are not in the file"),
        (IResNet(depth=34, layout="pytorch"), {}, "arrays the network needs, and are not in the file"),
        (MobileFaceNet(output="E"), {}, "Type model=iresnet model.depth=18"),
    ],
)
def test_other_networks_are_refused(prepare: Any, tmp_path: Any, model: Any, change: Any, reason: str) -> None:
    path = write(tmp_path / "model.safetensors", {**arrays_of(UNITS[18]), **change})
    with pytest.raises(WeightsError, match=reason):
        load_weights(prepare(model, SIZE, (3, SIDE, SIDE)), path)


@pytest.mark.slow
@pytest.mark.parametrize("depth", [18, pytest.param(50, marks=pytest.mark.zoo)])
def test_iresnet_of_pytorch_layer_by_layer(prepare: Any, tmp_path: Any, record_property: Any, depth: Any) -> None:
    torch = pytest.importorskip("torch")
    nn = torch.nn

    class Unit(nn.Module):  # type: ignore[name-defined]
        def __init__(self, before: int, channels: int, stride: int) -> None:
            super().__init__()
            self.bn1, self.bn2, self.bn3 = (nn.BatchNorm2d(n) for n in (before, channels, channels))
            self.conv1 = nn.Conv2d(before, channels, 3, padding=1, bias=False)
            self.conv2 = nn.Conv2d(channels, channels, 3, stride, padding=1, bias=False)
            self.prelu = nn.PReLU(channels)
            self.downsample = nn.Identity()
            if stride == 2:
                convolution = nn.Conv2d(before, channels, 1, 2, bias=False)
                self.downsample = nn.Sequential(convolution, nn.BatchNorm2d(channels))

        def forward(self, x: Any) -> Any:
            body = self.prelu(self.bn2(self.conv1(self.bn1(x))))
            return self.bn3(self.conv2(body)) + self.downsample(x)

    class Network(nn.Module):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.bn1, self.prelu = (
                nn.Conv2d(3, 64, 3, padding=1, bias=False),
                nn.BatchNorm2d(64),
                nn.PReLU(64),
            )
            before = 64
            for stage, (count, channels) in enumerate(zip(UNITS[depth], (64, 128, 256, 512)), 1):
                units = []
                for number in range(count):
                    units.append(Unit(before, channels, 1 if number else 2))
                    before = channels
                setattr(self, f"layer{stage}", nn.Sequential(*units))
            self.bn2, self.fc = nn.BatchNorm2d(512), nn.Linear(512 * (SIDE // 16) ** 2, SIZE)
            self.features = nn.BatchNorm1d(SIZE)

        def forward(self, x: Any) -> Any:
            x = self.prelu(self.bn1(self.conv1(x)))
            x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
            return self.features(self.fc(torch.flatten(self.bn2(x), 1)))

    torch.manual_seed(0)
    theirs = randomised(Network())
    theirs.features.weight.data.fill_(1.0)
    state = {name: value.numpy() for name, value in theirs.state_dict().items()}
    assert set(shapes(UNITS[depth])) == {name for name in state if not name.endswith("num_batches_tracked")}
    path = write(tmp_path / "model.safetensors", state)
    pixels = np.random.RandomState(0).randint(0, 256, (2, 3, SIDE, SIDE)).astype("float32")
    scaled = torch.tensor((pixels / 255 - 0.5) / 0.5, dtype=torch.float32)
    network = prepare(IResNet(depth=depth, layout="pytorch"), SIZE, (3, SIDE, SIDE))
    found, report = differences(theirs, network, path, [pixels], lambda one: one(scaled))
    record_property("largest", max(found.values()))
    assert len(found) > 30 and max(found.values()) < 1e-5
    assert not (report.left or report.unused or report.replaced)
    assert network(nd.array(pixels)).shape == (2, SIZE)
