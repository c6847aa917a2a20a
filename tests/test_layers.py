"""The picture of the layers is drawn from the imports, and each package has a layer."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def layers(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts" / "docs_parts"))
    import layers

    yield layers
    del sys.modules["layers"]


@pytest.mark.slow
def test_the_picture_shows_the_packages_and_imports_of_today(layers) -> None:
    """Else type `.venv/bin/python scripts/docs_parts/layers.py`, after adding a new package to its LAYERS."""
    known = {name for _, names in layers.LAYERS for name in names}
    assert known == set(layers.packages())
    assert layers.PICTURE.read_text(encoding="utf-8") == layers.draw(layers.LAYERS, layers.upward_imports())


def test_the_package_has_few_entries() -> None:
    """A new thing belongs to a package there is (docs/internals/where.md)."""
    entries = [path for path in (ROOT / "mxtrain").iterdir() if path.name != "__pycache__"]
    assert len(entries) <= 42, sorted(path.name for path in entries)


def test_imports_of_higher_layers_are_found(layers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "ROOT", tmp_path)
    monkeypatch.setattr(layers, "PACKAGE", tmp_path / "mxtrain")
    modules = {
        "files/a.py": "def f():\n    from mxtrain.training.step import Step\n    import mxtrain.files.b, os\n",
        "files/b.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import mxtrain.cli.train\n",
        "cluster/launch/job.py": "from mxtrain import cli\nfrom mxtrain.cluster.member import Member\n",
        "cluster/member.py": "import mxtrain.cluster.launch.job\n",
        "training/step.py": "import mxtrain.files.a\n",
        "cli/train.py": "",
        "__main__.py": "import mxtrain.cli.train\n",
    }
    for name, text in modules.items():
        (tmp_path / "mxtrain" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mxtrain" / name).write_text(text)
    assert layers.upward_imports() == {
        "cluster": ["cluster.launch"],
        "cluster.launch": ["cli"],
        "files": ["training"],
    }
    picture = layers.draw([("top", ["cli"]), ("a & b", ["files"])], {"files": ["cli"]})
    assert picture.index(">cli<") < picture.index("a &amp; b") < picture.index("files → cli")
    assert picture.count('class="arrow"') == 1
