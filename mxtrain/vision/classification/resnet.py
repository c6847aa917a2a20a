"""Residual networks for small images (CIFAR's depths) and large ones (ImageNet's depths)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, Sequence

from mxtrain.model.spec import Model
from mxtrain.types import PositiveFloat, Shape
from mxtrain.types.kinds import ClassIndex, ClassSet, Images, Number, Takes
from mxtrain.vision.kinds import Identity

if TYPE_CHECKING:
    from mxnet import gluon

SMALL_DEPTHS = {depth: ((depth - 2) // 6,) * 3 for depth in (8, 14, 20, 32, 44, 56, 110)}
"""Depth of a network for small images -> number of residual blocks of each stage."""
LARGE_DEPTHS = {
    18: ((2, 2, 2, 2), False),
    34: ((3, 4, 6, 3), False),
    50: ((3, 4, 6, 3), True),
    101: ((3, 4, 23, 3), True),
    152: ((3, 8, 36, 3), True),
}
"""Depth of a network for large images -> number of residual blocks of each stage, and True for bottleneck blocks."""
LARGE_STEM_FROM = 64
"""Shorter side of images in pixels from which `stem=auto` is large."""


class ResNet(Model):
    """A residual network; its depth determines which of the two published families it belongs to.

    Depths 8, 14, 20, 32, 44, 56 and 110 are the three-stage networks made for CIFAR (16, 32, 64 channels); 18, 34, 50,
    101 and 152 the four-stage ones made for ImageNet (64 to 512 channels, bottlenecks from 50 on).

    Source: He et al., "Deep residual learning for image recognition" (2015), table 1 and section 4.2.
    """

    takes: ClassVar[Takes] = Takes(Images, ClassIndex, ClassSet, Number, Identity)

    depth: Literal[8, 14, 20, 32, 44, 56, 110, 18, 34, 50, 101, 152] = 20
    """Layers with weights: 8, 14, 20, 32, 44, 56, 110 are made for CIFAR, 18, 34, 50, 101, 152 for ImageNet."""
    version: Literal[1, 2] = 1
    """1: normalisation after convolution; 2: normalisation and activation before it."""
    width: PositiveFloat = 1.0
    """Factor of all channel counts, e.g. 10 with depth 14 or more for a wide residual network."""
    stem: Literal["auto", "small", "large"] = "auto"
    """First layers: `small` is one 3x3 convolution, `large` shrinks it to a quarter; `auto` is large from 64 px."""

    def build(self, num_classes: int, input_shape: Shape) -> gluon.HybridBlock:
        """Returns the network, uninitialized; it takes images of any size."""
        from mxtrain.model.networks import classifier

        if self.depth in SMALL_DEPTHS:
            layers: Sequence[int] = SMALL_DEPTHS[self.depth]
            bottleneck, base = False, 16
        else:
            (layers, bottleneck), base = LARGE_DEPTHS[self.depth], 64
        widths = [max(1, round(base * 2**stage * self.width)) for stage in range(len(layers))]
        large_stem = self.stem == "large" or (self.stem == "auto" and min(input_shape[1:]) >= LARGE_STEM_FROM)
        return classifier.build_resnet(num_classes, layers, widths, bottleneck, self.version, large_stem)
