"""Copies the modules that read what a task takes into an exported folder, where mxtrain is not installed.

A module that is copied imports the standard library, NumPy, what reads its files, and other modules that are copied.

A second implementation in the folder would drift from the first one, and operators of onnxruntime-extensions know
neither our features nor our searches. The server reads with the same modules. The folder contains no interactions of
users.
"""

from __future__ import annotations

import ast
import importlib.util
from typing import Dict, Iterator, List, Tuple

from mxtrain.files.regular_files import read_regular

PACKAGE = "mxtrain."


def bundled(entry: str) -> Dict[str, bytes]:
    """Returns the source of a module and of the modules of mxtrain that it imports, by the last part of their names.

    Args:
        entry: name of the module.
    """
    contents: Dict[str, bytes] = {}
    origins: Dict[str, str] = {}
    waiting = [entry]
    while waiting:
        name = waiting.pop()
        file = f"{name.rpartition('.')[2]}.py"
        assert origins.setdefault(file, name) == name, f"{entry}: {name} and {origins[file]} are both {file}"
        if file in contents:
            continue
        # The line of an import is changed in place, so that lines of tracebacks are those of the module.
        text, imported = _rewritten(_source(name))
        contents[file] = text.encode()
        waiting += imported
    return contents


def _source(name: str) -> str:
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.origin is not None, name
    return read_regular(spec.origin).decode()


def _rewritten(text: str) -> Tuple[str, List[str]]:
    """Returns the source with relative imports instead of those of mxtrain, and the names of the imported modules."""
    lines, names = text.split("\n"), []
    for node in _imports(ast.parse(text)):
        name = node.module or ""
        if name.startswith(PACKAGE):
            names.append(name)
            line = lines[node.lineno - 1]
            lines[node.lineno - 1] = line.replace(f"from {name} import", f"from .{name.rpartition('.')[2]} import", 1)
    return "\n".join(lines), names


def _imports(tree: ast.Module) -> Iterator[ast.ImportFrom]:
    """Returns the imports at the top of a module, without those for annotations or inside functions."""
    yield from (node for node in tree.body if isinstance(node, ast.ImportFrom))
