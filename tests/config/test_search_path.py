"""A folder of somebody's holds modules with the names of ours, of the standard library's and of optional ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mxtrain.config import search_path
from mxtrain.config.search_path import admit_current_folder, leave_out_current_folder, module_command
from mxtrain.config.specs import import_target

ROOT = Path(__file__).resolve().parents[2]
SHADOWS = ("horovod", "gluoncv", "typing", "random", "json", "runpy", "hydra_plugins/hydra_own", "mxtrain")


@pytest.fixture
def hostile(tmp_path, monkeypatch):
    """The current folder, where every import leaves a mark and ends the process."""
    for name in SHADOWS:
        path = tmp_path / name
        path.mkdir(parents=True)
        code = f"open({str(tmp_path / 'executed')!r}, 'a').write({name!r})\nraise SystemExit(77)\n"
        for file in ("__init__.py", "__main__.py"):
            (path / file).write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return tmp_path


def test_started_processes_import_no_code_of_the_current_folder(hostile):
    done = subprocess.run([*module_command("mxtrain"), "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout[:8]) == (0, "mxtrain "), done.stderr
    assert not (hostile / "executed").exists()


@pytest.mark.slow
def test_doctor_imports_no_code_of_the_current_folder(hostile):
    """The probe imports MXNet, GluonCV and Horovod, and runs to its end or says what this machine lacks."""
    from mxtrain.runtime.probing import run_probe

    found = run_probe(120)
    assert "mxnet" in found.found and "77" not in found.cause
    assert not (hostile / "executed").exists()


@pytest.mark.slow
def test_python_m_takes_no_libraries_from_the_current_folder(hostile):
    # `python -m` itself takes these from here, before a line of ours runs.
    for name in ("mxtrain", "runpy", "typing"):
        subprocess.run(["rm", "-r", str(hostile / name)], check=True)
    done = subprocess.run(
        [sys.executable, "-m", "mxtrain", "explain", "optimizer.lr"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    assert not (hostile / "executed").exists()


def test_a_checkout_that_is_the_current_folder_still_starts(tmp_path):
    (tmp_path / "mxtrain").mkdir()
    (tmp_path / "mxtrain" / "__init__.py").touch()
    (tmp_path / "mxtrain" / "__main__.py").write_text("import sys; print(sys.argv[1:], __name__)\n")
    command = [sys.executable, "-S", *module_command("mxtrain")[1:], "a b"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env={"PATH": "/usr/bin"})
    assert done.stdout == "['a b'] __main__\n", done.stderr


def test_a_class_of_the_users_is_found_in_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", os.getcwd())])
    monkeypatch.chdir(tmp_path)
    Path("my_own_part.py").write_text("import my_own_other\nclass Net:\n    pass\n")
    Path("my_own_other.py").touch()
    assert import_target("my_own_part.Net", "model").__name__ == "Net"
    assert sys.path[0] == str(tmp_path)


def test_current_folder_is_last_on_the_path_for_installed_classes(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", ["/usr/lib/somewhere"])
    monkeypatch.chdir(tmp_path)
    admit_current_folder("installed.module")
    admit_current_folder("installed.module")
    assert sys.path == ["/usr/lib/somewhere", str(tmp_path)]


@pytest.mark.parametrize("first, left", [("", []), ("here", []), ("/elsewhere", ["/elsewhere"])])
def test_current_folder_is_removed_from_the_search_path(tmp_path, monkeypatch, first, left):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path) if first == "here" else first, "/usr/lib/somewhere"])
    leave_out_current_folder()
    assert sys.path == [*left, "/usr/lib/somewhere"]


def test_a_checkout_stays_on_the_path(monkeypatch):
    monkeypatch.chdir(Path(search_path.__file__).parents[2])
    monkeypatch.setattr(sys, "path", [os.getcwd()])
    leave_out_current_folder()
    assert sys.path == [os.getcwd()]


def test_a_current_folder_that_was_removed_is_left_out(tmp_path, monkeypatch):
    before = tmp_path / "before"
    before.mkdir()
    monkeypatch.chdir(before)
    before.rmdir()
    monkeypatch.setattr(sys, "path", ["", "/elsewhere"])
    leave_out_current_folder()
    admit_current_folder()
    assert sys.path == ["/elsewhere"]


def test_our_own_classes_do_not_put_the_current_folder_on_the_path(tmp_path, monkeypatch):
    """Only a class of the user's may lie there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    before = list(sys.path)
    import_target("mxtrain.metric.metrics.Accuracy", "metric.accuracy")
    assert sys.path == before
    import_target("json.JSONDecoder", "model")
    assert sys.path == [*before, str(tmp_path)]
