"""Recognises an MXNet that mxtrain did not install: NVIDIA's container, the CUDA it runs with, and how it was built."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
from pathlib import Path
from typing import Any, Callable, Dict, Mapping, NamedTuple, Optional, Tuple

CONTAINER_VARIABLE = "NVIDIA_MXNET_VERSION"
"""Environment variable that NVIDIA's MXNet containers set to their release, such as 24.05."""
KNOWN_RELEASES = ("24.05", "24.06")
"""Releases whose notes name MXNet 1.9.1, Python 3.10, CUDA 12.4.1, NCCL 2.21.5 and Horovod 0.28, for GPUs of compute
capability 6.0 to 9.0. Source: NVIDIA Optimized Deep Learning Framework release notes, 24.05 and 24.06."""
SUPPORTED_MXNET = "1.9.1"
"""The only version of MXNet that mxtrain is tested with."""


class NvidiaContainer(NamedTuple):
    """NVIDIA's MXNet container, in which this process runs."""

    release: str
    """Release, e.g. "24.05"."""

    @property
    def is_known(self) -> bool:
        """Returns True if its release notes were read: what they name is in `KNOWN_RELEASES`."""
        return self.release in KNOWN_RELEASES

    def __str__(self) -> str:
        return f"NVIDIA's MXNet container {self.release}"


def find_container(environ: Mapping[str, str] = os.environ) -> Optional[NvidiaContainer]:
    """Returns NVIDIA's MXNet container if this process runs in one, otherwise None."""
    release = environ.get(CONTAINER_VARIABLE, "").strip()
    return NvidiaContainer(release) if release else None


def reads_s3(library: Path) -> bool:
    """Returns True if libmxnet.so was built with DMLC_USE_S3, so that its readers open s3:// addresses.

    A library without it holds the message that names the flag. Opening an address instead might wait for the network.

    Args:
        library: path of libmxnet.so.
    """
    with open(library, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(b"DMLC_USE_S3=1") < 0


def _cuda_version(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def _cudnn_version(number: int) -> str:
    # cuDNN 9 has a digit more for the minor version.
    major = 10000 if number >= 90000 else 1000
    return f"{number // major}.{number % major // 100}.{number % 100}"


def _nccl_version(number: int) -> str:
    # NCCL 2.9 has a digit more for the minor version.
    major = 10000 if number >= 20000 else 1000
    return f"{number // major}.{number % major // 100}.{number % 100}"


_VERSIONS: Mapping[str, Tuple[str, str, Callable[[int], str]]] = {
    "cuda": ("libcudart", "cudaRuntimeGetVersion", _cuda_version),
    "cudnn": ("libcudnn", "cudnnGetVersion", _cudnn_version),
    "nccl": ("libnccl", "ncclGetVersion", _nccl_version),
}
"""Library -> start of its file name, the function that returns its version, and the form of that number."""


def loaded_versions(maps: str, load: Callable[[str], Any] = ctypes.CDLL) -> Dict[str, str]:
    """Returns the versions of CUDA, cuDNN and NCCL that this process has loaded, as they report them.

    Asking needs no GPU. File names would not do: NVIDIA's wheels of CUDA 11.8 hold libcudart.so.11.0.

    Args:
        maps: text of /proc/self/maps.
        load: opens a library that is already in the process.

    Returns:
        `cuda`, `cudnn` and `nccl` -> version, of those that are loaded.
    """
    found: Dict[str, str] = {}
    for name, (prefix, function, form) in _VERSIONS.items():
        path = re.search(rf"/\S*/{prefix}\.so\S*", maps)
        if path is None:
            continue
        ask = getattr(load(path[0]), function, None)
        if ask is None:
            continue
        if name == "cudnn":  # returns the number; the other functions write it
            ask.restype = ctypes.c_size_t
            found[name] = form(int(ask()))
        else:
            number = ctypes.c_int()
            if ask(ctypes.byref(number)) == 0:
                found[name] = form(number.value)
    return found
