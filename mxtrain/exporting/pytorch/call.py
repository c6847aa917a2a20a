"""The interface of a converter to PyTorch: one operator of the traced network, and the layer or code for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Protocol, Sequence, Tuple, Union

import numpy as np

from mxtrain.exporting.graph import STRIDES, Entry, Operator, ProbedGraph, ShapeNotExpressible, Size


@dataclass(frozen=True)
class LayerSize:
    """An integer in the constructor of a layer, which may become an argument of a class that several blocks share.

    Attributes:
        name: name of the argument.
        value: the integer.
    """

    name: str
    value: int


@dataclass(frozen=True)
class Construction:
    """A call of a generated class.

    Attributes:
        template: key of the class.
        numbers: all integers in it, also those that turn out to be the same in all calls.
    """

    template: Any
    numbers: Tuple[LayerSize, ...]


Token = Union[str, LayerSize, Construction]
Code = Tuple[Token, ...]


@dataclass(frozen=True)
class Layer:
    """A layer of torch.nn.

    Attributes:
        code: its constructor.
        parameters: name in the layer -> tensor of the traced network.
        extra: arrays of the layer that MXNet does not have, by name.
        fixed: names of its parameters that are not trained.
        argument: expression that it is called with; "" = the first input.
        plain: expression that replaces the layer where there is a method that can hold it; "" = none.
        results: names of results, e.g. "{0}, ({1}, {2})"; "" = a single one.
    """

    code: Code
    parameters: Mapping[str, Entry] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    fixed: Sequence[str] = ()
    argument: str = ""
    plain: str = ""
    results: str = ""


Converted = Union[Layer, str, Sequence[str]]


class Module(Protocol):
    """The file that is being written, see `ModuleSource`."""

    graph: ProbedGraph
    structural: Dict[Entry, str]
    helpers: Dict[str, None]
    remarks: Dict[str, None]


class Writer(Protocol):
    """The class whose method `forward` is being written, see `Scope`."""

    source: Module
    first_input: str

    def name_of(self, entry: Entry) -> str: ...

    def add_buffer(self, name: str, value: np.ndarray) -> str: ...

    def known_sizes(self) -> List[Tuple[str, Size]]: ...


class TorchCall(Operator):
    """One operator of the network, whose converter returns a `Layer`, or an expression for each of its outputs.

    Args:
        scope: class whose method `forward` is being written.
        number: number of the node in the symbol.
    """

    target = "PyTorch"
    converters = "mxtrain/exporting/pytorch/operators/ (docs/deploy/pytorch.md)"

    def __init__(self, scope: Writer, number: int):
        super().__init__(scope.source.graph, number)
        self._scope = scope

    def x(self, index: int = 0) -> str:
        """Returns the variable of an input, or the attribute if it is a parameter."""
        return self._scope.name_of(self.entries[index])

    @property
    def inputs(self) -> List[str]:
        """Returns the variables of all inputs."""
        return [self.x(index) for index in range(len(self))]

    def owns(self, *indices: int) -> bool:
        """Returns True if these inputs are parameters that nothing else reads, so that a layer can hold them."""
        source = self._scope.source
        return all(
            self.entries[index] in source.structural and source.graph.num_users(self.entries[index]) == 1
            for index in indices
        )

    def construct(self, name: str, *sizes: LayerSize, **options: Any) -> Code:
        """Returns the constructor of a layer.

        Args:
            name: its class.
            sizes: positional arguments.
            options: further arguments, as `LayerSize`, tuples of them or other values.
        """
        tokens: List[Token] = [f"{name}("]
        arguments: List[List[Token]] = [[size] for size in sizes]
        arguments += [[f"{key}=", *_tokens(value)] for key, value in options.items()]
        for number, argument in enumerate(arguments):
            tokens += [", ", *argument] if number else argument
        return (*tokens, ")")

    def helper(self, name: str) -> str:
        """Returns the name of a function or class of `helpers`, which is written into the file."""
        self._scope.source.helpers[name] = None
        return name

    def remark(self, text: str) -> None:
        """Adds a sentence about something that the code leaves out."""
        self._scope.source.remarks[text] = None

    def array(self, name: str, value: Any) -> str:
        """Returns the attribute of a constant array that is kept as a buffer."""
        return self._scope.add_buffer(name, value)

    @property
    def device(self) -> str:
        """Returns the device on which the network computes, as an expression."""
        return f"{self._scope.first_input}.device"

    def ints(self, index: int) -> str:
        """Returns an input of integers, which MXNet often stores as float32, as int64."""
        return self.x(index) if self.dtype(index) == "int64" else f"{self.x(index)}.long()"

    def shape(self, dims: Sequence[Size], old: int = 0, infer: bool = True) -> str:
        """Returns a shape whose dimensions may be open, as the arguments of `reshape` or `expand`.

        Args:
            dims: the dimensions.
            old: input whose dimensions at the same position are preferred.
            infer: True if a single open dimension may be written as -1.
        """
        is_open = [len(set(size)) > 1 for size in dims]
        if infer and sum(is_open) == 1:
            return ", ".join("-1" if free else str(size[0]) for free, size in zip(is_open, dims))
        return ", ".join(self.size(size, axis, old) for axis, size in enumerate(dims))

    def size(self, target: Size, at: int = 0, old: int = 0) -> str:
        """Returns one dimension as an expression, computed from those of the operator's inputs.

        Args:
            target: its size in all probes.
            at: axis whose size is preferred among equal ones.
            old: input whose sizes are preferred.

        Raises:
            ShapeNotExpressible: it cannot be computed from them.
        """
        if len(set(target)) == 1:
            return str(target[0])
        known: List[Tuple[str, Size]] = []
        for index in sorted(range(len(self)), key=lambda index: index != old):
            axes = sorted(range(self.rank(index)), key=lambda axis: axis != at)
            known += [(f"{self.x(index)}.shape[{axis}]", self.dims(index)[axis]) for axis in axes]
        known += self._scope.known_sizes()
        known = [entry for entry in known if len(set(entry[1])) > 1]
        for name, size in known:
            if size == target:
                return name
        for name, size in known:
            found = _expression(name, size, target)
            if found:
                return found
        for name, size in known:
            for other, sizes in known:
                product = tuple(a * b for a, b in zip(size, sizes))
                ratio = {a / b for a, b in zip(target, product) if b}
                if len(ratio) == 1 and next(iter(ratio)) == int(next(iter(ratio))):
                    factor = int(next(iter(ratio)))
                    return f"{name} * {other}{f' * {factor}' if factor > 1 else ''}"
        raise ShapeNotExpressible(
            f"export: the operator {self.op} ({self.name}, in layer '{self.layer}') makes a size that cannot be "
            "computed from those of its inputs. Type dynamic=batch."
        )


def _expression(name: str, size: Size, target: Size) -> str:
    """Returns one size computed from another; "" if no formula is right in all probes."""
    pairs = list(zip(size, target))
    if all(a and b % a == 0 for a, b in pairs) and len({b // a for a, b in pairs}) == 1:
        return f"{name} * {pairs[0][1] // pairs[0][0]}"
    if all(b and a % b == 0 for a, b in pairs) and len({a // b for a, b in pairs}) == 1:
        return f"{name} // {pairs[0][0] // pairs[0][1]}"
    stride = next((one for one in STRIDES if all(-(-a // one) == b for a, b in pairs)), None)
    if stride is not None:
        return f"-(-{name} // {stride})"
    offset = {b - a for a, b in pairs}
    return f"{name} + {offset.pop()}".replace("+ -", "- ") if len(offset) == 1 else ""


def _tokens(value: Any) -> List[Token]:
    if isinstance(value, LayerSize):
        return [value]
    if isinstance(value, tuple) and value and all(isinstance(one, LayerSize) for one in value):
        if len({one.value for one in value}) == 1:
            return [value[0]]
        inner: List[Token] = []
        for number, one in enumerate(value):
            inner += [", ", one] if number else [one]
        return ["(", *inner, ")"]
    return [repr(value)]


def numbers(name: str, values: Sequence[int]) -> Tuple[LayerSize, ...]:
    """Returns integers as arguments of a layer; equal ones are written as one."""
    return tuple(LayerSize(name, int(value)) for value in values)


def optional(**options: Tuple[Any, Any]) -> Dict[str, Any]:
    """Returns the options that differ from their default.

    Args:
        options: name -> (value, default); a value may be a tuple of numbers that are compared with the default.
    """
    found: Dict[str, Any] = {}
    for name, (value, default) in options.items():
        plain = [one.value for one in value] if isinstance(value, tuple) else [getattr(value, "value", value)]
        if any(one != default for one in plain):
            found[name] = value
    return found
