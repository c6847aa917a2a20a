"""The protocol of a strategy: what the training step asks of it, and what it is given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Collection, Dict, FrozenSet, Iterator, List, Mapping, Optional, Sequence, Tuple

from mxtrain.amp import FULL, Precision
from mxtrain.types import Batch, Shape, Shapes, Stateful

if TYPE_CHECKING:
    import numpy as np
    from mxnet import gluon
    from mxnet.ndarray import NDArray

    from mxtrain.annotations import Config, LossBlock
    from mxtrain.engine.host_graph import HostGraph
    from mxtrain.kvstore.store import Reduction, Store
    from mxtrain.metric.meter import Meter
    from mxtrain.optimizer.rows import TouchedRows
    from mxtrain.parallel.loss_function import FunctionExecutor, LossFunction, Network
    from mxtrain.parallel.planner import Layout


@dataclass(frozen=True)
class Objective:
    """The objective of a batch: network, loss and meter, wherever they run.

    Attributes:
        network: the initialised gluon block, on one device; the strategy moves its parameters to where they work.
        loss: (*outputs, *targets) -> loss (B,), or loss (B,) and weight (B,), for training.
        meter: (loss (B,)[, weight (B,)], *outputs, *targets) -> vector of sums, for training.
        input_shape: of one sample, or of each of its parts.
        batch_size: of this worker's share of a batch, by which the stages are balanced.
        precision: that the network computes in.
        predict_shape: input shape in prediction, if that form of the network has fewer inputs.
        state_shapes: of what it carries from batch to batch, for one row: its last inputs, and its last outputs, which
            loss and meter do not see.
        global_batch_size: of all workers together; 0: as `batch_size`.
        fuse: for prediction only: join operators where that changes no more than the last bits.
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
    """Tables whose rows are on servers: one copy, which all workers read and update. This base class has no tables."""

    names: Collection[str] = ()
    """Structural names. Neither `Strategy.trainable` nor `Strategy.reductions` have them, and `Strategy.values` has
    what reads and writes them a piece at a time. Only worker 0 writes."""

    def connect(
        self, store: Store, optimizer: Config, multipliers: Mapping[str, Tuple[float, float]], steps_per_epoch: int,
        seed: int,
    ) -> None:  # fmt: skip
        """Tells the servers of the tables, which draw the first values. Collective; waits.

        Args:
            store: that leads to the servers.
            optimizer: the description's, as plain values.
            multipliers: structural name -> (lr_mult, wd_mult).
            steps_per_epoch: of each worker.
            seed: of the run.
        """

    def gradients(self) -> List[NDArray]:
        """Returns the gradients of the rows that the last batch has, of this worker."""
        return []

    def push(self, gradients: Sequence[NDArray], lr: float, factor: Optional[NDArray]) -> None:
        """Sends `gradients` to the servers, which update by them. Waits for the gradients.

        Args:
            gradients: of this worker.
            lr: learning rate.
            factor: what the sum of all workers' gradients is multiplied by first, (1,), or None.
        """

    def summed_gradients(self) -> Dict[str, np.ndarray]:
        """Structural name -> the gradient of the last update, summed over workers, of all rows (R, U). Waits."""
        return {}

    def synchronize(self) -> None:
        """Waits until the servers have applied what this worker has sent."""

    def first_nonfinite(self) -> str:
        """Returns the name of a table with infinite numbers or NaNs; or an empty string."""
        return ""

    def optimizer_state(self, updater: Stateful) -> Stateful:
        """Returns the state of the updater and of the servers' optimizers, as one."""
        return updater


class Strategy:
    """Computes gradients of the mean loss over a global batch, and knows the canonical parameters.

    The mean is over samples: where they have weights, `TrainingStep` makes it the mean over weights once all
    gradients are summed.
    """

    objective: Objective
    """Network, loss and meter."""

    layout: Layout
    """Devices, microbatches and cut."""
    network: gluon.Block
    """The gluon block. Its parameters may be spread over devices: `gather` before computing with it."""
    values: Dict[str, NDArray]
    """Structural name -> canonical array, on the device that updates it: all parameters, including statistics and
    frozen ones."""
    constants: FrozenSet[str]
    """Structural names of gluon Constants, which may hold infinities on purpose (an attention mask)."""
    trainable: List[str]
    """Structural names of the parameters that get gradients, in a fixed order."""
    reductions: List[Reduction]
    """The gradients to sum, one entry per trainable parameter, in the same order."""
    loss_scale: float = 1.0
    """The loss is multiplied by this before gradients are computed."""
    loss_function: Optional[LossFunction] = None
    """If set, `forward_backward` computes the loss by this function instead of the objective's network and loss."""
    recurrent_state: Optional[Stateful] = None
    """Recurrent state of the network, if it has one."""
    rows: Mapping[str, TouchedRows] = {}
    """Structural name -> the rows that the gradient in `reductions` is of, for tables whose gradients hold no
    others."""

    remote: RemoteTables = RemoteTables()
    """Tables whose rows are on servers."""

    def look_ahead(self, batch: Batch) -> Batch:
        """Prepares a training batch ahead of its step, in the reading thread."""
        return batch

    def forward_backward(self, batch: Batch) -> NDArray:
        """Leaves the gradient of the scaled mean loss over `batch`, not yet summed over replicas, in `reductions`.

        Returns:
            The meter's sums, on the first device. Asynchronous.
        """
        raise NotImplementedError

    def function_executor(self) -> FunctionExecutor:
        """Returns the executor of `loss_function`. Raises: ConfigError: the placement allows none."""
        raise NotImplementedError

    def network_on(self, replica: int) -> Network:
        """Returns the network as `loss_function` gets it on a replica."""
        raise NotImplementedError

    def gradient(self, reduction: Reduction) -> np.ndarray:
        """Returns a parameter's gradient, which its owner has, of all rows. Waits for the device."""
        return reduction.replicas[reduction.owner].asnumpy()

    def publish(self, names: Optional[Collection[str]] = None) -> None:
        """Brings what was written to `values` (all of them, or only `names`) to all replicas. Asynchronous."""
        raise NotImplementedError

    def other_copies(self) -> Iterator[Tuple[str, NDArray]]:
        """(structural name, array) of every other copy of the arrays in `values`, on other replicas."""
        raise NotImplementedError

    def predict(self, inputs: Sequence[NDArray]) -> Tuple[NDArray, ...]:
        """Returns the network's outputs for `Batch.inputs` in inference mode, on the first device. Asynchronous."""
        raise NotImplementedError

    @property
    def room_for_ids(self) -> Optional[int]:
        """Returns the maximum number of distinct ids of one sample in prediction; None: no limit."""
        return None

    def on_host(self) -> Optional[HostGraph]:
        """Returns the network for `predict` as NumPy code; None unless it consists of dense layers and activations on a
        CPU and its code accepts symbols. It has no parameters yet: `values` holds them by the names in its
        `parameters`."""
        return None

    def gather(self) -> gluon.Block:
        """Returns the network with all of its parameters on the first device. The strategy cannot train any more."""
        raise NotImplementedError
