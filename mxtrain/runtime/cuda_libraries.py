"""Loads CUDA libraries from NVIDIA's wheels before MXNet is imported, so that a machine needs only the driver.

The loader reuses a library that is already in the process, so no path has to be set and no file of MXNet is changed.
`LD_LIBRARY_PATH` is read only when a process starts, and links beside libmxnet.so would change an installed package.
CUDA 11.8 serves the builds for 11.2 to 11.7, because CUDA 11 keeps its binary interface.
"""

from __future__ import annotations

import ctypes
import importlib.util
from importlib import metadata
from pathlib import Path
from typing import List, NamedTuple, Tuple

BUILDS = tuple(f"mxnet-cu{version}" for version in (112, 113, 114, 115, 116, 117))
"""Builds of MXNet whose libraries requirements/cuda11.txt installs. `mxnet-cu110` and `mxnet-cu102` need versions that
NVIDIA has not published as wheels (libcusolver.so.10, libnvrtc.so.11.0, libcudart.so.10.2)."""


class CudaLibrary(NamedTuple):
    """A CUDA library in one of NVIDIA's wheels."""

    folder: str
    """Folder in the package `nvidia`."""
    name: str
    """File name by which MXNet or another library requests it."""


# Each library after its dependencies: the ones of libmxnet.so (`readelf -d libmxnet.so`), and theirs in turn, which the
# wheels do not always have in the expected folder.
LIBRARIES = (
    CudaLibrary("cuda_runtime", "libcudart.so.11.0"),
    CudaLibrary("cuda_nvrtc", "libnvrtc-builtins.so.11.8"),
    CudaLibrary("cuda_nvrtc", "libnvrtc.so.11.2"),
    CudaLibrary("nvtx", "libnvToolsExt.so.1"),
    CudaLibrary("cublas", "libcublasLt.so.11"),
    CudaLibrary("cublas", "libcublas.so.11"),
    CudaLibrary("cufft", "libcufft.so.10"),
    CudaLibrary("curand", "libcurand.so.10"),
    CudaLibrary("cusparse", "libcusparse.so.11"),
    CudaLibrary("cusolver", "libcusolver.so.11"),
    CudaLibrary("cudnn", "libcudnn.so.8"),
    CudaLibrary("nccl", "libnccl.so.2"),
)


def load() -> Tuple[Path, ...]:
    """Loads those of `LIBRARIES` that are installed, if MXNet is one of `BUILDS`. Call it before MXNet is imported.

    The dynamic loader reuses a library of the same name that is already in the process, so LD_LIBRARY_PATH need not be
    set. If a library is missing, importing MXNet fails with a message that names it.

    Returns:
        Paths of the loaded libraries; empty if MXNet is a build for CPUs or its libraries are installed in another way.
    """
    package = importlib.util.find_spec("nvidia")
    if package is None or not any(map(_is_installed, BUILDS)):
        return ()
    loaded: List[Path] = []
    for folder, name in LIBRARIES:
        # `nvidia` is a namespace package: wheels may be installed in several folders of Python's path.
        for root in package.submodule_search_locations or ():
            path = Path(root, folder, "lib", name)
            if path.is_file():
                # The handle is not kept: Python never unloads a library that ctypes has opened.
                ctypes.CDLL(str(path))
                loaded.append(path)
                break
    return tuple(loaded)


def _is_installed(package: str) -> bool:
    try:
        metadata.distribution(package)
    except metadata.PackageNotFoundError:
        return False
    return True
