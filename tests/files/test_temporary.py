"""Without a writable folder for temporary files, one sentence says what to set."""

from __future__ import annotations

import ast
import errno
import re
import tempfile
from pathlib import Path

import pytest

from mxtrain.cli import main
from mxtrain.cluster import launch_spec
from mxtrain.errors import ConfigError
from mxtrain.files.temporary import temporary_root

PACKAGE = Path(__file__).parents[2] / "mxtrain"


@pytest.fixture
def nothing_is_writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # pytest has its folder then
    def refuse() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp', '/var/tmp', '/app']")

    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_get_default_tempdir", refuse)


def test_read_only_root_names_tmpdir(nothing_is_writable: None) -> None:
    said = "there is no folder for temporary files: /tmp, /var/tmp, /app cannot be written. Set TMPDIR to a writable"
    with pytest.raises(ConfigError, match=f"^{re.escape(said)} folder.$"):
        temporary_root()


def test_folders_that_are_usually_tried_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> str:
        raise FileNotFoundError("none")

    monkeypatch.setattr(tempfile, "gettempdir", refuse)
    with pytest.raises(ConfigError, match="^there is no folder for temporary files: /tmp, /var/tmp cannot be written."):
        temporary_root()


@pytest.mark.slow
def test_two_workers_are_refused_without_output(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launch_spec, "SOCKETS", Path("/nowhere"))
    run_dir = tmp_path / "outputs" / "run"
    assert main(["model=mlp", "kvstore=dist_sync", "cluster.workers=2", f"hydra.run.dir={run_dir}"]) == 2
    assert "/nowhere cannot be written, and MXNet's parameter server" in capsys.readouterr().err
    assert not (tmp_path / "outputs").exists()


def test_temporary_folder_is_the_system_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert temporary_root() == str(tmp_path)


@pytest.mark.slow
def test_all_modules_use_the_common_temporary_folder() -> None:
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            is_call = isinstance(node, ast.Call) and ast.unparse(node.func).startswith("tempfile.")
            if is_call and "dir" not in [keyword.arg for keyword in node.keywords]:
                found.add(str(path.relative_to(PACKAGE)))
    # The reader of videos stands in exported folders, too, where mxtrain is not installed.
    assert found == {"files/temporary.py", "vision/video/exported_videos.py"}
