"""The rules of `scripts/lint`."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from lint_parts.rules import check_call, check_package


@pytest.mark.parametrize(
    "line",
    [
        "open(p)",
        "os.open(p, 0)",
        "Path(p).read_text()",
        "p.read_bytes()",
        "p.open('rb')",
        "np.load(p)",
        "OmegaConf.load(p)",
        "Image.open(p)",
        "text.splitlines()",
    ],
)
def test_call_breaks_a_rule(line: str) -> None:
    assert len(list(check_call(ast.parse(line, mode="eval").body))) == 1  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "line",
    [
        "read_bytes(p)",
        "read_regular(p)",
        "dataset.open()",
        "self.open(3)",
        "MODE.open('r')",
        "json.loads(text)",
        "str(error).splitlines()",
        "done.stdout.splitlines()",
    ],
)
def test_call_keeps_the_rules(line: str) -> None:
    assert list(check_call(ast.parse(line, mode="eval").body)) == []  # type: ignore[arg-type]


def test_problems_have_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "cli").mkdir()
    file, other = tmp_path / "text/a.py", tmp_path / "cli/b.py"
    file.write_text("class A: ...\n\nopen(p)\nopen(p)  # lint: a file of ours\n")
    other.write_text("open(p)\nclass A: ...\n")
    assert [problem.partition(": ")[0] for problem in check_package(tmp_path)] == [f"{file}:3", f"{file}:1"]
