"""GluonCV's CenterNets, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Tuple

import pydantic

from mxtrain.types import Positive, Shape
from mxtrain.vision.detection.heads.base import BoxCoding
from mxtrain.vision.detection.heads.heatmap import HeatmapCoding
from mxtrain.vision.detection.heads.zoo import GluonCVDetector
from mxtrain.vision.detection.networks.gluoncv_detectors import CENTER_NET, without_dataset

if TYPE_CHECKING:
    from mxnet import gluon

DEFORMABLE = "_dcnv2"
"""Suffix of names of networks with deformable convolutions, which are not supported."""


class GluonCVCenterNet(GluonCVDetector):
    """A detector that finds objects by their centres, with a classification network as the backbone.

    Source: Zhou et al., "Objects as Points" (2019), as GluonCV builds it.
    """

    loss_option: ClassVar[str] = "heatmap_focal"
    known: ClassVar[Tuple[str, ...]] = CENTER_NET
    size_multiple: ClassVar[int] = 32  # the network halves sides five times, and doubles them three times

    name: str = "center_net_resnet18_v1b"
    """GluonCV's name, e.g. center_net_dla34; GluonCV's dataset suffix is allowed and ignored."""
    max_detections: Positive = 100
    """Maximum number of detections per image."""

    @pydantic.field_validator("name", mode="before")
    @classmethod
    def _not_deformable(cls, name: object) -> object:
        plain = without_dataset(name) if isinstance(name, str) else ""
        if plain.endswith(DEFORMABLE) and plain[: -len(DEFORMABLE)] in cls.known:
            raise ValueError(
                "MXNet computes no gradients of deformable convolutions (dcnv2) on CPUs, where runs of all placements "
                f"must agree. Type model.name={plain[: -len(DEFORMABLE)]}"
            )
        return name

    @property
    def usual_side(self) -> int:
        """Returns the image size that the networks were published for."""
        return 512

    def box_coding(self, num_classes: int, input_shape: Shape) -> BoxCoding:
        """Returns the box coding of CenterNets.

        Raises:
            ConfigError: the sides of images are not multiples of 32.
        """
        self.require_multiple(input_shape[1:])
        return HeatmapCoding(num_classes, input_shape, max_detections=self.max_detections)

    def build(self, num_classes: int, input_shape: Shape) -> gluon.HybridBlock:
        """Returns the network, uninitialized.

        Raises:
            ConfigError: GluonCV is not installed, or refuses an option.
        """

        def build() -> gluon.HybridBlock:
            from mxtrain.vision.detection.networks import center_net

            return center_net.build(self.plain_name, num_classes, self.options)

        return self._built(self.name, build)
