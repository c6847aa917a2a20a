"""Adam and AdamW, computed in one pass over the arrays by a native operator.

MXNet 1.9.1 has AdamW only as an operator, not as an optimizer.
"""

from __future__ import annotations

import math
from typing import Any, Dict, Sequence, Tuple

import numpy as np

from mxtrain.engine.backend import mx, nd
from mxtrain.optimizer.native_update import NativeUpdate


class NativeAdam(NativeUpdate):
    """Mixin of optimizers that use the native operator `_mxtrain_adamw` if native operators are available."""

    def _update_adam(
        self,
        weight: Sequence[nd.NDArray],
        grad: Sequence[nd.NDArray],
        state: Sequence[Tuple[nd.NDArray, nd.NDArray]],
        **options: Any,
    ) -> None:
        """Updates several arrays with the native operator."""
        arrays = [(w, g, *moments) for w, g, moments in zip(weight, grad, state)]
        self._update_native("_mxtrain_adamw", arrays, ("beta1", "beta2", "epsilon"), **options)


def correction(optimizer: mx.optimizer.Optimizer, step: int) -> float:
    """Returns the factor of the learning rate that corrects the bias of the moments towards 0."""
    return math.sqrt(1 - optimizer.beta2**step) / (1 - optimizer.beta1**step)


class AdamOptimizer(NativeAdam, mx.optimizer.Adam):
    """MXNet's Adam, in one pass over weight, gradient and moments if mxtrain's native operators are available.

    Source: Kingma and Ba, https://arxiv.org/abs/1412.6980, algorithm 1, in the order of its section 2's last sentence.
    """

    def __init__(self, **arguments: Any):
        super().__init__(**arguments)
        if not self.has_native:
            self.aggregate_num = 0  # MXNet's Adam updates one array at a time

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        if not self.has_native:
            super().update(index, weight, grad, state)
            return
        if not isinstance(index, (list, tuple)):
            index, weight, grad, state = [index], [weight], [grad], [state]
        self._update_count(index)
        steps = [self._index_update_count[i] for i in index]
        # Parameters nearly always share a step, so the powers are computed once and not once per parameter.
        correction_of = {step: correction(self, step) for step in set(steps)}
        corrections = [correction_of[step] for step in steps]
        self._update_adam(
            weight, grad, state, lrs=corrections, wds=self._get_wds(index), etas=self._get_lrs(index), coupled=1
        )


class AdamWOptimizer(NativeAdam, mx.optimizer.Optimizer):
    """AdamW: weight -= lr * (mean / (sqrt(variance) + epsilon) + wd * weight).

    Source: Loshchilov and Hutter, https://arxiv.org/abs/1711.05101, algorithm 2. The learning rate replaces the paper's
    schedule multiplier.

    Args:
        beta1: decay of the mean of gradients per step.
        beta2: decay of the mean of squared gradients per step.
        epsilon: added to the root of the variance, against division by 0.
        bias_correction: True to correct the bias of the moments towards 0, as in MXNet's Adam.
        arguments: arguments of MXNet's `Optimizer`.
    """

    def __init__(
        self,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-6,
        bias_correction: bool = True,
        **arguments: Any,
    ):
        super().__init__(**arguments)
        self.beta1, self.beta2, self.epsilon, self.bias_correction = beta1, beta2, epsilon, bias_correction
        self._scales: Dict[Tuple[mx.Context, float], nd.NDArray] = {}

    def create_state(self, index: int, weight: nd.NDArray) -> Tuple[nd.NDArray, nd.NDArray]:
        return nd.zeros_like(weight), nd.zeros_like(weight)

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        if not isinstance(index, (list, tuple)):
            index, weight, grad, state = [index], [weight], [grad], [state]
        self._update_count(index)
        rates, decays = self._get_lrs(index), self._get_wds(index)
        corrections = [self._correction(self._index_update_count[i]) for i in index]
        if self.has_native:
            self._update_adam(weight, grad, state, lrs=corrections, wds=decays, etas=rates)
            return
        means, variances = zip(*state)
        common = {"beta1": self.beta1, "beta2": self.beta2, "epsilon": self.epsilon}
        if self.clip_gradient is not None:
            common["clip_gradient"] = self.clip_gradient
        # Equal types are guaranteed by the caller, which groups the arrays of a fused update by type.
        if weight[0].dtype == np.float32:
            mx.nd.contrib.multi_adamw_update(
                list(weight),
                list(grad),
                list(means),
                list(variances),
                self._scale(weight[0]),
                out=list(weight),
                size=len(index),
                lrs=corrections,
                wds=decays,
                etas=rates,
                **common,
            )
            return
        # MXNet's operator treats float64 arrays (of `verify`) as float32 and fills them with garbage.
        for w, g, mean, variance, rate, wd, correction in zip(
            weight, grad, means, variances, rates, decays, corrections
        ):
            nd._internal._mul_scalar(w, scalar=1 - rate * wd, out=w)
            nd.adam_update(
                w, g, mean, variance, out=w, lr=rate * correction, wd=0.0, rescale_grad=self.rescale_grad, **common
            )

    def _correction(self, step: int) -> float:
        return correction(self, step) if self.bias_correction else 1.0

    def _scale(self, weight: nd.NDArray) -> nd.NDArray:
        """Returns `rescale_grad` as an array, which MXNet's operator requires. Cached."""
        # A new array in each step would be one more operator in the engine.
        key = (weight.context, self.rescale_grad)
        if key not in self._scales:
            self._scales[key] = nd.full((1,), self.rescale_grad, ctx=weight.context)
        return self._scales[key]
