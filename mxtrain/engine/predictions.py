"""Decodes predictions from network outputs once per batch, and copies them to the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, List, Optional, Sequence, Tuple, Union

import numpy as np

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray

    from mxtrain.types import Batch

    Predictions = Union[NDArray, List[NDArray], Tuple[NDArray, ...]]
    """A prediction for each sample of a batch: an array (B, ...), or several where their shapes differ."""
    Decode = Callable[[Tuple[NDArray, ...], Batch], Predictions]
    """Function of (outputs of the network, batch) that returns the predictions; see `Task.decode`."""

BATCHES_AHEAD = 3
"""Batches in the engine's queue before the host waits. This bounds the memory of pending work."""


class JoinedPredictions(Tuple[np.ndarray, ...]):
    """Predictions of a batch on the host, in the place of the outputs of a network: made from several passes for each
    sample."""


class DecodedOnce:
    """Decodes the outputs for a batch once, for several consumers that ask one after the other.

    Args:
        decode: decodes the outputs for a batch.
    """

    def __init__(self, decode: Decode):
        self._decode = decode
        self._outputs: Optional[Tuple[NDArray, ...]] = None
        self._predictions: Optional[Predictions] = None

    def __call__(self, outputs: Tuple[NDArray, ...], batch: Batch) -> Predictions:
        """Returns the predictions for a batch, on the device."""
        # Identity is enough: every batch has a new tuple of outputs, and comparing contents would wait for the device.
        if self._predictions is None or outputs is not self._outputs:
            self._outputs, self._predictions = outputs, self._decode(outputs, batch)
        return self._predictions

    def forget(self) -> None:
        """Releases the arrays of the last batch, which would otherwise stay in memory until the next evaluation."""
        self._outputs = self._predictions = None


def to_host(predictions: Predictions) -> Union[np.ndarray, Sequence[np.ndarray]]:
    """Returns the prediction of each sample; waits for the device."""
    if isinstance(predictions, JoinedPredictions):
        return predictions
    if isinstance(predictions, (list, tuple)):
        return [prediction.asnumpy() for prediction in predictions]
    return predictions.asnumpy()
