"""Makes a network return the outputs of inner layers, for distillation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Dict, Sequence

from mxtrain.config.moved import moved_names

if TYPE_CHECKING:
    from mxnet import gluon

    from mxtrain.types.annotations import Array, OperatorModule


def expose_layers(network: gluon.Block, layers: Sequence[str], setting: str) -> None:
    """Makes a network return the outputs of some layers after its own outputs. Modifies the network in place.

    Args:
        network: a HybridBlock.
        layers: structural names of the layers.
        setting: setting that names the layers, for messages.

    Raises:
        ConfigError: there is no such layer, or the network is no HybridBlock. Calling the network raises it if the
            network does not call one of the layers.
    """
    from mxtrain.engine.backend import gluon
    from mxtrain.errors import ConfigError, did_you_mean
    from mxtrain.model.graph.trace import blocks_by_path

    if not isinstance(network, gluon.HybridBlock):
        raise ConfigError(f"{setting}: {type(network).__name__} is no HybridBlock, so its layers cannot be read.")
    blocks = {path: block for path, block in blocks_by_path(network) if path}
    for path in layers:
        if path not in blocks:
            raise ConfigError(
                f"{setting}: the network has no layer '{path}'.{did_you_mean(path, blocks)} Layers are called as in "
                "the table that a run prints."
            )
    original = network.hybrid_forward

    def hybrid_forward(F: OperatorModule, *inputs: Array, **parameters: Array) -> Any:
        layer_outputs: Dict[str, Any] = {}

        def keep(path: str) -> Callable[..., None]:
            return lambda block, args, output: layer_outputs.update({path: output})

        # Hooks exist only during the call: Gluon warns if a block with hooks is hybridized.
        hooks = [blocks[path].register_forward_hook(keep(path)) for path in layers]
        try:
            outputs = original(F, *inputs, **parameters)
        finally:
            for hook in hooks:
                hook.detach()
        outputs = outputs if isinstance(outputs, (list, tuple)) else (outputs,)
        # A layer may exist and not be called, for example an auxiliary head in inference.
        missing = [path for path in layers if path not in layer_outputs]
        if missing:
            raise ConfigError(f"{setting}: the network does not call its layer '{missing[0]}'.")
        return (*outputs, *(layer_outputs[path] for path in layers))

    # Not a wrapper block, which would change the structural names of the parameters. object.__setattr__ skips Gluon's
    # own __setattr__; the cached graph of the old forward must be dropped.
    object.__setattr__(network, "hybrid_forward", hybrid_forward)
    network._clear_cached_op()


if not TYPE_CHECKING:  # else mypy would accept any name
    __getattr__ = moved_names(__name__)
