"""Three rules that ruff does not have. A line that says `# lint: REASON` may break the second and the third."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path
from typing import Dict, Iterator, List

READERS = (
    "data",
    "forecasting",
    "metric",
    "model",
    "recommendation",
    "reinforcement",
    "speech",
    "tables",
    "task",
    "text",
    "vision",
)
"""Packages whose code reads files and texts of users."""

OPENING = {
    "os": ("open",),
    "io": ("open",),
    "Image": ("open",),
    "wave": ("open",),
    "gzip": ("open",),
    "codecs": ("open",),
    "np": ("load", "fromfile", "memmap", "genfromtxt", "loadtxt"),
    "nd": ("load",),
    "OmegaConf": ("load",),
    "sqlite3": ("connect",),
    "soundfile": ("read",),
    "zipfile": ("ZipFile",),
    "tarfile": ("open",),
}
"""Functions of modules that open a path."""


def check_package(package: Path) -> List[str]:
    """Checks all modules below `package`; returns "FILE:LINE: problem" of each broken rule."""
    problems: List[str] = []
    classes: Dict[str, List[str]] = defaultdict(list)
    for path in sorted(package.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                classes[node.name].append(f"{path}:{node.lineno}")
        if path.relative_to(package).parts[0] in READERS:
            lines = text.split("\n")
            problems += [
                f"{path}:{call.lineno}: {problem}"
                for call in ast.walk(tree)
                if isinstance(call, ast.Call) and "# lint: " not in lines[call.lineno - 1]
                for problem in check_call(call)
            ]
    for name, places in classes.items():
        problems += [f"{place}: another class is called {name}, too: {places[0]}" for place in places[1:]]
    return problems


def check_call(call: ast.Call) -> Iterator[str]:
    """Yields what is wrong with one call in a module that reads what users wrote."""
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else ast.unparse(function)
    owner = ast.unparse(function.value) if isinstance(function, ast.Attribute) else ""
    if name == "splitlines" and not re.search(r"^str\(error\)|\bstd(out|err)\b|read_bytes\(\)", owner):
        yield "str.splitlines splits at U+2028 and form feeds, too; take files.text_lines.split_lines"
    mode = call.args[0] if len(call.args) == 1 else None
    has_mode = isinstance(mode, ast.Constant) and isinstance(mode.value, str) and not owner.isupper()
    is_method = bool(owner) and (name in ("read_text", "read_bytes") or name == "open" and has_mode)
    if is_method or name in OPENING.get(owner, ()) or (owner, name) == ("", "open"):
        yield "a path may be a pipe, a device or huge; open it with files.regular_files"
