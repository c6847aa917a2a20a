"""GluonCV's YOLOv3 networks, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, List, Literal, Sequence, Tuple, Union

import pydantic

from mxtrain.errors import ConfigError
from mxtrain.types import PositiveFloat, Shape
from mxtrain.vision.detection.heads.base import BoxCoding
from mxtrain.vision.detection.heads.grid import GridCoding
from mxtrain.vision.detection.heads.zoo import SuppressingDetector
from mxtrain.vision.detection.networks import gluoncv_detectors

if TYPE_CHECKING:
    from mxnet import gluon


MAX_SIDE = 1024
"""Largest side of images in pixels if there are several sizes: GluonCV's files have the positions of so many cells, 8
pixels apart."""


class YOLO3(SuppressingDetector):
    """A single-shot detector with three anchors in each cell of three maps.

    Source: Redmon and Farhadi, "YOLOv3: An Incremental Improvement" (2018), as GluonCV builds it.
    """

    loss_option: ClassVar[str] = "yolo3"
    known: ClassVar[Tuple[str, ...]] = tuple(gluoncv_detectors.YOLO3)
    size_multiple: ClassVar[int] = gluoncv_detectors.YOLO3_STRIDES[-1]  # otherwise cells are not `stride` pixels apart

    name: str = "yolo3_mobilenet1.0"
    """GluonCV's name, e.g. yolo3_darknet53; GluonCV's dataset suffix is allowed and ignored."""
    anchors: Union[Literal["auto"], List[List[PositiveFloat]]] = "auto"
    """Widths and heights in pixels, [w, h, w, h, w, h], of the boxes of each of three maps, the finest first; auto =
    GluonCV's, which are for images of about 416 pixels."""

    @pydantic.field_validator("anchors")
    @classmethod
    def _three_of_three(cls, anchors: object) -> object:
        if isinstance(anchors, list) and [len(sizes) for sizes in anchors] != [6, 6, 6]:
            raise ValueError("should be three lists of six numbers: width and height of three boxes for each map")
        return anchors

    @property
    def _anchors(self) -> Sequence[Sequence[float]]:
        return gluoncv_detectors.YOLO3_ANCHORS if self.anchors == "auto" else self.anchors

    @property
    def usual_side(self) -> int:
        """Returns the image size that the default anchors are made for."""
        return 416

    def require_sizes(self, sizes: Sequence[Sequence[int]]) -> None:
        """Rejects image sizes that are not multiples of the stride, or larger than `MAX_SIDE`.

        Raises:
            ConfigError: a size does not fit.
        """
        super().require_sizes(sizes)
        largest = max((max(size) for size in sizes), default=0)
        if largest > MAX_SIDE:
            raise ConfigError(
                f"dataset.image_sizes: files of model.name={self.name} have the places of maps, of images of up to "
                f"{MAX_SIDE} pixels, and {largest} is more. Leave it out."
            )

    def box_coding(self, num_classes: int, input_shape: Shape) -> BoxCoding:
        """Returns the box coding of YOLOv3.

        Raises:
            ConfigError: the sides of images are not multiples of 32.
        """
        self.require_multiple(input_shape[1:])
        return GridCoding(num_classes, input_shape, self._anchors, gluoncv_detectors.YOLO3_STRIDES, self.suppression)

    def build(self, num_classes: int, input_shape: Shape) -> gluon.HybridBlock:
        """Returns the network, uninitialized.

        Raises:
            ConfigError: GluonCV is not installed, or refuses an option.
        """

        def build() -> gluon.HybridBlock:
            from mxtrain.vision.detection.networks import yolo3

            return yolo3.build(self.plain_name, num_classes, self._anchors, max(input_shape[1:]), self.options)

        return self._built(self.name, build)
