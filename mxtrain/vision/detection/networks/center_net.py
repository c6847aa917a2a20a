"""Builds GluonCV's CenterNets, with logits as outputs in training and prediction. Imports MXNet and GluonCV.

GluonCV's networks return clipped probabilities in training, and detections in prediction, from one block. The blocks,
the parameters and their names are GluonCV's.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Callable, Dict, Mapping, Tuple

from mxtrain.engine.backend import gluon
from mxtrain.model.weights_report import ClassRows
from mxtrain.vision.detection.heads.heatmap import CENTRE_BIAS
from mxtrain.vision.networks import gluoncv  # noqa: F401  imports gluoncv without its warnings

from gluoncv.model_zoo.center_net import center_net, deconv_dla, deconv_resnet, duc_mobilenet  # isort: skip

if TYPE_CHECKING:
    from mxtrain.types.annotations import Array, OperatorModule

BASES: Dict[str, Callable[..., gluon.HybridBlock]] = {
    "center_net_resnet18_v1b": deconv_resnet.resnet18_v1b_deconv,
    "center_net_resnet50_v1b": deconv_resnet.resnet50_v1b_deconv,
    "center_net_resnet101_v1b": deconv_resnet.resnet101_v1b_deconv,
    "center_net_dla34": deconv_dla.dla34_deconv,
    "center_net_mobilenetv3_large_duc": duc_mobilenet.mobilenetv3_large_duc,
    "center_net_mobilenetv3_small_duc": duc_mobilenet.mobilenetv3_small_duc,
}
"""Name without a dataset -> GluonCV's function of the backbone."""
HEAD_CHANNELS = 64
"""Channels of the hidden layer of each head. Source: GluonCV."""


def build(name: str, num_classes: int, options: Mapping[str, Any]) -> gluon.HybridBlock:
    """Builds a network that maps images (B, 3, H, W) to logits of centres (B, K, H / 4, W / 4), and width, height and x
    and y offsets of boxes (B, 4, H / 4, W / 4).

    Args:
        name: a key of `BASES`.
        num_classes: K.
        options: further arguments of GluonCV's function of the backbone.
    """
    base = BASES[name](pretrained=False, **options)
    heads = OrderedDict(
        heatmap={"num_output": num_classes, "bias": CENTRE_BIAS}, wh={"num_output": 2}, reg={"num_output": 2}
    )
    network = center_net.CenterNet(base, heads, [str(number) for number in range(num_classes)], HEAD_CHANNELS)
    # Set on the instance, so that GluonCV's class is unchanged.
    object.__setattr__(network, "hybrid_forward", lambda F, x: _forward(network, F, x))
    network.class_heads = {f"heads.0.{len(network.heads[0]) - 1}": ClassRows(1, 0)}
    return network


def _forward(network: gluon.HybridBlock, F: OperatorModule, x: Array) -> Tuple[Array, Array]:
    y = network.base_network(x)
    centre, size, offset = (head(y) for head in network.heads)
    # Raw values in training and prediction: GluonCV's block returns other objects in each, and a hybridized block keeps
    # the graph of whichever came first.
    return centre, F.concat(size, offset, dim=1)
