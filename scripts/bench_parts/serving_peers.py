"""`mxtrain serve` beside LitServe, BentoML, MLServer and Ray Serve: the same model.onnx, clients and cores, in turns.

Each turn starts a server anew, loads it and ends it. The servers of the others are in peer_servers/.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence, Tuple

import numpy as np

from bench_parts.export_side import resized
from bench_parts.exports import FAMILIES, ONE_STEP
from bench_parts.harness import ROOT, Measured, Options, ProcessFailed, say, untouched_environment
from bench_parts.load import LoadGenerator
from bench_parts.records import Records
from bench_parts.serving import LENET, TYPES, export, free_port, infer_request

CLIENTS = (1, 8, 64)
LOADS = (50, 80)
"""Percent of the requests a second that 64 clients get."""
START_S = 90.0
MARK = "BENCH_SERVER"
"""Variable by which the processes of a server are found."""
SERVERS = ROOT / "scripts" / "bench_parts" / "peer_servers"
OURS = "mxtrain"
PEERS = {"LitServe": "litserve", "BentoML": "bentoml", "MLServer": "mlserver", "Ray Serve": "ray"}
"""Name and package; the environment's folder is that of the package."""
NO_PEERS = "No --peers was given: the other servers were not measured."
JSON, BINARY = "application/json", "application/octet-stream"


@dataclass(frozen=True)
class Network:
    """A network that is served.

    Attributes:
        name: for readers.
        overrides: of a run.
        threads: of onnxruntime in each process that computes.
        workers: processes of a peer, by its name; of LitServe, HTTP processes beside the one that computes.
        length: tokens of a text; 0 = as the proof has them.
        seconds: seconds of each load.
        connections: connections that are used once before an open loop.
    """

    name: str
    overrides: Sequence[str]
    threads: int
    workers: Mapping[str, int]
    length: int = 0
    seconds: float = 3.0
    connections: int = 128


NETWORKS = (
    Network(
        "LeNet, 28 px",
        [*LENET, "dataset.image_size=[28,28]"],
        1,
        {"LitServe": 1, "BentoML": 2, "MLServer": 0, "Ray Serve": 2},
    ),
    Network(
        "BERT-base, 128 tokens",
        [*ONE_STEP, *next(one.overrides for one in FAMILIES if one.name == "BERT-base, 128 tokens")],
        2,
        {"LitServe": 1, "BentoML": 1, "MLServer": 0, "Ray Serve": 1},
        128,
        4.0,
        0,
    ),
)
QUICK = Network("LeNet, digits", LENET, 1, dict.fromkeys(PEERS, 1), seconds=0.3)


class Server:
    """A running server.

    Args:
        name: `OURS` or a peer.
        network: that it serves.
        exported: its exported folder.
        folder: for its files, with a short path, because Ray has sockets in it.
        peers: folder of the environments of the peers.

    Attributes:
        port: that it listens on.
        requests: HTTP request by its content type.
        start_s: seconds from its command to its first answer.
        peak_MiB: the most memory that `note_memory` has found.
    """

    def __init__(self, name: str, network: Network, exported: Path, folder: Path, peers: Path) -> None:
        self.port, self.peak_MiB, self._mark = free_port(), 0.0, f"{folder.name}-{time.monotonic_ns()}"
        arrays = _inputs_of(exported, network.length)
        self.requests = _requests(name, arrays)
        environment = {
            **untouched_environment(),
            MARK: self._mark,
            "BENCH_MODEL": str(exported / "model.onnx"),
            "BENCH_THREADS": str(network.threads),
            "BENCH_PORT": str(self.port),
            "BENCH_FOLDER": str(folder),
        }
        if name == OURS:
            settings = (f"m={exported}", f"port={self.port}", f"threads={network.threads}", "log=errors", "queue=1024")
            command = [sys.executable, "-m", "mxtrain", "serve", *settings, "timeout_s=120", "max_scale=16"]
        else:
            environment["PYTHONPATH"] = str(SERVERS)
            command = _command(name, network.workers[name], self.port, folder, peers / PEERS[name] / "bin", environment)
        self._log = open(folder / "log", "w+b")
        begin = time.perf_counter()
        self._process = subprocess.Popen(
            command,
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            while not self._answers():
                if self._process.poll() is not None or time.perf_counter() - begin > START_S:
                    self._log.seek(0)
                    tail = "\n".join(self._log.read().decode(errors="replace").splitlines()[-15:])
                    raise ProcessFailed(f"{name} does not answer\n{tail}")
                time.sleep(0.02)
        except BaseException:
            self.end()
            raise
        self.start_s = time.perf_counter() - begin

    def _answers(self) -> bool:
        try:
            head, _, body = self.requests[JSON].partition(b"\r\n\r\n")
            path = head.split()[1].decode()
            request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", body, {"Content-Type": JSON})
            with urllib.request.urlopen(request, timeout=60) as answer:
                return bool(answer.status == 200)
        except urllib.error.HTTPError as error:
            if error.code in (400, 413, 422):
                raise ProcessFailed(f"the request was refused: {error.read()[:500]!r}") from error
            return False
        except OSError:
            return False

    def end(self) -> None:
        """Ends all its processes, first by SIGTERM."""
        self._process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        for path in self._processes():
            with contextlib.suppress(OSError):
                os.kill(int(path.name), signal.SIGKILL)
        self._process.wait()
        self._log.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.end()

    def _processes(self) -> List[Path]:
        """Returns the folders in /proc of all processes that have inherited its environment."""
        found, wanted = [], f"\0{MARK}={self._mark}\0".encode()
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if wanted in b"\0" + (path / "environ").read_bytes():
                    found.append(path)
        return found

    def note_memory(self) -> None:
        """Adds up the memory of all processes; what they share counts once (PSS)."""
        total = 0.0
        for path in self._processes():
            with contextlib.suppress(OSError):
                lines = (path / "smaps_rollup").read_text().splitlines()
                total += sum(int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:"))
        self.peak_MiB = max(self.peak_MiB, total)

    def cpu_s(self) -> float:
        """Returns the seconds of the processor of all processes so far."""
        ticks = 0
        for path in self._processes():
            with contextlib.suppress(OSError):
                ticks += sum(int(word) for word in (path / "stat").read_text().rpartition(")")[2].split()[11:13])
        return ticks / os.sysconf("SC_CLK_TCK")


def _inputs_of(exported: Path, length: int) -> Dict[str, np.ndarray]:
    """Returns the first sample of the proof."""
    from mxtrain.exporting import standalone

    case = standalone.cases_of(standalone.read_arrays(str(exported)))[0][0]
    return dict(zip(case, resized(list(case.values()), 1, length)))


def _numbers(array: np.ndarray) -> np.ndarray:
    """Rounds numbers, as clients would write them in JSON: 0.306, not 0.3059999942779541."""
    return array.astype(np.float64).round(3) if array.dtype.kind == "f" else array


def _requests(name: str, arrays: Mapping[str, np.ndarray]) -> Dict[str, bytes]:
    lists = {input_name: _numbers(array).tolist() for input_name, array in arrays.items()}
    if name in (OURS, "MLServer"):
        path = "/v2/models/m/infer"
        body: Any = {"inputs": [_tensor(input_name, array) for input_name, array in arrays.items()]}
    elif name == "BentoML":
        path, body = "/predict", {"requests": [lists]}
    else:
        path, body = "/predict" if name == "LitServe" else "/", lists
    found = {JSON: _post(path, JSON, json.dumps(body, separators=(",", ":")).encode())}
    if name == OURS:
        found[BINARY] = infer_request(arrays)
    elif name == "Ray Serve" and len(arrays) == 1:
        found[BINARY] = _post(path, BINARY, next(iter(arrays.values())).tobytes())
    return found


def _tensor(name: str, array: np.ndarray) -> Dict[str, Any]:
    return {
        "name": name,
        "shape": list(array.shape),
        "datatype": TYPES[array.dtype.name],
        "data": _numbers(array).ravel().tolist(),
    }


def _post(path: str, media_type: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: {media_type}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _command(
    name: str, workers: int, port: int, folder: Path, programs: Path, environment: Dict[str, str]
) -> List[str]:
    """Returns the command of a peer, and adds its variables to an environment."""
    if name == "LitServe":
        return [str(programs / "python"), str(SERVERS / "litserve_server.py"), str(workers)]
    if name == "Ray Serve":
        environment.update(RAY_SERVE_THROUGHPUT_OPTIMIZED="1", RAY_USAGE_STATS_ENABLED="0")
        return [str(programs / "python"), str(SERVERS / "rayserve_server.py"), str(workers)]
    if name == "BentoML":
        environment.update(BENCH_WORKERS=str(workers), BENTOML_HOME=str(folder), BENTOML_DO_NOT_TRACK="True")
        return [
            str(programs / "bentoml"),
            *("serve", "bentoml_server:Network", "--working-dir", str(SERVERS)),
            *("--host", "127.0.0.1", "--port", str(port)),
        ]
    settings = {
        "host": "127.0.0.1",
        "http_port": port,
        "grpc_port": free_port(),
        "metrics_port": free_port(),
        "debug": False,
        "parallel_workers": workers,
    }
    model = {
        "name": "m",
        "implementation": "mlserver_model.Network",
        "max_batch_size": 32,
        "max_batch_time": 0.002,
    }
    (folder / "settings.json").write_text(json.dumps(settings))
    (folder / "model-settings.json").write_text(json.dumps(model))
    return [str(programs / "mlserver"), "start", str(folder)]


def measure(options: Options) -> Measured:
    """Measures all servers; turns in the file of `--records` are not taken again."""
    found, records = Measured(), Records(options)
    peers = [name for name, package in PEERS.items() if options.peers and (_python(options, package)).exists()]
    if not options.peers:
        found.notes.append(NO_PEERS)
    for name in peers:
        found.details[name] = records.get(
            f"{name}: versions", partial(_versions, _python(options, PEERS[name]), PEERS[name])
        )
    for number, network in enumerate([QUICK] if options.quick else NETWORKS):
        if options.only.lower() in network.name.lower():
            _measure_network(network, [OURS, *peers], found, records, options, number)
    return found


def _python(options: Options, package: str) -> Path:
    return Path(options.peers) / package / "bin" / "python"


def _versions(python: Path, package: str) -> Dict[str, str]:
    names = (package, "onnxruntime", "numpy", "uvicorn")
    code = "import json, sys; from importlib.metadata import version as v; "
    code += "print(json.dumps({n: v(n) for n in sys.argv[1:]}))"
    done = subprocess.run([str(python), "-c", code, *names], stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout))


def _measure_network(
    network: Network, sides: Sequence[str], found: Measured, records: Records, options: Options, number: int
) -> None:
    turns, figures = 1 if options.quick else options.turns or 3, {name: [] for name in sides}  # type: ignore[var-annotated]
    # A part that is taken in pieces exports each network once.
    folder = options.records.with_suffix(f".network{number}") if options.records else options.work / f"network{number}"
    for turn in range(turns):
        for name in sides if turn % 2 == 0 else reversed(sides):
            taken, reason = None, "the time was up"
            try:
                taken = records.get([network.name, name, turn], partial(_take_turn, name, network, folder, options))
            except ProcessFailed as error:
                if name == OURS:
                    raise
                reason = str(error).splitlines()[0]
                say(f"  {error}")
            if taken is not None:
                figures[name].append(taken)
            else:
                found.notes.append(f"Not measured: {network.name}, {name}, turn {turn + 1}: {reason}.")
    for figure, unit in UNITS.items():
        for name, values in figures.items():
            given = [turn[figure] for turn in values if figure in turn]
            if given:
                found.add(f"{network.name}: {name}, {figure}", unit, given)
    compare_servers(network, figures, found)


UNITS = {
    **{f"{clients} clients": "requests/s" for clients in CLIENTS},
    "64 clients, binary": "requests/s",
    **{f"{part} at {load} % load": "ms" for load in LOADS for part in ("p50", "p99")},
    "processor time for a request": "us",
    "memory": "MiB",
    "start": "s",
}
"""Figures of a turn, in the order of the page."""


def _take_turn(name: str, network: Network, folder_of_export: Path, options: Options) -> Dict[str, float]:
    exported, seconds = folder_of_export / "exported", network.seconds
    if not exported.exists():
        export(network.overrides, folder_of_export)
    with (
        tempfile.TemporaryDirectory(prefix="sp-") as folder,
        Server(name, network, exported, Path(folder), Path(options.peers)) as server,
    ):
        found = {"start": server.start_s}
        request = server.requests[JSON]
        _closed(server, request, 8, seconds / 2)  # fills caches, and tunes batching by what it sees
        for clients in CLIENTS:
            cpu_s = server.cpu_s()
            found[f"{clients} clients"], count = _closed(server, request, clients, seconds)
            cpu_us = 1e6 * (server.cpu_s() - cpu_s) / count
            server.note_memory()
        found["processor time for a request"] = cpu_us
        if BINARY in server.requests and not network.length:
            found["64 clients, binary"], _ = _closed(server, server.requests[BINARY], CLIENTS[-1], seconds)
        fastest = found[f"{CLIENTS[-1]} clients"]
        for load in LOADS:
            loaded = LoadGenerator(request, server.port, min(network.connections, 8 if options.quick else 128))
            answers = loaded.ask_at_rate(lambda: server.port, load / 100 * fastest, lambda passed: passed < seconds)
            _require_answers(name, answers.statuses)
            for part in (50, 99):
                found[f"p{part} at {load} % load"] = 1000 * float(np.percentile(answers.seconds, part))
            server.note_memory()
        found["memory"] = server.peak_MiB
    say(f"  {network.name}: {name}: " + ", ".join(f"{key} {value:.4g}" for key, value in found.items()))
    return found


def _closed(server: Server, request: bytes, clients: int, seconds: float) -> Tuple[float, int]:
    load = LoadGenerator(request, server.port, min(clients, 8)).keep_asking(server.port, clients, seconds)
    _require_answers("the server", load.statuses)
    return load.speed, len(load.seconds)


def _require_answers(name: str, statuses: Mapping[int, int]) -> None:
    if set(statuses) != {200}:
        raise ProcessFailed(f"{name} answered with the statuses {dict(statuses)}")


def compare_servers(network: Network, figures: Mapping[str, List[Dict[str, float]]], found: Measured) -> None:
    """Compares medians with the best of the others."""
    others = [name for name, turns in figures.items() if name != OURS and turns]
    if not others or not figures[OURS]:
        return

    def median(name: str, figure: str) -> float:
        return statistics.median(turn[figure] for turn in figures[name])

    for clients in CLIENTS:
        figure = f"{clients} clients"
        best = max(others, key=lambda name: median(name, figure))
        ratio = median(OURS, figure) / median(best, figure)
        found.at_least(f"{network.name}, {figure}: requests/s of mxtrain / {best}, the best other", ratio, 1.5)
    for load in LOADS:
        figure = f"p99 at {load} % load"
        best = min(others, key=lambda name: median(name, figure))
        ratio = median(OURS, figure) / median(best, figure)
        found.at_most(f"{network.name}: {figure} of mxtrain / {best}, the lowest other", ratio, 1.0)
