"""Replay bundles: what a run writes when a step fails, and what `replay` computes from it."""

from __future__ import annotations

import json
import os
import shutil
import sys
import zipfile
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

import numpy as np
import pytest
from running import rows, train_here

from mxtrain.cli import main
from mxtrain.cluster.launch.group import write_reference
from mxtrain.cluster.process import LaunchSpec, LocalProcess, Process
from mxtrain.cluster.spec import Cluster
from mxtrain.cluster.supervisor import ProcessFailure, Supervisor
from mxtrain.engine.backend import autograd, gluon, nd
from mxtrain.errors import ConfigError
from mxtrain.training import replay_bundle
from mxtrain.training.nonfinite import layer_statistics
from mxtrain.training.replay_bundle import ReplayBundle, read_bundle
from mxtrain.training.step import TrainingStep
from mxtrain.workflows.replay import refer_to_step

SMALL = ("model=mlp", "model.hidden=[8]", "trainer.max_epochs=1", "checkpoint.every_steps=2")
EXPLODES = (*SMALL, "optimizer=sgd", "optimizer.lr=1e25")


@pytest.fixture(scope="module")
def exploded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("exploded") / "run"
    output = train_here(run_dir, *EXPLODES, exit_code=3)
    (bundle,) = (run_dir / "replay").iterdir()
    assert f"replay {bundle}` repeats step" in output
    return bundle


@pytest.mark.slow
def test_replay_equals_numpy(exploded: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    bundle = read_bundle(exploded)
    assert isinstance(bundle, ReplayBundle)
    assert main(["replay", str(exploded), f"output={tmp_path}/out.json"]) == 0
    layers = {one["name"]: one for one in json.loads((tmp_path / "out.json").read_text())["layers"]}
    w = bundle.weights
    with np.errstate(all="ignore"):
        x = bundle.inputs[0].reshape(len(bundle.inputs[0]), -1)
        hidden = x @ w["features.1.weight"].T + w["features.1.bias"]
        active = np.maximum(hidden, 0)
        output = active @ w["output.weight"].T + w["output.bias"]
    for name, values in (("features.1", hidden), ("features.2", active), ("output", output)):
        finite = values[np.isfinite(values)].astype(np.float64)
        found = layers[name]
        assert found["nonfinite"] == 1 - finite.size / values.size
        if finite.size:
            assert found["smallest"] == pytest.approx(finite.min(), rel=1e-5)
            assert found["largest"] == pytest.approx(finite.max(), rel=1e-5)
            assert found["mean"] == pytest.approx(finite.mean(), rel=1e-3)
    first = next(name for name, values in (("features.1", hidden), ("output", output)) if not np.isfinite(values).all())
    assert f"the first layer with a non-finite output is '{first}' (Dense)" in capfd.readouterr().out
    assert not (exploded.parent / "status.json").exists()


@pytest.mark.slow
def test_replay_draws_the_dropout_of_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A step that raises an error is kept, too; its loss is that which the run would have had."""
    train_here(tmp_path / "whole", *SMALL, "model.dropout=0.5")
    row = next(row for row in rows(tmp_path / "whole") if row["step"] == 5)
    real = TrainingStep.__call__

    def fail(self: TrainingStep, batch: Any, lr: float, step: int) -> Any:
        if step == 5:
            raise ZeroDivisionError("in the fifth step")
        return real(self, batch, lr, step)

    monkeypatch.setattr(TrainingStep, "__call__", fail)
    train_here(tmp_path / "run", *SMALL, "model.dropout=0.5", exit_code=1)
    monkeypatch.undo()
    assert main(["replay", str(tmp_path / "run/replay/step-00000005"), f"output={tmp_path}/out.json"]) == 0
    assert "step 5 failed: ZeroDivisionError: in the fifth step" in capfd.readouterr().out
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["loss"] == pytest.approx(row["loss"], rel=1e-6)
    assert found["verdict"] == "outputs, loss and gradients are finite"


@pytest.mark.slow
def test_large_weights_are_named_instead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(replay_bundle, "MAX_WEIGHT_BYTES", 100)
    monkeypatch.setattr(replay_bundle, "MAX_BATCH_BYTES", 64 * 4 * 10)
    train_here(tmp_path / "run", *EXPLODES, exit_code=3)
    (path,) = (tmp_path / "run/replay").iterdir()
    bundle = read_bundle(path)
    assert isinstance(bundle, ReplayBundle)
    assert not bundle.weights and 0 < len(bundle.inputs[0]) < 11
    assert main(["replay", str(path)]) == 0
    out = capfd.readouterr().out
    assert f"the first {len(bundle.inputs[0])} of" in out and "the weights are those of" in out


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("finished") / "run"
    train_here(run_dir, *SMALL, "trainer.max_epochs=2", "checkpoint.keep_last=100", "dataset.batch_size=100")
    return run_dir


def replayed(place: Path, *words: str) -> Dict[str, Any]:
    output = place / "out.json"
    assert main(["replay", str(place), *words, f"output={output}"]) == 0
    return json.loads(output.read_text())  # type: ignore[no-any-return]


@pytest.mark.slow
def test_any_step_of_a_run_is_read_again(finished: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The batch and the loss are those of the run: a step after a checkpoint, in the second epoch of 13 steps."""
    (wanted,) = (row["loss"] for row in rows(finished) if row["step"] == 15 and row["split"] == "train")
    assert replayed(finished, "step=15")["loss"] == pytest.approx(wanted, rel=1e-6)
    out = capfd.readouterr().out
    assert "step 15 of worker 0" in out and "after step 14" in out
    assert refer_to_step(finished, None).step == 26
    killed = finished.parent / "killed"
    killed.mkdir()
    shutil.copy(finished / "metrics.jsonl", killed)
    (killed / "status.json").write_text(json.dumps({"state": "running", "exit_code": None}))
    assert refer_to_step(killed, None).step == 27
    assert main(["replay", str(finished), "stpe=5"]) == 2
    assert "Did you mean 'step'?" in capfd.readouterr().err
    assert main(["replay", str(finished), "step=99"]) == 2
    assert "finished with step 26" in capfd.readouterr().err


@pytest.mark.slow
def test_the_step_that_a_failed_run_wrote_is_found(exploded: Path, capfd: pytest.CaptureFixture[str]) -> None:
    step = int(exploded.name.partition("-")[2])
    for words in ([], [f"step={step}"]):
        assert main(["replay", str(exploded.parent.parent), *words]) == 0
        out = capfd.readouterr().out
        assert f"the run wrote this step to {exploded}" in out and f"step {step} of worker 0" in out
        assert "the first layer with a non-finite output" in out or "non-finite" in out.splitlines()[-1]


@pytest.mark.slow
def test_killed_worker_leaves_a_reference_to_its_share(
    finished: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A supervisor's bundle is repeated with the worker's own samples: both shares have the loss of the batch."""
    run_dir = tmp_path / "run"
    shutil.copytree(finished, run_dir)
    (wanted,) = (row["loss"] for row in rows(run_dir) if row["step"] == 5 and row["split"] == "train")
    losses = []
    for rank in (0, 1):
        failure = ProcessFailure("worker was ended by SIGKILL", f"worker {rank}", -9, 4, worker=rank)
        assert failure.was_killed
        folder = write_reference(run_dir, failure, 2)
        assert folder == run_dir / f"replay/step-00000005{'-worker-1' if rank else ''}"
        found = replayed(folder)
        assert "SIGKILL" in capfd.readouterr().out
        losses.append((found["loss"], found["layers"][0]["shapes"][0][0]))
    count = sum(size for _, size in losses)
    assert sum(loss * size for loss, size in losses) / count == pytest.approx(wanted, rel=1e-5)
    change(folder, lambda facts: facts.update(rank=2))
    assert main(["replay", str(folder)]) == 2
    assert "impossible" in capfd.readouterr().err
    change(folder, lambda facts: facts.update(rank=1, step=1 << 40))
    shutil.rmtree(run_dir / "checkpoints")
    assert main(["replay", str(folder)]) == 2
    assert "there is none. checkpoint.keep_last=N" in capfd.readouterr().err


def test_supervisor_reports_killed_workers_once_and_no_servers(tmp_path: Path) -> None:
    beat = json.dumps({"step": 7, "batches": 9, "waits": False, "generation": 0}).encode() + b"\n"
    begin = f"import os, time; os.write(int(os.environ['MXTRAIN_HEARTBEAT_FD']), {beat!r}); "

    def failures_if_killed(killed: str) -> List[Tuple[Optional[int], int]]:
        def start(attempt: int, stack: ExitStack) -> List[Process]:
            ends = {True: "os.kill(os.getpid(), 9)", False: "time.sleep(60)"}
            return [
                stack.enter_context(closing(LocalProcess(LaunchSpec(name, command, dict(os.environ), log, number))))
                for number, name in ((1, "worker 1"), (0, "server 0"))
                for command in [[sys.executable, "-S", "-c", begin + ends[name == killed]]]
                for log in [tmp_path / name]
            ]

        found: List[ProcessFailure] = []
        cluster = Cluster(workers=1, restarts=0)
        assert Supervisor(cluster, start, list, lambda line: None, when_killed=found.append).run() == 1
        return [(one.worker, one.step) for one in found]

    assert failures_if_killed("worker 1") == [(1, 7)]
    assert failures_if_killed("server 0") == []


def change(path: Path, edit: Callable[[Dict[str, Any]], None]) -> None:
    facts = json.loads((path / "bundle.json").read_text())
    edit(facts)
    (path / "bundle.json").write_text(json.dumps(facts))


def rezip(path: Path, edit: Callable[[str, bytes], bytes], kind: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path / "arrays.npz") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path / "arrays.npz", "w", kind) as archive:
        for name, content in members.items():
            archive.writestr(name, edit(name, content))


def pickled(name: str, content: bytes) -> bytes:
    header = b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }".ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00v\x00" + header + b"cos"


DAMAGE = {
    "no bundle": (lambda path: (path / "bundle.json").unlink(), "there is no bundle.json"),
    "no arrays": (lambda path: (path / "arrays.npz").unlink(), "there is no such file"),
    "json": (lambda path: (path / "bundle.json").write_text("{"), "is not JSON"),
    "form": (lambda path: change(path, lambda facts: facts.update(step="x")), "'step' is a str"),
    "version": (lambda path: change(path, lambda facts: facts.update(version=2)), "of another version"),
    "checkpoint": (lambda path: change(path, lambda facts: facts.update(checkpoint="../..")), "no name of a folder"),
    "shape": (lambda path: change(path, lambda facts: facts["arrays"]["input:0"].update(shape=[1])), "not the array"),
    "missing": (lambda path: change(path, lambda facts: facts["arrays"].pop("input:0")), "not those that"),
    "compressed": (lambda path: rezip(path, lambda name, content: content, zipfile.ZIP_DEFLATED), "is compressed"),
    "pickle": (lambda path: rezip(path, pickled), "not the array"),
    "cut": (lambda path: rezip(path, lambda name, content: content[:-1]), "is cut off"),
    "half": (lambda path: os.truncate(path / "arrays.npz", 500), "cannot be read"),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_bundles_are_refused(exploded: Path, tmp_path: Path, kind: str) -> None:
    for name in ("bundle.json", "arrays.npz"):
        (tmp_path / name).write_bytes((exploded / name).read_bytes())
    read_bundle(tmp_path)
    damage, said = DAMAGE[kind]
    damage(tmp_path)
    with pytest.raises(ConfigError, match=said.replace(".", r"\.")):
        read_bundle(tmp_path)


def test_bundles_of_unknown_origin_run_no_code(
    exploded: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in ("bundle.json", "arrays.npz"):
        (tmp_path / name).write_bytes((exploded / name).read_bytes())
    change(tmp_path, lambda facts: facts["run"]["description"]["model"].update(_target_="evil.Net"))
    assert main(["replay", str(tmp_path)]) == 2
    assert "--trust-code" in capfd.readouterr().err


def test_shared_layers_have_a_line_for_each_use() -> None:
    class Twice(gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            self.dense = gluon.nn.Dense(2, in_units=2, use_bias=False)

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return self.dense(self.dense(x))

    network = Twice()
    network.initialize()
    network.dense.weight.set_data(nd.array([[2, 0], [0, float("inf")]]))
    with autograd.train_mode():
        layers, (output,) = layer_statistics(network, [nd.array([[1.0, 1.0]])])
    assert [one.name for one in layers] == ["dense", "dense"]
    assert (layers[0].smallest, layers[0].largest, layers[0].nonfinite) == (2.0, 2.0, 0.5)
    assert output.shape == (1, 2)
