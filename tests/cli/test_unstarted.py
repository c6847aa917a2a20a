"""A run that could not start leaves nothing behind, and nothing of anybody else's is touched."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mxtrain.checkpoint import lock_run_directory
from mxtrain.cluster.launch.run_dir_rollback import RunDirRollback


def files(folder: Path) -> list:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def write_start(run_dir: Path, subdir: str = ".hydra") -> None:
    (run_dir / subdir).mkdir(parents=True)
    (run_dir / subdir / "config.yaml").write_text("new")
    for name in ("train.log", "status.json", "metrics.jsonl"):
        (run_dir / name).write_text("new")


def test_new_run_directory_is_removed_with_new_parents(tmp_path: Path) -> None:
    before = RunDirRollback(tmp_path / "a/b/run", "of_hydra")
    write_start(tmp_path / "a/b/run", "of_hydra")
    (tmp_path / "a/other").mkdir()
    before.restore()
    assert files(tmp_path) == ["a", "a/other"]


def test_run_directory_with_a_checkpoint_is_kept(tmp_path: Path) -> None:
    before = RunDirRollback(tmp_path / "run")
    write_start(tmp_path / "run")
    (tmp_path / "run/checkpoints/step-00000001").mkdir(parents=True)
    before.restore()
    assert (tmp_path / "run/metrics.jsonl").exists()


def test_only_new_own_files_are_removed_from_an_existing_folder(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    (tmp_path / "status.json").write_text("earlier")
    before = RunDirRollback(tmp_path)
    (tmp_path / ".hydra").mkdir()
    (tmp_path / "train.log").write_text("new")
    (tmp_path / "someone.txt").write_text("meanwhile")
    before.restore()
    assert files(tmp_path) == ["mine.txt", "someone.txt", "status.json"]


def test_status_of_an_earlier_run_is_restored(tmp_path: Path) -> None:
    (tmp_path / ".hydra").mkdir()
    (tmp_path / ".hydra/config.yaml").write_text("earlier")
    before = RunDirRollback(tmp_path)
    (tmp_path / ".hydra/config.yaml").write_text("new")
    before.restore()
    assert (tmp_path / ".hydra/config.yaml").read_text() == "earlier"


def test_run_started_by_another_process_is_kept(tmp_path: Path) -> None:
    (tmp_path / "old/.hydra").mkdir(parents=True)
    (tmp_path / "old/.hydra/config.yaml").write_text("earlier")
    befores = [RunDirRollback(tmp_path / name) for name in ("new", "old")]
    with lock_run_directory(tmp_path / "new"), lock_run_directory(tmp_path / "old"):
        write_start(tmp_path / "new", "of_hydra")
        (tmp_path / "old/.hydra/config.yaml").write_text("the other's")
        for before in befores:
            before.restore()
        assert (tmp_path / "new/metrics.jsonl").exists()
        assert (tmp_path / "old/.hydra/config.yaml").read_text() == "the other's"


@pytest.mark.slow
@pytest.mark.parametrize(
    "forbidden, argument",
    [
        ("closed", "hydra.run.dir=closed/in/run"),
        ("closed", "hydra.run.dir=closed"),
        ("closed/in/.hydra/config.yaml", "hydra.run.dir=closed/in"),
        ("closed", "--config-dir=closed/in"),
    ],
)
def test_folders_without_permission_are_named(tmp_path: Path, forbidden: str, argument: str) -> None:
    command = [sys.executable, "-m", "mxtrain", argument]
    if os.geteuid() == 0:  # to whom nothing is forbidden
        setpriv = shutil.which("setpriv") or pytest.skip("needs setpriv, to give up root's permissions")
        command = [setpriv, "--bounding-set=-dac_override,-dac_read_search", *command]
    (tmp_path / "closed/in/.hydra").mkdir(parents=True)
    (tmp_path / "closed/in/.hydra/config.yaml").write_text("earlier")
    before = files(tmp_path)
    (tmp_path / forbidden).chmod(0)
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    (tmp_path / forbidden).chmod(0o700)
    assert done.returncode == 2 and done.stderr.startswith("error: ") and "cannot be read" in done.stderr, done.stderr
    assert "closed" in done.stderr and files(tmp_path) == before
