"""Takes GluonCV's networks for classification apart into what a network of two stages is made of. Imports MXNet and
GluonCV."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Dict, List, Mapping

from mxtrain.engine.backend import gluon, mx
from mxtrain.model.networks import gluoncv
from mxtrain.model.networks.faster_rcnn import Parts
from mxtrain.model.networks.feature_maps import find_features, take_initializers
from mxtrain.model.networks.gluoncv_detectors import PYRAMID_CELLS, STAGED_CELLS

from gluoncv.nn.feature import FPNFeatureExpander  # isort: skip

if TYPE_CHECKING:
    from mxtrain.model.networks.gluoncv_detectors import RegionParts

STEM = ("conv1", "bn1", "relu", "maxpool", "layer1", "layer2", "layer3")
"""Parts of a ResNet of GluonCV's that make the map; `layer4` looks at regions."""
NUM_CLASSES_OF_BACKBONE = 2
"""Of what is cut off again."""
MOST_MAPS = 4


def _backbone(parts: RegionParts, is_stock: bool, options: Mapping[str, Any]) -> gluon.HybridBlock:
    # Names of GluonCV's files count networks of a kind in a process; here each is the first.
    with mx.name.NameManager():
        usual = {"use_global_stats": True} if is_stock else {}
        return gluoncv.build(parts.backbone, NUM_CLASSES_OF_BACKBONE, {**usual, **options})


def _names(network: gluon.HybridBlock) -> Dict[str, str]:
    return {parameter.name: name for name, parameter in network._collect_params_with_prefix().items()}


def staged(parts: RegionParts, is_stock: bool, options: Mapping[str, Any]) -> Parts:
    """Of a ResNet with four stages, the last of which looks at regions.

    Args:
        parts: what the network is made of.
        is_stock: whether it is GluonCV's, whose batch norms keep to the statistics that they come with.
        options: further arguments of GluonCV's function of the backbone.
    """
    network = _backbone(parts, is_stock, options)
    features, region_features = gluon.nn.HybridSequential(), gluon.nn.HybridSequential()
    features.add(*(getattr(network, name) for name in STEM))
    region_features.add(network.layer4)
    return Parts(features, region_features, None, STAGED_CELLS, parts.channels, _names(network))


def pyramid(
    parts: RegionParts, width: int, head_units: int, is_stock: bool, options: Mapping[str, Any]
) -> Parts:  # fmt: skip
    """Of any network: its maps, from the coarsest on, are added to finer ones.

    Args:
        parts, is_stock, options: as of `staged`.
        width: channels of each map.
        head_units: of both layers that look at a region.
    """
    network = _backbone(parts, is_stock, options)
    symbol = network(mx.sym.var("data"))
    names: List[str]
    if parts.features:
        names = find_features(symbol, network.prefix, parts.backbone, len(parts.features), parts.features)
    else:
        names = find_features(symbol, network.prefix, parts.backbone, MOST_MAPS, at_least=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it doubts the type of pictures, and takes float32
        features = FPNFeatureExpander(
            symbol, names, [width] * len(names), use_1x1=True, use_upsample=True, use_elewadd=True, use_p6=True,
            no_bias=False,
        )  # fmt: skip
    take_initializers(features, network)
    box_features = gluon.nn.HybridSequential()
    is_fine = parts.masks is not None and parts.masks.is_fine
    if is_fine:
        box_features.add(gluon.nn.AvgPool2D(3, strides=2, padding=1))
    for _ in range(2):
        box_features.add(gluon.nn.Dense(head_units, weight_initializer=mx.init.Normal(0.01)))
        box_features.add(gluon.nn.Activation("relu"))
    cells = PYRAMID_CELLS * (2 if is_fine else 1)
    return Parts(features, None, box_features, cells, parts.channels, _names(network))
