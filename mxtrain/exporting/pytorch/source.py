"""Writes a traced network as readable code of PyTorch: a class per kind of block, with the names of the blocks.

    nodes of the graph -> blocks by the layer that called them -> Scope: a class, or nn.Sequential, or a single layer

Blocks whose classes differ in integers only share one class, which takes them as arguments.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple, cast

import numpy as np

from mxtrain.exporting.graph import Entry, ProbedGraph, Size
from mxtrain.exporting.pytorch.call import Code, Construction, Layer, LayerSize, Token, TorchCall, Writer
from mxtrain.exporting.pytorch.helpers import helper_sources
from mxtrain.exporting.pytorch.operators import CONVERTERS
from mxtrain.exporting.pytorch.operators.table import Converter

WIDTH = 110
NETWORK = "Network"
ABOUT = {
    NETWORK: "The network, from normalised inputs to its outputs.",
    "Decoding": "From the outputs of the network to predictions.",
}
"""Name of the outermost class -> its docstring."""
VARIABLES = ("x", "y", "z", "u", "v", "w", "p", "q", "r", "s", "t")
RESERVED = frozenset(
    ("self", "nn", "F", "torch", "forward", "training", "lambda", "in", "is", "for", "if", "or", "and")
)


@dataclass(frozen=True)
class Block:
    """A layer or class that computes some nodes.

    Attributes:
        code: its constructor.
        inputs, outputs: tensors of the symbol.
        names: structural name of MXNet -> name in the state_dict of the block.
        extra: name in the state_dict -> array that MXNet does not have.
        fixed: names in the state_dict of parameters that are not trained.
    """

    code: Code
    inputs: Sequence[Entry]
    outputs: Sequence[Entry]
    names: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    fixed: Sequence[str] = ()


@dataclass
class Template:
    """A generated class.

    Attributes:
        name: suggested name.
        modules: attribute and constructor of each layer.
        lines: further lines of the constructor.
        arguments: of forward.
        body: lines of forward.
        instances: the integers of each block that uses the class.
        path: structural name of the first such block.
    """

    name: str
    modules: List[Tuple[str, Code]]
    lines: List[str]
    arguments: List[str]
    body: List[str]
    path: str
    instances: List[Tuple[LayerSize, ...]] = field(default_factory=list)
    written: str = ""
    kept: List[Tuple[str, List[int]]] = field(default_factory=list)
    """Arguments of the class, each with the positions of the integers that it stands for."""


def numbers_in(code: Code) -> List[LayerSize]:
    """Returns the integers of a constructor, also those of classes that it calls."""
    found: List[LayerSize] = []
    for token in code:
        if isinstance(token, LayerSize):
            found.append(token)
        elif isinstance(token, Construction):
            found += token.numbers
    return found


def _form(code: Code) -> Tuple[Any, ...]:
    """Returns a constructor without the values of its integers."""
    return tuple(
        ("number", token.name)
        if isinstance(token, LayerSize)
        else ("class", token.template, tuple(one.name for one in token.numbers))
        if isinstance(token, Construction)
        else token
        for token in code
    )


class ModuleSource:
    """The code of a traced network.

    Args:
        graph: the traced network.
        structural: parameter variable -> its structural name.
        kinds: structural name of a block -> name of its class in Gluon.
        converters: `mxtrain.exporting.pytorch.operators.CONVERTERS`.
        name: name of the class.

    Attributes:
        code: the Python module.
        names: structural name of a parameter -> name in the state_dict.
        extra: name in the state_dict -> array that MXNet does not have.
        fixed: names in the state_dict of parameters that are not trained.
        remarks: sentences about what the code leaves out.

    Raises:
        Unsupported: an operator has no conversion.
    """

    def __init__(
        self,
        graph: ProbedGraph,
        structural: Mapping[str, str],
        kinds: Mapping[str, str],
        converters: Mapping[str, Converter] = CONVERTERS,
        name: str = NETWORK,
    ):
        self.graph, self.kinds, self.converters, self.name = graph, kinds, converters, name
        self.structural: Dict[Entry, str] = {
            (number, 0): structural[node["name"]]
            for number, node in enumerate(graph.nodes)
            if node["op"] == "null" and node["name"] in structural
        }
        self.constants: Dict[Entry, str] = {
            (number, 0): node["name"]
            for number, node in enumerate(graph.nodes)
            if node["op"] == "null" and node["name"] in graph.parameters and node["name"] not in structural
        }
        self.helpers: Dict[str, None] = {}
        self.remarks: Dict[str, None] = {}
        self.templates: Dict[Any, Template] = {}
        self.buffers: Dict[str, np.ndarray] = {}
        self.layers = [self._layer_of(node) for node in graph.nodes]
        self.readers: Dict[int, Dict[Entry, List[int]]] = {}
        for number, node in enumerate(graph.nodes):
            for entry in node["inputs"]:
                self.readers.setdefault(entry[0], {}).setdefault((entry[0], entry[1]), []).append(number)
        for head in graph.heads:
            self.readers.setdefault(head[0], {}).setdefault(head, []).append(-1)
        used = self._used()
        operators = [number for number in used if graph.nodes[number]["op"] != "null"]
        inputs = [(number, 0) for number in used if graph.nodes[number]["name"] in graph.inputs]
        order = [*graph.inputs]
        inputs.sort(key=lambda entry: order.index(graph.nodes[entry[0]]["name"]))
        self.home = self._homes(operators)
        root = Scope(self, "", operators, inputs, list(graph.heads))
        block = root.build(name)
        self.names, self.extra, self.fixed = dict(block.names), dict(block.extra), list(block.fixed)
        self.code = self._module()

    def _layer_of(self, node: Mapping[str, Any]) -> str:
        return str(node.get("attrs", {}).get("__layer__", ""))

    def _used(self) -> List[int]:
        """Returns the nodes that outputs depend on. What packs the parameters of recurrent layers is left out."""
        waiting, found = [head[0] for head in self.graph.heads], set()
        while waiting:
            number = waiting.pop()
            if number in found:
                continue
            found.add(number)
            node = self.graph.nodes[number]
            for position, entry in enumerate(node["inputs"]):
                if not (node["op"] == "RNN" and position == 1):
                    waiting.append(entry[0])
        return sorted(found)

    def _homes(self, operators: Sequence[int]) -> Dict[Entry, str]:
        """Returns the block that has a parameter of its own: the common ancestor of its readers."""
        homes: Dict[Entry, str] = {}
        for number in operators:
            for entry in self.graph.nodes[number]["inputs"]:
                key = (entry[0], entry[1])
                if key in self.structural:
                    layer = self.layers[number]
                    homes[key] = _common(homes[key], layer) if key in homes else layer
        return homes

    def class_name(self, path: str) -> str:
        """Returns the name of the class of a block."""
        kind = re.sub(r"\W", "", self.kinds.get(path, "")).lstrip("_")
        if not kind or kind in ("HybridSequential", "HybridConcatenate", "HybridConcurrent", "HybridLambda"):
            words = re.findall(r"[a-zA-Z0-9]+", path.rpartition(".")[2])
            kind = "".join(word[:1].upper() + word[1:] for word in words)
        return f"Block{kind}" if kind[:1].isdigit() or not kind else kind[:1].upper() + kind[1:]

    def enter(self, template: Template) -> Construction:
        """Adds a class, or an instance of one that is there already."""
        key = (
            tuple((name, _form(code)) for name, code in template.modules),
            tuple(template.lines),
            tuple(template.arguments),
            tuple(template.body),
        )
        numbers = tuple(number for _, code in template.modules for number in numbers_in(code))
        self.templates.setdefault(key, template).instances.append(numbers)
        return Construction(key, numbers)

    def _module(self) -> str:
        """Returns the whole file."""
        taken: Set[str] = {self.name, *self.helpers}
        for template in self.templates.values():
            name = template.name
            count = 2
            while template.path and name in taken:
                name, count = f"{template.name}_{count}", count + 1
            template.written = name
            taken.add(name)
            template.kept = _arguments(template.instances)
        parts = [
            "",
            *helper_sources(self.helpers),
            *(self._class(template) for template in self.templates.values()),
        ]
        text = "\n".join(parts)
        head = ["import math\n"] * ("math." in text) + ["import torch"]
        head += ["import torch.nn.functional as F"] * ("F." in text) + ["from torch import nn"]
        parts[0] = "\n".join(head)
        return "\n\n\n".join(parts) + "\n"

    def _class(self, template: Template) -> str:
        arguments = [name for name, _ in template.kept]
        where = f"`{template.path}`" if template.path else "The network"
        count = len(template.instances)
        more = f", and {count - 1} more" if count > 1 else ""
        lines = [
            f"class {template.written}(nn.Module):",
            f'    """{where}{more}."""' if template.path else f'    """{ABOUT[template.written]}"""',
            "",
            f"    def __init__({', '.join(['self', *arguments])}):",
            "        super().__init__()",
        ]
        position = 0
        for name, code in template.modules:
            text = self._text(code, template, position)
            position += len(numbers_in(code))
            lines += _pretty(f"self.{name} = ", text, 8)
        lines += [f"        {line}" for line in template.lines]
        lines += ["", f"    def forward({', '.join(['self', *template.arguments])}):"]
        lines += [f"        {line}" for line in template.body]
        return "\n".join(lines)

    def _text(self, code: Code, template: Template, position: int) -> str:
        """Writes a constructor within a class.

        Args:
            code: the constructor.
            template: the class.
            position: index of its first integer among those of the class.
        """
        words: List[str] = []
        for token in code:
            if isinstance(token, LayerSize):
                words.append(_value(template, position, token))
                position += 1
            elif isinstance(token, Construction):
                child = self.templates[token.template]
                given = [_value(template, position + at[0], token.numbers[at[0]]) for _, at in child.kept]
                words.append(f"{child.written}({', '.join(given)})")
                position += len(token.numbers)
            else:
                words.append(token)
        return "".join(words)


def _value(template: Template, position: int, number: LayerSize) -> str:
    return next((name for name, at in template.kept if position in at), str(number.value))


def _arguments(instances: Sequence[Tuple[LayerSize, ...]]) -> List[Tuple[str, List[int]]]:
    """Returns the integers that differ between blocks, as arguments: equal columns are one."""
    columns: Dict[Tuple[int, ...], List[int]] = {}
    for position in range(len(instances[0])):
        column = tuple(instance[position].value for instance in instances)
        if len(set(column)) > 1:
            columns.setdefault(column, []).append(position)
    found: List[Tuple[str, List[int]]] = []
    for positions in columns.values():
        name = base = instances[0][positions[0]].name
        count = 2
        while name in [other for other, _ in found]:
            name, count = f"{base}{count}", count + 1
        found.append((name, positions))
    return found


def _common(one: str, other: str) -> str:
    """Returns the longest common beginning of two structural names."""
    parts = []
    for a, b in zip(one.split("."), other.split(".")):
        if a != b:
            break
        parts.append(a)
    return ".".join(parts)


def _is_within(path: str, outer: str) -> bool:
    return not outer or path == outer or path.startswith(f"{outer}.")


def _pretty(begin: str, text: str, indent: int) -> List[str]:
    """Breaks an expression at the commas of its outermost parentheses if it is too long."""
    space = " " * indent
    opening = text.find("(")
    if len(space + begin + text) <= WIDTH or opening < 0 or not text.endswith(")"):
        return [f"{space}{begin}{text}"]
    lines, depth, last = [f"{space}{begin}{text[: opening + 1]}"], 0, 0
    inside = text[opening + 1 : -1]
    for position, letter in enumerate(inside + ","):
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(letter, 0)
        if letter == "," and not depth:
            part = inside[last:position].strip()
            last = position + 1
            if part:
                lines += _pretty("", part, indent + 4)
                lines[-1] += ","
    return [*lines, f"{space})"]


class Scope:
    """A class whose method `forward` is being written.

    Args:
        source: the module.
        path: structural name of the block.
        numbers: nodes of operators in it.
        inputs: tensors that it reads from outside.
        outputs: tensors that others read.
    """

    def __init__(
        self, source: ModuleSource, path: str, numbers: Sequence[int], inputs: Sequence[Entry], outputs: Sequence[Entry]
    ):
        self.source, self.path = source, path
        self._numbers, self._inputs, self._outputs = list(numbers), list(inputs), list(outputs)
        self._modules: List[Tuple[str, Code]] = []
        self._lines: List[str] = []
        self._body: List[str] = []
        self._names: Dict[Entry, str] = {}
        self._state: Dict[str, str] = {}
        self._extra: Dict[str, Any] = {}
        self._fixed: List[str] = []
        self._left: Counter = Counter()
        self._chain: Optional[List[Tuple[str, Code, Dict[str, str], Dict[str, Any], List[str]]]] = []
        self.first_input = ""

    # Used by converters.

    def name_of(self, entry: Entry) -> str:
        """Returns the variable or attribute of a tensor."""
        if entry in self._names:
            return self._names[entry]
        if entry not in self.source.structural:
            name = self.source.constants[entry]
            self._names[entry] = self.add_buffer(name, self.source.graph.parameters[name])
            return self._names[entry]
        structural = self.source.structural[entry]
        attribute = self._attribute(structural)
        shape = ", ".join(str(size[0]) for size in self.source.graph.dims(entry))
        self._lines.append(f"self.{attribute} = nn.Parameter(torch.empty({shape}))")
        self._state[structural] = attribute
        self._names[entry] = f"self.{attribute}"
        return self._names[entry]

    def add_buffer(self, name: str, value: np.ndarray) -> str:
        """Adds a constant array; returns its attribute."""
        attribute = self._free(name)
        self._lines.append(
            f'self.register_buffer("{attribute}", torch.empty({tuple(value.shape)}, dtype=torch.{value.dtype}))'
        )
        self._extra[attribute] = value
        return f"self.{attribute}"

    def known_sizes(self) -> List[Tuple[str, Size]]:
        """Returns the sizes of all tensors that are at hand, as expressions."""
        found = []
        for entry, name in self._names.items():
            if not name.startswith("self.") and self._left[entry] > 0:
                found += [(f"{name}.shape[{axis}]", size) for axis, size in enumerate(self.source.graph.dims(entry))]
        return found

    # The class.

    def build(self, name: str) -> Block:
        """Writes the class.

        Args:
            name: its name.
        """
        items = self._items()
        for item in items:
            self._left.update(self._reads(item))
        self._left.update(self._outputs)
        for number, entry in enumerate(self._inputs):
            self._names[entry] = VARIABLES[0] if len(self._inputs) == 1 else f"x{number}"
        arguments = [self._names[entry] for entry in self._inputs]
        self.first_input = arguments[0] if arguments else ""
        current: Optional[Entry] = self._inputs[0] if len(self._inputs) == 1 else None
        for item in items:
            current = self._emit(item, current)
        sequential = self._sequential() if current is not None and self._outputs == [current] else None
        if sequential is not None and self.path:
            return sequential
        results = ", ".join(self._names[entry] for entry in self._outputs)
        last = self._body[-1] if self._body else ""
        target, separator, expression = last.partition(" = ")
        if separator and len(self._outputs) == 1 and target == results:
            body = [*self._body[:-1], f"return {expression}"]
        else:
            body = [*self._body, f"return {results}"]
        lines = list(self._lines)
        if not self.path and self._fixed:
            fixed = ", ".join(f'"{one}"' for one in self._fixed)
            lines += [
                "# MXNet never trains these (fix_gamma).",
                f"for name in ({fixed},):",
                "    self.get_parameter(name).requires_grad_(False)",
            ]
        template = Template(name, self._modules, lines, arguments, body, self.path)
        return self._block((self.source.enter(template),))

    def _block(self, code: Code) -> Block:
        return Block(code, self._inputs, self._outputs, self._state, self._extra, self._fixed)

    def _sequential(self) -> Optional[Block]:
        """Returns the block as nn.Sequential; None if it is more than a chain of layers."""
        chain = self._chain
        if not chain or self._lines:
            return None
        if len(chain) == 1 and not chain[0][0].isdigit():
            # A block around a single layer is this layer; its parameters keep the name of the block.
            _, code, names, extra, fixed = chain[0]
            return Block(code, self._inputs, self._outputs, names, extra, fixed)
        digits = [name for name, *_ in chain]
        is_numbered = all(name.isdigit() for name in digits) and [*map(int, digits)] == sorted({*map(int, digits)})
        positions = [int(name) for name in digits] if is_numbered else list(range(len(chain)))
        if positions[-1] > 3 * len(chain) + 3:
            positions = list(range(len(chain)))
        tokens: List[Token] = ["nn.Sequential("]
        state: Dict[str, str] = {}
        extra_arrays: Dict[str, Any] = {}
        fixed_names: List[str] = []
        filled = 0
        for position, (_, code, names, extra, fixed) in zip(positions, chain):
            # Blocks without operators, such as a Dropout of 0, keep their place.
            tokens += ["nn.Identity(), "] * (position - filled)
            tokens += [*code, ", "]
            filled = position + 1
            state.update((key, f"{position}.{value}") for key, value in names.items())
            extra_arrays.update((f"{position}.{key}", value) for key, value in extra.items())
            fixed_names += [f"{position}.{value}" for value in fixed]
        tokens[-1] = ")"
        return Block(tuple(tokens), self._inputs, self._outputs, state, extra_arrays, fixed_names)

    # The items: operators and inner blocks, in an order in which they can be computed.

    def _items(self) -> List[Any]:
        """Returns the operators of the block (numbers) and its inner blocks (names), each after what it reads."""
        groups: Dict[Any, List[int]] = {}
        dissolved: Set[str] = set()
        while True:
            groups = {}
            for number in self._numbers:
                child = self._child(number)
                groups.setdefault(number if child is None or child in dissolved else child, []).append(number)
            ordered = self._ordered(groups)
            if ordered is not None:
                self._groups = groups
                return ordered
            # A block that is called twice, or whose operators depend on each other through others, becomes operators.
            names = [key for key in groups if isinstance(key, str)]
            dissolved.update(self._stuck & set(names) or names)

    def _child(self, number: int) -> Optional[str]:
        layer = self.source.layers[number]
        if layer == self.path or not _is_within(layer, self.path):
            return None
        rest = layer[len(self.path) + 1 :] if self.path else layer
        return rest.split(".")[0]

    def _ordered(self, groups: Mapping[Any, List[int]]) -> Optional[List[Any]]:
        owner = {number: key for key, numbers in groups.items() for number in numbers}
        needs = {
            key: {
                owner[entry[0]]
                for number in numbers
                for entry in self.source.graph.nodes[number]["inputs"]
                if entry[0] in owner and owner[entry[0]] != key
            }
            for key, numbers in groups.items()
        }
        first = {key: min(numbers) for key, numbers in groups.items()}
        done: List[Any] = []
        finished: Set[Any] = set()
        while len(done) < len(groups):
            ready = [key for key in groups if key not in finished and needs[key] <= finished]
            if not ready:
                self._stuck = {key for key in groups if key not in finished and isinstance(key, str)}
                return None
            key = min(ready, key=lambda one: first[one])
            done.append(key)
            finished.add(key)
        return done

    def _reads(self, item: Any) -> List[Entry]:
        """Returns the tensors that an item reads from outside of it, each once per item."""
        numbers = self._groups[item]
        inside = {*numbers}
        found: Dict[Entry, None] = {}
        for number in numbers:
            node = self.source.graph.nodes[number]
            for position, entry in enumerate(node["inputs"]):
                key = (entry[0], entry[1])
                if key[0] in inside or (node["op"] == "RNN" and position == 1):
                    continue
                if key in self.source.constants or (key in self.source.structural and self._is_own(item, key)):
                    continue
                found[key] = None
        return list(found)

    def _is_own(self, item: Any, entry: Entry) -> bool:
        """Returns True if a parameter belongs to the item, and is not passed to it."""
        if not isinstance(item, str):
            return entry not in self._inputs
        path = f"{self.path}.{item}" if self.path else item
        return _is_within(self.source.home[entry], path)

    def _makes(self, item: Any) -> List[Entry]:
        """Returns the tensors of an item that others read."""
        inside = {*self._groups[item]}
        found = {
            entry
            for number in inside
            for entry, readers in self.source.readers.get(number, {}).items()
            if not inside.issuperset(readers)
        }
        return sorted(found)

    def _emit(self, item: Any, current: Optional[Entry]) -> Optional[Entry]:
        """Writes one item; returns its result if everything so far is a chain of layers."""
        reads = self._reads(item)
        if isinstance(item, str):
            inner = self.path and f"{self.path}.{item}" or item
            scope = Scope(self.source, inner, self._groups[item], reads, self._makes(item))
            block = scope.build(self.source.class_name(inner))
            attribute = self._free(item)
            self._add(attribute, block.code, block.names, block.extra, block.fixed)
            called = f"self.{attribute}({', '.join(self.name_of(entry) for entry in reads)})"
            self._forget(reads)
            targets = [self._variable(entry, reads) for entry in block.outputs]
            self._body.append(f"{', '.join(targets)} = {called}")
            entry = (block.code, block.names, block.extra, block.fixed)
            return self._linked(item, entry, reads, block.outputs, current)
        return self._operator(item, reads, current)

    def _operator(self, number: int, reads: Sequence[Entry], current: Optional[Entry]) -> Optional[Entry]:
        call = TorchCall(cast(Writer, self), number)
        converter = self.source.converters.get(call.op)
        if converter is None:
            raise call.unsupported()
        converted = converter(call)
        outputs = self._makes(number) or [(number, 0)]
        if isinstance(converted, Layer):
            names = {self.source.structural[entry]: name for name, entry in converted.parameters.items()}
            entry = (converted.code, names, dict(converted.extra), list(converted.fixed))
            if converted.plain:
                expression = converted.plain
            else:
                attribute = self._free(self._layer_name(call, list(names)))
                self._add(attribute, *entry)
                expression = f"self.{attribute}({converted.argument or call.x()})"
            self._forget(reads)
            if converted.results:
                count = converted.results.count("{")
                made = [(number, index) for index in range(count)]
                targets = [self._variable(one, reads) if one in outputs else "_" for one in made]
                self._body.append(f"{converted.results.format(*targets)} = {expression}")
                self._chain = None
                return None
            self._assign(outputs[0], expression, reads)
            name = self._layer_name(call, list(names))
            return self._linked(name, entry, [] if converted.argument else reads, outputs, current)
        expressions = [converted] if isinstance(converted, str) else list(converted)
        self._forget(reads)
        if len(expressions) == 1 or len(outputs) == 1:
            self._assign(outputs[0], expressions[outputs[0][1]], reads)
        else:
            # The expressions read variables, so none is replaced before the last one.
            pairs = [(self._variable(entry, ()), expressions[entry[1]]) for entry in outputs]
            self._body.append(f"{', '.join(name for name, _ in pairs)} = {', '.join(text for _, text in pairs)}")
        self._chain = None
        return None

    def _linked(
        self, name: str, entry: Any, reads: Sequence[Entry], outputs: Sequence[Entry], current: Optional[Entry]
    ) -> Optional[Entry]:
        code, names, extra, fixed = entry
        is_link = self._chain is not None and list(reads) == [current] and len(outputs) == 1
        # A tensor that is also read elsewhere is not only within the chain.
        if not is_link or current is None or self._left[current] > 0:
            self._chain = None
            return None
        assert self._chain is not None
        self._chain.append((name, code, dict(names), dict(extra), list(fixed)))
        return outputs[0]

    def _assign(self, entry: Entry, expression: str, reads: Sequence[Entry]) -> None:
        if expression in self._names.values() and not expression.startswith("self."):  # nothing is computed
            self._names[entry] = expression
            return
        self._body.append(f"{self._variable(entry, reads)} = {expression}")

    def _add(
        self, attribute: str, code: Code, names: Mapping[str, str], extra: Mapping[str, Any], fixed: Sequence[str]
    ) -> None:
        self._modules.append((attribute, code))
        self._state.update((key, f"{attribute}.{value}") for key, value in names.items())
        self._extra.update((f"{attribute}.{key}", value) for key, value in extra.items())
        self._fixed += [f"{attribute}.{value}" for value in fixed]

    # Names.

    def _forget(self, reads: Sequence[Entry]) -> None:
        for entry in reads:
            self._left[entry] -= 1

    def _variable(self, entry: Entry, reads: Sequence[Entry]) -> str:
        """Returns the variable of a new tensor: that of an input that nobody reads any more, or a free one."""
        used = {name for other, name in self._names.items() if self._left[other] > 0 and not name.startswith("self.")}
        before = [self._names[one] for one in reads if one in self._names]
        free = itertools.chain(before, VARIABLES, (f"x{k}" for k in itertools.count(len(used) + 20)))
        name = next(one for one in free if one not in used and not one.startswith("self."))
        self._names[entry] = name
        return name

    def _attribute(self, structural: str) -> str:
        rest = structural[len(self.path) + 1 :] if self.path and _is_within(structural, self.path) else structural
        return self._free(rest)

    def _free(self, wanted: str) -> str:
        base = re.sub(r"\W", "_", wanted.strip("."))
        base = f"layer{base}" if not base or base[0].isdigit() else base
        base = f"{base}_" if base in RESERVED or hasattr(_Names, base) else base
        taken = {name for name, _ in self._modules} | {
            match[1] or match[2]
            for match in (re.match(r'self\.(?:register_buffer\("(\w+)"|(\w+) =)', line) for line in self._lines)
            if match
        }
        name, count = base, 2
        while name in taken:
            name, count = f"{base}_{count}", count + 1
        return name

    def _layer_name(self, call: TorchCall, structural: Sequence[str]) -> str:
        """Returns the name of a layer: that of its block, or of its parameters, or of the operator."""
        layer = self.source.layers[call.number]
        if layer != self.path and _is_within(layer, self.path):
            return (layer[len(self.path) + 1 :] if self.path else layer).replace(".", "_")
        own = structural[0] if structural else ""
        path, _, last = own.rpartition(".")
        stem = re.sub(r"_?(weight|gamma|bias|beta|[lr]\d+_.*)$", "", last)
        return stem or call.op.lower().strip("_")


class _Names:
    """Attributes of nn.Module that layers must not replace."""

    add_module = apply = buffers = children = cpu = cuda = double = eval = extra_repr = float = forward = half = None
    load_state_dict = modules = named_modules = parameters = register_buffer = requires_grad_ = state_dict = to = None
    train = training = type = zero_grad = compile = share_memory = bfloat16 = None
