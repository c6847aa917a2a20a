"""Resizes maps to the size of another, which is known only when it runs. Imports no MXNet.

MXNet's BilinearResize2D takes the size as a number, which a traced network keeps for images of any other size; told
to resize like another array, it is slow: its gradient runs over all pixels of all maps on the CPU. Interpolation is
linear, so two products with small matrices give the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mxtrain.annotations import Array, OperatorModule


def resize_like(F: OperatorModule, maps: Array, like: Array) -> Array:
    """Bilinear interpolation, in which the corners' centres fall onto each other, as BilinearResize2D's.

    Args:
        F: mxnet.ndarray or mxnet.symbol.
        maps: (B, C, h, w).
        like: (B, ?, H, W): only its size is read.

    Returns:
        (B, C, H, W).
    """
    rows_Hh, columns_Ww = _weights(F, maps, like, 2), _weights(F, maps, like, 3)
    # `dot` sums over the first axis of its right operand, so rows are resized first; the larger result needs no
    # transpose.
    tall = F.transpose(F.dot(rows_Hh, F.transpose(maps, axes=(2, 0, 1, 3))), axes=(1, 2, 0, 3))
    return F.dot(tall, columns_Ww, transpose_b=True)


def fill_like(F: OperatorModule, maps: Array, like: Array) -> Array:
    """The same as `resize_like` for maps of one pixel: (B, C, 1, 1) to (B, C, H, W)."""
    return F.broadcast_like(maps, like, lhs_axes=(2, 3), rhs_axes=(2, 3))


def _weights(F: OperatorModule, maps: Array, like: Array, axis: int) -> Array:
    """The weight of each old position along `axis` in each new one: (new, old)."""
    new, old = F.contrib.arange_like(like, axis=axis), F.contrib.arange_like(maps, axis=axis)
    last_new, last_old = F.max(new), F.max(old)
    step = F.broadcast_div(last_old, F.broadcast_maximum(last_new, F.ones_like(last_new)))
    position = F.expand_dims(F.broadcast_mul(new, step), axis=1)
    distance = F.abs(F.broadcast_sub(position, F.expand_dims(old, axis=0)))
    return F.BlockGrad(F.relu(1 - distance))  # without: a product as large as the maps' own, for a gradient of nothing
