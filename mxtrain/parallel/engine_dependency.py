"""Orders what MXNet's engine does not: under static_shape a step writes batch norms' moving statistics.

The engine takes both passes of a norm for readers of them (`CreateEngineOp` of src/imperative/imperative_utils.h lists
all inputs as such). The backward pass writes them, or on GPUs cuDNN's forward pass.

- Later readers may see the old statistics, or a mixture of old and new. The operator of the backward pass also writes
  the gradients of the norm's scale and shift, which the engine knows. So after it an operator is put into the engine
  that pretends to write both: later readers wait for it.
- Earlier readers, such as the copy for a step that is put back, may see a mixture, too, and two microbatches may write
  at once, where the forward pass writes and a device has several threads. So the same operator is put before it: norms
  wait for all earlier readers.

It is one operator for all norms of a device, since each costs the host as long as a small one takes to compute.
"""

from __future__ import annotations

from typing import Dict, Optional, Sequence

from mxtrain.engine.backend import gluon, mx, nd, same_device_runs
from mxtrain.model.graph.symbol_block import norms_of
from mxtrain.model.graph.trace import blocks_by_path


def written_together(network: gluon.Block) -> Dict[str, str]:
    """Returns statistic -> parameter whose gradient the same operator writes, both by `Parameter.name`."""
    gradient_of = {}
    learns = {parameter.name for parameter in network.collect_params().values() if parameter.grad_req != "null"}
    for _, block in blocks_by_path(network):
        if isinstance(block, gluon.nn.basic_layers._BatchNorm):
            parameters = (block.gamma, block.beta, block.running_mean, block.running_var)
            norms = [[parameter.name for parameter in parameters]]
        else:
            norms = norms_of(block) if isinstance(block, gluon.SymbolBlock) else []
        for gamma, beta, mean, variance in norms:
            learned = [name for name in (gamma, beta) if name in learns]
            if learned:
                gradient_of.update({mean: learned[0], variance: learned[0]})
    return gradient_of


def can_add_dependencies(network: gluon.Block) -> bool:
    """Returns True if all that a backward pass may write besides gradients can be waited for."""
    known = written_together(network)
    return all(
        parameter._differentiable or isinstance(parameter, gluon.parameter.Constant) or parameter.name in known
        for parameter in network.collect_params().values()
    )


class EngineDependency:
    """Makes readers of moving statistics wait for a backward pass; without gradients, a forward pass for readers.

    Args:
        statistics: arrays.
        gradients: for each, one that the same operator writes; none where readers are waited for.
    """

    def __init__(self, statistics: Sequence[nd.NDArray], gradients: Sequence[nd.NDArray]):
        arrays = list({id(array): array for array in (*statistics, *gradients)}.values())
        self._runs = [[arrays[index] for index in run] for run in same_device_runs(arrays)]

    def __call__(self, device: Optional[mx.Context] = None) -> None:
        """Adds the dependency: call it after backward, or before forward if there are no gradients. Asynchronous;
        no value changes.

        Args:
            device: the only one whose arrays are meant; None = all.
        """
        for run in self._runs:
            if device is not None and run[0].context != device:
                continue
            # With an operator for each norm, these were 42 of the 61 calls of a ResNet-20 step.
            nd.amp_multicast(*run, num_outputs=len(run), out=run)  # arrays of one type that are their own results
