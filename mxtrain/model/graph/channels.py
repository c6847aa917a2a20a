"""Channel dependencies of a network, for structural pruning: sets of channels that can only be removed together.

Each channel of each layer gets a number. An elementwise operator (e.g. the addition of a residual connection) puts the
channels of its inputs into the same set. All channels that an unknown operator reads are kept, so an unknown network
loses fewer channels, but never wrong ones.

Legend: N elements along one axis of a parameter.

Source: Fang et al., "DepGraph: Towards Any Structural Pruning", https://arxiv.org/abs/2301.12900.
"""

from __future__ import annotations

import ast
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from mxtrain.model.graph.trace import INPUT, Node, Trace, trace
from mxtrain.model.parameters import distinct_parameters
from mxtrain.model.widths import CONVOLUTION, DENSE, NORM, is_standard, layer_of
from mxtrain.types import Shapes

if TYPE_CHECKING:
    from mxnet import gluon

CHANNELWISE_OPS = frozenset(
    (
        "Activation",
        "Pooling",
        "Dropout",
        "relu",
        "sigmoid",
        "tanh",
        "softsign",
        "hard_sigmoid",
        "clip",
        "_copy",
        "Cast",
        "amp_cast",
        "BlockGrad",
        "negative",
        "abs",
        "square",
        "sqrt",
        "rsqrt",
        "cbrt",
        "exp",
        "log",
        "log1p",
        "expm1",
        "erf",
        "sin",
        "cos",
        "UpSampling",
        "Pad",
        "_contrib_BilinearResize2D",
        "_contrib_AdaptiveAvgPooling2D",
        "_mxtrain_gelu",
    )
)
"""Operators with one input that compute each output channel from the same input channel only."""
ELEMENTWISE_SUFFIXES = (
    "_add",
    "_sub",
    "_mul",
    "_div",
    "_plus",
    "_minus",
    "_maximum",
    "_minimum",
    "_power",
    "_Plus",
    "_Minus",
    "_Mul",
    "_Div",
    "_Maximum",
    "_Minimum",
)
"""Suffixes of the names of elementwise operators with two inputs."""
REDUCTIONS = ("mean", "sum", "max", "min")
RECURRENT, EMBEDDING = "RNN", "Embedding"
OUTPUT = "outputs of the network"
"""Reason why the channels of the last layers are kept."""
MAX_REASONS = 3
"""Maximum number of reasons in a message."""
Flow = Tuple[int, np.ndarray]
"""Channel axis of an array, and the number of each channel."""
Positions = Dict[str, Dict[int, np.ndarray]]
"""Parameter -> axis -> channel number of each element along the axis."""


@dataclass(frozen=True)
class ChannelSet:
    """Channels that can only be removed together.

    Attributes:
        group: number of the group; the sets of one group are channels of the same layers.
        made: weight that produces the channels -> their indices along its first axis (output channels).
        read: (weight, axis, indices along the axis) of each weight that reads the channels.
        scales: learned gamma of a batch norm -> indices of the channels.
    """

    group: int
    made: Mapping[str, np.ndarray]
    read: Sequence[Tuple[str, int, np.ndarray]]
    scales: Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Channels:
    """All removable channels of a network.

    Attributes:
        sets: channel sets in the order of the layers.
        widths: structural name of a layer with removable channels -> its number of output channels.
        weights: structural name of the weight of each layer of `widths`.
        positions: parameter -> axis -> number of the channel set of each element along the axis; -1 if it must stay.
        groups: structural names of the layers of each group.
        obstacles: structural name of a layer that keeps all channels -> the reason.
        others: kinds of layers with channels that pruning does not know.
    """

    sets: List[ChannelSet]
    widths: Mapping[str, int]
    weights: Mapping[str, str]
    positions: Positions
    groups: List[List[str]]
    obstacles: Mapping[str, str]
    others: Sequence[str]

    def explain_obstacles(self) -> str:
        """Returns the reasons why layers keep all channels as a clause, for a message."""
        layers_by_reason: Dict[str, List[str]] = {}
        for layer, reason in self.obstacles.items():
            layers_by_reason.setdefault(reason, []).append(layer)
        clauses = [f"the channels of {_listed(layers)} are {reason}" for reason, layers in layers_by_reason.items()]
        if not clauses:
            clauses = ["the network has no convolution and no dense layer"]
        if len(clauses) > MAX_REASONS:
            clauses[MAX_REASONS:] = [f"{len(clauses) - MAX_REASONS} more reasons of this kind"]
        if self.others:
            clauses.append(f"the units of {' and '.join(self.others)} cannot be removed")
        return "; ".join(clauses)

    def removable(self, arrays: Mapping[str, np.ndarray]) -> List[int]:
        """Returns the numbers of the sets whose reading weights in `arrays` are all 0.

        At least one set of each group is kept, because a layer cannot have 0 channels.
        """
        by_group: Dict[int, List[int]] = {}
        for number, channel_set in enumerate(self.sets):
            if all(not np.take(arrays[name], index, axis=axis).any() for name, axis, index in channel_set.read):
                by_group.setdefault(channel_set.group, []).append(number)
        sizes = np.bincount([channel_set.group for channel_set in self.sets], minlength=len(self.groups))
        return sorted(
            number
            for group, numbers in by_group.items()
            # MXNet takes arrays of size 0 for unknown shapes, so a layer keeps one channel.
            for number in (numbers[1:] if len(numbers) == sizes[group] else numbers)
        )

    def without(
        self, arrays: Mapping[str, np.ndarray], removed: Sequence[int]
    ) -> Tuple[Dict[str, np.ndarray], Dict[str, int]]:
        """Removes the channels of some sets.

        Args:
            arrays: structural name -> array of each parameter.
            removed: numbers of the sets to remove.

        Returns:
            The smaller arrays, and the new width of each layer that lost channels.
        """
        drop = np.zeros(len(self.sets) + 1, bool)  # -1 in `positions` indexes the last element, which stays False
        drop[list(removed)] = True
        widths = {
            layer: width - int(drop[self.positions[self.weights[layer]][0]].sum())
            for layer, width in self.widths.items()
        }
        smaller = dict(arrays)
        for name, axes in self.positions.items():
            for axis, set_N in axes.items():
                smaller[name] = np.compress(~drop[set_N], smaller[name], axis=axis)
        return smaller, {layer: width for layer, width in widths.items() if width != self.widths[layer]}


def _listed(layers: Sequence[str], max_names: int = 2) -> str:
    """Returns the first names in quotes, and the number of the others."""
    shown = [f"'{layer}'" for layer in layers[:max_names]]
    if len(layers) > max_names:
        shown.append(f"{len(layers) - max_names} other layers" if len(layers) > max_names + 1 else "another layer")
    return " and ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else shown[0]


def find_channels(network: gluon.Block, input_shape: Shapes) -> Channels:
    """Finds the removable channels of a network.

    Args:
        network: network with known parameter shapes, on any device.
        input_shape: shape of one sample without the batch axis, or of each of several inputs.

    Raises:
        NotTraceable: see `trace`.
    """
    return _Analysis(network, trace(network, input_shape, batch_size=2, training=True)).result()


class _Analysis:
    """One pass over the graph in topological order. Channel numbers are joined with a union-find structure."""

    def __init__(self, network: gluon.Block, traced: Trace):
        self._traced = traced
        self._names = {parameter.name: name for name, parameter in distinct_parameters(network).items()}
        self._parents: List[int] = []
        self._obstacles: Dict[int, str] = {}
        """Channel that cannot be removed -> the reason."""
        self._flows: Dict[int, Flow] = {}
        """Node -> channel axis and channel numbers of its output."""
        self.positions: Positions = {}
        self._produced_by: Dict[str, np.ndarray] = {}
        """Weight -> channel numbers along its first axis (output channels)."""
        self._readers: List[Tuple[str, int]] = []
        self._scales: List[str] = []
        self._widths: Dict[str, int] = {}
        """Weight -> number of output channels of its layer."""
        for index, node in enumerate(traced.nodes):
            self._visit(index, node)
        for index in traced.heads:
            self._keep(index, OUTPUT)

    # Numbers of channels.

    def _fresh(self, count: int) -> np.ndarray:
        """Returns new channel numbers, (count,)."""
        start = len(self._parents)
        self._parents.extend(range(start, start + count))
        return np.arange(start, start + count)

    def _root(self, number: int) -> int:
        """Returns the representative of the set of a channel."""
        while self._parents[number] != number:
            self._parents[number] = self._parents[self._parents[number]]  # path halving keeps the trees flat
            number = self._parents[number]
        return number

    def _join(self, first: np.ndarray, second: np.ndarray) -> None:
        """Merges the sets of corresponding channels."""
        for pair in zip(first.tolist(), second.tolist()):
            # The smaller number becomes the root, so that sets are numbered in the order of the layers.
            root, child = sorted(map(self._root, pair))
            self._parents[child] = root

    def _keep(self, index: int, reason: str) -> None:
        """Marks all output channels of a node as not removable."""
        if index in self._flows:
            self._keep_all(self._flows[index][1], reason)

    def _keep_all(self, channels: np.ndarray, reason: str) -> None:
        for number in channels.tolist():
            self._obstacles.setdefault(number, reason)

    def _assign(self, name: str, axis: int, channels: np.ndarray) -> None:
        """Assigns channel numbers to an axis of a parameter; merges them with those that it has already."""
        axes = self.positions.setdefault(name, {})
        if axis in axes:
            self._join(axes[axis], channels)
        else:
            axes[axis] = channels

    # Operators.

    def _visit(self, index: int, node: Node) -> None:
        if node.op == "null":
            if node.name not in self._names and node.name.startswith(INPUT) and node.shape and len(node.shape) > 1:
                axis = 1 if len(node.shape) in (2, 4) else len(node.shape) - 1
                self._flows[index] = axis, self._fresh(node.shape[axis])
                self._keep(index, "those of the data")
            return
        flow = self._follow(node)
        if flow is None:
            block = self._traced.layers.get(node.layer)
            location = f" in the {type(block).__name__} '{node.layer}'" if block is not None and node.layer else ""
            reason = f"read by {node.op}{location}"
            for source in node.inputs:
                self._keep(source, reason)
            self._keep_parameters(node, reason)
        else:
            self._flows[index] = flow

    def _keep_parameters(self, node: Node, reason: str) -> None:
        """Marks all channels of the parameters that an unknown operator reads as not removable."""
        for source in node.inputs:
            for channels in self.positions.get(self._names.get(self._traced.nodes[source].name, ""), {}).values():
                self._keep_all(channels, reason)

    def _follow(self, node: Node) -> Optional[Flow]:
        """Returns the channel axis and the channel numbers of an operator's output; None for an unknown operator."""
        if node.shape is None or any(self._traced.nodes[source].shape is None for source in node.inputs):
            return None
        if node.op == CONVOLUTION:
            return self._convolution(node)
        if node.op == DENSE:
            return self._dense(node)
        if not node.inputs:
            return None
        first = self._flows.get(node.inputs[0])
        if node.op == NORM:
            return self._norm(node, first)
        if len(node.inputs) == 2 and node.op.endswith(ELEMENTWISE_SUFFIXES):
            return self._binary(node)
        if node.op in ("Concat", "concat"):
            return self._concat(node)
        if first is None or len(node.inputs) > 1:
            return None
        if node.op in CHANNELWISE_OPS or node.op.endswith("_scalar") or node.op == "LeakyReLU":
            return first if self._same_length(node, first) else None
        if node.op in ("Flatten", "Reshape", "flatten"):
            return self._reshape(node, first)
        if node.op == "expand_dims":
            return self._new_axis(node, first)
        if node.op in REDUCTIONS:
            return self._reduce(node, first)
        if node.op == "transpose" and "axes" in node.attrs:
            axes = ast.literal_eval(node.attrs["axes"])
            return (list(axes).index(first[0]), first[1]) if axes else None
        return None

    def _same_length(self, node: Node, flow: Flow) -> bool:
        axis, channels = flow
        assert node.shape is not None
        return axis < len(node.shape) and node.shape[axis] == len(channels)

    def _weights_of(self, node: Node) -> List[str]:
        """Returns the structural names of a layer's parameters.

        Empty if another input is not a parameter of this layer, or `set_widths` cannot change its width.
        """
        block = self._traced.layers.get(node.layer)
        input_names = [self._traced.nodes[index].name for index in node.inputs[1:]]
        if block is None or not {*input_names} <= {parameter.name for parameter in block._reg_params.values()}:
            return []
        names = [self._names[name] for name in input_names]
        return names if is_standard(block, node.op, names[0]) else []

    def _input_channels(self, node: Node, axis: int) -> np.ndarray:
        """Returns the channel numbers along an axis of the first input; new, unremovable ones if they are unknown."""
        flow = self._flows.get(node.inputs[0])
        shape = self._traced.nodes[node.inputs[0]].shape
        assert shape is not None
        # Keep all channels of an unknown input: a missing rule costs some channels, a wrong one breaks the network.
        if flow is not None and flow[0] == axis and len(flow[1]) == shape[axis]:
            return flow[1]
        reason = f"mixed before '{node.layer}' reads them"
        self._keep(node.inputs[0], reason)
        kept = self._fresh(shape[axis])
        self._keep_all(kept, reason)
        return kept

    def _assign_outputs(self, node: Node, names: Sequence[str], width: int) -> np.ndarray:
        """Assigns channel numbers to the outputs of a layer and returns them.

        Args:
            node: the operator.
            names: structural names of its weight and, if any, bias.
            width: number of output channels.
        """
        weight = names[0]
        self._assign(weight, 0, self._fresh(width))
        outputs = self.positions[weight][0]
        for bias in names[1:]:
            self._assign(bias, 0, outputs)
        self._produced_by[weight] = outputs
        self._widths[weight] = width
        return outputs

    def _convolution(self, node: Node) -> Optional[Flow]:
        names = self._weights_of(node)
        if not names:
            return None
        inputs = self._input_channels(node, 1)
        width, groups = int(node.attrs["num_filter"]), int(node.attrs.get("num_group", 1))
        outputs = self._assign_outputs(node, names, width)
        if groups == 1:
            self._read(names[0], inputs)
        elif groups == len(inputs):  # depthwise: an output channel depends on one input channel only
            self._join(outputs, np.repeat(inputs, width // groups))
        else:  # the groups of a convolution must keep equal sizes, so they lose channels at the same positions
            for channels in (inputs, outputs):
                for part in np.split(channels, groups)[1:]:
                    self._join(channels[: len(channels) // groups], part)
            self._read(names[0], inputs[: len(inputs) // groups])
        return 1, outputs

    def _read(self, weight: str, channels: np.ndarray) -> None:
        self._assign(weight, 1, channels)
        # A layer that is called twice reads the same weight twice.
        if (weight, 1) not in self._readers:
            self._readers.append((weight, 1))

    def _dense(self, node: Node) -> Optional[Flow]:
        names = self._weights_of(node)
        if not names:
            return None
        shape = self._traced.nodes[node.inputs[0]].shape
        assert shape is not None and node.shape is not None
        if node.attrs.get("flatten", "True") in ("True", "1"):
            inputs = np.repeat(self._input_channels(node, 1), math.prod(shape[2:]))
            axis = 1
        else:
            axis = len(shape) - 1
            inputs = self._input_channels(node, axis)
        self._read(names[0], inputs)
        return axis, self._assign_outputs(node, names, int(node.attrs["num_hidden"]))

    def _norm(self, node: Node, flow: Optional[Flow]) -> Optional[Flow]:
        names = self._weights_of(node)
        if flow is None or not names or int(node.attrs.get("axis", 1)) % len(node.shape or ()) != flow[0]:
            return None
        for name in names:
            self._assign(name, 0, flow[1])
        # A fixed gamma counts as 1, whatever its array holds, so it does not measure the importance of a channel.
        if node.attrs.get("fix_gamma", "True") not in ("True", "1"):
            self._scales.append(names[0])
        return flow

    def _binary(self, node: Node) -> Optional[Flow]:
        flows = [self._flows.get(source) for source in node.inputs]
        shapes = [self._traced.nodes[source].shape or () for source in node.inputs]
        result: Optional[Flow] = None
        for source, flow, shape in zip(node.inputs, flows, shapes):
            if len(shape) != len(node.shape or ()):
                return None
            if flow is None:
                continue
            if len(flow[1]) == 1 != (node.shape or ())[flow[0]]:  # a single channel broadcast over all others stays
                self._keep(source, f"broadcast by {node.op} in '{node.layer}'")
                continue
            if result is None:
                result = flow
            elif flow[0] != result[0] or len(flow[1]) != len(result[1]):
                return None
            else:
                self._join(result[1], flow[1])
        if result is None:
            return None
        # An input that is not broadcast along the channel axis must have known channels, too.
        unknown = [s for f, s in zip(flows, shapes) if s[result[0]] != 1 and (f is None or len(f[1]) != s[result[0]])]
        return None if unknown or not self._same_length(node, result) else result

    def _concat(self, node: Node) -> Optional[Flow]:
        flows = [self._flows.get(source) for source in node.inputs]
        known_flows = [flow for flow in flows if flow is not None]
        if len(known_flows) < len(flows) or len({axis for axis, _ in known_flows}) != 1:
            return None
        axis = known_flows[0][0]
        if int(node.attrs.get("dim", 1)) % len(node.shape or ()) == axis:
            return axis, np.concatenate([channels for _, channels in known_flows])
        # Concatenation along another axis stacks the same channels.
        for _, channels in known_flows[1:]:
            self._join(known_flows[0][1], channels)
        return known_flows[0]

    def _reshape(self, node: Node, flow: Flow) -> Optional[Flow]:
        """Returns the flow after a reshape that keeps (B, C, ...), or that flattens it to (B, C * ...), where each
        channel becomes several. None for other reshapes, and if the arguments contain the number of channels."""
        shape, new_shape = self._traced.nodes[node.inputs[0]].shape, node.shape
        assert shape is not None and new_shape is not None
        target = ast.literal_eval(node.attrs.get("shape", "(0, -1)"))
        if flow[0] != 1 or target[0] != 0 or min(target) < -1 or node.attrs.get("reverse", "False") in ("True", "1"):
            return None
        if len(new_shape) == 2 and target[1] == -1:
            return 1, np.repeat(flow[1], math.prod(shape[2:]))
        return flow if target[1] in (0, -1) and new_shape[:2] == shape[:2] else None

    def _new_axis(self, node: Node, flow: Flow) -> Flow:
        axis = int(node.attrs["axis"]) % len(node.shape or ())
        return flow[0] + (axis <= flow[0]), flow[1]

    def _reduce(self, node: Node, flow: Flow) -> Optional[Flow]:
        shape = self._traced.nodes[node.inputs[0]].shape
        axis_argument = ast.literal_eval(node.attrs.get("axis", "()") or "()")
        assert shape is not None
        arguments = [axis_argument] if isinstance(axis_argument, int) else axis_argument or ()
        axes = [axis % len(shape) for axis in arguments]
        if not axes or flow[0] in axes or node.attrs.get("exclude", "False") in ("True", "1"):
            return None
        keeps_axes = node.attrs.get("keepdims", "False") in ("True", "1")
        return (flow[0] if keeps_axes else flow[0] - sum(axis < flow[0] for axis in axes)), flow[1]

    # The result.

    def result(self) -> Channels:
        """Returns the channel sets, numbered in the order of the layers."""
        obstacle_of: Dict[int, str] = {}
        for number, reason in self._obstacles.items():
            # A channel that must stay keeps its whole set.
            obstacle_of.setdefault(self._root(number), reason)
        numbers: Dict[int, int] = {}
        makers: Dict[int, Dict[str, List[int]]] = {}
        for weight, channels in self._produced_by.items():
            for position, number in enumerate(channels.tolist()):
                root = self._root(number)
                if root not in obstacle_of:
                    numbers.setdefault(root, len(numbers))
                    makers.setdefault(root, {}).setdefault(weight, []).append(position)
        positions = {
            name: {axis: self._sets_of(channels, numbers) for axis, channels in axes.items()}
            for name, axes in self.positions.items()
        }
        groups: Dict[Tuple[str, ...], int] = {}
        sets = []
        for root, number in numbers.items():
            made = {name: np.array(indices) for name, indices in makers[root].items()}
            group = groups.setdefault(tuple(sorted(made)), len(groups))
            sets.append(ChannelSet(group, made, *self._users(positions, number)))
        layers = [[layer_of(name) for name in names] for names in groups]
        used = {name for names in groups for name in names}
        weights = {layer_of(name): name for name in self._widths if name in used}
        widths = {layer: self._widths[name] for layer, name in weights.items()}
        obstacles = {
            layer_of(name): obstacle_of[self._root(int(channels[0]))]
            for name, channels in self._produced_by.items()
            if name not in used
        }
        ops = {node.op for node in self._traced.nodes}
        unsupported = [kind for op, kind in ((RECURRENT, "recurrent layers"), (EMBEDDING, "embeddings")) if op in ops]
        return Channels(sets, widths, weights, positions, layers, obstacles, unsupported)

    def _users(
        self, positions: Positions, number: int
    ) -> Tuple[List[Tuple[str, int, np.ndarray]], Dict[str, np.ndarray]]:
        """Returns the weights that read a channel set, and the batch norms that scale it; see `ChannelSet`."""
        read = [(name, axis, np.flatnonzero(positions[name][axis] == number)) for name, axis in self._readers]
        scales = {name: np.flatnonzero(positions[name][0] == number) for name in self._scales}
        return (
            [(name, axis, index) for name, axis, index in read if len(index)],
            {name: index for name, index in scales.items() if len(index)},
        )

    def _sets_of(self, channels: np.ndarray, numbers: Mapping[int, int]) -> np.ndarray:
        """Returns the number of the set of each channel; -1 if it must stay."""
        return np.array([numbers.get(self._root(number), -1) for number in channels.tolist()], np.int64)
