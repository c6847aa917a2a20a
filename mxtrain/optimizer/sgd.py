"""Stochastic gradient descent in one pass over weight, gradient and momentum, by an operator of our own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, List

from mxtrain.engine.backend import mx
from mxtrain.optimizer.native_update import NativeUpdate

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray


class SGDOptimizer(NativeUpdate, mx.optimizer.SGD):
    """Bit-identical to MXNet's SGD, unless gradients are multiplied first. Without native operators it is MXNet's.

    MXNet's update of several arrays at once walks through all of them in one thread as far as the largest goes.
    """

    def __init__(self, **arguments: Any):
        super().__init__(**arguments)
        if not self.has_native:
            self.aggregate_num = mx.optimizer.SGD(**arguments).aggregate_num

    def _update_impl(
        self,
        indices: List[int],
        weights: List[NDArray],
        grads: List[NDArray],
        states: List[Any],
        multi_precision: bool = False,
    ) -> None:
        # The native operator has no float32 copy of float16 weights.
        if not self.has_native or multi_precision:
            super()._update_impl(indices, weights, grads, states, multi_precision)
            return
        if not isinstance(indices, (list, tuple)):
            indices, weights, grads, states = [indices], [weights], [grads], [states]
        self._update_count(indices)
        has_momentum = states[0] is not None
        self._update_native(
            "_mxtrain_sgd",
            [(w, g, *([state] if has_momentum else [])) for w, g, state in zip(weights, grads, states)],
            ("momentum",) if has_momentum else (),
            has_momentum=int(has_momentum),
            lrs=self._get_lrs(indices),
            wds=self._get_wds(indices),
        )
