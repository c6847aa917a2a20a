"""The rules of `scripts/lint`."""

from __future__ import annotations

import ast
import runpy
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
        "io.open(p)",
        "wave.open(p)",
        "gzip.open(p)",
        "codecs.open(p)",
        "tarfile.open(p)",
        "np.fromfile(p)",
        "np.memmap(p)",
        "np.genfromtxt(p)",
        "np.loadtxt(p)",
        "nd.load(p)",
        "sqlite3.connect(p)",
        "soundfile.read(p)",
        "zipfile.ZipFile(p)",
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


def test_the_command_prints_the_problems_and_ends_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for problems, code, printed in (
        ([], 0, ""),
        (["a.py:3: wrong", "b.py:4: wrong"], 1, "a.py:3: wrong\nb.py:4: wrong\n"),
    ):
        monkeypatch.setattr("lint_parts.rules.check_package", lambda package, found=problems: found)
        with pytest.raises(SystemExit) as ended:
            runpy.run_module("lint_parts", run_name="__main__")
        assert int(ended.value.code or 0) == code and capsys.readouterr().out == printed


def test_problems_have_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "cli").mkdir()
    file, other = tmp_path / "text/a.py", tmp_path / "cli/b.py"
    file.write_text("class A: ...\n\nopen(p)\nopen(p)  # lint: a file of ours\n")
    other.write_text("open(p)\nclass A: ...\n")
    assert [problem.partition(": ")[0] for problem in check_package(tmp_path)] == [f"{file}:3", f"{file}:1"]
