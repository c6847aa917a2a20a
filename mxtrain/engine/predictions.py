"""Predictions, which a task decodes from the outputs of a network, on the device and on the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, List, Sequence, Tuple, Union

import numpy as np

if TYPE_CHECKING:
    from mxnet.ndarray import NDArray

    from mxtrain.types import Batch

    Predictions = Union[NDArray, List[NDArray], Tuple[NDArray, ...]]
    """A prediction for each sample of a batch: an array (B, ...), or several where their shapes differ."""
    Decode = Callable[[Tuple[NDArray, ...], Batch], Predictions]
    """Predictions from what the network returns for a batch, see `Task.decode`."""

BATCHES_AHEAD = 3
"""Batches in the engine's queue before the host waits: bounds the memory of what is under way."""


def to_host(predictions: Predictions) -> Union[np.ndarray, Sequence[np.ndarray]]:
    """The prediction of each sample; waits for the device."""
    if isinstance(predictions, (list, tuple)):
        return [prediction.asnumpy() for prediction in predictions]
    return predictions.asnumpy()
