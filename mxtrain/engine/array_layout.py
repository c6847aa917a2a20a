"""Restores MXNet's plain memory layout of arrays. Imports MXNet.

oneDNN's convolutions keep weights in blocks of channels. In inference MXNet 1.9.1 writes that layout into the parameter
itself. Operators without oneDNN kernels convert arrays of 1, 2 and 4 axes only; for weights of Conv1D and Conv3D (3 and
5 axes) they fail with `Check failed: to.IsDefaultData()` (`CopyFromToDnsImpl` and `SupportMKLDNN` of its source).
"""

from __future__ import annotations

import ctypes
from typing import Iterable

from mxtrain.engine.backend import mx, nd


def restore_layout(arrays: Iterable[nd.NDArray]) -> None:
    """Converts arrays to MXNet's plain layout, in place. Waits for pending writes of each; values do not change.

    The operators that read them must have finished, because a convolution writes its layout while it runs.
    """
    for array in arrays:
        # The function below looks at the layout when it is called, before a pending operator has written its own.
        array.wait_to_read()
        # The function that returns the address of an array is the only one that converts it in place.
        address = ctypes.c_void_p()
        mx.base.check_call(mx.base._LIB.MXNDArrayGetData(array.handle, ctypes.byref(address)))
