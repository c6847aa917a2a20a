"""Puts operators that oneDNN handles well in the place of equal ones that it does not. Imports no MXNet until called.

A gradient that comes in another memory layout than its batch norm's input sends that norm to a reference kernel, which
takes a hundred times as long as the compiled one. DNNL_VERBOSE=1 names them `ref:any`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Dict, Set

from mxtrain.model.graph.trace import NotTraceable, blocks_by_path, trace
from mxtrain.types import Shapes

if TYPE_CHECKING:
    from mxnet import gluon

    from mxtrain.annotations import Array, OperatorModule


def average_by_mean(network: gluon.Block, input_shape: Shapes) -> None:
    """Makes average pooling over whole images a mean over their height and width, whose gradient has MXNet's plain
    layout, from which MXNet finds the right one. (The gradient of oneDNN's pooling to one pixel has channels last.)

    Args:
        network: takes samples of this shape.
        input_shape: of one sample, or of each of its parts.
    """
    from mxtrain.engine.backend import gluon

    pools = {
        path: block for path, block in blocks_by_path(network)
        if type(block) in (gluon.nn.GlobalAvgPool2D, gluon.nn.AvgPool2D) and block._kwargs["layout"] == "NCHW"
    }  # fmt: skip
    covered = {path for path, block in pools.items() if type(block) is gluon.nn.GlobalAvgPool2D}
    if len(covered) < len(pools):
        covered |= _covering(network, input_shape, pools)
    for path in covered:
        # On the object: its class stays what others know it as.
        object.__setattr__(pools[path], "hybrid_forward", _mean)


def _covering(network: gluon.Block, input_shape: Shapes, pools: Dict[str, gluon.Block]) -> set:
    """Paths of pools whose window is all of the image."""
    try:
        nodes = trace(network, input_shape).nodes
    except NotTraceable:
        return set()
    found: Set[str] = set()
    others: Set[str] = set()
    for node in nodes:
        if node.op == "Pooling" and node.layer in pools:
            kwargs, (source, *_) = pools[node.layer]._kwargs, node.inputs
            shape = nodes[source].shape or ()
            is_whole = tuple(kwargs["kernel"]) == tuple(shape[2:]) and not any(kwargs["pad"])
            (found if is_whole else others).add(node.layer)
    return found - others


def _mean(F: OperatorModule, image_BCHW: Array) -> Array:
    return F.mean(image_BCHW, axis=(2, 3), keepdims=True)
