"""MLflow's server and files of Weights & Biases, in an environment of their own: both have too many packages for ours.

MXTRAIN_TRACKERS_PYTHON names the Python of an environment that has both; without it, one is made, which takes minutes.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.error
import urllib.request

import pytest
from running import ROOT, Process, rows

from mxtrain.logger.mlflow import Mlflow
from mxtrain.logger.wandb import Wandb

pytestmark = [pytest.mark.zoo, pytest.mark.timeout(1200)]

KEY = "0123456789abcdef0123456789abcdef01234567"
READ = """
import glob, json, struct, sys
from mlflow import MlflowClient
from wandb.proto import wandb_internal_pb2 as pb

def records(data):  # the log format of LevelDB, in blocks of 32 KiB, after a header of 7 bytes
    at, whole = 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        _, length, kind = struct.unpack("<IHB", data[at : at + 7]) if left >= 7 else (0, 0, 0)
        if kind == 0:
            at += left
            continue
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield whole
            whole = b""

uri, run_dir = sys.argv[1:]
position = json.load(open(f"{run_dir}/tracker-mlflow.json"))
client = MlflowClient(uri)
run = client.get_run(position["remote_id"])
points = [
    (tag, point.step, point.value) for tag in run.data.metrics
    for point in client.get_metric_history(position["remote_id"], tag)
]
written = []
for file in sorted(glob.glob(f"{run_dir}/wandb/offline-run-*/*.wandb")):
    for data in records(open(file, "rb").read()):
        record = pb.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            items = {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in record.history.item}
            written += [(tag, items["step"], value) for tag, value in items.items() if "/" in tag]
print(json.dumps({"status": run.info.status, "params": run.data.params, "mlflow": points, "wandb": written}))
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """An interpreter that has this environment's packages, MLflow and wandb."""
    given = os.environ.get("MXTRAIN_TRACKERS_PYTHON")
    if given:
        return given
    if importlib.util.find_spec("mlflow") and importlib.util.find_spec("wandb"):
        return sys.executable
    folder = tmp_path_factory.mktemp("trackers")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    made = folder / "bin" / "python"
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "mxtrain.pth").write_text(sysconfig.get_path("purelib") + "\n")
    wanted = [*Mlflow.install.split(), *Wandb.install.split(), "numpy==1.23.5"]
    done = subprocess.run([str(made), "-m", "pip", "install", "-q", *wanted], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"the extras mlflow and wandb cannot be installed here: {done.stderr[-300:]}")
    return str(made)


@pytest.fixture(scope="module")
def uri(python, tmp_path_factory):
    """A real server of MLflow on a database."""
    folder = tmp_path_factory.mktemp("server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with open(folder / "log", "w") as log:
        server = subprocess.Popen(
            [
                python,
                "-m",
                "mlflow",
                "server",
                "--port",
                str(port),
                "--workers",
                "1",
                "--backend-store-uri",
                f"sqlite:///{folder}/mlflow.db",
            ],
            cwd=folder,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            assert server.poll() is None, (folder / "log").read_text()[-2000:]
            try:
                urllib.request.urlopen(f"{address}/health", timeout=5).close()
                break
            except (urllib.error.URLError, OSError):
                time.sleep(0.5)
        yield address
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(60)


def read(python, uri, run_dir):
    done = subprocess.run([python, "-c", READ, uri, str(run_dir)], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def means(run_dir, interval=5):
    """Mean losses of the windows and of the validations, by (tag, step)."""
    found, window, everything = {}, [], rows(run_dir)
    for row in everything:
        if row["split"] == "val":
            found["val/loss", row["step"]] = row["loss"]
            continue
        window.append(row["loss"])
        if row["step"] % interval == 0 or row["step"] == everything[-1]["step"]:
            found["train/loss", row["step"]] = sum(window) / len(window)
            window = []
    return found


def curves(points):
    """Losses by (tag, step); fails if a point is there twice."""
    losses = [tuple(point[:2]) for point in points if point[0] in ("train/loss", "val/loss")]
    assert len(losses) == len(set(losses))
    return {(tag, step): value for tag, step, value in points if (tag, step) in set(losses)}


def test_a_killed_run_continues_at_mlflow_and_in_files_of_wandb(python, uri, tmp_path):
    run_dir = tmp_path / "run"
    words = (
        "logger=[jsonl,console,mlflow,wandb]",
        f"logger.mlflow.uri={uri}",
        "trainer.log_interval=5",
        "dataset.batch_size=54",
        "checkpoint.every_steps=40",
        "early_stopping=off",
    )
    environment = {"WANDB_MODE": "offline", "WANDB_API_KEY": KEY, "MLFLOW_TRACKING_TOKEN": KEY[::-1]}
    command = [python, "-m", "mxtrain"]

    def position(service):
        try:
            return json.loads((run_dir / f"tracker-{service}.json").read_text())["sent"]
        except (OSError, ValueError):
            return {}

    process = Process(run_dir, *words, "trainer.max_epochs=400", env=environment, command=command)
    process.wait_until(lambda: all(position(name).get("val/loss", 0) > 40 for name in ("mlflow", "wandb")))
    process.kill(signal.SIGKILL).end(-signal.SIGKILL)
    steps = max(row["step"] for row in rows(run_dir))
    epochs = steps // 20 + 3
    Process(run_dir, *words, f"trainer.max_epochs={epochs}", env=environment, command=command).end()
    found, wanted = read(python, uri, run_dir), means(run_dir)
    assert found["status"] == "FINISHED" and found["params"]["trainer.log_interval"] == "5"
    for service in ("mlflow", "wandb"):
        sent = curves(found[service])
        assert set(sent) == set(wanted), service
        assert sent == {point: pytest.approx(value, rel=0.2, abs=0.05) for point, value in wanted.items()}
    for path in run_dir.rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        assert KEY.encode() not in content and KEY[::-1].encode() not in content, path


def test_push_sends_a_finished_run_into_a_database(python, tmp_path):
    run_dir = tmp_path / "run"
    command = [python, "-m", "mxtrain"]
    Process(run_dir, "trainer.max_epochs=2", "trainer.log_interval=5", "dataset.batch_size=54", command=command).end()
    address = f"sqlite:///{tmp_path}/mlflow.db"
    for expected in ("new run", "0 points sent"):
        done = subprocess.run(
            [*command, "push", str(run_dir), "tracker=mlflow", f"logger.mlflow.uri={address}"],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        assert done.returncode == 0 and expected in done.stdout, done.stdout + done.stderr
    sent, wanted = curves(read(python, address, run_dir)["mlflow"]), means(run_dir)
    assert sent == {point: pytest.approx(value) for point, value in wanted.items()}
