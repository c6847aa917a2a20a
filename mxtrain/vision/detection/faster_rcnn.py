"""GluonCV's Faster R-CNNs, by name or with one of its classification networks as the backbone."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Dict, List, Literal, Mapping, Optional, Sequence, Tuple, Union

import pydantic
from typing_extensions import Annotated

from mxtrain.errors import ConfigError
from mxtrain.types import OpenFraction, Positive, PositiveFloat, Shape
from mxtrain.vision.classification.gluoncv import no_such_network
from mxtrain.vision.detection.heads.base import BoxCoding, Draws
from mxtrain.vision.detection.heads.regions import ProposalSettings, RegionAnchors, RegionCoding
from mxtrain.vision.detection.heads.suppression import Suppression
from mxtrain.vision.detection.heads.zoo import GluonCVDetector
from mxtrain.vision.detection.networks import gluoncv_detectors
from mxtrain.vision.detection.networks.gluoncv_detectors import REGION_RATIOS, FasterRCNNParts
from mxtrain.vision.networks.gluoncv_names import CLASSIFICATION_NAMES

if TYPE_CHECKING:
    from mxnet import gluon

    from mxtrain.vision.detection.networks.faster_rcnn import TwoStageBlocks

TYPE = "faster_rcnn"
CUSTOM, CUSTOM_PYRAMID = f"{TYPE}_custom", f"{TYPE}_fpn_custom"
STAGED = tuple(
    name for name in CLASSIFICATION_NAMES if name.startswith("resnet") and name.endswith(("1b", "1c", "1d", "1e", "1s"))
)
"""GluonCV's ResNets with four stages, of which the last can be applied to each region."""
MAX_LOG_SCALE = 80.0
"""Logarithm of the largest change of a side if GluonCV has no limit: its exponential is a finite float32."""
MIN_SCORE = 1e-4
"""Minimum score of a detection. Source: GluonCV."""
ANCHOR_SIDE_PER_STRIDE = 8
"""With a pyramid, the size of an anchor is the stride of its map times this. Source: GluonCV."""


class FasterRCNN(GluonCVDetector):
    """A two-stage detector: it proposes regions that may contain an object, and classifies each of them.

    Source: Ren et al., "Faster R-CNN: Towards Real-Time Object Detection with Region Proposal Networks" (2015); with
    `fpn`, Lin et al., "Feature Pyramid Networks for Object Detection" (2017); both as GluonCV builds them.
    """

    loss_option: ClassVar[str] = "two_stage"
    explains: ClassVar[bool] = False
    weighs_boxes: ClassVar[bool] = False
    kind: ClassVar[str] = TYPE
    """Prefix of the names of the networks."""
    stock: ClassVar[Mapping[str, FasterRCNNParts]] = gluoncv_detectors.FASTER_RCNN
    """GluonCV's networks by name, without a dataset."""
    known: ClassVar[Tuple[str, ...]] = (*gluoncv_detectors.FASTER_RCNN, CUSTOM, CUSTOM_PYRAMID)
    custom_fields: ClassVar[Mapping[str, Tuple[str, ...]]] = {
        CUSTOM: ("backbone", "channels"),
        CUSTOM_PYRAMID: ("backbone", "features", "channels", "head_units"),
    }
    """Name of a custom network -> fields that only custom networks have. Networks with a pyramid have all of them."""

    name: str = "faster_rcnn_fpn_resnet50_v1b"
    """GluonCV's name, e.g. faster_rcnn_resnet50_v1b, or faster_rcnn_custom, faster_rcnn_fpn_custom; GluonCV's
    suffix of a dataset may follow, and selects its settings."""
    backbone: Optional[str] = None
    """Backbone of the custom networks: one of GluonCV's networks for classification; without a pyramid a ResNet of four
    stages, e.g. resnet18_v1b."""
    features: Union[Literal["auto"], Annotated[List[str], pydantic.Field(min_length=2, max_length=4)]] = "auto"
    """Maps of the backbone for the pyramid of faster_rcnn_fpn_custom, by MXNet's names, each half the size of the
    previous one; auto = the last map of each of the four smallest sizes."""
    channels: Positive = 256
    """Channels of the region proposal network's hidden layer and of each pyramid map, in custom networks."""
    head_units: Positive = 1024
    """Units of each of the two dense layers per region, in faster_rcnn_fpn_custom."""
    anchor_sizes: Union[Literal["auto"], List[PositiveFloat]] = "auto"
    """Sizes of anchors: square roots of their areas in pixels. With a pyramid one for each map, finest first; the last
    is for the map that the pyramid adds after the coarsest. auto = GluonCV's."""
    proposals: Positive = 2000
    """Number of proposals of an image in training, from which regions are sampled."""
    regions: Union[Literal["auto"], Positive] = "auto"
    """Number of proposals of an image that are classified in prediction; auto = GluonCV's 300, or 1,000 with a pyramid
    or for COCO."""
    region_samples: Union[Literal["auto"], Positive] = "auto"
    """Number of sampled regions of an image in training, at most a quarter of them (and at least one) with an object;
    auto = GluonCV's 128, or 512 with a pyramid."""
    nms_iou: Union[Literal["auto"], OpenFraction] = "auto"
    """Threshold of non-maximum suppression: intersection over union with a higher-scoring detection of the same class;
    auto = GluonCV's 0.3, or 0.5 with a pyramid or for COCO."""
    nms_candidates: Positive = 1000
    """Number of highest-scoring detections of an image, over all classes, that enter non-maximum suppression."""
    max_detections: Positive = 100
    """Maximum number of detections per image."""

    _map_sizes_by_shape: Dict[Shape, List[Tuple[int, int]]] = pydantic.PrivateAttr(default_factory=dict)
    """Shape of images -> (height, width) of each map. A cache: the network must be traced to find them."""

    @pydantic.field_validator("name", mode="before")
    @classmethod
    def _no_sync_batch_norm(cls, name: object) -> object:
        if isinstance(name, str) and "_syncbn_" in name:
            raise ValueError(
                "GluonCV's networks with SyncBatchNorm have other layers, which are not here. Type "
                f"model.name={cls.kind}_fpn_custom model.backbone=resnet50_v1b with parallel.batch_norm=global, which "
                f"takes means over several devices, or model.name={cls.kind}_fpn_resnet50_v1b"
            )
        return name

    @pydantic.model_validator(mode="after")
    def _check_custom(self) -> FasterRCNN:
        staged, pyramid = self.custom_fields
        for field in self.custom_fields[pyramid]:
            default = type(self).model_fields[field].default
            if field not in self.custom_fields.get(self.plain_name, ()) and getattr(self, field) != default:
                raise ValueError(
                    f"{field} is part of {self.name}. Type model.name={pyramid}, or leave model.{field} out"
                )
        if self.is_custom:
            names = STAGED if self.plain_name == staged else CLASSIFICATION_NAMES
            if self.backbone is None:
                raise ValueError(f"{self.plain_name} needs a backbone: type model.backbone=NAME, e.g. resnet18_v1b")
            if self.backbone not in names:
                raise ValueError(no_such_network("classification", self.backbone, names))
        return self

    @property
    def is_pyramid(self) -> bool:
        """Returns True if the network has a feature pyramid, and so several maps."""
        return self.plain_name.startswith(f"{self.kind}_fpn_")

    @property
    def is_custom(self) -> bool:
        """Returns True if the network has a backbone of the user's choice, so that GluonCV has no name for it."""
        return self.plain_name in self.custom_fields

    def require_sizes(self, sizes: Sequence[Sequence[int]]) -> None:
        """Rejects training with several image sizes.

        Raises:
            ConfigError: there are image sizes.
        """
        if sizes:
            raise ConfigError(
                f"dataset.image_sizes: what model.name={self.name} draws in training is for the places of one size of "
                "images. Leave it out, or choose another network, e.g. model=yolo3."
            )

    def _parts(self) -> FasterRCNNParts:
        """Returns the parts of the network: of GluonCV's network with this name, or as configured."""
        if not self.is_custom:
            return gluoncv_detectors.faster_rcnn_parts(self.name)
        assert self.backbone is not None
        default = self.stock[f"{self.kind}_fpn_resnet50_v1b"]
        features = () if self.features == "auto" else tuple(self.features)
        samples = default.num_samples if self.is_pyramid else FasterRCNNParts.num_samples
        return replace(default, backbone=self.backbone, features=features, channels=self.channels, num_samples=samples)

    def _settings(self) -> ProposalSettings:
        parts = self._parts()
        return ProposalSettings(
            train_post_nms=self.proposals,
            post_nms=parts.post_nms if self.regions == "auto" else self.regions,
            min_size=parts.min_size,
            max_log_scale=parts.max_log_scale or MAX_LOG_SCALE,
            num_samples=parts.num_samples if self.region_samples == "auto" else self.region_samples,
        )

    def _anchors(self, input_shape: Shape) -> List[RegionAnchors]:
        """Returns the anchors of each map.

        Raises:
            ConfigError: images are too small, or a setting does not fit the network.
        """
        if tuple(input_shape) not in self._map_sizes_by_shape:
            self._map_sizes_by_shape[tuple(input_shape)] = self._built(self.name, lambda: self._map_sizes(input_shape))
        map_sizes = self._map_sizes_by_shape[tuple(input_shape)]
        strides = [_stride(input_shape, size) for size in map_sizes]
        sizes: Sequence[float] = self._parts().sizes if self.anchor_sizes == "auto" else self.anchor_sizes
        if not self.is_pyramid:
            return [RegionAnchors(*map_sizes[0], strides[0], sizes, REGION_RATIOS)]
        if self.anchor_sizes == "auto":
            sizes = [float(ANCHOR_SIDE_PER_STRIDE * stride) for stride in strides]
        if len(sizes) != len(map_sizes):
            raise ConfigError(
                f"model.anchor_sizes={list(sizes)}: the network has {len(map_sizes)} maps, so as many sizes in pixels "
                f"are wanted, e.g. {[ANCHOR_SIDE_PER_STRIDE * stride for stride in strides]}."
            )
        return [
            RegionAnchors(*map_size, stride, [size], REGION_RATIOS)
            for map_size, stride, size in zip(map_sizes, strides, sizes)
        ]

    def _map_sizes(self, input_shape: Shape) -> List[Tuple[int, int]]:
        from mxtrain.vision.networks.feature_maps import map_sizes

        return map_sizes(self._blocks().features, input_shape)

    def _blocks(self) -> TwoStageBlocks:
        """Returns the blocks that the network consists of, uninitialized."""
        from mxtrain.vision.detection.networks import region_parts

        parts = self._parts()
        if not self.is_pyramid:
            return region_parts.build_single_map(parts, not self.is_custom, self.options)
        width = self.channels if self.is_custom else gluoncv_detectors.PYRAMID_CHANNELS
        return region_parts.build_pyramid(parts, width, self.head_units, not self.is_custom, self.options)

    def draws(self, input_shape: Shape) -> Optional[Draws]:
        """Returns the number of random numbers for sampled anchors and regions."""
        num_anchors = sum(anchors.height * anchors.width * anchors.num_shapes for anchors in self._anchors(input_shape))
        return Draws(num_anchors, self._settings().num_proposals(num_anchors)[0])

    def box_coding(self, num_classes: int, input_shape: Shape) -> BoxCoding:
        """Returns the box coding of two-stage detectors.

        Raises:
            ConfigError: images are too small, or a setting does not fit the network.
        """
        maps, settings = self._anchors(input_shape), self._settings()
        return RegionCoding(num_classes, input_shape, maps, settings, self._suppression())

    def _suppression(self) -> Suppression:
        iou = self._parts().nms_iou if self.nms_iou == "auto" else self.nms_iou
        return Suppression(iou, self.nms_candidates, self.max_detections, MIN_SCORE)

    def build(self, num_classes: int, input_shape: Shape) -> gluon.HybridBlock:
        """Returns the network, uninitialized.

        Raises:
            ConfigError: GluonCV is not installed, images are too small, or a setting does not fit the network.
        """

        def build() -> gluon.HybridBlock:
            is_stock_pyramid = self.is_pyramid and not self.is_custom
            # Arrays of anchors need the size of those in GluonCV's files, or the files cannot be loaded.
            alloc = gluoncv_detectors.PYRAMID_ALLOC if is_stock_pyramid else gluoncv_detectors.ALLOC
            _, height, width = input_shape
            maps, settings = self._anchors(input_shape), self._settings()
            return self._network(self._blocks(), num_classes, (height, width), maps, settings, alloc)

        return self._built(self.name, build)

    def _network(self, *args: Any) -> Any:
        from mxtrain.vision.detection.networks.faster_rcnn import TwoStageNetwork

        return TwoStageNetwork(*args, prefix="fasterrcnn0_")


def _stride(input_shape: Shape, size: Tuple[int, int]) -> int:
    """Returns the distance of neighbouring cells of a map of that (height, width) in pixels of the image: a power of
    2."""
    # Sides of maps are rounded, so the quotient is no exact power of 2; the longer side has the smaller error.
    return 2 ** round(math.log2(max(input_shape[1:]) / max(size)))
