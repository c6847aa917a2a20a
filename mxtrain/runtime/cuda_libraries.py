"""Loads NVIDIA's libraries out of their wheels before MXNet asks for them: a machine then needs only the driver."""

from __future__ import annotations

import ctypes
import importlib.util
from importlib import metadata
from pathlib import Path
from typing import List, NamedTuple, Tuple

BUILDS = tuple(f"mxnet-cu{version}" for version in (112, 113, 114, 115, 116, 117))
"""The builds of MXNet that requirements/cuda11.txt has the libraries of. `mxnet-cu110` and `mxnet-cu102` link others,
which NVIDIA has not published as wheels (libcusolver.so.10, libnvrtc.so.11.0, libcudart.so.10.2)."""


class CudaLibrary(NamedTuple):
    """A library that MXNet, or one of the others, looks for by its name."""

    folder: str
    """The one in the package `nvidia`."""
    name: str


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
    """Loads the installed ones of `LIBRARIES` if MXNet is one of `BUILDS`; call it before MXNet is imported.

    The loader takes a library that is in the process already for one of the same name, wherever it came from: no path
    has to be set. What a wheel lacks is left to the loader, whose message then names it.

    Returns:
        What was loaded; nothing where MXNet is a build for CPUs, or brings its libraries in another way.
    """
    found = importlib.util.find_spec("nvidia")
    if found is None or not any(map(_is_installed, BUILDS)):
        return ()
    loaded: List[Path] = []
    for folder, name in LIBRARIES:
        for root in found.submodule_search_locations or ():
            path = Path(root, folder, "lib", name)
            if path.is_file():
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
