"""`mxtrain serve` under load: against a plain loop of onnxruntime, without batching, near its limit, and while it is
restarted. Clients send binary tensors of one sample each (load.py)."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, Sequence

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
from bench_parts.load import Load, LoadGenerator

CLIENTS = 64
LENET = ("model=lenet",)
RESNET50 = (
    "model=gluoncv",
    "model.name=resnet50_v1b",
    "dataset.image_size=[224,224]",
    "dataset.channels=3",
    "dataset.batch_size=4",
    "dataset.eval_batch_size=4",
    "trainer.limit_val_batches=1",
)
RESNET_BATCH = 16
LOADED_CONNECTIONS = 128
"""Connections of clients at 80 % load."""
TYPES = {"uint8": "UINT8", "float32": "FP32", "int32": "INT32"}
"""Data types of NumPy -> those of the Open Inference Protocol."""


def serve(options: Options) -> Measured:
    """All figures of the server."""
    found = Measured()
    lenet = export(LENET, options.work / "lenet")
    with (
        Replica(lenet, "threads=1", own_cores=True) as batched,
        Replica(lenet, "threads=1", "max_batch=1", own_cores=True) as single,
    ):
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
    run_dir = train(
        [
            *overrides,
            "trainer.max_epochs=1",
            "trainer.limit_train_batches=2",
            "trainer.test=false",
            "checkpoint.every_epochs=1",
        ],
        folder,
    )
    command = ["-m", "mxtrain", "export", str(run_dir), f"out={folder / 'exported'}", "limit_batches=1"]
    run(command, untouched_environment(), folder)
    return folder / "exported"


class Replica:
    """A server process.

    Args:
        folder: that it serves.
        settings: of `mxtrain serve`.
        port: that it listens on; 0 = a free one.
        own_cores: True to leave the last core to the clients.

    Attributes:
        port: that it listens on.
        body: a request for one sample of the proof.
    """

    def __init__(self, folder: Path, *settings: str, port: int = 0, own_cores: bool = False) -> None:
        self.port, self.body, self._own_cores = port, request_of(folder), own_cores
        self._command = [sys.executable, "-m", "mxtrain", "serve", f"m={folder}", "log=errors", "queue=1024", *settings]
        self.begin()

    def begin(self) -> None:
        """Starts the process, and waits until it listens."""
        self._process = subprocess.Popen(
            [*self._command, f"port={self.port}"],
            stdout=subprocess.PIPE,
            text=True,
            env={**untouched_environment(), "PYTHONPATH": str(ROOT)},
        )
        cores = os.sched_getaffinity(0)
        if self._own_cores and len(cores) > 1:
            os.sched_setaffinity(self._process.pid, cores - {max(cores)})
        assert self._process.stdout is not None
        # A slow start is shown on lines before the address.
        found = (re.findall(r":(\d+)$", line.strip()) for line in self._process.stdout)
        self.port = int(next(ports for ports in found if ports)[0])

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

    def cpu_s(self) -> float:
        """Seconds of the processor so far."""
        return self.figure("process_cpu_seconds_total")

    def figure(self, name: str) -> float:
        """A figure of /metrics."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics") as answer:
            return float(re.findall(rf"^{name}(?:{{.*?}})? (.*)$", answer.read().decode(), re.MULTILINE)[0])


def request_of(folder: Path) -> bytes:
    """An HTTP request for the first sample of the proof, with a binary tensor."""
    from mxtrain.exporting import standalone

    return infer_request(standalone.cases_of(standalone.read_arrays(str(folder)))[0][0])


def infer_request(inputs: Mapping[str, np.ndarray]) -> bytes:
    """An HTTP request of the Open Inference Protocol for the model `m`, with binary tensors."""
    tensors = [
        {
            "name": name,
            "shape": list(one.shape),
            "datatype": TYPES[one.dtype.name],
            "parameters": {"binary_data_size": one.nbytes},
        }
        for name, one in inputs.items()
    ]
    head = json.dumps({"inputs": tensors, "parameters": {"binary_data_output": True}}).encode()
    body = head + b"".join(one.tobytes() for one in inputs.values())
    return (
        b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nContent-Type: application/octet-stream\r\n"
        b"Inference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n" % (len(head), len(body))
    ) + body


def ask_at_once(replica: Replica, clients: int, seconds: float = 0.0, count: int = 0) -> Load:
    """Each client asks as soon as it is answered, for some time or so many times together."""
    with _client_core():
        return LoadGenerator(replica.body, replica.port, clients).keep_asking(replica.port, clients, seconds, count)


@contextlib.contextmanager
def _client_core() -> Iterator[None]:
    """Runs the clients on the last core, which servers with `own_cores` do not use."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _side(replica: Replica, seconds: float) -> Callable[[int], float]:
    return lambda number: ask_at_once(replica, CLIENTS, seconds).speed


def _compare_batching(batched: Replica, single: Replica, found: Measured, options: Options) -> None:
    seconds, times = (0.5, 1) if options.quick else (5.0, options.turns or 5)
    for replica in (batched, single):
        ask_at_once(replica, CLIENTS, seconds / 2)
    sides = {"batching": batched, "without batching": single}
    cpu_us: Dict[str, List[float]] = {name: [] for name in sides}

    def measure(name: str) -> float:
        before = sides[name].cpu_s()
        load = ask_at_once(sides[name], CLIENTS, seconds)
        cpu_us[name].append(1e6 * (sides[name].cpu_s() - before) / len(load.seconds))
        return load.speed

    Comparison(
        f"LeNet, {CLIENTS} clients",
        "requests/s",
        {
            name: lambda _, name=name: measure(name)
            for name in sides  # type: ignore[misc]
        },
        times,
        [Ratio("batching", "without batching", 2.0)],
    ).measure(options.work, found)
    for name, values in cpu_us.items():
        found.add(f"LeNet, {name}: processor time of the server for a request", "us", values)
    rows, batches = (batched.figure(f"mxtrain_batch_rows_{name}") for name in ("sum", "count"))
    found.details["LeNet: samples of a batch"] = round(rows / batches, 1)


def _compare_latency(replica: Replica, found: Measured, options: Options) -> None:
    """In turn: one client, many, and arrivals at 80 % of the requests a second that many got."""
    seconds, times = (0.5, 1) if options.quick else (4.0, options.turns or 5)
    alone_ms, p99_ms, ratios = [], [], []
    for _ in range(times):
        alone = statistics.median(ask_at_once(replica, 1, seconds / 4).seconds)
        fastest = ask_at_once(replica, CLIENTS, seconds / 2).speed
        with _client_core():
            generator = LoadGenerator(replica.body, replica.port, LOADED_CONNECTIONS)
            loaded = generator.ask_at_rate(lambda: replica.port, 0.8 * fastest, lambda passed: passed < seconds)
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
    replicas = [Replica(folder, "drain_s=1", port=free_port()) for _ in range(2)]
    is_ready, ended = [True, True], threading.Event()

    def watch() -> None:
        while not ended.wait(0.05):
            is_ready[:] = [_is_ready(replica.port) for replica in replicas]

    def renew() -> None:
        for number, replica in enumerate(replicas):
            time.sleep(0.5)
            found.details[f"exit code of replica {number}"] = replica.end()
            replica.begin()
            while not is_ready[number]:
                time.sleep(0.05)
        time.sleep(0.5)
        ended.set()

    turns = itertools.count()

    def choose() -> int:
        ready = [replica.port for replica, is_up in zip(replicas, list(is_ready)) if is_up]
        return ready[next(turns) % len(ready)]

    try:
        with ThreadPoolExecutor(2) as threads:
            others = [threads.submit(watch), threads.submit(renew)]
            load = LoadGenerator(replicas[0].body).ask_at_rate(
                choose, rate, lambda _: not ended.is_set() and not others[1].done(), seed=None
            )
            ended.set()
            for other in others:
                other.result()
    finally:
        for replica in replicas:
            replica.end(signal.SIGINT)
    found.details["rolling restart: statuses"] = load.statuses
    lost = sum(count for status, count in load.statuses.items() if status != 200)
    found.at_most(f"rolling restart of two replicas: lost of {sum(load.statuses.values()):,} requests", lost, 0)


def free_port() -> int:
    """A port that nothing listens on."""
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
    from mxtrain.exporting import standalone

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
    with (
        Replica(folder, f"max_batch={RESNET_BATCH}", "timeout_s=120") as replica,
        _loop_of(folder, RESNET_BATCH, seconds) as loop,
    ):
        ask_at_once(replica, CLIENTS, seconds / 4)
        server = f"server, {CLIENTS} clients"
        Comparison(
            f"{name}, batch {RESNET_BATCH}",
            "samples/s",
            {
                server: _side(replica, seconds),
                "plain onnxruntime loop": loop,
            },
            times,
            [Ratio(server, "plain onnxruntime loop", 0.9)],
        ).measure(options.work, found)
        rows, batches = (replica.figure(f"mxtrain_batch_rows_{part}") for part in ("sum", "count"))
        found.details[f"{name}: samples of a batch"] = round(rows / batches, 1)
