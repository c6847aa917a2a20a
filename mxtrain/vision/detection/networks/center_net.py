"""Builds GluonCV's CenterNets, made to return scores before the sigmoid in one form. Imports MXNet and GluonCV.

GluonCV's return probabilities in training, kept from 0 and 1 by clipping, and detections in prediction, from one block.
Blocks and parameters stay GluonCV's, and so do their names.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Callable, Dict, Mapping, Tuple

from mxtrain.engine.backend import gluon
from mxtrain.model.weights import ClassRows
from mxtrain.vision.networks import gluoncv  # noqa: F401  imports gluoncv without its warnings

from gluoncv.model_zoo.center_net import center_net, deconv_dla, deconv_resnet, duc_mobilenet  # isort: skip

if TYPE_CHECKING:
    from mxtrain.annotations import Array, OperatorModule

BASES: Dict[str, Callable[..., gluon.HybridBlock]] = {
    "center_net_resnet18_v1b": deconv_resnet.resnet18_v1b_deconv,
    "center_net_resnet50_v1b": deconv_resnet.resnet50_v1b_deconv,
    "center_net_resnet101_v1b": deconv_resnet.resnet101_v1b_deconv,
    "center_net_dla34": deconv_dla.dla34_deconv,
    "center_net_mobilenetv3_large_duc": duc_mobilenet.mobilenetv3_large_duc,
    "center_net_mobilenetv3_small_duc": duc_mobilenet.mobilenetv3_small_duc,
}
HEAD_CHANNELS = 64
RARE = -2.19
"""Nearly all cells hold no centre: at first each is one with a probability of a tenth. Source: Lin et al., "Focal Loss
for Dense Object Detection" (2017), section 3.3."""


def build(name: str, num_classes: int, options: Mapping[str, Any]) -> gluon.HybridBlock:
    """Returns the network of that name, without a dataset's: (B, 3, H, W) -> scores of centres (B, K, H/4, W/4), before
    the sigmoid, and width, height, and offsets to the right and down (B, 4, H/4, W/4)."""
    base = BASES[name](pretrained=False, **options)
    heads = OrderedDict(heatmap={"num_output": num_classes, "bias": RARE}, wh={"num_output": 2}, reg={"num_output": 2})
    network = center_net.CenterNet(base, heads, [str(number) for number in range(num_classes)], HEAD_CHANNELS)
    # On the instance, so that GluonCV's class is unchanged.
    object.__setattr__(network, "hybrid_forward", lambda F, x: _forward(network, F, x))
    network.class_heads = {f"heads.0.{len(network.heads[0]) - 1}": ClassRows(1, 0)}
    return network


def _forward(network: gluon.HybridBlock, F: OperatorModule, x: Array) -> Tuple[Array, Array]:
    y = network.base_network(x)
    centre, size, offset = (head(y) for head in network.heads)
    return centre, F.concat(size, offset, dim=1)
