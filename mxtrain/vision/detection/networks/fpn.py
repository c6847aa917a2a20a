"""A small feature pyramid network as a Gluon block. Imports MXNet: its description imports this module when it builds.

Legend: B batch, C channels, H height, W width, K classes.
"""

from __future__ import annotations

from typing import Sequence

from mxtrain.engine.backend import gluon, mx

nn = gluon.nn
_PIXELS = 4
"""Height and width of the pixels that are scored at once."""


def _convolve(channels: int, stride: int = 1) -> gluon.HybridBlock:
    """Builds a 3x3 convolution with batch normalisation and ReLU."""
    layers = nn.HybridSequential()
    layers.add(nn.Conv2D(channels, 3, stride, padding=1, use_bias=False), nn.BatchNorm(), nn.Activation("relu"))
    return layers


class Pyramid(gluon.HybridBlock):
    """Base class of networks that make one map of an image, at a quarter of its height and width, and score it.

    Args:
        num_classes: K.
        channels: number of channels of each stage, which halves height and width.
        width: channels on the way back up, and of the map.
    """

    def __init__(self, num_classes: int, channels: Sequence[int], width: int, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.features = nn.HybridSequential()
            for number, count in enumerate(channels):
                stage = nn.HybridSequential()
                stage.add(_convolve(count, 2))
                if number:
                    stage.add(_convolve(count))
                self.features.add(stage)
            # One for each stage but the first: the finest map that is used has a quarter of the height and width.
            self.lateral = nn.HybridSequential()
            self.merge = nn.HybridSequential()
            self.lateral.add(*(nn.Conv2D(width, 1) for _ in channels[1:]))
            self.merge.add(*(_convolve(width) for _ in channels[2:]))
            self.refine = _convolve(width)
            self.add_heads(num_classes)

    def add_heads(self, num_classes: int) -> None:
        """Adds the layers that score the map."""
        raise NotImplementedError

    def merged(self, F, x):
        """Computes the merged map (B, width, h, w) of images (B, C, H, W)."""
        maps, at = [], x
        for stage in self.features:
            at = stage(at)
            maps.append(at)
        merged = self.lateral[-1](maps[-1])
        for number in range(len(self.lateral) - 2, -1, -1):
            side = self.lateral[number](maps[number + 1])
            # Where a side is odd, the doubled map is one pixel larger.
            above = F.slice_like(F.UpSampling(merged, scale=2, sample_type="nearest"), side, axes=(2, 3))
            merged = self.merge[number](above + side)
        return self.refine(merged)


class FeaturePyramid(Pyramid):
    """Images (B, C, H, W) to scores (B, K, H, W)."""

    def add_heads(self, num_classes: int) -> None:
        self.output = nn.Conv2D(num_classes * _PIXELS**2, 1)

    def hybrid_forward(self, F, x):
        score = self.output(self.merged(F, x))
        return F.slice_like(F.depth_to_space(score, _PIXELS), x, axes=(2, 3))


class CentrePyramid(Pyramid):
    """Maps images (B, C, H, W) to scores of centres (B, K, h, w), before the sigmoid, and sizes and offsets of objects
    (B, 4, h, w)."""

    def add_heads(self, num_classes: int) -> None:
        # Nearly all cells hold no centre: at first each is one with a probability of a tenth. Source: Lin et al.,
        # "Focal Loss for Dense Object Detection" (2017), section 3.3.
        self.centre = nn.Conv2D(num_classes, 1, bias_initializer=mx.init.Constant(-2.19))
        self.output = nn.Conv2D(4, 1)

    def hybrid_forward(self, F, x):
        return self.scored(self.merged(F, x))

    def scored(self, merged):
        """Computes the centre scores, and the sizes and offsets, from the result of `merged`."""
        return self.centre(merged), self.output(merged)


class PrototypePyramid(CentrePyramid):
    """Maps images (B, C, H, W) to the outputs of `CentrePyramid`, the weights of prototypes in the mask of the object
    at each cell (B, P, h, w), and the prototypes (B, P, height, width), before the sigmoid.

    Args:
        num_classes, channels, width: as of `Pyramid`.
        prototypes: P.
        mask_stride: pixels along the side of one of a prototype, at most `_PIXELS`.
    """

    def __init__(
        self, num_classes: int, channels: Sequence[int], width: int, prototypes: int, mask_stride: int, **kwargs
    ):
        super().__init__(num_classes, channels, width, **kwargs)
        self._fineness = _PIXELS // mask_stride
        with self.name_scope():
            self.coefficient = nn.Conv2D(prototypes, 1)
            self.shape = nn.HybridSequential()
            self.shape.add(_convolve(width), nn.Conv2D(prototypes * self._fineness**2, 1))

    def hybrid_forward(self, F, x):
        merged = self.merged(F, x)
        prototype = self.shape(merged)
        if self._fineness > 1:
            prototype = F.depth_to_space(prototype, self._fineness)
        return (*self.scored(merged), F.tanh(self.coefficient(merged)), prototype)


class KeyPointPyramid(Pyramid):
    """Images (B, C, H, W) to a heat map for each key point, (B, K, h, w)."""

    def add_heads(self, num_classes: int) -> None:
        # Heat maps are nearly all 0, and so are these at first.
        self.output = nn.Conv2D(num_classes, 1, weight_initializer=mx.init.Normal(0.001))

    def hybrid_forward(self, F, x):
        return self.output(self.merged(F, x))
