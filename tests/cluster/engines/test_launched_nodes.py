"""Generated files start real runs: each node's script is a process, with the environment that its engine sets."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping

import pytest
import yaml
from running import QUIET, ROOT, SMALL, assert_same, checkpoints, has_steps, role_of, running_processes, status
from waiting import wait_until

import mxtrain
from mxtrain.cluster.hosts import free_port
from mxtrain.runtime.network import LOOPBACK

pytestmark = pytest.mark.slow
RUN = ("kvstore=dist_sync", "cluster.workers=2", *SMALL, *QUIET, "trainer.max_epochs=2")
CLUSTER = {"image": "example.com/mxtrain:1", "storage": "pvc://outputs"}
TIMEOUT_S = 120
Nodes = List[subprocess.Popen]


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run by the launcher of one machine."""
    run_dir = tmp_path_factory.mktemp("local") / "run"
    command = [sys.executable, "-m", "mxtrain", *RUN, f"hydra.run.dir={run_dir}"]
    subprocess.run(command, env=environment(), check=True, timeout=TIMEOUT_S, capture_output=True)
    return run_dir


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def environment(**variables: str) -> Dict[str, str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PATH": path, **variables}


def start(stack: ExitStack, command: List[str], folder: Path, **variables: str) -> subprocess.Popen:
    process = subprocess.Popen(
        command, cwd=folder, env=environment(**variables), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process


def end(nodes: Nodes, code: int = 0) -> List[str]:
    """Waits for all nodes; returns their outputs."""
    outputs = [node.communicate(timeout=TIMEOUT_S)[0] for node in nodes]
    assert [node.returncode for node in nodes] == [code] * len(nodes), "\n".join(outputs)
    return outputs


def expanded(text: str) -> str:
    """As Kubernetes passes an argument on: $$ is $."""
    return text.replace("$$", "$")


def kubeflow(folder: Path) -> List[Any]:
    job = yaml.safe_load_all((folder / "trainjob.yaml").read_text()).__next__()["spec"]["trainer"]
    assert job["numNodes"] == 2
    command = [*job["command"], *map(expanded, job["args"])]
    return [(command, {"JOB_COMPLETION_INDEX": str(index)}) for index in range(2)]


def kubernetes(folder: Path) -> List[Any]:
    _, job, _ = yaml.safe_load_all((folder / "job.yaml").read_text())
    assert job["spec"]["completions"] == 2
    (container,) = job["spec"]["template"]["spec"]["containers"]
    command = [*container["command"], *map(expanded, container["args"])]
    return [(command, {"JOB_COMPLETION_INDEX": str(index)}) for index in range(2)]


def volcano(folder: Path) -> List[Any]:
    (task,) = yaml.safe_load((folder / "job.yaml").read_text())["spec"]["tasks"]
    assert task["replicas"] == 2
    (container,) = task["template"]["spec"]["containers"]
    command = [*container["command"], *map(expanded, container["args"])]
    hosts = {"VC_NODE_HOSTS": f"{LOOPBACK},mxtrain-node-1.mxtrain", "VC_NODE_NUM": "2", "VK_TASK_INDEX": "unused"}
    return [(command, {**hosts, "VC_TASK_INDEX": str(index)}) for index in range(2)]


def skypilot(folder: Path) -> List[Any]:
    task = yaml.safe_load((folder / "task.yaml").read_text())
    assert task["num_nodes"] == 2
    # SkyPilot appends a script that waits for the bucket, and ends with the code of `run`.
    command = ["bash", "-c", task["run"] + "\ncode=$?\necho waits for the bucket\nexit $code"]
    hosts = {"SKYPILOT_NODE_IPS": f"{LOOPBACK}\n192.0.2.2", "SKYPILOT_NUM_NODES": "2"}
    return [(command, {**hosts, "SKYPILOT_NODE_RANK": str(index)}) for index in range(2)]


ENGINES: Mapping[str, Callable[[Path], List[Any]]] = {
    "kubernetes": kubernetes,
    "kubeflow": kubeflow,
    "volcano": volcano,
    "skypilot": skypilot,
}


def started(stack: ExitStack, engine: str, tmp_path: Path, *overrides: str) -> Nodes:
    """Starts the two nodes of a run whose run directory is `tmp_path`/mxtrain."""
    given = {**CLUSTER, "storage": "s3://outputs"} if engine == "skypilot" else CLUSTER
    folder = mxtrain.launch(*RUN, *overrides, for_=engine, out=tmp_path / "job", **given).folder
    port = str(free_port(LOOPBACK))
    nodes = []
    for command, variables in ENGINES[engine](folder):
        script = command[-1].replace(":9091", f":{port}")
        for name in ("mxtrain-0.mxtrain", "mxtrain-node-0-0.mxtrain"):  # names that only the cluster knows
            script = script.replace(f"={name}:", f"={LOOPBACK}:")
        script = script.replace("/outputs/", f"{tmp_path}/")
        nodes.append(start(stack, [*command[:-1], script], tmp_path, PWD_OF_TEST=str(tmp_path), **variables))
    return nodes


@pytest.mark.parametrize("engine", ["kubeflow", "volcano", "skypilot"])
def test_two_nodes_train_to_the_same_bits_as_one_machine(
    engine: str, tmp_path: Path, local: Path, stack: ExitStack
) -> None:
    first, second = end(started(stack, engine, tmp_path))
    assert_same(tmp_path / "mxtrain", local)
    assert "2 workers, 1 server on 2 nodes, of which this is number 0; logs: " in first
    assert "2 workers, 1 server on 2 nodes, of which this is number 1\n" in second
    logs = (tmp_path / "mxtrain" / "workers").glob("*.log")
    assert sorted(path.name for path in logs) == ["scheduler.log", "server-0.log"]
    if engine == "skypilot":
        assert first.endswith("waits for the bucket\n")


LONG = ("model.hidden=[512,512]", "trainer.max_epochs=100000", "early_stopping=off")


def test_sigterm_to_one_node_saves_on_all(tmp_path: Path, stack: ExitStack) -> None:
    nodes = started(stack, "kubernetes", tmp_path, *LONG)
    run_dir = tmp_path / "mxtrain"
    wait_until(has_steps(run_dir, 20), TIMEOUT_S)
    nodes[1].send_signal(signal.SIGTERM)
    end(nodes, 143)
    ended = status(run_dir)
    assert ended["state"] == "interrupted" and checkpoints(run_dir)[-1] == f"step-{ended['step']:08d}"


def test_lost_worker_ends_its_node_which_restarts_nothing(tmp_path: Path, stack: ExitStack) -> None:
    nodes = started(stack, "kubernetes", tmp_path, *LONG)
    wait_until(has_steps(tmp_path / "mxtrain", 5), TIMEOUT_S)
    (victim,) = [
        pid
        for pid, _, variables in running_processes()
        if role_of(variables) == "worker1" and variables.get("PWD_OF_TEST") == str(tmp_path)
    ]
    os.kill(victim, signal.SIGKILL)
    (output,) = end(nodes[1:], 1)
    assert f"worker 1 (process {victim}) was ended by SIGKILL" in output and "cluster.restarts=0" in output
    nodes[0].send_signal(signal.SIGTERM)  # as an engine does when a node fails
    time.sleep(0.2)
    nodes[0].send_signal(signal.SIGTERM)
    end(nodes[:1], 143)


def sagemaker_hosts(folder: Path, hosts: List[str], parameters: Dict[str, str]) -> List[Path]:
    """Writes /opt/ml of each host, as SageMaker does."""
    bases = []
    for host in hosts:
        bases.append(folder / host)
        config = bases[-1] / "input" / "config"
        config.mkdir(parents=True)
        (bases[-1] / "model").mkdir()
        (bases[-1] / "checkpoints").mkdir()
        (config / "hyperparameters.json").write_text(json.dumps(parameters))
        resources = {"current_host": host, "hosts": hosts, "network_interface_name": "lo"}
        (config / "resourceconfig.json").write_text(json.dumps(resources))
    return bases


def sagemaker(stack: ExitStack, tmp_path: Path, hosts: List[str], *overrides: str) -> Any:
    """Starts the entry point on each host; returns the processes and their /opt/ml."""
    storage = "s3://bucket/runs"
    folder = mxtrain.launch(
        *overrides, for_="sagemaker", out=tmp_path / "job", **{**CLUSTER, "storage": storage}
    ).folder
    request = json.loads((folder / "training-job.json").read_text())
    assert request["ResourceConfig"]["InstanceCount"] == len(hosts)
    bases = sagemaker_hosts(tmp_path, hosts, request["HyperParameters"])
    entry = folder / "sagemaker_entry.py"
    entry.write_text(entry.read_text().replace("PORT = 9091", f"PORT = {free_port(LOOPBACK)}"))
    command = [sys.executable, str(entry), "train"]
    return [start(stack, command, tmp_path, SAGEMAKER_BASE_DIR=str(base)) for base in bases], bases


def test_sagemaker_trains_to_the_same_bits(tmp_path: Path, local: Path, stack: ExitStack) -> None:
    nodes, (first, second) = sagemaker(stack, tmp_path, ["localhost", LOOPBACK], *RUN)
    (second / "checkpoints" / "run").mkdir()  # a spot instance gets the checkpoints of all hosts
    end(nodes)
    assert_same(first / "checkpoints" / "run", local)
    assert_same(first / "model", local)
    assert not (first / "output").exists() and list((second / "model").iterdir()) == []


def test_sagemaker_stops_a_job(tmp_path: Path, stack: ExitStack) -> None:
    (node,), (base,) = sagemaker(stack, tmp_path, ["algo-1"], *SMALL, *QUIET, *LONG)
    wait_until(has_steps(base / "checkpoints" / "run", 5), TIMEOUT_S)
    node.send_signal(signal.SIGTERM)
    end([node], 143)
    assert status(base / "model")["state"] == "interrupted" and checkpoints(base / "model")
    assert not (base / "output").exists()


def test_end_of_a_budget_is_success_on_sagemaker(tmp_path: Path, stack: ExitStack) -> None:
    (node,), (base,) = sagemaker(stack, tmp_path, ["algo-1"], *SMALL, *QUIET, *LONG, "trainer.max_steps=5")
    end([node])
    assert status(base / "model")["exit_code"] == 75 and not (base / "output").exists()


def test_sagemaker_shows_the_cause_of_a_failure(tmp_path: Path, stack: ExitStack) -> None:
    (node,), (base,) = sagemaker(stack, tmp_path, ["algo-1"], "dataset=image_folder", "dataset.root=/nowhere")
    end([node], 2)
    failure = (base / "output" / "failure").read_text()
    assert failure.startswith("exit code 2: ") and "/nowhere" in failure


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="mpirun is not installed (apt-get install openmpi-bin)")
def test_mpirun_of_kubeflow_starts_each_worker_once(tmp_path: Path) -> None:
    """With Open MPI, and a program in place of mxtrain, whose Horovod would need to be built with MPI."""
    ring = ("kvstore=horovod", "cluster.workers=4")
    folder = mxtrain.launch(*ring, for_="kubeflow", out=tmp_path / "job", nodes=2, **CLUSTER).folder
    job, _ = yaml.safe_load_all((folder / "trainjob.yaml").read_text())
    program = tmp_path / "mxtrain"
    program.write_text('#!/bin/sh\necho "$OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE, $MXTRAIN_ROOT, $*"\n')
    program.chmod(0o755)
    hostfile = tmp_path / "hostfile"
    hostfile.write_text("localhost slots=4\n")
    (script,) = job["spec"]["trainer"]["args"]
    variables = {
        "OMPI_MCA_orte_default_hostfile": str(hostfile),
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
    }
    command = [*job["spec"]["trainer"]["command"], script.replace("/etc/mpi/hostfile", str(hostfile))]
    done = subprocess.run(
        command, env={**os.environ, **variables}, capture_output=True, text=True, check=True, timeout=TIMEOUT_S
    )
    arguments = f"localhost:9091, {' '.join(ring)} hydra.run.dir=/outputs/mxtrain"
    assert sorted(done.stdout.splitlines()) == [f"{rank} of 4, {arguments}" for rank in range(4)]
