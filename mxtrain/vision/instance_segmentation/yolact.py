"""A small network that detects objects by their centres, with masks that are linear combinations of prototype maps."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from mxtrain.types import Positive, Shape
from mxtrain.vision.detection.heads.base import InstanceDetector
from mxtrain.vision.detection.heads.prototypes import PrototypeCoding
from mxtrain.vision.segmentation.fpn import PyramidModel

if TYPE_CHECKING:
    from mxnet import gluon


class Yolact(PyramidModel, InstanceDetector):
    """The feature pyramid of `model=fpn` with the heads of `model=centernet_fpn`, a head for a few maps of the whole
    image (prototypes), and a head for the weight of each prototype in the mask of the object at each cell
    (coefficients).

    Source: Bolya et al., "YOLACT: Real-time Instance Segmentation" (2019), section 3; here with centres instead of
    anchors, and much smaller.
    """

    option: ClassVar[str] = "yolact"
    loss_option: ClassVar[str] = "yolact"

    prototypes: Positive = 8
    """Number of prototype maps that masks are linear combinations of."""
    mask_stride: Literal[1, 2, 4] = 2
    """Stride of the prototype maps: pixels of the image per pixel of a prototype."""

    def box_coding(self, num_classes: int, input_shape: Shape) -> PrototypeCoding:
        """Returns the box coding of YOLACT."""
        return PrototypeCoding(num_classes, input_shape, self.prototypes, self.mask_stride)

    def build_pyramid(self, num_classes: int) -> gluon.HybridBlock:
        """Returns the network for images that are large enough."""
        from mxtrain.vision.detection.networks.fpn import PrototypePyramid

        return PrototypePyramid(num_classes, self.channels, self.width, self.prototypes, self.mask_stride)
