"""Real interactions without a download: names that files of Python's standard library and installed packages import.

A file is a user, an imported name is an item. A regular expression finds import lines: it is 50 times as fast as
parsing, and the result differs only for import lines inside strings. The set of packages is fixed; their content
depends on their versions, which are part of the result.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
import re
import sysconfig
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple, Sequence, Tuple

from mxtrain.files.cache import cached_json

PACKAGES = (
    "babel",
    "fonttools",
    "gluoncv",
    "hydra-core",
    "jiwer",
    "markdown",
    "matplotlib",
    "num2words",
    "numpy",
    "omegaconf",
    "pandas",
    "pillow",
    "pydantic",
    "pygments",
    "pyparsing",
    "requests",
    "rich",
    "sacrebleu",
    "scikit-learn",
    "scipy",
    "setuptools",
    "tensorboard",
    "tensorboardX",
    "urllib3",
    "werkzeug",
)
"""Packages that mxtrain needs, directly or not, so that they are always there."""
LEFT_OUT = ("test", "tests", "idle_test", "site-packages", "dist-packages", "lib2to3", "__pycache__")
"""Folders of the standard library that some installations lack, or that are no part of it."""
_VERSION = 1
"""Version of the prepared data; increase it to prepare the data again."""
_NAME = r"[\w.]+(?:[ \t]+as[ \t]+\w+)?"
IMPORT = re.compile(
    rf"^[ \t]*(?:from[ \t]+(?P<module>\.*[\w.]*)[ \t]+import[ \t]+"
    rf"(?P<names>\([^)]*\)|[^\n#;(\\]+(?:\\\n[^\n#;\\]+)*)"
    rf"|import[ \t]+(?P<modules>{_NAME}(?:[ \t]*,[ \t]*{_NAME})*))",
    re.MULTILINE,
)
"""`from MODULE import NAMES`, in parentheses or not, or `import MODULES`, at the beginning of a line."""
_COMMENT = re.compile(r"#[^\n]*")


class Imports(NamedTuple):
    """Imported names of all files.

    Attributes:
        names_of: file -> names that it imports, in order.
        origin: (name, version) of Python and of the packages.
    """

    names_of: Dict[str, List[str]]
    origin: Tuple[Tuple[str, str], ...]


def read_imports(packages: Sequence[str] = PACKAGES) -> Imports:
    """Reads the imports of all files. The result is cached until a file or a version changes.

    Args:
        packages: packages whose files are read in addition to the standard library; missing ones are skipped.
    """
    files = list(_files(packages))
    origin = (("Python", platform.python_version()), *_versions(packages))
    # Size and time of each file are enough to detect changes, and much faster than reading the files.
    stamps = [(name, status.st_size, status.st_mtime_ns) for name, path in files for status in (path.stat(),)]
    key = hashlib.sha256(json.dumps([_VERSION, origin, stamps]).encode()).hexdigest()[:32]
    names_of_files = cached_json(
        "imports",
        f"{key}.json",
        lambda: {
            name: list(imported_names(path.read_text("utf-8", "replace"), package_of(name)))  # lint: of Python
            for name, path in files
        },
    )
    return Imports(names_of_files, origin)


def _files(packages: Sequence[str]) -> Iterator[Tuple[str, Path]]:
    """Yields (path below the folder of modules, absolute path) of each file."""
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        if not any(part in LEFT_OUT or part.startswith("config-") for part in parts):
            yield "/".join(parts), path
    for package in packages:
        try:
            listed = importlib.metadata.files(package) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        for file in sorted(listed, key=str):
            path = Path(str(file.locate()))
            if file.suffix == ".py" and ".." not in file.parts and path.is_file():
                yield str(file), path


def _versions(packages: Sequence[str]) -> Iterator[Tuple[str, str]]:
    for package in packages:
        try:
            yield package, importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            yield package, "not installed"


def package_of(name: str) -> Tuple[str, ...]:
    """Returns the package that a file's relative imports refer to, e.g. (a, b) for a/b/c.py."""
    return Path(name).parts[:-1]


def imported_names(text: str, package: Sequence[str]) -> Iterator[str]:
    """Yields each name that a file imports once: `a.b` for `import a.b`, `a.b.c` for `from a.b import c`.

    Args:
        text: content of the file.
        package: package that relative imports refer to.
    """
    seen = {""}
    for match in IMPORT.finditer(text):
        if match["modules"]:
            names = [_without_alias(part) for part in match["modules"].split(",")]
        else:
            inside = _COMMENT.sub("", match["names"]).strip("() \t\n").replace("\\\n", " ")
            parts = [_without_alias(part) for part in inside.split(",")]
            module = _absolute(match["module"], package)
            names = [f"{module}.{part}" for part in parts if part.isidentifier() and module != "__future__"]
        for name in names:
            if name not in seen:
                seen.add(name)
                yield name


def _without_alias(part: str) -> str:
    return part.strip().split(" as ")[0].split("\tas ")[0].strip()


def _absolute(module: str, package: Sequence[str]) -> str:
    """Resolves leading dots of a relative import."""
    name = module.lstrip(".")
    level = len(module) - len(name)
    if not level:
        return module
    return ".".join([*package[: len(package) - level + 1], *([name] if name else [])])
