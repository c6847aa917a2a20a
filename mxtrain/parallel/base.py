"""What every strategy's description says, and what a step asks of a strategy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Dict, List, Tuple

import pydantic
from typing_extensions import Annotated

from mxtrain.types import Batch, Spec

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray

Devices = Annotated[str, pydantic.Field(pattern=r"^(auto|(cpu|gpu):[1-9][0-9]*)$")]


class Parallel(Spec):
    """Where the arithmetic happens."""

    devices: Devices = "auto"
    """`auto`, or a kind and a number of devices: cpu:2, gpu:4."""

    def num_devices(self) -> int:
        """How many devices this description asks for, as far as can be said without MXNet."""
        return 1 if self.devices == "auto" else int(self.devices.split(":")[1])

    def place(self) -> Tuple[Any, ...]:
        """The devices, as mxnet Contexts.

        Raises:
            ConfigError: the machine has fewer.
        """
        raise NotImplementedError

    def build(self, objective: Objective, grad_accumulation: int) -> Strategy:
        """The strategy over an initialised network."""
        raise NotImplementedError


@dataclass(frozen=True)
class Objective:
    """What is computed for a batch, wherever it happens.

    Attributes:
        network: the initialised gluon block; its first replica lives on the first device.
        loss: (scores, labels) -> loss (B,), for training.
        meter: (scores, labels, loss (B,)) -> vector of sums, for training.
    """

    network: Any
    loss: Any
    meter: Any


class Strategy:
    """Computes gradients of the mean loss over a global batch, and knows the canonical parameters."""

    network: Any
    """The gluon block; its first replica."""
    parameters: Dict[str, Any]
    """Structural name -> gluon.Parameter, all of them, statistics and frozen ones included."""
    trainable: List[str]
    """Structural names of the parameters that get gradients, in a fixed order."""

    def forward_backward(self, batch: Batch) -> NDArray:
        """Leaves the gradient of the mean loss over `batch` in `gradients`; returns the meter's sums. Asynchronous."""
        raise NotImplementedError

    def gradients(self) -> List[List[NDArray]]:
        """Per trainable parameter, one gradient per replica."""
        raise NotImplementedError

    def weights(self) -> Dict[str, NDArray]:
        """Structural name -> the trainable parameter's array, where the optimizer works on it."""
        raise NotImplementedError

    def predict(self, data: NDArray) -> NDArray:
        """Scores in inference mode. Asynchronous."""
        raise NotImplementedError
