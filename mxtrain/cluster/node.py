"""The processes of a parameter server that don't train: scheduler and servers.

With DMLC_ROLE set, `import mxnet` runs the server and exits, with a command handler that unpickles messages. So MXNet
is imported before DMLC_ROLE is set, and the handler here refuses every command: a server only sums. If servers update,
the command line passes another handler.
"""

from __future__ import annotations

import ctypes
import math
import os
import signal
import threading
from typing import TYPE_CHECKING, Callable

from mxtrain.cluster.joining import JoinWatch
from mxtrain.cluster.standby import wait_until_needed
from mxtrain.cluster.stopping import EXIT_CODES, ending_signals
from mxtrain.errors import EXIT_FINISHED

if TYPE_CHECKING:
    import mxnet as mx


def refuse(store: mx.kv.KVStore, command: int, body: bytes) -> None:
    """Refuses a command that MXNet's C++ does not handle itself: servers that only sum need none."""
    print(f"refused the command {command} ({len(body)} bytes): servers take no optimizer", flush=True)


def run_node(
    role: str, control: Callable[[mx.kv.KVStore, int, bytes], None] = refuse, start_timeout_s: float = math.inf
) -> int:
    """Serves until all workers are done; returns the exit code.

    Args:
        role: scheduler or server.
        control: function (MXNet's store, command, its text), called in this thread. MXNet swallows its exceptions.
        start_timeout_s: seconds within which all processes must connect, if this one has no supervisor.
    """
    watch = JoinWatch(role, start_timeout_s)
    _end_with_workers(watch.has_joined)
    if role == "scheduler" and os.environ.get("DMLC_NODE_HOST"):
        # ps-lite would listen on every interface, or where its own name leads (to itself: loopback), whatever the
        # node's address is.
        os.environ.pop("DMLC_USE_KUBERNETES", None)
        os.environ["DMLC_PS_ROOT_URI"] = os.environ["DMLC_NODE_HOST"]
    os.environ.pop("DMLC_ROLE", None)
    # MXNet reads it at import. More threads would take cores from workers on the same host.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from mxtrain.engine.backend import mx

    wait_until_needed()
    os.environ["DMLC_ROLE"] = role
    os.umask(0o077)  # other users cannot connect to Unix sockets, which ps-lite creates in /tmp
    watch.start()
    store = mx.kv.create("dist_sync")

    def receive(command: int, body: bytes, _: object) -> None:
        control(store, command, body or b"")

    # Kept in a variable, because ctypes frees a callback without references while C++ may still call it.
    controller = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(receive)
    mx.base.check_call(mx.base._LIB.MXKVStoreRunServer(store.handle, controller, None))
    return EXIT_FINISHED


def _end_with_workers(has_joined: Callable[[], bool]) -> None:
    """Ignores the first ending signal, because workers need servers to save; the second one ends this process.

    A thread waits for the signals, because the main thread is inside MXNet. Threads that start later take no signals,
    but those that a library such as OpenBLAS started before do. Python writes signals to a pipe in any thread.
    """
    signals = set(ending_signals())
    reader, writer = os.pipe()
    os.set_blocking(writer, False)  # required by set_wakeup_fd
    for number in signals:
        signal.signal(number, lambda number, frame: None)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)

    def next_signal() -> int:
        while True:
            (number,) = os.read(reader, 1)
            if number in signals:
                return int(number)

    def wait() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
        first = next_signal()
        if not has_joined():
            os._exit(EXIT_CODES[first])
        print(f"{signal.Signals(first).name}: ending with the workers; once more quits at once", flush=True)
        os._exit(EXIT_CODES[next_signal()])

    threading.Thread(target=wait, name="mxtrain-signals", daemon=True).start()
