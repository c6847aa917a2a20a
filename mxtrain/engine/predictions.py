"""Predictions, which a task decodes from the outputs of a network, on the device and on the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, List, Optional, Sequence, Tuple, Union

import numpy as np

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray

    from mxtrain.types import Batch

    Predictions = Union[NDArray, List[NDArray], Tuple[NDArray, ...]]
    """A prediction for each sample of a batch: an array (B, ...), or several where their shapes differ."""
    Decode = Callable[[Tuple[NDArray, ...], Batch], Predictions]
    """Predictions from what the network returns for a batch, see `Task.decode`."""

BATCHES_AHEAD = 3
"""Batches in the engine's queue before the host waits. This bounds the memory of pending work."""


class DecodedOnce:
    """Decodes what the network returned for a batch once for all who ask, one after the other.

    Args:
        decode: predictions from outputs.
    """

    def __init__(self, decode: Decode):
        self._decode = decode
        self._outputs: Optional[Tuple[NDArray, ...]] = None
        self._found: Optional[Predictions] = None

    def __call__(self, outputs: Tuple[NDArray, ...], batch: Batch) -> Predictions:
        """Returns the predictions, on the device."""
        if self._found is None or outputs is not self._outputs:
            self._outputs, self._found = outputs, self._decode(outputs, batch)
        return self._found

    def forget(self) -> None:
        """Lets go of the last batch, whose arrays would stay in memory until the next evaluation."""
        self._outputs = self._found = None


def to_host(predictions: Predictions) -> Union[np.ndarray, Sequence[np.ndarray]]:
    """Returns the prediction of each sample; waits for the device."""
    if isinstance(predictions, (list, tuple)):
        return [prediction.asnumpy() for prediction in predictions]
    return predictions.asnumpy()
