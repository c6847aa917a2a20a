"""Names the first layer whose output is non-finite."""

from __future__ import annotations

from typing import Any, List, Tuple

import numpy as np

from mxtrain.engine.backend import autograd


def first_nonfinite_layer(network: Any, *inputs: Any) -> str:
    """Runs `network` on `inputs` in training mode, layer by layer, and describes the first bad output.

    Returns: a clause such as "the first layer with a non-finite output is 'features.3' (BatchNorm)".
    """
    if not all(np.isfinite(array.asnumpy()).all() for array in inputs):
        return "the input batch itself is non-finite"
    found: List[Tuple[str, str]] = []
    hooks = [block.register_forward_hook(_watch(name, found)) for name, block in leaves(network)]
    hybrid = hasattr(network, "hybridize")
    if hybrid:
        network.hybridize(False)
    try:
        with autograd.train_mode():
            output = network(*inputs)
    finally:
        for hook in hooks:
            hook.detach()
    if found:
        return f"the first layer with a non-finite output is '{found[0][0]}' ({found[0][1]})"
    if np.isfinite(output.asnumpy()).all():
        return "every layer's output is finite: the loss function overflowed"
    return "the network's own output is non-finite, outside of any layer"


def leaves(block: Any, prefix: str = "") -> List[Tuple[str, Any]]:
    """All blocks without children, with their structural names, in the order of registration."""
    if not block._children:
        return [(prefix.rstrip(".") or "network", block)]
    return [leaf for name, child in block._children.items() for leaf in leaves(child, f"{prefix}{name}.")]


def _watch(name: str, found: List[Tuple[str, str]]) -> Any:
    def hook(block: Any, inputs: Any, outputs: Any) -> None:
        outputs = outputs if isinstance(outputs, (list, tuple)) else [outputs]
        if not found and not all(np.isfinite(output.asnumpy()).all() for output in outputs):
            found.append((name, type(block).__name__))

    return hook
