"""Finds the layer of a graph for each array that is named by the structure of a Gluon network.

`save_parameters` names arrays by attributes (`features.0.weight`), and the graph that `export` writes by scopes
(`net0_conv0_weight`). Both files have a layer's arrays with equal shapes, and layers in an order: that in which they
were added to their blocks, and that in which data pass them. Layers of equal shapes are told apart by their order,
where all that is known agrees on it; a guess is refused.

Source of the names: apache/mxnet 1.9.1, python/mxnet/gluon/block.py.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import combinations
from math import prod
from typing import TYPE_CHECKING, Collection, Dict, Iterable, List, Mapping, Optional, Sequence, Set, Tuple

from mxtrain.engine.parameter_names import ROLES
from mxtrain.model.symbol.graph_file import VARIABLE, inputs_of

if TYPE_CHECKING:
    from mxtrain.types import Shape
    from mxtrain.types.annotations import SymbolGraph

Signature = Tuple[Tuple[str, "Shape"], ...]
"""Roles of the arrays of a layer with their shapes, sorted."""


class NoMatch(ValueError):
    """Arrays cannot be matched to layers, or in several ways. The message is a clause that says which."""


@dataclass
class _LayerArrays:
    """Arrays of one layer.

    Attributes:
        name: their common name, without the role.
        arrays: role, such as "weight" -> name of the array.
        shapes: role -> shape.
    """

    name: str
    arrays: Dict[str, str] = field(default_factory=dict)
    shapes: Dict[str, Shape] = field(default_factory=dict)

    @property
    def signature(self) -> Signature:
        return tuple(sorted(self.shapes.items()))

    def __str__(self) -> str:
        shown = ", ".join(f"{role} {'x'.join(map(str, shape))}" for role, shape in self.shapes.items())
        return f"'{self.name}' ({shown})"


def is_by_structure(names: Iterable[str]) -> bool:
    """Returns True for names of `save_parameters`: a dot only occurs in these."""
    return any("." in name for name in names)


def match_structure(
    graph: SymbolGraph, shapes: Mapping[str, Shape], arrays: Mapping[str, Shape], needed: Collection[str]
) -> Dict[str, str]:
    """Returns, for each variable that is needed, the name of its array in a file.

    Args:
        graph: the whole graph, as in its file.
        shapes: shapes of its parameters by name; those that are not known are missing.
        arrays: shapes of the arrays of the file by name, in the file's order.
        needed: names of the variables that must be found, if the graph has them.

    Raises:
        NoMatch: a layer has no counterpart of its shapes, or which of several belongs to it is unknown.
    """
    in_file = _file_layers(arrays)
    in_graph = _graph_layers(graph, shapes, in_file)
    classes = _classes(in_graph, in_file, set(needed))
    order = _GraphOrder(graph, in_graph)
    pairs: List[Tuple[_LayerArrays, _LayerArrays]] = []
    while classes:
        waiting, found = [], []
        for layers, candidates in classes:
            ordered = order.sorted(layers)
            if ordered is None:
                waiting.append((layers, candidates))
            else:
                found += list(zip(ordered, candidates))
        pairs += found
        classes = [part for each in waiting for part in _by_scopes(*each, pairs)]
        if len(classes) == len(waiting):
            break
    if classes:
        raise NoMatch(_doubt(order, *classes[0]))
    order.require_order_of(pairs, in_file)
    return {name: other.arrays[role] for layer, other in pairs for role, name in layer.arrays.items()}


def _file_layers(arrays: Mapping[str, Shape]) -> List[_LayerArrays]:
    """Returns the layers of a file, in its order.

    Raises:
        NoMatch: the order is not that of a network: children of a sequence are not in the order of their numbers.
    """
    layers: Dict[str, _LayerArrays] = {}
    last: Dict[str, int] = {}
    for name, shape in arrays.items():
        path, _, role = name.rpartition(".")
        layer = layers.setdefault(path, _LayerArrays(path))
        layer.arrays[role], layer.shapes[role] = name, tuple(shape)
        for number in re.finditer(r"(?<![^.])\d+(?=\.)", name):
            sequence = name[: number.start()]
            if int(number[0]) < last.get(sequence, 0):
                raise NoMatch(f"'{name}' comes after '{sequence}{last[sequence]}', so the order of its layers is lost")
            last[sequence] = int(number[0])
    return list(layers.values())


def _graph_layers(
    graph: SymbolGraph, shapes: Mapping[str, Shape], in_file: Sequence[_LayerArrays]
) -> List[_LayerArrays]:
    """Returns the layers of a graph whose shapes are known, in the order of their first variables."""
    kinds = {tuple(layer.shapes) for layer in in_file}
    names = [node["name"] for node in graph["nodes"] if node["name"] in shapes]
    layers: Dict[str, _LayerArrays] = {}
    for name in names:
        prefix, role = _split_role(name, set(names), kinds)
        layer = layers.setdefault(prefix, _LayerArrays(prefix))
        layer.arrays[role], layer.shapes[role] = name, tuple(shapes[name])
    return list(layers.values())


def _split_role(name: str, names: Set[str], kinds: Collection[Tuple[str, ...]]) -> Tuple[str, str]:
    """Returns the layer of a variable and its role.

    Roles may be longer than usual, such as `l0_i2h_weight` of an LSTM. The longest one counts that all others of such a
    layer go with.

    Args:
        name: name of the variable.
        names: names of all variables.
        kinds: roles that layers of the file have.
    """
    prefixes = {role: name[: -len(role)] for roles in kinds for role in roles if f"_{name}".endswith(f"_{role}")}
    whole = [
        role
        for roles in kinds
        for role in roles
        if role in prefixes and all(prefixes[role] + other in names for other in roles)
    ]
    role = max(whole or prefixes or (end for end in ROLES if name.endswith(f"_{end}")), key=len, default=name)
    return name[: -len(role)].removesuffix("_"), role if role in prefixes else ROLES.get(role, role)


def _classes(
    in_graph: Sequence[_LayerArrays], in_file: Sequence[_LayerArrays], needed: Set[str]
) -> List[Tuple[List[_LayerArrays], List[_LayerArrays]]]:
    """Returns layers of equal shapes: those of the graph, and as many of the file.

    Raises:
        NoMatch: for a layer that is needed, the numbers differ.
    """
    by_signature: Dict[Signature, Tuple[List[_LayerArrays], List[_LayerArrays]]] = defaultdict(lambda: ([], []))
    for side, layers in enumerate((in_graph, in_file)):
        for layer in layers:
            by_signature[layer.signature][side].append(layer)
    unmatched = [layer for layers, others in by_signature.values() if not layers for layer in others]
    classes = []
    for layers, others in by_signature.values():
        if not needed.isdisjoint(name for layer in layers for name in layer.arrays.values()):
            if not others:
                near = _nearest(layers[0], unmatched)
                raise NoMatch(
                    f"the layer {layers[0]} of the graph has none of its shapes there"
                    + (f"; the nearest is {near}" if near else "")
                )
            if len(layers) != len(others):
                raise NoMatch(
                    f"the graph has {len(layers)} layers of the shapes of {layers[0]}, and the file {len(others)}, "
                    f"such as '{others[0].name}'"
                )
            classes.append((layers, others))
    return classes


def _nearest(layer: _LayerArrays, others: Sequence[_LayerArrays]) -> Optional[_LayerArrays]:
    """Returns the layer with the same roles whose shapes differ least."""

    def distance(other: _LayerArrays) -> float:
        pairs = [(layer.shapes[role], other.shapes[role]) for role in layer.shapes]
        return sum(1 - min(prod(one), prod(two)) / max(prod(one), prod(two), 1) for one, two in pairs)

    return min((other for other in others if other.shapes.keys() == layer.shapes.keys()), key=distance, default=None)


def _kind(name: str) -> str:
    return re.sub(r"\d+", "#", name)


def _by_number(one: str, two: str) -> Optional[bool]:
    """Returns True if the first of two names has the smaller number where they differ, as in `net0_conv1` and
    `net0_conv2`; None if they differ in more than a number."""
    first, second = next(((x, y) for x, y in zip(one.split("_"), two.split("_")) if x != y), ("", ""))
    if _kind(first) != _kind(second) or first == second:
        return None
    numbers, others = (list(map(int, re.findall(r"\d+", part))) for part in (first, second))
    return numbers < others


class _GraphOrder:
    """The order of the layers of a graph: that of the numbers in their names, and that in which data pass them."""

    def __init__(self, graph: SymbolGraph, layers: Sequence[_LayerArrays]) -> None:
        nodes = graph["nodes"]
        number_of = {name: number for number, layer in enumerate(layers) for name in layer.arrays.values()}
        self._numbers = {layer.name: number for number, layer in enumerate(layers)}
        self._before = [0] * len(layers)  # bits of the layers whose results a layer takes, and of itself
        self._uses_data_order = False
        reached: List[int] = []
        for node in nodes:
            sources = [source for source, _ in inputs_of(node)]
            bits = 0
            for source in sources:
                bits |= reached[source]
            if node["op"] == VARIABLE and node["name"] in number_of:
                bits = 1 << number_of[node["name"]]
            reached.append(bits)
            for source in sources:
                number = number_of.get(nodes[source]["name"]) if nodes[source]["op"] == VARIABLE else None
                if number is not None:
                    self._before[number] |= bits

    def _by_data(self, one: _LayerArrays, two: _LayerArrays) -> Optional[bool]:
        """Returns True if the second layer takes what the first one computes; None if neither does."""
        number, other = self._numbers[one.name], self._numbers[two.name]
        first, second = self._before[other] >> number & 1, self._before[number] >> other & 1
        return bool(first) if first != second else None

    def comes_first(self, one: _LayerArrays, two: _LayerArrays) -> Optional[bool]:
        """Returns True if the first of two layers comes first; None if that is unknown."""
        by_number, by_data = _by_number(one.name, two.name), self._by_data(one, two)
        if by_number is None:
            return by_data
        return by_number if by_data in (None, by_number) else None

    def sorted(self, layers: Sequence[_LayerArrays]) -> Optional[List[_LayerArrays]]:
        """Returns layers in their order; None if that of two is unknown."""
        counts = {
            sum(bool(self.comes_first(other, layer)) for other in layers if other is not layer): layer
            for layer in layers
        }
        if len(counts) < len(layers):  # these are 0, 1, 2, ... only if the order of all pairs is known
            return None
        self._uses_data_order |= any(_by_number(one.name, two.name) is None for one, two in combinations(layers, 2))
        return [counts[number] for number in sorted(counts)]

    def require_order_of(
        self, pairs: Sequence[Tuple[_LayerArrays, _LayerArrays]], in_file: Sequence[_LayerArrays]
    ) -> None:
        """Checks that the file lists layers in the order in which data pass them, if that order was relied on.

        Raises:
            NoMatch: it does not.
        """
        if not self._uses_data_order:
            return
        position = {layer.name: number for number, layer in enumerate(in_file)}
        in_order = sorted(pairs, key=lambda pair: position[pair[1].name])
        for (one, first), (two, second) in combinations(in_order, 2):
            if self._by_data(two, one):
                raise NoMatch(
                    f"'{first.name}' comes before '{second.name}' in the file, and in the graph {one} takes what {two} "
                    "computes, so the order of layers of equal shapes is unknown"
                )


def _by_scopes(
    layers: List[_LayerArrays], candidates: List[_LayerArrays], pairs: Sequence[Tuple[_LayerArrays, _LayerArrays]]
) -> List[Tuple[List[_LayerArrays], List[_LayerArrays]]]:
    """Divides layers of equal shapes by the blocks that they are in, if pairs that are known tell which blocks of the
    graph are which of the file: for example, those in `net0_down2_` are all in `layer2.0.downsample`.

    Returns:
        The parts, or one part with all layers if blocks do not tell them apart.
    """
    blocks: Dict[str, Set[str]] = defaultdict(set)
    for layer, other in pairs:
        blocks[_scope(layer)].add(_parent(other))
    groups: List[Set[str]] = []  # blocks of the file that scopes of the graph have in common
    for scope in sorted({_scope(layer) for layer in layers}):
        joined = [group for group in groups if not group.isdisjoint(blocks[scope])]
        groups = [group for group in groups if group not in joined] + [blocks[scope].union(*joined)]
    parts = [
        (
            [layer for layer in layers if blocks[_scope(layer)] <= group],
            [one for one in candidates if _parent(one) in group],
        )
        for group in groups
    ]
    # Layers of a scope without known pairs are in a part without candidates.
    return parts if all(len(ours) == len(theirs) for ours, theirs in parts) else [(layers, candidates)]


def _scope(layer: _LayerArrays) -> str:
    return _kind(layer.name.rpartition("_")[0])


def _parent(layer: _LayerArrays) -> str:
    return _kind(layer.name.rpartition(".")[0])


def _doubt(order: _GraphOrder, layers: Sequence[_LayerArrays], candidates: Sequence[_LayerArrays]) -> str:
    one, two = next((pair for pair in combinations(layers, 2) if order.comes_first(*pair) is None), layers[:2])
    return (
        f"which of '{candidates[0].name}' and '{candidates[1].name}' are '{one.name}' and '{two.name}' of the graph is "
        "unknown: their shapes are equal, and neither is known to come first"
    )
