"""Clients that are slow, many, greedy or unknown, and the end of a server: with real sockets and signals."""

from __future__ import annotations

import contextlib
import json
import re
import resource
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List

import numpy as np
import pytest
import served_folders
from served_folders import Served

from mxtrain.serving import connections

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("folders")
    served_folders.write_slow(folder / "slow")
    served_folders.write_ids(folder / "ids")
    return folder


@pytest.fixture(scope="module")
def impatient(folder: Path) -> Iterator[Served]:
    """A server with short times, few connections and a short queue."""
    with Served(
        folder / "ids",
        folder / "slow",
        "header_s=0.7",
        "timeout_s=1.0",
        "idle_s=1.5",
        "max_connections=60",
        "queue=3",
        "max_pending_mb=2",
        "max_body_mb=1.5",
        "log=errors",
    ) as server:
        yield server


def test_long_json_is_refused_before_it_is_parsed(folder: Path) -> None:
    array = np.zeros((1, 20), np.int32)
    tensor = {"name": "ids", "shape": [1, 20], "datatype": "INT32", "parameters": {"binary_data_size": 80}}
    padded = json.dumps({"inputs": [tensor], "id": "x"}).encode() + b" " * 50_000
    binary = {"Inference-Header-Content-Length": str(len(padded))}
    with Served(folder / "ids", "max_json_mb=0.05", "max_body_mb=1") as served:
        path = "/v2/models/ids"
        for action, body, headers in (
            ("infer", padded, {}),
            ("infer", padded + array.tobytes(), binary),
            ("predict", padded, {}),
            ("infer", iter([padded]), {}),
        ):
            status, found, _ = served.ask(f"{path}/{action}", body, headers=headers)
            assert status == 413 and "more than 50,000 bytes, the server's max_json_mb" in found["error"], found
            assert "binary extension (Inference-Header-Content-Length and binary_data_size)" in found["error"]
        tensor.update(shape=[20_000, 1], parameters={"binary_data_size": 80_000})
        head = json.dumps({"inputs": [tensor]}).encode()
        status, found, _ = served.ask(
            f"{path}/infer", head + bytes(80_000), headers={"Inference-Header-Content-Length": str(len(head))}
        )
        assert status == 413 and "20000 samples" in found["error"], "arrays may be larger than JSON"
        status, found, _ = served.ask(f"{path}/predict", b" " * 1_000_001)
        assert "max_json_mb" in found["error"]


def slow(served: Served, steps: float, timeout_s: float = 30) -> Any:
    tensor = {"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [float(steps)]}
    return served.ask("/v2/models/slow/infer", {"inputs": [tensor]}, timeout_s=timeout_s)


def is_answered(served: Served) -> bool:
    ids = np.array([[1, 2]], np.int32)
    status, found = served.infer("ids", "ids", ids, "INT32")
    expected = served_folders.TABLE[[1, 2]].mean(axis=0)
    return status == 200 and np.allclose(found["outputs"][0]["data"], expected, atol=1e-6)


@contextlib.contextmanager
def connected(served: Served, sent: bytes = b"") -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", served.port), timeout=10) as client:
        client.sendall(sent)
        yield client


def read_end(client: socket.socket) -> bytes:
    """All that comes until the server closes."""
    parts: List[bytes] = []
    with contextlib.suppress(ConnectionResetError):
        while part := client.recv(65536):
            parts.append(part)
    return b"".join(parts)


def read_until(client: socket.socket, end: bytes) -> bytes:
    """All that comes up to some bytes."""
    found = b""
    while not found.endswith(end):
        found += client.recv(4096)
    return found


HEAD = b"POST /v2/models/ids/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n"


@pytest.mark.parametrize(
    "sent, status",
    [(b"", b""), (b"GET /v2 HTTP/1.1\r\nHos", b""), (HEAD + b"\r\n{", b"408")],
    ids=["silent", "half a head", "half a body"],
)
def test_slow_clients_are_cut_off(impatient: Served, sent: bytes, status: bytes) -> None:
    begin = time.monotonic()
    with connected(impatient, sent) as client:
        assert is_answered(impatient)
        found = read_end(client)
    assert found[9:12] == status and 0.4 < time.monotonic() - begin < 5


def test_a_head_byte_by_byte_is_cut_off_as_well(impatient: Served) -> None:
    begin = time.monotonic()
    with connected(impatient) as client, contextlib.suppress(ConnectionError):
        while time.monotonic() - begin < 5:
            client.sendall(b"X")
            time.sleep(0.1)
            client.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                if not client.recv(1):
                    break
            client.setblocking(True)
    assert time.monotonic() - begin < 3


def test_an_idle_connection_is_kept_and_then_closed(impatient: Served) -> None:
    question = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
    with connected(impatient, question) as client:
        assert b" 200 " in read_until(client, b"true}")
        time.sleep(1.0)  # longer than header_s
        client.sendall(question)
        assert b" 200 " in read_until(client, b"true}")
        begin = time.monotonic()
        assert read_end(client) == b"" and time.monotonic() - begin > 1.0


def test_large_heads_and_nonsense(impatient: Served) -> None:
    for sent, status in (
        (b"GET /v2 HTTP/1.1\r\nX: " + b"x" * 400_000, b"431"),
        (b"\x16\x03\x01\x02\x00\x01", b"400"),
        (b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n", b"400"),
        (b"POST /v2/models/ids/infer HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n", b"400"),
        (b"POST /v2/models/ids/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", b"400"),
    ):
        with connected(impatient) as client:
            with contextlib.suppress(ConnectionError):
                client.sendall(sent)
            assert read_end(client)[9:12] in (status, b""), sent[:40]
    assert is_answered(impatient)


def test_excess_idle_connections_do_not_block_requests(impatient: Served) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(90):
            stack.enter_context(connected(impatient))
        assert is_answered(impatient)
        open_now = re.search(rb"^mxtrain_connections (\d+)", impatient.ask("/metrics")[1], re.MULTILINE)
        assert open_now and 40 < int(open_now[1]) <= 61


@pytest.mark.zoo
def test_a_thousand_idle_connections(folder: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 1200:
        if hard < 1200:
            pytest.skip("this process may not open as many files")
        resource.setrlimit(resource.RLIMIT_NOFILE, (1200, hard))
    with Served(folder / "ids", "log=errors") as served, contextlib.ExitStack() as stack:
        for _ in range(1000):
            stack.enter_context(connected(served))
        begin = time.monotonic()
        assert is_answered(served) and time.monotonic() - begin < 5
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def in_threads(count: int, work: Any) -> List[Any]:
    found: Dict[int, Any] = {}

    def one(number: int) -> None:
        found[number] = work(number)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[number] for number in range(count)]


def test_a_full_queue_refuses_at_once(impatient: Served) -> None:
    def client(number: int) -> Any:
        status, found, headers = slow(impatient, 2000 + number)
        if status == 200:
            assert found["outputs"][0]["data"] == [2000 + number]
        return status, headers.get("retry-after")

    found = in_threads(12, client)
    assert ((429, "1") in found) and 1 <= sum(status == 200 for status, _ in found) <= 11
    assert {status for status, _ in found} <= {200, 429, 504}
    assert is_answered(impatient)


def test_bodies_in_memory_are_limited_together(impatient: Served) -> None:
    head = b"POST /v2/models/ids/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 1400000\r\n\r\n"
    with connected(impatient, head + b" " * 1_390_000):
        time.sleep(0.2)
        status, found, headers = impatient.ask("/v2/models/ids/infer", b" " * 1_400_000)
        assert (status, headers["retry-after"]) == (503, "1"), found
    time.sleep(1.2)
    assert impatient.ask("/v2/models/ids/infer", b" " * 1_400_000)[0] == 400


def test_a_network_that_takes_too_long_is_stopped(impatient: Served) -> None:
    status, found, _ = slow(impatient, 1e9)
    assert status == 504, found
    begin = time.monotonic()
    while slow(impatient, 5)[0] != 200:  # the next one is computed as soon as the long one has been stopped
        assert time.monotonic() - begin < 5


def test_disconnecting_client_does_not_affect_others(impatient: Served) -> None:
    body = json.dumps({"inputs": [{"name": "ids", "shape": [1, 2], "datatype": "INT32", "data": [1, 2]}]}).encode()
    head = b"POST /v2/models/ids/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    for sent in (head + body, head + body[:10]):
        for _ in range(5):
            with connected(impatient, sent):
                pass
            assert is_answered(impatient)  # the queue of three never fills up
    assert not [row for row in impatient.log if row["event"] == "error"]


def test_pipelined_requests_are_answered_in_order(impatient: Served) -> None:
    def question(ids: List[int]) -> bytes:
        tensor = {"name": "ids", "shape": [1, 1], "datatype": "INT32", "data": ids}
        body = json.dumps({"id": str(ids[0]), "inputs": [tensor]}).encode()
        return b"POST /v2/models/ids/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)

    with connected(impatient, b"".join(question([number]) for number in range(5))) as client:
        found = read_end(client).decode()
    answers = [json.loads(part) for part in re.findall(r"^\{.*?\}(?=HTTP|$)", found, re.MULTILINE)]
    assert [one["id"] for one in answers] == list("01234")
    first = [one["outputs"][0]["data"] for one in answers]
    np.testing.assert_allclose(first, served_folders.TABLE[:5], atol=1e-6)


def resident_mb(served: Served) -> float:
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{served.process.pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1000


def test_client_that_never_reads_is_disconnected_without_filling_memory(impatient: Served) -> None:
    question = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n" * 2000
    before, sent, begin = resident_mb(impatient), 0, time.monotonic()
    with connected(impatient) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with contextlib.suppress(ConnectionError, TimeoutError):
            client.settimeout(5)
            while sent < 200_000_000:
                sent += client.send(question)
    assert time.monotonic() - begin < 20
    assert sent < 60_000_000 and resident_mb(impatient) - before < 30, (sent, resident_mb(impatient) - before)
    assert is_answered(impatient)


@pytest.mark.parametrize("padding", [0, 1, 7, 3000])
def test_a_pipelined_burst_is_answered_completely(impatient: Served, padding: int) -> None:
    """Heads and bodies of other lengths end elsewhere in what is parsed at once."""
    question = b"GET /v2/health/live HTTP/1.1\r\nHost: x%b\r\nContent-Length: 5\r\n\r\n12345" % (b"y" * padding)
    with connected(impatient) as client:
        found = b""
        client.sendall((question * 300)[:-8])
        time.sleep(0.3)
        client.sendall(question[-8:])
        while found.count(b"HTTP/1.1 200") < 300 or not found.endswith(b"}"):
            part = client.recv(1 << 16)
            assert part, found.count(b"HTTP/1.1 200")
            found += part


@pytest.mark.parametrize("size", [1_400_000, 40_000_000])
def test_a_refused_body_gets_its_answer_before_the_connection_ends(impatient: Served, size: int) -> None:
    head = b"POST /v2/models/ids/predict HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\n"
    head += b"Content-Length: %d\r\n\r\n" % size
    with connected(impatient, head) as client:
        for _ in range(size // 100_000):  # most clients read no answer before they have sent everything
            client.sendall(b" " * 100_000)
        found = read_end(client)
    assert found.startswith(b"HTTP/1.1 415 ") and b"connection: close" in found and b"content type is" in found
    assert is_answered(impatient)


@pytest.mark.zoo
def test_a_refused_body_that_never_ends_is_cut_off(impatient: Served) -> None:
    head = b"POST /v2/models/ids/predict HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\n"
    head += b"Content-Length: 9\r\n\r\nx"
    with connected(impatient, head) as client:
        client.settimeout(connections.LINGER_S + 5)
        assert read_end(client).startswith(b"HTTP/1.1 415 ")
        begin = time.monotonic()
        with contextlib.suppress(ConnectionError):
            while time.monotonic() - begin < connections.LINGER_S + 5:
                client.sendall(b"x")
                time.sleep(0.2)
    assert time.monotonic() - begin < connections.LINGER_S + 3


def test_sighup_drains_but_nohup_does_not(folder: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        with Served(folder / "ids", "drain_s=0.2") as served:
            served.process.send_signal(signal.SIGHUP)
            assert served.process.wait(20) == 0
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with Served(folder / "ids", "drain_s=0.2") as served:
            served.process.send_signal(signal.SIGHUP)
            time.sleep(0.5)
            assert is_answered(served)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_sigterm_finishes_started_requests(folder: Path) -> None:
    with Served(folder / "slow", "drain_s=0.8") as served:
        begin = time.monotonic()
        assert slow(served, 1000)[0] == 200
        steps = 1000 * 1.5 / max(time.monotonic() - begin, 0.01)  # about 1.5 s
        answers: List[Any] = []
        thread = threading.Thread(target=lambda: answers.append(slow(served, steps)))
        thread.start()
        time.sleep(0.2)
        served.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        assert served.ask("/v2/health/ready")[0] == 503 and served.ask("/v2/health/live")[0] == 200
        status, _, headers = slow(served, 1)  # requests that come nevertheless are answered
        assert (status, headers["connection"]) == (200, "close")
        thread.join()
        assert answers[0][0] == 200 and answers[0][1]["outputs"][0]["data"] == [np.float32(steps)]
        assert served.process.wait(20) == 0
        with pytest.raises(ConnectionRefusedError):
            slow(served, 1)


def test_requests_without_the_token_are_refused(folder: Path) -> None:
    token = "0123456789abcdef-secret"
    with Served(folder / "ids", environment={"MXTRAIN_SERVE_TOKEN": token}) as served:
        for path in ("/v2", "/v2/models", "/v2/models/ids", "/metrics", "/nowhere"):
            for given in ({}, {"Authorization": f"Bearer {token}x"}, {"Authorization": token}):
                status, found, headers = served.ask(path, headers=given)
                assert (status, headers["www-authenticate"]) == (401, "Bearer"), found
            assert served.ask(path, headers={"Authorization": f"Bearer {token}"})[0] == (
                404 if path == "/nowhere" else 200
            )
        for path in ("/", "/v2/health/live", "/v2/health/ready", "/openapi.json"):
            status, found, _ = served.ask(path)
            assert status == 200 and "ids" not in str(found.get("models", "")) if isinstance(found, dict) else True
        assert token not in served.errors


def test_alert_rules_name_figures_that_exist(impatient: Served) -> None:
    import yaml

    rules = yaml.safe_load((ROOT / "examples/serving/alerts.yml").read_text(encoding="utf-8"))
    is_answered(impatient)
    text = impatient.ask("/metrics")[1].decode()
    there = set(re.findall(r"^# TYPE (\w+) ", text, re.MULTILINE))
    for rule in [rule for group in rules["groups"] for rule in group["rules"]]:
        assert {"alert", "expr", "labels", "annotations"} <= set(rule)
        named = set(re.findall(r"\b(?:mxtrain|process)_\w+", rule["expr"]))
        assert named and {re.sub(r"_(bucket|count|sum)$", "", name) for name in named} <= there, rule["alert"]


def test_only_loopback_is_listened_to(impatient: Served) -> None:
    listening = Path("/proc/net/tcp").read_text()
    assert f"0100007F:{impatient.port:04X}" in listening and f"00000000:{impatient.port:04X}" not in listening
