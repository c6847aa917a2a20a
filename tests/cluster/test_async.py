"""kvstore=dist_async with real processes: servers that update, and workers that do not wait for each other."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, List

import pytest
from running import QUIET, ROOT, SMALL, Process, assert_same, checkpoints, has_steps, rows, status, steps, verify
from test_workers import free_port, nobody_is_left, processes

from mxtrain.checkpoint.contents import read_checkpoint
from mxtrain.errors import ConfigError

ASYNC = ("kvstore=dist_async", "cluster.backoff=0.1")
TWO = (*ASYNC, "cluster.workers=2")
SLOW = (*SMALL, "model.hidden=[128,128]", "trainer.max_epochs=8", "checkpoint.every_steps=20", "early_stopping=off")
LEARNS = (
    "model=mlp",
    "model.hidden=[64]",
    "dataset.batch_size=64",
    "optimizer.lr=0.005",
    "trainer.max_epochs=12",
    "early_stopping=off",
)


LARS = (
    "optimizer=lars",
    "optimizer.lr=0.5",
    "optimizer.wd=0.01",
    "cluster.servers=2",
    "model.param_groups=[{pattern: output.*, lr_mult: 10.0}]",
    "trainer.ema_decay=0.9",
    "trainer.clip_global_norm=1",
    "checkpoint.every_steps=11",
)


@pytest.mark.zoo
def test_one_worker_is_one_device_bit_for_bit_also_after_a_stop(tmp_path: Path) -> None:
    """LARS's states come back from the checkpoint, Adam's below; LeNet has dropout and two buckets' worth of layers."""
    common = ("model=lenet", "model.channels=[4,8]", "model.hidden=32", "trainer.max_epochs=3", *LARS)
    Process(tmp_path / "device", *[word for word in common if "cluster" not in word]).end()
    Process(tmp_path / "servers", *ASYNC, *common, "trainer.max_steps=27").end(75)
    done = Process(tmp_path / "servers", *ASYNC, *common).end()
    servers, device = status(tmp_path / "servers"), status(tmp_path / "device")
    assert servers["weights_sha256"] == device["weights_sha256"] and servers["best"] == device["best"]
    assert rows(tmp_path / "servers") == rows(tmp_path / "device")
    assert "the servers go on from step 27: what they had applied after it, if anything, is lost" in done.output
    assert servers["metrics"]["perf/staleness_max"] == 0
    nobody_is_left(tmp_path)


@pytest.mark.zoo
def test_two_workers_learn_and_their_staleness_is_shown(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    done = Process(run_dir, *TWO, "cluster.servers=2", *LEARNS).end()
    found = status(run_dir)
    assert found["best"]["value"] >= 0.85, found["best"]  # no two runs are alike: 0.896 was seen on a busy machine
    assert found["metrics"]["perf/staleness_max"] >= 1 and 0 < found["metrics"]["perf/staleness_mean"] < 60
    assert "perf/staleness_mean=" in done.output
    assert {"perf/staleness_mean", "perf/staleness_max"} <= tags(run_dir)
    assert steps(run_dir) == list(range(1, found["step"] + 1))
    nobody_is_left(tmp_path)


@pytest.mark.zoo
def test_compressed_gradients_and_weights(tmp_path: Path) -> None:
    """One worker goes on to the bit with what was left over; two of them learn from where it stands. Other compressors
    send the same messages: tests/kvstore/test_compressed_message.py."""
    common = (
        *ASYNC,
        *LEARNS[:4],
        "early_stopping=off",
        "checkpoint.every_steps=25",
        "kvstore.compression=bf16",
        "cluster.servers=2",
    )
    Process(tmp_path / "whole", *common, "trainer.max_epochs=3").end()
    Process(tmp_path / "run", *common, "trainer.max_epochs=3", "trainer.max_steps=25").end(75)
    Process(tmp_path / "run", *common, "trainer.max_epochs=3").end()
    assert_same(tmp_path / "run", tmp_path / "whole")
    Process(tmp_path / "run", *common, "cluster.workers=2", "trainer.max_epochs=9").end()
    ended, began = status(tmp_path / "run"), status(tmp_path / "whole")
    assert ended["metrics"]["train/loss"] < 0.7 * began["metrics"]["train/loss"], (ended, began)
    assert ended["best"]["value"] > began["best"]["value"] and ended["metrics"]["perf/staleness_max"] >= 1
    residual = read_checkpoint(tmp_path / "run" / "checkpoints" / checkpoints(tmp_path / "run")[-1]).arrays("residual")
    assert {name.rpartition(":")[2] for name in residual} == {"0", "1"} and all(a.any() for a in residual.values())
    assert "output.weight:scale:1" in residual
    nobody_is_left(tmp_path)


def tags(run_dir: Path) -> set:
    """Returns the tags of scalars in TensorBoard's files."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return set(EventAccumulator(str(run_dir)).Reload().Tags()["scalars"])


@pytest.mark.slow
def test_after_a_kill_all_continue_from_the_checkpoint(tmp_path: Path) -> None:
    """Kills the server, which has the optimizer's state; the death of any other process restarts all in the same
    way."""
    run_dir = tmp_path / "run"
    run = Process(run_dir, *TWO, *SLOW).wait_until(has_steps(run_dir, 45))
    os.kill(processes(run_dir)["server"][0], signal.SIGKILL)
    run.end()
    assert steps(run_dir) == list(range(1, status(run_dir)["step"] + 1)) and status(run_dir)["epoch"] == 8
    assert re.search(r"was ended by SIGKILL.*restart 1 of 3", run.output), run.output
    assert re.search(r"the servers go on from step \d+: what they had applied after it", run.output), run.output
    nobody_is_left(tmp_path)


@pytest.mark.zoo
def test_sigterm_ends_all_workers_after_the_same_step(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run = Process(run_dir, *TWO, *SLOW, "checkpoint.every_steps=1000").wait_until(has_steps(run_dir, 30))
    os.kill(processes(run_dir)["worker1"][0], signal.SIGTERM)
    run.end(143)
    stopped = status(run_dir)
    assert stopped["state"] == "interrupted" and checkpoints(run_dir)[-1] == f"step-{stopped['step']:08d}"
    alone = Process(run_dir, "kvstore=local", *SLOW).end()
    assert "alone until this step: from now on a step is one update by all workers' gradient" in alone.output
    assert steps(run_dir) == list(range(1, status(run_dir)["step"] + 1)) and status(run_dir)["epoch"] == 8
    nobody_is_left(tmp_path)


@pytest.mark.zoo
def test_empty_shares_saves_by_the_clock_and_a_budget_of_time(tmp_path: Path) -> None:
    """Three workers of two replicas with batch norms; the last batch of an epoch has two samples."""
    run_dir = tmp_path / "run"
    Process(
        run_dir,
        *ASYNC,
        "cluster.workers=3",
        "parallel=data",
        "model=resnet",
        "model.depth=8",
        "model.width=0.25",
        "dataset=synthetic",
        "dataset.shape=[1,8,8]",
        "dataset.num_samples=100",
        "dataset.batch_size=24",
        "dataset.val_fraction=0.25",
        "dataset.test_fraction=0.25",
        "checkpoint.every_epochs=null",
        "checkpoint.every_minutes=0.01",
        "checkpoint.keep_last=100",
        "trainer.ema_decay=0.9",
        "trainer.max_epochs=1000",
        "trainer.max_time=4",
        "early_stopping=off",
    ).end(75)
    assert status(run_dir)["step"] > 9 and len(checkpoints(run_dir)) >= 3
    step = status(run_dir)["step"]
    assert steps(run_dir) == list(range(1, step + 1))
    saved = json.loads((run_dir / "checkpoints" / f"step-{step:08d}" / "state.json").read_text())
    updates = set(saved["state"]["optimizer"]["update_counts"].values())
    assert updates == {3 * step - step // 3}, step  # in every third step one worker has no samples
    nobody_is_left(tmp_path)


FOREIGN = """
import sys
import numpy as np
from mxtrain.engine.backend import mx, nd
from mxtrain.kvstore.spec import DistAsync
from mxtrain.optimizer.optimizers import SGD
from mxtrain.optimizer.updater import Updater
from mxtrain.kvstore.world import World

rng = np.random.RandomState(0)
start = {"a": rng.randn(3, 4).astype("f"), "b": rng.randn(5).astype("f")}
weights, local = ({n: nd.array(v) for n, v in start.items()} for _ in range(2))
multipliers = {"a": (1.0, 1.0), "b": (2.0, 0.0)}
optimizer = {"_target_": "mxtrain.optimizer.optimizers.SGD", "lr": 0.1, "wd": 0.0, "clip_gradient": None,
             "momentum": 0.9, "lazy_update": False}
store = DistAsync().build(World(0, 1))
here = Updater(SGD(lr=0.1).build(1), local, multipliers)
kvstore = {"_target_": "mxtrain.kvstore.spec.DistAsync", "compression": "none", "threshold": None, "ratio": 0.01,
           "tables": "workers"}
settings = {"optimizer": {**optimizer, **eval(sys.argv[1])}, "kvstore": {**kvstore, **eval(sys.argv[2])}}
there = store.build_updater(settings, weights, multipliers, 1)
gradients = [nd.zeros((3, 4)), nd.zeros((5,))]
for step in range(6):
    for gradient in gradients:
        nd.array(rng.randn(*gradient.shape)).copyto(gradient)
    here.update(gradients, 0.1 / (step + 1))
    there.update(gradients, 0.1 / (step + 1))
    for text in ("cos\\nsystem\\n(S'touch PWNED'\\ntR.", "", "{}", '{"mxtrain": "dist_async", "set_up": {}}',
                 '{"mxtrain": "dist_async", "begin": true, "more": 1}', "\\x7f" * 1000, "[" * 100000):
        store.command(text)
        store._store._send_command_to_servers(7, text)
for name, value in weights.items():
    np.testing.assert_array_equal(value.asnumpy(), local[name].asnumpy())
assert there.summary() == {"perf/staleness_mean": 0.0, "perf/staleness_max": 0.0}
store.close()
print("same weights")
"""


def serve(tmp_path: Path, script: str, *arguments: str) -> List[subprocess.CompletedProcess]:
    """A scheduler, a server with SGD and a script as the worker; how the worker and the server ended."""
    tracker = {
        **os.environ,
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(free_port()),
        "DMLC_NODE_HOST": "127.0.0.1",
        "DMLC_NUM_WORKER": "1",
        "DMLC_NUM_SERVER": "1",
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
    }
    (tmp_path / "worker.py").write_text(script)
    member = [
        sys.executable,
        "-m",
        "mxtrain",
        "train",
        *QUIET,
        "kvstore=dist_async",
        "optimizer=sgd",
        "optimizer.lr=0.1",
    ]
    commands = {"scheduler": member, "server": member, "worker": [sys.executable, "worker.py", *arguments]}
    started = {
        role: subprocess.Popen(
            command,
            cwd=tmp_path,
            env={**tracker, "DMLC_ROLE": role},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for role, command in commands.items()
    }
    try:
        ended = []
        for role in ("server", "worker"):
            if role == "worker" and ended[0].returncode:
                started[role].kill()
            output = started[role].communicate(timeout=60)[0]
            ended.append(subprocess.CompletedProcess(commands[role], started[role].returncode, output))
        return ended
    finally:
        for process in started.values():
            process.kill()
            process.communicate()


@pytest.mark.slow
def test_foreign_commands_and_pickles_are_ignored(tmp_path: Path) -> None:
    server, worker = serve(tmp_path, FOREIGN, "{}", "{}")
    assert worker.returncode == 0 and "same weights" in worker.stdout, worker.stdout + server.stdout
    assert server.stdout.count("refused the command 0") >= 6 * 6 and server.returncode == 0, server.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["worker.py"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings, words",
    [
        pytest.param(
            ["{'momentum': 0.5}", "{}"], "optimizer.momentum is 0.9 here and 0.5 at worker 0", marks=pytest.mark.zoo
        ),
        (["{}", "{'compression': 'topk'}"], "kvstore.compression is none here and topk at worker 0"),
    ],
)
def test_a_server_with_other_settings_ends_with_the_reason(tmp_path: Path, settings: List[str], words: str) -> None:
    server, _ = serve(tmp_path, FOREIGN, *settings)
    assert server.returncode == 2 and words in server.stdout, server.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "command, words",
    [
        (["verify", *TWO], ["cluster.workers=2", "order", "kvstore=dist_sync"]),
        pytest.param(
            ["kvstore=dist_async", "cluster.workers=2", "optimizer=groupadagrad", *SMALL],
            ["trains only matrices"],
            marks=pytest.mark.zoo,
        ),
    ],
)
def test_impossible_settings_are_refused(tmp_path: Path, command: List[str], words: List[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mxtrain", *command, f"hydra.run.dir={tmp_path}/run"],
        text=True,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        timeout=60,
    )
    assert done.returncode == 2 and all(word in done.stderr + done.stdout for word in words), done.stderr + done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides, words",
    [
        (["kvstore=dist_asink"], ["dist_async"]),
        (
            [*TWO, "cluster.balance=speed", "cluster.balance_every=5"],
            ["cluster.balance_every=5", "only at its beginning", "Type cluster.balance_every=null"],
        ),
    ],
)
def test_descriptions_that_cannot_work_are_refused(describe_run: Any, overrides: List[str], words: List[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        describe_run(*overrides)
    assert all(word in str(refused.value) for word in words), refused.value


@pytest.mark.zoo
def test_verify_one_worker() -> None:
    done = verify(*ASYNC, "cluster.servers=2", "model=mlp", timeout_s=60)
    assert done.returncode == 0 and "the same as on one device: every bit is equal" in done.stdout, done.stderr
    assert "float32, sums in the same order: every bit is equal" in done.stdout
