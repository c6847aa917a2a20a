"""Runs the server until it is told to end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import resource
import signal
import socket
import threading
from typing import Callable, Iterator, List, Optional, Sequence

import uvicorn

from mxtrain.errors import EXIT_FINISHED, ConfigError
from mxtrain.serving.app import build_app
from mxtrain.serving.connections import ConnectionLimits, limited_protocol
from mxtrain.serving.logs import log_as_json, log_event
from mxtrain.serving.models import ServedModel
from mxtrain.serving.service import MB, Service
from mxtrain.serving.spec import ServeSettings

RESERVED_FILES = 200
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


def run_server(server: InferenceServer, ready: Callable[[], object]) -> int:
    """Serves in this process until SIGTERM, SIGHUP or SIGINT, with a JSON log on standard error.

    Args:
        server: the server.
        ready: called when it answers requests.

    Returns:
        The exit code.
    """
    log_as_json()
    # Modules and routes stay until the end. A full garbage collection that visits them stops all requests for longer
    # than a small network computes.
    gc.collect()
    gc.freeze()
    _allow_connections(server.settings.max_connections)
    server.run(handles_signals=True, ready=ready)
    log_event("end")
    return EXIT_FINISHED


class InferenceServer:
    """The server of some models.

    Attributes:
        models: the models.
        settings: settings of the server.
        url: its address.
        is_ready: set as soon as it answers requests.
    """

    def __init__(
        self, models: Sequence[ServedModel], settings: ServeSettings, token: str, listener: socket.socket
    ) -> None:
        self.models, self.settings, self.url = models, settings, address_of(listener)
        self.is_ready = threading.Event()
        self._token, self._listener = token, listener
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._server: Optional[ReportingServer] = None
        self._ready: Callable[[], object] = lambda: None

    def run(self, handles_signals: bool = False, ready: Callable[[], object] = lambda: None) -> None:
        """Serves until `stop` or a signal.

        Args:
            handles_signals: whether SIGTERM, SIGHUP and SIGINT end it; only in the main thread.
            ready: called when it answers requests.
        """
        self._ready = ready
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        asyncio.run(self._serve(handles_signals))

    def stop(self) -> None:
        """Ends the server after the requests that have arrived; from any thread."""
        loop, server = self._loop, self._server
        if loop is not None and server is not None:
            with contextlib.suppress(RuntimeError):  # it has ended already
                loop.call_soon_threadsafe(server.end)

    async def _serve(self, handles_signals: bool) -> None:
        settings = self.settings
        service = Service(self.models, settings)
        limits = ConnectionLimits(
            settings.header_s,
            settings.idle_s,
            settings.timeout_s,
            settings.max_pending_mb * MB,
            settings.max_connections,
            service.metrics.connections.set,
        )
        config = uvicorn.Config(
            build_app(service, self._token),
            http=limited_protocol(limits),
            ws="none",
            # uvloop takes 463 instead of 472 us of processor time for a request, which is no gain that users feel.
            loop="asyncio",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            backlog=1024,
            timeout_keep_alive=int(settings.idle_s) + 3600,  # `connections` has limits of its own
            timeout_graceful_shutdown=int(settings.timeout_s) + 1,
        )
        self._loop, self._server = asyncio.get_running_loop(), ReportingServer(config, self._report_ready)
        if handles_signals:
            self._handle_signals(self._loop, self._server, service)
        service.start()
        for model in self.models:
            log_event(
                "model", model=model.name, folder=model.folder, is_batched=model.is_batched, accepts=model.accepts
            )
        try:
            await self._server.serve(sockets=[self._listener])
        finally:
            await service.close()

    def _report_ready(self) -> None:
        self.is_ready.set()
        self._ready()

    def _handle_signals(self, loop: asyncio.AbstractEventLoop, server: ReportingServer, service: Service) -> None:
        def drain() -> None:
            log_event("drain", seconds=self.settings.drain_s)
            # Readiness fails first, and load balancers get `drain_s` to notice.
            service.drain()
            loop.call_later(self.settings.drain_s, server.end)

        loop.add_signal_handler(signal.SIGTERM, drain)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it
            loop.add_signal_handler(signal.SIGHUP, drain)  # of a terminal or an ssh connection that is closed
        loop.add_signal_handler(signal.SIGINT, server.end)


class ReportingServer(uvicorn.Server):
    """uvicorn's server, whose signals are handled elsewhere.

    Args:
        config: configuration of uvicorn.
        ready: called when the server listens.
    """

    def __init__(self, config: uvicorn.Config, ready: Callable[[], object]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: Optional[List[socket.socket]] = None) -> None:
        await super().startup(sockets=sockets)
        self._ready()

    def end(self) -> None:
        """Ends the server after the requests that have arrived."""
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _allow_connections(count: int) -> None:
    """Raises the limit of open files as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + RESERVED_FILES
    if soft < needed and soft != resource.RLIM_INFINITY:
        allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        if allowed < needed:
            log_event("few_files", open_files=allowed, max_connections=count)
