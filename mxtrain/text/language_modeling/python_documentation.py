"""Real text that every Python carries: the docstrings of its standard library and the topics of `help()`.

What it holds differs a little between versions of Python.
"""

from __future__ import annotations

import ast
import hashlib
import json
import sys
import sysconfig
import warnings
from pathlib import Path
from typing import Dict, Iterator, List

from mxtrain.files.cache import cached_json

LEFT_OUT = ("test", "tests", "idle_test", "site-packages", "dist-packages", "lib2to3", "__pycache__")
"""Folders whose files are not the documentation of Python: tests, and what was installed beside it."""
_VERSION = 1
"""Version of the prepared data; increase it to prepare the data again."""


def documents() -> Dict[str, List[str]]:
    """Returns the docstrings by source file, and the topics of `help()`.

    A text that occurs in several files is kept in the first one only.
    """
    name = f"documentation-{_fingerprint()}.json"
    return cached_json("texts", name, _read)


def _library() -> Path:
    return Path(sysconfig.get_paths()["stdlib"])


def _files() -> List[Path]:
    root = _library()
    return sorted(
        path
        for path in root.rglob("*.py")
        if not any(part in LEFT_OUT or part.startswith("config-") for part in path.relative_to(root).parts)
    )


def _fingerprint() -> str:
    """Returns a hash of the Python version and of the names, sizes and times of its files."""
    files = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in _files()]
    return hashlib.sha256(json.dumps([_VERSION, sys.version, files]).encode()).hexdigest()[:32]


def _read() -> Dict[str, List[str]]:
    from pydoc_data.topics import topics

    root, seen, texts_by_source = _library(), set(), {}
    sources = {str(path.relative_to(root)): _docstrings(path) for path in _files()}
    sources.update({f"help({topic!r})": iter([text.strip("\n") + "\n"]) for topic, text in sorted(topics.items())})
    for name, texts in sources.items():
        new_texts = [text for text in dict.fromkeys(texts) if text not in seen]
        seen.update(new_texts)
        if new_texts:
            texts_by_source[name] = new_texts
    return texts_by_source


def _docstrings(path: Path) -> Iterator[str]:
    """Yields the docstrings of a file in order, indented as `help()` shows them."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in strings that are not ours
            tree = ast.parse(path.read_bytes())  # lint: a file of Python
    except (SyntaxError, ValueError, OSError):
        return
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node)
            if text:
                yield text + "\n"
