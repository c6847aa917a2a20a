"""Names and parts of GluonCV's detectors, and the classes of their weight files.

These are tables, so that a wrong name is rejected without importing MXNet. Tests compare them with GluonCV's.
Source: gluoncv 0.10.5.post0, model_zoo/ssd/presets.py, model_zoo/yolo/yolo3.py, model_zoo/center_net/,
model_zoo/rcnn/faster_rcnn/, model_zoo/rcnn/mask_rcnn/.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Mapping, Optional, Sequence, Tuple

from mxtrain.vision.images.class_lists import COCO_CLASSES, VOC_CLASSES
from mxtrain.vision.networks.gluoncv_names import without_suffix

DATASETS = ("voc", "coco", "custom")
"""Suffixes of GluonCV's names for networks with the classes of one dataset."""

FEW_RATIOS, MANY_RATIOS = (1.0, 2.0, 0.5), (1.0, 2.0, 0.5, 3.0, 1.0 / 3)
"""Aspect ratios (width to height) of the anchors of a map."""


@dataclass(frozen=True)
class SSDParts:
    """Parts of an SSD of GluonCV.

    Attributes:
        backbone: GluonCV's name of the network for classification, or "vgg16_atrous".
        base_size: side in pixels of the images that `sizes` and `steps` are for.
        features: outputs of the backbone that are used as maps; empty if the backbone is made for detection.
        filters: channels of each additional convolution, which halves the previous map.
        sizes: sizes of anchors in pixels, one more than there are maps.
        steps: distance of neighbouring cells of each map, in pixels.
        ratios: aspect ratios of each map.
        lite: if True, heads are 1x1 convolutions, the finest map has no anchor of the mean size, and the first anchor
            of each map has half the size.
    """

    backbone: str
    base_size: int
    features: Tuple[str, ...]
    filters: Tuple[int, ...]
    sizes: Tuple[float, ...]
    steps: Tuple[float, ...]
    ratios: Tuple[Tuple[float, ...], ...]
    lite: bool = False


def usual_ratios(num_maps: int) -> Tuple[Tuple[float, ...], ...]:
    """Returns the aspect ratios of each map: more of them for all maps but the finest and the two coarsest."""
    return tuple(MANY_RATIOS if 0 < number < num_maps - 2 else FEW_RATIOS for number in range(num_maps))


_SIZES_300 = (21, 45, 99, 153, 207, 261, 315)
_SIZES_512 = (51.2, 102.4, 189.4, 276.4, 363.52, 450.6, 492)
_SIZES_512_WIDE = (51.2, 133.12, 215.04, 296.96, 378.88, 460.8, 542.72)
_SIZES_512_FINE = (51.2, 76.8, 153.6, 230.4, 307.2, 384.0, 460.8, 537.6)
_STEPS_300 = (8, 16, 32, 64, 100, 300)
_STEPS_512 = (16, 32, 64, 128, 256, 512)
_STEPS_512_FINE = (8, 16, 32, 64, 128, 256, 512)
_MOBILENET = ("relu22_fwd", "relu26_fwd")
_EXTRA = (512, 512, 256, 256)

SSD: Mapping[str, SSDParts] = {
    "ssd_300_vgg16_atrous": SSDParts(
        "vgg16_atrous", 300, (), (), (30, 60, 111, 162, 213, 264, 315), _STEPS_300, usual_ratios(6)
    ),
    "ssd_512_vgg16_atrous": SSDParts("vgg16_atrous", 512, (), (), _SIZES_512_FINE, _STEPS_512_FINE, usual_ratios(7)),
    "ssd_300_resnet34_v1b": SSDParts("resnet34_v1b", 300, (), (), _SIZES_300, _STEPS_300, usual_ratios(6)),
    "ssd_512_resnet18_v1": SSDParts(
        "resnet18_v1",
        512,
        ("stage3_activation1", "stage4_activation1"),
        _EXTRA,
        _SIZES_512,
        _STEPS_512,
        usual_ratios(6),
    ),
    "ssd_512_resnet50_v1": SSDParts(
        "resnet50_v1",
        512,
        ("stage3_activation5", "stage4_activation2"),
        _EXTRA,
        _SIZES_512,
        _STEPS_512,
        usual_ratios(6),
    ),
    "ssd_512_resnet101_v2": SSDParts(
        "resnet101_v2",
        512,
        ("stage3_activation22", "stage4_activation2"),
        _EXTRA,
        _SIZES_512,
        _STEPS_512,
        usual_ratios(6),
    ),
    "ssd_512_resnet152_v2": SSDParts(
        "resnet152_v2",
        512,
        ("stage2_activation7", "stage3_activation35", "stage4_activation2"),
        _EXTRA,
        _SIZES_512_FINE,
        _STEPS_512_FINE,
        usual_ratios(7),
    ),
    "ssd_512_mobilenet1.0": SSDParts("mobilenet1.0", 512, _MOBILENET, _EXTRA, _SIZES_512, _STEPS_512, usual_ratios(6)),
    "ssd_300_mobilenet0.25": SSDParts(
        "mobilenet0.25", 300, _MOBILENET, (256, 256, 128, 128), _SIZES_300, _STEPS_300, usual_ratios(6)
    ),
    "ssd_300_mobilenet1.0_lite": SSDParts(
        "mobilenet1.0",
        300,
        _MOBILENET,
        (512, 256, 256, 128),
        (60, 105, 150, 195, 240, 285, 300),
        (16, 30, 60, 100, 150, 300),
        (FEW_RATIOS, *[MANY_RATIOS] * 5),
        lite=True,
    ),
}
"""Name without a dataset -> parts of the network. If they depend on the dataset, those for VOC."""

SSD_SIZES: Mapping[str, Tuple[float, ...]] = {
    "ssd_300_vgg16_atrous_coco": _SIZES_300,
    "ssd_300_vgg16_atrous_custom": _SIZES_300,
    "ssd_512_resnet50_v1_coco": _SIZES_512_WIDE,
    "ssd_512_resnet50_v1_custom": _SIZES_512_WIDE,
}
"""Name with a dataset -> sizes of anchors, if they differ from those in `SSD`."""

YOLO3: Mapping[str, Tuple[int, int, int]] = {
    "yolo3_darknet53": (512, 256, 128),
    "yolo3_mobilenet1.0": (512, 256, 128),
    "yolo3_mobilenet0.25": (256, 128, 128),
}
"""Name without a dataset -> channels of the blocks of each map, the coarsest map first."""
YOLO3_ANCHORS: Sequence[Sequence[float]] = (
    (10, 13, 16, 30, 33, 23),
    (30, 61, 62, 45, 59, 119),
    (116, 90, 156, 198, 373, 326),
)
"""Width and height in pixels of the three anchors of each map, the finest map first."""

YOLO3_STRIDES = (8, 16, 32)
"""Distance of neighbouring cells of each map in pixels, the finest map first."""

CENTER_NET = (
    "center_net_resnet18_v1b",
    "center_net_resnet50_v1b",
    "center_net_resnet101_v1b",
    "center_net_dla34",
    "center_net_mobilenetv3_large_duc",
    "center_net_mobilenetv3_small_duc",
)
"""Names without a dataset."""

SINGLE_MAP_SIDE, PYRAMID_SIDE = 14, 7
"""Number of cells along each side into which RoIAlign divides a region, without and with a pyramid. Source: GluonCV."""


@dataclass(frozen=True)
class MaskParts:
    """Parts of the mask branch of a Mask R-CNN of GluonCV.

    Attributes:
        channels: number of channels of each layer.
        convs: number of convolutions before the features of a region are upsampled by a factor of 2.
        is_fine: if True, regions are pooled to twice as many cells along each side; average pooling reduces them for
            the heads of classes and boxes.
    """

    channels: int = 256
    convs: int = 0
    is_fine: bool = False

    def side(self, is_pyramid: bool) -> int:
        """Returns the number of cells along each side of a mask. Networks with a single map halve the resolution of
        regions before the mask head."""
        return 2 * (PYRAMID_SIDE * (2 if self.is_fine else 1) if is_pyramid else SINGLE_MAP_SIDE // 2)


@dataclass(frozen=True)
class FasterRCNNParts:
    """Parts of a Faster R-CNN of GluonCV.

    Attributes:
        backbone: GluonCV's name of the network for classification.
        features: outputs of the backbone for the feature pyramid; empty: there is no pyramid, only the map of the third
            stage.
        sizes: sizes of anchors in pixels: square roots of their areas.
        channels: number of channels of the region proposal network's hidden layer.
        post_nms: number of proposals of an image in prediction.
        num_samples: number of regions of an image in training.
        min_size: smallest side of a proposal, in pixels.
        max_log_scale: logarithm of the largest factor by which an offset may change a side; 0: no limit.
        nms_iou: threshold of non-maximum suppression: intersection over union with a higher-scoring detection.
        masks: parts of the mask branch of a Mask R-CNN; None: there is none.
    """

    backbone: str
    features: Tuple[str, ...] = ()
    sizes: Tuple[float, ...] = (32, 64, 128, 256, 512)
    channels: int = 1024
    post_nms: int = 300
    num_samples: int = 128
    min_size: float = 16.0
    max_log_scale: float = 0.0
    nms_iou: float = 0.3
    masks: Optional[MaskParts] = None


REGION_RATIOS = (0.5, 1.0, 2.0)
"""Aspect ratios (height to width) of the anchors of a Faster R-CNN."""
PYRAMID_CHANNELS = 256
"""Channels of each map of GluonCV's pyramids."""
ALLOC, PYRAMID_ALLOC = 128, 384
"""Number of cells along each side of the finest map whose anchors GluonCV stores in its files (its `alloc_size`),
without and with a pyramid."""
_FOR_COCO: Mapping[str, Any] = {"post_nms": 1000, "min_size": 1.0, "max_log_scale": 4.14, "nms_iou": 0.5}

FASTER_RCNN: Mapping[str, FasterRCNNParts] = {
    "faster_rcnn_resnet50_v1b": FasterRCNNParts("resnet50_v1b"),
    "faster_rcnn_resnet101_v1d": FasterRCNNParts("resnet101_v1d"),
    "faster_rcnn_fpn_resnet50_v1b": FasterRCNNParts(
        "resnet50_v1b",
        ("layers1_relu8_fwd", "layers2_relu11_fwd", "layers3_relu17_fwd", "layers4_relu8_fwd"),
        num_samples=512,
        **_FOR_COCO,
    ),
    "faster_rcnn_fpn_resnet101_v1d": FasterRCNNParts(
        "resnet101_v1d",
        ("layers1_relu8_fwd", "layers2_relu11_fwd", "layers3_relu68_fwd", "layers4_relu8_fwd"),
        num_samples=512,
        **_FOR_COCO,
    ),
}
"""Name without a dataset -> parts of the network. If they depend on the dataset, those for VOC."""


_MASKED: Mapping[str, Any] = {**_FOR_COCO, "max_log_scale": 4.42}
_PYRAMIDS = {name: FASTER_RCNN[f"faster_rcnn_fpn_{name}"].features for name in ("resnet50_v1b", "resnet101_v1d")}

MASK_RCNN: Mapping[str, FasterRCNNParts] = {
    "mask_rcnn_resnet18_v1b": FasterRCNNParts("resnet18_v1b", num_samples=256, masks=MaskParts(), **_MASKED),
    **{f"mask_rcnn_{name}": FasterRCNNParts(name, masks=MaskParts(), **_MASKED) for name in _PYRAMIDS},
    "mask_rcnn_fpn_resnet18_v1b": FasterRCNNParts(
        "resnet18_v1b",
        tuple(f"layers{stage}_relu3_fwd" for stage in (1, 2, 3, 4)),
        num_samples=512,
        masks=MaskParts(convs=2),
        **_MASKED,
    ),
    **{
        f"mask_rcnn_fpn_{name}": FasterRCNNParts(
            name, features, num_samples=512, masks=MaskParts(convs=4, is_fine=True), **_MASKED
        )
        for name, features in _PYRAMIDS.items()
    },
}
"""Name without a dataset -> parts of a Mask R-CNN. GluonCV only has networks for COCO."""


def faster_rcnn_parts(name: str) -> FasterRCNNParts:
    """Returns the parts of the Faster R-CNN or Mask R-CNN with a name of GluonCV."""
    parts = {**FASTER_RCNN, **MASK_RCNN}[without_dataset(name)]
    if parts.features or parts.masks:
        return parts
    if name.endswith("_coco"):
        return replace(parts, **_FOR_COCO)
    # GluonCV's networks for custom classes have the defaults of its constructor.
    return replace(parts, sizes=(128, 256, 512)) if name.endswith("_custom") else parts


CLASSES_OF_WEIGHTS: Mapping[str, Tuple[str, ...]] = {"voc": VOC_CLASSES, "coco": COCO_CLASSES}
"""Dataset -> classes of GluonCV's weight files, in the order of their scores."""


def without_dataset(name: str) -> str:
    """Removes the dataset from a name: `ssd_512_resnet50_v1` for `ssd_512_resnet50_v1_voc`."""
    return without_suffix(name, DATASETS)


def ssd_parts(name: str) -> SSDParts:
    """Returns the parts of the SSD with a name of GluonCV."""
    parts = SSD[without_dataset(name)]
    return replace(parts, sizes=SSD_SIZES[name]) if name in SSD_SIZES else parts
