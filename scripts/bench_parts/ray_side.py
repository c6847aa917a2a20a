"""Throughput of an exported folder's Ray Serve application with different numbers of replicas, in turns."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from pathlib import Path
from typing import Any, Dict, List, Sequence

CLIENTS = 8


def throughput(replicas: Sequence[int], rounds: int, seconds: float) -> Dict[str, List[float]]:
    """Requests a second, by number of replicas. The folder of the application is on the path.

    Args:
        replicas: numbers of them, one thread each.
        rounds: measurements of each number.
        seconds: of a measurement.
    """
    import numpy as np
    import ray
    import ray_application
    from ray import serve

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = int(listener.getsockname()[1])
    with np.load(Path(ray_application.FOLDER) / "proof.npz") as proof:
        image = proof["0/input/input"]
    tensor = {
        "name": "input",
        "datatype": ray_application.DATATYPES[image.dtype.name],
        "shape": list(image.shape),
        "data": image.ravel().tolist(),
    }
    body = json.dumps({"inputs": [tensor]}).encode()
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    found: Dict[str, List[float]] = {str(count): [] for count in replicas}
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        for _ in range(rounds):
            for count in replicas:
                application = ray_application.Network.options(num_replicas=count, max_ongoing_requests=64).bind()
                serve.run(application, name="served", route_prefix="/")
                _load(port, ray_application.NAME, body, 2.0)
                found[str(count)].append(_load(port, ray_application.NAME, body, seconds))
    finally:
        serve.shutdown()
        ray.shutdown()
    return found


def _load(port: int, name: str, body: bytes, seconds: float) -> float:
    """Requests a second that eight clients get answers to."""
    counts: List[int] = [0] * CLIENTS
    end = time.monotonic() + seconds

    def ask(client: int) -> None:
        connection: Any = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        while time.monotonic() < end:
            connection.request("POST", f"/v2/models/{name}/infer", body)
            answer = connection.getresponse()
            answer.read()
            if answer.status != 200:
                raise ValueError(f"the server answered {answer.status}")
            counts[client] += 1
        connection.close()

    clients = [threading.Thread(target=ask, args=(number,)) for number in range(CLIENTS)]
    started = time.monotonic()
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    return sum(counts) / (time.monotonic() - started)
