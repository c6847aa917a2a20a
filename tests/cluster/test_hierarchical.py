"""Hierarchical all-reduce: processes that name two hosts, on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any, List, Sequence

import numpy as np
import pytest

from mxtrain.cluster.ring import KeyValueServer
from mxtrain.kvstore.spec import has_horovod

pytestmark = pytest.mark.skipif(not has_horovod(), reason="Horovod is not built here: scripts/horovod")
WORKER = Path(__file__).parents[1] / "support" / "summing_worker.py"
ROOT = Path(__file__).parents[2]


def run_workers(hosts: Sequence[str], hierarchical: bool) -> List[Any]:
    """Returns what each worker printed; `hosts` are the names of their hosts."""
    names = list(dict.fromkeys(hosts))
    with closing(KeyValueServer("127.0.0.1")) as server:
        processes = []
        for rank, host in enumerate(hosts):
            local_rank = hosts[:rank].count(host)
            across = [name for name in names if hosts.count(name) > local_rank]
            environment = {
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "HOROVOD_RANK": str(rank),
                "HOROVOD_SIZE": str(len(hosts)),
                "HOROVOD_HOSTNAME": host,
                "HOROVOD_LOCAL_RANK": str(local_rank),
                "HOROVOD_LOCAL_SIZE": str(hosts.count(host)),
                "HOROVOD_CROSS_RANK": str(across.index(host)),
                "HOROVOD_CROSS_SIZE": str(len(across)),
                "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
                "HOROVOD_GLOO_RENDEZVOUS_PORT": str(server.port),
                "HOROVOD_GLOO_IFACE": "lo",
                "HOROVOD_CONTROLLER": "gloo",
                "HOROVOD_CPU_OPERATIONS": "gloo",
                "HOROVOD_FUSION_THRESHOLD": "0",
            }
            environment.pop("MXTRAIN_RING", None)
            command = [sys.executable, str(WORKER), str(hierarchical)]
            processes.append(
                subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            )
        outputs = []
        try:
            outputs = [process.communicate(timeout=100)[0] for process in processes]
        finally:
            for process in processes:
                process.kill()
    lines = [[line for line in output.splitlines() if line.startswith("RESULT ")] for output in outputs]
    assert all(len(found) == 1 for found in lines), "\n".join(outputs)
    return [json.loads(found[0][len("RESULT ") :]) for found in lines]


def expected(count: int) -> List[List[float]]:
    sums, arrays = [], [np.zeros(length) for length in (5, 70_000)]
    for rank in range(count):
        for number, array in enumerate(arrays):
            array += np.random.RandomState(10 * rank + number).randn(array.size).astype(np.float32)
    for step in range(3):
        sums.append([count**step * array.sum() for array in arrays])
    return sums


@pytest.mark.zoo
@pytest.mark.parametrize(
    "hosts, hierarchical, is_hierarchy",
    [
        (["a", "a", "b", "b"], True, True),
        (["a", "b", "b", "a", "c"], True, True),  # ranks of a host need not be neighbours, and a host may have one
        (["a", "b"], True, False),
        (["a", "a"], True, False),
        (["a", "a", "b"], False, False),
    ],
    ids=["2 x 2", "uneven", "one each", "one host", "off"],
)
def test_all_workers_get_the_sum(hosts: List[str], hierarchical: bool, is_hierarchy: bool) -> None:
    results = run_workers(hosts, hierarchical)
    for host, (sums, digest, total, hierarchy, own_set, num_buckets) in zip(hosts, results):
        np.testing.assert_allclose(sums, expected(len(hosts)), rtol=1e-3, atol=1e-2)
        assert digest == results[0][1]  # the same bits on all workers
        assert total == [sum(range(len(hosts))), 0.5 * len(hosts)] and hierarchy == is_hierarchy
        assert own_set == (is_hierarchy and hosts.count(host) > 1) and num_buckets == 3
