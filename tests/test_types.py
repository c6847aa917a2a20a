"""The types of the package: checked by mypy, and carried to those who import it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def mypy(*arguments: str, cache: Path) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("mypy", reason="scripts/test installs it")
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(cache), "--no-error-summary", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_type_checker_finds_no_errors(tmp_path: Path) -> None:
    """About 25 s: of all of mxtrain/, with what pyproject.toml says."""
    done = mypy(cache=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_package_says_that_it_has_types(tmp_path: Path) -> None:
    """Whoever imports it gets its types: a wrong one is found in their own code."""
    assert (ROOT / "mxtrain" / "py.typed").is_file()
    (tmp_path / "own.py").write_text("from mxtrain.kvstore.world import World\nworld: World = World('first', 2)\n")
    done = mypy("--config-file=", str(tmp_path / "own.py"), cache=tmp_path)
    assert done.returncode == 1 and 'incompatible type "str"; expected "int"' in done.stdout, done.stdout + done.stderr
