"""The protocol of a strategy: what the training step asks of it, and what it is given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Collection, Dict, FrozenSet, Iterator, List, Mapping, Optional, Sequence, Tuple

from mxtrain.amp import FULL, Precision
from mxtrain.types import Batch, Shape, Shapes, Stateful

if TYPE_CHECKING:
    import numpy as np
    from mxnet import Context, gluon
    from mxnet.ndarray import NDArray

    from mxtrain.annotations import LossBlock
    from mxtrain.engine.host_graph import HostGraph
    from mxtrain.metric.meter import Meter
    from mxtrain.optimizer.rows import TouchedRows
    from mxtrain.parallel.balance import Cut
    from mxtrain.parallel.served_tables import ServedTables


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
        predict_shape: of what enters it in prediction, where that is less: it computes another form then.
        state_shapes: of what it carries from batch to batch, for one row: its last inputs, and its last outputs, which
            loss and meter do not see.
        global_batch_size: of all workers together; 0: as `batch_size`.
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


@dataclass(frozen=True)
class Reduction:
    """The gradients of one parameter that must be summed.

    Attributes:
        name: structural name.
        replicas: one gradient per replica, each on its device.
        owner: the replica that updates the parameter: its gradient becomes the sum of all.
    """

    name: str
    replicas: Sequence[NDArray]
    owner: int


@dataclass(frozen=True)
class Layout:
    """Replicas x stages, as they were placed.

    Attributes:
        devices: mxnet Contexts, [replica][stage].
        num_microbatches: of each replica's share of a batch (of a part of it, with gradient accumulation).
        num_parts: of a batch, one after the other.
        cut: what the stages are; None where each device has all of the network.
    """

    devices: List[List[Context]]
    num_microbatches: int = 1
    num_parts: int = 1
    cut: Optional[Cut] = None

    @property
    def cut_before(self) -> List[str]:
        """The layers that begin a stage, but the first; empty where each device has all of the network."""
        return self.cut.layers if self.cut else []

    @property
    def num_devices(self) -> int:
        return sum(map(len, self.devices))

    @property
    def gpus(self) -> List[int]:
        """The numbers of the GPUs among them, each once, in order."""
        return sorted({device.device_id for row in self.devices for device in row if device.device_type == "gpu"})


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
    """Structural name -> the canonical array, where it is updated: all parameters, statistics and frozen ones too."""
    constants: FrozenSet[str]
    """Structural names of gluon Constants, which may hold infinities on purpose (an attention mask)."""
    trainable: List[str]
    """Structural names of the parameters that get gradients, in a fixed order."""
    reductions: List[Reduction]
    """The gradients to sum, one entry per trainable parameter, in the same order."""
    loss_scale: float = 1.0
    """The loss is multiplied by this before gradients are computed."""
    carried: Optional[Stateful] = None
    """What the network carries from batch to batch, where it does."""
    rows: Mapping[str, TouchedRows] = {}
    """Structural name -> the rows that the gradient in `reductions` is of, for tables whose gradients hold no
    others."""

    served: Optional[ServedTables] = None
    """Tables whose rows are on servers: neither `trainable` nor `reductions` have them, and `values` has what reads and
    writes them a piece at a time."""

    def row_gradients(self) -> List[NDArray]:
        """The gradients of the rows of tables on servers that the last batch has, of this worker."""
        return []

    def push_rows(self, gradients: Sequence[NDArray], lr: float, factor: Optional[NDArray]) -> None:
        """Sends `row_gradients` to the servers, which update by them. Waits for the gradients.

        Args:
            gradients: of this worker.
            lr: learning rate.
            factor: what the sum of all workers' gradients is multiplied by first, (1,), or None.
        """

    def look_ahead(self, batch: Batch) -> Batch:
        """What can be done to a batch of training before it is its turn, in the thread that reads."""
        return batch

    def forward_backward(self, batch: Batch) -> NDArray:
        """Leaves the gradient of the scaled mean loss over `batch`, not yet summed over replicas, in `reductions`.

        Returns:
            The meter's sums, on the first device. Asynchronous.
        """
        raise NotImplementedError

    def gradient(self, reduction: Reduction) -> np.ndarray:
        """A parameter's gradient, which its owner has, of all rows. Waits for the device."""
        return reduction.replicas[reduction.owner].asnumpy()

    def publish(self, names: Optional[Collection[str]] = None) -> None:
        """Brings what was written to `values` (all of them, or only `names`) to all replicas. Asynchronous."""
        raise NotImplementedError

    def other_copies(self) -> Iterator[Tuple[str, NDArray]]:
        """(structural name, array) of every further copy of what is in `values`, on other replicas."""
        raise NotImplementedError

    def predict(self, inputs: Sequence[NDArray]) -> Tuple[NDArray, ...]:
        """What the network returns for `Batch.inputs` in inference mode, on the first device. Asynchronous."""
        raise NotImplementedError

    @property
    def room_for_ids(self) -> Optional[int]:
        """How many distinct ids of one sample the network has room for in prediction; None: for all."""
        return None

    def on_host(self) -> Optional[HostGraph]:
        """The network for `predict`, to be computed on the host; None where it is not made of dense layers and
        activations on a CPU, or its code needs real arrays. It knows no parameters yet: `values` has them, by the names
        in its `parameters`."""
        return None

    def gather(self) -> gluon.Block:
        """The network with all of its parameters on the first device. The strategy cannot train any more."""
        raise NotImplementedError
