"""MLP, LeNet and ResNet as Gluon blocks. Imports MXNet: descriptions import this module when they build.

Names: `features` is everything before the last layer, which is `output`, as in Gluon's and GluonCV's model zoos, so the
same patterns fit (`model.freeze=["features.*"]`). Shapes: B batch, C channels, H height, W width, K classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Sequence

from mxtrain.engine.backend import gluon

if TYPE_CHECKING:
    from mxtrain.types.annotations import Array, OperatorModule

nn = gluon.nn

ACTIVATION_BLOCKS = {"gelu": nn.GELU, "selu": nn.SELU, "swish": nn.Swish}


def build_activation(name: str) -> gluon.HybridBlock:
    """Returns the activation layer called `name` in a description."""
    return ACTIVATION_BLOCKS[name]() if name in ACTIVATION_BLOCKS else nn.Activation(name)


class SpatialMean(gluon.HybridBlock):
    """Global average pooling, (B, C, H, W) to (B, C).

    Uses a mean instead of pooling: the gradient of oneDNN's global pooling has another memory layout than the batch
    norm before it needs, and both would fall back to reference kernels (half of ResNet-20's speed).
    """

    def hybrid_forward(self, F: OperatorModule, x: Array) -> Array:
        return F.mean(x, axis=(2, 3))


class Classifier(gluon.HybridBlock):
    """Features, then a dense output layer: (B, ...) to logits (B, K)."""

    def __init__(self, num_classes: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        with self.name_scope():
            self.features = nn.HybridSequential(prefix="")
            self.output = nn.Dense(num_classes)

    def hybrid_forward(self, F: OperatorModule, x: Array) -> Array:
        return self.output(self.features(x))


def build_mlp(num_classes: int, hidden: Sequence[int], activation: str, dropout: float) -> gluon.HybridBlock:
    """Builds an MLP: dense layers of `hidden` units, each with activation and dropout, and the output layer."""
    network = Classifier(num_classes, prefix="mlp_")
    with network.name_scope():
        network.features.add(nn.Flatten())
        for units in hidden:
            network.features.add(nn.Dense(units), build_activation(activation))
            if dropout:
                network.features.add(nn.Dropout(dropout))
    return network


def build_lenet(
    num_classes: int, channels: Sequence[int], hidden: int, activation: str, batch_norm: bool, dropout: float
) -> gluon.HybridBlock:
    """Builds a LeNet: for each entry of `channels` two 3x3 convolutions and 2x2 max pooling, then two dense layers."""
    network = Classifier(num_classes, prefix="lenet_")
    with network.name_scope():
        features = network.features
        for width in channels:
            for _ in range(2):
                features.add(nn.Conv2D(width, kernel_size=3, padding=1, use_bias=not batch_norm))
                if batch_norm:
                    features.add(nn.BatchNorm())
                features.add(build_activation(activation))
            features.add(nn.MaxPool2D(pool_size=2, strides=2))
        features.add(nn.Flatten(), nn.Dense(hidden), build_activation(activation))
        if dropout:
            features.add(nn.Dropout(dropout))
    return network


class ResidualBlock(gluon.HybridBlock):
    """One residual block: `body(x) + shortcut(x)`.

    Version 1 normalises after each convolution and activates after the sum; version 2 normalises and activates before
    each convolution and leaves the sum as it is.

    Source: He et al., "Deep residual learning for image recognition" (2015) and "Identity mappings in deep residual
    networks" (2016). The stride of a bottleneck is in its 3x3 convolution (Goyal et al., 2017, section 5.1).
    """

    def __init__(
        self, in_channels: int, width: int, stride: int, bottleneck: bool, version: int, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self._version = version
        out_channels = 4 * width if bottleneck else width
        # (channels, kernel, stride) of each convolution
        plan = [(width, 3, stride), (width, 3, 1)]
        if bottleneck:
            plan = [(width, 1, 1), (width, 3, stride), (out_channels, 1, 1)]
        with self.name_scope():
            self.body = nn.HybridSequential(prefix="")
            for index, (channels, kernel, step) in enumerate(plan):
                convolution = nn.Conv2D(channels, kernel, step, padding=kernel // 2, use_bias=False)
                if version == 1:
                    # Norm and ReLU stay two operators: the fused one fails where its gradient comes
                    # in another oneDNN layout.
                    self.body.add(convolution, nn.BatchNorm())
                    if index + 1 < len(plan):
                        self.body.add(nn.Activation("relu"))
                elif index == 0:
                    self.norm = nn.BatchNorm()
                    self.body.add(convolution)
                else:
                    self.body.add(nn.BatchNorm(), nn.Activation("relu"), convolution)
            self.shortcut = None
            if stride != 1 or in_channels != out_channels:
                self.shortcut = nn.HybridSequential(prefix="shortcut_")
                with self.shortcut.name_scope():
                    self.shortcut.add(nn.Conv2D(out_channels, 1, stride, use_bias=False))
                    if version == 1:
                        self.shortcut.add(nn.BatchNorm())

    def hybrid_forward(self, F: OperatorModule, x: Array) -> Any:
        # Not F.relu: oneDNN has no such operator, so MXNet would convert its input to another memory layout.
        entry = x if self._version == 1 else F.Activation(self.norm(x), act_type="relu")
        if self.shortcut is None:
            total = self.body(entry) + x
        else:
            total = self.body(entry) + self.shortcut(entry)
        return F.Activation(total, act_type="relu") if self._version == 1 else total


def build_resnet(
    num_classes: int, layers: Sequence[int], widths: Sequence[int], bottleneck: bool, version: int, large_stem: bool
) -> gluon.HybridBlock:
    """Builds a residual network.

    Args:
        num_classes: length of the output vector.
        layers: residual blocks in each stage; every stage but the first halves height and width.
        widths: channels of each stage's 3x3 convolutions; the stem has as many as the first stage.
        bottleneck: blocks of 1x1, 3x3, 1x1 convolutions with 4 times the channels at their ends.
        version: 1 or 2, see `ResidualBlock`.
        large_stem: begin with a 7x7 convolution and max pooling, each halving the image, not with one 3x3 convolution.
    """
    network = Classifier(num_classes, prefix="resnet_")
    with network.name_scope():
        features = network.features
        if large_stem:
            features.add(nn.Conv2D(widths[0], 7, 2, padding=3, use_bias=False))
        else:
            features.add(nn.Conv2D(widths[0], 3, padding=1, use_bias=False))
        if version == 1:
            features.add(nn.BatchNorm(), nn.Activation("relu"))
        if large_stem:
            features.add(nn.MaxPool2D(3, 2, padding=1))
        channels = widths[0]
        for stage, (count, width) in enumerate(zip(layers, widths), start=1):
            blocks = nn.HybridSequential(prefix=f"stage{stage}_")
            with blocks.name_scope():
                for index in range(count):
                    stride = 2 if stage > 1 and index == 0 else 1
                    blocks.add(ResidualBlock(channels, width, stride, bottleneck, version, prefix=f"block{index}_"))
                    channels = 4 * width if bottleneck else width
            features.add(blocks)
        if version == 2:
            features.add(nn.BatchNorm(), nn.Activation("relu"))
        features.add(SpatialMean())
    return network
