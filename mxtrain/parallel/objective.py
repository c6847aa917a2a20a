"""The computation that a strategy runs on its devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Optional, Sequence

from mxtrain.amp.spec import FULL, Precision
from mxtrain.types import Shape, Shapes

if TYPE_CHECKING:
    from mxnet import gluon

    from mxtrain.metric.meter import Meter
    from mxtrain.types.annotations import LossBlock


@dataclass(frozen=True)
class Objective:
    """Network, loss and meter.

    Attributes:
        network: initialised gluon block on one device; the strategy moves its parameters to their devices.
        loss: training loss, (*outputs, *targets) -> loss (B,), or loss (B,) and weight (B,).
        meter: training meter, (loss (B,)[, weight (B,)], *outputs, *targets) -> vector of sums.
        input_shape: shape of one training sample, or of each of its inputs.
        batch_size: number of samples of this worker's share of a batch; used to balance the stages.
        precision: precision of the network's computation.
        predict_shape: input shape in prediction if the network has fewer inputs then; None = `input_shape`.
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
