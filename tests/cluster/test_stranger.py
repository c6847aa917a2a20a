"""Another user of this machine who takes the names of sockets in advance and sends garbage to all that listens."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from bench_parts.stranger import NOBODY, Stranger
from running import SMALL, Process, status
from tiers import rest_in_zoo

from mxtrain.cluster.ring import peer_user
from mxtrain.kvstore.spec import has_horovod

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
GIVEN = (*SMALL, "cluster.restarts=0", "cluster.start_timeout=60", "trainer.max_epochs=1", "early_stopping=off")


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of two replicas, which two workers must come to."""
    run_dir = tmp_path_factory.mktemp("replicas") / "run"
    Process(run_dir, *GIVEN, "parallel=data", "parallel.devices=cpu:2").end()
    return str(status(run_dir)["weights_sha256"])


@pytest.mark.slow
@pytest.mark.parametrize("store", rest_in_zoo(["dist_sync", "horovod"], "dist_sync"))
def test_a_stranger_reaches_no_worker_and_costs_no_restart(tmp_path: Path, weights: str, store: str) -> None:
    if store == "horovod" and not has_horovod():
        pytest.skip("Horovod is not built here: scripts/horovod")
    # Without its privileges root can't remove what others have put into /tmp, as nobody else can.
    setpriv = shutil.which("setpriv")
    before = [setpriv, "--bounding-set=-all"] if setpriv else []
    command = [*before, sys.executable, "-m", "mxtrain"]
    run = Process(tmp_path / "run", f"kvstore={store}", "cluster.workers=2", *GIVEN, command=command)
    with Stranger(run.popen.pid) as stranger:
        run.end()
    assert status(tmp_path / "run")["weights_sha256"] == weights
    assert stranger.counts["refused"] and not stranger.counts["squatted"] and not stranger.counts["caught"]
    # The supervisor of a ring answers by HTTP, after it has asked the kernel who is calling.
    assert bool(stranger.counts["reached"]) == (store == "horovod")


def test_a_stranger_who_has_hung_up_is_not_taken_for_root() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        code = (
            "import os, socket; s = socket.socket(); socket.getaddrinfo('127.0.0.1', 1); "
            f"os.setuid({NOBODY}); s.connect(('127.0.0.1', {port})); "
            "print(s.getsockname()[1]); s.sendall(b'PUT /a HTTP/1.1')"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert peer_user("127.0.0.1", int(done.stdout)) is None
