"""GluonCV's SSDs, by name or with any of its classification networks as the backbone.

Anchor sizes grow with the square root of the image's area, and positions are spread evenly, (i + 0.5) / n of a side; at
300 and 512 pixels they equal GluonCV's. GluonCV does not scale its steps, which leaves parts of smaller images without
anchors.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Dict, List, Literal, Optional, Sequence, Tuple, Union

import pydantic
from typing_extensions import Annotated

from mxtrain.errors import ConfigError
from mxtrain.types import Positive, PositiveFloat, Shape
from mxtrain.vision.classification.gluoncv import no_such_network
from mxtrain.vision.detection.heads.anchors import AnchorMap, anchor_maps
from mxtrain.vision.detection.heads.base import BoxCoding
from mxtrain.vision.detection.heads.multibox import MultiBoxCoding
from mxtrain.vision.detection.heads.zoo import SuppressingDetector
from mxtrain.vision.detection.networks import gluoncv_detectors
from mxtrain.vision.detection.networks.gluoncv_detectors import SSDParts, usual_ratios
from mxtrain.vision.networks.gluoncv_names import CLASSIFICATION_NAMES

if TYPE_CHECKING:
    from mxnet import gluon

CUSTOM = "ssd_custom"
EXTRA_FILTERS = (512, 512, 256, 256)
"""Channels of the additional maps of custom networks. Source: GluonCV."""
FIRST_SIZE, MIN_SIZE, MAX_SIZE, BEYOND = 0.1, 0.2, 0.88, 0.96
"""Sizes of anchors of custom networks relative to the side of the image: of the finest, the second and the coarsest
map, and the additional last size. Source: GluonCV's networks for 512 pixels."""


class SSD(SuppressingDetector):
    """A single-shot detector: scores boxes of several sizes in all cells of several feature maps.

    Source: Liu et al., "SSD: Single Shot MultiBox Detector" (2016), as GluonCV builds it.
    """

    loss_option: ClassVar[str] = "multibox"
    known: ClassVar[Tuple[str, ...]] = (*gluoncv_detectors.SSD, CUSTOM)

    name: str = "ssd_512_mobilenet1.0"
    """GluonCV's name, e.g. ssd_300_vgg16_atrous, or ssd_custom; GluonCV's suffix of a dataset may follow, and selects
    its box sizes."""
    backbone: Optional[str] = None
    """Backbone of ssd_custom: any of GluonCV's classification networks, e.g. resnet18_v1."""
    features: Union[Literal["auto"], Annotated[List[str], pydantic.Field(min_length=1)]] = "auto"
    """Maps of the backbone of ssd_custom that are used, by MXNet's names; auto = the last maps of the two smallest
    sizes."""
    filters: Union[Literal["auto"], List[Positive]] = "auto"
    """Channels of each additional map of ssd_custom, which halves the previous one; auto = 512, 512, 256, 256, until a
    map has one cell."""
    anchor_sizes: Union[Literal["auto"], List[PositiveFloat]] = "auto"
    """Sides of boxes relative to the image's, one more than there are maps, finest map first; auto = GluonCV's."""

    _parts_by_shape: Dict[Shape, Tuple[SSDParts, Sequence[Tuple[int, int]]]] = pydantic.PrivateAttr(
        default_factory=dict
    )
    """Shape of images -> (parts, sizes of maps). A cache: the network must be traced to find them."""

    @pydantic.model_validator(mode="after")
    def _check_custom(self) -> SSD:
        if self.plain_name == CUSTOM:
            if self.backbone not in CLASSIFICATION_NAMES:
                if self.backbone is None:
                    raise ValueError(f"{CUSTOM} needs a backbone: type model.backbone=NAME, e.g. resnet18_v1")
                raise ValueError(no_such_network("classification", self.backbone, CLASSIFICATION_NAMES))
        else:
            for field in ("backbone", "features", "filters"):
                if getattr(self, field) != type(self).model_fields[field].default:
                    raise ValueError(
                        f"{field} is part of {self.name}. Type model.name={CUSTOM}, or leave model.{field} out"
                    )
        return self

    @property
    def usual_side(self) -> Optional[int]:
        """Returns the image size in the name; None for custom networks."""
        return None if self.plain_name == CUSTOM else gluoncv_detectors.SSD[self.plain_name].base_size

    def require_sizes(self, sizes: Sequence[Sequence[int]]) -> None:
        """Rejects training with several image sizes.

        Raises:
            ConfigError: there are image sizes.
        """
        if sizes:
            raise ConfigError(
                f"dataset.image_sizes: the anchors of model.name={self.name} are for one size of "
                "images, and are part of its weight files. Leave it out, or choose another network, e.g. model=yolo3."
            )

    def _parts(self, input_shape: Shape) -> Tuple[SSDParts, Sequence[Tuple[int, int]]]:
        """Returns the parts of the network, and the (height, width) of its maps.

        Raises:
            ConfigError: images are too small, or a setting does not fit the network.
        """
        if tuple(input_shape) not in self._parts_by_shape:
            self._parts_by_shape[tuple(input_shape)] = self._built(self.name, lambda: self._find_parts(input_shape))
        parts, sizes = self._parts_by_shape[tuple(input_shape)]
        return self._with_sizes(parts, len(sizes)), sizes

    def _find_parts(self, input_shape: Shape) -> Tuple[SSDParts, Sequence[Tuple[int, int]]]:
        """Traces the network to find the parts and the sizes of its maps, see `_parts`."""
        from mxtrain.vision.detection.networks import ssd
        from mxtrain.vision.networks.feature_maps import map_sizes

        if self.plain_name != CUSTOM:
            parts = gluoncv_detectors.ssd_parts(self.name)
        else:
            assert self.backbone is not None
            features = ssd.LAST_TWO if self.features == "auto" else tuple(self.features)
            filters = self.filters
            if filters == "auto":
                sizes = map_sizes(self._features(_custom(self.backbone, features, ())), input_shape)
                halvings = (max(sizes[-1]) - 1).bit_length()
                filters = list(EXTRA_FILTERS[:halvings])
            parts = _custom(self.backbone, features, filters)
        return parts, map_sizes(self._features(parts), input_shape)

    def _with_sizes(self, parts: SSDParts, num_maps: int) -> SSDParts:
        """Returns the parts with the box sizes of `anchor_sizes`.

        Raises:
            ConfigError: there are too few or too many sizes.
        """
        if self.anchor_sizes == "auto":
            return parts
        if len(self.anchor_sizes) != num_maps + 1:
            raise ConfigError(
                f"model.anchor_sizes={list(self.anchor_sizes)}: the network has {num_maps} maps, so {num_maps + 1} "
                f"sizes are wanted, each a part of the image's side, e.g. {[round(s, 3) for s in _spaced(num_maps)]}."
            )
        return replace(parts, sizes=tuple(size * parts.base_size for size in self.anchor_sizes))

    def _features(self, parts: SSDParts) -> gluon.HybridBlock:
        from mxtrain.vision.detection.networks import ssd

        return ssd.build_features(
            parts.backbone, parts.base_size, parts.features, parts.filters, parts.lite, self.options
        )

    def _anchors(self, input_shape: Shape) -> Tuple[SSDParts, List[AnchorMap]]:
        parts, sizes = self._parts(input_shape)
        maps = anchor_maps(sizes, input_shape, parts.base_size, parts.sizes, parts.ratios, parts.steps, parts.lite)
        return parts, maps

    def box_coding(self, num_classes: int, input_shape: Shape) -> BoxCoding:
        """Returns the box coding of SSDs.

        Raises:
            ConfigError: images are too small, or a setting does not fit the network.
        """
        import numpy as np

        _, maps = self._anchors(input_shape)
        return MultiBoxCoding(num_classes, np.concatenate([anchors.boxes() for anchors in maps]), self.suppression)

    def build(self, num_classes: int, input_shape: Shape) -> gluon.HybridBlock:
        """Returns the network, uninitialized.

        Raises:
            ConfigError: GluonCV is not installed, images are too small, or a setting does not fit the network.
        """

        def build() -> gluon.HybridBlock:
            from mxtrain.vision.detection.networks import ssd

            parts, maps = self._anchors(input_shape)
            kernel = 1 if parts.lite else 3
            return ssd.MultiBoxNetwork(lambda: self._features(parts), num_classes, maps, kernel, prefix="ssd0_")

        return self._built(self.name, build)


def _spaced(num_maps: int) -> List[float]:
    """Returns evenly spaced sizes of anchors relative to the side of the image, one more than there are maps."""
    rest = num_maps - 1  # all maps but the finest one
    step = (MAX_SIZE - MIN_SIZE) / max(rest - 1, 1)
    return [FIRST_SIZE, *(MIN_SIZE + step * number for number in range(rest)), BEYOND]


def _custom(backbone: str, features: Sequence[str], filters: Sequence[int]) -> SSDParts:
    """Returns the parts of a custom network. Sizes are relative to the side of the image."""
    num_maps = len(features) + len(filters)
    return SSDParts(backbone, 1, tuple(features), tuple(filters), tuple(_spaced(num_maps)), (), usual_ratios(num_maps))
