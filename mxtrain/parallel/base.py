"""Protocol of strategies: the methods that the training step calls, and the objective that it passes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Collection, Dict, FrozenSet, Iterator, List, Mapping, Optional, Sequence, Tuple

from mxtrain.amp.spec import FULL, Precision
from mxtrain.types import Batch, Shape, Shapes, Stateful

if TYPE_CHECKING:
    import numpy as np
    from mxnet import gluon
    from mxnet.ndarray import NDArray

    from mxtrain.engine.host_graph import HostGraph
    from mxtrain.kvstore.reduction import Reduction
    from mxtrain.kvstore.store import Store
    from mxtrain.metric.meter import Meter
    from mxtrain.optimizer.rows import TouchedRows
    from mxtrain.parallel.loss_function import FunctionExecutor, LossFunction, Network
    from mxtrain.parallel.planner import Layout
    from mxtrain.types.annotations import Config, LossBlock


@dataclass(frozen=True)
class Objective:
    """The computation that a strategy runs on its devices: network, loss and meter.

    Attributes:
        network: initialised gluon block on one device; the strategy moves its parameters to their devices.
        loss: training loss, (*outputs, *targets) -> loss (B,), or loss (B,) and weight (B,).
        meter: training meter, (loss (B,)[, weight (B,)], *outputs, *targets) -> vector of sums.
        input_shape: shape of one sample, or of each of its inputs.
        batch_size: number of samples of this worker's share of a batch; used to balance the stages.
        precision: precision of the network's computation.
        predict_shape: input shape in prediction, if that form of the network has fewer inputs.
        state_shapes: shapes, for one row, of the state that the network carries from batch to batch. These are its last
            inputs and its last outputs; loss and meter do not get them.
        global_batch_size: number of samples of a batch of all workers; 0 means `batch_size`.
        fuse: True to fuse operators if that changes no more than the last bits. Only for prediction.
    """

    network: gluon.Block
    loss: LossBlock
    meter: Meter
    input_shape: Shapes
    batch_size: int
    precision: Precision = FULL
    predict_shape: Optional[Shapes] = None
    state_shapes: Sequence[Shape] = ()
    global_batch_size: int = 0
    fuse: bool = False


class RemoteTables:
    """Embedding tables on servers: one copy that all workers read and update. This base class has no tables."""

    names: Collection[str] = ()
    """Structural names of the tables. They are not in `Strategy.trainable` or `Strategy.reductions`; `Strategy.values`
    holds proxies that read and write a few rows at a time. Only worker 0 writes."""

    def connect(
        self,
        store: Store,
        optimizer: Config,
        multipliers: Mapping[str, Tuple[float, float]],
        steps_per_epoch: int,
        seed: int,
    ) -> None:
        """Creates the tables on the servers, which draw their initial values. Collective; waits.

        Args:
            store: store that connects this worker to the servers.
            optimizer: optimizer of the description, as plain values.
            multipliers: structural name -> (lr_mult, wd_mult).
            steps_per_epoch: number of steps of an epoch, of each worker.
            seed: seed of the run.
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
        """Returns values of the connection to the servers over the lifetime of this process, by TensorBoard tag."""
        return {}


class Strategy:
    """Computes gradients of the mean loss over a global batch, and holds the canonical parameters.

    The mean is over samples. If samples have weights, `TrainingStep` converts it to the weighted mean after the
    gradients are summed.
    """

    objective: Objective
    """Network, loss and meter."""

    layout: Layout
    """Devices, microbatches and cut."""
    network: gluon.Block
    """The gluon block. Its parameters may be on several devices: call `gather` before calling it."""
    values: Dict[str, NDArray]
    """Structural name -> canonical array on the device that updates it; includes statistics and frozen parameters."""
    constants: FrozenSet[str]
    """Structural names of gluon Constants, which may contain infinities on purpose, e.g. an attention mask."""
    trainable: List[str]
    """Structural names of the parameters that get gradients, in a fixed order."""
    reductions: List[Reduction]
    """The gradients to sum, one entry per trainable parameter, in the same order."""
    loss_scale: float = 1.0
    """Factor of the loss before gradients are computed."""
    loss_function: Optional[LossFunction] = None
    """If set, `forward_backward` computes the loss by this function instead of the objective's network and loss."""
    recurrent_state: Optional[Stateful] = None
    """Recurrent state of the network, if it has one."""
    rows: Mapping[str, TouchedRows] = {}
    """Structural name -> rows of the gradient in `reductions`, for tables with row-wise gradients."""

    remote: RemoteTables = RemoteTables()
    """Tables whose rows are on servers."""

    def look_ahead(self, batch: Batch) -> Batch:
        """Prepares a training batch ahead of its step, in the reading thread."""
        return batch

    def forward_backward(self, batch: Batch) -> NDArray:
        """Computes the gradient of the scaled mean loss over `batch` into `reductions`, not yet summed over replicas.

        Returns:
            The meter's sums, on the first device. Asynchronous.
        """
        raise NotImplementedError

    def function_executor(self) -> FunctionExecutor:
        """Returns the executor of `loss_function`.

        Raises:
            ConfigError: the placement does not support loss functions.
        """
        raise NotImplementedError

    def network_on(self, replica: int) -> Network:
        """Returns the network that `loss_function` gets on a replica."""
        raise NotImplementedError

    def gradient(self, reduction: Reduction) -> np.ndarray:
        """Returns the owner's gradient of a parameter, for all rows of a table. Waits for the device."""
        return reduction.replicas[reduction.owner].asnumpy()

    def publish(self, names: Optional[Collection[str]] = None) -> None:
        """Copies `values` (all, or only `names`) to all replicas. Asynchronous."""
        raise NotImplementedError

    def other_copies(self) -> Iterator[Tuple[str, NDArray]]:
        """Yields (structural name, array) for each copy of `values` on another replica."""
        raise NotImplementedError

    def predict(self, inputs: Sequence[NDArray]) -> Tuple[NDArray, ...]:
        """Returns the network's outputs for `Batch.inputs` in inference mode, on the first device. Asynchronous."""
        raise NotImplementedError

    @property
    def room_for_ids(self) -> Optional[int]:
        """Returns the maximum number of distinct ids of one sample in prediction; None: no limit."""
        return None

    def fixed_size(self, index: int) -> Optional[int]:
        """Returns the only size that `predict` takes for the second axis of an input; None: any size.

        Args:
            index: number of the input.
        """
        return None

    def on_host(self) -> Optional[HostGraph]:
        """Returns the network as a NumPy function for `predict`; None if that is not supported.

        Supported are dense layers and activations on a CPU, in code that accepts symbols. The function has no
        parameters yet: take them from `values`, by the names in its `parameters`.
        """
        return None

    def gather(self) -> gluon.Block:
        """Returns the network with all parameters on the first device. The strategy cannot train afterwards."""
        raise NotImplementedError
