"""Finds the embedding tables that a strategy may train with only the rows of a batch (sparse gradients).

Such a network gets positions among these rows instead of ids. An input qualifies if the network only moves its ids and
looks them up in tables.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Dict, List, Mapping, Set, Tuple

from mxtrain.model.graph.trace import NotTraceable, Trace, blocks_by_path, input_names, trace
from mxtrain.types import Shapes, shapes_of

if TYPE_CHECKING:
    from mxnet import gluon

    from mxtrain.model.networks.embedding_table import EmbeddingTable

MOVING = frozenset(
    (
        "Reshape",
        "reshape",
        "Flatten",
        "expand_dims",
        "squeeze",
        "transpose",
        "slice",
        "slice_axis",
        "SliceChannel",
        "_split_v2",
        "Concat",
        "stack",
        "_copy",
        "BlockGrad",
        "repeat",
        "tile",
        "SwapAxis",
        "slice_like",
        "reshape_like",
        "broadcast_like",
    )
)
"""Operators that take ids from one place to another and look at none."""
SHAPE_ONLY = {"reshape_like": 1, "broadcast_like": 1, "slice_like": 1, "zeros_like": 0, "ones_like": 0}
"""Operator -> input of which it reads only the shape; positions have the same shape as ids."""
COMPARING = frozenset(("broadcast_equal",))
"""Operators that compare the ids of one input for equality. Positions are equal exactly where ids are."""
LOOKUP = "Embedding"
ROWS_PER_ID = 16
"""Minimum number of rows of a table per id of a batch for which sparse gradients are faster. Measured."""


def tables_of(network: gluon.Block) -> List[EmbeddingTable]:
    """Returns the tables of a network, in its order."""
    from mxtrain.model.networks.embedding_table import EmbeddingTable

    return [block for _, block in blocks_by_path(network) if isinstance(block, EmbeddingTable)]


def make_sparse(network: gluon.Block, input_shape: Shapes, min_size: int, num_samples: int = 0) -> List[str]:
    """Marks the tables that get sparse gradients. Must be called before the network is initialised.

    Args:
        network: uninitialised network.
        input_shape: shape of one sample, or of each of several inputs.
        min_size: minimum number of elements that the tables of an input have together.
        num_samples: number of samples of a batch, each of whose ids needs `ROWS_PER_ID` rows; 0 = no such condition.

    Returns:
        For each large table with a dense gradient, a clause with the reason.
    """
    tables = tables_of(network)
    # Checked before tracing, which networks without large tables are then spared.
    if sum(table.num_rows * table.units for table in tables) < max(min_size, 1):
        return []
    try:
        traced = trace(network, input_shape)
    except NotTraceable as error:
        return [f"the network's code needs real arrays ({error})"]
    sources = _Sources(traced, input_names(len(shapes_of(input_shape))))
    widths = [math.prod(shape) for shape in shapes_of(input_shape)]
    large = []
    for table in tables:
        # Tables with the same ids are sparse together or not at all: the ids are exchanged once for all of them.
        sharing = sources.tables_sharing_ids(table, tables)
        num_ids = table.count_ids(sources.width_of(table, widths), num_samples) if num_samples else 0
        is_large = sum(other.num_rows * other.units for other in sharing) >= min_size
        if is_large and min(other.num_rows for other in sharing) >= ROWS_PER_ID * num_ids:
            large.append(table)
    reasons: List[str] = []
    for table in large:
        reason = sources.unsupported_reason(table, [other.weight.name for other in large])
        if reason:
            reasons.append(reason)
        else:
            (number,) = sources.inputs_of[table.weight.name]
            table.make_sparse(number)
    return reasons


class _Sources:
    """Finds the embedding tables of each input of a network.

    Attributes:
        inputs_of: full name of a parameter -> the numbers of the inputs whose ids are looked up in it.
    """

    def __init__(self, traced: Trace, names: List[str]):
        nodes = traced.nodes
        self._layer_of = {node.name: node.layer for node in nodes}
        holds: Dict[int, Set[int]] = {  # node -> the inputs whose ids it only moves
            index: {names.index(node.name)} for index, node in enumerate(nodes) if node.name in names
        }
        self.inputs_of: Dict[str, Set[int]] = {}
        self._looks_up: Dict[int, Set[str]] = {}
        self._other_uses: Dict[int, Tuple[str, str]] = {}
        for index, node in enumerate(nodes):
            unread = SHAPE_ONLY.get(node.op)
            given = [holds.get(one, set()) for position, one in enumerate(node.inputs) if position != unread]
            numbers = set().union(*given)
            if not numbers:
                continue
            if node.op == LOOKUP and given[0] and not given[1]:
                parameter = nodes[node.inputs[1]].name
                self.inputs_of.setdefault(parameter, set()).update(numbers)
                for number in numbers:
                    self._looks_up.setdefault(number, set()).add(parameter)
            # An operator that mixes ids with anything else computes with them, and positions have other values.
            elif node.op in MOVING and all(given):
                holds[index] = numbers
            elif node.op in COMPARING and all(given) and len(numbers) == 1:
                continue
            else:
                self._other_uses.update(dict.fromkeys(numbers, (node.layer, node.op)))
        self._readers: Mapping[str, List[str]] = {}
        readers: Dict[str, List[str]] = {}
        for node in nodes:
            for position, one in enumerate(node.inputs):
                if nodes[one].op == "null" and not (node.op == LOOKUP and position == 1):
                    readers.setdefault(nodes[one].name, []).append(node.op)
        self._readers = readers

    def tables_sharing_ids(self, table: EmbeddingTable, tables: List[EmbeddingTable]) -> List[EmbeddingTable]:
        """Returns all tables that share ids with a table, including itself: they are all sparse or all dense."""
        inputs = self.inputs_of.get(table.weight.name, set())
        return [other for other in tables if other is table or inputs & self.inputs_of.get(other.weight.name, set())]

    def width_of(self, table: EmbeddingTable, widths: List[int]) -> int:
        """Returns the number of ids of a sample that are looked up in a table."""
        return sum(widths[number] for number in self.inputs_of.get(table.weight.name, ()))

    def unsupported_reason(self, table: EmbeddingTable, large: List[str]) -> str:
        """Returns why the gradient of a table cannot be sparse; empty if it can.

        Args:
            table: the table.
            large: full names of the tables that are large enough.
        """
        name = table.weight.name
        numbers = self.inputs_of.get(name, set())
        if len(numbers) != 1:
            return f"the ids of {name} are not one input of the network"
        if self._readers.get(name):
            return f"{name} is read by {self._readers[name][0]}, too"
        (number,) = numbers
        if number in self._other_uses:
            layer, op = self._other_uses[number]
            return f"the ids of {name} are used by {op} of {f'layer {layer!r}' if layer else 'the network'}, too"
        small_tables = sorted(self._looks_up[number] - set(large))
        if small_tables:
            return f"the ids of {name} are looked up in {small_tables[0]}, too"
        return ""
