"""A store of MXNet's on CPUs that takes what `KVStoreNCCL` takes, and refuses what it refuses.

Source: MXNet 1.9.1, src/kvstore/kvstore_nccl.h; the names of its functions stand beside each rule.
"""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Sequence, Tuple, Union

import numpy as np

from mxtrain.engine.backend import mx, nd

Arrays = Union[nd.NDArray, Sequence[nd.NDArray]]
TYPES = ("float32", "float16", "float64", "uint8", "int32", "int64")
"""Types that GetNCCLType knows."""


class NCCLRules:
    """Sums by MXNet's `local`, where NCCL would sum."""

    def __init__(self) -> None:
        self._store = mx.kv.create("local")
        self._keys: List[int] = []
        self._buffered: List[int] = []
        self._devices: List[int] = []
        """Devices of all calls, in order; empty before the first sum over several devices."""
        self._root = -1
        self._lies_on: Dict[int, int] = {}
        """Key -> the device of the last sum."""

    def init(self, keys: List[int], values: List[nd.NDArray]) -> None:
        for key, value in zip(keys, values):
            _require(key not in self._keys, f"duplicate init of key {key}")
            _require(value.stype == "default", "NCCL kvstore does not support sparse storage type")  # InitKey
        self._keys += keys
        self._store.init(keys, values)

    def set_gradient_compression(self, settings: Any) -> None:
        raise mx.MXNetError("NCCL kvstore does not support gradient compression")  # SetGradientCompression

    def push(self, key: List[int], value: List[Arrays], priority: int = 0) -> None:
        for one, arrays in self._grouped(key, value):  # Reduce
            if len(arrays) == 1:
                self._lies_on[one] = arrays[0].context.device_id
                continue
            if not self._devices:  # InitNCCL, InitMergeBuffer
                self._devices = sorted(array.context.device_id for array in arrays)
                _require(len(set(self._devices)) == len(self._devices), "ncclCommInitAll: a device stands there twice")
                self._buffered, self._root = list(self._keys), arrays[0].context.device_id
            self._require_devices([array.context.device_id for array in arrays])
            _require(one in self._buffered, f"key {one} has no buffer: it came after the first sum")
            self._lies_on[one] = self._root
        self._store.push(key, value, priority)

    def pull(self, key: List[int], out: List[Arrays], priority: int = 0) -> None:
        for one, arrays in self._grouped(key, out):  # Broadcast
            if not self._devices:
                continue  # plain copies
            source = self._lies_on.get(one, 0)
            found = [array.context.device_id for array in arrays]
            self._require_devices(found)
            _require(source == self._root, f"key {one} lies on device {source}, and not on the root, {self._root}")
        self._store.pull(key, out, priority)

    def pushpull(self, key: List[int], value: List[Arrays], out: List[Arrays], priority: int = 0) -> None:
        self.push(key, value, priority)
        self.pull(key, out, priority)

    def _grouped(self, key: List[int], values: List[Arrays]) -> Iterator[Tuple[int, Sequence[nd.NDArray]]]:
        for one, arrays in zip(key, values):
            _require(one in self._keys, f"key {one} has not been inited")
            listed = [arrays] if isinstance(arrays, nd.NDArray) else arrays
            for array in listed:
                _require(array.stype == "default", "NCCL kvstore does not support sparse storage type")
                _require(np.dtype(array.dtype).name in TYPES, "Unknown type passed to NCCL KVStore")
            yield one, listed

    def _require_devices(self, found: List[int]) -> None:
        _require(sorted(found) == self._devices, "NCCL KVStore supports only single set of devices")


def _require(is_so: bool, message: str) -> None:
    if not is_so:
        raise mx.MXNetError(message)
