"""Workaround for `Deconvolution` with a computed weight in MXNet 1.9.1 on a CPU. Imports no MXNet: callers pass it.

The backward pass of oneDNN's deconvolution swaps the channel axes of the weight's gradient in place, before MXNet has
allocated that gradient (`IOLogicalSwapMKLDNNMem` in src/operator/nn/mkldnn/mkldnn_deconvolution-inl.h). Only parameters
have theirs from the start. For a weight that other operators compute (weight or spectral normalisation, the transposed
weight of an encoder) the process ends, or the call fails with "could not execute a primitive". Such a call is computed
as a convolution of its input with zeros between the elements.

MXNet has no other implementation in float32. The convolution takes about as many times the work as the product of the
strides; layers with a parameter as weight are unchanged.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Callable, Sequence

from mxtrain.errors import ConfigError

if TYPE_CHECKING:
    from mxtrain.types.annotations import Array, OperatorModule


def with_computed_weights(operator: Callable[..., Any], F: OperatorModule, is_computed: Callable[[Any], bool]) -> Any:
    """Wraps the operator `Deconvolution` so that it has the right gradient for weights that other operators compute.

    Args:
        operator: function of `mxnet.nd` or `mxnet.sym`.
        F: that module.
        is_computed: returns True for a weight whose gradient goes on to other operators.
    """

    @functools.wraps(operator)
    def deconvolution(data: Any = None, weight: Any = None, *args: Any, **kwargs: Any) -> Any:
        # Parameters keep MXNet's operator: their gradient array exists before the backward pass that swaps its axes.
        if weight is None or len(args) > 1 or not is_computed(weight):
            return operator(data, weight, *args, **kwargs)
        bias = args[0] if args else kwargs.pop("bias", None)
        return transposed_convolution(F, data, weight, bias, **kwargs)

    return deconvolution


def transposed_convolution(
    F: OperatorModule,
    x: Array,
    weight: Array,
    bias: Any,
    *,
    kernel: Sequence[int],
    num_filter: int,
    stride: Sequence[int] = (),
    dilate: Sequence[int] = (),
    pad: Sequence[int] = (),
    adj: Sequence[int] = (),
    num_group: int = 1,
    no_bias: bool = True,
    target_shape: Sequence[int] = (),
    **others: Any,
) -> Array:
    """Computes a transposed convolution by a convolution.

    Args:
        F: `nd` or `sym`.
        x: (B, C, *sizes), channels second.
        weight: (C, num_filter / num_group, *kernel).
        bias: (num_filter,); not read if `no_bias`.
        kernel, num_filter, stride, dilate, pad, adj, num_group, no_bias: arguments of MXNet's `Deconvolution`.
        target_shape: must be empty.
        others: other arguments, e.g. the workspace, which do not change the result; the name of a symbol.

    Raises:
        ConfigError: `target_shape` is given.
    """
    if any(target_shape or ()):
        raise ConfigError(
            "Deconvolution with target_shape ends the process if other operators compute its weight. "
            "Use pad and adj instead of target_shape"
        )
    ndim = len(kernel)
    stride, dilate = stride or (1,) * ndim, dilate or (1,) * ndim
    pad, adj = pad or (0,) * ndim, adj or (0,) * ndim
    for axis, (step, extra) in enumerate(zip(stride, adj), 2):
        # `adj` adds rows at the end: of the zeros behind the last element, so many are not removed.
        x = _spread(F, x, axis, step, step - 1 - extra)
    weight = F.reverse(weight, axis=tuple(range(2, 2 + ndim)))
    weight = F.SwapAxis(F.reshape(weight, shape=(-4, num_group, -1, -2)), dim1=1, dim2=2)
    # A transposed convolution is padded by dilate * (kernel - 1) - pad. Negative margins are cut off below.
    margins = [(size - 1) * space - side for size, space, side in zip(kernel, dilate, pad)]
    arrays = [F.reshape(weight, shape=(-3, -2))] + ([] if no_bias else [bias])
    named = {"name": others["name"]} if "name" in others else {}
    y = F.Convolution(
        x,
        *arrays,
        kernel=kernel,
        dilate=dilate,
        pad=tuple(max(margin, 0) for margin in margins),
        num_filter=num_filter,
        num_group=num_group,
        no_bias=no_bias,
        **named,
    )
    for axis, margin in enumerate(margins, 2):
        if margin < 0:
            y = F.slice_axis(y, axis=axis, begin=-margin, end=margin)
    return y


def _spread(F: OperatorModule, x: Array, axis: int, step: int, end: int) -> Array:
    """Puts `step` - 1 zeros behind each element of an axis, and removes the last `end` of them."""
    if step > 1:
        x = F.expand_dims(x, axis=axis + 1)
        x = F.concat(x, *[F.zeros_like(x)] * (step - 1), dim=axis + 1)
        x = F.reshape(x, shape=(0,) * axis + (-3, -2))
    return F.slice_axis(x, axis=axis, begin=0, end=-end) if end else x
