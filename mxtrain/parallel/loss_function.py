"""Computes a loss that a user's function makes of the network and a batch, on every replica of a placement.

It takes the place of network, loss and meter in a step: gradients are left where the strategy sums them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Callable, List, Sequence, Union

from mxtrain.engine.backend import autograd, gluon, mx, nd
from mxtrain.errors import ConfigError
from mxtrain.model.networks.group import NetworkGroup
from mxtrain.parallel.stage import as_list, to_device
from mxtrain.parallel.tape import HeadGradients
from mxtrain.types import Batch

if TYPE_CHECKING:
    from mxnet import Context

    from mxtrain.parallel.engine_dependency import EngineDependency
    from mxtrain.parallel.layout import Shares
    from mxtrain.parallel.objective import Objective
    from mxtrain.types.annotations import Returned

LossFunction = Union[Callable[[Any, Batch], Union[nd.NDArray, Sequence[nd.NDArray]]], gluon.Block]
"""(network, batch) -> loss of each sample (B,), or the loss and the weight of each sample. A `gluon.Block` is called
with what the network returns and the targets, as a task calls its loss."""
Network = Callable[..., "Returned"]


class FunctionExecutor:
    """Runs a loss function on each shard of a batch; in place of `Pipelined`.

    Args:
        objective: its meter says what the sums are.
        networks: the network on each replica.
        devices: of each replica.
        dependencies: one for each replica.
    """

    def __init__(
        self,
        objective: Objective,
        networks: Sequence[Network],
        devices: Sequence[Context],
        dependencies: Sequence[EngineDependency],
    ):
        self._objective, self._networks = objective, networks
        self._devices, self._dependencies = devices, dependencies
        self._head_gradient = HeadGradients()

    def __call__(
        self, function: LossFunction, parts: List[Shares], global_batch_size: int, loss_scale: float
    ) -> List[nd.NDArray]:
        """Returns the meter's sums of each shard, without metrics, which are 0; gradients are left in the
        parameters."""
        self._head_gradient.scale = loss_scale
        sums: List[nd.NDArray] = []
        for shares in parts:
            for replica, share in enumerate(shares):
                for part in share:
                    batch = on_device(part, self._devices[replica])
                    with autograd.record():
                        losses = evaluate_loss(function, self._networks[replica], batch)
                    loss_B = losses[0]
                    # The same head gradients as for a task's loss, so a function with the same arithmetic gives the
                    # same bits.
                    backward(loss_B, self._head_gradient(loss_B, batch.size, global_batch_size))
                    sums.append(self.sums(losses, batch))
            for dependency in self._dependencies[: len(shares)]:
                dependency()
        return sums

    def sums(self, losses: Sequence[nd.NDArray], batch: Batch) -> nd.NDArray:
        """Returns the sums of losses and weights in the meter's layout."""
        meter = self._objective.meter
        if len(losses) == 2 and not meter.weighted:
            raise ConfigError("s.step: this task weighs all samples equally, and the loss function returns weights.")
        vectors = [array.astype("float32").sum().reshape((1,)) for array in losses]
        if meter.weighted and len(vectors) == 1:
            vectors.append(nd.full((1,), batch.size, ctx=vectors[0].context))
        missing = meter.width - len(vectors)
        if missing:
            vectors.append(nd.zeros((missing,), ctx=vectors[0].context))
        return nd.concat(*vectors, dim=0) if len(vectors) > 1 else vectors[0]


def backward(loss_B: nd.NDArray, head_gradient: nd.NDArray) -> None:
    """Computes the gradients of the parameters.

    Raises:
        ConfigError: the loss was not computed from what the network returned.
    """
    try:
        loss_B.backward(head_gradient)
    except mx.MXNetError as error:
        # MXNet raises the same type for all errors, so only the text identifies this one.
        if "not in a computational graph" not in str(error):
            raise
        raise ConfigError(
            "the loss does not depend on the network: there is nothing to update. Compute it from what network(...) "
            "returns in the function, without detach() or asnumpy()."
        ) from error


def on_device(batch: Batch, device: Context) -> Batch:
    """Returns the part of a batch of a replica, on its device."""
    inputs, targets = (tuple(to_device(array, device) for array in arrays) for arrays in (batch.inputs, batch.targets))
    return replace(batch, inputs=inputs, targets=targets)


def evaluate_loss(function: LossFunction, network: Network, batch: Batch) -> List[nd.NDArray]:
    """Calls a loss function.

    Raises:
        ConfigError: it does not return one value for each sample.
    """
    if isinstance(function, gluon.Block):
        if isinstance(network, NetworkGroup):
            raise ConfigError(f"a {type(function).__name__} cannot tell several networks apart. Give a function.")
        returned = function(*as_list(network(*batch.inputs)), *batch.targets)
    else:
        returned = function(network, batch)
    losses: List[Any] = list(returned) if isinstance(returned, (tuple, list)) else [returned]
    if not 1 <= len(losses) <= 2 or not all(isinstance(loss, nd.NDArray) for loss in losses):
        shown = " and ".join(type(one).__name__ for one in losses) or "nothing"
        raise ConfigError(
            f"the loss function returned {shown}. It must return an MXNet array, the loss of each sample, "
            f"({batch.size},), or two, the second the weight of each: compute it with mxnet.nd, without asnumpy()."
        )
    if any(one.shape != (batch.size,) for one in losses):
        shown = " and ".join(str(one.shape) for one in losses)
        is_mean = any(one.size == 1 for one in losses)
        remedy = "leave .mean() out" if is_mean else "end it with .mean(axis=1), or flatten it before"
        raise ConfigError(
            f"the loss function returned {shown} for {batch.size} samples. It must return the loss of each sample, "
            f"({batch.size},), so that parts of a batch can be computed on other devices: {remedy}. A second array of "
            "this shape is the weight of each sample."
        )
    return losses
