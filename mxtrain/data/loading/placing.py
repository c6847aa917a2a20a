"""Places a batch on a device: as float32, normalised, in the network's channels and size.

Imports MXNet, so it is imported when a loader is built, not before. Each step runs where it is cheapest: on a GPU,
bytes cross the bus and the GPU computes; on a CPU, numpy does it several times faster than MXNet's operators (128 x 3 x
32 x 32 from uint8: 0.3 ms against 2.9 ms for cast and normalise) and leaves the engine to the network. Both compute
x * scale + shift in float32, so they agree to the last bit.
"""

from __future__ import annotations

import functools
from typing import Dict, Optional, Sequence, Tuple, Union

import numpy as np

from mxtrain.data.loading.staging import Staging, copy_and_wait
from mxtrain.engine.backend import autograd, mx, nd
from mxtrain.types import Shape

HostArrays = Tuple[np.ndarray, ...]
"""Inputs or targets, as a loader reads them."""


def as_device(device: Union[str, mx.Context]) -> mx.Context:
    """The MXNet context that a name like `cpu`, `cpu:1` or `gpu:0` means; a context is returned as it is."""
    if isinstance(device, mx.Context):
        return device
    kind, _, number = str(device).partition(":")
    return mx.Context(kind, int(number or 0))


class Placer:
    """Turns a batch of numpy arrays into arrays on a device."""

    def __init__(
        self, native_channels: int, input_shape: Shape, mean: Sequence[float], std: Sequence[float],
        device: Union[str, mx.Context], keeps_size: bool = False,
    ) -> None:  # fmt: skip
        """Prepare the constants.

        Args:
            native_channels: Channels of the images that come: 1 grey, 3 colour.
            input_shape: (C, H, W) of what enters the network.
            mean: Per channel in units where white is 1. Repeated or averaged where there are more or fewer channels.
            std: Likewise.
            device: A context or its name.
            keeps_size: Images stay as large as they come, whatever `input_shape` says.
        """
        self._keeps_size = keeps_size
        self.channels, self.height, self.width = input_shape
        self.averages = native_channels > 1 and self.channels == 1
        mean_C = np.asarray(_fit_channels(mean, self.channels))
        std_C = np.asarray(_fit_channels(std, self.channels))
        self.scale_1C11 = (1.0 / (255.0 * std_C)).astype(np.float32)[None, :, None, None]
        self.shift_1C11 = (-mean_C / std_C).astype(np.float32)[None, :, None, None]
        self.device = as_device(device)
        self._on_device: Optional[Tuple[nd.NDArray, nd.NDArray]] = None
        """Scale and shift, once a batch has needed them."""
        self.finish = self._finish_on_device if self.device.device_type == "gpu" else self._finish_on_host

    def __call__(
        self, image_BCHW: np.ndarray, *targets: np.ndarray
    ) -> Tuple[Tuple[nd.NDArray], Tuple[nd.NDArray, ...]]:
        """Normalise and copy; the device may still be computing when this returns.

        Args:
            image_BCHW: uint8 or float32 from 0 to 255.
            targets: (B, ...) each.

        Returns:
            ((B, C, H, W),) and the targets, float32 on the device.
        """
        with autograd.pause():  # nothing here belongs to the network's graph
            data = self.finish(image_BCHW)
            if data.shape[2:] != (self.height, self.width) and not self._keeps_size:
                data = nd.contrib.BilinearResize2D(data, height=self.height, width=self.width, align_corners=False)
            return (data,), tuple(self._copy(target.astype(np.float32)) for target in targets)

    def _finish_on_host(self, image_BCHW: np.ndarray) -> nd.NDArray:
        if self.averages:
            image_BCHW = image_BCHW.mean(axis=1, keepdims=True, dtype=np.float32)
        data = np.multiply(image_BCHW, self.scale_1C11, dtype=np.float32)  # one channel spreads over three here
        data += self.shift_1C11
        return self._copy(data)

    def _finish_on_device(self, image_BCHW: np.ndarray) -> nd.NDArray:
        data = self._copy(image_BCHW).astype("float32")
        if self.averages:
            data = data.mean(axis=1, keepdims=True)
        if self._on_device is None:
            self._on_device = (self._copy(self.scale_1C11), self._copy(self.shift_1C11))
        scale_1C11, shift_1C11 = self._on_device
        return nd.broadcast_add(nd.broadcast_mul(data, scale_1C11), shift_1C11)

    def _copy(self, array: np.ndarray) -> nd.NDArray:
        return copy_to(array, self.device)


@functools.cache
def staging_for(device: mx.Context) -> Staging:
    """The buffers of a GPU."""
    return Staging(mx.Context("cpu_pinned", device.device_id), device)


def copy_to(array: np.ndarray, device: mx.Context) -> nd.NDArray:
    """The array on a device; on a GPU it may still be under way."""
    return staging_for(device).copy(array) if device.device_type == "gpu" else copy_and_wait(array, device)


def place(device: mx.Context, *groups: HostArrays) -> Tuple[Tuple[nd.NDArray, ...], ...]:
    """Copies groups of arrays to a device, see `copy_to`. An array that occurs several times is copied once; arrays
    that a loader has put on the device already are not copied."""
    placed: Dict[int, nd.NDArray] = {}
    for array in (array for group in groups for array in group):
        if id(array) not in placed:
            placed[id(array)] = array if isinstance(array, nd.NDArray) else copy_to(array, device)
    return tuple(tuple(placed[id(array)] for array in group) for group in groups)


def _fit_channels(values: Sequence[float], channels: int) -> Sequence[float]:
    if len(values) == channels:
        return values
    return [sum(values) / len(values)] * channels
