"""How much memory of its GPUs a process has in use, asked of the driver through nvidia-ml-py: no device is held up.

Source: NVIDIA Management Library, https://docs.nvidia.com/deploy/nvml-api.
"""

from __future__ import annotations

import ctypes
import importlib
import logging
import os
from typing import Any, Dict, List, Mapping, Optional, Sequence

from mxtrain.types import GpuMemory

_LOG = logging.getLogger(__name__)
_RUNTIMES = ("libcudart.so.11.0", "libcudart.so.10.2")
"""CUDA's runtime, by the names under which the builds of MXNet have it in the process."""
_MB = 1e6


class GpuMemoryMeter:
    """Reads the memory in use of some GPUs, and remembers the most of each.

    What this process has in use, where the driver tells; in a container it often knows processes by other numbers, and
    under Windows' driver not at all: then what all processes have in use.

    Args:
        ordinals: of the GPUs, as CUDA and MXNet count them; none: nothing is loaded, and nothing read.
        environ: where CUDA_VISIBLE_DEVICES is looked up.
    """

    def __init__(self, ordinals: Sequence[int], environ: Mapping[str, str] = os.environ):
        self._handles: Dict[int, Any] = {}
        self._peak_mb: Dict[int, float] = {}
        self._library: Any = None
        if not ordinals:
            return
        try:
            self._library = importlib.import_module("pynvml")
        except ImportError:
            _LOG.info("The memory in use on GPUs is not shown: pip install nvidia-ml-py")
            return
        try:
            self._library.nvmlInit()
            self._handles = {ordinal: self._find(ordinal, environ) for ordinal in ordinals}
        except Exception as error:  # of any kind: it only costs the display
            self._give_up(error)

    def read(self) -> List[GpuMemory]:
        """Of each GPU; empty where nothing can be read. Some hundred microseconds: not for every step."""
        try:
            return [self._read(ordinal, handle) for ordinal, handle in self._handles.items()]
        except Exception as error:
            self._give_up(error)
            return []

    def _read(self, ordinal: int, handle: Any) -> GpuMemory:
        own = [
            process.usedGpuMemory
            for process in self._library.nvmlDeviceGetComputeRunningProcesses(handle)
            if process.pid == os.getpid() and process.usedGpuMemory is not None
        ]
        used_mb = (sum(own) if own else self._library.nvmlDeviceGetMemoryInfo(handle).used) / _MB
        self._peak_mb[ordinal] = max(used_mb, self._peak_mb.get(ordinal, 0.0))
        return GpuMemory(f"gpu:{ordinal}", used_mb, self._peak_mb[ordinal], bool(own))

    def _find(self, ordinal: int, environ: Mapping[str, str]) -> Any:
        """The driver's handle of what CUDA counts as `ordinal`: the driver counts by the bus and sees all GPUs, CUDA by
        speed (CUDA_DEVICE_ORDER), and only those of CUDA_VISIBLE_DEVICES."""
        bus_id = bus_id_of(ordinal)
        if bus_id is not None:
            return self._library.nvmlDeviceGetHandleByPciBusId(bus_id)
        visible = [name.strip() for name in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
        name = visible[ordinal] if ordinal < len(visible) else str(ordinal)
        if name.isdigit():
            return self._library.nvmlDeviceGetHandleByIndex(int(name))
        return self._library.nvmlDeviceGetHandleByUUID(name)

    def _give_up(self, error: Exception) -> None:
        _LOG.info("The memory in use on GPUs is not shown: %s: %s", type(error).__name__, error)
        self._handles = {}


def bus_id_of(ordinal: int) -> Optional[str]:
    """The place on the bus of what CUDA counts as `ordinal`; None where CUDA's runtime is not in this process."""
    for name in _RUNTIMES:
        try:
            runtime = ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        except OSError:
            continue
        text = ctypes.create_string_buffer(32)
        if runtime.cudaDeviceGetPCIBusId(text, len(text), ordinal) == 0:
            return text.value.decode()
    return None
