"""Draws docs/images/layers.svg, the packages of mxtrain in layers, from their imports.

    .venv/bin/python scripts/docs_parts/layers.py

A package may import its own layer and those below it. Imports that go up are found and listed below the picture.
tests/test_layers.py fails if a package has no layer or the file is not what this script draws.
"""

from __future__ import annotations

import ast
import textwrap
from html import escape
from pathlib import Path
from typing import Dict, Iterator, List, Mapping, Sequence, Set, Tuple

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "mxtrain"
PICTURE = ROOT / "docs" / "images" / "layers.svg"

PARTS = "task data model loss metric optimizer lr_scheduler early_stopping parallel kvstore amp cluster checkpoint"
LAYERS: Sequence[Tuple[str, Sequence[str]]] = (
    ("interfaces", ("cli", "api")),
    ("operations", ("workflows", "composing", "cluster.launch", "tuning")),
    ("runs", ("training", "exporting")),
    ("fields", ("vision", "text", "speech", "tables", "recommendation", "reinforcement", "forecasting")),
    ("parts of a run", (*PARTS.split(), "callback", "logger", "archive", "serving")),
    ("configuration", ("config",)),
    ("ground", ("runtime", "terminal", "engine", "files", "types", "errors")),
)
"""Title and packages of each layer, the highest first. `cluster.launch` starts runs, and is a layer above `cluster`."""

WIDTH, MARGIN, ROW, GAP = 1000, 20, 34, 10
TITLE_WIDTH = 190
LINE = 18
COLOURS = ("#e8eef9", "#e6f4ea", "#fef3e0", "#fbe9e7", "#f3e8fd", "#fce4ec", "#e0f2f1", "#eceff1")


def layer_of(package: str) -> int:
    """Returns the number of a package's layer, 0 for the highest.

    Raises:
        KeyError: no layer holds it.
    """
    return {name: number for number, (_, names) in enumerate(LAYERS) for name in names}[package]


def packages() -> Dict[str, List[Path]]:
    """Returns the modules of each package; modules of the root are packages of their own."""
    found: Dict[str, List[Path]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = _package_of(".".join(path.relative_to(ROOT).with_suffix("").parts))
        if name and not name.startswith("__"):
            found.setdefault(name, []).append(path)
    return found


def upward_imports() -> Dict[str, List[str]]:
    """Returns package -> packages of higher layers that it imports; imports for annotations do not count."""
    found: Dict[str, Set[str]] = {}
    known = packages()
    for package, paths in known.items():
        for path in paths:
            for module in _imports_of(ast.parse(path.read_text(encoding="utf-8"))):
                other = _package_of(module)
                if other in known and layer_of(other) < layer_of(package):
                    found.setdefault(package, set()).add(other)
    return {package: sorted(others) for package, others in sorted(found.items())}


def _package_of(module: str) -> str:
    parts = module.split(".")
    if parts[0] != "mxtrain" or len(parts) < 2:
        return ""
    return "cluster.launch" if parts[1:3] == ["cluster", "launch"] else parts[1]


def _imports_of(node: ast.AST) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and child.module:
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        else:
            yield from _imports_of(child)


def draw(layers: Sequence[Tuple[str, Sequence[str]]], upward: Mapping[str, Sequence[str]]) -> str:
    """Returns the picture as SVG.

    Args:
        layers: title and packages of each layer, the highest first.
        upward: imports against the direction of the layers.
    """
    lines: List[str] = []
    top = MARGIN
    for number, (title, names) in enumerate(layers):
        boxes, bottom = _boxes(names, top + GAP)
        lines.append(
            f'<rect x="{MARGIN}" y="{top}" width="{WIDTH - 2 * MARGIN}" height="{bottom - top}" rx="6" '
            f'fill="{COLOURS[number % len(COLOURS)]}"/>'
        )
        for line, words in enumerate(textwrap.wrap(title, 22)):
            lines.append(
                f'<text x="{MARGIN + 12}" y="{top + GAP + 21 + LINE * line}" class="title">{escape(words)}</text>'
            )
        lines += boxes
        if number + 1 < len(layers):
            lines.append(f'<path d="M {WIDTH / 2} {bottom + 1} v 13" class="arrow" marker-end="url(#head)"/>')
        top = bottom + 18
    notes = ["Arrows: a package imports its own layer and those below it, whichever they are."]
    notes += [f"Upwards: {package} → {', '.join(others)}" for package, others in upward.items()]
    for row in (row for note in notes for row in textwrap.wrap(note, 140, subsequent_indent="      ")):
        lines.append(f'<text x="{MARGIN}" y="{top + LINE}" class="note">{escape(row)}</text>')
        top += LINE
    height = top + MARGIN
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">',
        "<style>text { font: 14px sans-serif; fill: #202124 } .title { font-weight: bold; font-size: 13px }",
        ".note { font-size: 12px } .name { text-anchor: middle } .arrow { stroke: #5f6368; fill: none }</style>",
        '<defs><marker id="head" markerWidth="8" markerHeight="8" refX="4" refY="3" orient="auto">'
        '<path d="M 0 0 L 6 3 L 0 6 z" fill="#5f6368"/></marker></defs>',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    return "\n".join([*head, *lines, "</svg>"]) + "\n"


def _boxes(names: Sequence[str], top: int) -> Tuple[List[str], int]:
    """Returns the boxes of a layer's packages, in rows, and the bottom of the layer."""
    lines: List[str] = []
    left = first = MARGIN + TITLE_WIDTH
    for name in names:
        width = 24 + 8 * len(name)
        if left + width > WIDTH - MARGIN - GAP:
            left, top = first, top + ROW + GAP
        lines.append(
            f'<rect x="{left}" y="{top}" width="{width}" height="{ROW}" rx="4" fill="white" stroke="#9aa0a6"/>'
            f'<text x="{left + width / 2}" y="{top + 22}" class="name">{escape(name)}</text>'
        )
        left += width + GAP
    return lines, top + ROW + GAP


def main() -> None:
    """Writes the picture."""
    PICTURE.write_text(draw(LAYERS, upward_imports()), encoding="utf-8")


if __name__ == "__main__":
    main()
