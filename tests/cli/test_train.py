"""Single runs in processes of their own: directories, logs, exit codes. About 25 s."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "own_code"
FAST = ("debug=fast", "model=mlp", "logger=[jsonl,console]")


@pytest.mark.slow
def test_a_run_leaves_its_record(mxtrain) -> None:
    run_dir = "a b,c=d'e"
    quoted = run_dir.replace("'", "\\'")
    done = mxtrain(*FAST, f"hydra.run.dir='{quoted}'", mxnet=True)
    assert (done.returncode, done.stderr) == (0, "")
    folder = mxtrain.folder / run_dir
    assert [path.name for path in mxtrain.folder.iterdir()] == [run_dir]
    assert json.loads((folder / "status.json").read_text())["state"] == "finished"
    assert yaml.safe_load((folder / ".hydra/overrides.yaml").read_text()) == list(FAST)
    assert yaml.safe_load((folder / ".hydra/config.yaml").read_text())["trainer"]["max_epochs"] == 1
    log = (folder / "train.log").read_text()
    assert re.search(r"INFO OMP_NUM_THREADS=", log) and re.search(r"INFO run begins: 5 steps, 5 an epoch", log)
    assert re.search(r"INFO val epoch=1 step=5 loss=", log)
    assert re.search(r"INFO finished \(exit code 0\); step=5 best: metric=val/accuracy", log)
    # One line on the console, all of it in the log and in meta.json.
    assert (
        done.stdout.splitlines()[0].startswith("loading MXNet: 1 thread on ") and "OMP_NUM_THREADS" not in done.stdout
    )
    assert any(
        "OMP_NUM_THREADS=1" in line for line in json.loads((folder / "meta.json").read_text())["runtime_reasons"]
    )
    # The command to go on is one that works when pasted.
    command = done.stdout.partition("# evaluate\n")[2].splitlines()[0]
    again = subprocess.run(
        ["bash", "-c", command],
        cwd=mxtrain.folder,
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(EXAMPLE.parents[1]), "OMP_NUM_THREADS": "1"},
    )
    assert again.returncode == 0 and "accuracy" in again.stdout, command + again.stderr


@pytest.mark.slow
def test_used_up_budget_is_no_error(mxtrain) -> None:
    done = mxtrain(*FAST, "trainer.max_steps=3", "hydra.run.dir=r", mxnet=True)
    assert done.returncode == 75
    assert done.stderr == "stopped: trainer.max_steps=3 reached\n"
    assert json.loads((mxtrain.folder / "r/status.json").read_text())["exit_code"] == 75


@pytest.mark.slow
def test_another_description_in_the_same_directory_is_refused_in_indented_lines(mxtrain) -> None:
    assert mxtrain(*FAST, "hydra.run.dir=r", mxnet=True).returncode == 0
    before = {path: path.stat().st_mtime_ns for path in (mxtrain.folder / "r").rglob("[!.]*")}
    done = mxtrain(*FAST, "hydra.run.dir=r", "optimizer.lr=0.5")
    assert done.returncode == 2 and "optimizer.lr: was 0.001, now 0.5" in done.stderr
    assert done.stderr.count("error: ") == 1
    assert all(line.startswith("       ") for line in done.stderr.splitlines()[1:])
    assert {path: path.stat().st_mtime_ns for path in before} == before


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["dataset=image_folder"], ["parallel.devices=gpu:1"]])
def test_refused_run_writes_no_files(mxtrain, arguments: list) -> None:
    done = mxtrain(*arguments, mxnet=True)
    assert done.returncode == 2 and "error: " in done.stderr and "Traceback" not in done.stderr
    assert list(mxtrain.folder.iterdir()) == []


@pytest.mark.slow
def test_a_crash_in_the_users_code_is_shown_and_recorded(mxtrain) -> None:
    (mxtrain.folder / "broken.py").write_text(
        "from mxtrain.types import Callback\n"
        "class Broken(Callback):\n"
        "    def on_steps(self, rows, progress):\n"
        "        raise RuntimeError('no such luck')\n"
    )
    done = mxtrain("+callback.mine._target_=broken.Broken", "debug=fast", "model=mlp", "hydra.run.dir=r", mxnet=True)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: RuntimeError: no such luck")
    assert 'broken.py", line 4' in done.stderr
    status = json.loads((mxtrain.folder / "r/status.json").read_text(encoding="utf-8"))
    assert (status["state"], status["exit_code"]) == ("failed", 1) and "no such luck" in status["cause"]


@pytest.mark.slow
def test_the_example_of_own_code_runs(mxtrain) -> None:
    for name in ("shapes.py", "conf"):
        source = EXAMPLE / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, mxtrain.folder / name)
    done = mxtrain("--config-dir", "conf", "experiment=shapes", "trainer.max_epochs=3", "hydra.run.dir=r", mxnet=True)
    assert (done.returncode, done.stderr) == (0, "")
    diary = json.loads((mxtrain.folder / "r/diary.jsonl").read_text())
    assert diary["state"] == "finished" and diary["best"]["value"] > 0.8
    evaluate = done.stdout.partition("# evaluate\n")[2].splitlines()[0]
    assert re.search(r" -m mxtrain eval r --config-dir \S*conf$", evaluate)


@pytest.mark.zoo
def test_out_of_memory_names_the_batch_size_and_remedies(mxtrain) -> None:
    """Four GiB for all, of which one step of this batch would take more."""
    done = mxtrain(
        "model=resnet",
        "dataset=synthetic",
        "dataset.num_samples=8192",
        "dataset.batch_size=4096",
        "dataset.shape=[3,64,64]",
        "trainer.max_steps=2",
        "hydra.run.dir=r",
        mxnet=True,
        memory_gib=4,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: out of memory (") and "Traceback" not in done.stderr
    assert "dataset.batch_size=4096 in trainer.grad_accumulation=1 parts: trainer.grad_accumulation=2" in done.stderr
    cause = json.loads((mxtrain.folder / "r/status.json").read_text())["cause"]
    assert done.stderr.startswith(f"error: {cause}")
