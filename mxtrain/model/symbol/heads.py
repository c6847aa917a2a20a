"""Finds the predictions of a graph that was made for training, and cuts it there.

In MXNet's Module API the loss is a part of the graph: `SoftmaxOutput` returns probabilities and ignores the gradient
that it gets, `LinearRegressionOutput` returns its input, `MakeLoss` a loss. mxtrain computes losses outside of the
network, so the graph is cut in front of them, and labels are no inputs any more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Dict, List, Optional, Sequence, Tuple

from mxtrain.errors import did_you_mean
from mxtrain.model.symbol.graph_file import VARIABLE, Output, attributes_of, heads_of, inputs_of, nodes_before

if TYPE_CHECKING:
    from mxtrain.types.annotations import GraphNode, SymbolGraph

LOSSES = frozenset(
    (
        "SoftmaxOutput",
        "Softmax",
        "LinearRegressionOutput",
        "MAERegressionOutput",
        "LogisticRegressionOutput",
        "SVMOutput",
    )
)
"""Operators that compute their own gradient from a label; the first input is the prediction."""
PROBABILITIES = frozenset(("softmax", "log_softmax", "SoftmaxActivation", "sigmoid"))
"""Operators that turn scores into probabilities. mxtrain's losses take scores."""
WRAPPERS = frozenset(("BlockGrad", "stop_gradient", "identity", "_copy"))
"""Operators that return their input."""
LOSS_VALUES = frozenset(("MakeLoss", "make_loss"))
"""Operators whose output is a loss instead of a prediction."""
WEIGHTED = frozenset(("FullyConnected", "Convolution", "Deconvolution", "RNN", "Embedding"))
"""Operators that are layers with weights."""
_KEEPS_CHANNELS = frozenset(
    ("Flatten", "flatten", "Pooling", "Activation", "Dropout", "Cast", "cast", "mean", "Reshape", "reshape", "squeeze")
    + tuple(WRAPPERS)
)
"""Operators behind a layer that leave its channels as they are, where they come last."""
MAX_LISTED = 6


class NoSuchOutput(ValueError):
    """The output that was asked for does not exist, or several are of equal rank. The message says what to type."""


@dataclass(frozen=True)
class Prediction:
    """The output at which a graph is cut.

    Attributes:
        output: the node and the index of its output.
        name: name of the node.
        operator: operator of the node.
        behind: what was cut off, such as "SoftmaxOutput 'softmax'"; empty if nothing was.
    """

    output: Output
    name: str
    operator: str
    behind: str = ""

    def __str__(self) -> str:
        cut = f", in front of {self.behind}" if self.behind else ""
        return f"'{self.name}' ({self.operator}){cut}"


def find_prediction(graph: SymbolGraph, wanted: str = "") -> Prediction:
    """Returns the output of a graph that predicts.

    Without a wish, outputs of losses come first, then probabilities, then others; a loss value (`MakeLoss`) comes last.
    Of the best kind there must be one.

    Args:
        graph: see `parse_graph`.
        wanted: name of a node, or of one of its outputs (`fc1`, `fc1_output`, `split0_output1`); empty = choose.

    Raises:
        NoSuchOutput: no node has this name, or several outputs are of equal rank; the message lists names.
    """
    if wanted:
        position, index = _named(graph, wanted)
        node = graph["nodes"][position]
        return Prediction((position, index), node["name"], node["op"])
    ranked: Dict[int, Dict[Output, Prediction]] = {}
    for head in heads_of(graph):
        rank, prediction = _peeled(graph, head)
        ranked.setdefault(rank, {}).setdefault(prediction.output, prediction)
    best = list(ranked[min(ranked)].values())
    if len(best) > 1:
        raise NoSuchOutput(
            f"the graph has {len(best)} outputs of equal rank: {', '.join(map(str, best))}. Name the one to train: "
            f"model.output={best[0].name}"
        )
    return best[0]


def _peeled(graph: SymbolGraph, head: Output) -> Tuple[int, Prediction]:
    """Returns the rank of an output, and what it predicts without loss and probabilities."""
    nodes = graph["nodes"]
    rank, cut, output = 2, "", head
    while True:
        node = nodes[output[0]]
        operator = node["op"]
        if operator in LOSSES:
            rank = 0
        elif operator in PROBABILITIES or attributes_of(node).get("act_type") == "sigmoid":
            rank = min(rank, 1)
        elif operator in LOSS_VALUES:
            rank = 3
        elif operator not in WRAPPERS:
            break
        cut = cut or f"{operator} '{node['name']}'"
        output = inputs_of(node)[0]
    node = nodes[output[0]]
    if rank == 3 or needs_label(graph, output):
        # The label is in the prediction, as in the margin of ArcFace, or there is only the value of a loss.
        layer = _last_layer(graph, output)
        if layer is None:
            raise NoSuchOutput(
                f"the output '{node['name']}' ({node['op']}) needs a label, and no layer before it is the last one "
                f"alone. Name the one to train by model.output=; layers: {', '.join(layer_names(graph))}"
            )
        cut = cut or f"{node['op']} '{node['name']}'"
        output, node = (layer, 0), nodes[layer]
    return rank, Prediction(output, node["name"], node["op"], cut)


def is_label(node: GraphNode) -> bool:
    """Returns True for the variable of a label, whose name ends with `label` by MXNet's convention."""
    return node["op"] == VARIABLE and node["name"].endswith("label")


def needs_label(graph: SymbolGraph, output: Output) -> bool:
    """Returns True if a label is among what computes an output."""
    return any(is_label(graph["nodes"][position]) for position in nodes_before(graph, [output[0]]))


def _last_layer(graph: SymbolGraph, output: Output) -> Optional[int]:
    """Returns the layer with weights, without a label, behind which there is no other; None if there are several."""
    nodes = graph["nodes"]
    layers = [
        position
        for position in nodes_before(graph, [output[0]])
        if nodes[position]["op"] in WEIGHTED and not needs_label(graph, (position, 0))
    ]
    before = {other for position in layers for other in nodes_before(graph, [position]) if other != position}
    last = [position for position in layers if position not in before]
    return last[0] if len(last) == 1 else None


def layer_names(graph: SymbolGraph) -> List[str]:
    """Returns the names of the last layers of a graph, the last one first."""
    names = [node["name"] for node in graph["nodes"] if node["op"] in WEIGHTED]
    return names[: -MAX_LISTED - 1 : -1]


def _named(graph: SymbolGraph, wanted: str) -> Output:
    """Returns the output of a name.

    Raises:
        NoSuchOutput: there is none.
    """
    found = {node["name"]: position for position, node in enumerate(graph["nodes"]) if node["op"] != VARIABLE}
    name, _, index = wanted.rpartition("_output")
    if wanted in found:
        return found[wanted], 0
    if name in found and (index.isdigit() or not index):
        return found[name], int(index or 0)
    # Names that are alike come first, then the last layers.
    near = did_you_mean(wanted, found)
    raise NoSuchOutput(
        f"the graph has no output '{wanted}'.{near} It has {len(found)}; its last layers are "
        f"{', '.join(layer_names(graph))}"
    )


def class_layer(graph: SymbolGraph, output: Output) -> Optional[GraphNode]:
    """Returns the layer whose units are the classes of an output; None if the output is not that of such a layer.

    Pooling, activations and the like may follow, as in SqueezeNet.
    """
    nodes = graph["nodes"]
    node = nodes[output[0]]
    while node["op"] in _KEEPS_CHANNELS and inputs_of(node):
        node = nodes[inputs_of(node)[0][0]]
    return node if node["op"] in ("FullyConnected", "Convolution") else None


def units_of(node: GraphNode) -> int:
    """Returns the number of units or channels of a layer."""
    attributes = attributes_of(node)
    return int(attributes.get("num_hidden") or attributes["num_filter"])


def weight_names(graph: SymbolGraph, node: GraphNode) -> Sequence[str]:
    """Returns the names of the variables that are weight and bias of a layer."""
    sources = [graph["nodes"][source] for source, _ in inputs_of(node)[1:]]
    return [source["name"] for source in sources if source["op"] == VARIABLE]
