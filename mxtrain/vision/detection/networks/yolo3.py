"""Builds GluonCV's YOLOv3 with outputs for all cells in training and prediction. Imports MXNet and GluonCV.

GluonCV's block returns losses if gradients are recorded, raw values in training without gradients, and detections in
prediction. Here `hybrid_forward` is replaced by a version that always returns raw values and boxes. The blocks, the
parameters and their names are GluonCV's.

Legend: B batch, N predicted boxes of an image, the coarsest map first, A anchors of a cell, K classes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List, Mapping, Sequence, Tuple

from mxtrain.engine.backend import gluon
from mxtrain.model.weights_report import ClassRows
from mxtrain.vision.detection.heads.grid import NUM_BOX_VALUES
from mxtrain.vision.detection.networks.gluoncv_detectors import YOLO3, YOLO3_STRIDES
from mxtrain.vision.networks import gluoncv  # noqa: F401  imports gluoncv without its warnings

from gluoncv.model_zoo.mobilenet import get_mobilenet  # isort: skip
from gluoncv.model_zoo.yolo.darknet import darknet53  # isort: skip
from gluoncv.model_zoo.yolo.yolo3 import YOLOV3  # isort: skip

if TYPE_CHECKING:
    from mxtrain.types.annotations import Array, OperatorModule

STAGE_ENDS = {"darknet53": (15, 24, None), "mobilenet": (33, 69, -2)}
"""Kind of backbone -> index of the layer behind each of its three stages; each stage ends with a map."""
MIN_ALLOC = 128
"""Number of cells along each side of a map whose anchors GluonCV stores in its files."""


def build(
    name: str, num_classes: int, anchors: Sequence[Sequence[float]], side: int, options: Mapping[str, Any]
) -> gluon.HybridBlock:
    """Builds a network that maps images (B, 3, H, W) to raw values (B, N, 5 + K) and edges (B, N, 4), see `GridCoding`.

    Args:
        name: a key of `YOLO3`.
        num_classes: K.
        anchors: width and height in pixels of the anchors of each map, one after the other, the finest map first.
        side: longer side of images, in pixels.
        options: further arguments of GluonCV's function of the backbone.
    """
    backbone = name.partition("_")[2]
    kind = "darknet53" if backbone == "darknet53" else "mobilenet"
    if kind == "darknet53":
        layers = darknet53(**options).features
    else:
        layers = get_mobilenet(float(backbone[len("mobilenet") :]), **options).features
    first, second, end = STAGE_ENDS[kind]
    stages = [layers[:first], layers[first:second], layers[second:end]]
    grid_side = max(MIN_ALLOC, -(-side // YOLO3_STRIDES[0]))
    network = YOLOV3(
        stages,
        YOLO3[name],
        [list(sizes) for sizes in anchors],
        YOLO3_STRIDES,
        [str(number) for number in range(num_classes)],
        alloc_size=(grid_side, grid_side),
        **{key: value for key, value in options.items() if key == "norm_kwargs"},
    )
    _replace_forward(network, _forward)
    for output in network.yolo_outputs:
        _replace_forward(output, _forward_of_output)
    heads = enumerate(network.yolo_outputs)
    network.class_heads = {
        f"yolo_outputs.{number}.prediction": ClassRows(output._num_anchors, NUM_BOX_VALUES) for number, output in heads
    }
    network.scored_maps = tuple(f"yolo_blocks.{number}.tip" for number in range(len(stages)))
    # When a file is loaded, these stay what the description says.
    network.computed = tuple(
        f"yolo_outputs.{number}.{kind}" for number in range(len(stages)) for kind in ("anchors", "offsets")
    )
    return network


def _replace_forward(block: gluon.HybridBlock, forward: Any) -> None:
    # Set on the instance, so that GluonCV's class is unchanged.
    object.__setattr__(
        block, "hybrid_forward", lambda F, *inputs, **parameters: forward(block, F, *inputs, **parameters)
    )


def _forward(network: gluon.HybridBlock, F: OperatorModule, x: Array) -> Tuple[Array, Array]:
    """Computes the outputs of the network: those of all maps, concatenated."""
    routes = []
    for stage in network.stages:
        x = stage(x)
        routes.append(x)
    outputs: List[Tuple[Array, Array]] = []
    for number, (block, output) in enumerate(zip(network.yolo_blocks, network.yolo_outputs)):
        x, tip = block(x)
        outputs.append(output(tip))
        if number + 1 < len(routes):
            finer = routes[-2 - number]
            x = F.UpSampling(network.transitions[number](x), scale=2, sample_type="nearest")
            # If a side is odd, the upsampled map is one cell larger.
            x = F.concat(F.slice_like(x, finer, axes=(2, 3)), finer, dim=1)
    return tuple(F.concat(*maps, dim=1) for maps in zip(*outputs))


def _forward_of_output(
    output: gluon.HybridBlock, F: OperatorModule, x: Array, anchors: Array, offsets: Array
) -> Tuple[Array, Array]:
    """Computes the outputs of one map: raw values (B, h w A, 5 + K), and edges of boxes in pixels (B, h w A, 4)."""
    raw = F.reshape(output.prediction(x), shape=(0, output._num_anchors * output._num_pred, -1))
    raw = F.reshape(F.transpose(raw, axes=(0, 2, 1)), shape=(0, -1, output._num_anchors, output._num_pred))
    cell = F.reshape(F.slice_like(offsets, x, axes=(2, 3)), shape=(1, -1, 1, 2))
    centre = F.broadcast_add(F.sigmoid(F.slice_axis(raw, axis=-1, begin=0, end=2)), cell) * output._stride
    half = F.broadcast_mul(F.exp(F.slice_axis(raw, axis=-1, begin=2, end=4)), anchors) / 2.0
    edges = F.concat(centre - half, centre + half, dim=-1)
    return F.reshape(raw, shape=(0, -3, 0)), F.reshape(edges, shape=(0, -1, 4))
