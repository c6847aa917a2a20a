"""Libraries under NVIDIA's names, made here, in folders as the wheels have them, and one that needs them all."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mxtrain.runtime.cuda_libraries import BUILDS, LIBRARIES

ROOT = Path(__file__).parents[2]
OPEN = "import ctypes, sys; from mxtrain.runtime import cuda_libraries; {}; print(ctypes.CDLL(sys.argv[1]).answer())"
pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc makes the libraries")


@pytest.fixture(scope="module")
def needs_all(tmp_path_factory) -> Path:
    """A library that needs each of LIBRARIES by name; they lie in nvidia/ beside it."""
    folder = tmp_path_factory.mktemp("site")
    source = folder / "one.c"
    source.write_text("int answer(void) { return 42; }\n")
    made = []
    for place, name in LIBRARIES:
        path = folder / "nvidia" / place / "lib" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        _compile(source, path, f"-Wl,-soname,{name}")
        made.append(str(path))
    whole = folder / "libneeds.so"
    _compile(source, whole, "-Wl,--no-as-needed", *made)
    return whole


def _compile(source: Path, path: Path, *options: str) -> None:
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(path), str(source), *options], check=True)


def _installed(folder: Path, package: str) -> None:
    for record in folder.glob("*.dist-info"):
        shutil.rmtree(record)
    record = folder / f"{package.replace('-', '_')}-1.9.1.dist-info"
    record.mkdir()
    (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.9.1\n")


def _run(library: Path, code: str) -> subprocess.CompletedProcess:
    paths = f"{ROOT}:{library.parent}"
    command = [sys.executable, "-c", OPEN.format(code), str(library)]
    return subprocess.run(command, env={"PYTHONPATH": paths}, capture_output=True, text=True, timeout=60)


@pytest.mark.slow
def test_a_library_finds_all_that_it_needs_without_a_path(needs_all: Path) -> None:
    _installed(needs_all.parent, BUILDS[-1])
    alone = _run(needs_all, "0")
    assert alone.returncode != 0 and LIBRARIES[0].name in alone.stderr
    done = _run(needs_all, "assert len(cuda_libraries.load()) == len(cuda_libraries.LIBRARIES)")
    assert done.stdout == "42\n", done.stderr


@pytest.mark.parametrize("package", ["mxnet", "mxnet-cu110"])
def test_other_builds_get_none(needs_all: Path, package: str) -> None:
    """The CPU's needs none, and that of CUDA 11.0 needs others."""
    _installed(needs_all.parent, package)
    assert "42" not in _run(needs_all, "assert cuda_libraries.load() == ()").stdout


def test_missing_library_is_named_by_the_loader(needs_all: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(needs_all.parent, tmp_path / "site")
    _installed(copy, BUILDS[0])
    (copy / "nvidia/cudnn/lib/libcudnn.so.8").unlink()
    done = _run(copy / needs_all.name, f"assert len(cuda_libraries.load()) == {len(LIBRARIES) - 1}")
    assert "libcudnn.so.8: cannot open" in done.stderr
