"""Exported folders read files as `mxtrain predict` does, without MXNet and mxtrain."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List

import pytest
from test_export_contract import CASES, export, folder  # noqa: F401  # fixtures

import mxtrain

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_cache")]


def predicted(exported: Path, *files: Path) -> List[Dict[str, Any]]:
    """The rows of predict.py in a process that can import neither MXNet nor mxtrain."""
    blocked = "import sys, runpy; sys.modules.update(mxnet=None, mxtrain=None, scipy=None); sys.argv[:] = sys.argv[1:]; "
    done = subprocess.run(
        [sys.executable, "-c", f"{blocked}sys.path[0] = {str(exported)!r}; "
         "runpy.run_path(sys.argv[0], run_name='__main__')", str(exported / "predict.py"), *map(str, files)],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def require_equal(found: Any, expected: Any) -> None:
    """The same JSON, but for the last digits of numbers."""
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name in expected:
            require_equal(found[name], expected[name])
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for pair in zip(found, expected):
            require_equal(*pair)
    else:
        assert found == (pytest.approx(expected, abs=2e-4) if isinstance(expected, float) else expected)


TEXTS = {
    "bert": "w1 w2 w3\nw4 w19 w2 w2 w7 w1 w3 w5 w7 w9 w11 w13 w15\n", "lstm": "one two three\nseven\n",
    "gpt": "one two three\nseven eight\n", "transformer": "one w1 w2\n\none w7\n", "gnmt": "one w1 w2\none w7 w8\n",
    "bert, tags": "w1 w2 w3\nw4 w5 w6 w7\n",
}  # fmt: skip


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name == "gpt" else pytest.mark.zoo) for name in TEXTS])
def test_texts_are_predicted_as_by_the_run(export: Callable[..., Path], name: str, tmp_path: Path) -> None:  # noqa: F811
    exported = export(*CASES[name])
    file = tmp_path / "given.txt"
    file.write_text(TEXTS[name])
    expected = mxtrain.load(exported.parent).predict(file)
    require_equal(predicted(exported, file), [dict(row) for row in expected])
