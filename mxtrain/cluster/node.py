"""The processes of a parameter server that don't train: scheduler and servers.

`import mxnet` would run them inside itself and exit there, with a command handler that unpickles what it is sent. Here
MXNet is imported before it is told the role, and the handler refuses every command: a server only ever sums.
"""

from __future__ import annotations

import ctypes
import os

from mxtrain.errors import EXIT_FINISHED


def run_node(role: str) -> int:
    """Serves until all workers are done; returns the exit code."""
    os.environ.pop("DMLC_ROLE", None)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from mxtrain.backend import mx

    os.environ["DMLC_ROLE"] = role
    os.umask(0o077)  # sockets in the file system are for this user only
    store = mx.kv.create("dist_sync")
    controller = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(_refuse)
    mx.base.check_call(mx.base._LIB.MXKVStoreRunServer(store.handle, controller, None))
    return EXIT_FINISHED


def _refuse(command: int, body: bytes, _: object) -> None:
    """A command that MXNet's C++ does not know itself; mxtrain sends none."""
    print(f"refused the command {command} ({len(body or b'')} bytes): servers take no optimizer", flush=True)
