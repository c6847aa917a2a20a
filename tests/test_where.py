"""docs/internals/where.md: its files are written into a copy of the package, and each extension is used."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Dict

import numpy as np
import pytest
from boxed_files import draw

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "internals" / "where.md"
BLOCK = re.compile(r"^```\w+\n# ([\w/]+\.(?:yaml|py))\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FAST = ("model=mlp", "model.hidden=[4]", "trainer.max_epochs=1", "trainer.limit_train_batches=3", "hydra.run.dir=run")
DIGITS = (*FAST, "dataset.batch_size=16", "trainer.limit_val_batches=1", "trainer.limit_test_batches=1")
EXTENSIONS = ("Logger", "Dataset format", "Format of boxes", "Metric", "Task in a field", "Command", "Gradient store")


def files_of(extension: str) -> Dict[str, str]:
    """Returns path -> content of the files in a section of the page."""
    section = PAGE.read_text(encoding="utf-8").split(f"\n## {extension}\n")[1].split("\n## ")[0]
    return dict(BLOCK.findall(section))


class Copy:
    """A copy of the package with the files of one extension."""

    def __init__(self, folder: Path, files: Dict[str, str]) -> None:
        ignored = shutil.ignore_patterns("__pycache__", "*.so")
        for name in ("mxtrain", "conf"):
            shutil.copytree(ROOT / name, folder / "source" / name, ignore=ignored)
        for name, text in files.items():
            path = folder / "source" / name
            assert not path.exists() and path.parent.is_dir(), f"{name} must be a new file in an existing folder"
            path.write_text(text, encoding="utf-8")
        self.folder = folder / "work"
        self.folder.mkdir()
        self.environment = {**os.environ, "PYTHONPATH": str(folder / "source"), "PYTHONDONTWRITEBYTECODE": "1"}

    def python(self, *arguments: str, code: int = 0) -> str:
        """Runs Python with the copy; returns what it printed, with errors if another exit code is expected."""
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + (done.stderr if code else "")

    def run(self, *words: str) -> str:
        """Runs the command line of the copy."""
        return self.python("-m", "mxtrain", *words)

    def fail(self, *words: str, code: int = 2) -> str:
        """Returns what a command prints that ends with another exit code than 0."""
        return self.python("-m", "mxtrain", *words, code=code)


def copy_with(folder: Path, extension: str) -> Copy:
    files = files_of(extension)
    assert len(files) == 2
    return Copy(folder, files)


def test_the_table_counts_the_files() -> None:
    rows = re.findall(r"^\| \[([^\]]+)\]\(#[\w-]+\) \| (\d|[a-z][^|]+?) \|", PAGE.read_text("utf-8"), re.MULTILINE)
    counts = {name.capitalize(): count for name, count in rows}
    assert counts.pop("Field as a plug-in").startswith("a package of its own")
    assert counts == {name: str(len(files_of(name))) for name in EXTENSIONS} == dict.fromkeys(EXTENSIONS, "2")


@pytest.mark.slow
def test_a_logger(tmp_path: Path) -> None:
    copy = copy_with(tmp_path, "Logger")
    copy.run(*DIGITS, "logger=[lines]", "trainer.log_interval=1")
    assert len((copy.folder / "run" / "lines.txt").read_text().splitlines()) >= 3


@pytest.mark.slow
def test_a_dataset_format(tmp_path: Path) -> None:
    copy = copy_with(tmp_path, "Dataset format")
    images = np.zeros((60, 1, 4, 4), np.uint8)
    images[::2] = 255
    np.savez(copy.folder / "images.npz", images=images, labels=np.arange(60) % 2)
    assert "val/accuracy" in copy.run(*FAST, "dataset=npz", "dataset.path=images.npz")
    assert "npz" in copy.run("--help")


@pytest.mark.slow
def test_a_format_of_boxes(tmp_path: Path) -> None:
    copy = copy_with(tmp_path, "Format of boxes")
    lines = ["image,class,left,top,right,bottom"]
    for name in "abcdefghij":
        draw(copy.folder / "data" / f"{name}.png", (64, 48), [("x", 10, 10, 40, 40)], seed=ord(name))
        lines.append(f"{name}.png,cat,10,10,40,40")
    (copy.folder / "data" / "train.csv").write_text("\n".join(lines))
    words = ("task=detection", "dataset=csv_boxes", "dataset.root=data")
    assert "train 8, val 2 samples" in copy.run("data", "check", *words, "dataset.val_fraction=0.2")
    copy.run(*words, "dataset.image_size=32", "trainer.max_epochs=1", "dataset.val_fraction=0.2", "hydra.run.dir=run")
    assert json.loads((copy.folder / "run" / "status.json").read_text())["state"] == "finished"


@pytest.mark.slow
def test_a_metric(tmp_path: Path) -> None:
    copy = copy_with(tmp_path, "Metric")
    assert "val/bias" in copy.run("task=regression", "metric=bias", "trainer.monitor=val/bias", *FAST)


@pytest.mark.slow
def test_a_task(tmp_path: Path) -> None:
    copy = copy_with(tmp_path, "Task in a field")
    assert "val/mean_absolute_error" in copy.run("task=brightness", *DIGITS)
    assert '"brightness": ' in copy.run("predict", "run", "sample=1")
    assert "Accuracy is for classification" in copy.fail("task=brightness", "metric=accuracy")
    assert "SoftmaxCrossEntropy is for classification" in copy.fail("task=brightness", "loss=softmax_cross_entropy")


@pytest.mark.slow
def test_a_command(tmp_path: Path) -> None:
    copy = copy_with(tmp_path, "Command")
    (copy.folder / "a").mkdir()
    (copy.folder / "a" / "status.json").write_text(json.dumps({"state": "failed"}))
    assert copy.run("count_runs").strip() == "0" and copy.run("count_runs", "a", "state=failed").strip() == "1"
    assert re.search(r"^  count_runs \[FOLDER\] +the number of runs below a folder$", copy.run("--help"), re.MULTILINE)
    assert "count_runs: there is no place for 'b'. Type `count_runs [FOLDER]`." in copy.fail("count_runs", "a", "b")
    assert "state=finished  State of the runs" in copy.run("count_runs", "--help")
    assert copy.python("-c", "import mxtrain; print(mxtrain.count_runs('a', state='failed').num_runs)").strip() == "1"


@pytest.mark.slow
def test_a_store(tmp_path: Path) -> None:
    copy = copy_with(tmp_path, "Gradient store")
    assert "finished" in copy.run(*DIGITS, "kvstore=halves", "parallel=data", "parallel.devices=cpu:2")
    words = ("model=mlp", "model.hidden=[4]", "kvstore=halves", "parallel=data", "parallel.devices=cpu:2")
    assert "the same as on one device" in copy.fail("verify", *words, "tolerance=0.01", code=1)  # not in every bit
