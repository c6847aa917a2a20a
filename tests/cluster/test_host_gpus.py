"""Workers of one host compute on different GPUs, whoever started them. The number of GPUs is made up."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping

import pytest

import mxtrain
from mxtrain.cluster.launch_spec import launch_specs, local_root
from mxtrain.cluster.launched import has_own_gpus, launched_environment, ranks_here
from mxtrain.cluster.member import LocalRank, find_local_rank
from mxtrain.cluster.remote import Relay
from mxtrain.cluster.spec import Cluster
from mxtrain.engine.backend import mx
from mxtrain.errors import ConfigError
from mxtrain.parallel.spec import Data, Hybrid, Single

Environments = List[Mapping[str, str]]
ROOT = local_root(Path("/nowhere"))


def ompi(size: int, **more: str) -> Environments:
    """Returns Open MPI's environment variables for each of `size` processes on one host."""
    shared = {"OMPI_COMM_WORLD_SIZE": str(size), "OMPI_COMM_WORLD_LOCAL_SIZE": str(size), "PMIX_NAMESPACE": "7", **more}
    return [{**shared, "OMPI_COMM_WORLD_RANK": str(r), "OMPI_COMM_WORLD_LOCAL_RANK": str(r)} for r in range(size)]


def slurm(*nodes: List[int], **more: str) -> Environments:
    """Returns the variables of Slurm 22 for each task; `nodes` holds the number of tasks of each node."""
    size = sum(map(len, nodes))
    shared = {
        "SLURM_STEP_NUM_TASKS": str(size),
        "SLURM_STEP_ID": "0",
        "SLURM_JOB_ID": "5",
        "SLURM_STEP_NODELIST": "127.0.0.1",
        **more,
    }
    told = {
        rank: {
            **shared,
            "SLURM_PROCID": str(rank),
            "SLURM_LOCALID": str(local),
            "SLURM_NODEID": str(node),
            "SLURM_GTIDS": ",".join(map(str, ranks)),
        }
        for node, ranks in enumerate(nodes)
        for local, rank in enumerate(ranks)
    }
    return [told[rank] for rank in range(size)]


def own_launchers(workers: int, *ranks_of_hosts: List[int]) -> Environments:
    """Returns the variables that our launchers, local and over ssh, set for each worker."""
    cluster, found = Cluster(workers=workers, servers=1), {}
    hosts = {f"worker {rank}": number for number, ranks in enumerate(ranks_of_hosts) for rank in ranks}
    for spec in launch_specs(cluster, "zmq", [], Path("logs"), ROOT, hosts):
        if spec.name.startswith("worker"):
            found[spec.number] = spec.environment
    return [found[rank] for rank in range(workers)]


def relayed(told: Environments, workers: int, monkeypatch: pytest.MonkeyPatch) -> Environments:
    """Returns the variables that relays of srun set for workers, which come before servers."""
    cluster, found = Cluster(workers=workers, servers=max(len(told) - workers, 1)), []
    for rank, environ in enumerate(told[:workers]):
        with monkeypatch.context() as patch:
            for name, value in environ.items():
                patch.setenv(name, value)
            relay = Relay.__new__(Relay)  # without its streams and signals
            relay._rank = rank
            specs = launch_specs(cluster, "zmq", [], Path("logs"), ROOT)
            message: Dict[str, Any] = {
                "version": mxtrain.__version__,
                "environment": {"CUDA_VISIBLE_DEVICES": "supervisor's"},
                "interface": None,
            }
            spec = next(spec for spec in specs if spec.name == f"worker {rank}")
            found.append(relay._environment(message, {"environment": spec.environment}))
    return found


def launched(told: Environments, cluster: Cluster) -> Environments:
    """Returns the variables of processes started by the user's own mpirun or srun: scheduler and servers come first."""
    found = [{**environ, **(launched_environment(cluster, "zmq", environ) or {})} for environ in told]
    return [environ for environ in found if environ["DMLC_ROLE"] == "worker"]


@pytest.fixture
def gpus_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., List[str]]:
    """(environment, parallel, number of GPUs) -> the numbers of those that the worker takes."""

    def place(environ: Mapping[str, str], parallel: Any, num_gpus: int) -> str:
        with monkeypatch.context() as patch:
            patch.setattr(mx.context, "num_gpus", lambda: num_gpus)
            for name, value in environ.items():
                patch.setenv(name, value)
            devices = [device for stages in parallel.resolve_devices() for device in stages]
        assert {device.device_type for device in devices} == {"gpu"}
        return " ".join(str(device.device_id) for device in devices)

    return lambda environs, parallel, num_gpus: [place(environ, parallel, num_gpus) for environ in environs]


HOROVODRUN = [
    {"HOROVOD_RANK": str(rank), "HOROVOD_SIZE": "4", "HOROVOD_LOCAL_RANK": str(rank % 2), "HOROVOD_LOCAL_SIZE": "2"}
    for rank in range(4)
]
TRACKER = [
    {"DMLC_ROLE": "worker", "DMLC_NUM_WORKER": "2", "DMLC_TASK_ID": str(rank), "DMLC_JOB_CLUSTER": "local"}
    for rank in range(2)
]
SERVED = Cluster(workers=2, servers=1)
STARTED: Dict[str, Any] = {
    "nobody": (lambda _: [{}], ["0"]),
    "our launcher": (lambda _: own_launchers(3), ["0", "1", "2"]),
    "ours over ssh": (lambda _: own_launchers(3, [0, 1], [2]), ["0", "1", "0"]),
    "ours by srun": (lambda patch: relayed(slurm([0, 2], [1, 3]), 3, patch), ["0", "0", "1"]),
    "mpirun": (lambda _: launched(ompi(4), SERVED), ["0", "1"]),
    "srun": (lambda _: launched(slurm([0, 1, 2, 3]), SERVED), ["0", "1"]),
    "srun in turn": (lambda _: launched(slurm([0, 2], [1, 3]), SERVED), ["0", "0"]),
    "horovodrun": (lambda _: HOROVODRUN, ["0", "1", "0", "1"]),
    "dmlc's tracker": (lambda _: TRACKER, ["0", "1"]),
}
"""Launcher -> (environments of the workers, first GPU of each)."""


@pytest.mark.parametrize("starter", STARTED)
def test_each_worker_of_a_host_takes_the_next_gpu(starter: str, gpus_of: Any, monkeypatch: Any) -> None:
    environs, wanted = STARTED[starter]
    assert gpus_of(environs(monkeypatch), Single(devices="gpu:1"), 4) == wanted
    assert gpus_of(environs(monkeypatch), Single(), 4) == wanted  # auto


def test_devices_match_each_worker(gpus_of: Any) -> None:
    two = own_launchers(2)
    assert gpus_of(two, Data(devices="gpu:2"), 4) == ["0 1", "2 3"]
    assert gpus_of(two, Hybrid(devices="gpu:4", replicas=2, stages=2), 8) == ["0 1 2 3", "4 5 6 7"]
    assert gpus_of(two, Data(), 4) == ["0 1", "2 3"]  # all that there are
    assert gpus_of(two, Data(), 5) == ["0 1", "2 3"]
    assert gpus_of([{}], Data(), 4) == ["0 1 2 3"]


def test_too_few_gpus_are_refused_with_the_assignment(gpus_of: Any) -> None:
    assert gpus_of(own_launchers(2)[:1], Data(devices="gpu:2"), 3) == ["0 1"]
    with pytest.raises(ConfigError) as refused:
        gpus_of(own_launchers(2)[1:], Data(devices="gpu:2"), 3)
    assert all(
        words in str(refused.value)
        for words in (
            "parallel.devices=gpu:2: each worker computes on 2 GPUs of its own",
            "2 workers of this host see 3 GPUs",
            "worker 0 gpu(0) and gpu(1)",
            "for worker 1 gpu(2) is left",
            "Type parallel.devices=gpu:1, or",
        )
    ), refused.value
    with pytest.raises(ConfigError, match=r"see 1 GPU: worker 0 gpu\(0\) .*for worker 2 none is left. Type a smaller"):
        gpus_of(own_launchers(3)[2:], Single(), 1)


def test_gpus_bound_by_srun_belong_to_their_task(gpus_of: Any, monkeypatch: Any) -> None:
    """Slurm 22 told four tasks with --gpus-per-task=1 so, on a node with files in the place of GPUs."""
    cluster = Cluster(workers=4, servers=1)
    bound = slurm([0, 1, 2, 3], SLURM_GPUS_ON_NODE="4")
    told = [{**environ, "CUDA_VISIBLE_DEVICES": str(rank)} for rank, environ in enumerate(bound)]
    assert [launched_environment(cluster, None, environ)["MXTRAIN_HOST_RANK"] for environ in told] == [*"0123"]
    workers = [{**environ, **(launched_environment(cluster, None, environ) or {})} for environ in told]
    assert gpus_of(workers, Single(devices="gpu:1"), 1) == ["0"] * 4
    assert gpus_of(workers, Single(devices="gpu:1"), 4) == [*"0123"]  # --gres=gpu:4: all see all
    # What the supervisor sees does not count.
    assert [each["CUDA_VISIBLE_DEVICES"] for each in relayed(told, 4, monkeypatch)] == [*"0123"]


def test_own_gpus_can_be_declared_by_a_variable(gpus_of: Any) -> None:
    assert (
        gpus_of([{**each, "MXTRAIN_OWN_GPUS": "1"} for each in own_launchers(3)], Single(devices="gpu:1"), 1)
        == ["0"] * 3
    )
    assert not has_own_gpus(1, {"SLURM_GPUS_ON_NODE": "4"})  # of a shell that srun did not start as one of several


def test_a_wrong_number_is_refused() -> None:
    worker = {"DMLC_ROLE": "worker", "DMLC_NUM_WORKER": "2", "DMLC_WORKER_ID": "1"}
    assert find_local_rank(worker) == LocalRank(0, 1)  # perhaps alone on its host: nobody says
    assert find_local_rank({**worker, "DMLC_ROLE": "server"}) == LocalRank(0, 1)
    with pytest.raises(ConfigError, match="MXTRAIN_HOST_RANK=first: must be a whole number"):
        find_local_rank({**worker, "MXTRAIN_HOST_RANK": "first"})


def test_hosts_are_read_from_the_variables_of_launchers() -> None:
    (last,) = slurm([0, 1, 2])[2:]
    assert ranks_here(last) == [0, 1, 2] == ranks_here(ompi(3)[2]) and ranks_here({}) == []
    on_the_second_of_two = {**ompi(2)[1], "OMPI_COMM_WORLD_RANK": "3"}
    assert ranks_here(on_the_second_of_two) == [2, 3]
