"""Puts operators that oneDNN handles well instead of equal ones that it does not. Imports no MXNet until called.

A gradient that comes in another memory layout than its batch norm's input sends that norm to a reference kernel, which
takes a hundred times as long as the compiled one. DNNL_VERBOSE=1 names them `ref:any`. A convolution whose filters do
not fill oneDNN's blocks is a plain matrix product instead (`x64:gemm`), and all around it is put into another layout.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Dict, Optional, Set

from mxtrain.model.graph.trace import NotTraceable, blocks_by_path, trace
from mxtrain.types import Shapes

if TYPE_CHECKING:
    from mxnet import gluon

    from mxtrain.types.annotations import Array, OperatorModule

BLOCK = 16
"""Channels that oneDNN's kernels for AVX-512 compute at once; those for AVX2 compute half as many."""


def fill_block(layer: gluon.nn.Conv2D) -> None:
    """Gives a convolution filters of zeros up to the next multiple of `BLOCK`, whose outputs are left out again.

    oneDNN would do so by itself, in arrays larger than MXNet has room for; so MXNet takes a matrix product instead.

    Args:
        layer: its outputs are read once, by what wants channels last, say: they leave the blocks here.
    """
    channels = layer._kwargs["num_filter"]
    missing = -channels % BLOCK
    # More zeros than filters would more than double the work of the layer.
    if layer._kwargs["num_group"] == 1 and 0 < missing <= channels:
        filled = {**layer._kwargs, "num_filter": channels + missing}
        # On the object: its class stays what others know it as.
        object.__setattr__(layer, "hybrid_forward", functools.partial(_filled, layer, filled, missing))


def _filled(
    layer: gluon.nn.Conv2D,
    options: Dict[str, Any],
    missing: int,
    F: OperatorModule,
    x: Array,
    weight: Array,
    bias: Optional[Array] = None,
) -> Array:
    arrays = [weight] if bias is None else [weight, bias]
    zeros = (F.zeros_like(F.slice_axis(array, axis=0, begin=0, end=missing)) for array in arrays)
    filled = (F.concat(array, padding, dim=0) for array, padding in zip(arrays, zeros))
    y = F.slice_axis(F.Convolution(x, *filled, name="fwd", **options), axis=1, begin=0, end=-missing)
    return y if layer.act is None else layer.act(y)


def average_by_mean(network: gluon.Block, input_shape: Shapes) -> None:
    """Makes average pooling over whole images a mean over their height and width, whose gradient has MXNet's plain
    layout, from which MXNet finds the right one. (The gradient of oneDNN's pooling to one pixel has channels last.)

    Args:
        network: takes samples of this shape.
        input_shape: of one sample, or of each of its parts.
    """
    from mxtrain.engine.backend import gluon

    pools = {
        path: block
        for path, block in blocks_by_path(network)
        # Subclasses of a user may compute something else, so only the classes themselves are changed.
        if type(block) in (gluon.nn.GlobalAvgPool2D, gluon.nn.AvgPool2D) and block._kwargs["layout"] == "NCHW"
    }
    covered = {path for path, block in pools.items() if type(block) is gluon.nn.GlobalAvgPool2D}
    if len(covered) < len(pools):
        covered |= _covering(network, input_shape, pools)
    for path in covered:
        # On the object: its class stays what others know it as.
        object.__setattr__(pools[path], "hybrid_forward", _mean)


def _covering(network: gluon.Block, input_shape: Shapes, pools: Dict[str, gluon.Block]) -> set:
    """Returns the paths of the pools whose window is the whole image."""
    try:
        nodes = trace(network, input_shape).nodes
    except NotTraceable:
        return set()
    whole_image: Set[str] = set()
    others: Set[str] = set()
    for node in nodes:
        if node.op == "Pooling" and node.layer in pools:
            kwargs, (source, *_) = pools[node.layer]._kwargs, node.inputs
            shape = nodes[source].shape or ()
            is_whole = tuple(kwargs["kernel"]) == tuple(shape[2:]) and not any(kwargs["pad"])
            (whole_image if is_whole else others).add(node.layer)
    # A block that is called for maps of several sizes must stay a pooling.
    return whole_image - others


def normalise_as_images(network: gluon.Block, input_shape: Shapes) -> None:
    """Makes batch norms of series and volumes, or over another axis than 1, reshape their input to images.

    MXNet 1.9.1 has no oneDNN kernel for these, and its plain kernel fails (`!is_view`) on the layouts that oneDNN's
    convolutions return for 3 and 5 axes.

    Args:
        network: initialised network.
        input_shape: shape of one sample, or of each of its parts.
    """
    from mxtrain.engine.backend import gluon

    norms = {path: block for path, block in blocks_by_path(network) if type(block) is gluon.nn.BatchNorm}
    if not norms:
        return
    try:
        nodes = trace(network, input_shape).nodes
    except NotTraceable:
        return
    # Only networks with convolutions have arrays in the layouts on which MXNet's plain kernel fails.
    if not any(node.op in ("Convolution", "Deconvolution") for node in nodes):
        return
    for node in nodes:
        if node.op == "BatchNorm" and node.layer in norms:
            block, num_axes = norms[node.layer], len(nodes[node.inputs[0]].shape or ())
            if num_axes in (3, 5) or num_axes == 4 and block._kwargs["axis"] != 1:
                object.__setattr__(block, "hybrid_forward", functools.partial(_norm_of_image, block))


def _norm_of_image(layer: gluon.nn.BatchNorm, F: OperatorModule, x: Array, **parameters: Array) -> Array:
    options, axis = {**layer._kwargs, "axis": 1}, layer._kwargs["axis"]
    moved = x if axis == 1 else F.SwapAxis(x, dim1=1, dim2=axis)
    # A batch norm depends on the channel alone, so all other axes may be one.
    image_BCP1 = F.reshape(moved, shape=(0, 0, -1, 1))
    arrays = (parameters[name] for name in ("gamma", "beta", "running_mean", "running_var"))
    y = F.reshape_like(F.BatchNorm(image_BCP1, *arrays, name="fwd", **options), moved)
    return y if axis == 1 else F.SwapAxis(y, dim1=1, dim2=axis)


def _mean(F: OperatorModule, image_BCHW: Array) -> Array:
    return F.mean(image_BCHW, axis=(2, 3), keepdims=True)
