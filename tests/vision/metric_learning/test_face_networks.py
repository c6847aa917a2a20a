"""insightface's networks against its graphs, rebuilt from their source, with files as Module writes them.

Source: insightface, recognition/arcface_mxnet/symbol (commit 443c28fa): fresnet.py with units of version 3 and input 1,
fmobilefacenet.py, symbol_utils.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, Tuple

import numpy as np
import pytest

from mxtrain.engine.backend import mx, nd
from mxtrain.errors import ConfigError, WeightsError
from mxtrain.model.weights import load_weights
from mxtrain.vision.metric_learning.face_networks import UNITS, IResNet, MobileFaceNet

sym = mx.sym
SIZE = 16


class Graph:
    """insightface's layers; `act` is prelu or another activation."""

    def __init__(self, act: str) -> None:
        self.act_type = act
        self.eps: Dict[str, Any] = {"eps": 2e-5}

    def conv(self, x: Any, name: str, filters: int, kernel: int, stride: int, pad: int, **options: Any) -> Any:
        options = {"no_bias": True, **options}
        sizes = {"kernel": (kernel,) * 2, "stride": (stride,) * 2, "pad": (pad,) * 2}
        return sym.Convolution(x, num_filter=filters, name=name, **sizes, **options)

    def norm(self, x: Any, name: str, fix: bool = False, **eps: Any) -> Any:
        return sym.BatchNorm(x, name=name, fix_gamma=fix, momentum=0.9, **(eps or self.eps))

    def act(self, x: Any, name: str) -> Any:
        if self.act_type == "prelu":
            return sym.LeakyReLU(x, act_type="prelu", name=name)
        return sym.Activation(x, act_type=self.act_type, name=name)

    def end(self, x: Any, kind: str, size: int) -> Any:
        eps: Dict[str, Any] = {"eps": 2e-5}
        if kind in ("E", "FC", "GAP", "F", "G"):
            x = self.norm(x, "bn1", **eps)
        if kind in ("E", "F"):
            x = sym.Dropout(x, p=0.4)
        if kind == "GAP":
            x = sym.Flatten(sym.Pooling(self.act(x, "relu1"), global_pool=True, kernel=(7, 7), pool_type="avg"))
        if kind == "GDC":
            x = self.conv(x, "conv_6dw7_7_conv2d", 512, 7, 1, 0, num_group=512)
            x = sym.BatchNorm(x, name="conv_6dw7_7_batchnorm", fix_gamma=False, momentum=0.9)
        if kind in ("F", "G", "H"):
            return sym.FullyConnected(x, num_hidden=size, name="fc1")
        return self.norm(sym.FullyConnected(x, num_hidden=size, name="pre_fc1"), "fc1", fix=True, **eps)


def fresnet(units: Tuple[int, ...], kind: str, se: bool, act: str) -> Any:
    g = Graph(act)
    x = (sym.identity(sym.Variable("data"), name="id") - 127.5) * 0.0078125
    x = g.act(g.norm(g.conv(x, "conv0", 64, 3, 1, 1), "bn0"), "relu0")
    for stage, (count, filters) in enumerate(zip(units, (64, 128, 256, 512)), 1):
        for number in range(1, count + 1):
            name, stride = f"stage{stage}_unit{number}", 2 if number == 1 else 1
            y = g.conv(g.norm(x, f"{name}_bn1"), f"{name}_conv1", filters, 3, 1, 1)
            y = g.act(g.norm(y, f"{name}_bn2"), f"{name}_relu1")
            y = g.norm(g.conv(y, f"{name}_conv2", filters, 3, stride, 1), f"{name}_bn3")
            if se:
                w = sym.Pooling(y, global_pool=True, kernel=(7, 7), pool_type="avg")
                w = g.conv(w, f"{name}_se_conv1", filters // 16, 1, 1, 0, no_bias=False)
                w = g.conv(g.act(w, f"{name}_se_relu1"), f"{name}_se_conv2", filters, 1, 1, 0, no_bias=False)
                y = sym.broadcast_mul(y, sym.Activation(w, act_type="sigmoid"))
            if stride == 2:
                x = g.norm(g.conv(x, f"{name}_conv1sc", filters, 1, 2, 0), f"{name}_sc")
            x = y + x
    return g.end(x, kind, SIZE)


def fmobilefacenet(blocks: Tuple[int, ...], kind: str, act: str) -> Any:
    g = Graph(act)
    g.eps = {}  # the operator's default

    def linear(x: Any, name: str, filters: int, kernel: int, stride: int, pad: int, groups: int = 1) -> Any:
        x = g.conv(x, f"{name}_conv2d", filters, kernel, stride, pad, num_group=groups)
        return g.norm(x, f"{name}_batchnorm")

    def conv(x: Any, name: str, *sizes: int) -> Any:
        return g.act(linear(x, name, *sizes), f"{name}_relu")

    def bottleneck(x: Any, name: str, filters: int, groups: int, stride: int) -> Any:
        x = conv(x, f"{name}_conv_sep", groups, 1, 1, 0)
        x = conv(x, f"{name}_conv_dw", groups, 3, stride, 1, groups)
        return linear(x, f"{name}_conv_proj", filters, 1, 1, 0)

    def residual(x: Any, name: str, count: int, filters: int, groups: int) -> Any:
        for number in range(count):
            x = bottleneck(x, f"{name}_block{number}", filters, groups, 1) + x
        return x

    x = (sym.Variable("data") - 127.5) * 0.0078125
    x = conv(x, "conv_1", 64, 3, 2, 1)
    x = conv(x, "conv_2_dw", 64, 3, 1, 1, 64) if blocks[0] == 1 else residual(x, "res_2", blocks[0], 64, 64)
    x = residual(bottleneck(x, "dconv_23", 64, 128, 2), "res_3", blocks[1], 64, 128)
    x = residual(bottleneck(x, "dconv_34", 128, 256, 2), "res_4", blocks[2], 128, 256)
    x = residual(bottleneck(x, "dconv_45", 128, 512, 2), "res_5", blocks[3], 128, 256)
    return g.end(conv(x, "conv_6sep", 512, 1, 1, 0), kind, SIZE)


def written(graph: Any, side: int, folder: Path) -> Tuple[Path, np.ndarray, np.ndarray]:
    """The file of a Module with drawn parameters, pixels (B, 3, H, W) and the graph's embeddings (B, D) of them."""
    module = mx.mod.Module(graph, label_names=None)
    module.bind(data_shapes=[("data", (2, 3, side, side))], for_training=False)
    draw = np.random.RandomState(3)

    def drawn(name: str, shape: Tuple[int, ...]) -> Any:
        if name.endswith(("gamma", "var")):
            return nd.array(draw.uniform(0.3, 1.0, shape))
        spread = (2 / np.prod(shape[1:])) ** 0.5 if name.endswith("weight") else 0.1
        return nd.array(draw.normal(0, spread, shape))

    shapes, _, aux = graph.infer_shape(data=(2, 3, side, side))
    args = {name: drawn(name, shape) for name, shape in zip(graph.list_arguments(), shapes) if name != "data"}
    states = {name: drawn(name, shape) for name, shape in zip(graph.list_auxiliary_states(), aux)}
    module.set_params(args, states)
    module.save_checkpoint(str(folder / "model"), 1)
    pixels = draw.randint(0, 256, (2, 3, side, side)).astype(np.float32)
    module.forward(mx.io.DataBatch([nd.array(pixels)]), is_train=False)
    return folder / "model-0001.params", pixels, module.get_outputs()[0].asnumpy()


def assert_equal(network: Any, file: Path, pixels: np.ndarray, expected: np.ndarray) -> None:
    report = load_weights(network, file)
    assert not (report.left or report.unused or report.replaced)
    assert len(report.matched) == len(nd.load(str(file)))
    assert np.abs(expected).max() > 0.1
    np.testing.assert_allclose(network(nd.array(pixels)).asnumpy(), expected, atol=1e-5 * np.abs(expected).max())


SMALL = 32


@pytest.mark.zoo_except("False-prelu-E", "True-prelu-GAP", "False-relu-J")
@pytest.mark.slow
@pytest.mark.parametrize(
    "se,act,kind",
    [(False, "prelu", "E"), (True, "prelu", "GAP"), (True, "relu", "FC")]
    + [(False, "relu", kind) for kind in ("J", "F", "G", "H")],
)
def test_iresnet_equals_insightfaces_graph(prepare: Any, tmp_path: Path, se: bool, act: Any, kind: Any) -> None:
    file, pixels, expected = written(fresnet(UNITS[18], kind, se, act), SMALL, tmp_path)
    model = IResNet(depth=18, output=kind, se=se, activation=act)
    assert_equal(prepare(model, SIZE, (3, SMALL, SMALL)), file, pixels, expected)


@pytest.mark.zoo_except("34")
@pytest.mark.slow
@pytest.mark.parametrize("depth", [34, 50, 100])
def test_deep_iresnets_equal_insightfaces_graphs(prepare: Any, tmp_path: Path, depth: Any) -> None:
    units = {34: (3, 4, 6, 3), 50: (3, 4, 14, 3), 100: (3, 13, 30, 3)}[depth]
    file, pixels, expected = written(fresnet(units, "E", False, "prelu"), SMALL, tmp_path)
    assert_equal(prepare(IResNet(depth=depth), SIZE, (3, SMALL, SMALL)), file, pixels, expected)


@pytest.mark.slow_cases("blocks0-GDC-112", "blocks1-GDC-97")
@pytest.mark.parametrize(
    "blocks,kind,side", [((1, 4, 6, 2), "GDC", 112), ((2, 8, 16, 4), "GDC", 97), ((1, 1, 1, 1), "E", 16)]
)
def test_mobilefacenet_equals_insightfaces_graph(
    prepare: Any, tmp_path: Path, blocks: Tuple[int, ...], kind: Any, side: int
) -> None:
    file, pixels, expected = written(fmobilefacenet(blocks, kind, "prelu"), side, tmp_path)
    network = prepare(MobileFaceNet(blocks=list(blocks), output=kind), SIZE, (3, side, side))
    assert_equal(network, file, pixels, expected)


def test_other_files_are_refused_and_own_files_load(prepare: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "own.params")
    model = MobileFaceNet(blocks=[1, 1, 1, 1], output="E")
    network = prepare(model, SIZE, (3, SMALL, SMALL), seed=1)
    network.save_parameters(path)
    other = prepare(model, SIZE, (3, SMALL, SMALL), seed=2)
    before = other.conv_1.conv2d.weight.data().asnumpy()
    report = load_weights(other, path)
    assert not (report.left or report.unused)
    assert not np.array_equal(before, other.conv_1.conv2d.weight.data().asnumpy())
    nd.save(path, {"arg:first_weight": nd.ones((2,)), "arg:conv_1_conv2d_weight": nd.ones((64, 3, 3, 3))})
    with pytest.raises(WeightsError, match="Nothing in the weights file"):
        load_weights(other, path)


@pytest.mark.slow
def test_class_centres_in_a_file_are_reported(prepare: Any, tmp_path: Path) -> None:
    file, pixels, expected = written(fresnet(UNITS[18], "E", False, "prelu"), SMALL, tmp_path)
    nd.save(str(file), {**nd.load(str(file)), "arg:fc7_weight": nd.ones((9, SIZE))})
    report = load_weights(prepare(IResNet(depth=18), SIZE, (3, SMALL, SMALL)), file)
    assert report.unused == ["arg:fc7_weight"] and not report.left


def test_networks_take_pixels_of_colour_images_of_any_size() -> None:
    model = IResNet()
    assert model.takes_pixels and model.usual_side == 112 and model.input_shape((1, 40, 50)) == (3, 40, 50)


@pytest.mark.parametrize("side", [96, 97])
def test_gdc_needs_a_map_as_large_as_its_kernel(prepare: Any, side: int) -> None:
    model = MobileFaceNet(blocks=[1, 1, 1, 1])
    if side == 97:
        assert prepare(model, SIZE, (3, 97, 112)).pre_fc1.weight.shape == (SIZE, 512)
    else:
        with pytest.raises(ConfigError, match="at least 97 px, but samples are 112x96. Type model.output=E"):
            model.build(SIZE, (3, 112, 96))


def test_layouts_differ_in_epsilon_and_scale(prepare: Any) -> None:
    epsilon_and_scale = {}
    for layout in ("mxnet", "pytorch"):
        network = prepare(IResNet(depth=18, layout=layout), SIZE, (3, SMALL, SMALL))
        scaled = network.scale(nd.array([127.5, 255.0])).asnumpy()
        norms = (network.bn0, network.stage1_unit1.bn1, network.stage4_unit2.bn3, network.bn1, network.fc1)
        epsilon_and_scale[layout] = ({norm._kwargs["eps"] for norm in norms}, scaled.tolist())
    assert epsilon_and_scale == {"mxnet": ({2e-5}, [0.0, 127.5 / 128]), "pytorch": ({1e-5}, [0.0, 1.0])}


@pytest.mark.parametrize("model", [IResNet(depth=18, se=True), MobileFaceNet(blocks=[2, 1, 1, 1], output="E")])
@pytest.mark.slow
def test_all_parameters_learn(prepare: Any, model: Any) -> None:
    network = prepare(model, SIZE, (3, SMALL, SMALL))
    pixels = nd.array(np.random.RandomState(0).randint(0, 256, (4, 3, SMALL, SMALL)))
    with mx.autograd.record():
        loss = (network(pixels) * nd.array(np.random.RandomState(1).randn(4, SIZE))).sum()
    loss.backward()
    for name, parameter in network._collect_params_with_prefix().items():
        if parameter.grad_req != "null" and not name.startswith("pre_fc1.bias"):  # the norm behind removes it
            assert np.abs(parameter.grad().asnumpy()).max() > 0, name
