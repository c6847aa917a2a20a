"""SSD as a Gluon block, around any of GluonCV's networks for classification. Imports MXNet and GluonCV.

GluonCV's own block returns different outputs in training and in prediction, and MXNet keeps the graph of the first
call. This block always returns logits and offsets. Its parameters have GluonCV's names, so files can be exchanged.

An image without objects keeps `min_hard_negatives` boxes of background; with GluonCV's 0 its loss would be 0.

Legend: B batch, N anchors of an image, A anchors of a cell, K classes.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Sequence

from mxtrain.engine.backend import gluon, mx
from mxtrain.model.graph.kernels import fill_block
from mxtrain.model.weights_report import ClassRows
from mxtrain.vision.networks import gluoncv
from mxtrain.vision.networks.feature_maps import find_features, take_initializers

from gluoncv.model_zoo.ssd.resnet_v1b_ssd import resnet34_v1b_ssd  # isort: skip
from gluoncv.model_zoo.ssd.vgg_atrous import vgg16_atrous_300, vgg16_atrous_512  # isort: skip
from gluoncv.nn.feature import FeatureExpander  # isort: skip
from gluoncv.nn.predictor import ConvPredictor  # isort: skip

if TYPE_CHECKING:
    from mxtrain.types.annotations import Array, OperatorModule
    from mxtrain.vision.detection.heads.anchors import AnchorMap

MADE_FOR_DETECTION = {
    ("vgg16_atrous", 300): vgg16_atrous_300,
    ("vgg16_atrous", 512): vgg16_atrous_512,
    ("resnet34_v1b", 300): resnet34_v1b_ssd,
}
"""(backbone, side of its images in pixels) -> GluonCV's function that builds a network with several maps."""
MIN_ALLOC = 16
"""Smallest number of cells along each side of a map whose anchors GluonCV stores in its files."""
LAST_TWO = ("auto", "auto")
"""Placeholder for the last map of each of the two smallest sizes, whose names differ between networks."""
NUM_CLASSES_OF_BACKBONE = 2
"""Classes of the network from which the backbone is taken; its output layers are cut off."""


class Anchors(gluon.HybridBlock):
    """Anchors of a map as an array, which GluonCV stores in its files. The network does not use it: the constant has a
    structural name, as in files, but is not part of the graph.

    Args:
        number: index of the map.
        boxes: anchors of the map.
        alloc: number of cells along each side of the array.
    """

    def __init__(self, number: int, boxes: AnchorMap, alloc: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        # GluonCV's files want the anchors under a structural name; nothing else reads this array.
        self.anchors = gluon.Constant(f"anchor_{number}", boxes.grid(alloc, alloc).reshape(1, 1, alloc, alloc, -1))


class MultiBoxNetwork(gluon.HybridBlock):
    """Maps images (B, 3, H, W) to class logits (B, N, 1 + K), background first, and box offsets (B, N, 4).

    Args:
        build_features: builds the block that computes several maps of images.
        num_classes: K.
        maps: anchors of each map.
        kernel: kernel size of the convolutions of the heads.
    """

    def __init__(
        self,
        build_features: Callable[[], gluon.HybridBlock],
        num_classes: int,
        maps: Sequence[AnchorMap],
        kernel: int = 3,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._num_classes = num_classes
        largest = max(max(anchors.height, anchors.width) for anchors in maps)
        # GluonCV's files hold the anchors of 128 x 128 places.
        alloc = 128 if largest <= 128 else 2 ** (largest - 1).bit_length()
        convolution = {"kernel": (kernel, kernel), "pad": (kernel // 2, kernel // 2)}
        with self.name_scope():
            self.features = build_features()
            self.class_predictors = gluon.nn.HybridSequential()
            self.box_predictors = gluon.nn.HybridSequential()
            self.anchor_generators = gluon.nn.HybridSequential()
            for number, anchors in enumerate(maps):
                self.anchor_generators.add(Anchors(number, anchors, alloc))
                alloc = max(alloc // 2, MIN_ALLOC)
                self.class_predictors.add(ConvPredictor(len(anchors.shapes) * (1 + num_classes), **convolution))
                self.box_predictors.add(ConvPredictor(len(anchors.shapes) * 4, **convolution))
        for predictor in (*self.class_predictors, *self.box_predictors):
            fill_block(predictor.predictor)
        self.class_heads = {
            f"class_predictors.{number}.predictor": ClassRows(len(anchors.shapes), 1)
            for number, anchors in enumerate(maps)
        }
        self.scored_maps = ("features",)
        self.computed = tuple(f"anchor_generators.{number}.anchors" for number in range(len(maps)))

    def hybrid_forward(self, F: OperatorModule, x: Array) -> Any:
        maps = self.features(x)
        logit = _flatten_maps(F, [layer(each) for layer, each in zip(self.class_predictors, maps)])
        offset = _flatten_maps(F, [layer(each) for layer, each in zip(self.box_predictors, maps)])
        return F.reshape(logit, shape=(0, -1, 1 + self._num_classes)), F.reshape(offset, shape=(0, -1, 4))


def _flatten_maps(F: OperatorModule, maps: List[Array]) -> Array:
    """Flattens and concatenates maps (B, C, h, w) to (B, sum of C h w); the channels of a cell stay together."""
    return F.concat(*(F.flatten(F.transpose(each, axes=(0, 2, 3, 1))) for each in maps), dim=1)


def build_features(
    backbone: str,
    base_size: int,
    features: Sequence[str],
    filters: Sequence[int],
    lite: bool,
    options: Mapping[str, Any],
) -> gluon.HybridBlock:
    """Builds a block that computes several feature maps of images. Its children are named by the order of their calls.

    Args:
        backbone: GluonCV's name of the backbone.
        base_size: side of images in pixels, for backbones that are made for detection.
        features: outputs of the backbone, or `LAST_TWO`; empty if the backbone is made for detection.
        filters: channels of each additional convolution, which halves the last map further.
        lite: if True, the convolutions are narrower.
        options: further arguments of GluonCV's function of the backbone.
    """
    made_for_detection = MADE_FOR_DETECTION.get((backbone, base_size))
    if made_for_detection is not None and not features:
        return made_for_detection(**options)
    network = gluoncv.build(backbone, NUM_CLASSES_OF_BACKBONE, dict(options))
    symbol = network(mx.sym.var("data"))
    outputs = find_features(
        symbol, network.prefix, backbone, len(LAST_TWO), None if tuple(features) == LAST_TWO else features
    )
    narrower: Dict[str, Any] = {"min_depth": 64, "reduce_ratio": 0.5} if lite else {}
    if filters and min(filters) < 128 and not lite:
        narrower["min_depth"] = min(filters)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns that the input has no type
        expander = FeatureExpander(symbol, outputs, list(filters), **narrower)
    take_initializers(expander, network)
    return expander
