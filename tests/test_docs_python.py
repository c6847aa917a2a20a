"""The Python blocks of the guides run, one after the other on each page."""

import ast
import doctest
import os
import re
import subprocess
import sys

import pytest
from running import ROOT

pytestmark = pytest.mark.slow
PAGES = ("docs/start/python.md", "docs/extending/custom-loops.md")
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES)
def test_python_blocks_of_a_page_run(page, tmp_path):
    blocks = BLOCK.findall((ROOT / page).read_text("utf-8"))
    assert len(blocks) >= 3
    file = tmp_path / "page.py"
    file.write_text("\n".join(blocks), encoding="utf-8")
    environment = {**os.environ, "MPLBACKEND": "Agg", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, str(file)], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


BEFORE = """
import mxnet, numpy, PIL.Image
mxnet.nd.waitall()
net = mxnet.gluon.nn.Dense(10)
x, y = numpy.random.RandomState(0).rand(200, 64).astype("float32"), numpy.arange(200) % 10
for name in ("digit.png", "a.png", "b.png"):
    PIL.Image.fromarray(numpy.full((8, 8), 99, dtype="uint8")).save(name)
"""
EXAMPLES = ("mxtrain/api.py", "mxtrain/custom_loop.py", "mxtrain/cli/lr_find.py")
OF_TEXTS = "A film"  # an example for another run than the one that stands before it


def test_examples_of_docstrings_run(tmp_path):
    """In their order in the files, as one session; with the values that are given."""
    lines = ["import mxtrain", BEFORE]
    for path in EXAMPLES:
        nodes = ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8")))
        documented = [node for node in nodes if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))]
        for node in sorted(documented, key=lambda node: getattr(node, "lineno", 0)):
            for example in doctest.DocTestParser().get_examples(ast.get_docstring(node) or ""):
                if OF_TEXTS not in example.source:
                    lines.append(example.source)
                if example.want:
                    lines.append(f"assert repr({example.source.strip()}) == {example.want.strip()!r}")
    assert len(lines) > 20
    file = tmp_path / "examples.py"
    file.write_text("\n".join(lines), encoding="utf-8")
    environment = {**os.environ, "MPLBACKEND": "Agg", "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, str(file)], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
