"""Reads the GPU memory in use from the driver (NVML) through nvidia-ml-py, without synchronizing devices.

Source: NVIDIA Management Library, https://docs.nvidia.com/deploy/nvml-api.
"""

from __future__ import annotations

import ctypes
import importlib
import logging
import os
import time
from typing import Any, Dict, List, Mapping, Optional, Sequence

from mxtrain.callback.protocol import GpuMemory

_LOG = logging.getLogger(__name__)
_RUNTIMES = ("libcudart.so.11.0", "libcudart.so.10.2", "libcudart.so.12")
"""File names of the CUDA runtime that MXNet's builds load; the last one is that of builds by users."""
INTERVAL_S = 1.0
"""Shortest time between two queries of the driver, so that short steps do not query it once each."""
_MB = 1e6


class GpuMemoryMeter:
    """Reads the memory in use of some GPUs and keeps the peak of each.

    The value is the memory of this process, if the driver reports it. In containers process ids often differ, and the
    Windows driver reports none; the value then covers all processes.

    Args:
        ordinals: GPU ids as CUDA and MXNet count them. If empty, no library is loaded and nothing is read.
        environ: environment with CUDA_VISIBLE_DEVICES.
    """

    def __init__(self, ordinals: Sequence[int], environ: Mapping[str, str] = os.environ):
        self._handles: Dict[int, Any] = {}
        self._peak_mb: Dict[int, float] = {}
        self._library: Any = None
        self._readings: List[GpuMemory] = []
        self._read_at: Optional[float] = None
        if not ordinals:
            return
        try:
            self._library = importlib.import_module("pynvml")
        except ImportError:
            _LOG.info("The memory in use on GPUs is not shown: pip install nvidia-ml-py")
            return
        try:
            self._library.nvmlInit()
            self._handles = {ordinal: self._find_handle(ordinal, environ) for ordinal in ordinals}
        except Exception as error:  # a display must never end a run
            self._give_up(error)

    def read(self) -> List[GpuMemory]:
        """Returns the memory of each GPU, at most `INTERVAL_S` old; empty if it cannot be read."""
        now = time.monotonic()
        if self._handles and (self._read_at is None or now - self._read_at >= INTERVAL_S):
            self._read_at = now
            try:
                self._readings = [self._read(ordinal, handle) for ordinal, handle in self._handles.items()]
            except Exception as error:
                self._give_up(error)
        return self._readings

    def _read(self, ordinal: int, handle: Any) -> GpuMemory:
        try:
            processes = self._library.nvmlDeviceGetComputeRunningProcesses(handle)
        except self._library.NVMLError:  # drivers before 510 lack the function, some GPUs do not support it
            processes = []
        ours = [process.usedGpuMemory for process in processes if process.pid == os.getpid()]
        own_bytes = [size for size in ours if size is not None]
        used_mb = (sum(own_bytes) if own_bytes else self._library.nvmlDeviceGetMemoryInfo(handle).used) / _MB
        self._peak_mb[ordinal] = max(used_mb, self._peak_mb.get(ordinal, 0.0))
        return GpuMemory(f"gpu:{ordinal}", used_mb, self._peak_mb[ordinal], bool(own_bytes))

    def _find_handle(self, ordinal: int, environ: Mapping[str, str]) -> Any:
        """Returns the driver's handle of the GPU that CUDA calls `ordinal`.

        The driver counts all GPUs by their position on the bus. CUDA counts only those in CUDA_VISIBLE_DEVICES, by
        default the fastest first (CUDA_DEVICE_ORDER).

        Raises:
            LookupError: the order of the GPUs is not known.
        """
        # CUDA itself knows the answer where its runtime is loaded; the rules below only imitate it.
        bus_id = bus_id_of(ordinal)
        if bus_id is not None:
            return self._library.nvmlDeviceGetHandleByPciBusId(bus_id)
        handles = [
            self._library.nvmlDeviceGetHandleByIndex(index) for index in range(self._library.nvmlDeviceGetCount())
        ]
        names = [str(index) for index in range(len(handles))]
        if "CUDA_VISIBLE_DEVICES" in environ:
            names = [name.strip() for name in environ["CUDA_VISIBLE_DEVICES"].split(",")]
        name = names[ordinal] if ordinal < len(names) else ""
        by_bus = environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or (
            len({self._library.nvmlDeviceGetName(handle) for handle in handles}) == 1  # equal GPUs keep the bus order
        )
        if by_bus and name.isdigit() and int(name) < len(handles):
            return handles[int(name)]
        # CUDA_VISIBLE_DEVICES may have a prefix of a GPU's UUID, if it is unambiguous.
        identifiers = [self._library.nvmlDeviceGetUUID(handle) for handle in handles]
        matches = [index for index, uuid in enumerate(identifiers) if name.startswith("GPU-") and uuid.startswith(name)]
        if len(matches) != 1:
            raise LookupError(f"it is unknown which GPU gpu({ordinal}) is; set CUDA_DEVICE_ORDER=PCI_BUS_ID")
        return handles[matches[0]]

    def _give_up(self, error: Exception) -> None:
        _LOG.info("The memory in use on GPUs is not shown: %s: %s", type(error).__name__, error)
        self._handles, self._readings = {}, []


def bus_id_of(ordinal: int) -> Optional[str]:
    """Returns the PCI bus id of the GPU that CUDA calls `ordinal`; None if CUDA's runtime is not loaded."""
    for name in _RUNTIMES:
        try:
            # RTLD_NOLOAD: a display must not load a second CUDA runtime into the process.
            runtime = ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        except OSError:
            continue
        text = ctypes.create_string_buffer(32)
        if runtime.cudaDeviceGetPCIBusId(text, len(text), ordinal) == 0:
            return text.value.decode()
    return None
