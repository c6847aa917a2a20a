"""Trials that a fork server starts: the bits and the recorded environment of new processes."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict

import numpy
import pytest

pytest.importorskip("optuna", minversion="4")

from running import has_steps
from waiting import wait_until

from mxtrain.archive.provenance import own_code
from mxtrain.cluster import fork_server
from mxtrain.cluster.fork_server import ForkServer, Order
from mxtrain.cluster.launch import preload
from mxtrain.engine.backend import mx
from mxtrain.errors import EXIT_BUDGET, EXIT_FINISHED, EXIT_SIGTERM
from mxtrain.runtime import preloaded
from mxtrain.runtime.apply import SET_BY_MXTRAIN
from mxtrain.tuning.worker import environment

FAST = ("model=mlp", "model.dropout=0.5", "logger=jsonl", "trainer.test=false", "trainer.max_epochs=2")


def run_mxtrain(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "mxtrain", *arguments], cwd=folder, env=environment(), check=True, capture_output=True
    )


def read(path: Path) -> Dict[str, Any]:
    content: Dict[str, Any] = json.loads(path.read_text())
    return content


def test_a_fork_draws_numbers_of_its_own_and_keeps_variables_of_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    before = dict(os.environ)
    given = {**before, "CHANGED_BY_IMPORT": "/a", "OTHER_IN_THE_RUN": "4"}
    monkeypatch.setattr(preloaded, "_fork", None)
    monkeypatch.setenv("SET_BY_IMPORT", "1")
    monkeypatch.setenv("CHANGED_BY_IMPORT", "/b:/a")
    monkeypatch.setenv("OTHER_IN_THE_RUN", "changed, too")
    monkeypatch.setenv("SET_FOR_MXNET", "2")
    monkeypatch.setenv(SET_BY_MXTRAIN, "SET_FOR_MXNET=2")
    try:
        numpy.random.seed(5)
        drawn = numpy.random.random()
        numpy.random.seed(5)
        run = {**given, "OF_RUN": "3", "OTHER_IN_THE_RUN": "5"}
        preload._begin_fork(Order(["train"], run), given)
        assert numpy.random.random() != drawn
        assert dict(os.environ) == {**run, "SET_BY_IMPORT": "1", "CHANGED_BY_IMPORT": "/b:/a"}
    finally:
        os.environ.clear()
        os.environ.update(before)


def test_no_server_where_counting_gpus_initialises_cuda(describe_run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for a run on the CPU, which counts GPUs, too."""
    monkeypatch.setattr(preloaded, "_is_server", False)
    monkeypatch.setattr(fork_server, "take_connection", lambda: None)
    monkeypatch.setattr(fork_server, "serve", lambda connection: Order([], {}))
    monkeypatch.setattr(preload, "prepare_environment", lambda description: None)
    monkeypatch.setattr(preload, "_begin_fork", lambda order, before_imports: None)
    description = describe_run("parallel.devices=cpu:1")
    assert preload.serve_forks(lambda: description) == []
    monkeypatch.setattr(mx.context, "num_gpus", lambda: 1)
    with pytest.raises(SystemExit) as ended:
        preload.serve_forks(lambda: description)
    assert ended.value.code == EXIT_FINISHED


def test_recorded_code_is_that_of_the_first_import(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = tmp_path / "tried_loss.py"
    module.write_text("# as imported")
    monkeypatch.setitem(sys.modules, "tried_loss", SimpleNamespace(__file__=str(module)))
    config = {"loss": {"_target_": "tried_loss.Loss"}}
    first = own_code(config)
    assert first == {"tried_loss.Loss": hashlib.sha256(b"# as imported").hexdigest()}
    module.write_text("# changed since")
    assert own_code(config) == first


@pytest.mark.slow
def test_trials_have_the_bits_and_the_variables_of_new_processes(tmp_path: Path) -> None:
    """The second trial needs other variables than the first, for which the server has imported MXNet."""
    run_mxtrain(tmp_path, "tune", "study", *FAST, "runtime.threads=choice(2,1)", "optimizer.lr=0.05", "sampler=grid")
    for number, path in enumerate(sorted((tmp_path / "study").glob("[0-9]"))):
        trial = read(path / "meta.json")
        (threads,) = [word for word in trial["argv"] if word.startswith("runtime.threads=")]
        run_mxtrain(tmp_path, *FAST, threads, "optimizer.lr=0.05", f"hydra.run.dir={number}")
        alone = read(tmp_path / str(number) / "meta.json")
        assert trial["runtime"] == alone["runtime"]
        ends = [read(folder / "status.json") for folder in (path, tmp_path / str(number))]
        assert ends[0]["weights_sha256"] == ends[1]["weights_sha256"] and ends[0]["metrics"] == ends[1]["metrics"]
    assert number == 1


@pytest.mark.slow
@pytest.mark.skipif(not fork_server.can_fork(), reason="the C library has no _Fork")
def test_a_server_serves_runs_of_one_process_and_no_wrong_ones(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log:

        def start(server: ForkServer, *words: str) -> Any:
            arguments = ["train", *FAST, *words, f"hydra.run.dir={tmp_path / 'run'}"]
            return server.start(arguments, environment(), {}, log.fileno(), log.fileno())

        served = ForkServer(tmp_path)
        try:
            assert start(served, "trainer.max_steps=1").wait() == EXIT_BUDGET
            assert start(served, "optimizer.lr=nonsense").wait() == 2
            process = served._process
            assert process is not None
            threads = Path(f"/proc/{process.pid}/task")
            wait_until(lambda: len(os.listdir(threads)) == 1)  # OpenBLAS has some while the server imports
            long = start(served, "trainer.max_epochs=10000")
            wait_until(has_steps(tmp_path / "run", 30))
            # The program of the server: a run that needs other variables would have started anew.
            assert len({Path(f"/proc/{pid}/cmdline").read_bytes() for pid in (process.pid, long.pid)}) == 1
            long.terminate()
            assert long.wait() == EXIT_SIGTERM
        finally:
            served.close()
        for words in (["model.hiden=3"], ["kvstore=dist_sync", "cluster.workers=2"]):
            refused = ForkServer(tmp_path)
            assert start(refused, *words) is None and refused._is_useless
    assert "optimizer.lr=nonsense" in (tmp_path / "log").read_text()
