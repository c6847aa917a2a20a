"""Compiling our own operators, or saying why not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from mxtrain.engine import native

ROOT = Path(__file__).parents[3]
MADE = native.library()
needs_compiler = pytest.mark.skipif(MADE.path is None, reason=MADE.why)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "mxtrain"


def fake_compiler(folder: Path, body: str) -> str:
    script = folder / "g++"
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o755)
    return str(folder)


@pytest.fixture
def quick(tmp_path, monkeypatch):
    """A compiler that copies what the real one has made of the same sources; its calls that link a library."""
    calls, folder = tmp_path / "calls", tmp_path / "bin"
    folder.mkdir()
    body = f'echo "$*" >> {calls}\ncase "$*" in *-dM*) exec {shutil.which("g++")} "$@";; esac\n'
    body += f'while [ "$1" != -o ]; do shift; done; exec cp {MADE.path} "$2"'
    monkeypatch.setenv("PATH", fake_compiler(folder, body), prepend=":")
    return lambda: [line for line in calls.read_text().splitlines() if "-ldl" in line]


@needs_compiler
def test_library_is_compiled_once(cache, quick):
    """By the real compiler: above, from the same sources, where MADE was not in the user's cache."""
    first = native.library()
    made = first.path.stat().st_mtime_ns
    assert native.library() == first and first.path.stat().st_mtime_ns == made
    assert first.path.parent == cache and os.listdir(cache) == [first.path.name]
    assert len(quick()) == 1 and first.path.name == MADE.path.name


@needs_compiler
def test_two_processes_may_compile_at_once(cache, quick):
    code = "from mxtrain.engine import native; print(native.library().path)"
    both = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT) for _ in range(2)
    ]
    paths = {process.communicate()[0].strip() for process in both}
    assert paths == {str(cache / name) for name in os.listdir(cache)} and len(paths) == 1
    assert 1 <= len(quick()) <= 2


@needs_compiler
def test_a_compiler_may_have_arguments(monkeypatch, quick):
    monkeypatch.setenv("CXX", "env g++ -DANYTHING")
    assert native.library().path is not None
    assert [call.split()[0] for call in quick()] == ["-DANYTHING"]


@pytest.mark.parametrize(
    "name, value, why",
    [
        ("MXTRAIN_OPERATORS", "off", "they are switched off"),
        ("PATH", "/nowhere", "no C++ compiler was found"),
        ("CXX", 'g++ "', "No closing quotation"),
        ("CXX", "no-such-compiler", "there is no no-such-compiler, which CXX names"),
    ],
)
def test_missing_compiler_gives_a_reason(monkeypatch, name, value, why):
    monkeypatch.setenv(name, value)
    found = native.library()
    assert found.path is None and why in found.why


def test_a_compiler_that_fails_is_quoted(tmp_path, monkeypatch, cache):
    body = 'case "$*" in *-dM*) echo "#define X";; *) echo "fatal: no headers" >&2; exit 1;; esac'
    monkeypatch.setenv("PATH", fake_compiler(tmp_path, body), prepend=":")
    assert native.library() == (None, "they could not be compiled: fatal: no headers")
    assert os.listdir(cache) == []


@needs_compiler
def test_a_cache_that_cannot_be_written_is_a_reason(tmp_path):
    (tmp_path / "cache").write_text("a file")
    found = native.library()
    assert found.path is None and "Not a directory" in found.why


@needs_compiler
@pytest.mark.parametrize("content", [b"", b"nonsense", pytest.param(None, marks=pytest.mark.slow)])
def test_a_damaged_library_is_made_again(cache, quick, content):
    """A full disk or another program may damage a cached library, and loading half of one ends the process."""
    path = native.library().path
    whole = path.read_bytes()
    damaged = whole[: len(whole) // 2] if content is None else content
    path.write_bytes(damaged)
    assert native.library().path.read_bytes() == whole and len(quick()) == 2
    if content is not None:
        return
    path.write_bytes(damaged)
    code = "from mxtrain.engine.backend import native_operators; print(native_operators().path)"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == str(path) and path.read_bytes() == whole


@needs_compiler
def test_leftovers_of_a_killed_compilation_are_removed(cache, quick):
    """At the next one, a few seconds later, but not what another process works in."""
    left, at_work, new, old = (cache / f"compiling-{name}" for name in ("left", "at-work", "new", "old"))
    for folder in (left, at_work, new, old):
        folder.mkdir(parents=True)
    for folder, age_s in ((left, 10), (at_work, 10), (old, 86400)):
        os.utime(folder, (time.time() - age_s,) * 2)
    with native._lock(at_work) as is_ours:
        assert is_ours and native.library().path.parent == cache and len(quick()) == 1
        assert sorted(cache.glob("compiling-*")) == [at_work, new]


@needs_compiler
def test_a_compilation_holds_the_lock_of_its_folder(cache, tmp_path, monkeypatch, quick):
    seen = []
    run = native._run

    def look(*command: str) -> str:
        seen.extend(folder for folder in cache.glob("compiling-*") if not stack.enter_context(native._lock(folder)))
        return run(*command)

    monkeypatch.setattr(native, "_run", look)
    with ExitStack() as stack:
        assert native.library().path is not None
    assert len(set(seen)) == 1 and not seen[0].exists()
