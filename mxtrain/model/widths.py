"""Gives the layers of a network other widths than their class does. Imports no MXNet until called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, Dict, Mapping

from mxtrain.errors import ConfigError, did_you_mean
from mxtrain.model.graph.trace import blocks_by_path

if TYPE_CHECKING:
    from mxnet import gluon


def _convolution() -> type:
    from mxtrain.engine.backend import gluon

    return gluon.nn.conv_layers._Conv


def _dense() -> type:
    from mxtrain.engine.backend import gluon

    return gluon.nn.Dense


def _norm() -> type:
    from mxtrain.engine.backend import gluon

    return gluon.nn.BatchNorm


STANDARD: Dict[str, Callable[[], type]] = {
    "Convolution": _convolution, "FullyConnected": _dense, "BatchNorm": _norm,
}  # fmt: skip
"""Operator -> the Gluon layer whose width can be set."""


def set_widths(network: gluon.Block, widths: Mapping[str, int]) -> None:
    """Gives layers other numbers of channels. Afterwards no shape of a layer's inputs is known: infer them anew.

    Args:
        network: uninitialised, with the shapes that its class gives.
        widths: structural name of a convolution or dense layer -> channels.

    Raises:
        ConfigError: there is no such layer.
    """
    from mxtrain.engine.backend import gluon

    layers = {
        path: block for path, block in blocks_by_path(network)
        if isinstance(block, _dense()) or (isinstance(block, _convolution()) and block._op_name == "Convolution")
    }  # fmt: skip
    for path in widths:
        if path not in layers:
            raise ConfigError(
                f"model.widths: there is no convolution or dense layer '{path}' in this network."
                f"{did_you_mean(path, layers)} Layers are called as in the table that a run prints, e.g. "
                f"{', '.join(list(layers)[:3]) or 'none here'}."
            )
    for path, block in layers.items():
        width = widths.get(path)
        old = block.weight.shape
        block.weight._shape = (old[0] if width is None else width, 0, *old[2:])
        if block.bias is not None and width is not None:
            block.bias._shape = (width,)
        if isinstance(block, _dense()):
            block._units = width or block._units
        else:
            _set_convolution(block, width or old[0], old)
    for _, block in blocks_by_path(network):
        if isinstance(block, _norm()):
            for parameter in (block.gamma, block.beta, block.running_mean, block.running_var):
                parameter._shape = (0,)
        for parameter in block._reg_params.values():
            parameter._var = None  # the symbol of a parameter knows its shape
        if isinstance(block, gluon.HybridBlock):
            block._clear_cached_op()


def _set_convolution(block: gluon.Block, width: int, old: tuple) -> None:
    """Sets the channels of a convolution; of a depthwise one its groups, too."""
    arguments = block._kwargs
    is_depthwise = arguments["num_group"] > 1 and old[1] == 1
    if is_depthwise:
        per_channel = old[0] // arguments["num_group"]
        arguments["num_group"] = max(width // per_channel, 1)
    arguments["num_filter"] = block._channels = width
