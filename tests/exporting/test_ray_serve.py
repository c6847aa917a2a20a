"""The Ray Serve application of an exported folder, with two replicas of which one is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Dict, Iterator, List

import numpy as np
import pytest
import running
import yaml
from waiting import free_port, wait_until

from mxtrain.cli.dispatch import run

pytest.importorskip("ray.serve", reason="ray[serve] is not installed: pip install 'mxtrain[ray-serve]'")
pytestmark = [pytest.mark.slow, pytest.mark.zoo, pytest.mark.timeout(400), pytest.mark.usefixtures("own_cache")]
NAME = f"digits-{os.getpid()}"
CLIENTS = 4


def replicas() -> List[int]:
    """Process ids of the replicas of this test's application."""
    wanted, found = f"ray::ServeReplica:{NAME}:Network".encode(), []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if (folder / "cmdline").read_bytes().startswith(wanted):
                    found.append(int(folder.name))
            except OSError:
                continue
    return found


class Server:
    """`serve run` in a folder, and its address."""

    def __init__(self, folder: Path):
        config = yaml.safe_load((folder / "serve.yaml").read_text())
        (deployment,) = config["applications"][0]["deployments"]
        del deployment["autoscaling_config"]
        deployment.update(num_replicas=2, ray_actor_options={"num_cpus": 0.1})
        config["http_options"]["port"] = port = free_port()
        (folder / "serve.yaml").write_text(yaml.safe_dump(config))
        self.url = f"http://127.0.0.1:{port}/v2"
        self._log = (folder / "serve.log").open("wb")
        self._popen = subprocess.Popen(
            [sys.executable, "-c", "from ray.serve.scripts import cli; cli(['run', 'serve.yaml'])"],
            cwd=folder,
            env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"},
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    def is_ready(self) -> bool:
        assert self._popen.poll() is None, "serve has ended"
        try:
            with urllib.request.urlopen(f"{self.url}/health/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def infer(self, array: np.ndarray) -> Dict[str, np.ndarray]:
        tensor = {"name": "input", "datatype": "UINT8", "shape": list(array.shape), "data": array.ravel().tolist()}
        request = urllib.request.Request(
            f"{self.url}/models/{NAME}/infer", json.dumps({"inputs": [tensor]}).encode(), method="POST"
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            outputs = json.load(answer)["outputs"]
        return {one["name"]: np.array(one["data"], np.float32).reshape(one["shape"]) for one in outputs}

    def close(self) -> None:
        self._popen.send_signal(signal.SIGINT)
        try:
            self._popen.wait(60)
        finally:
            self._popen.kill()
            self._log.close()


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ray")
    running.train_here(folder / "run", "trainer.max_epochs=1")
    assert run(["export", str(folder / "run"), f"out={folder / 'out'}", "for=ray", f"name={NAME}"]) == 0
    return folder / "out"


@pytest.fixture(scope="module")
def server(exported: Path) -> Iterator[Server]:
    found = Server(exported)
    try:
        wait_until(found.is_ready, 180)
        wait_until(lambda: len(replicas()) == 2, 60)
        yield found
    finally:
        found.close()
        wait_until(lambda: not replicas(), 30)


def test_killed_replica_is_replaced_and_no_answer_is_wrong(server: Server, exported: Path) -> None:
    with np.load(exported / "proof.npz") as proof:
        images, expected = proof["1/input/input"], proof["1/output/output"]
    np.testing.assert_allclose(server.infer(images)["output"], expected, atol=1e-4)
    ends, right, failed, wrong = threading.Event(), [0] * CLIENTS, [0] * CLIENTS, []

    def ask(client: int) -> None:
        row = client % len(images)
        while not ends.is_set():
            try:
                found = server.infer(images[row : row + 1])["output"]
            except OSError:
                failed[client] += 1
                time.sleep(0.1)
                continue
            if np.abs(found - expected[row : row + 1]).max() > 1e-4:
                wrong.append(found)
            right[client] += 1

    clients = [threading.Thread(target=ask, args=(number,)) for number in range(CLIENTS)]
    for client in clients:
        client.start()
    try:
        wait_until(lambda: min(right) >= 5, 60)
        before = replicas()
        os.kill(before[0], signal.SIGKILL)
        counted = list(right)
        wait_until(lambda: all(now > then + 5 for now, then in zip(right, counted)), 60)  # the other one answers
        wait_until(lambda: len(replicas()) == 2 and before[0] not in replicas(), 90)
    finally:
        ends.set()
        for client in clients:
            client.join(60)
    assert not wrong
    assert sum(failed) <= 2 * CLIENTS, failed  # those that waited in the killed one


def status_of(server: Server, path: str, content: Any = None) -> int:
    try:
        with urllib.request.urlopen(urllib.request.Request(f"{server.url}{path}", content), timeout=30) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_wrong_requests_are_answered_by_their_codes(server: Server) -> None:
    assert status_of(server, f"/models/{NAME}") == 200
    assert status_of(server, "/models/other") == 404
    assert status_of(server, f"/models/{NAME}/infer") == 404  # by GET
    assert status_of(server, f"/models/{NAME}/infer", b"{") == 400
    assert status_of(server, f"/models/{NAME}/infer", b" " * ((1 << 26) + 1)) == 413
