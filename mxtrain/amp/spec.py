"""Mixed precision: options of the group `amp`, which sets the floating-point type of a network's operators."""

from __future__ import annotations

import fnmatch
from typing import TYPE_CHECKING, ClassVar, List, Mapping, Sequence

from mxtrain.amp.casts import FLOAT32, with_casts, with_marks
from mxtrain.amp.operators import BFLOAT16, FLOAT16, Operators
from mxtrain.types import Positive, PositiveFloat, Shape, Spec

if TYPE_CHECKING:
    from mxtrain.amp.scaling import NoScaling
    from mxtrain.types.annotations import GraphNode, SymbolGraph

LAYER = "__layer__"
"""Attribute of a graph's nodes: the structural name of the block that called the operator."""


class Precision(Spec):
    """Base class of the precisions. A new one is a subclass and one YAML in conf/amp/.

    Parameters, gradients and optimizer state are float32 in every precision.
    """

    dtype: ClassVar[str] = FLOAT32
    """The precision of the operators in `low_operators`; everything else is float32."""
    scales_loss: ClassVar[bool] = False
    """True if the loss is scaled, and steps in which a gradient overflows are skipped."""

    @property
    def low_operators(self) -> Sequence[str]:
        """Names of the operators that compute in `dtype`, if `Operators.pays` accepts their layer."""
        return ()

    def unsupported_reason(self, kind: str) -> str:
        """Returns why devices of a kind ("cpu" or "gpu") cannot compute in this precision; "" if they can.

        Does not import MXNet.
        """
        return ""

    def marked(self, graph: SymbolGraph, shapes: Mapping[str, Shape]) -> SymbolGraph:
        """Returns the graph of a whole network in which attributes mark the operators of low precision.

        Marking needs the whole network and its shapes. `lowered` inserts the casts later, after the graph was cut into
        pieces.

        Args:
            graph: the network as `Symbol.tojson` returns it.
            shapes: shape by name of a parameter or, as `<node>_output`, of an operator's output.
        """
        return graph

    def lowered(self, graph: SymbolGraph) -> SymbolGraph:
        """Inserts the casts of this precision into a marked graph or into a piece of one."""
        return graph

    def build_scaling(self) -> NoScaling:
        """Builds the loss scaling of this precision."""
        from mxtrain.amp.scaling import NoScaling

        return NoScaling()


class FullPrecision(Precision):
    """Computes everything in float32."""


FULL = FullPrecision()


class Mixed(Precision):
    """Computes matrix products and convolutions, and the operators that follow them, in 16 bits."""

    operators: ClassVar[Operators]

    float32_layers: List[str] = []
    """Layers that compute in float32: glob patterns of structural names, e.g. output or features.0*."""

    @property
    def low_operators(self) -> Sequence[str]:
        return sorted(self.operators.low)

    def marked(self, graph: SymbolGraph, shapes: Mapping[str, Shape]) -> SymbolGraph:
        # Marks are set on the whole network, so a cut into stages changes no operator's precision.
        return with_marks(graph, shapes, self.dtype, self.operators, self._keeps)

    def lowered(self, graph: SymbolGraph) -> SymbolGraph:
        return with_casts(graph)

    def _keeps(self, node: GraphNode) -> bool:
        layer = node.get("attrs", {}).get(LAYER, "")
        return any(fnmatch.fnmatchcase(layer, pattern) for pattern in self.float32_layers)


class BFloat16(Mixed):
    """bfloat16 on a CPU. It has the exponent range of float32, so the loss is not scaled."""

    dtype: ClassVar[str] = "bfloat16"
    operators: ClassVar[Operators] = BFLOAT16

    def unsupported_reason(self, kind: str) -> str:
        from mxtrain.runtime.amx import computes_bfloat16, cpu_flags

        if kind == "gpu":
            return "amp=bfloat16: MXNet computes in bfloat16 on CPUs only. Type amp=float16, or amp=off."
        if not computes_bfloat16(cpu_flags()):
            return (
                "amp=bfloat16: this processor has no AVX-512 (bw, dq, vl), without which oneDNN has no bfloat16. "
                "Type amp=off; networks trained in bfloat16 also compute in float32."
            )
        return ""


class Float16(Mixed):
    """float16 on GPUs with dynamic loss scaling."""

    dtype: ClassVar[str] = "float16"
    operators: ClassVar[Operators] = FLOAT16

    scales_loss: ClassVar[bool] = True
    init_scale: PositiveFloat = 65536.0
    """Initial loss scale; halved when a gradient overflows, and that step is skipped."""
    growth_interval: Positive = 2000
    """Steps without an overflow after which the scale is doubled."""

    def unsupported_reason(self, kind: str) -> str:
        if kind == "cpu":
            return (
                "amp=float16: MXNet has no products of float16 matrices on a CPU. Type amp=bfloat16 or amp=off, or "
                "name GPUs by parallel.devices=gpu:1."
            )
        return ""

    def build_scaling(self) -> NoScaling:
        from mxtrain.amp.scaling import DynamicScaling

        return DynamicScaling(self.init_scale, self.growth_interval)
