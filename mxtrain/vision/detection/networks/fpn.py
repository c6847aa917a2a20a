"""Small feature pyramid networks as Gluon blocks. Imports MXNet.

Legend: B batch, C channels, H height, W width, h, w height and width of the merged map, K classes, P prototypes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Sequence

from mxtrain.engine.backend import gluon, mx
from mxtrain.vision.detection.heads.heatmap import CENTRE_BIAS

if TYPE_CHECKING:
    from mxtrain.types.annotations import Array, OperatorModule

nn = gluon.nn
_STRIDE = 4
"""Stride of the merged map: a cell has 4 x 4 pixels of the image."""


def _convolve(channels: int, stride: int = 1) -> gluon.HybridBlock:
    """Builds a 3x3 convolution with batch normalisation and ReLU."""
    layers = nn.HybridSequential()
    layers.add(nn.Conv2D(channels, 3, stride, padding=1, use_bias=False), nn.BatchNorm(), nn.Activation("relu"))
    return layers


class Pyramid(gluon.HybridBlock):
    """Base class of networks that compute one map of an image, at a quarter of its height and width, and apply heads to
    it.

    Args:
        num_classes: K.
        channels: number of channels of each stage, which halves height and width.
        width: number of channels of the top-down path, and of the map.
    """

    def __init__(self, num_classes: int, channels: Sequence[int], width: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        with self.name_scope():
            self.features = nn.HybridSequential()
            for number, count in enumerate(channels):
                stage = nn.HybridSequential()
                stage.add(_convolve(count, 2))
                if number:
                    stage.add(_convolve(count))
                self.features.add(stage)
            # Lateral connections of all stages but the first: the finest map has a quarter of the height and width.
            self.lateral = nn.HybridSequential()
            self.merge = nn.HybridSequential()
            self.lateral.add(*(nn.Conv2D(width, 1) for _ in channels[1:]))
            self.merge.add(*(_convolve(width) for _ in channels[2:]))
            self.refine = _convolve(width)
            self.add_heads(num_classes)

    def add_heads(self, num_classes: int) -> None:
        """Adds the layers that are applied to the merged map."""
        raise NotImplementedError

    def merged(self, F: OperatorModule, x: Array) -> Any:
        """Computes the merged map (B, width, h, w) of images (B, C, H, W)."""
        maps = []
        for stage in self.features:
            x = stage(x)
            maps.append(x)
        merged = self.lateral[-1](maps[-1])
        for number in range(len(self.lateral) - 2, -1, -1):
            lateral = self.lateral[number](maps[number + 1])
            # If a side is odd, the upsampled map is one cell larger.
            coarse = F.slice_like(F.UpSampling(merged, scale=2, sample_type="nearest"), lateral, axes=(2, 3))
            merged = self.merge[number](coarse + lateral)
        return self.refine(merged)


class FeaturePyramid(Pyramid):
    """Maps images (B, C, H, W) to logits of each pixel (B, K, H, W)."""

    def add_heads(self, num_classes: int) -> None:
        self.output = nn.Conv2D(num_classes * _STRIDE**2, 1)

    def hybrid_forward(self, F: OperatorModule, x: Array) -> Array:
        score = self.output(self.merged(F, x))
        return F.slice_like(F.depth_to_space(score, _STRIDE), x, axes=(2, 3))


class CentrePyramid(Pyramid):
    """Maps images (B, C, H, W) to logits of centres (B, K, h, w), and sizes and offsets of objects (B, 4, h, w)."""

    def add_heads(self, num_classes: int) -> None:
        self.centre = nn.Conv2D(num_classes, 1, bias_initializer=mx.init.Constant(CENTRE_BIAS))
        self.output = nn.Conv2D(4, 1)

    def hybrid_forward(self, F: OperatorModule, x: Array) -> Array:
        return self.predict_boxes(self.merged(F, x))

    def predict_boxes(self, merged: Any) -> Any:
        """Computes logits of centres, and sizes and offsets, from the result of `merged`."""
        return self.centre(merged), self.output(merged)


class PrototypePyramid(CentrePyramid):
    """Maps images (B, C, H, W) to the outputs of `CentrePyramid`, the coefficients of prototypes at each cell (B, P, h,
    w), and the prototypes (B, P, H / stride, W / stride); see `PrototypeCoding`.

    Args:
        num_classes, channels, width: see `Pyramid`.
        prototypes: P.
        mask_stride: stride of the prototypes in pixels, at most `_STRIDE`.
    """

    def __init__(
        self, num_classes: int, channels: Sequence[int], width: int, prototypes: int, mask_stride: int, **kwargs: Any
    ) -> None:
        super().__init__(num_classes, channels, width, **kwargs)
        self._upscaling = _STRIDE // mask_stride
        with self.name_scope():
            self.coefficient = nn.Conv2D(prototypes, 1)
            self.shape = nn.HybridSequential()
            self.shape.add(_convolve(width), nn.Conv2D(prototypes * self._upscaling**2, 1))

    def hybrid_forward(self, F: OperatorModule, x: Array) -> Any:
        merged = self.merged(F, x)
        prototype = self.shape(merged)
        if self._upscaling > 1:
            prototype = F.depth_to_space(prototype, self._upscaling)
        return (*self.predict_boxes(merged), F.tanh(self.coefficient(merged)), prototype)


class KeyPointPyramid(Pyramid):
    """Maps images (B, C, H, W) to a heat map for each key point, (B, K, h, w)."""

    def add_heads(self, num_classes: int) -> None:
        # True heat maps are 0 nearly everywhere: small weights give such maps from the start.
        self.output = nn.Conv2D(num_classes, 1, weight_initializer=mx.init.Normal(0.001))

    def hybrid_forward(self, F: OperatorModule, x: Array) -> Array:
        return self.output(self.merged(F, x))
