"""The types of the package: checked by mypy, and carried to those who import it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def mypy(*arguments: str, cache: Path) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("mypy", reason="scripts/test installs it")
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(cache), "--no-error-summary", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_type_checker_finds_errors_of_importing_code_only(tmp_path: Path) -> None:
    """With what pyproject.toml says. mypy reads what the file imports of mxtrain/; scripts/lint checks all of it."""
    assert (ROOT / "mxtrain" / "py.typed").is_file()
    own = tmp_path / "own.py"
    own.write_text(
        "from mxtrain.kvstore.world import World\nfrom mxtrain.types import Batch\n"
        "world: World = World('first', 2)\nbatch = Batch((1,), (), 1)\n"
    )
    done = mypy(str(own), cache=tmp_path)
    lines = done.stdout.splitlines()
    assert done.returncode == 1 and len(lines) == 2, done.stdout + done.stderr
    assert f"{own}:3:" in lines[0] and 'incompatible type "str"; expected "int"' in lines[0]
    # The classes of MXNet that stand in annotations are named in tests/stubs/: an array is no `Any`.
    assert f"{own}:4:" in lines[1] and 'incompatible type "tuple[int]"; expected "tuple[NDArray, ...]"' in lines[1]
