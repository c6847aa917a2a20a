"""Clips gradients by their global norm, without waiting for a device. Imports MXNet."""

from __future__ import annotations

from typing import List, Optional, Sequence, Tuple

import numpy as np

from mxtrain.engine.backend import native_operators, nd, same_device_runs
from mxtrain.engine.bound_call import BoundCall, are_same

Factor = Optional[nd.NDArray]


class GradientLimit:
    """Computes the factor that limits the common L2 norm of gradients.

    Source: Pascanu et al., https://arxiv.org/abs/1211.5063, algorithm 1.

    Args:
        max_norm: the limit.
    """

    def __init__(self, max_norm: float):
        self._max_norm = max_norm
        self._native: Optional[_NativeNorm] = None

    def __call__(self, gradients: Sequence[nd.NDArray], factor: Factor = None) -> Tuple[nd.NDArray, nd.NDArray]:
        """Computes the global norm and the factor that clips it.

        Args:
            gradients: gradients, on any devices.
            factor: factor (1,) by which the gradients must be multiplied in any case; None = 1.

        Returns:
            The norm of the gradients times `factor`, (1,), and the combined factor, (1,). The next call overwrites the
            combined factor.
        """
        native = self._native
        if native is None or not native.is_of(gradients, factor):
            native = self._native = _NativeNorm(gradients, factor) if _NativeNorm.supports(gradients, factor) else None
        if native is not None:
            return native(self._max_norm, factor)
        return norm_and_limit(gradients, self._max_norm, factor)


class _NativeNorm:
    """Computes the same bits with one call of a native operator, bound to the arrays of the gradients."""

    def __init__(self, gradients: Sequence[nd.NDArray], factor: Factor):
        self._gradients, self._is_scaled = list(gradients), factor is not None
        self._device = gradients[0].context
        further = [] if factor is None else [factor]
        limit = nd.empty((1,), ctx=self._device)
        self._call = BoundCall("_mxtrain_gradient_norm", [*gradients, *further], [limit, limit])
        self._sizes = str([gradient.size for gradient in gradients])

    @staticmethod
    def supports(gradients: Sequence[nd.NDArray], factor: Factor) -> bool:
        """Returns True if the native operator supports these arrays: float32, on one CPU device."""
        arrays = [*gradients, *([] if factor is None else [factor])]
        # The operator reads all arrays in one call, which MXNet allows on one device only.
        return native_operators().path is not None and all(
            array.dtype == np.float32 and array.context == arrays[0].context and array.context.device_type == "cpu"
            for array in arrays
        )

    def is_of(self, gradients: Sequence[nd.NDArray], factor: Factor) -> bool:
        """Returns True if the call is bound to these arrays."""
        return self._is_scaled == (factor is not None) and are_same(gradients, self._gradients)

    def __call__(self, max_norm: float, factor: Factor) -> Tuple[nd.NDArray, nd.NDArray]:
        if factor is not None:
            self._call.read(len(self._gradients), factor)
        # Return a new array in each step, because the recorder reads the norm some steps later.
        self._call.write(0, nd.empty((1,), ctx=self._device))
        norm, limit = self._call(
            size=len(self._gradients), sizes=self._sizes, max_norm=max_norm, scaled=int(self._is_scaled)
        )
        return norm, limit


def norm_and_limit(
    gradients: Sequence[nd.NDArray], max_norm: float, factor: Factor = None
) -> Tuple[nd.NDArray, nd.NDArray]:
    """Computes the same as `GradientLimit` with MXNet's operators, on any devices.

    Unlike gluon.utils.clip_global_norm it never waits for the device.
    """
    runs = [[gradients[index] for index in run] for run in same_device_runs(gradients)]
    first = gradients[0].context
    norms = [_norm(run).as_in_context(first) for run in runs]
    # In float64, where squares of float32 are exact and do not overflow.
    total = nd.sqrt(nd.add_n(*(nd.square(norm.astype("float64")) for norm in norms)))
    norm = total.astype(norms[0].dtype, copy=False)
    if factor is not None:
        norm = norm * factor.as_in_context(first).astype(norm.dtype, copy=False)
    # If the norm of finite gradients overflows, use the smallest possible factor instead of 0.
    bounded = nd.minimum(norm, float(np.finfo(norm.dtype).max))
    limit = nd.minimum(max_norm / (bounded + 1e-6), 1.0)  # 1e-6 as in PyTorch's clip_grad_norm_
    return norm, limit if factor is None else limit * factor.as_in_context(first).astype(norm.dtype, copy=False)


def _norm(arrays: Sequence[nd.NDArray]) -> nd.NDArray:
    """Returns the L2 norm of all elements of arrays on one device, (1,).

    The native operator gives the same bits for any number of threads. Unlike `multi_sum_sq`, neither way overflows
    before the norm itself does.
    """
    are_plain = all(array.dtype == np.float32 for array in arrays)
    if are_plain and native_operators().path is not None:
        sizes = [array.size for array in arrays]
        return nd._internal._mxtrain_array_norm(*arrays, size=len(arrays), sizes=sizes)
    # float16 sums of squares overflow at 65504, so narrower types are widened first.
    wide = [array.astype("float64" if array.dtype == np.float64 else "float32", copy=False) for array in arrays]
    return nd.norm(nd.concat(*(nd.norm(array).reshape((1,)) for array in wide), dim=0)).reshape((1,))


def multiply(gradients: List[nd.NDArray], factor: nd.NDArray) -> None:
    """Multiplies arrays in place, each on its device, by a factor (1,) that is on some device."""
    for run in same_device_runs(gradients):
        first = gradients[run[0]]
        # One copy per device instead of one per gradient.
        local_factor = factor.as_in_context(first.context).astype(first.dtype, copy=False)
        for index in run:
            gradient = gradients[index]
            nd.broadcast_mul(gradient, local_factor.reshape((1,) * gradient.ndim), out=gradient)
