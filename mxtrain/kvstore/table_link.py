"""Connects workers with the servers that hold tables or give chunks of data, by sockets separate from ps-lite's.

Worker 0 creates a token and listens on a socket. It sends token and address to the servers by a command of ps-lite.
Each server opens a socket and answers with its address, which worker 0 sends to all workers. On one machine the sockets
are on the loopback interface. Connections without the token are closed.

Reasons: docs/decisions/0068-embedding-tables-on-servers.md.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
from typing import Callable, List, Optional, Tuple

from mxtrain.errors import ConfigError
from mxtrain.kvstore.table_client import TableClient
from mxtrain.kvstore.table_wire import TOKEN_BYTES, Connection, TableCall
from mxtrain.runtime.network import LOOPBACK, address_towards

ANSWER_TIMEOUT_S = 120.0
"""A server that answers has started, but may have much to do."""
MAX_ADDRESS_BYTES = 256
_BACKLOG = 128


def listen() -> Tuple[socket.socket, str]:
    """Returns a socket that listens, and its address, HOST:PORT."""
    root = os.environ.get("DMLC_PS_ROOT_URI", LOOPBACK)
    host = os.environ.get("DMLC_NODE_HOST") or address_towards(root) or LOOPBACK
    opened = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    opened.bind((host, 0))
    opened.listen(_BACKLOG)
    return opened, f"{host}:{opened.getsockname()[1]}"


def connect(address: str) -> socket.socket:
    """Returns a socket that is connected to such an address. Raises: OSError."""
    host, _, port = address.rpartition(":")
    opened = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    opened.connect((host, int(port)))
    return opened


def call_servers(command: Callable[[TableCall], None], num_servers: int) -> Tuple[bytes, List[str]]:
    """Commands the servers to hold tables; called at worker 0.

    Args:
        command: sends it to all servers, and returns when they have heard it.
        num_servers: how many there are.

    Returns:
        The token, and the addresses of the servers.

    Raises:
        ConfigError: not all answer.
    """
    # ps-lite sends it without encryption, so it keeps out those who reach the port, not those who read the network.
    token = secrets.token_bytes(TOKEN_BYTES)
    opened, address = listen()
    answers: List[str] = []
    try:
        command(TableCall(address=address, token=token.hex()))
        opened.settimeout(ANSWER_TIMEOUT_S)
        while len(answers) < num_servers:
            caller, _ = opened.accept()
            answer = _address_in(caller, token)
            if answer is not None:
                answers.append(answer)
    except socket.timeout:
        raise ConfigError(
            f"{len(answers)} of {num_servers} servers have answered that they listen for workers. Look at their logs, "
            "and type kvstore.tables=workers cluster.balance=equal where servers cannot be reached."
        ) from None
    finally:
        opened.close()
    return token, sorted(answers)


def _address_in(caller: socket.socket, token: bytes) -> Optional[str]:
    """Returns the address sent by a server; None for a caller without the token."""
    connection = Connection(caller)
    try:
        length = connection.receive_greeting(token)
        if length is None or not 0 < length <= MAX_ADDRESS_BYTES:
            return None
        return bytes(connection.read(length)).decode()
    finally:
        connection.close()


def answer_call(call: TableCall, serve: Callable[[Connection, int], None]) -> Callable[[], None]:
    """Opens a server's socket, publishes its address, and serves clients that know the token.

    Args:
        call: from worker 0.
        serve: (connection, rank of the worker), in a thread of that worker's own.

    Returns:
        Ends it.
    """
    token = bytes.fromhex(call.token)
    opened, address = listen()

    def greet(caller: socket.socket) -> None:
        connection = Connection(caller)
        rank = connection.receive_greeting(token)
        if rank is None:
            connection.close()
        else:
            serve(connection, rank)

    def accept() -> None:
        while True:
            try:
                caller, _ = opened.accept()
            except OSError:
                return  # it was closed
            # A thread for each caller: one that sends nothing must not delay the others.
            threading.Thread(target=greet, args=[caller], name="mxtrain-tables-worker", daemon=True).start()

    threading.Thread(target=accept, name="mxtrain-tables", daemon=True).start()
    connected = connect(call.address)
    with connected:
        Connection(connected).greet(token, len(address.encode()))
        connected.sendall(address.encode())

    def end() -> None:
        opened.shutdown(socket.SHUT_RDWR)  # wakes who waits in accept
        opened.close()

    return end


def join(rank: int, broadcast: Callable[[Optional[bytes]], bytes], command: Callable[[TableCall], None]) -> TableClient:
    """Connects a worker to the servers that hold tables. Collective; arguments as for `invite`."""
    connected, addresses = invite(rank, broadcast, command)
    return TableClient(*([connected(address) for address in addresses] for _ in range(2)))


def invite(
    rank: int, broadcast: Callable[[Optional[bytes]], bytes], command: Callable[[TableCall], None]
) -> Tuple[Callable[[str], Connection], List[str]]:
    """Lets the servers listen for workers. Collective.

    Args:
        rank: of this worker.
        broadcast: gives all workers what worker 0 gives.
        command: see `call_servers`.

    Returns:
        A function that connects this worker to an address, and the addresses of the servers.
    """
    invitation = None
    if rank == 0:
        token, addresses = call_servers(command, int(os.environ["DMLC_NUM_SERVER"]))
        invitation = json.dumps([token.hex(), addresses]).encode()
    text, addresses = json.loads(broadcast(invitation))
    token = bytes.fromhex(text)

    def connected(address: str) -> Connection:
        connection = Connection(connect(address))
        connection.greet(token, rank)
        return connection

    return connected, addresses
