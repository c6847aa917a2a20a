"""The Gluon block of losses that are functions. Imports MXNet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Sequence

from mxtrain.engine.backend import gluon

if TYPE_CHECKING:
    from mxtrain.types.annotations import Array, OperatorModule

Function = Callable[..., Any]


class FunctionBlock(gluon.HybridBlock):
    """A loss block around a function, see `mxtrain.types.annotations.LossBlock`.

    Args:
        function: (mx.nd or mx.sym, *arrays) -> loss (B,), or loss (B,) and weight (B,).
        used: (*outputs, *targets) -> the arrays of `function`. Gluon warns of arrays that a hybridized block does not
            use.
        weighted: whether `function` also returns weights.
        least_weight: lower bound on the sum of the weights of a global batch.
    """

    def __init__(
        self,
        function: Function,
        used: Callable[..., Sequence[Any]] = lambda *arrays: arrays,
        weighted: bool = False,
        least_weight: float = 0.0,
    ):
        super().__init__()
        self.weighted, self.least_weight = weighted, least_weight
        self._function, self._used = function, used

    def __call__(self, *arrays: Array) -> Any:
        return super().__call__(*self._used(*arrays))

    def hybrid_forward(self, F: OperatorModule, *arrays: Array) -> Array:
        return self._function(F, *arrays)
