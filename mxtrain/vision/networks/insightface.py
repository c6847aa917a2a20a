"""insightface's networks for face recognition as Gluon blocks. Imports MXNet.

Structural names follow the names in the files of insightface's MXNet code: `stage1_unit1.conv1.weight` is its
`stage1_unit1_conv1_weight`, so that a file loads by name. Images are (B, 3, H, W) with pixels from 0 to 255: the
networks scale them, as insightface's graphs do.

Source: insightface, recognition/arcface_mxnet/symbol: fresnet.py, fmobilefacenet.py and symbol_utils.py, and for
`pytorch=True` recognition/arcface_torch/backbones/iresnet.py (read at commit 443c28fa).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Mapping, Sequence

from mxtrain.engine.backend import gluon

if TYPE_CHECKING:
    from mxtrain.types.annotations import Array, OperatorModule

nn = gluon.nn

PIXEL_MEAN = 127.5
PIXEL_STD, PYTORCH_PIXEL_STD = 128.0, 127.5
"""Divisors of pixels in insightface's MXNet graphs, and in the loader of its PyTorch code."""
EPSILON, PYTORCH_EPSILON = 2e-5, 1e-5
MOBILE_EPSILON = 1e-3
"""Epsilon of the batch norms of MobileFaceNet's layers: its source gives none, and this is the operator's default."""
SE_RATIO = 16
"""Factor by which squeeze and excitation reduces the number of channels."""
STAGE_CHANNELS = (64, 128, 256, 512)
FILE_NAMES = {"running_mean": "moving_mean", "running_var": "moving_var", "alpha": "gamma"}
"""Gluon's name of a parameter -> its name in a graph, where the two differ."""
EMBEDDING_MAP_SIDE = 7
"""Kernel size of the depthwise convolution of `GDC`, which covers the whole last feature map of images of 112 px."""


def file_name(structural: str) -> str:
    """Returns the name of a parameter in insightface's files, e.g. `bn0_moving_mean` for `bn0.running_mean`."""
    path, _, name = structural.rpartition(".")
    return f"{path.replace('.', '_')}_{FILE_NAMES.get(name, name)}"


class _NamedLayers(gluon.HybridBlock):
    """Layers that are called in the order in which they were added, as `nn.HybridSequential`, but with given names."""

    def add_as(self, name: str, layer: gluon.HybridBlock) -> None:
        """Appends a layer under a name."""
        setattr(self, name, layer)

    def hybrid_forward(self, F: OperatorModule, x: Array) -> Array:
        for layer in self._children.values():
            x = layer(x)
        return x


class FaceNetwork(_NamedLayers):
    """Base class of the networks: images (B, 3, H, W) of pixels to embeddings (B, D), which are not normalised."""

    @property
    def backbone_names(self) -> Mapping[str, str]:
        """Structural name -> name in insightface's files."""
        return {name: file_name(name) for name in self._collect_params_with_prefix()}


class _NormalizePixels(gluon.HybridBlock):
    """Normalises pixels: (pixel - PIXEL_MEAN) / std."""

    def __init__(self, std: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._std = std

    def hybrid_forward(self, F: OperatorModule, x: Array) -> Array:
        return (x - PIXEL_MEAN) * (1 / self._std)


def _activation(kind: str, channels: int) -> gluon.HybridBlock:
    return nn.PReLU(in_channels=channels) if kind == "prelu" else nn.Activation(kind)


def _convolution(in_channels: int, channels: int, kernel: int, stride: int = 1, **options: Any) -> gluon.HybridBlock:
    options = {"padding": kernel // 2, "use_bias": False, **options}
    return nn.Conv2D(channels, kernel, stride, in_channels=in_channels, **options)


class _Residual(_NamedLayers):
    """Residual connection: the sum of the input and the output of the layers."""

    def hybrid_forward(self, F: OperatorModule, x: Array) -> Array:
        return super().hybrid_forward(F, x) + x


class _SqueezeExcitation(gluon.HybridBlock):
    """Scales channels by a function of their means. Source: Hu et al., arXiv 1709.01507, section 3."""

    def __init__(self, channels: int, activation: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        with self.name_scope():
            self.pool = nn.GlobalAvgPool2D()
            self.conv1 = _convolution(channels, channels // SE_RATIO, 1, use_bias=True)
            self.relu1 = _activation(activation, channels // SE_RATIO)
            self.conv2 = _convolution(channels // SE_RATIO, channels, 1, use_bias=True)

    def hybrid_forward(self, F: OperatorModule, x: Array) -> Array:
        scale = self.conv2(self.relu1(self.conv1(self.pool(x))))
        return F.broadcast_mul(x, F.Activation(scale, act_type="sigmoid"))


class _Unit(gluon.HybridBlock):
    """Residual unit of insightface's version 3: batch norms before and after two 3x3 convolutions, of which the second
    one has the stride. No activation follows the sum.
    """

    def __init__(
        self, in_channels: int, channels: int, stride: int, se: bool, activation: str, epsilon: float, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self._projects = stride != 1
        with self.name_scope():
            self.bn1 = nn.BatchNorm(epsilon=epsilon, in_channels=in_channels)
            self.conv1 = _convolution(in_channels, channels, 3)
            self.bn2 = nn.BatchNorm(epsilon=epsilon, in_channels=channels)
            self.relu1 = _activation(activation, channels)
            self.conv2 = _convolution(channels, channels, 3, stride)
            self.bn3 = nn.BatchNorm(epsilon=epsilon, in_channels=channels)
            self.se = _SqueezeExcitation(channels, activation) if se else None
            if self._projects:
                self.conv1sc = _convolution(in_channels, channels, 1, stride)
                self.sc = nn.BatchNorm(epsilon=epsilon, in_channels=channels)

    def hybrid_forward(self, F: OperatorModule, x: Array) -> Array:
        body = self.bn3(self.conv2(self.relu1(self.bn2(self.conv1(self.bn1(x))))))
        if self.se is not None:
            body = self.se(body)
        return body + (self.sc(self.conv1sc(x)) if self._projects else x)


def build_iresnet(
    embedding_size: int,
    units: Sequence[int],
    output: str,
    se: bool,
    activation: str,
    dropout: float,
    pytorch: bool = False,
) -> FaceNetwork:
    """Builds an improved residual network: a 3x3 stem, then stages that halve the image in their first unit.

    Args:
        embedding_size: D.
        units: residual units of each of the four stages.
        output: layers behind the last map, see `_add_output`.
        se: add squeeze and excitation to each unit.
        activation: prelu or relu.
        dropout: probability of the dropout before the embedding, for outputs with one.
        pytorch: epsilon and scale of insightface's PyTorch code.
    """
    epsilon = PYTORCH_EPSILON if pytorch else EPSILON
    network = FaceNetwork(prefix="iresnet_")
    with network.name_scope():
        network.add_as("scale", _NormalizePixels(PYTORCH_PIXEL_STD if pytorch else PIXEL_STD))
        channels = STAGE_CHANNELS[0]
        network.add_as("conv0", _convolution(3, channels, 3))
        network.add_as("bn0", nn.BatchNorm(epsilon=epsilon, in_channels=channels))
        network.add_as("relu0", _activation(activation, channels))
        for stage, (count, width) in enumerate(zip(units, STAGE_CHANNELS), 1):
            for number in range(1, count + 1):
                unit = _Unit(channels, width, 2 if number == 1 else 1, se, activation, epsilon)
                network.add_as(f"stage{stage}_unit{number}", unit)
                channels = width
        _add_output(network, embedding_size, output, channels, activation, dropout, epsilon)
    return network


def _convolution_norm(in_channels: int, channels: int, kernel: int, stride: int = 1, **options: Any) -> _NamedLayers:
    layers = _NamedLayers()
    with layers.name_scope():
        layers.add_as("conv2d", _convolution(in_channels, channels, kernel, stride, **options))
        layers.add_as("batchnorm", nn.BatchNorm(epsilon=MOBILE_EPSILON, in_channels=channels))
    return layers


def _convolution_activation(
    activation: str, in_channels: int, channels: int, kernel: int, stride: int = 1, groups: int = 1
) -> _NamedLayers:
    layers = _convolution_norm(in_channels, channels, kernel, stride, groups=groups)
    with layers.name_scope():
        layers.add_as("relu", _activation(activation, channels))
    return layers


def _depthwise(
    activation: str, in_channels: int, channels: int, groups: int, stride: int = 1, residual: bool = False
) -> _NamedLayers:
    """Returns a bottleneck: 1x1 to `groups` channels, 3x3 on each channel, 1x1 to `channels` without activation."""
    layers = (_Residual if residual else _NamedLayers)()
    with layers.name_scope():
        layers.add_as("conv_sep", _convolution_activation(activation, in_channels, groups, 1))
        layers.add_as("conv_dw", _convolution_activation(activation, groups, groups, 3, stride, groups))
        layers.add_as("conv_proj", _convolution_norm(groups, channels, 1))
    return layers


MOBILE_STAGES = (("23", 64, 64, 128, 128), ("34", 64, 128, 256, 256), ("45", 128, 128, 512, 256))
"""Stages of MobileFaceNet: name of the bottleneck with stride 2, channels before and behind it, channels of its 3x3
convolution, and of those of the residual bottlenecks that follow."""


def build_mobilefacenet(
    embedding_size: int, blocks: Sequence[int], output: str, activation: str, dropout: float
) -> FaceNetwork:
    """Builds MobileFaceNet: inverted bottlenecks in four stages.

    Source: Chen et al., "MobileFaceNets" (2018), arXiv 1804.07573, table 1.

    Args:
        embedding_size: D.
        blocks: residual bottlenecks of each stage; 1 in the first stage is a depthwise convolution instead.
        output, activation, dropout: as for `build_iresnet`.
    """
    network = FaceNetwork(prefix="mobilefacenet_")
    with network.name_scope():
        network.add_as("scale", _NormalizePixels(PIXEL_STD))
        network.add_as("conv_1", _convolution_activation(activation, 3, 64, 3, 2))
        if blocks[0] == 1:
            network.add_as("conv_2_dw", _convolution_activation(activation, 64, 64, 3, groups=64))
        else:
            for number in range(blocks[0]):
                network.add_as(f"res_2_block{number}", _depthwise(activation, 64, 64, 64, residual=True))
        for count, (name, in_channels, channels, groups, residual_groups) in zip(blocks[1:], MOBILE_STAGES):
            network.add_as(f"dconv_{name}", _depthwise(activation, in_channels, channels, groups, stride=2))
            for number in range(count):
                bottleneck = _depthwise(activation, channels, channels, residual_groups, residual=True)
                network.add_as(f"res_{name[1]}_block{number}", bottleneck)
        network.add_as("conv_6sep", _convolution_activation(activation, 128, 512, 1))
        _add_output(network, embedding_size, output, 512, activation, dropout, EPSILON)
    return network


OUTPUTS: Mapping[str, Sequence[str]] = {
    "E": ("bn1", "dropout", "pre_fc1", "norm"),
    "FC": ("bn1", "pre_fc1", "norm"),
    "GAP": ("bn1", "relu1", "pool1", "pre_fc1", "norm"),
    "GDC": ("conv_6dw7_7", "pre_fc1", "norm"),
    "J": ("pre_fc1", "norm"),
    "F": ("bn1", "dropout", "fc1"),
    "G": ("bn1", "fc1"),
    "H": ("fc1",),
}
"""insightface's name of an output -> layers behind the last map; `norm` is the batch norm `fc1` without a scale."""


def _add_output(
    network: _NamedLayers,
    embedding_size: int,
    output: str,
    channels: int,
    activation: str,
    dropout: float,
    epsilon: float,
) -> None:
    """Adds the layers behind the last map, `OUTPUTS[output]`."""
    build = {
        "bn1": lambda: nn.BatchNorm(epsilon=epsilon, in_channels=channels),
        "relu1": lambda: _activation(activation, channels),
        "pool1": nn.GlobalAvgPool2D,
        "conv_6dw7_7": lambda: _convolution_norm(channels, channels, EMBEDDING_MAP_SIDE, groups=channels, padding=0),
        "dropout": lambda: nn.Dropout(dropout),
        "pre_fc1": lambda: nn.Dense(embedding_size),
        "fc1": lambda: nn.Dense(embedding_size),
        # In a graph this is fix_gamma: the scale is 1 whatever the file holds.
        "norm": lambda: nn.BatchNorm(epsilon=epsilon, scale=False, in_channels=embedding_size),
    }
    for layer in OUTPUTS[output]:
        network.add_as("fc1" if layer == "norm" else layer, build[layer]())
