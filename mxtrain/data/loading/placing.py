"""Copies arrays of a batch to a device. Imports MXNet, so it is imported only when a loader is built."""

from __future__ import annotations

import functools
from typing import Dict, Tuple, Union

import numpy as np

from mxtrain.data.loading.staging import Staging, copy_and_wait
from mxtrain.engine.backend import mx, nd

HostArrays = Tuple[np.ndarray, ...]
"""Inputs or targets, as a loader reads them."""


def as_device(device: Union[str, mx.Context]) -> mx.Context:
    """Returns the MXNet context for a name like `cpu`, `cpu:1` or `gpu:0`. A context is returned unchanged."""
    if isinstance(device, mx.Context):
        return device
    kind, _, number = str(device).partition(":")
    return mx.Context(kind, int(number or 0))


@functools.cache
def staging_for(device: mx.Context) -> Staging:
    """Returns the staging buffers of a GPU, which all loaders share."""
    return Staging(mx.Context("cpu_pinned", device.device_id), device)


def copy_to(array: np.ndarray, device: mx.Context) -> nd.NDArray:
    """Returns the array on a device. Asynchronous on a GPU."""
    return staging_for(device).copy(array) if device.device_type == "gpu" else copy_and_wait(array, device)


def place(device: mx.Context, *groups: HostArrays) -> Tuple[Tuple[nd.NDArray, ...], ...]:
    """Copies groups of arrays to a device; see `copy_to`.

    An array that occurs several times is copied once. Arrays that are on the device already are not copied.
    """
    # By identity: equal contents in two arrays are still two arrays of the batch.
    placed: Dict[int, nd.NDArray] = {}
    for array in (array for group in groups for array in group):
        if id(array) not in placed:
            placed[id(array)] = array if isinstance(array, nd.NDArray) else copy_to(array, device)
    return tuple(tuple(placed[id(array)] for array in group) for group in groups)
