"""Losses of networks that find things in pictures. Imports no MXNet."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Tuple

from mxtrain.loss.losses import Loss
from mxtrain.types import NonNegativeFloat

if TYPE_CHECKING:
    from mxnet import gluon


class DetectionLoss(Loss):
    """Base: a loss of what a network returns against boxes and what its coding made of them."""

    serves: ClassVar[Tuple[str, ...]] = ("detection",)
    option: ClassVar[str] = ""
    """The option of conf/loss/, by which networks say which loss their outputs are made for."""

    def build_detection(self, num_classes: int) -> gluon.HybridBlock:
        """A HybridBlock (*outputs, boxes (B, M, D), *encoded) -> loss (B,), weight (B,).

        Args:
            num_classes: of things.
        """
        raise NotImplementedError


class HeatmapFocal(DetectionLoss):
    """Of centres: focal loss of the scores, and absolute differences of size and offset, over the number of things in
    the global batch.

    Source: Zhou et al., "Objects as Points" (2019), equations 1 to 4.
    """

    option: ClassVar[str] = "heatmap_focal"

    size_weight: NonNegativeFloat = 0.1
    """How much the differences of width and height count, in cells of the map."""
    offset_weight: NonNegativeFloat = 1.0
    """How much the differences of the centre's place in its cell count."""

    def build_detection(self, num_classes: int) -> gluon.HybridBlock:
        """See `DetectionLoss.build_detection`."""
        from mxtrain.loss.detection_blocks import HeatmapFocalLoss

        return HeatmapFocalLoss(self.size_weight, self.offset_weight)
