"""Precision of the arithmetic."""

from __future__ import annotations

import fnmatch
from typing import Any, ClassVar, Dict, List, Mapping

from mxtrain.amp.casts import FLOAT32, with_casts, with_marks
from mxtrain.amp.operators import BFLOAT16, FLOAT16, Operators
from mxtrain.types import Shape, Spec

LAYER = "__layer__"
"""Attribute of a graph's nodes: the structural name of the block that called the operator."""


class Precision(Spec):
    """Describes in which precision a network computes. A new one is a subclass and one YAML in conf/amp/.

    Parameters, gradients and optimizer state are float32 in any.
    """

    dtype: ClassVar[str] = FLOAT32
    """Of what is listed; all else is float32."""

    def marked(self, graph: Dict[str, Any], shapes: Mapping[str, Shape]) -> Dict[str, Any]:
        """The graph of a whole network, as `Symbol.tojson` says it, with what `lowered` needs to know of it.

        Args:
            graph: of operators.
            shapes: of its parameters.
        """
        return graph

    def lowered(self, graph: Dict[str, Any]) -> Dict[str, Any]:
        """A marked graph, or a piece of one, that computes in this precision."""
        return graph


class FullPrecision(Precision):
    """Everything in float32."""


FULL = FullPrecision()


class Mixed(Precision):
    """Products and convolutions, and what follows them, in fewer bits."""

    operators: ClassVar[Operators]

    float32_layers: List[str] = []
    """Layers that compute in float32 all the same: globs over structural names, e.g. output or features.0*."""

    def marked(self, graph: Dict[str, Any], shapes: Mapping[str, Shape]) -> Dict[str, Any]:
        return with_marks(graph, shapes, self.dtype, self.operators, self._keeps)

    def lowered(self, graph: Dict[str, Any]) -> Dict[str, Any]:
        return with_casts(graph)

    def _keeps(self, node: Dict[str, Any]) -> bool:
        layer = node.get("attrs", {}).get(LAYER, "")
        return any(fnmatch.fnmatchcase(layer, pattern) for pattern in self.float32_layers)


class BFloat16(Mixed):
    """bfloat16 on a CPU: the range of float32 in half the bytes, so nothing needs scaling."""

    dtype: ClassVar[str] = "bfloat16"
    operators: ClassVar[Operators] = BFLOAT16
