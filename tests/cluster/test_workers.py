"""Real workers, servers and schedulers on this machine: the same numbers, and what happens when one of them dies."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any, Dict, List, Tuple

import pytest
from running import (
    ROOT,
    SMALL,
    Process,
    assert_same,
    checkpoints,
    has_steps,
    image,
    listening_sockets,
    role_of,
    rows,
    running_processes,
    status,
    steps,
    train_here,
    verify,
)
from waiting import free_port, wait_until

from mxtrain.cli.train import description_of
from mxtrain.cluster.launch.group import arguments_of
from mxtrain.cluster.process import LaunchSpec, LocalProcess
from mxtrain.cluster.process import Process as ClusterProcess
from mxtrain.cluster.spec import Cluster
from mxtrain.cluster.supervisor import Supervisor
from mxtrain.errors import ConfigError

TWO = ("kvstore=dist_sync", "cluster.workers=2", "cluster.backoff=0.1")
LENET = (
    "model=lenet",
    "model.channels=[4,8]",
    "model.hidden=32",
    "model.dropout=0",
    "dataset.batch_size=100",
    "trainer.ema_decay=0.9",
    "trainer.max_epochs=2",
    "trainer.log_interval=5",
)
SLOW = (*SMALL, "model.hidden=[512,512]", "trainer.max_epochs=8", "checkpoint.every_steps=20", "early_stopping=off")


def processes(run_dir: Path) -> Dict[str, List[int]]:
    """The processes of a group by role, as the kernel knows them, in the order of their starts."""
    found: Dict[str, List[Tuple[int, int]]] = {}
    for pid, command, environment in running_processes():
        if str(run_dir) in command and "DMLC_ROLE" in environment:
            with suppress(OSError):
                started = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
                found.setdefault(role_of(environment), []).append((started, pid))
    return {role: [pid for _, pid in sorted(pairs)] for role, pairs in found.items()}


def nobody_is_left(run_dir: Path) -> None:
    wait_until(lambda: not processes(run_dir), 10)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("undisturbed") / "run"
    Process(run_dir, *TWO, *SLOW).end()
    return run_dir


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Process:
    return Process(tmp_path_factory.mktemp("finished") / "run", *TWO, *LENET).end()


@pytest.mark.slow
def test_two_workers_equal_two_replicas(tmp_path: Path, finished: Process) -> None:
    train_here(tmp_path / "replicas", "parallel=data", "parallel.devices=cpu:2", *LENET)
    assert [row for row in rows(finished.run_dir) if row["split"] == "train"] == [
        row for row in rows(tmp_path / "replicas") if row["split"] == "train"
    ]
    workers, replicas = status(finished.run_dir), status(tmp_path / "replicas")
    assert workers["weights_sha256"] == replicas["weights_sha256"]
    assert workers["metrics"] == pytest.approx(replicas["metrics"], rel=1e-6)
    assert "2 workers, 1 server on this machine" in finished.output
    assert sorted(path.name for path in (finished.run_dir / "workers").iterdir()) == [
        ".lock",
        "scheduler.log",
        "server-0.log",
        "worker-1.log",
    ]
    nobody_is_left(finished.run_dir)


@pytest.mark.zoo
def test_workers_with_replicas_and_stages_of_their_own_and_empty_shares(tmp_path: Path) -> None:
    """Three workers of two stages; the last batch of an epoch has two samples, so that one worker has none."""
    common = (
        *SMALL,
        "dataset.batch_size=24",
        "dataset.num_samples=100",
        "dataset=synthetic",
        "dataset.shape=[1,8,8]",
        "trainer.clip_global_norm=1",
        "dataset.val_fraction=0.25",
        "dataset.test_fraction=0.25",
        "trainer.max_epochs=3",
    )
    Process(tmp_path / "one", *common).end()
    Process(
        tmp_path / "three",
        "kvstore=dist_sync",
        "cluster.workers=3",
        "cluster.servers=2",
        "parallel=pipeline",
        "parallel.microbatches=2",
        "trainer.grad_accumulation=2",
        *common,
    ).end()
    one, three = status(tmp_path / "one"), status(tmp_path / "three")
    assert steps(tmp_path / "three") == steps(tmp_path / "one")
    assert three["metrics"] == pytest.approx(one["metrics"], rel=1e-4)


@pytest.mark.zoo
def test_verify_finds_the_numbers_of_one_device() -> None:
    """test_batch_norm.py covers kvstore=dist_device_sync and more workers."""
    done = verify("tolerance=1e-10", "kvstore=p3", "cluster.workers=2", "cluster.servers=2", "model=lenet")
    assert done.returncode == 0 and "the same as on one device" in done.stdout, done.stdout + done.stderr
    assert "every bit is equal" in done.stdout


@pytest.mark.zoo
def test_after_each_of_several_deaths_the_run_continues_with_the_same_weights(
    tmp_path: Path, undisturbed: Path
) -> None:
    """Kills worker 0, server and scheduler (worker 1: test_compressed_workers.py) and stops a server, in one run that
    starts with resume=never in another spelling; a second start leaves the finished run alone."""
    run_dir, given = tmp_path / "run", (*TWO, *SLOW, "cluster.heartbeat_timeout=2", "++checkpoint.resume=never")
    run = Process(run_dir, *given)
    log = run_dir / "workers" / "supervisor.log"
    blows = [
        ("worker0", signal.SIGKILL),
        ("server", signal.SIGKILL),
        ("scheduler", signal.SIGKILL),
        ("server", signal.SIGSTOP),
    ]
    told, seen = [], 5
    for number, (victim, blow) in enumerate(blows):
        run.wait_until(has_steps(run_dir, seen + 10))
        (pid,) = processes(run_dir)[victim]
        sockets = sockets_of(run_dir)
        os.kill(pid, blow)
        # A second one in a row where it had not come to a checkpoint since.
        run.wait_until(lambda n=number + 1: log.exists() and len(re.findall(r"restart \d of 3", log.read_text())) == n)
        run.wait_until(lambda gone=sockets: not any(path.exists() for path in gone))
        seen = len((run_dir / "metrics.jsonl").read_text().splitlines())  # more only after it has gone on
        name = re.sub(r"(\d)", r" \1", victim)
        how = "was ended by SIGKILL" if blow == signal.SIGKILL else r"was stopped \(SIGSTOP or a debugger\) 2\.\d s ago"
        told.append(rf"{name}[ \d]* ?\(process {pid}\) {how}.*restart \d of 3")
        if number == 0:
            refused = Process(run_dir, *TWO, *SLOW).end(2)
            assert f"The run directory {run_dir} is in use by process" in refused.output
    run.end()
    assert_same(run_dir, undisturbed)
    for line in told:
        for text in (run.output, log.read_text()):
            assert re.search(line, text), (line, text)
    assert not (run_dir / "previous").exists()
    nobody_is_left(tmp_path)


@pytest.mark.zoo
@pytest.mark.parametrize("receiver", ["supervisor", "all"])  # worker 1 alone: test_async.py, test_horovod.py
def test_sigterm_saves_and_another_number_of_workers_continues(
    tmp_path: Path, undisturbed: Path, receiver: str
) -> None:
    run_dir = tmp_path / "run"
    run = Process(run_dir, *TWO, *SLOW, "checkpoint.every_steps=1000").wait_until(has_steps(run_dir, 30))
    found = processes(run_dir)
    receivers = {"supervisor": [run.popen.pid], "all": [run.popen.pid, *sum(found.values(), [])]}
    for pid in receivers.get(receiver) or found[receiver]:
        os.kill(pid, signal.SIGTERM)
    run.end(143)
    assert status(run_dir)["state"] == "interrupted" and status(run_dir)["exit_code"] == 143
    assert checkpoints(run_dir)[-1] == f"step-{status(run_dir)['step']:08d}"
    nobody_is_left(tmp_path)
    if receiver == "all":  # the checkpoint is written in the same way
        return
    Process(run_dir, *SLOW).end()  # one process
    assert steps(run_dir) == steps(undisturbed)
    assert status(run_dir)["metrics"] == pytest.approx(status(undisturbed)["metrics"], abs=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("wait_s", [0.0, 0.3])
def test_sigterm_to_a_worker_before_training_ends_all(tmp_path: Path, wait_s: float) -> None:
    """At once, the signal may end a worker that does not handle signals yet."""
    run = Process(tmp_path / "run", *TWO, *SLOW)
    wait_until(lambda: "worker1" in processes(tmp_path / "run"), 30)
    time.sleep(wait_s)
    os.kill(processes(tmp_path / "run")["worker1"][0], signal.SIGTERM)
    begun = time.monotonic()
    run.end(143)
    assert time.monotonic() - begun < 30 and "restart" not in run.output
    nobody_is_left(tmp_path)


@pytest.mark.slow
def test_finished_run_of_workers_reports_it_and_leaves_no_process(tmp_path: Path, finished: Process) -> None:
    shutil.copytree(finished.run_dir, tmp_path / "run")
    before = image(tmp_path / "run")["status.json"]
    done = Process(tmp_path / "run", *TWO, *LENET).end()
    assert image(tmp_path / "run")["status.json"] == before and "restart" not in done.output
    nobody_is_left(tmp_path)


@pytest.mark.slow
def test_a_refused_start_leaves_a_finished_run_alone(tmp_path: Path, finished: Process) -> None:
    """Another description is refused in the same place: test_resume.py. A running group: the deaths above."""
    run_dir = shutil.copytree(finished.run_dir, tmp_path / "run")
    before = image(run_dir)
    Process(run_dir, *TWO, *LENET, "parallel=model", "parallel.stages=40", "trainer.max_epochs=9").end(2)
    logs = [name for name in before if name.startswith("workers/") or name == "train.log"]
    after = image(run_dir)
    assert {name: seen[0] for name, seen in after.items() if name not in [*logs, "workers/supervisor.log"]} == {
        name: seen[0] for name, seen in before.items() if name not in logs
    }
    assert set(logs) <= set(after)


def sockets_of(run_dir: Path) -> List[Path]:
    """Socket files of the processes of a group."""
    return listening_sockets([pid for pids in processes(run_dir).values() for pid in pids])


@pytest.mark.zoo
def test_sockets_are_closed_to_other_users_and_removed(tmp_path: Path) -> None:
    """Connecting to a Unix socket needs permission to write. A killed worker cannot remove its own socket."""
    run = Process(tmp_path / "run", *TWO, *SLOW, "cluster.restarts=0").wait_until(has_steps(tmp_path / "run", 10))
    sockets = sockets_of(tmp_path / "run")
    assert len(sockets) == 4 and all(path.stat().st_mode & 0o077 == 0 for path in sockets)
    os.kill(processes(tmp_path / "run")["worker1"][0], signal.SIGKILL)
    run.end(1)
    assert not any(path.exists() for path in sockets)
    nobody_is_left(tmp_path)


@pytest.mark.zoo
def test_a_budget_of_time_ends_all_workers_at_the_same_step(tmp_path: Path) -> None:
    Process(tmp_path / "run", *TWO, *SLOW, "trainer.max_epochs=1000", "trainer.max_time=1").end(75)
    assert status(tmp_path / "run")["state"] == "interrupted"
    nobody_is_left(tmp_path)


CRASH = """
from mxtrain.callback.protocol import Callback

class Crash(Callback):
    def on_steps(self, rows, progress):
        if progress.step >= 10:
            raise RuntimeError("by design")
"""


@pytest.mark.zoo
def test_repeated_crash_is_not_restarted_forever(tmp_path: Path) -> None:
    (tmp_path / "crash.py").write_text(CRASH)
    run = Process(
        tmp_path / "run",
        *TWO,
        *SLOW,
        "+callback.crash._target_=crash.Crash",
        env={"PYTHONPATH": f"{Path(__file__).parents[2]}:{tmp_path}"},
    ).end(1)
    assert run.output.count("restart 1 of 3") == 1 and "restart 2" not in run.output
    assert "failed in the same way before" in run.output
    assert status(tmp_path / "run")["cause"] == "RuntimeError: by design"
    nobody_is_left(tmp_path)


VANISHES = """
import os
from pathlib import Path
from mxtrain.errors import ConfigError
from mxtrain.callback.protocol import Callback

class Vanishes(Callback):
    '''What the first attempt had is gone when the second begins.'''

    def __init__(self, mark):
        self.mark = Path(mark)
        if self.mark.exists():
            raise ConfigError("the data are gone")

    def on_steps(self, rows, progress):
        if progress.step >= 25:
            self.mark.touch()
            os._exit(7)
"""


@pytest.mark.zoo
def test_refused_restart_keeps_trained_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "vanishes.py").write_text(VANISHES)
    run = Process(
        tmp_path / "run",
        *TWO,
        *SLOW,
        "+callback.vanishes._target_=vanishes.Vanishes",
        f"+callback.vanishes.mark={tmp_path / 'mark'}",
        env={"PYTHONPATH": f"{Path(__file__).parents[2]}:{tmp_path}"},
    ).end(2)
    assert "restart 1 of 3" in run.output
    found = status(tmp_path / "run")
    assert found["state"] == "failed" and found["exit_code"] == 2
    assert checkpoints(tmp_path / "run") and (tmp_path / "run" / "workers" / "worker-1.log").exists()
    nobody_is_left(tmp_path)


def test_a_restart_has_the_time_that_is_left() -> None:
    given = ["kvstore=dist_sync", "cluster.workers=2", "++trainer.max_time=100"]
    described = description_of(given)
    assert arguments_of(given, described, False, 0.0) == given
    assert arguments_of(given, described, True, 60.4) == [*given[:2], "trainer.max_time=40"]
    assert arguments_of(given, described, True, 200.0) == [*given[:2], "trainer.max_time=1"]


UNANSWERED = """
import time
from mxtrain.kvstore import dist_store
from mxtrain.callback.protocol import Callback

class Unanswered(Callback):
    def on_end(self, result):
        dist_store.stop_servers = lambda *_: time.sleep(3600)
"""


@pytest.mark.zoo
def test_a_disconnect_without_an_answer_is_short(tmp_path: Path) -> None:
    """Simulates ps-lite's scheduler closing its sockets before its last answer is sent, for which all others wait."""
    (tmp_path / "unanswered.py").write_text(UNANSWERED)
    done = Process(
        tmp_path / "run",
        *TWO,
        *SMALL,
        "trainer.max_epochs=1",
        "+callback.unanswered._target_=unanswered.Unanswered",
        env={"PYTHONPATH": f"{Path(__file__).parents[2]}:{tmp_path}"},
    ).end()
    assert status(tmp_path / "run")["state"] == "finished" and "restart" not in done.output
    nobody_is_left(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides, words",
    [
        (["cluster.workers=2"], ["cluster.workers=2", "kvstore=dist_sync"]),
        pytest.param([*TWO, "dataset=mnist", "dataset.root=/nowhere"], ["train-images"], marks=pytest.mark.zoo),
    ],
)
def test_impossible_settings_are_refused_without_output(tmp_path: Path, overrides: List[str], words: List[str]) -> None:
    run = Process(tmp_path / "new" / "run", *overrides).end(2)
    assert all(word in run.output for word in words), run.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "overrides, words",
    [
        (["kvstore=horovod", "cluster.workers=2", "cluster.servers=2"], ["cluster.servers=2", "without servers"]),
        ([*TWO, "kvstore.threshold=0.01"], ["kvstore.threshold=0.01", "kvstore.compression=2bit"]),
        (["kvstore=device", "kvstore.threshold=0.01"], ["kvstore.threshold=0.01", "only 2bit"]),
        (["kvstore=dist_sync", "cluster.workers=0"], ["cluster.workers"]),
        (["kvstore=dist_sync", "cluster.wrokers=2"], ["cluster.workers"]),
        (["kvstore=dist_sink"], ["dist_sync"]),
        (["kvstore=dist_sync", "cluster.workers=200"], ["cluster.workers=200", "less than one"]),
        (["kvstore=dist_async", "cluster.workers=2", "parallel.batch_norm=global"], ["batch_norm", "do not wait"]),
    ],
)
def test_descriptions_that_cannot_work_are_refused(describe_run: Any, overrides: List[str], words: List[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        describe_run(*overrides)
    assert all(word in str(refused.value) for word in words), refused.value


def listening_address(port: int) -> str:
    """At which somebody listens, or soon will."""
    for _ in range(1000):
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            fields = line.split()
            address, number = fields[1].split(":")
            if fields[3] == "0A" and int(number, 16) == port:
                return socket.inet_ntoa(bytes.fromhex(address)[::-1])
        time.sleep(0.02)
    return "nowhere"


@pytest.mark.zoo
def test_processes_started_by_another_launcher(tmp_path: Path) -> None:
    """With the variables of dmlc's trackers; a worker without a rank is refused."""
    tracker = {
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(free_port()),
        "DMLC_NODE_HOST": "127.0.0.1",
        "DMLC_NUM_WORKER": "2",
        "DMLC_NUM_SERVER": "1",
    }
    given = ("kvstore=dist_sync", "cluster.workers=2", *SMALL, "trainer.max_epochs=1")
    lost = Process(tmp_path / "run", *given, env={**tracker, "DMLC_ROLE": "worker"}).end(2)
    assert "DMLC_WORKER_ID" in lost.output and not (tmp_path / "run").exists()
    # As in Kubernetes: there, ps-lite's scheduler would listen on every interface.
    roles = [{"DMLC_ROLE": "scheduler", "DMLC_USE_KUBERNETES": "1"}, {"DMLC_ROLE": "server"}]
    roles += [{"DMLC_ROLE": "worker", "DMLC_WORKER_ID": str(rank)} for rank in range(2)]
    started = [Process(tmp_path / "run", *given, env={**tracker, **role}) for role in roles]
    assert listening_address(int(tracker["DMLC_PS_ROOT_PORT"])) == "127.0.0.1"
    for process in started:
        process.end()
    Process(tmp_path / "replicas", *SMALL, "trainer.max_epochs=1", "parallel=data", "parallel.devices=cpu:2").end()
    assert status(tmp_path / "run")["weights_sha256"] == status(tmp_path / "replicas")["weights_sha256"]


@pytest.mark.zoo
def test_a_sweep_of_groups(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mxtrain",
            "-m",
            f"hydra.sweep.dir={tmp_path}",
            *TWO,
            *SMALL,
            "trainer.max_epochs=1",
            "optimizer.lr=0.1,0.01",
        ],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    jobs = [json.loads(line) for line in (tmp_path / "jobs.jsonl").read_text().splitlines()]
    assert [job["exit_code"] for job in jobs] == [0, 0]
    assert status(next(tmp_path.glob("1_*")))["state"] == "finished"
    assert done.stdout.count("# evaluate") == 1, done.stdout  # by the sweep, not by each job's worker


POISONED = "dataset._target_=bench_parts.poisoned.Digits"


@pytest.mark.zoo
def test_the_one_worker_with_nan_is_named_and_the_last_good_weights_are_kept(tmp_path: Path, undisturbed: Path) -> None:
    """Any of several workers: test_threads.py."""
    run_dir, poison = tmp_path / "run", tmp_path / "poison"
    env = {"PYTHONPATH": f"{ROOT}/scripts:{ROOT}", "MXTRAIN_BENCH_POISON": str(poison)}
    given = (*TWO, *SLOW, POISONED)
    run = Process(run_dir, *given, env=env).wait_until(has_steps(run_dir, 45))
    poison.touch()
    run.end(3)
    found = status(run_dir)
    assert found["state"] == "failed" and found["exit_code"] == 3
    assert re.search(r"in step \d+ the gradients of worker 1 alone were non-finite", found["cause"]), found["cause"]
    nobody_is_left(run_dir)
    kept = checkpoints(run_dir)
    assert len(kept) > 1
    poison.unlink()
    Process(run_dir, *given, env=env).end()
    assert_same(run_dir, undisturbed)


@pytest.mark.zoo
def test_nan_on_all_workers_is_reported(tmp_path: Path) -> None:
    Process(tmp_path / "run", *TWO, *SMALL, "optimizer.lr=1e38", "trainer.max_epochs=1").end(3)
    assert re.search(r"step \d+ the gradients of workers 0, 1 \(all\)", status(tmp_path / "run")["cause"])


@pytest.mark.slow
def test_silent_worker_is_named_when_the_start_takes_too_long(tmp_path: Path) -> None:
    """Three seconds."""
    word = json.dumps({"step": 0, "batches": 0, "waits": False, "generation": 0})
    programs = {
        "worker 0": "import os, time; "
        f"os.write(int(os.environ['MXTRAIN_HEARTBEAT_FD']), {word.encode()!r} + b'\\n'); time.sleep(60)",
        "worker 1": "import time; time.sleep(60)",
    }

    def start(attempt: int, stack: ExitStack) -> List[ClusterProcess]:
        specs = [
            LaunchSpec(name, [sys.executable, "-S", "-c", code], dict(os.environ), tmp_path / name, number=number)
            for number, (name, code) in enumerate(programs.items())
        ]
        return [stack.enter_context(closing(LocalProcess(spec))) for spec in specs]

    supervisor = Supervisor(Cluster(workers=2, start_timeout=3, restarts=0), start, list, print)
    assert supervisor.run() == 1
    assert supervisor.failure is not None and supervisor.failure.process == "worker 1"
