"""A real S3 server (moto's), and a proxy before it that makes it slow, throttled or broken."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import logging
import os
import threading
import time
import urllib.parse
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional

import pytest

BUCKET = "photos-of-tests"
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "test-key",
    "AWS_SECRET_ACCESS_KEY": "test-secret-of-48-characters",
    "AWS_REGION": "us-east-1",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}

Fault = Callable[["ProxyHandler"], bool]
"""Answers a request itself and returns True, or returns False to pass it on."""


class StoreProxy(http.server.ThreadingHTTPServer):
    """Passes requests on to a server.

    Attributes:
        fault: asked first for each request; None = all are passed on.
        latency_s: seconds before each answer.
        drops_conditions: leaves If-Match out, as stores do that ignore it.
        requests: method and path of each request.
        most_at_once: largest number of requests that were answered at the same time.
    """

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), ProxyHandler)
        self.target_port = port
        self.requests: List[str] = []
        self._lock = threading.Lock()
        self.heal()

    def heal(self) -> None:
        """Passes all requests on, as they are and at once."""
        self.fault: Optional[Fault] = None
        self.latency_s, self.drops_conditions = 0.0, False
        self.most_at_once, self._open = 0, 0

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores the error: a client went away."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Counts the current request as open, for `most_at_once`."""
        with self._lock:
            self._open += 1
            self.most_at_once = max(self.most_at_once, self._open)
        try:
            yield
        finally:
            with self._lock:
                self._open -= 1

    def gets_of(self, key: str) -> int:
        """Returns the number of requests for the content of an object."""
        return sum(line.startswith("GET ") and line.split("?")[0].endswith(key) for line in self.requests)


class ProxyHandler(http.server.BaseHTTPRequestHandler):
    """One connection of the proxy."""

    protocol_version = "HTTP/1.1"
    server: StoreProxy

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_any(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.requests.append(f"{self.command} {urllib.parse.unquote(self.path)}")
        with self.server.counted():
            self._answer(content)

    def _answer(self, content: bytes) -> None:
        if self.server.latency_s:
            time.sleep(self.server.latency_s)
        if self.server.fault is not None and self.server.fault(self):
            return
        upstream = http.client.HTTPConnection("127.0.0.1", self.server.target_port)
        headers = dict(self.headers)
        if self.server.drops_conditions:
            headers.pop("If-Match", None)
        upstream.request(self.command, self.path, content, headers)
        answer = upstream.getresponse()
        body = answer.read()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("content-length", "connection", "transfer-encoding", "date", "server"):
                self.send_header(name, value)
        self.send_header("Content-Length", answer.headers.get("Content-Length") or str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        upstream.close()

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = do_any

    def refuse(self, status: int, code: str) -> bool:
        """Answers with an error of S3."""
        body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>no</Message></Error>".encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        return True


class TestStore:
    """The server, and its objects.

    Attributes:
        proxy: the proxy, at which mxtrain reads.
    """

    __test__ = False

    def __init__(self, proxy: StoreProxy) -> None:
        import boto3

        self.proxy = proxy
        self.client = boto3.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{proxy.target_port}",
            aws_access_key_id=ENVIRONMENT["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=ENVIRONMENT["AWS_SECRET_ACCESS_KEY"],
            region_name="us-east-1",
        )
        self.client.create_bucket(Bucket=BUCKET)

    def put(self, key: str, content: bytes) -> str:
        """Writes an object and returns its address."""
        self.client.put_object(Bucket=BUCKET, Key=key, Body=content)
        return f"s3://{BUCKET}/{key}"

    def get(self, key: str) -> bytes:
        return self.client.get_object(Bucket=BUCKET, Key=key)["Body"].read()

    def list_keys(self, prefix: str = "") -> List[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix)
        return [entry["Key"] for page in pages for entry in page.get("Contents", ())]

    def upload(self, folder: Path, key: str) -> str:
        """Writes all files of a folder and returns the address of the folder."""
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.put(f"{key}/{path.relative_to(folder)}", path.read_bytes())
        return f"s3://{BUCKET}/{key}"

    def environment(self, cache: Path) -> Dict[str, str]:
        """Returns the environment of a program that reads from this store."""
        return {**ENVIRONMENT, "AWS_ENDPOINT_URL_S3": self.proxy.url, "XDG_CACHE_HOME": os.fspath(cache)}


@contextlib.contextmanager
def running_store() -> Iterator[TestStore]:
    """Runs a server and its proxy."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # else each request is a line
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        _, port = server.get_host_and_port()
        proxy = StoreProxy(port)
        thread = threading.Thread(target=proxy.serve_forever, daemon=True)
        thread.start()
        try:
            yield TestStore(proxy)
        finally:
            proxy.shutdown()
            proxy.server_close()
            thread.join()
    finally:
        server.stop()


@pytest.fixture(scope="module")
def shared_store() -> Iterator[TestStore]:
    """A server for the tests of a module."""
    pytest.importorskip("moto")
    pytest.importorskip("s3fs")
    with running_store() as store:
        yield store


@pytest.fixture
def store(shared_store: TestStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestStore]:
    """The server without faults, an empty cache, and the environment that names them."""
    for name, value in shared_store.environment(tmp_path / "cache").items():
        monkeypatch.setenv(name, value)
    shared_store.proxy.heal()
    shared_store.proxy.requests.clear()
    yield shared_store
    for key in shared_store.list_keys():
        shared_store.client.delete_object(Bucket=BUCKET, Key=key)
