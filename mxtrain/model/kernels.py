"""Puts operators that oneDNN handles well in the place of equal ones that it does not. Imports no MXNet until called.

A gradient that comes in another memory layout than its batch norm's input sends that norm to a reference kernel, which
takes a hundred times as long as the compiled one. DNNL_VERBOSE=1 names them `ref:any`.
"""

from __future__ import annotations

from typing import Any

from mxtrain.model.trace import blocks_by_path


def average_by_mean(network: Any) -> None:
    """Makes global average pooling over images a mean over their height and width, whose gradient has MXNet's plain
    layout, from which MXNet finds the right one. (The gradient of oneDNN's global pooling has channels last.)"""
    from mxtrain.backend import gluon

    for _, block in blocks_by_path(network):
        if type(block) is gluon.nn.GlobalAvgPool2D and block._kwargs.get("layout", "NCHW") == "NCHW":
            # On the object: its class stays what others know it as.
            object.__setattr__(block, "hybrid_forward", _mean)


def _mean(F: Any, image_BCHW: Any) -> Any:
    return F.mean(image_BCHW, axis=(2, 3), keepdims=True)
