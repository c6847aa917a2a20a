"""cluster.launcher=ray: options and environment without Ray, and runs on a Ray cluster of three raylets on this
machine."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict, Iterator, List, Optional

import pytest
import test_standby
import test_workers
from raylets import Raylets
from running import SMALL, Process, assert_same, checkpoints, has_steps, role_of, running_processes, status
from waiting import wait_until

from mxtrain.cluster import ray_launcher
from mxtrain.cluster.frames import decode, encode, split
from mxtrain.cluster.ray_driver import RayDriver, RayTask, _answers, _connection_problem, find_cluster, without_ray
from mxtrain.cluster.ray_launcher import RayLauncher, RayOptions, read_options
from mxtrain.cluster.spec import Cluster
from mxtrain.errors import ConfigError
from mxtrain.kvstore.spec import has_horovod

HAS_RAY = importlib.util.find_spec("ray") is not None
needs_ray = pytest.mark.skipif(not HAS_RAY, reason="ray is not installed: pip install 'mxtrain[ray]'")


# Options.


def test_options_are_read_and_the_last_one_counts() -> None:
    assert read_options([]) == RayOptions()
    found = read_options(["gpus=2", "address=10.0.0.1:6379", "cpus=4", "strategy=PACK", "wait=0", "gpus=0.5"])
    assert found == RayOptions("10.0.0.1:6379", 4.0, 0.5, 1.0, "pack", 0.0)
    assert found.worker_resources == {"CPU": 4.0, "GPU": 0.5} and RayOptions().worker_resources == {"CPU": 1.0}


@pytest.mark.parametrize(
    "word, words",
    [
        ("adress=auto", ["'adress=auto' is no option", "Did you mean 'address'?", "server_cpus"]),
        ("address", ["'address' is no option", "NAME=VALUE"]),
        ("address=somewhere", ["address=somewhere", "auto, local or HOST:PORT"]),
        ("address=ray://head:10001", ["ray://head:10001", "start the command on a node"]),
        ("cpus=0", ["cpus=0", "a number from 0.01 on"]),
        ("cpus=1.5", ["cpus=1.5", "above 1 a whole one"]),
        ("cpus=nan", ["cpus=nan"]),
        ("gpus=-1", ["gpus=-1", "a number from 0 on"]),
        ("wait=long", ["wait=long", "a number from 0 on"]),
        ("strategy=spred", ["strategy=spred", "strict_pack", "Did you mean 'spread'?"]),
    ],
)
def test_wrong_option_is_refused(word: str, words: List[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        RayLauncher(Cluster(workers=2, launcher="ray", launcher_options=[word]), "zmq")
    assert all(one in str(caught.value) for one in words), caught.value


def test_missing_ray_is_reported_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_launcher.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"cluster.launcher=ray needs the package ray .*pip install 'ray>=2.51,<3'"):
        RayLauncher(Cluster(workers=2, launcher="ray"), None)


def test_address_of_a_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    assert find_cluster("local") == find_cluster("auto") == find_cluster("") == (None, "")
    file = tmp_path / "ray" / "ray_current_cluster"
    file.parent.mkdir()
    file.write_text("10.0.0.1:6379\n")
    assert find_cluster("auto") == find_cluster("") == ("10.0.0.1:6379", f", which {file} names")
    assert find_cluster("10.0.0.2:1") == ("10.0.0.2:1", "") and find_cluster("local")[0] is None
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.3:6379")
    assert find_cluster("auto") == ("10.0.0.3:6379", " (RAY_ADDRESS)")
    assert find_cluster("10.0.0.2:1") == ("10.0.0.2:1", "")
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    assert find_cluster("") == ("10.0.0.1:6379", f", which {file} names")
    monkeypatch.setenv("RAY_ADDRESS", "local")
    assert find_cluster("") == (None, "")


# The driver, without Ray.


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen]:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")  # where nothing listens
    command = [sys.executable, "-m", "mxtrain.cluster.ray_driver"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_driver_without_a_supervisor_ends(driver: subprocess.Popen) -> None:
    assert driver.communicate(timeout=20) == (b"", b"") and driver.returncode == 0


def test_address_in_the_environment_is_not_replaced_by_a_new_cluster(driver: subprocess.Popen) -> None:
    assert driver.stdin is not None and driver.stdout is not None
    driver.stdin.write(encode({"address": "", "bundles": [], "folder": ""}))
    driver.stdin.flush()
    assert decode(driver.stdout.readline()) == {"failed": "no Ray cluster answers at 127.0.0.1:9 (RAY_ADDRESS)"}
    assert driver.wait(20) == 2


def test_other_versions_of_the_cluster_are_named() -> None:
    # Text of Ray 2.60.
    there, here = "    Ray: 2.51.2\n    Python: 3.9.18\n", "    Ray: 2.60.0\n    Python: 3.11.7\n"
    text = f"Version mismatch: The cluster was started with:\n{there}This process on node a was started with:\n{here}"
    assert _connection_problem("10.0.0.1:6379", RuntimeError(text)) == (
        "Ray at 10.0.0.1:6379 has Ray 2.51.2 and Python 3.9.18, and this command runs with Ray 2.60.0 and Python "
        "3.11.7. All nodes need the same versions"
    )


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_a_cluster_answers_at_addresses_of_both_versions(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        opened = socket.create_server((host.strip("[]"), 0), family=family)
    except OSError:
        pytest.skip("this machine has no IPv6")
    with opened:
        address = f"{host}:{opened.getsockname()[1]}"
        assert _answers(address)
    assert not _answers(address)


def test_signal_reaches_a_process_that_has_not_started() -> None:
    sent: List[bytes] = []
    actor = SimpleNamespace(exchange=SimpleNamespace(remote=sent.append))
    driver, task = RayDriver(), RayTask(actor, None, {}, 1)
    driver._tasks[0] = task
    driver._handle({"of": 0, "signal": int(signal.SIGTERM)})
    driver._take_answer(0, task, (b"", "", ""))
    lines, _ = split(sent[0])
    assert [decode(line) for line in lines] == [{"of": 0, "signal": 15}]


def test_cluster_that_is_lost_while_resources_are_awaited(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    def wait(timeout_s: float) -> bool:
        raise Exception("Placement group does not exist.\nMore about it")  # as Ray 2.60 does

    module = SimpleNamespace(placement_group=lambda bundles, strategy: SimpleNamespace(wait=wait))
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "ray.util", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "ray.util.placement_group", module)
    monkeypatch.setattr(RayDriver, "_connect", lambda self: None)
    driver = RayDriver()
    driver._handle({"address": "", "bundles": [{"CPU": 1.0}], "strategy": "SPREAD"})
    driver._address = "10.0.0.1:6379"
    driver._ray = SimpleNamespace(util=SimpleNamespace(get_node_ip_address=lambda: "10.0.0.2"), nodes=list)
    assert driver.run() == 2
    reason = "the connection to the Ray cluster at 10.0.0.1:6379 was lost: Placement group does not exist."
    assert decode(capfdbinary.readouterr().out.strip()) == {"failed": reason}


# Processes, without Ray.


class FakeChannel:
    """The connection to a driver that has placed everything, and starts nothing."""

    placed: Dict[str, Any] = {}
    name = "Ray"
    started_here: List[str] = []
    shutdown_timeout_s = 0.0

    def __init__(self, settings: Dict[str, Any], may_start: bool):
        self.settings, self.may_start = settings, may_start
        self.is_placed, self.last_placed, self.problem, self.progress, self.end = True, self.placed, "", "", "over"
        self.sent: List[Dict[str, Any]] = []
        self.processes: Dict[int, Any] = {}
        self.heartbeat_at: Dict[int, float] = {}
        self.hosts: Dict[int, str] = {}

    def exchange_messages(self) -> None:
        """Receives nothing."""

    def missing(self) -> None:
        """Nothing counts as lost."""

    def send(self, message: Dict[str, Any]) -> None:
        self.sent.append(message)

    def close(self) -> None:
        """Closes nothing."""


def started_by(
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    nodes: List[str],
    addresses: List[str],
    *options: str,
    van: Optional[str] = "zmq",
) -> FakeChannel:
    """Starts three workers and two servers on a placement; returns the connection with the messages."""
    placed = {"address": "127.0.0.1", "cluster": "127.0.0.1:1", "nodes": nodes, "addresses": addresses}
    monkeypatch.setattr(FakeChannel, "placed", placed)
    monkeypatch.setattr(ray_launcher, "RayChannel", FakeChannel)
    monkeypatch.setattr(ray_launcher, "_require_ray", lambda: None)
    monkeypatch.setattr(
        RayLauncher, "_start_here", lambda self, spec, stack: FakeChannel.started_here.append(spec.name)
    )
    monkeypatch.setattr(FakeChannel, "started_here", [])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    cluster = Cluster(workers=3, servers=2, launcher="ray", launcher_options=list(options))
    launcher = RayLauncher(cluster, van)
    with ExitStack() as stack:
        launcher.start(["train"], folder, 0, stack)
        channel = launcher._channel
        assert isinstance(channel, FakeChannel)
    return channel


def environments(channel: FakeChannel) -> Dict[int, Dict[str, str]]:
    """Returns bundle -> environment of its process, as its relay sets it."""
    found = {}
    for message in channel.sent:
        if "start" in message:
            launch = message["launch"]
            (spec,) = (spec for spec in launch["launch_specs"] if spec)
            assert launch["launch_specs"].index(spec) == message["start"]
            found[message["bundle"]] = {**launch["environment"], **spec["environment"]}
    return found


def test_ranks_on_a_node_follow_each_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nodes = ["a", "b", "a", "b", "a"]
    channel = started_by(monkeypatch, tmp_path, nodes, ["127.0.0.1", "192.0.2.7"])
    found = environments(channel)
    assert [found[bundle]["MXTRAIN_WORKER"] for bundle in range(3)] == ["0", "2", "1"]
    assert [found[bundle]["MXTRAIN_HOST_RANK"] for bundle in range(3)] == ["0", "0", "1"]
    assert [found[bundle]["MXTRAIN_HOST_WORKERS"] for bundle in range(3)] == ["2", "1", "2"]
    assert [found[bundle]["DMLC_ROLE"] for bundle in (3, 4)] == ["server", "server"]
    assert all(one["DMLC_PS_ROOT_URI"] == "127.0.0.1" and "DMLC_LOCAL" not in one for one in found.values())
    assert channel.settings["bundles"] == 5 * [{"CPU": 1.0}] and channel.settings["strategy"] == "SPREAD"
    # The supervisor's GPUs and threads mean nothing on other nodes.
    assert not any("CUDA_VISIBLE_DEVICES" in one or "OMP_NUM_THREADS" in one for one in found.values())


@pytest.mark.parametrize(
    "nodes, van, here",
    [("ababa", "zmq", ["scheduler"]), ("aaaaa", "zmq", ["scheduler"]), ("aba", None, [])],
    ids=["two_nodes", "one_node", "ring"],
)
def test_only_a_scheduler_starts_here_and_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, nodes: str, van: Optional[str], here: List[str]
) -> None:
    channel = started_by(monkeypatch, tmp_path, list(nodes), ["127.0.0.1", "192.0.2.7"], van=van)
    assert channel.started_here == here
    assert sorted(environments(channel)) == list(range(len(nodes)))


def test_reserved_cpus_and_gpus_are_those_that_a_worker_uses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    options = ("cpus=4", "gpus=2", "server_cpus=0.5", "address=local")
    channel = started_by(monkeypatch, tmp_path, list("aaaaa"), ["127.0.0.1"], *options)
    found = environments(channel)
    assert channel.settings["bundles"] == 3 * [{"CPU": 4.0, "GPU": 2.0}] + 2 * [{"CPU": 0.5}]
    assert channel.may_start and "and gpus=2, 2 servers with server_cpus=0.5 need 13 CPUs and 6 GPUs" in str(
        channel.settings["asked"]
    )
    for bundle, one in found.items():
        is_worker = bundle < 3
        assert one.get("OMP_NUM_THREADS") == ("4" if is_worker else None)
        assert one.get("MXTRAIN_OWN_GPUS") == ("1" if is_worker else None)
        assert one["DMLC_LOCAL"] == "1"  # one machine: sockets in its file system


def test_standbys_start_in_the_bundles_of_their_processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    placed = {"address": "127.0.0.1", "cluster": "", "nodes": ["a", "b", "c"], "addresses": ["127.0.0.1"]}
    monkeypatch.setattr(FakeChannel, "placed", placed)
    monkeypatch.setattr(ray_launcher, "RayChannel", FakeChannel)
    monkeypatch.setattr(ray_launcher, "_require_ray", lambda: None)
    launcher = RayLauncher(Cluster(workers=3, launcher="ray", standby=True), None)
    channel: Any = launcher._channel
    channel.end = None
    with closing(launcher), ExitStack() as stack:
        processes = launcher.start(["train"], tmp_path, 0, stack)
        launcher.prepare(processes)
        launcher.prepare(processes)
        assert [(sent["bundle"], sent["is_standby"]) for sent in channel.sent] == [
            *[(bundle, False) for bundle in range(3)],
            *[(bundle, True) for bundle in range(3)],
        ]
        begun, moved, unstarted = launcher._standbys.values()
        begun.take({"pid": 7})
        moved.take({"pid": 8})
        moved.bundle = 2  # Ray has placed the bundles anew
        channel.sent.clear()
        new = [process.start_replacement(process.spec) for process in processes]
        for process in new:
            stack.callback(process.close)
        assert new[0] is begun and new[1] is not moved and new[2] is not unstarted and not launcher._standbys
        assert [(sent["of"], sent["begin"]["arguments"]) for sent in channel.sent if "begin" in sent] == [
            (3, ["train"])
        ]
        assert [sent["bundle"] for sent in channel.sent if "start" in sent] == [1, 2]
        assert [sent["kill"] for sent in channel.sent if "kill" in sent] == [4, 5]


def test_variables_of_rays_workers_do_not_reach_processes() -> None:
    environ = {"RAY_JOB_ID": "1", "OMP_NUM_THREADS": "1", "PYTHONBREAKPOINT": "ray", "PATH": "/bin", "CUDA_X": "1"}
    assert without_ray(environ) == {"PATH": "/bin", "CUDA_X": "1"}


# Runs.

DIST = ("kvstore=dist_sync", "cluster.workers=2", "cluster.backoff=0.1")
LONG = (
    *SMALL,
    "model.hidden=[512,512]",
    "trainer.max_epochs=30",
    "checkpoint.every_steps=50",
    "early_stopping=off",
)
ENDED_S = 15.0


@pytest.fixture(scope="module")
def raylets() -> Iterator[Raylets]:
    with ExitStack() as stack:
        yield Raylets(stack, 1, 1, 2)


def started(run_dir: Path, address: str, *overrides: str) -> Process:
    return Process(
        run_dir,
        *DIST,
        *LONG,
        "cluster.launcher=ray",
        f"cluster.launcher_options=[address={address}]",
        *overrides,
        env={"MXTRAIN_TEST": str(run_dir)},
    )


def pids(run_dir: Path, role: str = "") -> List[int]:
    """The processes of a run, Ray's own of a new cluster included, or only those of a role."""
    return [
        pid
        for pid, _, environment in running_processes()
        if environment.get("MXTRAIN_TEST") == str(run_dir) and (not role or role_of(environment) == role)
    ]


def raylet_of(pid: int, raylets: Raylets) -> int:
    """Returns the number of the node that a process runs on."""
    while pid not in raylets.raylets:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return raylets.raylets.index(pid)


def nobody_is_left(run_dir: Path) -> None:
    wait_until(lambda: not pids(run_dir), ENDED_S)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run by the launcher of one machine."""
    run_dir = tmp_path_factory.mktemp("undisturbed") / "run"
    Process(run_dir, *DIST, *LONG).end()
    return run_dir


@needs_ray
@pytest.mark.slow
def test_exit_code_of_a_worker_ends_all(raylets: Raylets, tmp_path: Path) -> None:
    run = started(tmp_path / "run", raylets.address, "cluster.servers=1", "optimizer.lr=1e30").end(3)
    assert re.search(r"worker \d \(process \d+ on \S+\) ended with exit code 3", run.output), run.output
    assert status(tmp_path / "run")["exit_code"] == 3
    nobody_is_left(tmp_path / "run")


@needs_ray
@pytest.mark.slow
def test_interrupted_run_saves_and_leaves_nothing_of_its_own_cluster(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    folders = set(Path("/tmp").glob("mxtrain-ray-*"))
    run = started(run_dir, "local", "checkpoint.every_steps=1000").wait_until(has_steps(run_dir, 30))
    (own,) = set(Path("/tmp").glob("mxtrain-ray-*")) - folders
    assert len(pids(run_dir)) > 10
    assert {os.getpriority(os.PRIO_PROCESS, pid) for pid in pids(run_dir)} == {os.getpriority(os.PRIO_PROCESS, 0)}
    run.kill(signal.SIGINT).end(130)
    assert "in a local Ray cluster" in run.output
    assert checkpoints(run_dir)[-1] == f"step-{status(run_dir)['step']:08d}"
    nobody_is_left(run_dir)
    assert not own.exists()


@needs_ray
@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides, words",
    [
        (["cluster.workers=9"], ["has 4 CPUs", "are too few: 9 workers with cpus=1, 1 server", "need 10 CPUs"]),
        (["cluster.launcher_options=[address=127.0.0.1:9]"], ["no Ray cluster answers at 127.0.0.1:9"]),
    ],
)
def test_cluster_that_cannot_be_used_is_refused(
    raylets: Raylets, tmp_path: Path, overrides: List[str], words: List[str]
) -> None:
    run = started(tmp_path / "new" / "run", raylets.address, *overrides).end(2)
    assert all(word in run.output for word in words), run.output
    assert not (tmp_path / "new").exists()
    nobody_is_left(tmp_path / "new" / "run")


@needs_ray
@pytest.mark.zoo
@pytest.mark.skipif(not has_horovod(), reason="Horovod is not built here: scripts/horovod")
def test_ring_goes_on_without_a_lost_worker_and_takes_another(raylets: Raylets, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run = started(run_dir, raylets.address, "kvstore=horovod", "trainer.max_epochs=3000").wait_until(
        has_steps(run_dir, 60)
    )
    os.kill(pids(run_dir, "worker1")[-1], signal.SIGKILL)
    said = run_dir / "workers" / "supervisor.log"
    run.wait_until(lambda: said.exists() and "1 of 2 workers go on without it" in said.read_text())
    assert run.popen.stdout is not None
    for line in run.popen.stdout:
        run.output += line
        if "2 workers (before: 1) go on" in line:
            break
    run.kill(signal.SIGTERM).end(143)
    nobody_is_left(run_dir)


@needs_ray
@pytest.mark.zoo
def test_loss_of_the_head_ends_the_run_with_the_cause(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with ExitStack() as stack:
        own = Raylets(stack, 2, 2)
        run = started(run_dir, own.address, "cluster.start_timeout=30").wait_until(has_steps(run_dir, 30))
        os.kill(own.head, signal.SIGKILL)
        lost_at = time.monotonic()
        said = run_dir / "workers" / "supervisor.log"
        run.wait_until(lambda: said.exists() and "restart 1 of 3" in said.read_text())
        assert time.monotonic() - lost_at < 30  # Ray itself waits a minute
        run.end(1)
        assert f"was lost: the head of the Ray cluster at {own.address} was lost" in said.read_text(), said.read_text()
        assert f"no Ray cluster answers at {own.address}: given up after cluster.start_timeout=30 s" in run.output
        assert status(run_dir)["exit_code"] == 1 and checkpoints(run_dir)
        nobody_is_left(run_dir)


@needs_ray
@pytest.mark.slow
def test_after_the_loss_of_a_node_the_run_ends_with_the_same_weights(
    raylets: Raylets, tmp_path: Path, undisturbed: Path
) -> None:
    run_dir = tmp_path / "run"
    run = started(run_dir, raylets.address, "cluster.interface=lo").wait_until(has_steps(run_dir, 60))
    nodes = {role: raylet_of(pids(run_dir, role)[-1], raylets) for role in ("worker0", "worker1", "server")}
    assert len(set(nodes.values())) == 3, nodes
    victim = next(number for number in nodes.values() if number == 1)
    lost_at = time.monotonic()
    raylets.kill(victim)
    said = run_dir / "workers" / "supervisor.log"
    run.wait_until(lambda: said.exists() and "restart 1 of 3" in said.read_text())
    assert time.monotonic() - lost_at < 5
    run.end()
    assert f"2 workers, 1 server on 3 nodes of the Ray cluster at {raylets.address}" in run.output
    assert re.search(r"was lost: the raylet on \S+ has died.*restart 1 of 3", said.read_text()), said.read_text()
    assert "restart 2 of 3" not in said.read_text(), said.read_text()
    assert_same(run_dir, undisturbed)
    nobody_is_left(run_dir)


@needs_ray
@pytest.mark.zoo
@pytest.mark.parametrize("store", ["dist_sync", "horovod"])
def test_standbys_on_ray_take_the_place_of_lost_processes(raylets: Raylets, tmp_path: Path, store: str) -> None:
    if store == "horovod" and not has_horovod():
        pytest.skip("Horovod is not built here: scripts/horovod")
    workers = 2 if store == "dist_sync" else 3
    same = (f"kvstore={store}", f"cluster.workers={workers}", "cluster.backoff=0.1")
    unbroken = test_standby.trained(tmp_path / "unbroken", *same, *test_workers.SLOW, "trainer.log_interval=1")
    ray = ("cluster.launcher=ray", f"cluster.launcher_options=[address={raylets.address}]", "cluster.memory_steps=null")
    run = test_standby.start_slowly(tmp_path / "run", *same, *ray)
    if store == "dist_sync":
        test_standby.restart_by_standbys(run, ["worker1"], unbroken, has_memory=False)
    else:
        test_standby.replace_in_ring(run, "worker1", unbroken, has_memory=False)
