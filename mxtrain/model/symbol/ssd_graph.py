"""Finds the parts of an SSD detector in a graph: class scores, box offsets, anchors, and how they become detections.

Graphs of MXNet's example/ssd, as SageMaker's object detection trains them, join the maps by `Concat`, and end with
`MultiBoxTarget` (training) or `MultiBoxDetection`; those that GluonCV exports end with `box_decode` and `box_nms`.

Source: apache/mxnet 1.5, example/ssd/symbol/common.py; dmlc/gluon-cv 0.10, model_zoo/ssd/ssd.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Dict, FrozenSet, List, Mapping, Optional, Sequence, Tuple

from mxtrain.model.symbol.graph_file import VARIABLE, Output, attributes_of, inputs_of, nodes_before
from mxtrain.model.symbol.heads import WRAPPERS, NoSuchOutput, units_of

if TYPE_CHECKING:
    from mxtrain.types.annotations import GraphNode, SymbolGraph

_DETECTION, _TARGET, _DECODE, _NMS = "MultiBoxDetection", "MultiBoxTarget", "box_decode", "box_nms"
_CONCAT = frozenset(("Concat", "concat"))
_LAYOUT = frozenset(("Reshape", "reshape", "transpose", "Flatten", "flatten")) | WRAPPERS
_SOFTMAX = frozenset(("softmax", "SoftmaxOutput", "SoftmaxActivation"))
_DIFFERENCES = frozenset(("elemwise_sub", "_sub", "_minus", "_Minus", "broadcast_sub"))
CELLS_LAST = "(0, 2, 3, 1)"
"""Axes of the transposition that puts the channels of a cell side by side."""


@dataclass(frozen=True)
class SSDGraph:
    """An SSD detector in a graph.

    Attributes:
        scores: joined class scores of all maps; those of an anchor are side by side, background first.
        offsets: joined box offsets of all maps, four for each anchor.
        anchors: the anchors.
        layers: the layer of class scores of each map, as a position, and its number of anchors per cell.
        num_classes: number of classes without the background.
        in_corners: True if anchors are edges relative to the image; False if they are centres and sizes in pixels.
        variances: factors of the offsets x, y, width and height.
        iou: threshold of non-maximum suppression.
        candidates: number of boxes that are compared in it; None = all.
        min_score: smallest score of a detection.
        clips: True if boxes are clipped to the image before they are compared.
        across_classes: True if boxes suppress those of other classes, too.
        one_class: True if a box is a detection of its highest-scoring class only.
    """

    scores: Output
    offsets: Output
    anchors: Output
    layers: Sequence[Tuple[int, int]]
    num_classes: int
    in_corners: bool
    variances: Tuple[float, ...]
    iou: float = 0.5
    candidates: Optional[int] = None
    min_score: float = 0.01
    clips: bool = True
    across_classes: bool = False
    one_class: bool = True


def is_ssd(graph: SymbolGraph) -> bool:
    """Returns True for the graph of an SSD detector."""
    kinds = {node["op"].rpartition("contrib_")[2] for node in graph["nodes"]}
    # Networks with two stages decode boxes, too, and pool regions.
    return bool({_DETECTION, _TARGET} & kinds) or ({_DECODE, _NMS} <= kinds and not {"ROIAlign", "ROIPooling"} & kinds)


def find_ssd(graph: SymbolGraph) -> SSDGraph:
    """Returns the parts of an SSD detector.

    Raises:
        NoSuchOutput: the graph is another one, or joins its maps in another way; the message says which layer.
    """
    found = {kind: _only(graph, kind) for kind in (_DETECTION, _TARGET, _DECODE, _NMS) if _positions(graph, kind)}
    if _DETECTION in found:
        scores, offsets, anchors = inputs_of(graph["nodes"][found[_DETECTION]])
        rest = _of_detection(attributes_of(graph["nodes"][found[_DETECTION]]))
    elif _TARGET in found:
        anchors, _, scores = inputs_of(graph["nodes"][found[_TARGET]])
        offsets = _compared_with(graph, (found[_TARGET], 0))
        rest = _of_detection(attributes_of(graph["nodes"][found[_TARGET]]))
    elif {_DECODE, _NMS} <= set(found):
        offsets, anchors = inputs_of(graph["nodes"][found[_DECODE]])
        scores = (_only(graph, "softmax"), 0)
        rest = _of_gluoncv(attributes_of(graph["nodes"][found[_DECODE]]), attributes_of(graph["nodes"][found[_NMS]]))
    else:
        raise NoSuchOutput(
            "the graph is not that of an SSD detector: it has no MultiBoxDetection, no MultiBoxTarget, and no "
            "box_decode with box_nms. Type model=symbol for networks with one output"
        )
    score_join, offset_join = _join(graph, scores, "class scores"), _join(graph, offsets, "box offsets")
    layers, num_classes = _layers(graph, score_join, offset_join)
    return SSDGraph((score_join, 0), (offset_join, 0), anchors, layers, num_classes, **rest)


def _positions(graph: SymbolGraph, kind: str) -> List[int]:
    return [n for n, node in enumerate(graph["nodes"]) if node["op"].rpartition("contrib_")[2] == kind]


def _only(graph: SymbolGraph, kind: str) -> int:
    """Returns the only node of an operator.

    Raises:
        NoSuchOutput: there are several, or none.
    """
    found = _positions(graph, kind)
    if len(found) != 1:
        raise NoSuchOutput(f"the graph has {len(found)} operators {kind}, where an SSD detector has one")
    return found[0]


def _of_detection(attributes: Mapping[str, str]) -> Dict[str, Any]:
    """Returns fields of `SSDGraph` from the arguments of MultiBoxDetection or MultiBoxTarget; defaults are MXNet's."""
    topk = int(attributes.get("nms_topk", -1))
    return {
        "in_corners": True,
        "variances": _numbers(attributes.get("variances", "(0.1, 0.1, 0.2, 0.2)")),
        "iou": float(attributes.get("nms_threshold", 0.5)),
        "candidates": topk if topk > 0 else None,
        "min_score": float(attributes.get("threshold", 0.01)),
        "clips": _is_true(attributes.get("clip", "True")),
        "across_classes": _is_true(attributes.get("force_suppress", "False")),
    }


def _of_gluoncv(decode: Mapping[str, str], nms: Mapping[str, str]) -> Dict[str, Any]:
    """Returns fields of `SSDGraph` from the arguments of box_decode and box_nms.

    Raises:
        NoSuchOutput: sizes are limited, which GluonCV's SSDs do not do.
    """
    if float(decode.get("clip", -1)) > 0:
        raise NoSuchOutput("its box_decode limits the sizes of boxes (clip), which is not supported")
    topk = int(nms.get("topk", -1))
    return {
        "in_corners": decode.get("format", "center") == "corner",
        "variances": tuple(float(decode.get(f"std{number}", 1)) for number in range(4)),
        "iou": float(nms.get("overlap_thresh", 0.5)),
        "candidates": topk if topk > 0 else None,
        "min_score": float(nms.get("valid_thresh", 0)),
        "clips": False,
        "across_classes": _is_true(nms.get("force_suppress", "False")),
        "one_class": False,
    }


def _numbers(text: str) -> Tuple[float, ...]:
    return tuple(float(part) for part in text.strip("()[] ").split(",") if part.strip())


def _is_true(text: str) -> bool:
    return text in ("True", "1", "true")


def _compared_with(graph: SymbolGraph, target: Output) -> Output:
    """Returns the output from which a target is subtracted.

    Raises:
        NoSuchOutput: there is none.
    """
    for node in graph["nodes"]:
        if node["op"] in _DIFFERENCES and inputs_of(node)[1] == target:
            return inputs_of(node)[0]
    raise NoSuchOutput("nothing is compared with the box offsets of its MultiBoxTarget")


def _join(graph: SymbolGraph, output: Output, meaning: str) -> int:
    """Returns the node that joins the maps of an output.

    Raises:
        NoSuchOutput: they are not joined by a concatenation.
    """
    position = _before(graph, output[0], _LAYOUT | _SOFTMAX)
    if graph["nodes"][position]["op"] not in _CONCAT:
        node = graph["nodes"][position]
        raise NoSuchOutput(
            f"its {meaning} come from '{node['name']}' ({node['op']}), where an SSD detector joins maps by Concat"
        )
    return position


def _before(graph: SymbolGraph, position: int, skipped: FrozenSet[str]) -> int:
    """Returns the node in front of some operators."""
    while graph["nodes"][position]["op"] in skipped:
        position = inputs_of(graph["nodes"][position])[0][0]
    return position


def _layers(graph: SymbolGraph, scores: int, offsets: int) -> Tuple[List[Tuple[int, int]], int]:
    """Returns the layers of class scores with their anchors per cell, and the number of classes.

    Raises:
        NoSuchOutput: a layer is no convolution, or the numbers of channels do not fit together.
    """
    nodes = graph["nodes"]
    score_layers, offset_layers = ([_layer(graph, source) for source in inputs_of(nodes[n])] for n in (scores, offsets))
    layers, classes = [], set()
    for score_layer, offset_layer in zip(score_layers, offset_layers):
        anchors, rest = divmod(units_of(nodes[offset_layer]), 4)
        per_anchor, more = divmod(units_of(nodes[score_layer]), max(anchors, 1))
        if rest or more or per_anchor < 2:
            raise NoSuchOutput(
                f"'{nodes[score_layer]['name']}' has {units_of(nodes[score_layer])} channels and "
                f"'{nodes[offset_layer]['name']}' {units_of(nodes[offset_layer])}, which are not those of the same "
                "anchors"
            )
        layers.append((score_layer, anchors))
        classes.add(per_anchor - 1)
    if len(classes) != 1 or len(score_layers) != len(offset_layers):
        raise NoSuchOutput(
            f"{len(score_layers)} layers score {' or '.join(map(str, sorted(classes)))} classes, and "
            f"{len(offset_layers)} layers give box offsets: they are not those of one SSD detector"
        )
    return layers, classes.pop()


def _layer(graph: SymbolGraph, source: Output) -> int:
    """Returns the convolution of one map.

    Raises:
        NoSuchOutput: it is none, or its channels are not put side by side.
    """
    position, transposed = source[0], False
    while graph["nodes"][position]["op"] in _LAYOUT:
        node = graph["nodes"][position]
        if node["op"] == "transpose":
            transposed = _numbers(attributes_of(node).get("axes", "")) == _numbers(CELLS_LAST)
        position = inputs_of(node)[0][0]
    node = graph["nodes"][position]
    if node["op"] != "Convolution" or not transposed:
        raise NoSuchOutput(
            f"the map of '{node['name']}' ({node['op']}) is not that of a convolution with its channels put last by "
            f"transpose(axes={CELLS_LAST})"
        )
    return position


def map_readers(graph: SymbolGraph, ssd: SSDGraph) -> List[Tuple[int, int]]:
    """Returns where anchors depend on the sizes of maps: a node, and the index of its input that is a map."""
    at = {"MultiBoxPrior": 0, "slice_like": 1}
    kinds = {n: graph["nodes"][n]["op"].rpartition("contrib_")[2] for n in nodes_before(graph, [ssd.anchors[0]])}
    return [(position, at[kind]) for position, kind in kinds.items() if kind in at]


def stored_anchors(graph: SymbolGraph, ssd: SSDGraph) -> List[str]:
    """Returns the names of the anchors that the weights hold, as in GluonCV's export."""
    sources = [inputs_of(graph["nodes"][position])[0][0] for position, at in map_readers(graph, ssd) if at]
    return [graph["nodes"][source]["name"] for source in sources if graph["nodes"][source]["op"] == VARIABLE]


def set_classes(graph: SymbolGraph, ssd: SSDGraph, num_classes: int) -> None:
    """Gives the layers of class scores another number of classes, in place."""
    for position, anchors in ssd.layers:
        node: GraphNode = graph["nodes"][position]
        node["attrs"] = {**attributes_of(node), "num_filter": str(anchors * (1 + num_classes))}
