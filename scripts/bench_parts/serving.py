"""`mxtrain serve` under load: against a plain loop of onnxruntime, without batching, near its limit, and while it is
restarted. Clients are coroutines of this process, with connections of their own, binary tensors and one sample each."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Sequence

import numpy as np

from bench_parts.harness import (
    ROOT,
    Comparison,
    Measured,
    Options,
    Ratio,
    run,
    train,
    untouched_environment,
)

CLIENTS = 64
LENET = ("model=lenet",)
RESNET50 = ("model=gluoncv", "model.name=resnet50_v1b", "dataset.image_size=[224,224]", "dataset.channels=3",
            "dataset.batch_size=4", "dataset.eval_batch_size=4", "trainer.limit_val_batches=1")  # fmt: skip
RESNET_BATCH = 16


def serve(options: Options) -> Measured:
    """All figures of the server."""
    found = Measured()
    lenet = export(LENET, options.work / "lenet")
    with Replica(lenet) as batched, Replica(lenet, "max_batch=1") as single:
        _compare_batching(batched, single, found, options)
        _compare_latency(batched, found, options)
        _watch_memory(batched, found, options)
    _restart(lenet, found, options)
    large = lenet if options.quick else export(RESNET50, options.work / "resnet50")
    _compare_with_loop(large, "LeNet" if options.quick else "ResNet-50, 224 px", found, options)
    return found


def export(overrides: Sequence[str], folder: Path) -> Path:
    """An exported folder of a network that has trained for some steps."""
    folder.mkdir()
    run_dir = train([*overrides, "trainer.max_epochs=1", "trainer.limit_train_batches=2", "trainer.test=false",
                     "checkpoint.every_epochs=1"], folder)  # fmt: skip
    command = ["-m", "mxtrain", "export", str(run_dir), f"out={folder / 'exported'}", "limit_batches=1"]
    run(command, untouched_environment(), folder)
    return folder / "exported"


class Replica:
    """A server process.

    Args:
        folder: that it serves.
        settings: of `mxtrain serve`.

    Attributes:
        port: that it listens on.
        body: a request for one sample of the proof.
    """

    def __init__(self, folder: Path, *settings: str, port: int = 0) -> None:
        self.port, self.body = port, request_of(folder)
        self._command = [sys.executable, "-m", "mxtrain", "serve", f"m={folder}", "log=errors", "queue=1024", *settings]
        self.begin()

    def begin(self) -> None:
        """Starts the process, and waits until it listens."""
        self._process = subprocess.Popen([*self._command, f"port={self.port}"], stdout=subprocess.PIPE, text=True,
                                         env={**untouched_environment(), "PYTHONPATH": str(ROOT)})  # fmt: skip
        assert self._process.stdout is not None
        self.port = int(re.findall(r":(\d+)$", self._process.stdout.readline().strip())[0])

    def end(self, number: int = signal.SIGTERM) -> int:
        """Sends a signal, and waits; returns the exit code."""
        self._process.send_signal(number)
        code = self._process.wait(60)
        assert self._process.stdout is not None
        self._process.stdout.close()
        return code

    def __enter__(self) -> Replica:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.end(signal.SIGINT)

    def figure(self, name: str) -> float:
        """A figure of /metrics."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics") as answer:
            return float(re.findall(rf"^{name}(?:{{.*?}})? (.*)$", answer.read().decode(), re.MULTILINE)[0])


def request_of(folder: Path) -> bytes:
    """An HTTP request for the first sample of the proof, with a binary tensor."""
    from mxtrain.export import standalone

    inputs = standalone.cases_of(standalone.read_arrays(str(folder)))[0][0]
    types = {"uint8": "UINT8", "float32": "FP32", "int32": "INT32"}
    tensors = [{"name": name, "shape": list(one.shape), "datatype": types[one.dtype.name],
                "parameters": {"binary_data_size": one.nbytes}} for name, one in inputs.items()]  # fmt: skip
    head = json.dumps({"inputs": tensors, "parameters": {"binary_data_output": True}}).encode()
    body = head + b"".join(one.tobytes() for one in inputs.values())
    return (b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nContent-Type: application/octet-stream\r\n"
            b"Inference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n" % (len(head), len(body))) + body


@dataclass
class Load:
    """What clients have seen.

    Attributes:
        seconds: of each answer.
        statuses: how often each came; 0 = the connection broke.
        took_s: of all.
    """

    seconds: List[float] = field(default_factory=list)
    statuses: Dict[int, int] = field(default_factory=dict)
    took_s: float = 0.0

    @property
    def speed(self) -> float:
        """Answers a second."""
        return self.statuses.get(200, 0) / self.took_s


class Connection:
    """One client."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._streams: Any = None

    async def ask(self, body: bytes, load: Load) -> None:
        """Sends a request, on the same connection as the one before where the server keeps it."""
        begin, status = time.perf_counter(), 0
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            if self._streams is None or self._streams[0].at_eof():  # as every HTTP client asks before it reuses one
                self._streams = await asyncio.open_connection("127.0.0.1", self.port)
            reader, writer = self._streams
            writer.write(body)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            await reader.readexactly(int(re.findall(rb"\ncontent-length: (\d+)", head)[0]))
            status = int(head.split()[1])
            if b"connection: close" in head:
                self.close()
        if status == 0:
            self.close()
        load.seconds.append(time.perf_counter() - begin)
        load.statuses[status] = load.statuses.get(status, 0) + 1

    def close(self) -> None:
        """Ends the connection."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


def ask_at_once(replica: Replica, clients: int, seconds: float = 0.0, count: int = 0) -> Load:
    """Each client asks as soon as it is answered, for some time or so many times together."""
    load, left = Load(), count

    async def client() -> None:
        nonlocal left
        connection = Connection(replica.port)
        while time.perf_counter() - begin < seconds if not count else left > 0:
            left -= 1
            await connection.ask(replica.body, load)
        connection.close()

    async def all_of_them() -> None:
        await asyncio.gather(*(client() for _ in range(clients)))

    begin = time.perf_counter()
    asyncio.run(all_of_them())
    load.took_s = time.perf_counter() - begin
    return load


def ask_at_rate(replica: Replica, rate: float, seconds: float) -> Load:
    """Requests come at random times, on average `rate` a second, whether others are answered or not."""
    load, free = Load(), [Connection(replica.port) for _ in range(256)]

    async def one() -> None:
        connection = free.pop() if free else Connection(replica.port)
        await connection.ask(replica.body, load)
        free.append(connection)

    async def arrivals() -> None:
        draw, tasks, at = random.Random(0), [], time.perf_counter()
        end = at + seconds
        while at < end:
            at += draw.expovariate(rate)
            await asyncio.sleep(max(at - time.perf_counter(), 0))
            tasks.append(asyncio.create_task(one()))
        await asyncio.gather(*tasks)
        for connection in free:
            connection.close()

    begin = time.perf_counter()
    asyncio.run(arrivals())
    load.took_s = time.perf_counter() - begin
    return load


def _side(replica: Replica, seconds: float) -> Callable[[int], float]:
    return lambda number: ask_at_once(replica, CLIENTS, seconds).speed


def _compare_batching(batched: Replica, single: Replica, found: Measured, options: Options) -> None:
    seconds, times = (0.5, 1) if options.quick else (5.0, options.turns or 5)
    for replica in (batched, single):
        ask_at_once(replica, CLIENTS, seconds / 2)
    Comparison(f"LeNet, {CLIENTS} clients", "requests/s", {
        "batching": _side(batched, seconds), "without batching": _side(single, seconds),
    }, times, [Ratio("batching", "without batching", 2.0)]).measure(options.work, found)  # fmt: skip
    rows, batches = (batched.figure(f"mxtrain_batch_rows_{name}") for name in ("sum", "count"))
    found.details["LeNet: samples of a batch"] = round(rows / batches, 1)


def _compare_latency(replica: Replica, found: Measured, options: Options) -> None:
    """In turn: one client, many, and arrivals at 80 % of what many got."""
    seconds, times = (0.5, 1) if options.quick else (4.0, options.turns or 5)
    alone_ms, p99_ms, ratios = [], [], []
    for _ in range(times):
        alone = statistics.median(ask_at_once(replica, 1, seconds / 4).seconds)
        fastest = ask_at_once(replica, CLIENTS, seconds / 2).speed
        loaded = ask_at_rate(replica, 0.8 * fastest, seconds)
        alone_ms.append(1000 * alone)
        p99_ms.append(1000 * float(np.percentile(loaded.seconds, 99)))
        ratios.append(p99_ms[-1] / alone_ms[-1])
        found.details.setdefault("statuses at 80 % load", []).append(loaded.statuses)
    found.add("LeNet: latency of one client, median", "ms", alone_ms)
    found.add("LeNet: p99 at 80 % load, arrivals at random", "ms", p99_ms)
    found.add("LeNet: p99 at 80 % load / latency of one client", "ratio", ratios)
    found.at_most("LeNet: p99 at 80 % load / latency of one client, median", statistics.median(ratios), 5.0)


def _watch_memory(replica: Replica, found: Measured, options: Options) -> None:
    """A tenth of the requests first, which fill what is kept."""
    count = 300 if options.quick else 100_000 if not options.turns else 20_000
    ask_at_once(replica, CLIENTS, count=count // 10)
    before = replica.figure("process_resident_memory_bytes")
    ask_at_once(replica, CLIENTS, count=count)
    after = replica.figure("process_resident_memory_bytes")
    found.details["memory, MB"] = [round(value / 1e6, 1) for value in (before, after)]
    found.at_most(f"memory after {count:,} requests / before", after / before, 1.05)


def _restart(folder: Path, found: Measured, options: Options) -> None:
    """Two replicas behind a balancer that asks /v2/health/ready; each in turn ends by SIGTERM and starts anew."""
    rate = 20.0 if options.quick else 100.0
    replicas = [Replica(folder, "drain_s=1", port=_free_port()) for _ in range(2)]
    load = Load()

    async def drive() -> None:
        is_ready, goes_on = [True, True], True

        async def watch() -> None:
            while goes_on:
                for number, replica in enumerate(replicas):
                    is_ready[number] = await asyncio.to_thread(_is_ready, replica.port)
                await asyncio.sleep(0.05)

        async def ask() -> None:
            tasks, turn, pools = [], 0, [[], []]  # type: ignore[var-annotated]

            async def one(number: int) -> None:
                connection = pools[number].pop() if pools[number] else Connection(replicas[number].port)
                await connection.ask(replicas[number].body, load)
                pools[number].append(connection)

            while goes_on:
                ready = [number for number in (0, 1) if is_ready[number]]
                turn += 1
                tasks.append(asyncio.create_task(one(ready[turn % len(ready)])))
                await asyncio.sleep(1 / rate)
            await asyncio.gather(*tasks)
            for connection in pools[0] + pools[1]:
                connection.close()

        async def renew() -> None:
            nonlocal goes_on
            for number, replica in enumerate(replicas):
                await asyncio.sleep(0.5)
                found.details[f"exit code of replica {number}"] = await asyncio.to_thread(replica.end)
                await asyncio.to_thread(replica.begin)
                while not is_ready[number]:
                    await asyncio.sleep(0.05)
            await asyncio.sleep(0.5)
            goes_on = False

        await asyncio.gather(watch(), ask(), renew())

    try:
        asyncio.run(drive())
    finally:
        for replica in replicas:
            replica.end(signal.SIGINT)
    found.details["rolling restart: statuses"] = load.statuses
    lost = sum(count for status, count in load.statuses.items() if status != 200)
    found.at_most(f"rolling restart of two replicas: lost of {sum(load.statuses.values()):,} requests", lost, 0)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=2) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


@contextlib.contextmanager
def _loop_of(folder: Path, rows: int, seconds: float) -> Iterator[Callable[[int], float]]:
    """A loop of onnxruntime over batches that are in memory already."""
    from mxtrain.export import standalone

    session = standalone.load_session(str(folder))
    inputs = standalone.cases_of(standalone.read_arrays(str(folder)))[0][0]
    batch = {name: np.repeat(one, rows, axis=0) for name, one in inputs.items()}

    def measure(number: int) -> float:
        begin, count = time.perf_counter(), 0
        while time.perf_counter() - begin < seconds:
            standalone.run(session, batch)
            count += rows
        return count / (time.perf_counter() - begin)

    yield measure


def _compare_with_loop(folder: Path, name: str, found: Measured, options: Options) -> None:
    seconds, times = (0.5, 1) if options.quick else (15.0, options.turns or 3)
    with Replica(folder, f"max_batch={RESNET_BATCH}", "timeout_s=120") as replica, \
            _loop_of(folder, RESNET_BATCH, seconds) as loop:  # fmt: skip
        ask_at_once(replica, CLIENTS, seconds / 4)
        server = f"server, {CLIENTS} clients"
        Comparison(f"{name}, batch {RESNET_BATCH}", "samples/s", {
            server: _side(replica, seconds), "plain onnxruntime loop": loop,
        }, times, [Ratio(server, "plain onnxruntime loop", 0.9)]).measure(options.work, found)  # fmt: skip
        rows, batches = (replica.figure(f"mxtrain_batch_rows_{part}") for part in ("sum", "count"))
        found.details[f"{name}: samples of a batch"] = round(rows / batches, 1)
