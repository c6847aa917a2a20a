"""Adam with decoupled weight decay, which MXNet 1.9.1 has as an operator but not as an optimizer."""

from __future__ import annotations

import math
from typing import Any, Dict, Tuple

import numpy as np

from mxtrain.engine.backend import mx, nd, own_operators


class AdamWOptimizer(mx.optimizer.Optimizer):
    """weight -= rate * (mean / (sqrt(variance) + epsilon) + wd * weight).

    Source: Loshchilov and Hutter, https://arxiv.org/abs/1711.05101, algorithm 2, whose schedule multiplier is the rate.

    Args:
        bias_correction: whether the moments' bias towards 0 is corrected, as Adam's is in MXNet.
        arguments: beta1, beta2, epsilon, and MXNet's own.
    """

    def __init__(
        self, beta1: float = 0.9, beta2: float = 0.999, epsilon: float = 1e-6, bias_correction: bool = True,
        **arguments: Any,
    ):  # fmt: skip
        super().__init__(**arguments)
        self.beta1, self.beta2, self.epsilon, self.bias_correction = beta1, beta2, epsilon, bias_correction
        self.aggregate_num = 1  # above 0: several arrays at a time
        self._has_own = own_operators().path is not None
        self._scales: Dict[Tuple[mx.Context, float], nd.NDArray] = {}

    def create_state(self, index: int, weight: nd.NDArray) -> Tuple[nd.NDArray, nd.NDArray]:
        return nd.zeros_like(weight), nd.zeros_like(weight)

    def update(self, index, weight, grad, state):
        if not isinstance(index, (list, tuple)):
            index, weight, grad, state = [index], [weight], [grad], [state]
        self._update_count(index)
        rates, decays = self._get_lrs(index), self._get_wds(index)
        corrections = [self._correction(self._index_update_count[i]) for i in index]
        means, variances = zip(*state)
        common = {"beta1": self.beta1, "beta2": self.beta2, "epsilon": self.epsilon}
        if self.clip_gradient is not None:
            common["clip_gradient"] = self.clip_gradient
        if self._has_own:
            arrays = list(zip(weight, grad, means, variances))
            nd._internal._mxtrain_adamw(
                *(array for one in arrays for array in one), out=[one[i] for one in arrays for i in (0, 2, 3)],
                size=len(index), lrs=corrections, wds=decays, etas=rates, rescale_grad=self.rescale_grad, **common,
            )  # fmt: skip
            return
        if weight[0].dtype == np.float32:
            mx.nd.contrib.multi_adamw_update(
                list(weight), list(grad), list(means), list(variances), self._scale(weight[0]), out=list(weight),
                size=len(index), lrs=corrections, wds=decays, etas=rates, **common,
            )  # fmt: skip
            return
        # In float64 (verify) that operator takes its arrays for float32 and leaves noise in them.
        for w, g, mean, variance, rate, wd, correction in zip(
            weight, grad, means, variances, rates, decays, corrections
        ):  # fmt: skip
            nd._internal._mul_scalar(w, scalar=1 - rate * wd, out=w)
            nd.adam_update(
                w, g, mean, variance, out=w, lr=rate * correction, wd=0.0, rescale_grad=self.rescale_grad, **common
            )

    def _correction(self, step: int) -> float:
        return math.sqrt(1 - self.beta2**step) / (1 - self.beta1**step) if self.bias_correction else 1.0

    def _scale(self, weight: nd.NDArray) -> nd.NDArray:
        """`rescale_grad` as an array, which the operator wants; made once."""
        key = (weight.context, self.rescale_grad)
        if key not in self._scales:
            self._scales[key] = nd.full((1,), self.rescale_grad, ctx=weight.context)
        return self._scales[key]
