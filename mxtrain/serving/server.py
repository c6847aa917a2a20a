"""Runs the server until it is told to end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import resource
import signal
import socket
from typing import Iterator, List, Optional, Sequence

import uvicorn

from mxtrain.errors import EXIT_FINISHED, ConfigError
from mxtrain.serving.app import build_app
from mxtrain.serving.connections import ConnectionLimits, limited_protocol
from mxtrain.serving.logs import log_as_json, log_event
from mxtrain.serving.models import ServedModel
from mxtrain.serving.service import MB, Service
from mxtrain.serving.spec import ServeSettings

OTHER_FILES = 200
"""Number of open files that are not connections."""


def bind(settings: ServeSettings) -> socket.socket:
    """Opens a socket at the address of the settings.

    No other server can take the address while the models are loaded: Linux lets two sockets share one if both allow it
    and neither listens, and the second would fail only when it listens. `run_server` allows it for later servers.

    Raises:
        ConfigError: the address is in use or does not belong to this machine.
    """
    try:
        addresses = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = addresses[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"host={settings.host}: {error.strerror or error}.") from error
    try:
        try:
            listener.bind(address)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            # Connections of a server that has ended keep the address for a minute, unless it may be used again.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"host={settings.host} port={settings.port}: {error.strerror}. port=0 takes a free one."
        ) from error
    listener.set_inheritable(False)
    return listener


def address_of(listener: socket.socket) -> str:
    """Returns the URL of a socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run_server(models: Sequence[ServedModel], settings: ServeSettings, token: str, listener: socket.socket) -> int:
    """Serves until SIGTERM, SIGHUP or SIGINT; returns the exit code."""
    log_as_json()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # Modules and routes stay until the end. A full garbage collection that visits them stops all requests for longer
    # than a small network computes.
    gc.collect()
    gc.freeze()
    _allow_connections(settings.max_connections)
    asyncio.run(_serve(models, settings, token, listener))
    log_event("end")
    return EXIT_FINISHED


async def _serve(models: Sequence[ServedModel], settings: ServeSettings, token: str, listener: socket.socket) -> None:
    service = Service(models, settings)
    limits = ConnectionLimits(
        settings.header_s,
        settings.idle_s,
        settings.timeout_s,
        settings.max_pending_mb * MB,
        settings.max_connections,
        service.metrics.connections.set,
    )
    config = uvicorn.Config(
        build_app(service, token),
        http=limited_protocol(limits),
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=1024,
        timeout_keep_alive=int(settings.idle_s) + 3600,  # `connections` has limits of its own
        timeout_graceful_shutdown=int(settings.timeout_s) + 1,
    )
    ready_message = f"mxtrain: {', '.join(model.name for model in models)} at {address_of(listener)}"
    server = SignalledServer(config, ready_message)
    loop = asyncio.get_running_loop()

    def end() -> None:
        server.should_exit = True

    def drain() -> None:
        log_event("drain", seconds=settings.drain_s)
        service.drain()
        loop.call_later(settings.drain_s, end)

    loop.add_signal_handler(signal.SIGTERM, drain)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it
        loop.add_signal_handler(signal.SIGHUP, drain)  # of a terminal or an ssh connection that is closed
    loop.add_signal_handler(signal.SIGINT, end)
    service.start()
    for model in models:
        log_event("model", model=model.name, folder=model.folder, is_batched=model.is_batched, accepts=model.accepts)
    try:
        await server.serve(sockets=[listener])
    finally:
        await service.close()


class SignalledServer(uvicorn.Server):
    """uvicorn's server, whose signals are handled elsewhere.

    Args:
        config: configuration of uvicorn.
        ready_message: printed when the server listens.
    """

    def __init__(self, config: uvicorn.Config, ready_message: str) -> None:
        super().__init__(config)
        self._ready_message = ready_message

    async def startup(self, sockets: Optional[List[socket.socket]] = None) -> None:
        await super().startup(sockets=sockets)
        print(self._ready_message, flush=True)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _allow_connections(count: int) -> None:
    """Raises the limit of open files as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + OTHER_FILES
    if soft < needed and soft != resource.RLIM_INFINITY:
        allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        if allowed < needed:
            log_event("few_files", open_files=allowed, max_connections=count)
