"""A small feature pyramid network as a Gluon block. Imports MXNet: its description imports this module when it builds.

Legend: B batch, C channels, H height, W width, K classes.
"""

from __future__ import annotations

from typing import Sequence

from mxtrain.engine.backend import gluon

nn = gluon.nn
_PIXELS = 4
"""Height and width of the pixels that are scored at once."""


def _convolve(channels: int, stride: int = 1) -> gluon.HybridBlock:
    """3x3 convolution, batch normalisation, ReLU."""
    layers = nn.HybridSequential()
    layers.add(nn.Conv2D(channels, 3, stride, padding=1, use_bias=False), nn.BatchNorm(), nn.Activation("relu"))
    return layers


class FeaturePyramid(gluon.HybridBlock):
    """Pictures (B, C, H, W) to scores (B, K, H, W).

    Args:
        num_classes: K.
        channels: of each stage, which halves height and width.
        width: channels on the way back up.
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
            self.output = nn.Conv2D(num_classes * _PIXELS**2, 1)

    def hybrid_forward(self, F, x):
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
        score = self.output(self.refine(merged))
        return F.slice_like(F.depth_to_space(score, _PIXELS), x, axes=(2, 3))
