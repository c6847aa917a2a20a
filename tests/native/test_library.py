"""Compiling our own operators, or saying why not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mxtrain import native

needs_compiler = pytest.mark.skipif(native.library().path is None, reason=native.library().why)


def environment(tmp_path, **more):
    return {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache"), **more}


def fake_compiler(folder: Path, body: str) -> str:
    script = folder / "g++"
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o755)
    return str(folder)


@needs_compiler
def test_it_is_compiled_once(tmp_path):
    first = native.library(environment(tmp_path))
    made = first.path.stat().st_mtime_ns
    assert native.library(environment(tmp_path)) == first and first.path.stat().st_mtime_ns == made
    assert first.path.parent == tmp_path / "cache" / "mxtrain" and os.listdir(first.path.parent) == [first.path.name]


@pytest.mark.parametrize(
    "more, why",
    [
        ({"MXTRAIN_OPERATORS": "off"}, "switched off"),
        ({"PATH": "/nowhere"}, "no C++ compiler was found"),
        ({"CXX": "no-such-compiler"}, "no C++ compiler was found"),
    ],
)
def test_without_a_compiler_there_is_a_reason(tmp_path, more, why):
    found = native.library(environment(tmp_path, **more))
    assert found.path is None and why in found.why


def test_a_compiler_that_fails_is_quoted(tmp_path):
    body = 'case "$*" in *-dM*) echo "#define X";; *) echo "fatal: no headers" >&2; exit 1;; esac'
    path = fake_compiler(tmp_path, body)
    found = native.library(environment(tmp_path, PATH=f"{path}:{os.environ['PATH']}"))
    assert found == (None, "they could not be compiled: fatal: no headers")
    assert os.listdir(tmp_path / "cache" / "mxtrain") == []


def test_a_cache_that_cannot_be_written_is_a_reason(tmp_path):
    (tmp_path / "cache").write_text("a file")
    found = native.library(environment(tmp_path))
    assert found.path is None and ("cache" in found.why or "no C++ compiler" in found.why)


def test_a_damaged_library_is_a_reason_not_a_crash(tmp_path):
    """What another program wrote into the cache."""
    if native.library().path is None:
        pytest.skip(native.library().why)
    environ = {**os.environ, **environment(tmp_path)}
    native.library(environ).path.write_bytes(b"nonsense")
    code = "from mxtrain.backend import OPERATORS; print(OPERATORS.path, OPERATORS.why)"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], env=environ, capture_output=True, text=True)
    assert done.returncode == 0 and "MXNet cannot load them" in done.stdout
