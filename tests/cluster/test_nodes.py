"""The variables that make a process the supervisor of one node of several."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, Optional

import pytest

from mxtrain.cluster.hosts import free_port
from mxtrain.cluster.launch.group import is_further_node, supervise
from mxtrain.cluster.launched import ROOT
from mxtrain.cluster.nodes import NODE_RANK, NUM_NODES, NodeLauncher, find_node
from mxtrain.cluster.spec import Cluster
from mxtrain.errors import ConfigError
from mxtrain.runtime.network import LOOPBACK


def launcher(monkeypatch: pytest.MonkeyPatch, workers: int, **variables: Optional[str]) -> NodeLauncher:
    for name in (NODE_RANK, NUM_NODES, ROOT):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))
    return NodeLauncher(Cluster(workers=workers, servers=2, launcher="nodes", start_timeout=0.1), "zmq")


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {NODE_RANK: "0"},
        {NODE_RANK: "-1", NUM_NODES: "2"},
        {NODE_RANK: "2", NUM_NODES: "2"},
        {NODE_RANK: "", NUM_NODES: "2"},
    ],
)
def test_a_node_needs_a_number_below_that_of_all(variables: Dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="cluster.launcher=nodes with MXTRAIN_NODE_RANK="):
        find_node(variables)
    assert find_node({NODE_RANK: "1", NUM_NODES: "2"}) == (1, 2)


@pytest.mark.parametrize(
    "variables, said",
    [
        ({NODE_RANK: "0", NUM_NODES: "4", ROOT: "h:1"}, "MXTRAIN_NUM_NODES=4 and cluster.workers=3: each node needs"),
        ({NODE_RANK: "0", NUM_NODES: "3"}, "MXTRAIN_ROOT=: must be HOST:PORT"),
        ({NODE_RANK: "0", NUM_NODES: "3", ROOT: "192.0.2.1:9091"}, "is no address of this machine"),
    ],
)
def test_impossible_nodes_are_refused(monkeypatch: pytest.MonkeyPatch, variables: Dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        launcher(monkeypatch, 3, **variables)


def test_a_node_waits_for_the_scheduler(monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    from mxtrain.cluster.joining import NotJoined

    root = f"{LOOPBACK}:{free_port(LOOPBACK)}"
    with pytest.raises(NotJoined, match=f"worker 2 waits for the scheduler at {root}: given up"):
        launcher(monkeypatch, 3, **{NODE_RANK: "1", NUM_NODES: "2", ROOT: root})


def test_processes_are_distributed_over_the_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mxtrain.cluster.nodes.find_scheduler", lambda *arguments: None)
    found = []
    for rank in range(2):
        node = launcher(monkeypatch, 3, **{NODE_RANK: str(rank), NUM_NODES: "2", ROOT: f"{LOOPBACK}:9091"})
        assert node.cluster.restarts == 0 and node.writes_logs == (rank == 0)
        found.append(sorted(node.names))
    assert found == [["scheduler", "server 0", "worker 0", "worker 1"], ["server 1", "worker 2"]]


@pytest.mark.parametrize(
    "overrides, said",
    [
        (["kvstore=horovod"], "form no ring"),
        (["kvstore=dist_sync", "cluster.launcher_options=[-x]"], "calls no other program"),
    ],
)
def test_settings_that_nodes_lack_are_refused(describe_run: Any, overrides: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        describe_run("cluster.workers=2", "cluster.launcher=nodes", *overrides)


def test_a_node_without_the_run_directory_starts_no_sweep(
    monkeypatch: pytest.MonkeyPatch, describe_run: Any, tmp_path: Path
) -> None:
    monkeypatch.setattr("mxtrain.cluster.nodes.find_scheduler", lambda *arguments: None)
    launcher(monkeypatch, 2, **{NODE_RANK: "1", NUM_NODES: "2", ROOT: f"{LOOPBACK}:9091"})
    description = describe_run("kvstore=dist_sync", "cluster.workers=2", "cluster.launcher=nodes")
    with pytest.raises(ConfigError, match="cluster.launcher=nodes runs one run"):
        supervise(description, tmp_path / "run", [])
    assert is_further_node(description) and list(tmp_path.iterdir()) == []
    monkeypatch.setenv(NODE_RANK, "0")
    assert not is_further_node(description)
