"""Builds GluonCV's segmentation networks, made to return maps of the input's size. Imports MXNet and GluonCV.

GluonCV's networks contain the size of the training crop, and return maps of that size for images of any size. Here the
`hybrid_forward` of the blocks that resize is replaced by a version that resizes to the size of the network's input. The
blocks, the parameters and their names are GluonCV's.
"""

from __future__ import annotations

import contextlib
import io
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Type, Union

from mxtrain.engine.backend import gluon
from mxtrain.model.graph.trace import blocks_by_path
from mxtrain.vision.networks import gluoncv  # noqa: F401  imports gluoncv without its warnings

from gluoncv.model_zoo import danet, deeplabv3, deeplabv3_plus, deeplabv3b_plus, fastscnn, fcn, icnet, pspnet  # isort: skip

BY_ARCHITECTURE = {
    "fcn": fcn.FCN,
    "psp": pspnet.PSPNet,
    "deeplab": deeplabv3.DeepLabV3,
    "icnet": icnet.ICNet,
    "danet": danet.DANet,
}
BY_NAME = {
    "deeplab_plus_xception": deeplabv3_plus.DeepLabV3Plus,
    "deeplab_v3b_plus_wideresnet": deeplabv3b_plus.DeepLabWV3Plus,
    "fastscnn": fastscnn.FastSCNN,
}
if TYPE_CHECKING:
    from mxtrain.types.annotations import Array, OperatorModule

    Maps = Union[Array, Sequence[Array]]
    """Scores of the main output, or of the main and the auxiliary outputs."""

POOLINGS = (1, 2, 3, 6)
"""Sides of the grids of a pyramid pooling module. Source: PSPNet."""


def build(name: str, num_classes: int, aux: bool, options: Mapping[str, Any]) -> gluon.HybridBlock:
    """Builds a network that maps images (B, 3, H, W) to scores (B, num_classes, H, W), or to a tuple of scores if it
    has auxiliary outputs.

    Args:
        name: GluonCV's name without a dataset.
        num_classes: number of classes.
        aux: if True, the network has auxiliary outputs.
        options: further arguments of GluonCV's class.
    """
    arguments: Dict[str, Any] = {"pretrained_base": False, **options, "aux": aux}
    kind = BY_NAME.get(name)
    if kind is None:
        architecture, _, arguments["backbone"] = name.rpartition("_")
        kind = BY_ARCHITECTURE[architecture]
    with contextlib.redirect_stdout(io.StringIO()):  # PSPNet prints its crop size
        network = kind(num_classes, **arguments)
    network.aux = aux  # not all of GluonCV's classes store it
    ADJUSTMENTS.get(kind, lambda network: None)(network)
    for _, block in blocks_by_path(network):
        forward = FORWARDS.get(type(block))
        if forward is not None:
            # Set on the instance, so that GluonCV's class is unchanged.
            object.__setattr__(block, "hybrid_forward", _bound(forward, block))
    return network


def _bound(forward: Callable[..., object], block: gluon.Block) -> Callable[..., object]:
    """Binds a function (block, F, *inputs) to a block."""
    return lambda F, *inputs: forward(block, F, *inputs)


def _outputs(F: OperatorModule, maps: List[Array], image: Array) -> Maps:
    """Resizes maps to the size of the image. Returns the map if there is one, otherwise a tuple."""
    resized = [resize_like(F, each, image) for each in maps]
    return resized[0] if len(resized) == 1 else tuple(resized)


# Forward passes of networks, (B, 3, H, W) -> scores. Local names are those of GluonCV's code.


def _with_backbone(network: gluon.HybridBlock, F: OperatorModule, x: Array) -> Maps:
    """Computes the forward pass of FCN, PSPNet and DeepLabV3."""
    c3, c4 = network.base_forward(x)
    return _outputs(F, [network.head(c4), *([network.auxlayer(c3)] if network.aux else [])], x)


def _deeplab_plus(network: gluon.HybridBlock, F: OperatorModule, x: Array) -> Maps:
    c1, c3, c4 = network.base_forward(x)
    return _outputs(F, [network.head(c4, c1), *([network.auxlayer(c3)] if network.aux else [])], x)


def _deeplab_wide(network: gluon.HybridBlock, F: OperatorModule, x: Array) -> Maps:
    fine = network.mod2(network.pool2(network.mod1(x)))
    coarse = network.pool3(fine)
    for block in (network.mod3, network.mod4, network.mod5, network.mod6, network.mod7):
        coarse = block(coarse)
    return _outputs(F, [network.head(coarse, fine)], x)


def _danet(network: gluon.HybridBlock, F: OperatorModule, x: Array) -> Maps:
    _, c4 = network.base_forward(x)
    return _outputs(F, list(network.head(c4)), x)


def _fastscnn(network: gluon.HybridBlock, F: OperatorModule, x: Array) -> Maps:
    fine = network.learning_to_downsample(x)
    main = network.classifier(network.feature_fusion(fine, network.global_feature_extractor(fine)))
    return _outputs(F, [main, *([network.auxlayer(fine)] if network.aux else [])], x)


def _icnet(network: gluon.HybridBlock, F: OperatorModule, x: Array) -> Maps:
    half = F.contrib.BilinearResize2D(x, scale_height=0.5, scale_width=0.5)
    half = network.maxpool(network.relu(network.bn1(network.conv1(half))))
    sub2 = network.layer2(network.layer1(half))
    sub4 = F.contrib.BilinearResize2D(sub2, scale_height=0.5, scale_width=0.5)
    sub4 = network.psp_head(network.layer4(network.layer3(sub4)))
    return _outputs(F, list(network.head(network.conv_sub1(x), network.conv_sub2(sub2), network.conv_sub4(sub4))), x)


# Forward passes of parts of networks.


def _icnet_head(head: gluon.HybridBlock, F: OperatorModule, sub1: Array, sub2: Array, sub4: Array) -> List[Array]:
    """Computes scores at a quarter, an eighth, and a sixteenth of the image's size. `_outputs` resizes them to the
    image's size, as GluonCV's ICNetLoss does.

    GluonCV returns the scores at a quarter twice, resized and not, so its ICNetLoss counts the same map with weights of
    1 and 0.4. Here they are returned once, and the loss defines the weight of auxiliary outputs.
    """
    cff_24, scores_24 = head.cff_24(sub4, sub2)
    cff_12, scores_12 = head.cff_12(cff_24, sub1)
    main = head.conv_cls(F.contrib.BilinearResize2D(cff_12, scale_height=2, scale_width=2))
    return [main, *(scores for scores in (scores_12, scores_24) if scores is not None)]


def _cascade(fusion: gluon.HybridBlock, F: OperatorModule, low: Array, high: Array) -> Tuple[Array, Optional[Array]]:
    low = fusion.conv_low(resize_like(F, low, high))
    scores = None if fusion.conv_low_cls is None else fusion.conv_low_cls(low)
    return F.relu(low + fusion.conv_hign(high)), scores


def _danet_head(head: gluon.HybridBlock, F: OperatorModule, x: Array) -> Tuple[Array, ...]:
    positions, channels = head.conv51(head.sa(head.conv5a(x))), head.conv52(head.sc(head.conv5c(x)))
    main = head.conv8(positions + channels)
    return (main,) if head.conv6 is None else (main, head.conv6(positions), head.conv7(channels))


def _pyramid(pyramid: gluon.HybridBlock, F: OperatorModule, x: Array) -> Array:
    branches = (pyramid.conv1, pyramid.conv2, pyramid.conv3, pyramid.conv4)
    pooled = [
        convolve(F.contrib.AdaptiveAvgPooling2D(x, output_size=side)) for convolve, side in zip(branches, POOLINGS)
    ]
    return F.concat(x, fill_like(F, pooled[0], x), *(resize_like(F, branch, x) for branch in pooled[1:]), dim=1)


def _fast_pyramid(pyramid: gluon.HybridBlock, F: OperatorModule, x: Array) -> Array:
    return pyramid.out(_pyramid(pyramid, F, x))


def _image_pooling(pooling: gluon.HybridBlock, F: OperatorModule, x: Array) -> Array:
    return fill_like(F, pooling.gap(x), x)


def _plus_head(head: gluon.HybridBlock, F: OperatorModule, x: Array, c1: Array) -> Array:
    return head.block(F.concat(resize_like(F, head.aspp(x), c1), head.c1_block(c1), dim=1))


def _wide_head(head: gluon.HybridBlock, F: OperatorModule, x: Array, c1: Array) -> Array:
    return head.block(F.concat(head.c1_block(c1), resize_like(F, head.aspp(x), c1), dim=1))


def _fusion(fusion: gluon.HybridBlock, F: OperatorModule, fine: Array, coarse: Array) -> Array:
    coarse = fusion.bn(fusion.conv_lower_res(fusion.dwconv(resize_like(F, coarse, fine))))
    return fusion.relu(fusion.bn_high(fusion.conv_higher_res(fine)) + coarse)


FORWARDS: Dict[Type[gluon.Block], Callable[..., object]] = {
    fcn.FCN: _with_backbone,
    pspnet.PSPNet: _with_backbone,
    deeplabv3.DeepLabV3: _with_backbone,
    deeplabv3_plus.DeepLabV3Plus: _deeplab_plus,
    deeplabv3b_plus.DeepLabWV3Plus: _deeplab_wide,
    danet.DANet: _danet,
    fastscnn.FastSCNN: _fastscnn,
    icnet.ICNet: _icnet,
    icnet._ICHead: _icnet_head,
    icnet.CascadeFeatureFusion: _cascade,
    danet.DANetHead: _danet_head,
    pspnet._PyramidPooling: _pyramid,
    fastscnn._FastPyramidPooling: _fast_pyramid,
    fastscnn.FeatureFusionModule: _fusion,
    deeplabv3._AsppPooling: _image_pooling,
    deeplabv3_plus._AsppPooling: _image_pooling,
    deeplabv3b_plus._AsppPooling: _image_pooling,
    deeplabv3_plus._DeepLabHead: _plus_head,
    deeplabv3b_plus._DeepLabHead: _wide_head,
}
"""Class of GluonCV that resizes, or returns unused outputs -> replacement of its `hybrid_forward`."""


# Adjustments of built networks: unused children are removed, and the output layer comes last.


def _adjust_icnet(network: gluon.HybridBlock) -> None:
    # `mxtrain.model.weights` recognises weights for another number of classes by the last layer of the network.
    network._children.move_to_end("head")
    if not network.aux:
        _remove(network.head.cff_12, "conv_low_cls")
        _remove(network.head.cff_24, "conv_low_cls")


def _adjust_danet(network: gluon.HybridBlock) -> None:
    if not network.aux:
        _remove(network.head, "conv6")
        _remove(network.head, "conv7")


def _remove(block: gluon.HybridBlock, child: str) -> None:
    """Removes a child; the attribute becomes None, as in GluonCV without auxiliary outputs."""
    del block._children[child]
    object.__setattr__(block, child, None)


ADJUSTMENTS = {icnet.ICNet: _adjust_icnet, danet.DANet: _adjust_danet}
"""Class of GluonCV -> function that adjusts a network after it was built."""


def resize_like(F: OperatorModule, maps: Array, like: Array) -> Array:
    """Resizes maps by bilinear interpolation with aligned corners, as MXNet's BilinearResize2D does. Returns (B, C, H,
    W).

    Args:
        F: MXNet's operators of symbols or of arrays.
        maps: maps (B, C, h, w).
        like: array (B, ?, H, W); its values are not used.
    """
    rows_Hh, columns_Ww = _weights(F, maps, like, 2), _weights(F, maps, like, 3)
    # `dot` sums over the first axis of its right operand, so rows are resized first; the larger result needs no
    # transpose.
    tall = F.transpose(F.dot(rows_Hh, F.transpose(maps, axes=(2, 0, 1, 3))), axes=(1, 2, 0, 3))
    return F.dot(tall, columns_Ww, transpose_b=True)


def fill_like(F: OperatorModule, maps: Array, like: Array) -> Array:
    """Resizes maps of one pixel, (B, C, 1, 1) to (B, C, H, W); arguments as in `resize_like`."""
    return F.broadcast_like(maps, like, lhs_axes=(2, 3), rhs_axes=(2, 3))


def _weights(F: OperatorModule, maps: Array, like: Array, axis: int) -> Array:
    """Returns the weight of each old position along an axis in each new position, (new, old)."""
    new, old = F.contrib.arange_like(like, axis=axis), F.contrib.arange_like(maps, axis=axis)
    last_new, last_old = F.max(new), F.max(old)
    step = F.broadcast_div(last_old, F.broadcast_maximum(last_new, F.ones_like(last_new)))
    position = F.expand_dims(F.broadcast_mul(new, step), axis=1)
    distance = F.abs(F.broadcast_sub(position, F.expand_dims(old, axis=0)))
    # BlockGrad: otherwise the backward pass would compute a large product for a gradient that nobody uses.
    return F.BlockGrad(F.relu(1 - distance))
