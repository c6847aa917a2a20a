"""Host files, who runs where, messages between hosts, and what mpirun and srun say: without any process."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Dict, List

import pytest

from mxtrain.cluster import launch_spec, launched
from mxtrain.cluster.frames import LONGEST, decode, decode_piece, encode, pieces
from mxtrain.cluster.hosts import Host, interface_address, read_hosts, spread
from mxtrain.cluster.launched import find_root, first_node, launched_environment, ranks_here
from mxtrain.cluster.spec import Cluster
from mxtrain.cluster.ssh import SSHLauncher
from mxtrain.errors import ConfigError


def test_a_host_file_begins_with_this_machine(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("# a comment\nme@192.0.2.7 slots=2   # another\n\nlocalhost\n")
    assert [(host.name, host.slots, host.is_here) for host in read_hosts(str(file))] == [
        ("localhost", None, True),
        ("me@192.0.2.7", 2, False),
    ]


@pytest.mark.parametrize(
    "text, words",
    [
        (None, ["cannot be read", "No such file"]),
        ("# nothing\n", ["holds no host"]),
        ("localhost\n192.0.2.7 slots=x\n", ["line 2", "'slots=x'", "slots=2"]),
        ("localhost\n192.0.2.7 solts=2\n", ["line 2", "'solts=2'"]),
        ("localhost slots=0\n", ["line 1", "'slots=0'"]),
        ("localhost:2\n", ["line 1: 'localhost:2' is no host. Write 'localhost slots=2'."]),
        ("me@192.0.2.7:10\n", ["line 1", "Write 'me@192.0.2.7 slots=10'."]),
        ("localhost\n2001:db8::2:7:7\n2001:db8::2:7:7\n", ["line 3: '2001:db8::2:7:7' is already listed"]),
        ("localhost\n-oProxyCommand=evil\n", ["line 2", "is no host"]),
        ("localhost\n192.0.2.7\n192.0.2.7\n", ["line 3", "line 2"]),
        ("192.0.2.7\n192.0.2.8\n", ["none of 192.0.2.7, 192.0.2.8 is this machine", socket.gethostname()]),
        ("localhost\n127.0.0.1\n", ["line 2", "is this machine", "line 1"]),
    ],
)
def test_a_wrong_host_file_is_refused_by_line(tmp_path: Path, text: str, words: List[str]) -> None:
    file = tmp_path / "hosts"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError) as refused:
        read_hosts(str(file))
    assert all(word in str(refused.value) for word in [str(file), *words]), refused.value


def test_host_file_without_end_is_rejected(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, kind in ((str(tmp_path / "pipe"), "a named pipe"), ("/dev/zero", "a device")):
        with pytest.raises(ConfigError, match=f"it is {kind}, and only regular files are read"):
            read_hosts(path)


def test_workers_are_spread_in_turn_and_ranks_follow_each_other_on_a_host() -> None:
    a, b, c = Host("a", line="hosts, line 1"), Host("b", slots=1), Host("c")
    found = spread(5, 2, [a, b, c])
    assert [found[f"worker {rank}"].name for rank in range(5)] == ["a", "a", "b", "c", "c"]
    assert [found[f"server {number}"].name for number in range(2)] == ["a", "b"]
    with pytest.raises(ConfigError, match="cluster.workers=3: the hosts have 2 slots"):
        spread(3, 1, [Host("a", 1, "hosts, line 1"), b])


def test_interface_without_address_lists_interfaces() -> None:
    assert interface_address("lo") == "127.0.0.1"
    with pytest.raises(ConfigError, match=r"cluster.interface=eth99.*It has:.*\blo\b"):
        interface_address("eth99")


def test_damaged_message_is_ignored() -> None:
    line = encode({"of": 3, "output": next(pieces(bytes(range(256)) * 4))})
    assert len(line) <= LONGEST
    message = decode(b"srun: a word before " + line)
    assert message is not None and decode_piece(message["output"]) == (bytes(range(256)) * 4)[:600]
    assert decode(line.replace(b'"of":3', b'"of":4')) is None
    assert decode(line[:-9] + line[:40]) is None
    assert decode(b"@mxtrain \n") is None


OMPI = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "4", "PMIX_NAMESPACE": "77"}
SLURM = {
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_ID": "0",
    "SLURM_JOB_ID": "5",
    "SLURM_GTIDS": "2,3",
    "SLURM_STEP_NODELIST": "192.0.2.7,n2",
    "SLURM_NODEID": "1",
}


def test_only_socket_files_of_a_run_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_spec, "SOCKETS", tmp_path)
    root = launch_spec.local_root("zmq")
    assert root.port != launch_spec.local_root("zmq").port and root.is_local
    with socket.socket(socket.AF_UNIX) as own, socket.socket(socket.AF_UNIX) as other:
        own.bind(str(tmp_path / str(root.port)))
        other.bind(str(tmp_path / str(root.port + 3)))
        (tmp_path / str(root.port + 2)).touch()
        root.remove_sockets(3)
    assert sorted(int(path.name) - root.port for path in tmp_path.iterdir()) == [2, 3]


def test_ranks_are_scheduler_servers_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(workers=2, servers=1)
    told = [launched_environment(cluster, "zmq", {**OMPI, "OMPI_COMM_WORLD_RANK": str(rank)}) for rank in range(4)]
    assert [each and each["DMLC_ROLE"] for each in told] == ["scheduler", "server", "worker", "worker"]
    assert [each and each.get("MXTRAIN_WORKER") for each in told] == [None, None, "0", "1"]
    assert len({each["DMLC_PS_ROOT_PORT"] for each in told if each}) == 1
    assert len({each["PORT"] for each in told if each}) == 4 and told[0] and told[0]["DMLC_LOCAL"] == "1"
    without_servers = launched_environment(Cluster(workers=4), None, {**OMPI, "OMPI_COMM_WORLD_RANK": "0"})
    assert without_servers and without_servers["DMLC_ROLE"] == "worker"
    assert launched_environment(cluster, "zmq", {}) is None
    monkeypatch.setattr(launch_spec, "SOCKETS", Path("/nowhere"))
    with pytest.raises(ConfigError, match="^/nowhere cannot be written, .* kvstore=horovod"):
        launched_environment(cluster, "zmq", {**OMPI, "OMPI_COMM_WORLD_RANK": "0"})
    with pytest.raises(ConfigError, match="mpirun started 4 processes, but .* needs 5.*Type mpirun -n 5"):
        launched_environment(Cluster(workers=3), "zmq", {**OMPI, "OMPI_COMM_WORLD_RANK": "0"})


@pytest.mark.parametrize(
    "environ, said",
    [
        ({**OMPI, "OMPI_COMM_WORLD_RANK": "x"}, "OMPI_COMM_WORLD_RANK=x .*env -u OMPI_COMM_WORLD_RANK"),
        ({**OMPI, "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "two"}, "OMPI_COMM_WORLD_SIZE=two "),
        ({**OMPI, "OMPI_COMM_WORLD_RANK": "4"}, "OMPI_COMM_WORLD_RANK=4 .*mpirun started 4 processes"),
        ({**OMPI, "OMPI_COMM_WORLD_RANK": "-1"}, "OMPI_COMM_WORLD_RANK=-1 "),
        ({**OMPI, "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "all"}, "OMPI_COMM_WORLD_LOCAL_SIZE=all "),
        ({**SLURM, "SLURM_PROCID": "x"}, "SLURM_PROCID=x .*env -u SLURM_PROCID"),
        ({**SLURM, "SLURM_PROCID": "1", "SLURM_GTIDS": "0,b"}, "SLURM_GTIDS=b "),
        ({**OMPI, "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "9"}, "its leftover variable: env -u OMPI"),
    ],
)
def test_variables_left_over_from_a_launcher_are_named(environ: Dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        launched_environment(Cluster(workers=2, servers=1), "zmq", environ)


def test_a_batch_script_is_no_task_of_srun() -> None:
    script = {**SLURM, "SLURM_PROCID": "0", "SLURM_STEP_ID": str(0xFFFFFFFB)}
    assert launched_environment(Cluster(workers=2), "zmq", script) is None
    assert ranks_here(SLURM) == [2, 3]


@pytest.mark.parametrize(
    "environ, expected",
    [
        ({**SLURM}, "192.0.2.7"),
        ({**SLURM, "MXTRAIN_ROOT": "192.0.2.9:1234"}, "192.0.2.9"),
        ({**OMPI}, "mpirun -x MXTRAIN_ROOT=HOST:PORT"),
        ({**OMPI, "MXTRAIN_ROOT": "here"}, "must be HOST:PORT"),
    ],
)
def test_scheduler_address_on_several_hosts(environ: Dict[str, str], expected: str) -> None:
    if expected[0].isdigit():
        root = find_root(environ, "zmq", False, "srun")
        assert root.address == expected and not root.is_local and (root.port == 1234 or 20000 <= root.port < 30000)
        return
    with pytest.raises(ConfigError, match=expected):
        find_root(environ, "zmq", False, "mpirun")


@pytest.mark.parametrize(
    "nodes, first", [("n1", "n1"), ("n[03-05,9],m1", "n03"), ("a,b", "a"), ("r1n[7]-ib,x", "r1n7-ib")]
)
def test_the_first_node_of_a_list(nodes: str, first: str) -> None:
    assert first_node(nodes) == first


@pytest.mark.parametrize(
    "given, words",
    [
        ({"launcher": "ssh"}, "cluster.hostfile=FILE"),
        ({"launcher": "slurm", "hostfile": "hosts"}, "cluster.hostfile=hosts with cluster.launcher=slurm"),
        ({"hostfile": "hosts"}, "cluster.launcher=local"),
        ({"interface": "eth0"}, "cluster.interface=eth0 with cluster.launcher=local"),
    ],
)
def test_settings_of_another_launcher_are_refused(given: Dict[str, str], words: str) -> None:
    assert words in Cluster(**given).unsupported_reason()
    assert Cluster(launcher="ssh", hostfile="hosts", interface="eth0").unsupported_reason() == ""


def test_scheduler_listens_at_the_announced_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launched, "is_own_address", lambda address: address == "192.0.2.9")
    monkeypatch.setattr(launched, "own_address", lambda interface, root: "198.51.100.1")
    several = {"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "MXTRAIN_ROOT": "192.0.2.9:1234"}
    cluster = Cluster(workers=2)
    told = [launched_environment(cluster, "zmq", {**several, "OMPI_COMM_WORLD_RANK": rank}) for rank in ("0", "1")]
    assert told[0]["DMLC_NODE_HOST"] == told[0]["DMLC_PS_ROOT_URI"] == told[1]["DMLC_PS_ROOT_URI"] == "192.0.2.9"
    assert told[1]["DMLC_NODE_HOST"] == "198.51.100.1"


def test_missing_ssh_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hosts").write_text("localhost\n192.0.2.7\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="ssh is not on PATH"):
        SSHLauncher(Cluster(workers=2, launcher="ssh", hostfile=str(tmp_path / "hosts")), "zmq")
