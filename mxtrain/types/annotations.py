"""Names for annotations: protocols, and types of values from MXNet, JSON and Hydra.

Nothing here runs: a module imports these names `if TYPE_CHECKING`.

MXNet, GluonCV and Horovod have no type annotations; tests/stubs declares the classes of MXNet that annotations use.
`Any` marks values whose type another library decides.
"""

from __future__ import annotations

from types import ModuleType
from typing import (
    TYPE_CHECKING,
    Any,
    Dict,
    List,
    Mapping,
    Optional,
    Protocol,
    Sequence,
    Tuple,
    TypedDict,
    Union,
)

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray
    from mxnet.symbol import Symbol
    from rich.console import RenderableType

    Array = Union[NDArray, Symbol]
    """An array, or its placeholder symbol while a network is traced."""
    Returned = Union[NDArray, List[NDArray], Tuple[NDArray, ...]]
    """Return value of a block: one array, or several."""

OperatorModule = ModuleType
"""`F` of a `hybrid_forward`: mx.nd for arrays, mx.sym for symbols."""

Json = Union[None, bool, int, float, str, Sequence["Json"], Mapping[str, "Json"]]
"""A value that can be written as JSON."""
JsonObject = Mapping[str, Any]
"""A JSON object as it was read; code that takes a value out of it states the type of the value."""
Config = Mapping[str, Any]
"""A configuration as plain nested dicts, lists and values: resolved, as in config.yaml."""
MetricRow = Mapping[str, Any]
"""A row of metrics.jsonl: step, epoch and split, then loss, metrics and rates by name."""

JsonForm = Union[type, Tuple[type, ...], List["JsonForm"], Dict[str, "JsonForm"]]
"""Describes which JSON values are valid: a type or several types; an object of fixed keys ("name?" may be missing) or
of any keys ({"*": form}); a list whose items have one form ([form])."""
GraphRow = Tuple[str, str, Tuple[str, ...], Mapping[str, str], Optional[Tuple[int, ...]]]
"""A node of a network in readable form: name, operator, names of inputs, attributes, output shape."""


class Best(TypedDict):
    """The best validation of a run."""

    metric: str
    value: float
    step: int
    loss: Optional[float]
    """val/loss of the same validation."""


class GraphNode(TypedDict, total=False):
    """A node in the JSON of a symbol; `attrs` is missing if the operator was given no arguments."""

    op: str
    """The operator; "null" for a variable."""
    name: str
    attrs: Dict[str, str]
    inputs: List[List[int]]
    """(node, index of its output, version) of each input."""
    subgraphs: List[SymbolGraph]
    """The graphs of parts of the network that are hybridized separately."""


class SymbolGraph(TypedDict, total=False):
    """The JSON of a symbol, as `Symbol.tojson` gives it."""

    nodes: List[GraphNode]
    arg_nodes: List[int]
    """The positions of variables in `nodes`."""
    node_row_ptr: List[int]
    heads: List[List[int]]
    attrs: Dict[str, Tuple[str, Json]]


class LossBlock(Protocol):
    """A gluon block of (*outputs, *targets) -> loss (B,), or with `weighted = True` -> loss (B,) and weight (B,).

    With `parts = ("NAME", ...)` it then returns one array (B,) for each name, which is only logged, as sum(part) /
    sum(weight). `least_weight` is a lower bound on the sum of the weights of a global batch, so that a batch without
    objects still trains the network if weights count objects.
    """

    def __call__(self, *arrays: NDArray) -> Returned: ...


class UsageReport(Protocol):
    """Measurements of a few steps, or durations."""

    def table(self) -> RenderableType:
        """Returns a table for people, which `rich` prints."""

    def scalars(self) -> Dict[str, float]:
        """Returns the values by TensorBoard tag."""
