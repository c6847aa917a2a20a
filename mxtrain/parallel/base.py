"""Base classes of parallel strategies, and of embedding tables on servers.

A strategy places the network on devices, computes gradients and predictions there, and owns the parameters that the
optimizer updates. `TrainingStep` and `Evaluator` only use the methods of these classes, so they work with any
placement.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Collection, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from mxtrain.types import Batch, Stateful

if TYPE_CHECKING:
    import numpy as np
    from mxnet import gluon
    from mxnet.ndarray import NDArray

    from mxtrain.kvstore.reduction import Reduction
    from mxtrain.kvstore.store import Store
    from mxtrain.optimizer.rows import TouchedRows
    from mxtrain.parallel.layout import Layout
    from mxtrain.parallel.loss_function import LossFunction, Network
    from mxtrain.parallel.objective import Objective
    from mxtrain.types.annotations import Config


@dataclass(frozen=True)
class IdLimits:
    """Limits on the ids in the inputs of `Strategy.predict`.

    Attributes:
        distinct: largest number of distinct ids of a sample; None = no limit.
        fixed: index of an input -> required size of its second axis. Other inputs may have any size.
    """

    distinct: Optional[int] = None
    fixed: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class TableUpdates:
    """Settings with which servers initialize and update embedding tables.

    Attributes:
        optimizer: settings of the group `optimizer`, as plain values.
        multipliers: structural name -> (lr_mult, wd_mult).
        steps_per_epoch: number of steps that each worker takes in an epoch.
        seed: seed of the run, for initial values.
    """

    optimizer: Config
    multipliers: Mapping[str, Tuple[float, float]]
    steps_per_epoch: int
    seed: int


class RemoteTables:
    """Embedding tables on servers: one copy that all workers read and update. This base class has no tables."""

    names: Collection[str] = ()
    """Structural names of the tables. They are not in `Strategy.trainable` or `Strategy.reductions`; `Strategy.values`
    holds proxies that read and write a few rows at a time. Only worker 0 writes."""

    def connect(self, store: Store, updates: TableUpdates) -> None:
        """Creates the tables on the servers, which draw their initial values. Collective; waits.

        Args:
            store: store that connects this worker to the servers.
            updates: settings with which the servers initialize and update the tables.
        """

    def gradients(self) -> List[NDArray]:
        """Returns the gradients of the rows in this worker's share of the last batch."""
        return []

    def push(self, gradients: Sequence[NDArray], lr: float, factor: Optional[NDArray]) -> None:
        """Sends gradients to the servers, which apply them. Waits for the gradients.

        Args:
            gradients: gradients of this worker.
            lr: learning rate.
            factor: factor (1,) by which the sum of all workers' gradients is multiplied first; None = 1.
        """

    def summed_gradients(self) -> Dict[str, np.ndarray]:
        """Returns structural name -> gradient of the last update (R, U), summed over workers. Waits."""
        return {}

    def synchronize(self) -> None:
        """Waits until the servers have applied what this worker has sent."""

    def first_nonfinite(self) -> str:
        """Returns the name of the first table with infinite or NaN values; empty if all are finite."""
        return ""

    def optimizer_state(self, updater: Stateful) -> Stateful:
        """Returns the combined state of the updater and the optimizers on the servers."""
        return updater

    def summary(self) -> Dict[str, float]:
        """Returns statistics of the connection to the servers since this process started, by TensorBoard tag."""
        return {}


class Strategy:
    """Computes gradients of the mean loss over a global batch, and holds the canonical parameters.

    The mean is over samples. If samples have weights, `TrainingStep` converts it to the weighted mean after the
    gradients are summed.
    """

    objective: Objective
    """Network, loss and meter. Parameters of the network may be on several devices: call `gather` before calling it."""
    layout: Layout
    """Devices, microbatches and cut."""
    values: Dict[str, NDArray]
    """Structural name -> canonical array on the device that updates it; includes statistics and frozen parameters."""
    trainable: List[str]
    """Structural names of the parameters that get gradients, in a fixed order."""
    reductions: List[Reduction]
    """The gradients to sum, one entry per trainable parameter, in the same order."""
    recurrent_state: Optional[Stateful] = None
    """Recurrent state of the network, if it has one."""
    rows: Mapping[str, TouchedRows] = {}
    """Structural name -> rows of the gradient in `reductions`, for tables with row-wise gradients."""
    remote: RemoteTables = RemoteTables()
    """Tables whose rows are on servers."""
    id_limits: IdLimits = IdLimits()
    """Limits on the ids that `predict` accepts."""

    def look_ahead(self, batch: Batch) -> Batch:
        """Prepares a training batch before its step, e.g. requests its embedding rows. Called in the loading thread."""
        return batch

    def forward_backward(
        self, batch: Batch, loss_scale: float = 1.0, loss_function: Optional[LossFunction] = None
    ) -> NDArray:
        """Computes the gradient of the scaled mean loss over `batch` into `reductions`, not yet summed over replicas.

        Args:
            batch: this worker's share of the global batch.
            loss_scale: factor of the loss before gradients are computed.
            loss_function: computes the loss instead of the objective's network and loss.

        Returns:
            The meter's sums, on the first device. Asynchronous.
        """
        raise NotImplementedError

    def network_on(self, replica: int) -> Network:
        """Returns the network that a loss function gets on a replica.

        Raises:
            ConfigError: the placement does not support loss functions.
        """
        raise NotImplementedError

    def publish(self, names: Optional[Collection[str]] = None) -> None:
        """Copies `values` (all, or only `names`) to all replicas. Asynchronous."""
        raise NotImplementedError

    def other_copies(self, names: Optional[Collection[str]] = None) -> Iterator[Tuple[str, NDArray]]:
        """Yields (structural name, array) for each copy of `values` (all, or only `names`) on another replica."""
        raise NotImplementedError

    def predict(self, inputs: Sequence[NDArray]) -> Tuple[NDArray, ...]:
        """Returns the network's outputs for `Batch.inputs` in inference mode, on the first device. Asynchronous."""
        raise NotImplementedError

    def gather(self) -> gluon.Block:
        """Returns the network with all parameters on the first device. The strategy cannot train afterwards."""
        raise NotImplementedError


class StrategyView(Strategy):
    """Base class of strategies that wrap another one: subclasses override single methods, and the wrapped strategy does
    the rest.

    Args:
        whole: the wrapped strategy.
    """

    def __init__(self, whole: Strategy):
        self.whole = whole
        self.objective, self.layout = whole.objective, whole.layout
        self.values, self.trainable, self.reductions = whole.values, whole.trainable, whole.reductions
        self.recurrent_state, self.rows, self.remote = whole.recurrent_state, whole.rows, whole.remote
        self.id_limits = whole.id_limits

    def look_ahead(self, batch: Batch) -> Batch:
        return self.whole.look_ahead(batch)

    def forward_backward(
        self, batch: Batch, loss_scale: float = 1.0, loss_function: Optional[LossFunction] = None
    ) -> NDArray:
        return self.whole.forward_backward(batch, loss_scale, loss_function)

    def network_on(self, replica: int) -> Network:
        return self.whole.network_on(replica)

    def publish(self, names: Optional[Collection[str]] = None) -> None:
        self.whole.publish(names)

    def other_copies(self, names: Optional[Collection[str]] = None) -> Iterator[Tuple[str, NDArray]]:
        return self.whole.other_copies(names)

    def predict(self, inputs: Sequence[NDArray]) -> Tuple[NDArray, ...]:
        return self.whole.predict(inputs)

    def gather(self) -> gluon.Block:
        return self.whole.gather()
