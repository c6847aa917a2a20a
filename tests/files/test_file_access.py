"""Files whose paths or contents come from users and strangers are opened by `mxtrain.files.regular_files` alone."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Iterator

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "mxtrain"

ALLOWED = {
    "the functions that all others use": {
        "files/regular_files.py",
        "files/durable.py",
        "files/cache.py",
    },
    "the kernel's own files and /dev/null": {
        "runtime/cores.py",
        "runtime/spinning.py",
        "runtime/memory.py",
        "runtime/huge_pages.py",
        "workflows/doctor.py",
        "terminal/patient_stream.py",
        "logger/tracker_process.py",
        "cluster/process.py",
        "cluster/ring.py",
    },
    "checkpoints: opens with O_NONBLOCK, and verifies kind, size and hash by the manifest": {
        "checkpoint/verified.py",
        "checkpoint/folder.py",
        "checkpoint/sharing.py",
    },
    "folders, opened as such": {
        "checkpoint/run_directory.py",
        "export/folder.py",
        "files/unused_folders.py",
        "native/__init__.py",
        "files/removal.py",
    },
    "files that this process, or another of its run, has written": {
        "engine/trace.py",
        "cluster/launcher.py",
        "cluster/remote.py",
        "vision/images/make_record.py",
    },
    "output, through `files.durable`": {"workflows/output_file.py", "logger/files.py", "training/lr_range.py"},
    "the table of connections of a process, from /proc": {"cluster/joining.py"},
    "an archive that `regular_files` opened, and new files in a folder made for them": {
        "files/download/archives.py",
        "training/replay_bundle.py",
    },
    "output, in a new folder": {"export/folder.py"},
    "files of installed packages and imported modules": {
        "archive/provenance.py",
        "composing/choices.py",
        "composing/composer.py",
        "composing/config_files.py",
        "config/trust.py",
        "composing/typed_paths.py",
        "tables/breast_cancer.py",
        "data/digits.py",
        "tables/number_table.py",
        "vision/detection/digit_scenes.py",
        "text/question_answering/numpydoc_questions.py",
        "text/language_modeling/python_documentation.py",
        "text/python_words.py",
        "recommendation/python_imports.py",
        "serving/app.py",
    },
    "exported folders: opens with O_NOFOLLOW and verifies kind and size, in a program that imports no mxtrain": {
        "export/standalone.py",
    },
    "a buffer in memory, or bytes that were read before": {
        "data/loading/opening.py",
        "speech/griffin_lim.py",
    },
}
"""Modules that open files themselves, by the reason why they may."""

MODULE_FUNCTIONS = {
    "os": {"open"},
    "io": {"open"},
    "Image": {"open"},
    "wave": {"open"},
    "gzip": {"open"},
    "codecs": {"open"},
    "np": {"load", "fromfile", "memmap", "genfromtxt", "loadtxt"},
    "nd": {"load"},
    "OmegaConf": {"load"},
    "sqlite3": {"connect"},
    "soundfile": {"read"},
    "pandas": {"read_csv"},
    "zipfile": {"ZipFile"},
    "tarfile": {"open"},
}


def file_accesses(tree: ast.AST) -> Iterator[str]:
    """The calls in a module that open a path."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        function, first = node.func, node.args[0] if node.args else None
        if isinstance(function, ast.Name) and function.id == "open":
            yield ast.unparse(node)
        elif isinstance(function, ast.Attribute):
            owner = function.value.id if isinstance(function.value, ast.Name) else ""
            has_mode = isinstance(first, ast.Constant) and isinstance(first.value, str)
            if function.attr in MODULE_FUNCTIONS.get(owner, ()) or function.attr in ("read_text", "read_bytes"):
                yield ast.unparse(node)
            elif function.attr == "open" and has_mode and len(node.args) == 1 and not owner.isupper():
                yield ast.unparse(node)


def test_what_counts_as_access_to_a_file() -> None:
    """Else the next test would pass whatever the modules do."""
    code = (
        "open(p)\nos.open(p, 0)\nPath(p).read_text()\np.read_bytes()\np.open('rb')\nnp.load(p)\nOmegaConf.load(p)\n"
        "Image.open(p)\nwave.open(p)\n"
    )
    assert len(list(file_accesses(ast.parse(code)))) == 9
    code = "read_bytes(p)\nread_regular(p)\ndataset.open()\nself.open(3)\njson.loads(text)\nopen_regular(p)\n"
    assert list(file_accesses(ast.parse(code))) == []


@pytest.mark.slow
def test_only_listed_modules_open_files() -> None:
    found = {
        path.relative_to(PACKAGE).as_posix(): list(file_accesses(ast.parse(path.read_text(encoding="utf-8"))))
        for path in PACKAGE.rglob("*.py")
    }
    opening = {name: calls for name, calls in found.items() if calls}
    allowed = {name for names in ALLOWED.values() for name in names}
    assert {name: calls for name, calls in opening.items() if name not in allowed} == {}, (
        "open what users name with mxtrain.files.regular_files"
    )
    assert allowed - set(opening) == set(), "a list of what is there, and no more"
