"""Builds the blocks of two-stage detectors from GluonCV's networks for classification. Imports MXNet and GluonCV."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Dict, List, Mapping

from mxtrain.engine.backend import gluon, mx
from mxtrain.vision.detection.networks.faster_rcnn import TwoStageBlocks
from mxtrain.vision.detection.networks.gluoncv_detectors import PYRAMID_SIDE, SINGLE_MAP_SIDE
from mxtrain.vision.networks import gluoncv
from mxtrain.vision.networks.feature_maps import find_features, take_initializers

from gluoncv.nn.feature import FPNFeatureExpander  # isort: skip

if TYPE_CHECKING:
    from mxtrain.vision.detection.networks.gluoncv_detectors import FasterRCNNParts

STEM = ("conv1", "bn1", "relu", "maxpool", "layer1", "layer2", "layer3")
"""Layers of GluonCV's ResNets that compute the map of an image; `layer4` is applied to each region."""
NUM_CLASSES_OF_BACKBONE = 2
"""Number of classes of the network that the backbone is taken from; its output layer is not used."""
MAX_PYRAMID_MAPS = 4
"""Largest number of maps of the backbone in a pyramid, unless maps are named. The pyramid adds one map after the
coarsest."""


def _backbone(parts: FasterRCNNParts, is_stock: bool, options: Mapping[str, Any]) -> gluon.HybridBlock:
    """Builds the classification network that the backbone is taken from; arguments as in `build_single_map`."""
    # GluonCV's parameter names contain a counter of networks in the process; here it always starts at 0.
    with mx.name.NameManager():
        # As GluonCV builds them: batches of one or two images give poor statistics.
        defaults = {"use_global_stats": True} if is_stock else {}
        return gluoncv.build(parts.backbone, NUM_CLASSES_OF_BACKBONE, {**defaults, **options})


def _names(network: gluon.HybridBlock) -> Dict[str, str]:
    """Returns full name -> structural name of each parameter."""
    return {parameter.name: name for name, parameter in network._collect_params_with_prefix().items()}


def build_single_map(parts: FasterRCNNParts, is_stock: bool, options: Mapping[str, Any]) -> TwoStageBlocks:
    """Builds the blocks of a detector with a ResNet: three stages compute one map of the image, the fourth is applied
    to each region.

    Args:
        parts: parts of the network.
        is_stock: True for a network that GluonCV has by name: its batch normalisation uses the statistics of its file.
        options: further arguments of GluonCV's function of the backbone.
    """
    network = _backbone(parts, is_stock, options)
    features, region_features = gluon.nn.HybridSequential(), gluon.nn.HybridSequential()
    features.add(*(getattr(network, name) for name in STEM))
    region_features.add(network.layer4)
    return TwoStageBlocks(features, region_features, None, SINGLE_MAP_SIDE, parts.channels, _names(network))


def build_pyramid(
    parts: FasterRCNNParts, width: int, head_units: int, is_stock: bool, options: Mapping[str, Any]
) -> TwoStageBlocks:
    """Builds the blocks of a detector with any backbone: a feature pyramid of its maps, and two dense layers per
    region.

    Args:
        parts, is_stock, options: see `build_single_map`.
        width: number of channels of each map of the pyramid.
        head_units: number of units of each dense layer.
    """
    network = _backbone(parts, is_stock, options)
    symbol = network(mx.sym.var("data"))
    names: List[str]
    if parts.features:
        names = find_features(symbol, network.prefix, parts.backbone, len(parts.features), parts.features)
    else:
        names = find_features(symbol, network.prefix, parts.backbone, MAX_PYRAMID_MAPS, at_least=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns that the input has no type
        features = FPNFeatureExpander(
            symbol,
            names,
            [width] * len(names),
            use_1x1=True,
            use_upsample=True,
            use_elewadd=True,
            use_p6=True,
            no_bias=False,
        )
    take_initializers(features, network)
    box_features = gluon.nn.HybridSequential()
    is_fine = parts.masks is not None and parts.masks.is_fine
    if is_fine:
        box_features.add(gluon.nn.AvgPool2D(3, strides=2, padding=1))
    for _ in range(2):
        box_features.add(gluon.nn.Dense(head_units, weight_initializer=mx.init.Normal(0.01)))
        box_features.add(gluon.nn.Activation("relu"))
    side = PYRAMID_SIDE * (2 if is_fine else 1)
    return TwoStageBlocks(features, None, box_features, side, parts.channels, _names(network))
